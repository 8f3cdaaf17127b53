/* kernels_device.c: one-matrix models of random weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/weights.h"
#include "tests/bench/kernels.h"

static uint32_t next_random(uint32_t *state) { /* xorshift32 */
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* Types that nothing here can write: random bits are their quants, every f16 field is small. The
 * places of these are those of kernels.h: at the start, and in q6_k at the end, of a block. */
static void random_blocks(enum dtype dtype, size_t bytes, uint32_t *state, char *out) {
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)next_random(state);
    uint32_t block = dtype_block(dtype);
    size_t size = dtype_row_bytes(dtype, block);
    uint16_t scale = f32_to_f16(block > 32 ? 1e-4f : 1e-3f);
    for (size_t at = 0; at < bytes; at += size) {
        char *d = out + at + (dtype == DTYPE_Q6_K ? size - sizeof scale : 0);
        memcpy(d, &scale, sizeof scale);
        if (dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K || dtype == DTYPE_Q5_1)
            memcpy(d + sizeof scale, &scale, sizeof scale);
    }
}

/* Uniform in +-sqrt(3 / cols); vectors are 1. malloc'd, or NULL. */
static void *random_tensor(const struct tensor *shape, uint32_t seed) {
    size_t n = (size_t)shape->rows * shape->cols, bytes = dtype_row_bytes(shape->dtype, n);
    uint32_t state = seed * 2654435761u + 1;
    char *data = malloc(bytes);
    if (!data) return NULL;
    if (!dtype_narrows(shape->dtype)) {
        random_blocks(shape->dtype, bytes, &state, data);
        return data;
    }
    float *row = malloc(shape->cols * sizeof *row);
    float spread = sqrtf(3.0f / (float)shape->cols) / 2147483648.0f;
    for (uint32_t r = 0; row && r < shape->rows; r++) {
        for (uint32_t i = 0; i < shape->cols; i++)
            row[i] = shape->rows == 1 ? 1 : (float)(int32_t)next_random(&state) * spread;
        dtype_from_f32(shape->dtype, row, shape->cols,
                       data + r * dtype_row_bytes(shape->dtype, shape->cols));
    }
    if (!row) {
        free(data);
        data = NULL;
    }
    free(row);
    return data;
}

static enum dtype dtype_of(enum weight which, uint32_t cols, enum dtype timed) {
    if (weight_is_vector(which)) return DTYPE_F32;
    if (which == WEIGHT_O) return timed;
    bool may =
        which == WEIGHT_EMBED || which == WEIGHT_GATE || which == WEIGHT_UP || which == WEIGHT_DOWN;
    if (may && cols % dtype_block(timed) == 0) return timed;
    return cols % dtype_block(DTYPE_Q8_0) == 0 ? DTYPE_Q8_0 : DTYPE_BF16;
}

/* All layers have the same numbers, each its own copy of them. */
static int load_weight(struct bench_device *d, enum weight which, enum dtype timed,
                       struct err *err) {
    struct tensor t;
    weight_size(&d->shape, which, 0, &t.rows, &t.cols);
    t.dtype = dtype_of(which, t.cols, timed);
    if (t.cols % dtype_block(t.dtype) != 0)
        return err_set(err, ERR_INVALID, "rows of %u, %s needs a multiple of %u", t.cols,
                       dtype_name(t.dtype), dtype_block(t.dtype));
    void *data = random_tensor(&t, which + 1);
    if (!data) return err_set(err, ERR_NOMEM, "no memory for a matrix");
    t.data = data;
    int rc = OK;
    for (uint32_t i = 0; rc == OK && i < weight_count(&d->shape, which); i++)
        rc = d->table->load(d->dev, which, i, &t, err);
    free(data);
    return rc;
}

/* ---- life ------------------------------------------------------------------------------------- */

static int make_arrays(struct bench_device *d) {
    uint32_t half = d->shape.head_dim / 2;
    d->rope_freq = calloc(half, sizeof *d->rope_freq);
    d->pages = calloc(d->limits.n_pages, sizeof *d->pages);
    d->tokens = calloc(d->shape.max_position, sizeof *d->tokens);
    if (!d->rope_freq || !d->pages || !d->tokens) return ERR_NOMEM;
    for (uint32_t i = 0; i < half; i++)
        d->rope_freq[i] = pow(1e4, -(double)i / half);
    for (uint32_t i = 0; i < d->limits.n_pages; i++)
        d->pages[i] = i;
    for (uint32_t i = 0; i < d->shape.max_position; i++)
        d->tokens[i] = (int32_t)(i % d->shape.vocab_size);
    d->shape.rope_freq = d->rope_freq;
    return OK;
}

int bench_device_open(const struct kernels *table, const struct model_shape *shape,
                      const struct device_limits *limits, enum dtype dtype, uint32_t n_threads,
                      struct bench_device *out, struct err *err) {
    *out = (struct bench_device){.table = table, .shape = *shape, .limits = *limits};
    int rc = make_arrays(out);
    if (rc) err_set(err, rc, "no memory for a device's arrays");
    if (!rc) rc = table->open(&out->shape, n_threads, &out->dev, err);
    for (int w = 0; rc == OK && w < WEIGHT_COUNT; w++)
        if (weight_is_needed(&out->shape, (enum weight)w))
            rc = load_weight(out, (enum weight)w, dtype, err);
    if (rc == OK) rc = table->reserve(out->dev, limits, err);
    if (rc != OK) bench_device_close(out);
    return rc;
}

void bench_device_close(struct bench_device *d) {
    d->table->close(d->dev);
    free(d->rope_freq);
    free(d->pages);
    free(d->tokens);
    *d = (struct bench_device){.table = d->table};
}

/* ---- forwards --------------------------------------------------------------------------------- */

void bench_device_begin(struct bench_device *d, uint32_t n_slots, uint32_t pos, uint32_t n_rows,
                        uint32_t n_logits, enum pick pick) {
    const struct kernels *k = d->table;
    uint32_t pages_each = (uint32_t)div_ceil(pos + n_rows, PAGE_TOKENS);
    ASSERT(n_slots <= LIST_MAX);
    ASSERT(n_slots * pages_each <= d->limits.n_pages);
    for (uint32_t i = 0; i < n_slots; i++)
        d->segments[i] = (struct segment){.slot = i,
                                          .view = VIEW_BASE,
                                          .pick = (uint8_t)pick,
                                          .pos = pos,
                                          .n_rows = n_rows,
                                          .n_logits = n_logits,
                                          .prompt_len = pos + n_rows,
                                          .tokens = d->tokens + pos,
                                          .history = d->tokens,
                                          .pages = d->pages + i * pages_each};
    struct forward fwd = {.n_segments = n_slots, .segments = d->segments};
    k->begin(d->dev, &fwd);
    k->embed(d->dev);
    for (uint32_t layer = d->shape.n_layers; layer-- > 0;)
        k->qkv(d->dev, layer);
    k->attend(d->dev, 0);
}

void bench_device_end(struct bench_device *d) {
    struct outcome outcomes[LIST_MAX];
    d->table->end(d->dev, outcomes);
}
