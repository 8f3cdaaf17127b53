/* libFuzzer: any bytes as tokenizer.json (and, behind a NUL, as tokenizer_config.json) load or are
 * refused; what loads encodes a text and gives pieces within bounds. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] =
        "The caf\xC3\xA9, 12 <|im_end|>\n\n x!!2026 e\xCC\x81 \xF0\x9F\x98\x80";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t json_len = nul ? (size_t)(nul - data) : size;
    const char *config = nul ? (const char *)nul + 1 : NULL;
    size_t config_len = nul ? size - json_len - 1 : 0;
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    if (tokenizer_from_json((const char *)data, json_len, config, config_len, &tokenizer, &err)) {
        ASSERT(err.code < 0 && memchr(err.msg, 0, sizeof err.msg));
        return 0;
    }
    for (int trusted = 0; trusted < 2; trusted++) {
        struct text_run runs[] = {{text, 9, trusted}, {text + 9, sizeof text - 10, true}};
        struct tokens ids = {0};
        if (tokenizer_encode(tokenizer, runs, 2, true, &ids, &err) == 0)
            for (uint32_t i = 0; i < ids.n; i++) {
                size_t len;
                tokenizer_piece(tokenizer, ids.ids[i], false, &len);
                ASSERT(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < tokenizer_n_tokens(tokenizer));
                ASSERT(len <= tokenizer_max_piece(tokenizer));
            }
        tokens_free(&ids);
    }
    tokenizer_destroy(tokenizer);
    return 0;
}
