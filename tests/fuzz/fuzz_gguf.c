/* A GGUF file: container, then what it says about a model, then its vocabulary. */
#include "engine/gguf.h"
#include "engine/gguf_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tokenizer_of(const struct gguf *gguf) {
    struct err err;
    struct gguf_vocab vocab;
    if (gguf_model_vocab(gguf, &vocab, &err) != OK) return;
    struct tokenizer *tokenizer;
    if (tokenizer_from_gguf(&vocab, &tokenizer, &err) == OK) {
        struct text_run run = {.text = "Hello 12 world", .len = 14, .trusted = true};
        struct tokens tokens = {0};
        tokenizer_encode(tokenizer, &run, 1, true, &tokens, &err);
        tokens_free(&tokens);
        tokenizer_destroy(tokenizer);
    }
    gguf_model_vocab_free(&vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct gguf *gguf;
    /* Whole, and as the beginning of a longer file. */
    if (gguf_parse(data, size, (uint64_t)size + 4096, "x", &gguf, &err) == OK) gguf_destroy(gguf);
    if (gguf_parse(data, size, size, "x", &gguf, &err) != OK) return 0;
    for (size_t i = 0; i < gguf->n_tensors; i++) {
        const struct gguf_tensor *tensor = &gguf->tensors[i];
        ASSERT(tensor->offset <= size && tensor->bytes <= size - tensor->offset);
        char name[GGUF_MODEL_NAME_CAP];
        int permuted;
        if (gguf_model_tensor_name(tensor, i % 2, name, &permuted, &err) == OK)
            ASSERT(permuted >= 0 && permuted <= 2);
    }
    struct config config;
    if (gguf_model_config(gguf, &config, &err) == OK) config_fini(&config);
    tokenizer_of(gguf);
    gguf_destroy(gguf);
    return 0;
}
