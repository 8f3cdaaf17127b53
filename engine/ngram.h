/* ngram.h: prompt look-up (--drafts ngram): what came after the text's last tokens when they stood
 * earlier in the same text. The longest match wins, of equal ones the latest:
 *
 *   text:   .. the cat sat on the mat . the cat        the last tokens match 3 of an earlier place:
 *                  ------- - - - - - >  - -------       "sat on the mat" is proposed
 *
 * Matches have 2 to 8 tokens (a longer one counts as 8). A continuation that reaches the text's end goes
 * on in itself, so a loop of any period is proposed whole.
 *
 * The index is a hash table of the text's pairs of tokens with a chain through earlier pairs of the
 * same hash, as in LZ77 coders; a look-up follows at most 64 links. It lives in its sequence's memory;
 * one thread at a time. */
#ifndef GERYON_NGRAM_H
#define GERYON_NGRAM_H

#include <stddef.h>
#include <stdint.h>

enum {
    NGRAM_MIN = 2,    /* tokens that must match */
    NGRAM_MAX = 8,    /* and are compared at most */
    NGRAM_ROWS = 16,  /* rows of a verification: 15 proposals at most */
    NGRAM_TRIES = 64, /* earlier places that a look-up compares */
};

struct ngram; /* opaque, in the caller's memory */

/* Bytes, aligned as uint32_t, for texts of at most tokens_cap tokens. */
size_t ngram_bytes(uint32_t tokens_cap);
struct ngram *ngram_init(void *memory, uint32_t tokens_cap);

/* Take in the text's tokens up to n_tokens; it only ever grows. */
void ngram_extend(struct ngram *ngram, const int32_t *tokens, uint32_t n_tokens);

/* What may follow the n_tokens that were taken in: up to cap tokens into out; returns how many, 0 or
 * cap. *n_matched: tokens that the place shares with the end, 0 where there is none. */
uint32_t ngram_propose(const struct ngram *ngram, const int32_t *tokens, uint32_t n_tokens,
                       uint32_t cap, int32_t *out, uint32_t *n_matched);

#endif
