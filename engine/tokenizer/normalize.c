#include "engine/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tokenizer/utf8.h"

void marked_text_free(struct marked_text *t) {
    free(t->text);
    free(t->trust);
    *t = (struct marked_text){0};
}

static int reserve(struct marked_text *t, size_t n) {
    if (n > SIZE_MAX / 4 - t->len) return ERR_NOMEM;
    if (t->len + n <= t->cap) return OK;
    size_t cap = t->len + n + t->cap / 2 + 16;
    char *text = realloc(t->text, cap);
    if (!text) return ERR_NOMEM;
    t->text = text;
    uint8_t *trust = realloc(t->trust, cap);
    if (!trust) return ERR_NOMEM;
    t->trust = trust;
    t->cap = cap;
    return OK;
}

int marked_text_add(struct marked_text *t, const char *bytes, size_t n, bool trusted) {
    if (n == 0) return OK;
    if (reserve(t, n)) return ERR_NOMEM;
    memcpy(t->text + t->len, bytes, n);
    memset(t->trust + t->len, trusted, n);
    t->len += n;
    return OK;
}

/* Append a part of another text as it is. */
static int copy_part(struct marked_text *to, const struct marked_text *from, size_t lo, size_t hi) {
    if (lo == hi) return OK;
    if (reserve(to, hi - lo)) return ERR_NOMEM;
    memcpy(to->text + to->len, from->text + lo, hi - lo);
    memcpy(to->trust + to->len, from->trust + lo, hi - lo);
    to->len += hi - lo;
    return OK;
}

static bool all_trusted(const struct marked_text *t, size_t lo, size_t hi) {
    return !memchr(t->trust + lo, 0, hi - lo);
}

/* ASCII characters never change and nothing combines across the left side of one, so the text is
 * normalised in parts, each an ASCII character with the others that follow it:  "caf|e´|s|" */
static int compose(const struct marked_text *in, struct marked_text *out, utf8proc_option_t form) {
    size_t i = 0;
    while (i < in->len) {
        size_t ascii = i;
        while (ascii < in->len && (uint8_t)in->text[ascii] < 0x80)
            ascii++;
        size_t other = ascii < in->len && ascii > i ? ascii - 1 : ascii;
        if (copy_part(out, in, i, other)) return ERR_NOMEM;
        size_t end = ascii;
        while (end < in->len && (uint8_t)in->text[end] >= 0x80)
            end++;
        if (end > other) {
            utf8proc_uint8_t *result = NULL;
            utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)in->text + other,
                                              (utf8proc_ssize_t)(end - other), &result, form);
            int rc = n < 0 ? ERR_NOMEM
                           : marked_text_add(out, (const char *)result, (size_t)n,
                                             all_trusted(in, other, end));
            free(result);
            if (rc) return rc;
        }
        i = end;
    }
    return OK;
}

static int lowercase(const struct marked_text *in, struct marked_text *out) {
    for (size_t i = 0, size; i < in->len; i += size) {
        char lower[8];
        uint32_t c = utf8_char(in->text + i, &size);
        size_t n = utf8_put((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), lower);
        if (c == 0x130) n = 1 + utf8_put(0x307, lower + 1); /* the one that becomes two */
        if (c == 0x130) lower[0] = 'i';
        if (marked_text_add(out, lower, n, all_trusted(in, i, i + size))) return ERR_NOMEM;
    }
    return OK;
}

static int strip(const struct marked_text *in, struct marked_text *out,
                 const struct normalizer_op *op) {
    size_t lo = 0, hi = in->len, size;
    while (op->left && lo < hi && utf8_is_space(utf8_char(in->text + lo, &size)))
        lo += size;
    while (op->right && lo < hi) {
        size_t last = hi - 1;
        while ((in->text[last] & 0xC0) == 0x80)
            last--;
        if (!utf8_is_space(utf8_char(in->text + last, &size))) break;
        hi = last;
    }
    return copy_part(out, in, lo, hi);
}

static int replace(const struct marked_text *in, struct marked_text *out,
                   const struct normalizer_op *op, struct matcher *matcher, struct err *err) {
    struct pattern_walk walk = {0};
    size_t done = 0, start, end;
    int rc;
    while ((rc = pattern_next(op->pattern, matcher, in->text, in->len, &walk, &start, &end, err)) >
           0) {
        if (copy_part(out, in, done, start)) return ERR_NOMEM;
        if (marked_text_add(out, op->content, op->content_len, all_trusted(in, start, end)))
            return ERR_NOMEM;
        done = end;
    }
    return rc < 0 ? rc : copy_part(out, in, done, in->len);
}

static int apply_op(const struct normalizer_op *op, struct matcher *matcher,
                    const struct marked_text *in, struct marked_text *out, struct err *err) {
    const int form = UTF8PROC_STABLE;
    switch (op->kind) {
    case NORMALIZE_NFC:
        return compose(in, out, form | UTF8PROC_COMPOSE);
    case NORMALIZE_NFD:
        return compose(in, out, form | UTF8PROC_DECOMPOSE);
    case NORMALIZE_NFKC:
        return compose(in, out, form | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case NORMALIZE_NFKD:
        return compose(in, out, form | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    case NORMALIZE_LOWERCASE:
        return lowercase(in, out);
    case NORMALIZE_STRIP:
        return strip(in, out, op);
    case NORMALIZE_PREPEND:
        if (in->len && marked_text_add(out, op->content, op->content_len, false)) return ERR_NOMEM;
        return copy_part(out, in, 0, in->len);
    case NORMALIZE_REPLACE:
        return replace(in, out, op, matcher, err);
    }
    return OK;
}

int normalizer_apply(const struct normalizer *normalizer, struct matcher *matcher,
                     struct marked_text *text, struct err *err) {
    for (uint32_t i = 0; i < normalizer->n_ops; i++) {
        struct marked_text out = {0};
        if (err) err->msg[0] = '\0';
        int rc = text->len ? apply_op(&normalizer->ops[i], matcher, text, &out, err) : OK;
        if (rc) {
            marked_text_free(&out);
            return rc == ERR_NOMEM ? err_set(err, rc, "no memory to normalise a text") : rc;
        }
        marked_text_free(text);
        *text = out;
    }
    return OK;
}

void normalizer_fini(struct normalizer *normalizer) {
    for (uint32_t i = 0; i < normalizer->n_ops; i++) {
        pattern_destroy(normalizer->ops[i].pattern);
        free(normalizer->ops[i].content);
    }
    normalizer->n_ops = 0;
}
