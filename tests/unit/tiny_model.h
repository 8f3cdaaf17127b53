/* tiny_model.h: a small random model on a device, and helpers to run rows through it, for the tests
 * of the kernels. The same seed gives every table the same weights. */
#ifndef GERYON_TINY_MODEL_H
#define GERYON_TINY_MODEL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/forward.h"
#include "kernels/cpu/cpu.h"
#include "tests/harness.h"
#include "tests/unit/narrow.h"
#include "tests/unit/tables.h"

enum { TINY_PAGES = 96, TINY_SLOTS = 6, TINY_ROWS = 256, TINY_LOGITS = 256, TINY_POSITIONS = 512 };

struct tiny {
    const struct kernels *k;
    struct device *dev;
    struct model_shape shape;
    struct device_limits limits;
};

struct tiny_options {
    enum dtype weights, kv;
    uint32_t n_threads;
    bool pin;
    bool orthros, biases, head_norms, untied;
    uint32_t window, block_size, head_dim, vocab;
    enum activations activations;
    bool down_differs; /* the MLP's last matrix is `down` */
    enum dtype down;
    uint32_t d_ff; /* 0: whole blocks */
    bool identity_affine;
    bool plain_diff;                      /* the draft view's weights are the base view's */
    uint32_t msar_streams, msar_branches; /* kernels 1 4 8 12 */
    uint32_t n_snapshots;
    uint32_t positions,
        rows; /* 0, or in place of TINY_POSITIONS (with pages for them), TINY_ROWS */
};

static inline struct tiny_options tiny_defaults(void) {
    return (struct tiny_options){.weights = DTYPE_F32,
                                 .kv = DTYPE_F32,
                                 .n_threads = 1,
                                 .head_norms = true,
                                 .head_dim = 16,
                                 .vocab = 320};
}

/* Products that round the rows: int8 on the CPU, bf16 on cuda. */
static inline enum activations tiny_rounded(void) {
    return tables_are_cuda() ? ACTIVATIONS_BF16 : ACTIVATIONS_INT8;
}

/* With the tile unit in software (tests/amx): products and attention on it. */
static inline void tiny_on_tiles(struct tiny_options *o) {
    if (tiles_are_emulated()) o->activations = ACTIVATIONS_BF16, o->kv = DTYPE_BF16;
}

static inline struct model_shape tiny_shape(const struct tiny_options *o, const double *freq) {
    bool wide = dtype_block(o->weights) == 256 || (o->down_differs && dtype_block(o->down) == 256);
    return (struct model_shape){.n_msar_streams = o->msar_streams,
                                .msar_kernels = {1, 4, 8, 12},
                                .msar_branches = o->msar_branches,
                                .n_layers = 2,
                                .d_model = wide ? 256 : 64,
                                .n_heads = 6,
                                .n_kv_heads = 2,
                                .head_dim = o->head_dim,
                                .d_ff = o->d_ff ? o->d_ff
                                        : wide  ? 256
                                                : 96,
                                .vocab_size = o->vocab,
                                .rms_eps = 1e-6f,
                                .tied_head = !o->untied,
                                .orthros = o->orthros,
                                .window = o->window,
                                .block_size = o->block_size,
                                .mask_token = 3,
                                .max_position = o->positions ? o->positions : TINY_POSITIONS,
                                .activations = o->activations,
                                .deterministic = true,
                                .pin_threads = o->pin,
                                .rope_freq = freq,
                                .rope_scale = 1};
}

/* The n numbers of a weight before they are stored; malloc'd. */
static inline float *tiny_numbers(enum weight w, uint32_t layer, size_t n, float around,
                                  float spread) {
    struct rng rng;
    rng_seed(&rng, 1000003u * layer + w);
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = around + spread * rng_normal(&rng);
    return x;
}

/* Load a random weight of the given size, stored in dtype, with the numbers of weight `seed`. */
static inline void tiny_load_as(struct tiny *t, enum weight w, enum weight seed, uint32_t layer,
                                enum dtype dtype, uint32_t rows, uint32_t cols, float around,
                                float spread) {
    size_t n = (size_t)rows * cols;
    float *x = tiny_numbers(seed, layer, n, around, spread);
    void *stored = malloc(dtype_row_bytes(dtype, n));
    narrow(dtype, x, n, stored);
    struct err err = {0};
    struct tensor src = {dtype, rows, cols, stored};
    if (t->k->load(t->dev, w, layer, &src, &err) != OK) fail_msg("%s", err.msg);
    free(stored);
    free(x);
}

static inline void tiny_load(struct tiny *t, enum weight w, uint32_t layer, enum dtype dtype,
                             uint32_t rows, uint32_t cols, float around, float spread) {
    tiny_load_as(t, w, w, layer, dtype, rows, cols, around, spread);
}

static inline void tiny_load_layer(struct tiny *t, uint32_t l, const struct tiny_options *o) {
    const struct model_shape *s = &t->shape;
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim, d = s->d_model;
    /* rows of q, o do not always hold whole blocks of 32 */
    enum dtype w = o->weights, wo = q % dtype_block(w) ? DTYPE_F32 : w;
    tiny_load(t, WEIGHT_ATTN_NORM, l, DTYPE_F32, 1, d, 1, 0.2f);
    tiny_load(t, WEIGHT_MLP_NORM, l, DTYPE_F32, 1, d, 1, 0.2f);
    for (int diff = 0; diff <= (s->block_size > 0); diff++) {
        /* the projections and head norms of both views stand in the same order */
        enum weight base = diff && !o->plain_diff ? WEIGHT_Q_DIFF : WEIGHT_Q;
        enum weight base_norm = diff && !o->plain_diff ? WEIGHT_Q_DIFF_NORM : WEIGHT_Q_NORM;
        const uint32_t rows[4] = {q, kv, kv, d}, cols[4] = {d, d, d, q};
        for (uint32_t i = 0; i < 4; i++)
            tiny_load_as(t, (diff ? WEIGHT_Q_DIFF : WEIGHT_Q) + i, base + i, l, i == 3 ? wo : w,
                         rows[i], cols[i], 0, 0.2f);
        for (uint32_t i = 0; o->head_norms && i < 2; i++)
            tiny_load_as(t, (diff ? WEIGHT_Q_DIFF_NORM : WEIGHT_Q_NORM) + i, base_norm + i, l,
                         DTYPE_F32, 1, s->head_dim, 1, 0.2f);
        if (!o->biases) continue;
        tiny_load(t, diff ? WEIGHT_Q_DIFF_BIAS : WEIGHT_Q_BIAS, l, DTYPE_F32, 1, q, 0, 0.5f);
        tiny_load(t, diff ? WEIGHT_K_DIFF_BIAS : WEIGHT_K_BIAS, l, DTYPE_F32, 1, kv, 0, 0.5f);
        tiny_load(t, diff ? WEIGHT_V_DIFF_BIAS : WEIGHT_V_BIAS, l, DTYPE_F32, 1, kv, 0, 0.5f);
        tiny_load(t, diff ? WEIGHT_O_DIFF_BIAS : WEIGHT_O_BIAS, l, DTYPE_F32, 1, d, 0, 0.5f);
    }
    if (o->biases) {
        tiny_load(t, WEIGHT_GATE_BIAS, l, DTYPE_F32, 1, s->d_ff, 0, 0.5f);
        tiny_load(t, WEIGHT_UP_BIAS, l, DTYPE_F32, 1, s->d_ff, 0, 0.5f);
        tiny_load(t, WEIGHT_DOWN_BIAS, l, DTYPE_F32, 1, d, 0, 0.5f);
    }
    if (o->orthros && !o->identity_affine) {
        tiny_load(t, WEIGHT_AFFINE_BASE_SCALE, l, DTYPE_F32, 1, q, 1, 0.2f);
        tiny_load(t, WEIGHT_AFFINE_BASE_SHIFT, l, DTYPE_F32, 1, q, 0, 0.2f);
        tiny_load(t, WEIGHT_AFFINE_OUTPUT_SCALE, l, DTYPE_F32, 1, q, 1, 0.2f);
        tiny_load(t, WEIGHT_AFFINE_OUTPUT_SHIFT, l, DTYPE_F32, 1, q, 0, 0.2f);
    }
    tiny_load(t, WEIGHT_GATE, l, w, s->d_ff, d, 0, 0.2f);
    tiny_load(t, WEIGHT_UP, l, w, s->d_ff, d, 0, 0.2f);
    tiny_load(t, WEIGHT_DOWN, l, o->down_differs ? o->down : w, d, s->d_ff, 0, 0.2f);
}

/* How MSAR's weights spread, so that streams, depths and gates all differ. */
enum { TINY_MSAR_KINDS = WEIGHT_END - WEIGHT_MSAR_CONV };
static const float tiny_msar_spread[TINY_MSAR_KINDS] = {0.4f, 0.3f, 0.2f, 0.5f, 0.5f, 0.3f};

static inline void tiny_load_msar(struct tiny *t) {
    const struct model_shape *s = &t->shape;
    uint32_t n = s->n_msar_streams, d = s->d_model, n_branches = 2 * s->n_layers;
    if (n == 0) return;
    uint32_t n_sources = 1 + (uint32_t)div_ceil(n_branches, s->msar_branches);
    for (uint32_t i = 0; i < n_sources * (n - 1); i++)
        tiny_load(t, WEIGHT_MSAR_CONV, i, DTYPE_F32, s->msar_kernels[i % (n - 1) + 1], d, 0, 0.4f);
    const uint32_t rows[TINY_MSAR_KINDS] = {0, n, n, 1, 1, 1};
    const uint32_t cols[TINY_MSAR_KINDS] = {0, d, n * d, n, 1, d};
    for (uint32_t k = 1; k < TINY_MSAR_KINDS; k++)
        for (uint32_t i = 0; i < (k + 1 < TINY_MSAR_KINDS ? n_branches : 1); i++)
            tiny_load(t, (enum weight)(WEIGHT_MSAR_CONV + k), i, DTYPE_F32, rows[k], cols[k], 0,
                      tiny_msar_spread[k]);
}

/* ---- inside the device -------------------------------------------------------------------------- */

static inline bool tiny_on_cuda(const struct tiny *t) {
    return strcmp(t->k->name, "cuda") == 0;
}

static inline size_t tiny_page_bytes(const struct tiny *t) {
    return t->k->page_bytes(t->dev, t->limits.kv_dtype);
}

/* n KV pages from `first` on become NaN. */
static inline void tiny_poison_pages(const struct tiny *t, uint32_t first, uint32_t n) {
    size_t bytes = tiny_page_bytes(t);
    if (tiny_on_cuda(t))
        cuda_peek_poison(t->dev, CUDA_KV, first * bytes, n * bytes);
    else
        for (uint32_t l = 0; l < t->shape.n_layers; l++)
            memset(cpu_cached_page(t->dev, first, l), 0xff, n * t->dev->layer_bytes);
}

/* What lies in n KV pages, page by page; malloc'd. */
static inline char *tiny_read_pages(const struct tiny *t, uint32_t first, uint32_t n) {
    size_t bytes = tiny_page_bytes(t);
    char *out = malloc(n * bytes);
    if (tiny_on_cuda(t))
        cuda_peek_read(t->dev, CUDA_KV, first * bytes, n * bytes, out);
    else
        for (uint32_t i = 0; i < n * t->shape.n_layers; i++)
            memcpy(out + i * t->dev->layer_bytes,
                   cpu_cached_page(t->dev, first + i / t->shape.n_layers, i % t->shape.n_layers),
                   t->dev->layer_bytes);
    return out;
}

/* One logit of the forward at hand, whose stages have run, becomes x. */
static inline void tiny_put_logit(const struct tiny *t, uint32_t row, uint32_t id, float x) {
    size_t at = (size_t)row * t->shape.vocab_size + id;
    if (!tiny_on_cuda(t)) {
        struct device *dev = t->dev;
        uint32_t group = id / GROUP, n = dev->shape.vocab_size - group * GROUP;
        dev->logits[at] = x;
        cpu_note_maximum(dev, row, group, &dev->logits[at - id % GROUP], n < GROUP ? n : GROUP);
        return;
    }
    float *logits = malloc(t->shape.vocab_size * sizeof *logits);
    assert_int_equal(t->k->read_logits(t->dev, row, logits), OK); /* stages put off are run */
    free(logits);
    cuda_peek_write(t->dev, CUDA_LOGITS, at * sizeof x, sizeof x, &x);
}

/* NaN wherever an MSAR model keeps vectors: nothing may be read before it was written. */
static inline void tiny_poison_msar(const struct tiny *t) {
    struct device *dev = t->dev;
    if (tiny_on_cuda(t)) {
        for (enum cuda_region r = CUDA_VIEWS; r < CUDA_REGIONS; r++)
            if (cuda_peek_bytes(dev, r)) cuda_peek_poison(dev, r, 0, cuda_peek_bytes(dev, r));
        return;
    }
    const struct msar *m = &dev->msar;
    size_t n = dev->shape.n_msar_streams, ld = dev->ld_model * sizeof(float);
    if (n == 0) return;
    memset(m->views, 0xff, m->n_sources * n * dev->limits.max_rows * ld);
    memset(m->z, 0xff, n * dev->limits.max_rows * ld);
    memset(m->rings, 0xff, (size_t)dev->limits.n_slots * m->ring_len * m->n_pushes * ld);
    memset(m->snapshots, 0xff, (size_t)dev->limits.n_snapshots * m->history * m->n_pushes * ld);
}

/* Open, load everything, reserve. Every KV page begins as NaN: what a stale page may hold. */
static inline struct tiny tiny_open(const struct kernels *k, const struct tiny_options *o) {
    double freq[64];
    for (uint32_t m = 0; m < o->head_dim / 2; m++)
        freq[m] = pow(10000, -2.0 * m / o->head_dim);
    struct tiny t = {.k = k, .shape = tiny_shape(o, freq)};
    struct err err = {0};
    if (k->open(&t.shape, o->n_threads, &t.dev, &err) != OK) fail_msg("%s", err.msg);
    tiny_load(&t, WEIGHT_EMBED, 0, o->weights, o->vocab, t.shape.d_model, 0, 1);
    if (o->untied) tiny_load(&t, WEIGHT_LM_HEAD, 0, o->weights, o->vocab, t.shape.d_model, 0, 0.2f);
    tiny_load(&t, WEIGHT_FINAL_NORM, 0, DTYPE_F32, 1, t.shape.d_model, 1, 0.2f);
    for (uint32_t l = 0; l < t.shape.n_layers; l++)
        tiny_load_layer(&t, l, o);
    tiny_load_msar(&t);
    struct device_limits limits = {.kv_dtype = o->kv,
                                   .n_pages = TINY_PAGES,
                                   .n_slots = TINY_SLOTS,
                                   .max_rows = TINY_ROWS,
                                   .max_logit_rows = TINY_LOGITS,
                                   .n_snapshots = o->n_snapshots,
                                   .max_proposed = o->block_size ? o->block_size - 1 : 7};
    if (o->positions) limits.n_pages = o->positions / PAGE_TOKENS, limits.max_rows = o->rows;
    t.limits = limits;
    if (k->reserve(t.dev, &limits, &err) != OK) fail_msg("%s", err.msg);
    tiny_poison_msar(&t);
    tiny_poison_pages(&t, 0, limits.n_pages);
    struct rules greedy = {.temperature = 0, .top_p = 1};
    for (uint32_t slot = 0; slot < TINY_SLOTS; slot++)
        k->slot_set(t.dev, slot, &greedy);
    return t;
}

static inline void tiny_close(struct tiny *t) {
    t->k->close(t->dev);
}

/* A sequence: tokens known beforehand, and a block table. */
struct tiny_sequence {
    uint32_t slot, n_tokens;
    int32_t tokens[TINY_POSITIONS];
    uint32_t pages[TINY_POSITIONS / PAGE_TOKENS];
};

/* n random tokens; pages first, first + step, ... (mod TINY_PAGES). */
static inline struct tiny_sequence tiny_sequence(uint32_t slot, uint32_t n, uint64_t seed,
                                                 uint32_t first, uint32_t step) {
    struct tiny_sequence s = {.slot = slot, .n_tokens = n};
    struct rng rng;
    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < n; i++)
        s.tokens[i] = (int32_t)rng_below(&rng, 256);
    for (uint32_t i = 0; i < ARRAY_LEN(s.pages); i++)
        s.pages[i] = (first + i * step) % TINY_PAGES;
    return s;
}

/* Rows pos .. pos + n - 1 of the sequence in a view, the last n_logits with logits. */
static inline struct segment tiny_segment(const struct tiny_sequence *s, enum view view,
                                          uint32_t pos, uint32_t n, uint32_t n_logits) {
    return (struct segment){.slot = s->slot,
                            .view = (uint8_t)view,
                            .pick = PICK_NONE,
                            .pos = pos,
                            .n_rows = n,
                            .n_logits = n_logits,
                            .tokens = s->tokens + pos,
                            .pages = s->pages};
}

/* All stages from begin to lm_head. */
static inline void tiny_forward(struct tiny *t, const struct segment *segments, uint32_t n) {
    struct forward fwd = {n, segments};
    assert_int_equal(forward_run(t->k, t->dev, &t->shape, &fwd), OK);
}

/* Logit rows first .. first + n - 1 of the last forward into out [n][vocab]. */
static inline void tiny_logits(struct tiny *t, uint32_t first, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(
            t->k->read_logits(t->dev, first + i, out + (size_t)i * t->shape.vocab_size), OK);
}

static inline void tiny_end(struct tiny *t) {
    struct outcome out[TINY_SLOTS];
    assert_int_equal(t->k->end(t->dev, out), OK);
}

/* Logits of every position of s, prefilled in chunks: out [n_tokens][vocab]. In an Orthros model
 * the output stream runs at every position. */
static inline void tiny_prefill(struct tiny *t, const struct tiny_sequence *s, uint32_t chunk,
                                float *out) {
    for (uint32_t pos = 0; pos < s->n_tokens; pos += chunk) {
        uint32_t n = s->n_tokens - pos < chunk ? s->n_tokens - pos : chunk;
        struct segment segments[2] = {tiny_segment(s, VIEW_BASE, pos, n, t->shape.orthros ? 0 : n),
                                      tiny_segment(s, VIEW_OUTPUT, pos, n, n)};
        tiny_forward(t, segments, t->shape.orthros ? 2 : 1);
        tiny_logits(t, 0, n, out + (size_t)pos * t->shape.vocab_size);
        tiny_end(t);
    }
}

#endif
