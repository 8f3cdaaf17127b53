/* normalize.h: the normaliser of a tokenizer: a list of rewritings of text, carrying along which
 * bytes came from a trusted origin. Immutable after creation: any thread may apply it. */
#ifndef GERYON_NORMALIZE_H
#define GERYON_NORMALIZE_H

#include "engine/tokenizer/pattern.h"

/* A growing text with the origin of each byte: trust[i] is 1 where text[i] may be part of a control
 * token. Start from {0}. */
struct marked_text {
    char *text;
    uint8_t *trust;
    size_t len, cap;
};
void marked_text_free(struct marked_text *text);
/* Append n bytes, all of one origin. ERR_NOMEM. */
int marked_text_add(struct marked_text *text, const char *bytes, size_t n, bool trusted);

enum normalizer_kind {
    NORMALIZE_NFC,
    NORMALIZE_NFD,
    NORMALIZE_NFKC,
    NORMALIZE_NFKD,
    NORMALIZE_LOWERCASE,
    NORMALIZE_STRIP,
    NORMALIZE_PREPEND,
    NORMALIZE_REPLACE,
};

enum { NORMALIZER_OPS_MAX = 32 };

struct normalizer_op {
    enum normalizer_kind kind;
    bool left, right;        /* STRIP */
    struct pattern *pattern; /* REPLACE; owned */
    char *content;           /* PREPEND, REPLACE: malloc'd, owned */
    size_t content_len;
};

struct normalizer {
    struct normalizer_op ops[NORMALIZER_OPS_MAX];
    uint32_t n_ops;
};

void normalizer_fini(struct normalizer *normalizer);

/* Rewrite text (valid UTF-8) in place. A byte of the result is trusted only
 * where all bytes it may have come from are. ERR_NOMEM, or what pattern_next says. */
int normalizer_apply(const struct normalizer *normalizer, struct matcher *matcher,
                     struct marked_text *text, struct err *err);

#endif
