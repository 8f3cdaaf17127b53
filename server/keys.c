#include "server/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEYS_MAX = 4096, KEY_BYTES_MAX = 1024 };

struct keys {
    size_t n;
    char *items[KEYS_MAX];
};

static int add_key(struct keys *keys, const char *text, struct err *err) {
    if (keys->n == KEYS_MAX) return err_set(err, ERR_INVALID, "more than %d API keys", KEYS_MAX);
    size_t len = strlen(text);
    if (!len || len > KEY_BYTES_MAX)
        return err_set(err, ERR_INVALID, "an API key must have 1 to %d bytes, found one of %zu",
                       KEY_BYTES_MAX, len);
    char *copy = strdup(text);
    if (!copy) return err_set(err, ERR_NOMEM, "API keys: out of memory");
    keys->items[keys->n++] = copy;
    return OK;
}

static int add_file(struct keys *keys, const char *path, struct err *err) {
    FILE *f = fopen(path, "re");
    if (!f) return err_set(err, ERR_IO, "--api-key-file %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    int rc = OK;
    while (!rc && getline(&line, &cap, f) >= 0) {
        char *start = line + strspn(line, " \t\r\n");
        size_t len = strcspn(start, "\r\n");
        while (len && (start[len - 1] == ' ' || start[len - 1] == '\t'))
            len--;
        start[len] = 0;
        if (len && *start != '#') rc = add_key(keys, start, err);
    }
    if (!rc && ferror(f)) rc = err_set(err, ERR_IO, "--api-key-file %s: cannot be read", path);
    free(line);
    fclose(f);
    return rc;
}

int keys_load(const struct options *options, struct keys **out, struct err *err) {
    struct keys *keys = calloc(1, sizeof *keys);
    if (!keys) return err_set(err, ERR_NOMEM, "API keys: out of memory");
    int rc = OK;
    for (uint32_t i = 0; !rc && i < options->api_keys.n; i++)
        rc = add_key(keys, options->api_keys.items[i], err);
    if (!rc && options->api_key_file) rc = add_file(keys, options->api_key_file, err);
    /* An empty key file must not open the server to everyone. */
    if (!rc && options->api_key_file && !keys->n)
        rc = err_set(err, ERR_INVALID, "--api-key-file %s: holds no key", options->api_key_file);
    if (rc || !keys->n) {
        keys_destroy(keys);
        keys = NULL;
    }
    if (!rc) *out = keys;
    return rc;
}

int keys_check_open_paths(const struct option_list *paths, struct err *err) {
    for (uint32_t i = 0; i < paths->n; i++)
        if (paths->items[i][0] != '/' || strpbrk(paths->items[i], "?#%"))
            return err_set(err, ERR_INVALID,
                           "--open-path: \"%.60s\" is not a path such as /v1/models",
                           paths->items[i]);
    return OK;
}

bool keys_path_is_open(const struct option_list *paths, const char *path, size_t len) {
    for (uint32_t i = 0; i < paths->n; i++) {
        size_t n = strlen(paths->items[i]);
        while (n > 1 && paths->items[i][n - 1] == '/')
            n--;
        if (n == len && !memcmp(paths->items[i], path, n)) return true;
    }
    return false;
}

void keys_destroy(struct keys *keys) {
    if (!keys) return;
    for (size_t i = 0; i < keys->n; i++)
        free(keys->items[i]);
    free(keys);
}

/* 0 when equal; looks at every byte of given whatever it finds. */
static unsigned differs(const char *key, const char *given, size_t given_len) {
    size_t key_len = strlen(key);
    volatile unsigned diff = key_len != given_len;
    for (size_t i = 0; i < given_len; i++)
        diff |= (unsigned)(unsigned char)given[i] ^
                (unsigned)(unsigned char)key[key_len ? i % key_len : 0];
    return diff;
}

bool keys_accept(const struct keys *keys, const char *authorization) {
    if (!keys) return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7)) return false;
    const char *given = authorization + 7;
    given += strspn(given, " ");
    size_t len = strlen(given);
    while (len && (given[len - 1] == ' ' || given[len - 1] == '\t'))
        len--;
    unsigned matches = 0;
    for (size_t i = 0; i < keys->n; i++)
        matches += !differs(keys->items[i], given, len);
    return matches > 0;
}
