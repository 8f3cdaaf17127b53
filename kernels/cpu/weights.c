/* weights.c: what shape each weight has, taking it in, and naming the one that is missing. */
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum size { SIZE_ONE, SIZE_VOCAB, SIZE_MODEL, SIZE_Q, SIZE_KV, SIZE_FF, SIZE_HEAD };
enum need { OPTIONAL, ALWAYS, UNTIED, DRAFTS };

static const struct {
    const char *name;
    enum size rows, cols;
    enum need need;
    bool global;
} specs[WEIGHT_COUNT] = {
    [WEIGHT_EMBED] = {"embed_tokens", SIZE_VOCAB, SIZE_MODEL, ALWAYS, true},
    [WEIGHT_LM_HEAD] = {"lm_head", SIZE_VOCAB, SIZE_MODEL, UNTIED, true},
    [WEIGHT_FINAL_NORM] = {"norm", SIZE_ONE, SIZE_MODEL, ALWAYS, true},
    [WEIGHT_ATTN_NORM] = {"input_layernorm", SIZE_ONE, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_MLP_NORM] = {"post_attention_layernorm", SIZE_ONE, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_Q] = {"q_proj", SIZE_Q, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_K] = {"k_proj", SIZE_KV, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_V] = {"v_proj", SIZE_KV, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_O] = {"o_proj", SIZE_MODEL, SIZE_Q, ALWAYS, false},
    [WEIGHT_Q_BIAS] = {"q_proj.bias", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_K_BIAS] = {"k_proj.bias", SIZE_ONE, SIZE_KV, OPTIONAL, false},
    [WEIGHT_V_BIAS] = {"v_proj.bias", SIZE_ONE, SIZE_KV, OPTIONAL, false},
    [WEIGHT_O_BIAS] = {"o_proj.bias", SIZE_ONE, SIZE_MODEL, OPTIONAL, false},
    [WEIGHT_Q_NORM] = {"q_norm", SIZE_ONE, SIZE_HEAD, OPTIONAL, false},
    [WEIGHT_K_NORM] = {"k_norm", SIZE_ONE, SIZE_HEAD, OPTIONAL, false},
    [WEIGHT_AFFINE_BASE_SCALE] = {"q_affine_base.weight", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_AFFINE_BASE_SHIFT] = {"q_affine_base.bias", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_AFFINE_OUTPUT_SCALE] = {"q_affine_output.weight", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_AFFINE_OUTPUT_SHIFT] = {"q_affine_output.bias", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_GATE] = {"gate_proj", SIZE_FF, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_UP] = {"up_proj", SIZE_FF, SIZE_MODEL, ALWAYS, false},
    [WEIGHT_DOWN] = {"down_proj", SIZE_MODEL, SIZE_FF, ALWAYS, false},
    [WEIGHT_GATE_BIAS] = {"gate_proj.bias", SIZE_ONE, SIZE_FF, OPTIONAL, false},
    [WEIGHT_UP_BIAS] = {"up_proj.bias", SIZE_ONE, SIZE_FF, OPTIONAL, false},
    [WEIGHT_DOWN_BIAS] = {"down_proj.bias", SIZE_ONE, SIZE_MODEL, OPTIONAL, false},
    [WEIGHT_Q_DIFF] = {"q_proj_diff", SIZE_Q, SIZE_MODEL, DRAFTS, false},
    [WEIGHT_K_DIFF] = {"k_proj_diff", SIZE_KV, SIZE_MODEL, DRAFTS, false},
    [WEIGHT_V_DIFF] = {"v_proj_diff", SIZE_KV, SIZE_MODEL, DRAFTS, false},
    [WEIGHT_O_DIFF] = {"o_proj_diff", SIZE_MODEL, SIZE_Q, DRAFTS, false},
    [WEIGHT_Q_DIFF_BIAS] = {"q_proj_diff.bias", SIZE_ONE, SIZE_Q, OPTIONAL, false},
    [WEIGHT_K_DIFF_BIAS] = {"k_proj_diff.bias", SIZE_ONE, SIZE_KV, OPTIONAL, false},
    [WEIGHT_V_DIFF_BIAS] = {"v_proj_diff.bias", SIZE_ONE, SIZE_KV, OPTIONAL, false},
    [WEIGHT_O_DIFF_BIAS] = {"o_proj_diff.bias", SIZE_ONE, SIZE_MODEL, OPTIONAL, false},
    [WEIGHT_Q_DIFF_NORM] = {"q_norm_diff", SIZE_ONE, SIZE_HEAD, OPTIONAL, false},
    [WEIGHT_K_DIFF_NORM] = {"k_norm_diff", SIZE_ONE, SIZE_HEAD, OPTIONAL, false},
};

static uint32_t size_of(const struct model_shape *shape, enum size size) {
    switch (size) {
    case SIZE_ONE:
        return 1;
    case SIZE_VOCAB:
        return shape->vocab_size;
    case SIZE_MODEL:
        return shape->d_model;
    case SIZE_Q:
        return shape->n_heads * shape->head_dim;
    case SIZE_KV:
        return shape->n_kv_heads * shape->head_dim;
    case SIZE_FF:
        return shape->d_ff;
    case SIZE_HEAD:
        return shape->head_dim;
    }
    ASSERT(size <= SIZE_HEAD);
    return 0;
}

/* "layers.3.q_proj" into name [48]. */
static const char *full_name(enum weight which, uint32_t layer, char *name) {
    if (specs[which].global)
        snprintf(name, 48, "%s", specs[which].name);
    else
        snprintf(name, 48, "layers.%u.%s", layer, specs[which].name);
    return name;
}

static int check_source(const struct device *dev, enum weight which, const char *name,
                        const struct tensor *src, struct err *err) {
    uint32_t rows = size_of(&dev->shape, specs[which].rows);
    uint32_t cols = size_of(&dev->shape, specs[which].cols);
    if (src->rows != rows || src->cols != cols)
        return err_set(err, ERR_INVALID, "weights: %s: shape [%u,%u], config wants [%u,%u]", name,
                       src->rows, src->cols, rows, cols);
    if (specs[which].rows == SIZE_ONE && src->dtype != DTYPE_F32)
        return err_set(err, ERR_INVALID, "weights: %s: a vector of type %s, expected f32", name,
                       dtype_name(src->dtype));
    if (src->cols % dtype_block(src->dtype) != 0)
        return err_set(err, ERR_INVALID, "weights: %s: %u columns, %s needs a multiple of %u", name,
                       src->cols, dtype_name(src->dtype), dtype_block(src->dtype));
    return OK;
}

int cpu_load(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
             struct err *err) {
    ASSERT(which < WEIGHT_END);
    ASSERT(src->dtype < DTYPE_COUNT);
    ASSERT(!dev->reserved);
    if (which >= WEIGHT_COUNT) return cpu_msar_load(dev, which, layer, src, err);
    char name[48];
    full_name(which, layer, name);
    if (layer >= (specs[which].global ? 1 : dev->shape.n_layers))
        return err_set(err, ERR_INVALID, "weights: %s: layer %u of %u", name, layer,
                       specs[which].global ? 1 : dev->shape.n_layers);
    if (specs[which].need == UNTIED && dev->shape.tied_head)
        return err_set(err, ERR_INVALID, "weights: %s: the model's head is tied", name);
    int rc = check_source(dev, which, name, src, err);
    if (rc != OK) return rc;
    struct matrix *m = &dev->weights[(size_t)layer * WEIGHT_COUNT + which];
    if (m->data) return err_set(err, ERR_INVALID, "weights: %s: loaded twice", name);

    bool vector = specs[which].rows == SIZE_ONE;
    struct matrix packed = {.dtype = src->dtype, .rows = src->rows, .cols = src->cols};
    packed.int8 = dev->shape.activations == ACTIVATIONS_INT8 && dtype_block(src->dtype) > 1;
    size_t bytes =
        vector ? align_up(src->cols, GROUP) * sizeof(float) : dev->ops->matrix_bytes(&packed);
    packed.data = memory_take(&dev->memory, bytes);
    if (!packed.data)
        return err_set(err, ERR_NOMEM, "weights: %s: no memory for %zu bytes", name, bytes);
    if (vector)
        memcpy(packed.data, src->data, src->cols * sizeof(float));
    else
        dev->ops->matrix_pack(&packed, src);
    *m = packed;
    return OK;
}

int cpu_check_weights(const struct device *dev, struct err *err) {
    for (uint32_t layer = 0; layer < dev->shape.n_layers; layer++)
        for (enum weight w = 0; w < WEIGHT_COUNT; w++) {
            bool wanted = specs[w].need == ALWAYS ||
                          (specs[w].need == UNTIED && !dev->shape.tied_head) ||
                          (specs[w].need == DRAFTS && dev->shape.block_size > 0);
            if (!wanted || (specs[w].global && layer > 0)) continue;
            char name[48];
            if (!cpu_weight(dev, w, layer)->data)
                return err_set(err, ERR_INVALID, "weights: %s: missing", full_name(w, layer, name));
        }
    return cpu_msar_check_weights(dev, err);
}
