#include "server/http_headers.h"

#include <string.h>
#include <strings.h>

/* RFC 9110 tchar. */
static bool is_token_char(unsigned char c) {
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_token(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!is_token_char((unsigned char)text[i])) return false;
    return len > 0;
}

/* Visible characters, blanks, tabs and bytes above ASCII. */
static bool is_field_value(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

static bool name_is(const char *key, size_t len, const char *name) {
    return strlen(name) == len && !strncasecmp(key, name, len);
}

static void trim(const char **text, size_t *len) {
    while (*len && (**text == ' ' || **text == '\t'))
        (*text)++, (*len)--;
    while (*len && ((*text)[*len - 1] == ' ' || (*text)[*len - 1] == '\t'))
        (*len)--;
}

static bool parse_length(const char *text, size_t len, uint64_t *out) {
    uint64_t n = 0;
    if (!len) return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        if (__builtin_mul_overflow(n, (uint64_t)10, &n)) return false;
        if (__builtin_add_overflow(n, (uint64_t)(text[i] - '0'), &n)) return false;
    }
    *out = n;
    return true;
}

bool http_headers_request_id_ok(const char *id, size_t len) {
    if (!len || len > REQUEST_ID_MAX) return false;
    for (size_t i = 0; i < len; i++) {
        char c = id[i];
        bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '.' || c == '_' || c == ':' || c == '-';
        if (!ok) return false;
    }
    return true;
}

static void fault(struct http_headers *h, const char *what) {
    if (!h->fault) h->fault = what;
}

void http_headers_add(struct http_headers *h, const char *key, size_t key_len, const char *value,
                      size_t value_len) {
    h->n_headers++;
    if (!is_token(key, key_len)) {
        fault(h, "a header name holds a character that is not allowed there");
        return;
    }
    if (!is_field_value(value, value_len)) fault(h, "a header value holds a control character");
    trim(&value, &value_len);
    if (name_is(key, key_len, "content-length")) {
        h->n_content_length++;
        if (!parse_length(value, value_len, &h->content_length))
            fault(h, "Content-Length is not a whole number");
    } else if (name_is(key, key_len, "transfer-encoding")) {
        h->n_transfer_encoding++;
        h->chunked = name_is(value, value_len, "chunked");
        if (!h->chunked) fault(h, "Transfer-Encoding must be chunked alone");
    } else if (name_is(key, key_len, "host")) {
        h->n_host++;
    } else if (name_is(key, key_len, "authorization")) {
        h->n_authorization++;
        h->authorization = value;
    } else if (name_is(key, key_len, "expect")) {
        h->expect_continue = name_is(value, value_len, "100-continue");
    } else if (name_is(key, key_len, "content-type")) {
        h->multipart = value_len >= 10 && !strncasecmp(value, "multipart/", 10);
    } else if (name_is(key, key_len, "content-encoding")) {
        h->encoded = value_len && !name_is(value, value_len, "identity");
    } else if (name_is(key, key_len, "origin")) {
        if (!h->origin) h->origin = value;
    } else if (name_is(key, key_len, "x-request-id")) {
        if (h->request_id || !http_headers_request_id_ok(value, value_len)) return;
        h->request_id = value;
        h->request_id_len = value_len;
    }
}

const char *http_headers_fault(const struct http_headers *h, bool is_http_1_1) {
    if (h->fault) return h->fault;
    if (h->n_content_length > 1) return "more than one Content-Length";
    if (h->n_transfer_encoding > 1) return "more than one Transfer-Encoding";
    if (h->n_content_length && h->n_transfer_encoding)
        return "Content-Length together with Transfer-Encoding";
    if (h->n_host > 1) return "more than one Host";
    if (!h->n_host && is_http_1_1) return "Host is missing";
    if (h->n_authorization > 1) return "more than one Authorization";
    return NULL;
}

const char *http_headers_line_fault(const char *method, const char *target) {
    if (!is_token(method, strlen(method))) return "the method is not a word";
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return "the request target holds a space or a control character";
    return NULL;
}

const char *http_headers_raw_fault(const char *bytes, size_t len, size_t version_at,
                                   uint32_t n_headers) {
    static const char LINE[] = "a line of the header block does not end in CR LF, is folded, or "
                               "holds a NUL";
    static const char VERSION[] = "HTTP/1.";
    size_t at = version_at + 8;
    if (len < 10 || version_at > len - 10 || memcmp(bytes + version_at, VERSION, 7))
        return "the request line is malformed";
    if (bytes[at] || bytes[at + 1]) return "the request line does not end in CR LF";
    at += 2;
    for (uint32_t n = 0; at + 2 <= len; n++) {
        if (!bytes[at] && !bytes[at + 1]) {
            bool whole = at + 2 == len && n == n_headers;
            return whole ? NULL : LINE;
        }
        const char *nul = memchr(bytes + at, 0, len - at);
        if (!nul || !is_token(bytes + at, (size_t)(nul - bytes) - at)) return LINE;
        at = (size_t)(nul - bytes) + 1;
        nul = memchr(bytes + at, 0, len - at);
        if (!nul) return LINE;
        at = (size_t)(nul - bytes) + 2;
        if (at > len || nul[1]) return LINE;
    }
    return LINE;
}

bool http_headers_path(const char *target, const char **path, size_t *len) {
    static const char *const SCHEMES[] = {"http://", "https://"};
    for (size_t i = 0; i < 2; i++) {
        size_t n = strlen(SCHEMES[i]);
        if (strncasecmp(target, SCHEMES[i], n)) continue;
        target += n;
        target += strcspn(target, "/?");
        break;
    }
    if (*target != '/') return false;
    size_t n = strcspn(target, "?#");
    while (n > 1 && target[n - 1] == '/')
        n--;
    *path = target;
    *len = n;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool http_headers_unescape(const char *text, size_t len, char *out, size_t cap) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '%') {
            int hi = i + 2 < len ? hex_digit(text[i + 1]) : -1;
            int lo = i + 2 < len ? hex_digit(text[i + 2]) : -1;
            if (hi < 0 || lo < 0) return false;
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (!c || n + 1 >= cap) return false;
        out[n++] = c;
    }
    if (!cap) return false;
    out[n] = 0;
    return true;
}
