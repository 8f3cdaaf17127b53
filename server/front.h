/* front.h: what happens between a complete body and admission: parsing (large bodies), templates,
 * tokenising, on a pool of 2 threads; results are admitted in order of arrival. The same work without
 * admission answers the token and render routes. Loop thread. */
#ifndef GERYON_FRONT_H
#define GERYON_FRONT_H

#include "server/exchange.h"

/* Must be called before anything else uses libuv's thread pool. */
int front_create(struct server *server, struct err *err);
enum front_purpose {
    FRONT_GENERATE, /* generation_begin, in order of arrival */
    FRONT_RENDER,   /* answer with the ids that generation would use */
    FRONT_TOKENS,   /* answer /tokenize or /detokenize */
};

/* A body is complete: answers ex at once, or later. Only generation asks anything of the engine. */
void front_submit(struct exchange *ex, enum route_kind kind, enum front_purpose purpose);
/* The exchange ends or fails: the job's result will be dropped. */
void front_forget(struct exchange *ex);
/* All jobs must be done: run the loop until it is empty first. */
void front_destroy(struct front *front); /* NULL is fine */

#endif
