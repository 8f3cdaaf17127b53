/* Any bytes through a byte-level tokenizer without normaliser: invalid UTF-8 is an error value, and
 * the pieces of the ids joined are the text. */
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/tokenizer.h"
#include "tests/harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *load(void) {
    size_t len;
    char *json = read_file(golden_path("llama-orthros-standard-none/tokenizer.json"), &len);
    struct tokenizer *tokenizer = NULL;
    struct err err;
    ASSERT(tokenizer_from_json(json, len, NULL, 0, &tokenizer, &err) == OK);
    free(json);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizer; /* stays reachable until the end */
    if (!tokenizer) tokenizer = load();
    struct err err;
    size_t half = size / 2;
    struct text_run runs[] = {{(const char *)data, half, true},
                              {(const char *)data + half, size - half, false}};
    struct tokens tokens = {0};
    if (tokenizer_encode(tokenizer, runs, 2, false, &tokens, &err) == OK) {
        size_t at = 0;
        for (uint32_t i = 0; i < tokens.n; i++) {
            size_t len;
            const char *piece = tokenizer_piece(tokenizer, tokens.ids[i], false, &len);
            ASSERT(len <= size - at && memcmp(piece, data + at, len) == 0);
            at += len;
        }
        ASSERT(at == size);
    }
    tokens_free(&tokens);
    return 0;
}
