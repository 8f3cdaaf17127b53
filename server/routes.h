/* routes.h: which path is answered by what. */
#ifndef GERYON_ROUTES_H
#define GERYON_ROUTES_H

#include "server/exchange.h"

enum { METHOD_GET = 1, METHOD_POST = 2 };

struct route {
    const char *path; /* a trailing '*' stands for one or more characters */
    unsigned methods;
    bool needs_key;
    bool generates; /* needs a loaded model and a healthy engine */
    bool is_probe;  /* logged at debug level only */
    void (*handle)(struct exchange *ex);
    const char *allow; /* for 405 and OPTIONS */
};

/* The route of a path (not NUL-terminated), or NULL. */
const struct route *routes_find(const char *path, size_t len);

#endif
