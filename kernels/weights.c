/* weights.c: what shape each weight has, and naming the one that is wrong or missing. */
#include "kernels/weights.h"

#include <stdio.h>

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

static const char *const msar_names[WEIGHT_END - WEIGHT_COUNT] = {
    "msar.conv",     "read.query",     "read.mix.weight",
    "read.mix.bias", "read.mix.scale", "readout.query"};

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

static void msar_size(const struct model_shape *s, enum weight which, uint32_t index,
                      uint32_t *rows, uint32_t *cols) {
    uint32_t n = s->n_msar_streams, d = s->d_model;
    switch ((int)which) {
    case WEIGHT_MSAR_CONV:
        *rows = s->msar_kernels[index % (n - 1) + 1], *cols = d;
        return;
    case WEIGHT_MSAR_QUERY:
        *rows = n, *cols = d;
        return;
    case WEIGHT_MSAR_MIX:
        *rows = n, *cols = n * d;
        return;
    case WEIGHT_MSAR_MIX_BIAS:
        *rows = 1, *cols = n;
        return;
    case WEIGHT_MSAR_MIX_SCALE:
        *rows = 1, *cols = 1;
        return;
    default:
        *rows = 1, *cols = d;
        return;
    }
}

const char *weight_name(enum weight which, uint32_t index, char *name) {
    if (which >= WEIGHT_COUNT)
        snprintf(name, WEIGHT_NAME, "%s %u", msar_names[which - WEIGHT_COUNT], index);
    else if (specs[which].global)
        snprintf(name, WEIGHT_NAME, "%s", specs[which].name);
    else
        snprintf(name, WEIGHT_NAME, "layers.%u.%s", index, specs[which].name);
    return name;
}

uint32_t weight_count(const struct model_shape *shape, enum weight which) {
    ASSERT(which < WEIGHT_END);
    if (which < WEIGHT_COUNT) return specs[which].global ? 1 : shape->n_layers;
    uint32_t streams = shape->n_msar_streams, n_branches = 2 * shape->n_layers;
    if (streams == 0) return 0;
    if (which == WEIGHT_MSAR_CONV) return (msar_source(shape, n_branches) + 1) * (streams - 1);
    return which == WEIGHT_MSAR_READOUT ? 1 : n_branches;
}

void weight_size(const struct model_shape *shape, enum weight which, uint32_t index, uint32_t *rows,
                 uint32_t *cols) {
    if (which >= WEIGHT_COUNT) {
        msar_size(shape, which, index, rows, cols);
        return;
    }
    *rows = size_of(shape, specs[which].rows);
    *cols = size_of(shape, specs[which].cols);
}

bool weight_is_vector(enum weight which) {
    return which >= WEIGHT_COUNT || specs[which].rows == SIZE_ONE;
}

bool weight_is_needed(const struct model_shape *shape, enum weight which) {
    if (which >= WEIGHT_COUNT) return shape->n_msar_streams > 0;
    enum need need = specs[which].need;
    return need == ALWAYS || (need == UNTIED && !shape->tied_head) ||
           (need == DRAFTS && shape->block_size > 0);
}

static int check_msar(const struct model_shape *shape, enum weight which, uint32_t index,
                      const struct tensor *src, struct err *err) {
    const char *name = msar_names[which - WEIGHT_COUNT];
    uint32_t n = weight_count(shape, which), rows, cols;
    if (index >= n)
        return err_set(err, ERR_INVALID, "weights: %s: number %u of %u", name, index, n);
    msar_size(shape, which, index, &rows, &cols);
    if (src->rows != rows || src->cols != cols)
        return err_set(err, ERR_INVALID, "weights: %s %u: shape [%u,%u], config wants [%u,%u]",
                       name, index, src->rows, src->cols, rows, cols);
    if (src->dtype != DTYPE_F32)
        return err_set(err, ERR_INVALID, "weights: %s %u: type %s, expected f32", name, index,
                       dtype_name(src->dtype));
    return OK;
}

int weight_check(const struct model_shape *shape, enum weight which, uint32_t index,
                 const struct tensor *src, struct err *err) {
    ASSERT(which < WEIGHT_END);
    ASSERT(src->dtype < DTYPE_COUNT);
    if (which >= WEIGHT_COUNT) return check_msar(shape, which, index, src, err);
    char name[WEIGHT_NAME];
    weight_name(which, index, name);
    uint32_t n = weight_count(shape, which), rows, cols;
    if (index >= n) return err_set(err, ERR_INVALID, "weights: %s: layer %u of %u", name, index, n);
    if (specs[which].need == UNTIED && shape->tied_head)
        return err_set(err, ERR_INVALID, "weights: %s: the model's head is tied", name);
    weight_size(shape, which, index, &rows, &cols);
    if (src->rows != rows || src->cols != cols)
        return err_set(err, ERR_INVALID, "weights: %s: shape [%u,%u], config wants [%u,%u]", name,
                       src->rows, src->cols, rows, cols);
    if (weight_is_vector(which) && src->dtype != DTYPE_F32)
        return err_set(err, ERR_INVALID, "weights: %s: a vector of type %s, expected f32", name,
                       dtype_name(src->dtype));
    if (src->cols % dtype_block(src->dtype) != 0)
        return err_set(err, ERR_INVALID, "weights: %s: %u columns, %s needs a multiple of %u", name,
                       src->cols, dtype_name(src->dtype), dtype_block(src->dtype));
    return OK;
}

int weight_loaded_twice(enum weight which, uint32_t index, struct err *err) {
    char name[WEIGHT_NAME];
    return err_set(err, ERR_INVALID, "weights: %s: loaded twice", weight_name(which, index, name));
}

static int check_there(const struct model_shape *shape, enum weight which, uint32_t index,
                       bool (*has)(const void *arg, enum weight which, uint32_t index),
                       const void *arg, struct err *err) {
    char name[WEIGHT_NAME];
    if (index >= weight_count(shape, which) || !weight_is_needed(shape, which)) return OK;
    if (has(arg, which, index)) return OK;
    return err_set(err, ERR_INVALID, "weights: %s: missing", weight_name(which, index, name));
}

int weights_check(const struct model_shape *shape,
                  bool (*has)(const void *arg, enum weight which, uint32_t index), const void *arg,
                  struct err *err) {
    int rc = OK;
    for (uint32_t layer = 0; rc == OK && layer < shape->n_layers; layer++)
        for (int w = 0; rc == OK && w < WEIGHT_COUNT; w++)
            rc = check_there(shape, (enum weight)w, layer, has, arg, err);
    for (int w = WEIGHT_COUNT; rc == OK && w < WEIGHT_END; w++)
        for (uint32_t i = 0; rc == OK && i < weight_count(shape, (enum weight)w); i++)
            rc = check_there(shape, (enum weight)w, i, has, arg, err);
    return rc;
}
