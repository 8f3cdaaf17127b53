/* What engine.h offers of a loaded model's text side, apart from chat templates. */
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "engine/tokenizer/utf8.h"

int model_tokenize(const struct model *model, const char *text, size_t len, unsigned flags,
                   struct tokens *out, struct err *err) {
    struct text_run run = {text, len, (flags & TOKENIZE_PARSE_SPECIAL) != 0};
    return tokenizer_encode(model->tokenizer, &run, 1, (flags & TOKENIZE_ADD_SPECIAL) != 0, out,
                            err);
}

/* Bytes of all pieces, as UTF-8; out may be NULL to measure. */
static size_t decode(const struct tokenizer *tokenizer, const int32_t *ids, uint32_t n,
                     bool skip_special, char *out) {
    struct utf8_decoder decoder = {0};
    size_t used = 0;
    char chars[UTF8_OUT_MAX];
    for (uint32_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = tokenizer_piece(tokenizer, ids[i], skip_special, &len);
        for (size_t k = 0; k < len; k++) {
            uint8_t sizes[UTF8_UNITS_MAX] = {0};
            int units = utf8_decode(&decoder, (uint8_t)piece[k], chars, sizes);
            size_t size = units == 0 ? 0 : units == 1 ? sizes[0] : (size_t)sizes[0] + sizes[1];
            if (out && size) memcpy(out + used, chars, size);
            used += size;
        }
    }
    if (utf8_decode_end(&decoder, chars)) {
        if (out) memcpy(out + used, chars, UTF8_REPLACEMENT_BYTES);
        used += UTF8_REPLACEMENT_BYTES;
    }
    return used;
}

int model_detokenize(const struct model *model, const int32_t *ids, uint32_t n, bool skip_special,
                     char **out, size_t *out_len, struct err *err) {
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= model->info.vocab_size)
            return err_set(err, ERR_INVALID, "token id %d at position %u, allowed are 0 to %u",
                           ids[i], i, model->info.vocab_size - 1);
    size_t len = decode(model->tokenizer, ids, n, skip_special, NULL);
    char *text = malloc(len + 1);
    if (!text) return err_set(err, ERR_NOMEM, "no memory for a text of %zu bytes", len);
    decode(model->tokenizer, ids, n, skip_special, text);
    text[len] = '\0';
    *out = text;
    *out_len = len;
    return OK;
}
