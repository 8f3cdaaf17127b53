/* A word is a doubly linked list of symbols in an array; a merge grows the left symbol and unlinks
 * the right one. A heap holds every adjacent pair that may merge; entries whose symbols changed
 * since are recognised when popped and skipped.
 *
 *   symbols:  [h|e|l|l|o]  --he-->  [he|.|l|l|o]  --ll-->  [he|.|ll|.|o]
 */
#include "engine/tokenizer/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/utf8.h"

struct bpe_symbol {
    int32_t id;         /* -1: merged away */
    int32_t prev, next; /* -1: end */
};

struct bpe_candidate {
    uint32_t rank, pos; /* order of the heap */
    uint32_t result;
};

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100. */
static bool stands_for_itself(uint32_t byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t bpe_byte_char(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100u + byte;
    if (byte <= 0xA0) return 0x121u + (byte - 0x7Fu);
    return 0x143; /* 0xAD */
}

int bpe_char_byte(uint32_t c) {
    if (c < 0x100) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

/* A token the model may produce. */
static int32_t model_token(const struct bpe *bpe, const char *text, size_t len) {
    int32_t id = vocab_find(bpe->vocab, text, len);
    return id >= 0 && bpe->vocab->flags[id] & TOKEN_MODEL ? id : -1;
}

int bpe_init(struct bpe *bpe, const struct vocab *vocab, bool byte_level, size_t n_merges) {
    *bpe = (struct bpe){.vocab = vocab, .byte_level = byte_level, .unk = -1};
    size_t n_slots = 16;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    bpe->slot_mask = n_slots - 1;
    bpe->slots = malloc(n_slots * sizeof *bpe->slots);
    if (!bpe->slots) return ERR_NOMEM;
    for (size_t i = 0; i < n_slots; i++)
        bpe->slots[i].rank = UINT32_MAX;
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        size_t n = utf8_put(bpe_byte_char((uint8_t)b), text);
        bpe->byte_ids[b] = model_token(bpe, text, n);
        snprintf(text, sizeof text, "<0x%02X>", b);
        bpe->fallback[b] = model_token(bpe, text, 6);
    }
    return OK;
}

void bpe_fini(struct bpe *bpe) {
    free(bpe->slots);
    *bpe = (struct bpe){0};
}

static struct bpe_merge *merge_slot(const struct bpe *bpe, uint64_t pair) {
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    size_t s = (size_t)(h ^ h >> 29) & bpe->slot_mask;
    while (bpe->slots[s].rank != UINT32_MAX && bpe->slots[s].pair != pair)
        s = (s + 1) & bpe->slot_mask;
    return &bpe->slots[s];
}

static void put_merge(struct bpe *bpe, uint32_t rank, int32_t left, int32_t right, int32_t result) {
    /* Control tokens come from added tokens alone: were one also the result of merges, text that
     * must not be parsed could still spell it. */
    if (bpe->vocab->flags[result] & TOKEN_SPECIAL) return;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    *merge_slot(bpe, pair) = (struct bpe_merge){pair, rank, (uint32_t)result};
}

/* The token left + right, or -1. */
static int32_t joined(const struct bpe *bpe, const char *left, size_t left_len, const char *right,
                      size_t right_len) {
    char both[2 * VOCAB_TEXT_BYTES_MAX];
    if (left_len > VOCAB_TEXT_BYTES_MAX || right_len > VOCAB_TEXT_BYTES_MAX) return -1;
    memcpy(both, left, left_len);
    memcpy(both + left_len, right, right_len);
    return model_token(bpe, both, left_len + right_len);
}

int bpe_add_merge(struct bpe *bpe, uint32_t rank, const char *left, size_t left_len,
                  const char *right, size_t right_len, struct err *err) {
    int32_t l = model_token(bpe, left, left_len), r = model_token(bpe, right, right_len);
    int32_t result = joined(bpe, left, left_len, right, right_len);
    if (l < 0 || r < 0 || result < 0)
        return err_set(err, ERR_INVALID,
                       "merge %u (\"%.40s\" \"%.40s\"): %s is not in the vocabulary", rank, left,
                       right,
                       l < 0   ? "the left part"
                       : r < 0 ? "the right part"
                               : "the result");
    put_merge(bpe, rank, l, r, result);
    return OK;
}

int bpe_add_merge_line(struct bpe *bpe, uint32_t rank, const char *line, size_t len,
                       struct err *err) {
    int32_t l = -1, r = -1, result = -1;
    int n_fitting = 0;
    for (size_t i = 1; i + 1 < len; i++) {
        if (line[i] != ' ') continue;
        int32_t a = model_token(bpe, line, i), b = model_token(bpe, line + i + 1, len - i - 1);
        int32_t c = a < 0 || b < 0 ? -1 : joined(bpe, line, i, line + i + 1, len - i - 1);
        if (c < 0) continue;
        l = a, r = b, result = c;
        n_fitting++;
    }
    if (n_fitting != 1)
        return err_set(err, ERR_INVALID,
                       "merge %u (\"%.80s\"): %s split at a space gives tokens of the vocabulary",
                       rank, line, n_fitting ? "more than one" : "no");
    put_merge(bpe, rank, l, r, result);
    return OK;
}

void bpe_scratch_free(struct bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    free(s->text);
    *s = (struct bpe_scratch){0};
}

static int scratch_reserve(struct bpe_scratch *s, size_t n_symbols) {
    if (n_symbols > INT32_MAX / 4) return ERR_TOO_LONG;
    if (n_symbols > s->symbols_cap) {
        size_t cap = align_up(n_symbols, 256);
        struct bpe_symbol *symbols = realloc(s->symbols, cap * sizeof *symbols);
        if (!symbols) return ERR_NOMEM;
        s->symbols = symbols;
        s->symbols_cap = cap;
    }
    /* Every merge removes a symbol and adds at most two candidates. */
    if (3 * n_symbols > s->heap_cap) {
        size_t cap = align_up(3 * n_symbols, 256);
        struct bpe_candidate *heap = realloc(s->heap, cap * sizeof *heap);
        if (!heap) return ERR_NOMEM;
        s->heap = heap;
        s->heap_cap = cap;
    }
    return OK;
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate c) {
    ASSERT(s->n_heap < s->heap_cap);
    size_t i = s->n_heap++;
    while (i > 0 && before(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s) {
    struct bpe_candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->n_heap) break;
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static const struct bpe_merge *pair_at(const struct bpe *bpe, const struct bpe_scratch *s,
                                       int32_t pos) {
    int32_t next = s->symbols[pos].next;
    if (next < 0) return NULL;
    uint64_t pair = (uint64_t)(uint32_t)s->symbols[pos].id << 32 | (uint32_t)s->symbols[next].id;
    const struct bpe_merge *m = merge_slot(bpe, pair);
    return m->rank == UINT32_MAX ? NULL : m;
}

static void offer(const struct bpe *bpe, struct bpe_scratch *s, int32_t pos) {
    const struct bpe_merge *m = pair_at(bpe, s, pos);
    if (m) heap_push(s, (struct bpe_candidate){m->rank, (uint32_t)pos, m->result});
}

static void merge_all(const struct bpe *bpe, struct bpe_scratch *s) {
    s->n_heap = 0;
    for (size_t i = 0; i + 1 < s->n_symbols; i++)
        offer(bpe, s, (int32_t)i);
    while (s->n_heap) {
        struct bpe_candidate top = heap_pop(s);
        struct bpe_symbol *left = &s->symbols[top.pos];
        if (left->id < 0) continue;
        const struct bpe_merge *now = pair_at(bpe, s, (int32_t)top.pos);
        if (!now || now->result != top.result) continue; /* a neighbour changed since */
        struct bpe_symbol *right = &s->symbols[left->next];
        left->id = (int32_t)top.result;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) s->symbols[left->next].prev = (int32_t)top.pos;
        if (left->prev >= 0) offer(bpe, s, left->prev);
        offer(bpe, s, (int32_t)top.pos);
    }
}

static void add_symbol(struct bpe_scratch *s, int32_t id) {
    int32_t i = (int32_t)s->n_symbols++;
    s->symbols[i] = (struct bpe_symbol){id, i - 1, i + 1};
}

/* A symbol that is no token. unk_open: an unknown symbol waits, so that fuse_unk can widen it. */
static void add_unknown(const struct bpe *bpe, struct bpe_scratch *s, const char *symbol,
                        size_t size, bool *unk_open) {
    if (bpe->byte_fallback) {
        bool all = true;
        for (size_t i = 0; i < size; i++)
            all = all && bpe->fallback[(uint8_t)symbol[i]] >= 0;
        for (size_t i = 0; all && i < size; i++)
            add_symbol(s, bpe->fallback[(uint8_t)symbol[i]]);
        if (all) return;
    }
    if (bpe->unk < 0) return;
    if (*unk_open && !bpe->fuse_unk) add_symbol(s, bpe->unk);
    *unk_open = true;
}

/* The word's initial symbols: bytes or characters. */
static void split_symbols(const struct bpe *bpe, struct bpe_scratch *s, const char *word,
                          size_t len) {
    bool unk_open = false;
    s->n_symbols = 0;
    for (size_t i = 0, size; i < len; i += size) {
        char mapped[4];
        const char *symbol = word + i;
        size_t symbol_size;
        int32_t id;
        if (bpe->byte_level) {
            size = 1;
            id = bpe->byte_ids[(uint8_t)word[i]];
            symbol_size = utf8_put(bpe_byte_char((uint8_t)word[i]), mapped);
            symbol = mapped;
        } else {
            utf8_char(word + i, &size);
            id = model_token(bpe, symbol, size);
            symbol_size = size;
        }
        if (id < 0) {
            add_unknown(bpe, s, symbol, symbol_size, &unk_open);
            continue;
        }
        if (unk_open) add_symbol(s, bpe->unk);
        unk_open = false;
        add_symbol(s, id);
    }
    if (unk_open) add_symbol(s, bpe->unk);
    if (s->n_symbols) s->symbols[s->n_symbols - 1].next = -1;
}

/* The id of the whole word where that is asked for, -1 where it is no token. Control tokens are
 * cut out before; one that is left here was not to be parsed. */
static int whole_word(const struct bpe *bpe, struct bpe_scratch *s, const char *word, size_t len,
                      int32_t *id) {
    *id = -1;
    if (len > VOCAB_TEXT_BYTES_MAX) return OK;
    if (bpe->byte_level) {
        if (!s->text) {
            s->text_cap = 2 * VOCAB_TEXT_BYTES_MAX + 4;
            s->text = malloc(s->text_cap);
            if (!s->text) return ERR_NOMEM;
        }
        size_t n = 0;
        for (size_t i = 0; i < len; i++)
            n += utf8_put(bpe_byte_char((uint8_t)word[i]), s->text + n);
        word = s->text;
        len = n;
    }
    int32_t found = model_token(bpe, word, len);
    if (found >= 0 && !(bpe->vocab->flags[found] & TOKEN_SPECIAL)) *id = found;
    return OK;
}

int bpe_encode(const struct bpe *bpe, struct bpe_scratch *s, const char *word, size_t len,
               struct tokens *out) {
    int32_t whole = -1;
    int rc = bpe->ignore_merges ? whole_word(bpe, s, word, len, &whole) : OK;
    if (rc) return rc;
    if (whole >= 0) return tokens_push(out, whole);
    /* A byte-level character has up to two bytes, each of which may fall back to a symbol. */
    rc = scratch_reserve(s, bpe->byte_level ? 2 * len : len);
    if (rc) return rc;
    split_symbols(bpe, s, word, len);
    merge_all(bpe, s);
    for (int32_t i = s->n_symbols ? 0 : -1; i >= 0; i = s->symbols[i].next) {
        rc = tokens_push(out, s->symbols[i].id);
        if (rc) return rc;
    }
    return OK;
}
