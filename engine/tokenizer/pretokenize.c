/* Depth first: a piece goes through all later splits before the next one is cut, so no list of
 * pieces is kept, however long the text is. */
#include "engine/tokenizer/pretokenize.h"

#include <stdlib.h>
#include <string.h>

struct run {
    const struct pretokenizer *pretokenizer;
    struct matcher *matcher;
    int (*word)(void *arg, const char *text, size_t len);
    void *arg;
    struct err *err;
};

/* One split under way. Behaviours that join neighbours hold back the last piece. */
struct splitter {
    const struct run *run;
    uint32_t op;
    const char *text;
    bool held, held_match;
    size_t lo, hi; /* the held piece */
};

static int run_op(const struct run *run, uint32_t op, const char *text, size_t len);

static int emit(const struct splitter *s, size_t lo, size_t hi) {
    return lo == hi ? OK : run_op(s->run, s->op + 1, s->text + lo, hi - lo);
}

static int flush(struct splitter *s) {
    bool held = s->held;
    s->held = false;
    return held ? emit(s, s->lo, s->hi) : OK;
}

static int hold(struct splitter *s, size_t lo, size_t hi, bool match) {
    int rc = flush(s);
    s->held = true;
    s->held_match = match;
    s->lo = lo;
    s->hi = hi;
    return rc;
}

/* The next stretch of text, a match or what lies between two. */
static int stretch(struct splitter *s, size_t lo, size_t hi, bool match) {
    const struct pretokenizer_op *op = &s->run->pretokenizer->ops[s->op];
    if (op->invert) match = !match;
    switch (op->behavior) {
    case SPLIT_ISOLATED:
        return emit(s, lo, hi);
    case SPLIT_REMOVED:
        return match ? OK : emit(s, lo, hi);
    case SPLIT_CONTIGUOUS:
        if (!s->held || s->held_match != match) return hold(s, lo, hi, match);
        s->hi = hi;
        return OK;
    case SPLIT_MERGED_WITH_PREVIOUS: /* joins what is no match; a second match stands alone */
        if (!(match && s->held && !s->held_match)) return hold(s, lo, hi, match);
        s->hi = hi;
        s->held_match = true;
        return OK;
    case SPLIT_MERGED_WITH_NEXT: /* only matches are held */
        if (match) return hold(s, lo, hi, true);
        if (s->held) lo = s->lo;
        s->held = false;
        return emit(s, lo, hi);
    }
    return OK;
}

static int split(const struct run *run, uint32_t op, const char *text, size_t len) {
    struct splitter s = {.run = run, .op = op, .text = text};
    struct pattern_walk walk = {0};
    size_t done = 0, start, end;
    int rc;
    while ((rc = pattern_next(run->pretokenizer->ops[op].pattern, run->matcher, text, len, &walk,
                              &start, &end, run->err)) > 0) {
        rc = done != start ? stretch(&s, done, start, false) : OK;
        if (rc == OK) rc = stretch(&s, start, end, true);
        if (rc) return rc;
        done = end;
    }
    if (rc == OK && done != len) rc = stretch(&s, done, len, false);
    return rc ? rc : flush(&s);
}

static int run_op(const struct run *run, uint32_t op, const char *text, size_t len) {
    if (op == run->pretokenizer->n_ops) return run->word(run->arg, text, len);
    const struct pretokenizer_op *o = &run->pretokenizer->ops[op];
    char *spaced = NULL;
    if (o->prefix_space && text[0] != ' ') {
        spaced = malloc(len + 1);
        if (!spaced) return err_set(run->err, ERR_NOMEM, "no memory for a text of %zu bytes", len);
        spaced[0] = ' ';
        memcpy(spaced + 1, text, len);
        text = spaced;
        len++;
    }
    int rc = o->no_split ? run_op(run, op + 1, text, len) : split(run, op, text, len);
    free(spaced);
    return rc;
}

int pretokenize(const struct pretokenizer *pretokenizer, struct matcher *matcher, const char *text,
                size_t len, int (*word)(void *arg, const char *text, size_t len), void *arg,
                struct err *err) {
    struct run run = {pretokenizer, matcher, word, arg, err};
    return len ? run_op(&run, 0, text, len) : OK;
}

void pretokenizer_fini(struct pretokenizer *pretokenizer) {
    for (uint32_t i = 0; i < pretokenizer->n_ops; i++)
        pattern_destroy(pretokenizer->ops[i].pattern);
    pretokenizer->n_ops = 0;
}
