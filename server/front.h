/* front.h: what happens between a complete body and admission: parsing (large bodies), templates,
 * tokenising, on a pool of 2 threads; results are admitted in order of arrival. Loop thread. */
#ifndef GERYON_FRONT_H
#define GERYON_FRONT_H

#include "server/exchange.h"

/* Must be called before anything else uses libuv's thread pool. */
int front_create(struct server *server, struct err *err);
/* A generation request's body is complete: answers ex at once, or later (generation_begin). */
void front_submit(struct exchange *ex, enum route_kind kind);
/* The exchange ends or fails: the job's result will be dropped. */
void front_forget(struct exchange *ex);
/* All jobs must be done: run the loop until it is empty first. */
void front_destroy(struct front *front); /* NULL is fine */

#endif
