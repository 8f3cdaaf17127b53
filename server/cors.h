/* cors.h: which web pages may read our answers (--cors-origin), as response headers. */
#ifndef GERYON_CORS_H
#define GERYON_CORS_H

#include "server/options.h"

/* Each origin is `*` or scheme://host[:port] without a path. ERR_INVALID names the bad one. */
int cors_check(const struct option_list *origins, struct err *err);

/* What Access-Control-Allow-Origin says to a request from origin (NULL: not known): "*", the
 * list's own text, or NULL. */
const char *cors_allowed(const struct option_list *origins, const char *origin);

/* Hand each header of an answer to put(to, name, value); none while CORS is off. */
typedef void cors_put_fn(void *to, const char *name, const char *value);
void cors_headers(const struct option_list *origins, const char *allowed, cors_put_fn *put,
                  void *to);

#endif
