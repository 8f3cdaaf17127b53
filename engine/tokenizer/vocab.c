#include "engine/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

int vocab_init(struct vocab *v, uint32_t n_ids) {
    ASSERT(n_ids <= VOCAB_IDS_MAX);
    *v = (struct vocab){.n = n_ids};
    uint32_t n_slots = 16;
    while (n_slots < 2 * n_ids)
        n_slots *= 2;
    v->slot_mask = n_slots - 1;
    v->flags = calloc(n_ids + 1u, 1);
    v->at = calloc(n_ids + 1u, sizeof *v->at);
    v->len = calloc(n_ids + 1u, sizeof *v->len);
    v->slots = calloc(n_slots, sizeof *v->slots);
    v->bytes_cap = 64;
    v->bytes = malloc(v->bytes_cap);
    if (v->flags && v->at && v->len && v->slots && v->bytes) return OK;
    vocab_fini(v);
    return ERR_NOMEM;
}

void vocab_fini(struct vocab *v) {
    free(v->flags);
    free(v->at);
    free(v->len);
    free(v->slots);
    free(v->bytes);
    *v = (struct vocab){0};
}

static uint32_t hash_bytes(const char *text, size_t len) {
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a, folded */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)text[i]) * 0x100000001B3u;
    return (uint32_t)(h ^ h >> 32);
}

/* The slot that holds the text, or the empty one where it belongs. At most half are used. */
static uint32_t slot_of(const struct vocab *v, const char *text, size_t len) {
    uint32_t s = hash_bytes(text, len) & v->slot_mask;
    while (v->slots[s]) {
        uint32_t id = v->slots[s] - 1;
        if (v->len[id] == len && memcmp(vocab_text(v, id), text, len) == 0) break;
        s = (s + 1) & v->slot_mask;
    }
    return s;
}

int32_t vocab_find(const struct vocab *v, const char *text, size_t len) {
    return (int32_t)v->slots[slot_of(v, text, len)] - 1;
}

int vocab_set(struct vocab *v, int64_t id, const char *text, size_t len, unsigned flags,
              struct err *err) {
    int shown = len > 40 ? 40 : (int)len;
    if (len == 0 || len > VOCAB_TEXT_BYTES_MAX)
        return err_set(err, ERR_INVALID, "token %lld has %zu bytes of text, allowed are 1 to %d",
                       (long long)id, len, VOCAB_TEXT_BYTES_MAX);
    if (id < 0 || id >= v->n)
        return err_set(err, ERR_INVALID, "token \"%.*s\": id %lld is outside 0..%lld", shown, text,
                       (long long)id, (long long)v->n - 1);
    uint32_t slot = slot_of(v, text, len);
    uint32_t known = v->slots[slot];
    bool repeats = known && known != (uint32_t)id + 1;
    if (repeats && !(flags & TOKEN_REPEATS))
        return err_set(err, ERR_INVALID, "token \"%.*s\" has two ids, %u and %lld", shown, text,
                       known - 1, (long long)id);
    if ((!known || repeats) && v->flags[id] & TOKEN_PRESENT)
        return err_set(err, ERR_INVALID, "id %lld belongs to two tokens, one of them \"%.*s\"",
                       (long long)id, shown, text);
    v->flags[id] |= (uint8_t)(flags | TOKEN_PRESENT);
    if (known && !repeats) return OK;
    if (v->n_bytes + len > v->bytes_cap) {
        size_t cap = 2 * (v->n_bytes + len);
        char *bytes = cap <= UINT32_MAX ? realloc(v->bytes, cap) : NULL;
        if (!bytes) return err_set(err, ERR_NOMEM, "no memory for %zu bytes of vocabulary", cap);
        v->bytes = bytes;
        v->bytes_cap = cap;
    }
    memcpy(v->bytes + v->n_bytes, text, len);
    v->at[id] = (uint32_t)v->n_bytes;
    v->len[id] = (uint32_t)len;
    v->n_bytes += len;
    if (!repeats) v->slots[slot] = (uint32_t)id + 1;
    return OK;
}
