/* added_tokens.h: the tokens that are cut out of a text before the model sees it. Matches as
 * Hugging Face does: leftmost, of those the longest, never overlapping; then the token's own rules
 * (single_word, lstrip, rstrip). A special token is found only where all its bytes are trusted.
 * Immutable once filled: any thread may search. */
#ifndef GERYON_ADDED_TOKENS_H
#define GERYON_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base.h"

struct added_token {
    int32_t id;
    bool special, single_word, lstrip, rstrip;
};

/* A trie over bytes. Start from {0}. */
struct added_tokens {
    struct added_token *tokens;
    uint32_t n_tokens, tokens_cap;
    struct trie_node *nodes;
    uint32_t n_nodes, nodes_cap;
    uint32_t first[256]; /* node of a one-byte prefix, 0 = none */
};

void added_tokens_fini(struct added_tokens *added);

/* Look for this text (not empty) as the token. Of two tokens with one text the first stays.
 * ERR_NOMEM. */
int added_tokens_add(struct added_tokens *added, const char *text, size_t len,
                     struct added_token token);

/* The longest token at text[at], or NULL; its end in *end. trust: one byte for each of text. */
const struct added_token *added_tokens_at(const struct added_tokens *added, const char *text,
                                          const uint8_t *trust, size_t len, size_t at, size_t *end);

/* A walk over a text: start from {0}. */
struct added_walk {
    size_t from;  /* search resumes here */
    size_t taken; /* everything before belongs to a token found earlier or was handed out */
};

/* The next token of text (valid UTF-8): its range, blanks that it swallows included, in *start and
 * *end. NULL when there is none. What lies between walk->taken before the call and *start is plain
 * text (*start may be smaller where a swallowing token overlaps; then there is none). */
const struct added_token *added_tokens_next(const struct added_tokens *added, const char *text,
                                            const uint8_t *trust, size_t len,
                                            struct added_walk *walk, size_t *start, size_t *end);

#endif
