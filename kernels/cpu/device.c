/* device.c: the life of a CPU device, its memory, and what it offers outside of a forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum { MSAR_KERNEL_MAX = 256 };

static int check_shape(const struct model_shape *s, struct err *err) {
    const struct {
        const char *name;
        uint32_t value;
    } positive[] = {
        {"layers", s->n_layers},       {"d_model", s->d_model},        {"heads", s->n_heads},
        {"kv heads", s->n_kv_heads},   {"head_dim", s->head_dim},      {"d_ff", s->d_ff},
        {"vocab_size", s->vocab_size}, {"positions", s->max_position},
    };
    const uint32_t most = 1u << 24; /* keeps every product of two of them far from overflow */
    for (size_t i = 0; i < ARRAY_LEN(positive); i++)
        if (positive[i].value < 1 || positive[i].value > most)
            return err_set(err, ERR_INVALID, "model: %s is %u, expected 1 .. %u", positive[i].name,
                           positive[i].value, most);
    if (s->n_heads % s->n_kv_heads != 0)
        return err_set(err, ERR_INVALID, "model: %u heads are no multiple of %u kv heads",
                       s->n_heads, s->n_kv_heads);
    if (s->head_dim % 2 != 0 || (uint64_t)s->n_heads * s->head_dim > most)
        return err_set(err, ERR_INVALID,
                       "model: head_dim %u of %u heads, expected even and at most %u in all",
                       s->head_dim, s->n_heads, most);
    if (s->block_size > DRAFT_MAX)
        return err_set(err, ERR_INVALID, "model: block_size %u, expected 0 .. %d", s->block_size,
                       DRAFT_MAX);
    if (s->orthros && s->window == 0)
        return err_set(err, ERR_INVALID, "model: window 0, an Orthros model needs one");
    if (s->n_msar_streams > MAX_MSAR_STREAMS)
        return err_set(err, ERR_INVALID, "model: %u MSAR streams, expected 0 .. %d",
                       s->n_msar_streams, MAX_MSAR_STREAMS);
    if (s->n_msar_streams && (s->msar_branches < 1 || s->msar_branches > 2 * s->n_layers))
        return err_set(err, ERR_INVALID, "model: MSAR blocks of %u branches, expected 1 .. %u",
                       s->msar_branches, 2 * s->n_layers);
    if (s->activations != ACTIVATIONS_F32 && s->activations != ACTIVATIONS_INT8)
        return err_set(err, ERR_INVALID, "model: activations %s, the CPU tables have f32 and int8",
                       activations_name(s->activations));
    for (uint32_t r = 0; r < s->n_msar_streams; r++)
        if (s->msar_kernels[r] < 1 || s->msar_kernels[r] > (r ? MSAR_KERNEL_MAX : 1))
            return err_set(err, ERR_INVALID, "model: MSAR kernel %u is %u, expected 1 .. %d", r,
                           s->msar_kernels[r], r ? MSAR_KERNEL_MAX : 1);
    return OK;
}

/* Angles in double; rotate-half pairs (m, m + head_dim / 2). */
static int make_rope(struct device *dev, const struct model_shape *shape) {
    uint32_t half = shape->head_dim / 2;
    size_t n = (size_t)shape->max_position * half;
    dev->cosines = memory_take(&dev->memory, n * sizeof(float));
    dev->sines = memory_take(&dev->memory, n * sizeof(float));
    if (!dev->cosines || !dev->sines) return ERR_NOMEM;
    for (uint32_t t = 0; t < shape->max_position; t++)
        for (uint32_t m = 0; m < half; m++) {
            double angle = t * shape->rope_freq[m];
            dev->cosines[(size_t)t * half + m] = (float)(cos(angle) * shape->rope_scale);
            dev->sines[(size_t)t * half + m] = (float)(sin(angle) * shape->rope_scale);
        }
    return OK;
}

int cpu_open(const struct cpu_ops *ops, const struct model_shape *shape, uint32_t n_threads,
             struct device **out, struct err *err) {
    int rc = check_shape(shape, err);
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

/* K (or V) of one kv head in a page, and the scales that 8-bit KV keeps with it. */
static size_t value_bytes(const struct device *dev, enum dtype kv_dtype) {
    size_t number = kv_dtype == DTYPE_Q8_0 ? sizeof(int8_t) : dtype_row_bytes(kv_dtype, 1);
    return PAGE_TOKENS * dev->head_pad * number;
}

static size_t scale_bytes(enum dtype kv_dtype) {
    return kv_dtype == DTYPE_Q8_0 ? PAGE_TOKENS * sizeof(uint16_t) : 0;
}

size_t cpu_page_bytes(const struct device *dev, enum dtype kv_dtype) {
    return (size_t)dev->shape.n_layers * dev->shape.n_kv_heads * 2 *
           (value_bytes(dev, kv_dtype) + scale_bytes(kv_dtype));
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
    dev->sums = carve(&c, u_rows, dev->ld_sums * f);
    size_t q_rows = dev->shape.activations == ACTIVATIONS_INT8 ? u_rows : 0;
    dev->quantised = carve(&c, q_rows, dev->ld_sums * GROUP);
    dev->scales = carve(&c, q_rows, dev->ld_sums * f);
    dev->qsums = carve(&c, q_rows, dev->ld_sums * sizeof *dev->qsums);
    size_t vocab = dev->shape.vocab_size;
    dev->logits = carve(&c, l->max_logit_rows, vocab * f);
    bool drafts = dev->shape.block_size > 0;
    dev->draft_logits = carve(&c, drafts ? l->max_logit_rows : 0, vocab * f);
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

static int check_limits(const struct device_limits *l, struct err *err) {
    if (l->kv_dtype != DTYPE_F32 && l->kv_dtype != DTYPE_BF16 && l->kv_dtype != DTYPE_Q8_0)
        return err_set(err, ERR_INVALID, "device: kv type %s, expected f32, bf16 or q8_0",
                       l->kv_dtype < DTYPE_COUNT ? dtype_name(l->kv_dtype) : "unknown");
    const struct {
        const char *name;
        uint32_t value;
    } positive[] = {{"pages", l->n_pages},
                    {"slots", l->n_slots},
                    {"rows", l->max_rows},
                    {"logit rows", l->max_logit_rows}};
    for (size_t i = 0; i < ARRAY_LEN(positive); i++)
        if (positive[i].value < 1 || positive[i].value > 1u << 30)
            return err_set(err, ERR_INVALID, "device: %u %s, expected 1 .. %u", positive[i].value,
                           positive[i].name, 1u << 30);
    if (l->max_proposed >= DRAFT_MAX)
        return err_set(err, ERR_INVALID, "device: %u proposals, expected 0 .. %d", l->max_proposed,
                       DRAFT_MAX - 1);
    return OK;
}

int cpu_reserve(struct device *dev, const struct device_limits *limits, struct err *err) {
    ASSERT(!dev->reserved);
    int rc = check_limits(limits, err);
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
    dev->page_bytes = page_bytes;
    dev->layer_bytes = page_bytes / dev->shape.n_layers;
    dev->head_bytes = dev->layer_bytes / dev->shape.n_kv_heads;
    dev->value_bytes = value_bytes(dev, limits->kv_dtype);
    cut_workspace(dev, limits, base);
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
        memset(dev->kv + pages[i] * dev->page_bytes, 0, dev->page_bytes);
    }
}

void cpu_page_copy(struct device *dev, uint32_t from, uint32_t to) {
    ASSERT(from < dev->limits.n_pages);
    ASSERT(to < dev->limits.n_pages);
    ASSERT(from != to);
    memcpy(dev->kv + to * dev->page_bytes, dev->kv + from * dev->page_bytes, dev->page_bytes);
}

int cpu_read_logits(struct device *dev, uint32_t logit_row, float *out) {
    ASSERT(logit_row < dev->n_logit_rows);
    ASSERT(dev->last_logits);
    size_t vocab = dev->shape.vocab_size;
    memcpy(out, dev->last_logits + logit_row * vocab, vocab * sizeof *out);
    return OK;
}
