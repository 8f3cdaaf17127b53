/* tokenizer.json: what loads must encode without fault, and decode its own ids. */
#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char TEXT[] = "Hello  world\n\n1234 don't <|im_end|> \xc3\xa9 \xf0\x9f\x98\x80";
    struct err err;
    struct tokenizer *tokenizer;
    if (tokenizer_from_json((const char *)data, size, NULL, 0, &tokenizer, &err) != OK) return 0;
    struct text_run runs[] = {{TEXT, 20, false}, {TEXT + 20, sizeof TEXT - 21, true}};
    struct tokens tokens = {0};
    tokenizer_encode(tokenizer, runs, 2, true, &tokens, &err);
    for (uint32_t i = 0; i < tokens.n; i++) {
        ASSERT(tokens.ids[i] >= 0 && (uint32_t)tokens.ids[i] < tokenizer_n_tokens(tokenizer));
        size_t len;
        const char *piece = tokenizer_piece(tokenizer, tokens.ids[i], false, &len);
        ASSERT(len <= tokenizer_max_piece(tokenizer) && (len == 0 || piece != NULL));
    }
    tokens_free(&tokens);
    tokenizer_destroy(tokenizer);
    return 0;
}
