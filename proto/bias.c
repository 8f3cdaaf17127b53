#include <stdlib.h>
#include <string.h>

#include "proto/request_internal.h"

/* logit_bias: {"50256": -100, "11": 0.5}. Keys are token ids in decimal, values are added to logits.
 * "7" and "007" are different keys of JSON but one id, hence the check after sorting. */

int bias_check_types(const struct value *bias, struct api_error *err) {
    for (size_t i = 0; i < bias->n_items; i++) {
        int rc = fields_want(&bias->items[i], TYPE_NUMBER, err, "logit_bias");
        if (rc) return rc;
    }
    return OK;
}

/* Decimal digits and nothing else, below vocab_size. */
static bool parse_id(const struct value_key *key, uint32_t vocab_size, int32_t *out) {
    uint64_t id = 0;
    if (key->len == 0) return false;
    for (size_t i = 0; i < key->len; i++) {
        char c = key->text[i];
        if (c < '0' || c > '9') return false;
        id = id * 10 + (uint64_t)(c - '0');
        if (id >= vocab_size) return false;
    }
    *out = (int32_t)id;
    return true;
}

static int by_id(const void *a, const void *b) {
    const struct token_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int parse_entry(const struct value *bias, size_t i, uint32_t vocab_size,
                       struct token_bias *out, struct api_error *err) {
    char quoted[CHARS_QUOTE_CAP], got[CHARS_NUMBER_CAP];
    const struct value_key *key = &bias->keys[i];
    if (!parse_id(key, vocab_size, &out->id))
        return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                             "logit_bias must name token ids between 0 and %u, got %s",
                             vocab_size - 1, chars_quote(quoted, key->text, key->len));
    out->value = fields_number(&bias->items[i]);
    if (!(out->value >= -100 && out->value <= 100))
        return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                             "logit_bias must hold values between -100 and 100, got %s for %d",
                             fields_describe(&bias->items[i], got), out->id);
    return OK;
}

int bias_store(const struct value *bias, const struct proto_limits *limits,
               struct api_request *request, struct api_error *err) {
    size_t n = bias->n_items;
    if (n > LOGIT_BIAS_MAX)
        return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                             "logit_bias must hold at most %d ids, got %zu", LOGIT_BIAS_MAX, n);
    if (n == 0) return OK;
    struct token_bias *entries = arena_alloc(request->arena, n * sizeof *entries);
    if (!entries) return request_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        int rc = parse_entry(bias, i, limits->vocab_size, &entries[i], err);
        if (rc) return rc;
    }
    qsort(entries, n, sizeof *entries, by_id);
    for (size_t i = 1; i < n; i++)
        if (entries[i].id == entries[i - 1].id)
            return api_error_set(err, API_INVALID_VALUE, "logit_bias",
                                 "logit_bias must name an id once, got %d twice", entries[i].id);
    request->sampling.bias = entries;
    request->sampling.n_bias = (uint32_t)n;
    return OK;
}
