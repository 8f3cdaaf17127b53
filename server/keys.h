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

/* --open-path: plain paths beginning with a slash. ERR_INVALID names the bad one. */
int keys_check_open_paths(const struct option_list *paths, struct err *err);
/* Whether this path (without query and trailing slash) needs no key. */
bool keys_path_is_open(const struct option_list *paths, const char *path, size_t len);

/* Whether an Authorization value (NULL: absent) names one of the keys. The time taken depends on
 * the lengths alone, never on the bytes. */
bool keys_accept(const struct keys *keys, const char *authorization);

#endif
