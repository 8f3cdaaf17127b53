/* pretokenize.h: cuts text into the words that the model encodes one by one. Immutable after
 * creation: any thread may run it. */
#ifndef GERYON_PRETOKENIZE_H
#define GERYON_PRETOKENIZE_H

#include "engine/tokenizer/pattern.h"

/* What becomes of a match and of what lies between matches. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum { PRETOKENIZER_OPS_MAX = 32 };

struct pretokenizer_op {
    struct pattern *pattern; /* owned */
    enum split_behavior behavior;
    bool invert;       /* matches are what lies between */
    bool prefix_space; /* a piece that does not start with a blank gets one, before the split */
    bool no_split;     /* prefix_space alone */
};

/* Each op splits the pieces of the one before. */
struct pretokenizer {
    struct pretokenizer_op ops[PRETOKENIZER_OPS_MAX];
    uint32_t n_ops;
};

void pretokenizer_fini(struct pretokenizer *pretokenizer);

/* Call word(arg, text, len) for each word of text (valid UTF-8) in order; words are never empty and
 * live during the call. Stops at the first result that is not 0 and returns it; ERR_NOMEM, or what
 * pattern_next says. */
int pretokenize(const struct pretokenizer *pretokenizer, struct matcher *matcher, const char *text,
                size_t len, int (*word)(void *arg, const char *text, size_t len), void *arg,
                struct err *err);

#endif
