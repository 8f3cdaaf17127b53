/* libFuzzer: config.json, and the same bytes as generation_config.json of a small model. */
#include <math.h>

#include "engine/load/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct config c;
    if (config_parse((const char *)data, size, "config.json", &c, &err) == OK) {
        const struct model_shape *s = &c.shape;
        ASSERT(s->n_heads % s->n_kv_heads == 0);
        ASSERT(s->head_dim % 2 == 0 && s->head_dim <= 1024);
        ASSERT(s->block_size <= DRAFT_MAX);
        for (uint32_t m = 0; m < s->head_dim / 2; m++)
            ASSERT(isfinite(s->rope_freq[m]));
        ASSERT(isfinite(s->rope_scale));
        config_parse_generation((const char *)data, size, "generation_config.json", &c, &err);
        config_fini(&c);
    }
    struct config small = {.shape = {.vocab_size = 320}};
    config_parse_generation((const char *)data, size, "generation_config.json", &small, &err);
    return 0;
}
