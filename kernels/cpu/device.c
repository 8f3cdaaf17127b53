/* device.c: the life of a CPU device, its memory, and what it offers outside of a forward. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/shape.h"

static int make_rope(struct device *dev, const struct model_shape *shape) {
    uint32_t half = shape->head_dim / 2;
    size_t n = (size_t)shape->max_position * half;
    dev->cosines = memory_take(&dev->memory, n * sizeof(float));
    dev->sines = memory_take(&dev->memory, n * sizeof(float));
    if (!dev->cosines || !dev->sines) return ERR_NOMEM;
    rope_tables(shape, dev->cosines, dev->sines);
    return OK;
}

int cpu_open(const struct cpu_ops *ops, const struct model_shape *shape, uint32_t n_threads,
             struct device **out, struct err *err) {
    int rc = shape_check(shape, err);
    if (rc != OK) return rc;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) return err_set(err, ERR_NOMEM, "device: no memory for %zu bytes", sizeof *dev);
    dev->ops = ops;
    dev->shape = *shape;
    dev->shape.rope_freq = NULL; /* borrowed during open only */
    dev->group = shape->n_heads / shape->n_kv_heads;
    dev->head_pad = (uint32_t)align_up(shape->head_dim, 16);
    dev->tile_rows = dev->group < QUERY_TILE ? QUERY_TILE / dev->group : 1;
    dev->ld_model = align_up(shape->d_model, GROUP);
    dev->ld_q = align_up((size_t)shape->n_heads * shape->head_dim, GROUP);
    dev->ld_kv = align_up((size_t)shape->n_kv_heads * shape->head_dim, GROUP);
    dev->ld_ff = align_up(shape->d_ff, GROUP);
    size_t widest = dev->ld_q > dev->ld_ff ? dev->ld_q : dev->ld_ff;
    dev->ld_sums = align_up((widest > dev->ld_model ? widest : dev->ld_model) / GROUP, 16);
    dev->scratch_pages = (uint32_t)div_ceil(PAGE_TOKENS - 1 + shape->block_size, PAGE_TOKENS);

    size_t n_weights = (size_t)shape->n_layers * WEIGHT_COUNT;
    dev->weights = memory_take(&dev->memory, n_weights * sizeof *dev->weights);
    if (!dev->weights || make_rope(dev, shape) != OK) {
        cpu_close(dev);
        return err_set(
            err, ERR_NOMEM, "device: no memory for rotations of %u positions (%zu bytes)",
            shape->max_position, (size_t)shape->max_position * shape->head_dim * sizeof(float));
    }
    rc = cpu_msar_open(dev, err);
    if (rc == OK) rc = pool_create(n_threads, &dev->pool, err);
    if (rc != OK) {
        cpu_close(dev);
        return rc;
    }
    *out = dev;
    return OK;
}

void cpu_close(struct device *dev) {
    if (!dev) return;
    pool_destroy(dev->pool);
    memory_free(&dev->memory);
    free(dev);
}

/* ---- memory ----------------------------------------------------------------------------------- */

size_t cpu_page_bytes(const struct device *dev, enum dtype kv_dtype) {
    return (size_t)dev->shape.n_layers * dev->shape.n_kv_heads *
           (2 * kv_value_bytes(kv_dtype, dev->head_pad) + kv_scale_bytes(kv_dtype));
}

/* What split tiles leave for the merge: room for one tile at full length, which is as much as one
 * layer's K and V of one sequence in 16 bits, or for as many smaller ones. A tile that finds none
 * stays whole. */
static void cut_splits(struct device *dev, const struct device_limits *l, struct carve *c) {
    uint32_t n_threads = pool_threads(dev->pool), heads = dev->shape.n_kv_heads;
    bool wanted = dev->ops->attend_splits && n_threads > 1;
    uint32_t n_splits = wanted ? SPLIT_SHARE * n_threads : 0;
    uint32_t rows = dev->tile_rows < l->max_rows ? dev->tile_rows : l->max_rows;
    size_t n_blocks = wanted ? div_ceil(dev->shape.max_position, ATTEND_BLOCK) : 0;
    size_t floats = n_blocks * heads * attend_block_floats(dev, rows);
    dev->splits = carve(c, n_splits, sizeof *dev->splits);
    dev->arrivals = carve(c, (size_t)n_splits * heads, sizeof *dev->arrivals);
    dev->parts = carve(c, floats, sizeof *dev->parts);
    dev->parts_cap = floats;
}

static void cut_ready(const struct device *dev, size_t rows, size_t ldx, struct ready *r,
                      struct carve *c) {
    enum activations activations = dev->shape.activations;
    bool tiles = dev->ops->tiles && activations == ACTIVATIONS_BF16;
    bool int8 = activations == ACTIVATIONS_INT8;
    size_t n_steps = div_ceil(rows, ROW_TILE) * (ldx / GROUP);
    r->sums = carve(c, rows, dev->ld_sums * sizeof *r->sums);
    struct int8_step *steps = carve(c, int8 ? n_steps : 0, sizeof *steps);
    uint16_t *bf16 = carve(c, tiles ? n_steps : 0, ROW_TILE * GROUP * sizeof *bf16);
    r->int8 = int8 ? steps : NULL;
    r->bf16 = tiles ? bf16 : NULL;
}

/* Cut (or, with base NULL, measure) everything a forward needs within the limits. */
static size_t cut_workspace(struct device *dev, const struct device_limits *l, char *base) {
    struct carve c = {.base = base};
    size_t rows = l->max_rows, segments = 2 * (size_t)l->n_slots, f = sizeof(float);
    dev->row_token = carve(&c, rows, sizeof *dev->row_token);
    dev->row_pos = carve(&c, rows, sizeof *dev->row_pos);
    dev->row_segment = carve(&c, rows, sizeof *dev->row_segment);
    dev->row_lo = carve(&c, rows, sizeof *dev->row_lo);
    dev->row_hi = carve(&c, rows, sizeof *dev->row_hi);
    dev->order = carve(&c, rows, sizeof *dev->order);
    dev->tiles = carve(&c, rows, sizeof *dev->tiles);
    cut_splits(dev, l, &c);
    dev->logit_row = carve(&c, l->max_logit_rows, sizeof *dev->logit_row);
    dev->segment_row = carve(&c, segments, sizeof *dev->segment_row);
    dev->segment_logit = carve(&c, segments, sizeof *dev->segment_logit);
    dev->segment_scratch = carve(&c, segments, sizeof *dev->segment_scratch);
    for (int view = 0; view < 3; view++)
        dev->slot_segment[view] = carve(&c, l->n_slots, sizeof(int32_t));
    dev->slots = carve(&c, l->n_slots, sizeof *dev->slots);
    dev->outcomes = carve(&c, l->n_slots, sizeof *dev->outcomes);

    size_t u_rows = rows > l->max_logit_rows ? rows : l->max_logit_rows;
    dev->x = carve(&c, rows, dev->ld_model * f);
    dev->u = carve(&c, u_rows, dev->ld_model * f);
    dev->q = carve(&c, rows, dev->ld_q * f);
    dev->k = carve(&c, rows, dev->ld_kv * f);
    dev->v = carve(&c, rows, dev->ld_kv * f);
    dev->o = carve(&c, rows, dev->ld_q * f);
    dev->gate = carve(&c, rows, dev->ld_ff * f);
    cut_ready(dev, u_rows, dev->ld_model > dev->ld_q ? dev->ld_model : dev->ld_q, &dev->ready, &c);
    cut_ready(dev, rows, dev->ld_ff, &dev->ready_ff, &c);
    size_t vocab = dev->shape.vocab_size;
    dev->logits = carve(&c, l->max_logit_rows, vocab * f);
    bool drafts = dev->shape.block_size > 0;
    dev->draft_logits = carve(&c, drafts ? l->max_logit_rows : 0, vocab * f);
    dev->maxima.n_groups = (uint32_t)div_ceil(vocab, GROUP);
    dev->maxima.most = carve(&c, l->max_logit_rows, dev->maxima.n_groups * f);
    dev->maxima.at = carve(&c, l->max_logit_rows, dev->maxima.n_groups);
    dev->kv_scratch = carve(&c, drafts ? (size_t)l->n_slots * dev->scratch_pages : 0,
                            cpu_page_bytes(dev, l->kv_dtype) / dev->shape.n_layers);

    cpu_msar_cut(dev, l, &c);

    uint32_t n_threads = pool_threads(dev->pool);
    dev->thread_scratch = carve(&c, n_threads, sizeof *dev->thread_scratch);
    dev->thread_sample = carve(&c, n_threads, sizeof *dev->thread_sample);
    for (uint32_t t = 0; t < n_threads; t++) {
        void *attend = carve(&c, 1, dev->ops->attend_scratch(dev));
        struct sample_scratch sample = {.vocab = dev->shape.vocab_size};
        sample.probs = carve(&c, vocab, sizeof *sample.probs);
        sample.draft = carve(&c, vocab, sizeof *sample.draft);
        sample.ids = carve(&c, vocab, sizeof *sample.ids);
        sample.counts = carve(&c, vocab, sizeof *sample.counts); /* zeroed, as all of memory.c */
        sample.counted = carve(&c, vocab, sizeof *sample.counted);
        if (!base) continue;
        dev->thread_scratch[t] = attend;
        dev->thread_sample[t] = sample;
    }
    return c.used;
}

size_t cpu_workspace_bytes(const struct device *dev, const struct device_limits *limits) {
    struct device copy = *dev; /* measuring writes the fields it would cut */
    return cut_workspace(&copy, limits, NULL);
}

int cpu_reserve(struct device *dev, const struct device_limits *limits, struct err *err) {
    ASSERT(!dev->reserved);
    int rc = limits_check(limits, err);
    if (rc == OK) rc = cpu_check_weights(dev, err);
    if (rc != OK) return rc;
    size_t page_bytes = cpu_page_bytes(dev, limits->kv_dtype), kv_bytes = SIZE_MAX;
    bool fits = mul_size(page_bytes, limits->n_pages, &kv_bytes) == OK;
    char *kv = fits ? memory_take(&dev->memory, kv_bytes) : NULL;
    if (!kv)
        return err_set(err, ERR_NOMEM,
                       "device: no memory for %u KV pages of %zu bytes (%zu in all)",
                       limits->n_pages, page_bytes, kv_bytes);
    size_t bytes = cpu_workspace_bytes(dev, limits);
    char *base = bytes == SIZE_MAX ? NULL : memory_take(&dev->memory, bytes);
    if (!base)
        return err_set(err, ERR_NOMEM, "device: no memory for the workspace (%zu bytes)", bytes);
    dev->limits = *limits;
    dev->kv = kv;
    dev->layer_bytes = page_bytes / dev->shape.n_layers;
    dev->head_bytes = dev->layer_bytes / dev->shape.n_kv_heads;
    dev->value_bytes = kv_value_bytes(limits->kv_dtype, dev->head_pad);
    cut_workspace(dev, limits, base);
    if (dev->shape.pin_threads) pool_pin(dev->pool); /* not before loading: pool.h */
    dev->reserved = true;
    return OK;
}

/* ---- between forwards ------------------------------------------------------------------------- */

void cpu_slot_set(struct device *dev, uint32_t slot, const struct rules *rules) {
    ASSERT(slot < dev->limits.n_slots);
    ASSERT(rules->n_end_ids <= MAX_END_IDS);
    for (uint32_t i = 0; i < rules->n_bias; i++) {
        ASSERT(rules->bias[i].id >= 0);
        ASSERT((uint32_t)rules->bias[i].id < dev->shape.vocab_size);
    }
    dev->slots[slot] = (struct slot){.rules = *rules};
    cpu_msar_forget(dev, slot);
}

void cpu_pages_clear(struct device *dev, const uint32_t *pages, uint32_t n_pages) {
    for (uint32_t i = 0; i < n_pages; i++) {
        ASSERT(pages[i] < dev->limits.n_pages);
        for (uint32_t l = 0; l < dev->shape.n_layers; l++)
            memset(cpu_cached_page(dev, pages[i], l), 0, dev->layer_bytes);
    }
}

void cpu_page_copy(struct device *dev, uint32_t from, uint32_t to) {
    ASSERT(from < dev->limits.n_pages);
    ASSERT(to < dev->limits.n_pages);
    ASSERT(from != to);
    for (uint32_t l = 0; l < dev->shape.n_layers; l++)
        memcpy(cpu_cached_page(dev, to, l), cpu_cached_page(dev, from, l), dev->layer_bytes);
}

void cpu_work_ns(const struct device *dev, uint64_t ns[WORK_KINDS]) {
    memcpy(ns, dev->work_ns, sizeof dev->work_ns);
}

int cpu_read_logits(struct device *dev, uint32_t logit_row, float *out) {
    ASSERT(logit_row < dev->n_logit_rows);
    ASSERT(dev->last_logits);
    size_t vocab = dev->shape.vocab_size;
    memcpy(out, dev->last_logits + logit_row * vocab, vocab * sizeof *out);
    return OK;
}
