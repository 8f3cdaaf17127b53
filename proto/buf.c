#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/chars.h"
#include "proto/proto.h"

enum { BUF_CAP_MIN = 512 };

void buf_free(struct buf *buf) {
    free(buf->data);
    *buf = (struct buf){0};
}

/* Room for `more` bytes behind len; false (and failed set) without memory. Doubling keeps the cost
 * per byte constant; a buffer that has its size never allocates again. */
static bool reserve(struct buf *buf, size_t more) {
    if (buf->failed) return false;
    if (more <= buf->cap - buf->len) return true;
    size_t need, cap = buf->cap < BUF_CAP_MIN ? BUF_CAP_MIN : buf->cap;
    if (__builtin_add_overflow(buf->len, more, &need) || need > SIZE_MAX / 2) {
        buf->failed = true;
        return false;
    }
    while (cap < need)
        cap *= 2;
    char *data = realloc(buf->data, cap);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

void buf_add(struct buf *buf, const char *data, size_t len) {
    if (len == 0 || !reserve(buf, len)) return;
    memcpy(buf->data + buf->len, data, len);
    buf->len += len;
}

void buf_str(struct buf *buf, const char *text) {
    buf_add(buf, text, strlen(text));
}

void buf_fmt(struct buf *buf, const char *fmt, ...) {
    if (!reserve(buf, 64)) return;
    /* Twice at most: the first try tells how much room the second one needs. */
    for (int attempt = 0; attempt < 2; attempt++) {
        size_t room = buf->cap - buf->len;
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(buf->data + buf->len, room, fmt, args);
        va_end(args);
        if (n < 0) {
            buf->failed = true;
            return;
        }
        if ((size_t)n < room) {
            buf->len += (size_t)n;
            return;
        }
        if (!reserve(buf, (size_t)n + 1)) return;
    }
}

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* One byte that JSON wants escaped. */
static void add_escape(struct buf *buf, unsigned char c) {
    static const char letters[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *pair = letters; *pair; pair += 2) {
        if ((unsigned char)pair[0] == c) {
            buf_add(buf, (const char[]){'\\', pair[1]}, 2);
            return;
        }
    }
    buf_fmt(buf, "\\u%04x", c);
}

void buf_json(struct buf *buf, const char *text, size_t len) {
    buf_add(buf, "\"", 1);
    size_t run = 0; /* text[run .. at) waits to be copied as it is */
    for (size_t at = 0; at < len;) {
        unsigned char c = (unsigned char)text[at];
        if (is_plain(c)) {
            at++;
            continue;
        }
        bool valid = true;
        size_t n = c < 0x80 ? 1 : chars_next(text + at, len - at, &valid);
        if (c < 0x80 || !valid) {
            buf_add(buf, text + run, at - run);
            run = at + n;
            if (valid)
                add_escape(buf, c);
            else
                buf_str(buf, "\xEF\xBF\xBD"); /* U+FFFD */
        }
        at += n;
    }
    if (len > run) buf_add(buf, text + run, len - run);
    buf_add(buf, "\"", 1);
}

void buf_ids(struct buf *buf, const int32_t *ids, uint32_t n) {
    buf_str(buf, "[");
    for (uint32_t i = 0; i < n; i++)
        buf_fmt(buf, i ? ",%d" : "%d", ids[i]);
    buf_str(buf, "]");
}
