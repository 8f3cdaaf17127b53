/* pattern.h: what tokenizer files search text for: a regular expression, a literal, or a class of
 * characters. Expressions are written for Oniguruma (Ruby syntax), which Hugging Face uses; they
 * are rewritten for PCRE2 construct by construct, and a construct whose meaning would differ is
 * refused by name. Patterns are immutable: any thread may search, each with a matcher of its own. */
#ifndef GERYON_PATTERN_H
#define GERYON_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base.h"

struct pattern;

/* ERR_INVALID naming the construct and its place, or ERR_NOMEM. where: the file's key. */
int pattern_regex(const char *source, size_t len, const char *where, struct pattern **out,
                  struct err *err);
/* A literal, not empty. */
int pattern_literal(const char *text, size_t len, const char *where, struct pattern **out,
                    struct err *err);
/* Each single character for which is() holds. */
int pattern_class(bool (*is)(uint32_t c), struct pattern **out, struct err *err);
void pattern_destroy(struct pattern *pattern); /* NULL is fine */

/* Working memory of one search at a time; start from {0}. It holds no position, so searches may be
 * interleaved. */
struct matcher {
    void *data, *context; /* of PCRE2 */
};
void matcher_free(struct matcher *matcher);

/* Where a walk over the matches of one text stands; start from {0}. */
struct pattern_walk {
    size_t from; /* search resumes here */
    bool had_match;
    size_t last_end;
};

/* The next match in text (valid UTF-8): 1 and its range, 0 when there is none, ERR_TOO_LONG when
 * the search takes more steps than are allowed, ERR_NOMEM. A match may be empty, but none follows
 * directly on another match. */
int pattern_next(const struct pattern *pattern, struct matcher *matcher, const char *text,
                 size_t len, struct pattern_walk *walk, size_t *start, size_t *end,
                 struct err *err);

#endif
