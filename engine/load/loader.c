/* loader.c: see loader.h. */
#include "engine/load/loader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Depth and number of values by one scan. Brackets inside strings do not count. Malformed text may
 * count wrongly, but never too low to protect the parser: every value but the first follows one of
 * `,` `:` `[`, and every level opens with a bracket. */
static int guard_json(const char *text, size_t len, unsigned max_depth, size_t max_values,
                      const char *what, struct err *err) {
    unsigned depth = 0;
    size_t values = 1;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == '{' || c == '[') depth++;
        if ((c == '}' || c == ']') && depth > 0) depth--;
        if (c == ',' || c == ':' || c == '[') values++;
        if (depth > max_depth)
            return err_set(err, ERR_INVALID, "%s: JSON nested deeper than %u levels", what,
                           max_depth);
        if (values > max_values)
            return err_set(err, ERR_TOO_LONG, "%s: JSON of more than %zu values", what, max_values);
    }
    return OK;
}

int loader_json(const char *text, size_t len, unsigned max_depth, size_t max_values,
                const char *what, json_t **out, struct err *err) {
    int rc = guard_json(text, len, max_depth, max_values, what, err);
    if (rc) return rc;
    json_error_t why;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        /* Without memory jansson gives up without a word. */
        if (!why.text[0]) return err_set(err, ERR_NOMEM, "%s: no memory to parse it", what);
        char reason[LOADER_NAME_CAP];
        loader_printable(why.text, strlen(why.text), reason);
        return err_set(err, ERR_INVALID, "%s: no valid JSON: line %d: %s", what, why.line, reason);
    }
    *out = root;
    return OK;
}

const char *loader_printable(const char *name, size_t len, char out[LOADER_NAME_CAP]) {
    size_t n = 0;
    bool cut = len > LOADER_NAME_CAP - 4;
    size_t keep = cut ? LOADER_NAME_CAP - 4 : len;
    for (size_t i = 0; i < keep; i++) {
        unsigned char c = (unsigned char)name[i];
        out[n++] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
    }
    /* A cut must not leave half a character. */
    while (cut && n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80)
        n--;
    if (cut) {
        memcpy(out + n, "...", 3);
        n += 3;
    }
    out[n] = 0;
    return out;
}

int loader_open(const char *path, int *fd, uint64_t *size, struct err *err) {
    /* O_NONBLOCK: opening a pipe must not wait for its other end. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(f, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(f);
        return err_set(err, ERR_IO, "%s: not a regular file", path);
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return OK;
}

int loader_pread(int fd, void *dst, size_t n, uint64_t offset, const char *what, struct err *err) {
    char *to = dst;
    while (n > 0) {
        ssize_t got = pread(fd, to, n < (1u << 30) ? n : (1u << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(err, ERR_IO, "%s: %s", what, strerror(errno));
        if (got == 0)
            return err_set(err, ERR_IO, "%s: the file ends at byte %llu, %zu more expected", what,
                           (unsigned long long)offset, n);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return OK;
}

int loader_read_file(const char *path, size_t limit, bool optional, char **out, size_t *len,
                     struct err *err) {
    if (optional && access(path, F_OK) != 0 && errno == ENOENT) {
        *out = NULL;
        *len = 0;
        return OK;
    }
    int fd;
    uint64_t size;
    int rc = loader_open(path, &fd, &size, err);
    if (rc) return rc;
    char *data = NULL;
    if (size > limit) {
        rc = err_set(err, ERR_TOO_LONG, "%s: %llu bytes, at most %zu are read", path,
                     (unsigned long long)size, limit);
        goto done;
    }
    data = malloc((size_t)size + 1);
    if (!data) {
        rc =
            err_set(err, ERR_NOMEM, "%s: no memory for %llu bytes", path, (unsigned long long)size);
        goto done;
    }
    rc = loader_pread(fd, data, (size_t)size, 0, path, err);
    if (rc) goto done;
    data[size] = 0;
    *out = data;
    *len = (size_t)size;
    data = NULL;
done:
    free(data);
    close(fd);
    return rc;
}

char *loader_join(const char *dir, const char *name) {
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    if (path) snprintf(path, n, "%s/%s", dir, name);
    return path;
}

uint64_t loader_hash(uint64_t hash, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001b3ull;
    return hash;
}
