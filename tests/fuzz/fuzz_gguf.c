/* libFuzzer: a whole GGUF file in memory: container, configuration, tensor names, vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "engine/load/gguf.h"
#include "engine/load/gguf_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Written as files it is the same tokenizer, or refused. */
static void rewrite(const struct gguf_vocab *vocab) {
    struct err err;
    char *json, *config;
    if (tokenizer_gguf_to_json(vocab, 2048, &json, &config, &err)) return;
    struct tokenizer *again = NULL;
    int rc = tokenizer_from_json(json, strlen(json), config, strlen(config), &again, &err);
    ASSERT(rc == OK);
    tokenizer_destroy(again);
    free(json);
    free(config);
}

static void tokenize(const struct gguf_vocab *vocab) {
    struct err err;
    struct tokenizer *tokenizer;
    rewrite(vocab);
    if (tokenizer_from_gguf(vocab, &tokenizer, &err)) return;
    struct text_run run = {"Hello 12 world", 14, true};
    struct tokens tokens = {0};
    tokenizer_encode(tokenizer, &run, 1, true, &tokens, &err);
    tokens_free(&tokens);
    tokenizer_destroy(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct gguf *g = NULL;
    /* A prefix of a file that goes on must never be taken for a cut file. */
    int rc = gguf_parse(data, size / 2, size, "fuzz", &g, &err);
    if (rc == OK) ASSERT(g->header_bytes <= size / 2);
    gguf_destroy(g);
    g = NULL;
    rc = gguf_parse(data, size, size, "fuzz", &g, &err);
    ASSERT(rc != ERR_TOO_LONG);
    if (rc) return 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        char name[GGUF_MODEL_NAME_CAP];
        int permuted;
        ASSERT(t->offset <= size && t->bytes <= size - t->offset);
        gguf_model_tensor_name(t, true, name, &permuted, &err);
    }
    struct config config;
    if (gguf_model_config(g, &config, &err) == OK) config_fini(&config);
    struct gguf_vocab vocab;
    if (gguf_model_vocab(g, &vocab, &err) == OK) {
        tokenize(&vocab);
        gguf_model_vocab_free(&vocab);
    }
    gguf_destroy(g);
    return 0;
}
