/* vocab.h: the texts of a tokenizer's ids and the way back. Texts are those of the tokenizer's file
 * (byte-level ones still in their printable alphabet). */
#ifndef GERYON_VOCAB_H
#define GERYON_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base.h"

enum {
    VOCAB_IDS_MAX = 1 << 22,     /* ids a tokenizer may have */
    VOCAB_TEXT_BYTES_MAX = 8192, /* of one token */
};

enum token_flags {
    TOKEN_PRESENT = 1,
    TOKEN_MODEL = 2,    /* the merging model may make it */
    TOKEN_ADDED = 4,    /* cut out of the text before the model sees it */
    TOKEN_SPECIAL = 8,  /* a control token */
    TOKEN_REPEATS = 16, /* its text may be another token's too; vocab_find gives the first */
};

/* Set up with vocab_init, filled with vocab_set, then only read. */
struct vocab {
    uint32_t n; /* ids 0 .. n - 1 */
    uint8_t *flags;
    uint32_t *at, *len; /* text of id: bytes[at .. at + len) */
    char *bytes;
    size_t n_bytes, bytes_cap;
    uint32_t *slots; /* open addressing, id + 1, 0 = empty */
    uint32_t slot_mask;
};

int vocab_init(struct vocab *vocab, uint32_t n_ids); /* ERR_NOMEM; n_ids <= VOCAB_IDS_MAX */
void vocab_fini(struct vocab *vocab);

/* Name an id. ERR_INVALID (with a message) when the id or the text is already taken by another, the
 * text is empty or too long, or the id out of range. Setting the same pair again adds flags. */
int vocab_set(struct vocab *vocab, int64_t id, const char *text, size_t len, unsigned flags,
              struct err *err);

/* The id of a text, or -1. */
int32_t vocab_find(const struct vocab *vocab, const char *text, size_t len);

static inline const char *vocab_text(const struct vocab *vocab, uint32_t id) {
    return vocab->bytes + vocab->at[id];
}

#endif
