/* keys.h: the API keys a server accepts. Immutable after keys_load. */
#ifndef GERYON_KEYS_H
#define GERYON_KEYS_H

#include <stdbool.h>

#include "kernels/base.h"
#include "server/options.h"

struct keys; /* opaque: keys.c */

/* Keys of --api-key and --api-key-file. *out is NULL when there are none: then all may pass. */
int keys_load(const struct options *options, struct keys **out, struct err *err);
void keys_destroy(struct keys *keys); /* NULL is fine */

/* Whether an Authorization value (NULL: absent) names one of the keys. The time taken depends on
 * the lengths alone, never on the bytes. */
bool keys_accept(const struct keys *keys, const char *authorization);

#endif
