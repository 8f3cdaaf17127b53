/* small_model.h: a small random model on a device of any table, and forwards through it. The same
 * seed gives every table the same weights. */
#ifndef GERYON_GPU_SMALL_MODEL_H
#define GERYON_GPU_SMALL_MODEL_H

#include <math.h>

#include "kernels/weights.h"
#include "tests/gpusim/gpusim_test.h"

enum { SMALL_POSITIONS = 700, SMALL_PAGES = 192, SMALL_SLOTS = 4, SMALL_ROWS = 96 };

struct small {
    const struct kernels *k;
    struct device *dev;
    struct model_shape shape;
};

static inline struct model_shape small_shape(void) {
    static double freq[32];
    for (int m = 0; m < 32; m++)
        freq[m] = pow(10000, -m / 8.0);
    struct model_shape s = {};
    s.n_layers = 2;
    s.d_model = 48;
    s.n_heads = 6;
    s.n_kv_heads = 2;
    s.head_dim = 16;
    s.d_ff = 76; /* no multiple of 8 */
    s.vocab_size = 203;
    s.rms_eps = 1e-6f;
    s.tied_head = true;
    s.mask_token = 3;
    s.max_position = SMALL_POSITIONS;
    s.rope_freq = freq;
    s.rope_scale = 1;
    s.activations = ACTIVATIONS_F32;
    return s;
}
static inline void small_msar(struct model_shape *s) {
    const uint32_t kernels[] = {1, 4, 7};
    s->n_msar_streams = 3;
    s->msar_branches = 3;
    memcpy(s->msar_kernels, kernels, sizeof kernels);
}

/* Does the small model have it? Biases and norms of heads are optional. */
static inline bool small_has(const struct model_shape *s, enum weight which, bool optional) {
    if (weight_is_needed(s, which)) return true;
    if (!optional || which >= WEIGHT_COUNT || which == WEIGHT_LM_HEAD) return false;
    if (which >= WEIGHT_Q_DIFF) return s->block_size > 0;
    if (which >= WEIGHT_AFFINE_BASE_SCALE && which <= WEIGHT_AFFINE_OUTPUT_SHIFT) return s->orthros;
    return true;
}

/* The numbers of a weight as float; malloc'd. Norms and scales lie around 1. */
static inline float *small_numbers(enum weight which, uint32_t index, size_t n) {
    const bool around_one = which == WEIGHT_FINAL_NORM || which == WEIGHT_ATTN_NORM ||
                            which == WEIGHT_MLP_NORM || which == WEIGHT_Q_NORM ||
                            which == WEIGHT_K_NORM || which == WEIGHT_Q_DIFF_NORM ||
                            which == WEIGHT_K_DIFF_NORM || which == WEIGHT_AFFINE_BASE_SCALE ||
                            which == WEIGHT_AFFINE_OUTPUT_SCALE;
    struct rng rng;
    rng_seed(&rng, 977u * index + (unsigned)which);
    float *x = (float *)malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (around_one ? 1.0f : 0.0f) + 0.2f * rng_normal(&rng);
    return x;
}

/* Matrices whose rows are no whole blocks are stored as bf16 where dtype has blocks. */
static inline int small_load(struct small *m, enum weight which, uint32_t index, enum dtype dtype,
                             struct err *err) {
    uint32_t rows, cols;
    weight_size(&m->shape, which, index, &rows, &cols);
    if (weight_is_vector(which)) dtype = DTYPE_F32;
    if (cols % dtype_block(dtype)) dtype = DTYPE_BF16;
    size_t n = (size_t)rows * cols;
    float *x = small_numbers(which, index, n);
    void *stored = malloc(dtype_row_bytes(dtype, n));
    dtype_from_f32(dtype, x, n, stored);
    struct tensor src = {dtype, rows, cols, stored};
    int rc = m->k->load(m->dev, which, index, &src, err);
    free(stored);
    free(x);
    return rc;
}

static inline void small_load_all(struct small *m, enum dtype dtype, bool optional) {
    struct err err = {};
    for (int w = 0; w < WEIGHT_END; w++)
        for (uint32_t i = 0; i < weight_count(&m->shape, (enum weight)w); i++)
            if (small_has(&m->shape, (enum weight)w, optional) &&
                small_load(m, (enum weight)w, i, dtype, &err) != OK)
                fail_msg("%s", err.msg);
}

static inline struct device_limits small_limits(void) {
    struct device_limits l = {};
    l.kv_dtype = DTYPE_F32;
    l.n_pages = SMALL_PAGES;
    l.n_slots = SMALL_SLOTS;
    l.max_rows = SMALL_ROWS;
    l.max_logit_rows = 64;
    l.n_snapshots = 2;
    l.max_proposed = 7;
    return l;
}

static inline struct small small_open(const struct kernels *k, const struct model_shape *shape,
                                      enum dtype dtype, bool optional, uint32_t n_threads = 1) {
    struct small m = {k, NULL, *shape};
    struct err err = {};
    struct device_limits limits = small_limits();
    if (k->open(shape, n_threads, &m.dev, &err) != OK) fail_msg("%s", err.msg);
    small_load_all(&m, dtype, optional);
    if (k->reserve(m.dev, &limits, &err) != OK) fail_msg("%s", err.msg);
    struct rules greedy = {};
    greedy.top_p = 1;
    for (uint32_t slot = 0; slot < SMALL_SLOTS; slot++)
        k->slot_set(m.dev, slot, &greedy);
    return m;
}

/* A text and its pages, of a slot's own. */
struct small_text {
    int32_t tokens[SMALL_POSITIONS];
    uint32_t pages[SMALL_POSITIONS / PAGE_TOKENS + 1];
};
static inline struct small_text small_text(uint32_t slot) {
    struct small_text t;
    struct rng rng;
    rng_seed(&rng, 5 + slot);
    for (int i = 0; i < SMALL_POSITIONS; i++)
        t.tokens[i] = (int32_t)rng_below(&rng, 200);
    for (uint32_t i = 0; i < SMALL_POSITIONS / PAGE_TOKENS + 1; i++)
        t.pages[i] = (slot * 44 + i * 5 % 44) % SMALL_PAGES; /* no two the same */
    return t;
}

static inline struct segment small_segment(const struct small_text *t, enum view view,
                                           uint32_t slot, uint32_t pos, uint32_t n_rows,
                                           uint32_t n_logits) {
    struct segment s = {};
    s.slot = slot;
    s.view = (uint8_t)view;
    s.pick = PICK_NONE;
    s.pos = pos;
    s.n_rows = n_rows;
    s.n_logits = n_logits;
    s.tokens = t->tokens + pos;
    s.pages = t->pages;
    return s;
}

/* As engine/forward.c: the first code that is not OK. */
static inline int small_forward(struct small *m, const struct segment *segments, uint32_t n) {
    const struct kernels *k = m->k;
    const bool msar = m->shape.n_msar_streams > 0;
    const uint32_t n_layers = m->shape.n_layers;
    struct forward fwd = {n, segments};
    int rc = k->begin(m->dev, &fwd);
    if (!rc) rc = k->embed(m->dev);
    for (uint32_t l = 0; l < n_layers && !rc; l++) {
        if (msar) rc = k->msar_push(m->dev, 2 * l);
        if (!rc && msar) rc = k->msar_read(m->dev, 2 * l);
        if (!rc) rc = k->qkv(m->dev, l);
        if (!rc) rc = k->attend(m->dev, l);
        if (!rc) rc = k->out_residual(m->dev, l);
        if (!rc && msar) rc = k->msar_push(m->dev, 2 * l + 1);
        if (!rc && msar) rc = k->msar_read(m->dev, 2 * l + 1);
        if (!rc) rc = k->mlp(m->dev, l);
    }
    if (!rc && msar) rc = k->msar_read(m->dev, 2 * n_layers);
    return rc ? rc : k->lm_head(m->dev);
}

#endif
