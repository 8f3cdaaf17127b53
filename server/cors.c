#include "server/cors.h"

#include <string.h>

static bool is_any(const char *origin) {
    return !strcmp(origin, "*");
}

static bool has_any(const struct option_list *origins) {
    for (uint32_t i = 0; i < origins->n; i++)
        if (is_any(origins->items[i])) return true;
    return false;
}

/* Browsers compare the answer with their own spelling, byte by byte: no path, no slash at the end,
 * and nothing that could end a header. */
static bool is_origin(const char *text) {
    const char *host = strstr(text, "://");
    if (!host || host == text) return false;
    host += 3;
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c >= 0x7f) return false;
    return *host && !host[strcspn(host, "/?#@,*")];
}

int cors_check(const struct option_list *origins, struct err *err) {
    for (uint32_t i = 0; i < origins->n; i++)
        if (!is_any(origins->items[i]) && !is_origin(origins->items[i]))
            return err_set(err, ERR_INVALID,
                           "--cors-origin: \"%.60s\" is not * or an origin such as "
                           "https://chat.example.org:8443, without a path",
                           origins->items[i]);
    return OK;
}

const char *cors_allowed(const struct option_list *origins, const char *origin) {
    if (has_any(origins)) return "*";
    for (uint32_t i = 0; origin && i < origins->n; i++)
        if (!strcmp(origins->items[i], origin)) return origins->items[i];
    return NULL;
}

void cors_headers(const struct option_list *origins, const char *allowed, cors_put_fn *put,
                  void *to) {
    if (!origins->n) return;
    if (!has_any(origins)) put(to, "Vary", "Origin"); /* caches must not mix the answers */
    if (!allowed) return;
    put(to, "Access-Control-Allow-Origin", allowed);
    put(to, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    put(to, "Access-Control-Allow-Headers", "authorization, content-type, x-request-id");
    put(to, "Access-Control-Expose-Headers", "x-request-id, retry-after");
}
