/* weights.c: see weights.h. */
#include "engine/load/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/load/loader.h"

/* Sizes by name; resolved against the configuration. */
enum dim { NONE, D_MODEL, D_FF, D_QUERY, D_KV, D_HEAD, D_VOCAB };

/* When a weight must be there. */
enum need {
    ALWAYS,
    UNTIED,
    QKV_BIAS,
    O_BIAS,
    MLP_BIAS,
    QK_NORM,
    ORTHROS_OPTIONAL,
    ORTHRUS,
    ORTHRUS_QKV_BIAS,
    ORTHRUS_O_BIAS,
    ORTHRUS_QK_NORM,
};

struct spec {
    enum weight which;
    const char *name;
    enum dim rows, cols; /* rows NONE: a vector */
    enum need need;
};

/* clang-format off */
static const struct spec first[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", D_VOCAB, D_MODEL, ALWAYS},
};
static const struct spec last[] = {
    {WEIGHT_FINAL_NORM, "model.norm.weight", NONE, D_MODEL, ALWAYS},
    {WEIGHT_LM_HEAD, "lm_head.weight", D_VOCAB, D_MODEL, UNTIED},
};
static const struct spec layer_specs[] = {
    {WEIGHT_ATTN_NORM, "input_layernorm.weight", NONE, D_MODEL, ALWAYS},
    {WEIGHT_Q, "self_attn.q_proj.weight", D_QUERY, D_MODEL, ALWAYS},
    {WEIGHT_K, "self_attn.k_proj.weight", D_KV, D_MODEL, ALWAYS},
    {WEIGHT_V, "self_attn.v_proj.weight", D_KV, D_MODEL, ALWAYS},
    {WEIGHT_O, "self_attn.o_proj.weight", D_MODEL, D_QUERY, ALWAYS},
    {WEIGHT_Q_BIAS, "self_attn.q_proj.bias", NONE, D_QUERY, QKV_BIAS},
    {WEIGHT_K_BIAS, "self_attn.k_proj.bias", NONE, D_KV, QKV_BIAS},
    {WEIGHT_V_BIAS, "self_attn.v_proj.bias", NONE, D_KV, QKV_BIAS},
    {WEIGHT_O_BIAS, "self_attn.o_proj.bias", NONE, D_MODEL, O_BIAS},
    {WEIGHT_Q_NORM, "self_attn.q_norm.weight", NONE, D_HEAD, QK_NORM},
    {WEIGHT_K_NORM, "self_attn.k_norm.weight", NONE, D_HEAD, QK_NORM},
    {WEIGHT_AFFINE_BASE_SCALE, "self_attn.q_affine_base.weight", NONE, D_QUERY, ORTHROS_OPTIONAL},
    {WEIGHT_AFFINE_BASE_SHIFT, "self_attn.q_affine_base.bias", NONE, D_QUERY, ORTHROS_OPTIONAL},
    {WEIGHT_AFFINE_OUTPUT_SCALE, "self_attn.q_affine_output.weight", NONE, D_QUERY, ORTHROS_OPTIONAL},
    {WEIGHT_AFFINE_OUTPUT_SHIFT, "self_attn.q_affine_output.bias", NONE, D_QUERY, ORTHROS_OPTIONAL},
    {WEIGHT_Q_DIFF, "self_attn.q_proj_diff.weight", D_QUERY, D_MODEL, ORTHRUS},
    {WEIGHT_K_DIFF, "self_attn.k_proj_diff.weight", D_KV, D_MODEL, ORTHRUS},
    {WEIGHT_V_DIFF, "self_attn.v_proj_diff.weight", D_KV, D_MODEL, ORTHRUS},
    {WEIGHT_O_DIFF, "self_attn.o_proj_diff.weight", D_MODEL, D_QUERY, ORTHRUS},
    {WEIGHT_Q_DIFF_BIAS, "self_attn.q_proj_diff.bias", NONE, D_QUERY, ORTHRUS_QKV_BIAS},
    {WEIGHT_K_DIFF_BIAS, "self_attn.k_proj_diff.bias", NONE, D_KV, ORTHRUS_QKV_BIAS},
    {WEIGHT_V_DIFF_BIAS, "self_attn.v_proj_diff.bias", NONE, D_KV, ORTHRUS_QKV_BIAS},
    {WEIGHT_O_DIFF_BIAS, "self_attn.o_proj_diff.bias", NONE, D_MODEL, ORTHRUS_O_BIAS},
    {WEIGHT_Q_DIFF_NORM, "self_attn.q_norm_diff.weight", NONE, D_HEAD, ORTHRUS_QK_NORM},
    {WEIGHT_K_DIFF_NORM, "self_attn.k_norm_diff.weight", NONE, D_HEAD, ORTHRUS_QK_NORM},
    {WEIGHT_MLP_NORM, "post_attention_layernorm.weight", NONE, D_MODEL, ALWAYS},
    {WEIGHT_GATE, "mlp.gate_proj.weight", D_FF, D_MODEL, ALWAYS},
    {WEIGHT_UP, "mlp.up_proj.weight", D_FF, D_MODEL, ALWAYS},
    {WEIGHT_DOWN, "mlp.down_proj.weight", D_MODEL, D_FF, ALWAYS},
    {WEIGHT_GATE_BIAS, "mlp.gate_proj.bias", NONE, D_FF, MLP_BIAS},
    {WEIGHT_UP_BIAS, "mlp.up_proj.bias", NONE, D_FF, MLP_BIAS},
    {WEIGHT_DOWN_BIAS, "mlp.down_proj.bias", NONE, D_MODEL, MLP_BIAS},
};
/* clang-format on */
_Static_assert(ARRAY_LEN(first) + ARRAY_LEN(last) + ARRAY_LEN(layer_specs) == WEIGHT_COUNT,
               "every weight has its name");

struct planner {
    const struct checkpoint *ck;
    const struct config *config;
    struct weight_item *items;
    size_t n_items, cap;
    bool *used; /* a tensor of the checkpoint has its meaning */
    struct err *err;
};

static uint64_t size_of(const struct config *c, enum dim dim) {
    const struct model_shape *s = &c->shape;
    switch (dim) {
    case D_MODEL:
        return s->d_model;
    case D_FF:
        return s->d_ff;
    case D_QUERY:
        return (uint64_t)s->n_heads * s->head_dim;
    case D_KV:
        return (uint64_t)s->n_kv_heads * s->head_dim;
    case D_HEAD:
        return s->head_dim;
    case D_VOCAB:
        return s->vocab_size;
    case NONE:
        break;
    }
    return 1;
}

static bool wanted(const struct config *c, enum need need) {
    bool orthrus = c->shape.block_size > 0;
    switch (need) {
    case ALWAYS:
        return true;
    case UNTIED:
        return !c->shape.tied_head;
    case QKV_BIAS:
        return c->qkv_bias;
    case O_BIAS:
        return c->o_bias;
    case MLP_BIAS:
        return c->mlp_bias;
    case QK_NORM:
        return c->qk_norm;
    case ORTHROS_OPTIONAL:
        return c->shape.orthros;
    case ORTHRUS:
        return orthrus;
    case ORTHRUS_QKV_BIAS:
        return orthrus && c->qkv_bias;
    case ORTHRUS_O_BIAS:
        return orthrus && c->o_bias;
    case ORTHRUS_QK_NORM:
        return orthrus && c->qk_norm;
    }
    return false;
}

/* "[2048,1024]" */
static const char *show_shape(const uint64_t *shape, uint32_t n, char out[160]) {
    size_t at = (size_t)snprintf(out, 160, "[");
    for (uint32_t i = 0; i < n && at < 140; i++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%llu", i ? "," : "",
                               (unsigned long long)shape[i]);
    snprintf(out + at, 160 - at, "]");
    return out;
}

/* The tensor must be there with n_dims sizes; *index its place in the checkpoint. */
static int expect(struct planner *p, const char *name, const uint64_t *shape, uint32_t n_dims,
                  size_t *index) {
    int64_t i = checkpoint_find(p->ck, name);
    if (i < 0) return err_set(p->err, ERR_INVALID, "weights: %s is missing", name);
    const struct checkpoint_tensor *t = checkpoint_tensor(p->ck, (size_t)i);
    bool same = t->n_dims == n_dims;
    for (uint32_t d = 0; same && d < n_dims; d++)
        same = t->shape[d] == shape[d];
    if (!same) {
        char found[160], want[160];
        return err_set(p->err, ERR_INVALID, "weights: %s: shape %s, config wants %s", name,
                       show_shape(t->shape, t->n_dims, found), show_shape(shape, n_dims, want));
    }
    if (t->dtype < 0)
        return err_set(p->err, ERR_INVALID, "weights: %s: type %s is not yet supported", name,
                       t->type);
    p->used[i] = true;
    *index = (size_t)i;
    return OK;
}

static int add_item(struct planner *p, struct weight_item item) {
    if (p->n_items == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct weight_item *items = realloc(p->items, cap * sizeof *items);
        if (!items) return err_set(p->err, ERR_NOMEM, "weights: no memory for the list");
        p->items = items;
        p->cap = cap;
    }
    p->items[p->n_items++] = item;
    return OK;
}

static int plan_one(struct planner *p, const struct spec *spec, const char *name, uint32_t layer) {
    if (!wanted(p->config, spec->need)) return OK;
    if (spec->need == ORTHROS_OPTIONAL && (!p->ck || checkpoint_find(p->ck, name) < 0)) return OK;
    bool matrix = spec->rows != NONE;
    uint64_t rows = size_of(p->config, spec->rows), cols = size_of(p->config, spec->cols);
    uint64_t shape[2] = {matrix ? rows : cols, cols};
    size_t index = 0;
    int rc = p->ck ? expect(p, name, shape, matrix ? 2 : 1, &index) : OK;
    if (rc) return rc;
    return add_item(
        p, (struct weight_item){spec->which, layer, index, (uint32_t)rows, (uint32_t)cols, matrix});
}

static int plan_list(struct planner *p, const struct spec *specs, size_t n) {
    int rc = OK;
    for (size_t i = 0; !rc && i < n; i++)
        rc = plan_one(p, &specs[i], specs[i].name, 0);
    return rc;
}

static int plan_layer(struct planner *p, uint32_t layer) {
    int rc = OK;
    char name[128];
    for (size_t i = 0; !rc && i < ARRAY_LEN(layer_specs); i++) {
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, layer_specs[i].name);
        rc = plan_one(p, &layer_specs[i], name, layer);
    }
    return rc;
}

/* ---- MSAR -------------------------------------------------------------------------------------- */

/* One tensor of n_dims sizes, [cols] or [rows, cols]; all of them are loaded as f32. */
static int plan_msar_one(struct planner *p, enum weight which, uint32_t index, const char *name,
                         uint32_t rows, uint32_t cols, uint32_t n_dims) {
    uint64_t shape[2] = {n_dims == 1 ? cols : rows, cols};
    size_t tensor = 0;
    int rc = p->ck ? expect(p, name, shape, n_dims, &tensor) : OK;
    if (rc) return rc;
    return add_item(p, (struct weight_item){which, index, tensor, rows, cols, false});
}

/* What stands before branch `branch`: its query, and the mixer of its streams. */
static int plan_read(struct planner *p, uint32_t branch) {
    uint32_t d = p->config->shape.d_model, r = p->config->shape.n_msar_streams;
    const struct {
        enum weight which;
        const char *name;
        uint32_t rows, cols, n_dims;
    } parts[] = {{WEIGHT_MSAR_QUERY, "query", r, d, 2},
                 {WEIGHT_MSAR_MIX, "mix.weight", r, r * d, 2},
                 {WEIGHT_MSAR_MIX_BIAS, "mix.bias", 1, r, 1},
                 {WEIGHT_MSAR_MIX_SCALE, "mix.scale", 1, 1, 1}};
    int rc = OK;
    for (size_t i = 0; !rc && i < ARRAY_LEN(parts); i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.%s.%s", branch / 2,
                 branch % 2 ? "mlp_read" : "self_attn_read", parts[i].name);
        rc = plan_msar_one(p, parts[i].which, branch, name, parts[i].rows, parts[i].cols,
                           parts[i].n_dims);
    }
    return rc;
}

static int plan_msar(struct planner *p) {
    const struct model_shape *shape = &p->config->shape;
    uint32_t n = shape->n_msar_streams, n_sources = msar_source(shape, 2 * shape->n_layers) + 1;
    char name[128];
    int rc = OK;
    for (uint32_t s = 0; !rc && s < n_sources; s++)
        for (uint32_t r = 1; !rc && r < n; r++) {
            snprintf(name, sizeof name, "model.msar.conv.%u.%u", s, r);
            rc = plan_msar_one(p, WEIGHT_MSAR_CONV, s * (n - 1) + r - 1, name,
                               shape->msar_kernels[r], shape->d_model, 2);
        }
    for (uint32_t branch = 0; !rc && branch < 2 * shape->n_layers; branch++)
        rc = plan_read(p, branch);
    if (rc) return rc;
    return plan_msar_one(p, WEIGHT_MSAR_READOUT, 0, "model.readout.query", 1, shape->d_model, 1);
}

/* ---- the rest of the file ---------------------------------------------------------------------- */

static bool has_suffix(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

bool weights_inert(const struct config *c, const char *name) {
    if (has_suffix(name, ".rotary_emb.inv_freq")) return true;
    if (strcmp(name, "rope_freqs.weight") == 0) return true;
    return c->shape.tied_head && strcmp(name, "lm_head.weight") == 0;
}

static int check_unused(struct planner *p) {
    for (size_t i = 0; i < checkpoint_n_tensors(p->ck); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor(p->ck, i);
        if (p->used[i] || weights_inert(p->config, t->name)) continue;
        char name[LOADER_NAME_CAP];
        return err_set(p->err, ERR_INVALID,
                       "weights: %s (in %.60s): a model of this configuration has no such tensor",
                       loader_printable(t->name, strlen(t->name), name), t->file);
    }
    return OK;
}

int weights_plan(const struct checkpoint *ck, const struct config *config, struct weight_plan *out,
                 struct err *err) {
    struct planner p = {.ck = ck, .config = config, .err = err};
    p.used = calloc((ck ? checkpoint_n_tensors(ck) : 0) + 1, sizeof *p.used);
    if (!p.used) return err_set(err, ERR_NOMEM, "weights: no memory for the list");
    int rc = plan_list(&p, first, ARRAY_LEN(first));
    for (uint32_t i = 0; !rc && i < config->shape.n_layers; i++)
        rc = plan_layer(&p, i);
    if (!rc) rc = plan_list(&p, last, ARRAY_LEN(last));
    if (!rc && config->shape.n_msar_streams) rc = plan_msar(&p);
    if (!rc && ck) rc = check_unused(&p);
    free(p.used);
    if (rc) {
        free(p.items);
        return rc;
    }
    out->items = p.items;
    out->n_items = p.n_items;
    return OK;
}

void weights_plan_free(struct weight_plan *plan) {
    free(plan->items);
    plan->items = NULL;
    plan->n_items = 0;
}

int weights_dtype(const struct checkpoint *ck, const struct weight_item *item, int want,
                  enum dtype *out, struct err *err) {
    const struct checkpoint_tensor *t = checkpoint_tensor(ck, item->tensor);
    enum dtype dtype = want < 0 ? (enum dtype)t->dtype : (enum dtype)want;
    if (!item->matrix) dtype = DTYPE_F32;
    uint32_t block = dtype_block(dtype);
    if (item->cols % block)
        return err_set(err, ERR_INVALID,
                       "weights: %s: rows of %u elements, %s wants a multiple of %u", t->name,
                       item->cols, dtype_name(dtype), block);
    *out = dtype;
    return OK;
}

/* The least magnitude that rounds to none of dtype's numbers. Blocks keep scales, or minima (q4_0 is
 * written with -8 d), in f16, where 65520 is the first to become infinite; q8_0 has d = max / 127. */
static float beyond(enum dtype dtype) {
    switch ((int)dtype) {
    case DTYPE_F32:
        return INFINITY;
    case DTYPE_BF16:
        return 0x1.ffp127f;
    case DTYPE_Q8_0:
        return 127 * 65520.0f;
    default:
        return 65520;
    }
}

int weights_round(const char *name, enum dtype dtype, const float *x, size_t n, void *out,
                  struct err *err) {
    float least = beyond(dtype);
    bool blocks = dtype_block(dtype) > 1; /* these would cut infinities and make 0 of NaN */
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < least) && (blocks || isfinite(x[i])))
            return err_set(err, ERR_INVALID, "weights: %s: %g is beyond the range of %s", name,
                           (double)x[i], dtype_name(dtype));
    dtype_from_f32(dtype, x, n, out);
    return OK;
}

uint64_t weights_bytes(const struct weight_item *item, enum dtype dtype) {
    return (uint64_t)item->rows * dtype_row_bytes(dtype, item->cols);
}
