/* fuzz_http_head.c: what the server itself reads of a request's head. The bytes are a head as sent; they
 * are cut into lines the way the HTTP library does it (each CR LF becomes two NULs, the colon one), so
 * that mutations of real requests stay near the grammar. Whatever the bytes: nothing is read beyond
 * them, facts lie in their ranges, and what the raw scan accepts holds only whole, plain lines.
 *
 *   build/fuzz/fuzz_http_head tests/fuzz/corpus/http_head */
#include <stdlib.h>
#include <string.h>

#include "server/http_headers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) abort();
}

static char *copy_of(const char *text, size_t len) {
    char *copy = malloc(len + 1);
    if (!copy) abort();
    memcpy(copy, text, len);
    copy[len] = 0;
    return copy;
}

static void check_path(const char *target, size_t len) {
    char *text = copy_of(target, len);
    const char *path = NULL;
    size_t n = 0;
    if (http_headers_path(text, &path, &n)) {
        require(path >= text && path + n <= text + strlen(text) && n && *path == '/');
        require(n == 1 || path[n - 1] != '/');
        require(!memchr(path, '?', n) && !memchr(path, '#', n));
        char out[64];
        if (http_headers_unescape(path, n, out, sizeof out)) require(strlen(out) <= n);
    }
    free(text);
}

static void check_facts(const struct http_headers *h, bool is_http_1_1) {
    if (h->request_id) require(http_headers_request_id_ok(h->request_id, h->request_id_len));
    if (http_headers_fault(h, is_http_1_1)) return;
    require(h->n_content_length + h->n_transfer_encoding <= 1);
    require(h->n_host <= 1 && h->n_authorization <= 1 && (h->n_host || !is_http_1_1));
    require(!h->n_transfer_encoding || h->chunked);
}

/* The library's buffer for one header line [at, end): name NUL value. Returns whether it reports one. */
static bool cut_line(char *line, size_t len, struct http_headers *h, char **kept) {
    char *colon = memchr(line, ':', len);
    if (!colon) return false;
    size_t name_len = (size_t)(colon - line);
    *colon = 0;
    const char *value = colon + 1;
    while (*value == ' ' || *value == '\t')
        value++;
    *kept = copy_of(line, len);
    http_headers_add(h, *kept, strlen(*kept) < name_len ? strlen(*kept) : name_len,
                     *kept + (value - line), strlen(value));
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { LINES_MAX = 64, BYTES_MAX = 4096 };
    if (size > BYTES_MAX) return 0;
    char *head = copy_of((const char *)data, size), *kept[LINES_MAX] = {0};
    struct http_headers h = {0};
    check_path(head, strcspn(head, " "));

    /* The first line: method, target and version end in NULs. */
    char *space = memchr(head, ' ', size);
    char *version = space ? memchr(space + 1, ' ', size - (size_t)(space + 1 - head)) : NULL;
    size_t at = version ? (size_t)(version + 1 - head) : 0, version_at = at;
    if (space) *space = 0;
    if (version) *version = 0;
    uint32_t n_lines = 0;
    bool first = true;
    while (at < size) {
        char *end = memmem(head + at, size - at, "\r\n", 2);
        if (!end) break;
        end[0] = end[1] = 0;
        size_t len = (size_t)(end - head) - at;
        if (!first && len && n_lines < LINES_MAX && cut_line(head + at, len, &h, &kept[n_lines]))
            n_lines++;
        at += len + 2;
        if (!first && !len) break;
        first = false;
    }
    check_facts(&h, true);
    check_facts(&h, false);

    char *exact = malloc(at ? at : 1); /* flush with its end, so that a read beyond is seen */
    if (!exact) abort();
    memcpy(exact, head, at);
    if (!http_headers_raw_fault(exact, at, version_at, n_lines)) {
        require(at >= version_at + 12 && !memcmp(exact + version_at, "HTTP/1.", 7));
        require(
            !memcmp(exact + at - 4, "\0\0\0\0", 4)); /* the last line's end, and the empty one */
        for (size_t i = version_at + 8; i + 1 < at; i++) /* no line is folded */
            require(exact[i] || exact[i + 1] != ' ' || (i && exact[i - 1]));
    }
    free(exact);
    for (uint32_t i = 0; i < n_lines; i++)
        free(kept[i]);
    free(head);
    return 0;
}
