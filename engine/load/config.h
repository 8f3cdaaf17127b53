/* config.h: what a checkpoint's configuration says, checked. Two sources fill the same struct:
 * config.json (here) and GGUF metadata (gguf_model.h).
 *
 * What is refused. A key that changes the result is either understood or refused by name and
 * value. A key we do not know is refused too, unless its value is null, false or empty (an unset
 * switch), or its name is on the list of keys known to be inert (config.c): what Hugging Face
 * writes into every file (dtype, version, training and generation settings). */
#ifndef GERYON_CONFIG_H
#define GERYON_CONFIG_H

#include "engine/engine.h"
#include "engine/load/rope.h"
#include "kernels/kernels.h"

enum { CONFIG_EOS_MAX = 32, CONFIG_JSON_MAX = 4 << 20 };

enum backbone { BACKBONE_LLAMA, BACKBONE_QWEN2, BACKBONE_QWEN3 };
const char *backbone_name(enum backbone backbone); /* "llama", "qwen2", "qwen3" */

struct config {
    enum backbone backbone;
    struct model_shape shape; /* shape.rope_freq: owned by the config, config_fini frees it */
    struct rope rope;
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    uint32_t n_eos;
    int32_t eos_ids[CONFIG_EOS_MAX];
    struct sampling_hints hints; /* from generation_config.json */
};

/* Parse config.json. file: its name for messages. On failure *out needs no fini. */
int config_parse(const char *json, size_t len, const char *file, struct config *out,
                 struct err *err);
/* Add what generation_config.json says: end-of-sequence ids, and hints for sampling (everything else
 * in it is no part of the model). */
int config_parse_generation(const char *json, size_t len, const char *file, struct config *config,
                            struct err *err);
void config_fini(struct config *config);

/* Range checks that hold whatever the source, and the rope table: fills shape.rope_freq and
 * shape.rope_scale. Call once when every other field is set. */
int config_finish(struct config *config, struct err *err);
/* One more end-of-sequence id, unless it is there already. */
int config_add_eos(struct config *config, int64_t id, struct err *err);

#endif
