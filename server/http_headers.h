/* http_headers.h: what the server accepts of a request's head: strict framing, request ids, paths.
 * Pure functions over bytes; http.c and exchange.c feed them what the HTTP library parsed. */
#ifndef GERYON_HTTP_HEADERS_H
#define GERYON_HTTP_HEADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HEADERS_BYTES_MAX = 32 * 1024, /* header block; above it 431 */
    URI_BYTES_MAX = 8 * 1024,      /* request target; above it 414 */
    REQUEST_ID_MAX = 128,
};

/* Facts about one header block, filled header by header. */
struct http_headers {
    const char *fault; /* the first framing fault, static text, or NULL */
    uint32_t n_headers, n_host, n_content_length, n_transfer_encoding, n_authorization;
    uint64_t content_length;
    bool chunked;
    bool expect_continue;
    bool multipart;            /* Content-Type is multipart/anything */
    bool encoded;              /* a Content-Encoding other than identity */
    const char *authorization; /* value, or NULL; lives as long as the library's header */
    const char *request_id;    /* first X-Request-Id that is acceptable, or NULL */
    size_t request_id_len;
    const char *origin; /* first Origin, or NULL */
};

/* Add one header. key and value are NUL-terminated beyond their lengths. */
void http_headers_add(struct http_headers *h, const char *key, size_t key_len, const char *value,
                      size_t value_len);
/* After the last one: NULL, or what is wrong with the framing (static text). */
const char *http_headers_fault(const struct http_headers *h, bool is_http_1_1);

/* Method and target of the request line: NULL, or what is wrong with them (static text). */
const char *http_headers_line_fault(const char *method, const char *target);

/* libmicrohttpd 0.9.75 leaves the head in its buffer with separators replaced by NULs:
 *
 *   method NUL target NUL version NUL NUL (name NUL value NUL NUL)* NUL NUL
 *
 * Anything else there (a folded line, a bare LF or CR, a NUL inside a value, a name that is no
 * token) is a framing fault that the library hides. bytes[0..len) is the whole head, version_at the
 * offset of the version in it, n_headers what the library reported. NULL, or the fault. */
const char *http_headers_raw_fault(const char *bytes, size_t len, size_t version_at,
                                   uint32_t n_headers);

/* [A-Za-z0-9._:-]{1,128} */
bool http_headers_request_id_ok(const char *id, size_t len);

/* The path of a request target: scheme and host of an absolute form, query, and a trailing slash
 * are cut off. *path points into target. False when there is no path (as in "*"). */
bool http_headers_path(const char *target, const char **path, size_t *len);

/* Decode %XX of one path segment into out (cap bytes, NUL-terminated). False for a broken or zero
 * escape, or when it does not fit. */
bool http_headers_unescape(const char *text, size_t len, char *out, size_t cap);

#endif
