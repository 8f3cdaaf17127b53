/* config.json and generation_config.json. */
#include "engine/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err err;
    struct config config;
    if (config_parse((const char *)data, size, "config.json", &config, &err) != OK) return 0;
    ASSERT(config.shape.n_heads > 0 && config.shape.n_kv_heads > 0);
    ASSERT(config.shape.n_heads % config.shape.n_kv_heads == 0);
    ASSERT(config.n_eos <= CONFIG_EOS_MAX);
    config_parse_generation((const char *)data, size, "generation_config.json", &config, &err);
    config_fini(&config);
    return 0;
}
