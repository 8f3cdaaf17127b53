/* bpe.h: byte pair encoding of one word, with the ranks and tie rules of Hugging Face's BPE model:
 * the pair of lowest rank merges first, of equal ones the leftmost. n log n in the word's length. */
#ifndef GERYON_BPE_H
#define GERYON_BPE_H

#include "engine/engine.h"
#include "engine/tokenizer/vocab.h"

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank, result;
};

struct bpe {
    const struct vocab *vocab;
    bool byte_level;    /* words are bytes; else characters */
    bool ignore_merges; /* a whole word that is a token stays one */
    bool byte_fallback; /* an unknown character becomes <0xHH> tokens */
    bool fuse_unk;
    int32_t unk;             /* -1: unknown symbols vanish */
    int32_t byte_ids[256];   /* byte_level: symbol of a byte, or -1 */
    int32_t fallback[256];   /* <0xHH>, or -1 */
    struct bpe_merge *slots; /* open addressing; rank UINT32_MAX = empty */
    size_t slot_mask;
};

/* vocab must be complete and outlive the model. n_merges: what will be added. ERR_NOMEM. */
int bpe_init(struct bpe *bpe, const struct vocab *vocab, bool byte_level, size_t n_merges);
void bpe_fini(struct bpe *bpe);

/* left + right merge with this rank; of two entries for one pair the later stays. ERR_INVALID when
 * either part or the result is no token. */
int bpe_add_merge(struct bpe *bpe, uint32_t rank, const char *left, size_t left_len,
                  const char *right, size_t right_len, struct err *err);
/* The same from "left right". With more than one space the one split whose parts and result are
 * tokens counts; none or several are ERR_INVALID. */
int bpe_add_merge_line(struct bpe *bpe, uint32_t rank, const char *line, size_t len,
                       struct err *err);

/* Working memory of encoding, kept between words. Start from {0}. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    char *text;
    size_t symbols_cap, heap_cap, text_cap, n_symbols, n_heap;
};
void bpe_scratch_free(struct bpe_scratch *scratch);

/* Append the ids of a word (not empty; valid UTF-8 unless byte_level). ERR_NOMEM; ERR_TOO_LONG for
 * a word of 2^31 symbols. */
int bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t len,
               struct tokens *out);

/* The printable alphabet of byte-level texts: the character of a byte, and back (-1: not in it). */
uint32_t bpe_byte_char(uint8_t byte);
int bpe_char_byte(uint32_t c);

#endif
