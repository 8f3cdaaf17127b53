#include "engine/ngram.h"

#include <string.h>

#include "kernels/base.h"

enum { HEADS_MAX = 1 << 14 };

/* A place is the index of a pair's second token, so it is never 0, which ends a chain. */
struct ngram {
    uint32_t n_tokens, n_heads;
    uint32_t
        cells[]; /* heads [n_heads]: latest place of a hash; then [tokens_cap]: the one before */
};

static uint32_t heads_for(uint32_t tokens_cap) {
    uint32_t n = 16;
    while (n < tokens_cap && n < HEADS_MAX)
        n *= 2;
    return n;
}

size_t ngram_bytes(uint32_t tokens_cap) {
    return sizeof(struct ngram) + ((size_t)heads_for(tokens_cap) + tokens_cap) * sizeof(uint32_t);
}

/* Links are written before they are read, so only the heads are cleared. */
struct ngram *ngram_init(void *memory, uint32_t tokens_cap) {
    struct ngram *g = memory;
    g->n_tokens = 0;
    g->n_heads = heads_for(tokens_cap);
    memset(g->cells, 0, g->n_heads * sizeof *g->cells);
    return g;
}

static uint32_t head_of(const struct ngram *g, const int32_t *tokens, uint32_t place) {
    uint64_t pair = (uint64_t)(uint32_t)tokens[place - 1] << 32 | (uint32_t)tokens[place];
    return (uint32_t)((pair * 0x9E3779B97F4A7C15u) >> 40) & (g->n_heads - 1);
}

void ngram_extend(struct ngram *g, const int32_t *tokens, uint32_t n_tokens) {
    ASSERT(n_tokens >= g->n_tokens);
    for (uint32_t i = g->n_tokens > 0 ? g->n_tokens : 1; i < n_tokens; i++) {
        uint32_t head = head_of(g, tokens, i);
        g->cells[g->n_heads + i] = g->cells[head];
        g->cells[head] = i;
    }
    g->n_tokens = n_tokens;
}

/* Tokens up to `place` that equal those up to the last one. */
static uint32_t match_len(const int32_t *tokens, uint32_t last, uint32_t place) {
    uint32_t n = 0;
    while (n < NGRAM_MAX && n <= place && tokens[place - n] == tokens[last - n])
        n++;
    return n;
}

uint32_t ngram_propose(const struct ngram *g, const int32_t *tokens, uint32_t n_tokens,
                       uint32_t cap, int32_t *out, uint32_t *n_matched) {
    ASSERT(n_tokens == g->n_tokens);
    *n_matched = 0;
    if (n_tokens < NGRAM_MIN + 1 || cap == 0) return 0;
    uint32_t last = n_tokens - 1, best = 0, place = g->cells[g->n_heads + last];
    for (int tries = 0; place > 0 && tries < NGRAM_TRIES && *n_matched < NGRAM_MAX; tries++) {
        uint32_t n = match_len(tokens, last, place);
        if (n >= NGRAM_MIN && n > *n_matched) {
            *n_matched = n;
            best = place;
        }
        place = g->cells[g->n_heads + place];
    }
    if (!*n_matched) return 0;
    for (uint32_t i = 0; i < cap; i++) {
        uint32_t from = best + 1 + i;
        out[i] = from < n_tokens ? tokens[from] : out[from - n_tokens];
    }
    return cap;
}
