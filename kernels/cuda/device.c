/* device.c: the life of a CUDA device, its memory, and what it offers outside of a forward. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/products.h"
#include "kernels/cuda/runtime.h"
#include "kernels/shape.h"
#include "kernels/weights.h"

enum {
    HEAD_DIM_MAX = 256,
    MARGIN_BYTES = 256 << 20,        /* that graphs and the driver may still take */
    BLAS_WORKSPACE_BYTES = 32 << 20, /* what cuBLAS recommends for the largest devices */
};

/* ---- life ------------------------------------------------------------------------------------- */

static int check_shape(const struct model_shape *s, struct err *err) {
    int rc = shape_check(s, err);
    if (rc != OK) return rc;
    if (s->activations != ACTIVATIONS_F32 && s->activations != ACTIVATIONS_BF16)
        return err_set(err, ERR_INVALID, "model: activations %s, the cuda table has f32 and bf16",
                       activations_name(s->activations));
    if (s->head_dim > HEAD_DIM_MAX)
        return err_set(err, ERR_INVALID, "model: head_dim %u, the cuda table takes at most %d",
                       s->head_dim, HEAD_DIM_MAX);
    if (s->n_heads / s->n_kv_heads > QUERY_TILE)
        return err_set(
            err, ERR_INVALID,
            "model: %u heads of %u kv heads, the cuda table takes at most %d heads for one",
            s->n_heads, s->n_kv_heads, QUERY_TILE);
    return OK;
}

static void derive(struct device *dev, const struct model_shape *shape) {
    uint32_t q = shape->n_heads * shape->head_dim, kv = shape->n_kv_heads * shape->head_dim;
    dev->shape = *shape;
    dev->shape.rope_freq = NULL; /* borrowed during open only */
    dev->act = shape->activations == ACTIVATIONS_BF16 ? DTYPE_BF16 : DTYPE_F32;
    dev->group = shape->n_heads / shape->n_kv_heads;
    dev->head_pad = (uint32_t)align_up(shape->head_dim, 16);
    dev->tile_rows = QUERY_TILE / dev->group;
    dev->ld_model = (uint32_t)align_up(shape->d_model, GPU_GROUP);
    dev->ld_q = (uint32_t)align_up(q, GPU_GROUP);
    dev->ld_ff = (uint32_t)align_up(shape->d_ff, GPU_GROUP);
    dev->k_at = (uint32_t)align_up(q, WEIGHT_ROWS);
    dev->v_at = dev->k_at + (uint32_t)align_up(kv, WEIGHT_ROWS);
    dev->ld_qkv = (uint32_t)align_up(dev->v_at + align_up(kv, WEIGHT_ROWS), GPU_GROUP);
    dev->scratch_pages = (uint32_t)div_ceil(PAGE_TOKENS - 1 + shape->block_size, PAGE_TOKENS);
    dev->msar.n_pushes = shape->n_msar_streams ? 2 * shape->n_layers : 0;
    if (!shape->n_msar_streams) return;
    dev->msar.n_sources = msar_source(shape, dev->msar.n_pushes) + 1;
    dev->msar.history = msar_history(shape);
}

static int find_hardware(struct device *dev, struct err *err) {
    struct cudaDeviceProp prop;
    int rc = gpu_check_err(dev, cudaGetDeviceProperties(&prop, 0), "the device's properties", err);
    if (rc != OK) return rc;
    dev->n_sms = (uint32_t)prop.multiProcessorCount;
    dev->sm = 10 * prop.major + prop.minor;
    return OK;
}

/* Host arrays of what will be device pointers. */
static int make_arrays(struct device *dev, struct err *err) {
    dev->layers = calloc(dev->shape.n_layers, sizeof *dev->layers);
    bool made = dev->layers != NULL;
    for (uint32_t kind = 0; kind < ARRAY_LEN(dev->msar.weights) && made; kind++) {
        uint32_t n = weight_count(&dev->shape, (enum weight)(WEIGHT_MSAR_CONV + kind));
        dev->msar.n_weights[kind] = n;
        if (n == 0) continue;
        dev->msar.weights[kind] = calloc(n, sizeof *dev->msar.weights[kind]);
        made = dev->msar.weights[kind] != NULL;
    }
    return made ? OK
                : err_set(err, ERR_NOMEM, "device: no memory for %u layers", dev->shape.n_layers);
}

static int send(struct device *dev, float *to, const float *from, size_t n, struct err *err) {
    size_t most = dev->runtime->staging_bytes / sizeof *from;
    for (size_t at = 0, now; at < n; at += now) {
        now = n - at < most ? n - at : most;
        char *staging = gpu_staging(dev, err);
        if (!staging) return ERR_DEVICE;
        memcpy(staging, from + at, now * sizeof *from);
        cudaError_t error = cudaMemcpyAsync(to + at, staging, now * sizeof *from,
                                            cudaMemcpyHostToDevice, dev->runtime->cu_stream);
        int rc = gpu_check_err(dev, error, "copying rotations", err);
        if (rc == OK) rc = gpu_staged(dev, err);
        if (rc != OK) return rc;
    }
    return OK;
}

static int make_rope(struct device *dev, const struct model_shape *shape, struct err *err) {
    size_t n = (size_t)shape->max_position * (shape->head_dim / 2);
    float *tables = malloc(2 * n * sizeof *tables);
    if (!tables)
        return err_set(err, ERR_NOMEM,
                       "device: no memory for rotations of %u positions (%zu bytes)",
                       shape->max_position, 2 * n * sizeof *tables);
    rope_tables(shape, tables, tables + n);
    dev->cosines = gpu_weight_memory(dev, n * sizeof *tables, err);
    if (dev->cosines) dev->sines = gpu_weight_memory(dev, n * sizeof *tables, err);
    int rc = dev->sines ? OK : err->code;
    if (rc == OK) rc = send(dev, dev->cosines, tables, n, err);
    if (rc == OK) rc = send(dev, dev->sines, tables + n, n, err);
    free(tables);
    return rc;
}

int gpu_open(const struct model_shape *shape, uint32_t n_threads, struct device **out,
             struct err *err) {
    struct err unread;
    if (!err) err = &unread;
    int rc = check_shape(shape, err);
    if (rc != OK) return rc;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) return err_set(err, ERR_NOMEM, "device: no memory for %zu bytes", sizeof *dev);
    derive(dev, shape);
    rc = gpu_open_runtime(dev, n_threads, err);
    if (rc == OK) rc = find_hardware(dev, err);
    if (rc == OK) rc = make_arrays(dev, err);
    if (rc == OK) rc = make_rope(dev, shape, err);
    if (rc != OK) {
        gpu_close(dev);
        return rc;
    }
    *out = dev;
    return OK;
}

void gpu_close(struct device *dev) {
    if (!dev) return;
    gpu_close_runtime(dev);
    for (uint32_t kind = 0; kind < ARRAY_LEN(dev->msar.weights); kind++)
        free(dev->msar.weights[kind]);
    free(dev->layers);
    free(dev);
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* A margin stays for the driver, but no more than a part of a small device. */
uint64_t gpu_memory_left(const struct device *dev) {
    (void)dev;
    size_t left = 0, total = 0;
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    size_t margin = total / 32 < MARGIN_BYTES ? total / 32 : MARGIN_BYTES;
    return left > margin ? left - margin : 0;
}

size_t gpu_page_bytes(const struct device *dev, enum dtype kv_dtype) {
    return (size_t)dev->shape.n_layers * dev->shape.n_kv_heads *
           (2 * kv_value_bytes(kv_dtype, dev->head_pad) + kv_scale_bytes(kv_dtype));
}

/* Cutting a block that is first measured (base NULL). `used` stays at SIZE_MAX when sizes overflow. */
struct cut {
    char *base;
    size_t used;
};

static void *cut(struct cut *c, size_t n, size_t size) {
    size_t bytes;
    if (c->used > SIZE_MAX / 4 || mul_size(n, size, &bytes) != OK || bytes > SIZE_MAX / 4) {
        c->used = SIZE_MAX;
        return NULL;
    }
    void *p = c->base ? c->base + c->used : NULL;
    c->used += align_up(bytes, GPU_ALIGN);
    return p;
}

static void cut_batch(struct device *dev, struct cut *c) {
    const struct device_limits *l = &dev->limits;
    struct batch *b = &dev->batch;
    b->counts = cut(c, 1, sizeof *b->counts);
    b->rows = cut(c, l->max_rows, sizeof *b->rows);
    b->segments = cut(c, 2 * (size_t)l->n_slots, sizeof *b->segments);
    b->order = cut(c, l->max_rows, sizeof *b->order);
    b->tiles = cut(c, l->max_rows, sizeof *b->tiles);
    b->items = cut(c, dev->max_items, sizeof *b->items);
    b->merges = cut(c, l->max_rows, sizeof *b->merges);
    b->logit_rows = cut(c, l->max_logit_rows, sizeof *b->logit_rows);
    b->logit_segments = cut(c, l->max_logit_rows, sizeof *b->logit_segments);
    b->pages = cut(c, dev->max_pages, sizeof *b->pages);
    b->tokens = cut(c, dev->max_tokens, sizeof *b->tokens);
}

static void cut_msar(struct device *dev, struct cut *c) {
    const struct device_limits *l = &dev->limits;
    struct gpu_msar *m = &dev->msar;
    size_t streams = dev->shape.n_msar_streams, f = sizeof(float);
    if (streams == 0) return;
    m->ring_len = msar_ring_len(&dev->shape, l->max_proposed);
    size_t n_views = streams * m->n_sources, position = m->n_pushes * (size_t)dev->ld_model * f;
    m->views = cut(c, n_views * l->max_rows, dev->ld_model * f);
    m->inverse = cut(c, n_views * l->max_rows, f);
    m->z = cut(c, streams * l->max_rows, dev->ld_model * f);
    m->gates = cut(c, streams * l->max_rows, (streams + 1) * f);
    m->rings = cut(c, (size_t)l->n_slots * m->ring_len, position);
    m->snapshots = cut(c, (size_t)l->n_snapshots * m->history, position);
}

/* Cut (or, with base NULL, measure) everything a forward needs within dev->limits. */
static size_t cut_workspace(struct device *dev, char *base, void **blas) {
    const struct device_limits *l = &dev->limits;
    struct cut c = {.base = base};
    size_t act = dtype_row_bytes(dev->act, 1), f = sizeof(float), vocab = dev->shape.vocab_size;
    size_t rows = l->max_rows, u_rows = rows > l->max_logit_rows ? rows : l->max_logit_rows;
    bool drafts = dev->shape.block_size > 0;
    bool library = dev->act == DTYPE_BF16 && !dev->shape.deterministic && rows > PRODUCTS_OWN_ROWS;
    plan_bounds(dev);
    cut_batch(dev, &c);
    struct inbox *inbox = cut(&c, 1, plan_inbox_bytes(dev));
    dev->x = cut(&c, rows, dev->ld_model * f);
    dev->u = cut(&c, u_rows, dev->ld_model * act);
    dev->qkv = cut(&c, rows, dev->ld_qkv * f);
    dev->q = cut(&c, rows, dev->ld_q * act);
    dev->o = cut(&c, rows, dev->ld_q * act);
    dev->gate = cut(&c, rows, dev->ld_ff * act);
    size_t wide = 2 * align_up(dev->shape.d_ff, 8) * f; /* a row of the product with gate_up */
    dev->wide = library ? cut(&c, PRODUCTS_WIDE_ROWS, wide) : NULL;
    *blas = library ? cut(&c, 1, BLAS_WORKSPACE_BYTES) : NULL;
    dev->logits = cut(&c, l->max_logit_rows, vocab * f);
    dev->draft_logits = cut(&c, drafts ? l->max_logit_rows : 0, vocab * f);
    dev->kv_scratch = cut(&c, drafts ? (size_t)l->n_slots * dev->scratch_pages : 0,
                          gpu_page_bytes(dev, l->kv_dtype) / dev->shape.n_layers);
    dev->parts = cut(&c, dev->max_part_rows, dev->shape.n_kv_heads * (size_t)dev->head_pad * f);
    dev->part_stats = cut(&c, dev->max_part_rows, dev->shape.n_kv_heads * 2 * f);
    dev->slots = cut(&c, l->n_slots, sizeof *dev->slots);
    dev->outcomes = cut(&c, l->n_slots, sizeof *dev->outcomes);
    dev->scores = cut(&c, 2 * SAMPLE_BLOCKS, vocab * f);
    dev->seen = cut(&c, l->n_slots, vocab * sizeof *dev->seen);
    dev->draws = cut(&c, l->max_logit_rows, gpu_draw_bytes());
    cut_msar(dev, &c);
    if (base) dev->runtime->inbox = inbox;
    return c.used;
}

size_t gpu_workspace_bytes(const struct device *dev, const struct device_limits *limits) {
    struct device copy = *dev; /* measuring writes the fields it would cut */
    void *blas;
    copy.limits = *limits;
    return cut_workspace(&copy, NULL, &blas);
}

static int take_memory(struct device *dev, size_t bytes, const char *what, void **out,
                       struct err *err) {
    struct runtime *rt = dev->runtime;
    cudaError_t error = bytes < SIZE_MAX / 4 ? cudaMalloc(out, bytes) : cudaErrorMemoryAllocation;
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return err_set(err, ERR_NOMEM, "device: no memory for %s (%zu bytes)", what, bytes);
    }
    if (!error) error = cudaMemsetAsync(*out, 0, bytes, rt->cu_stream);
    return gpu_check_err(dev, error, what, err);
}

/* Pinned memory, and what the host keeps of rows and slots. */
static int reserve_host(struct device *dev, struct err *err) {
    struct runtime *rt = dev->runtime;
    const struct device_limits *l = &dev->limits;
    int rc = OK;
    for (int i = 0; i < 2 && rc == OK; i++)
        rc = gpu_pinned_alloc(dev, &rt->inboxes[i], plan_inbox_bytes(dev), err);
    const struct {
        void *field;
        size_t bytes;
    } arrays[] = {{&rt->slots, l->n_slots * sizeof *rt->slots},
                  {&rt->outcomes, l->n_slots * sizeof *rt->outcomes},
                  {&rt->logits, dev->shape.vocab_size * sizeof *rt->logits}};
    for (size_t i = 0; i < ARRAY_LEN(arrays) && rc == OK; i++) {
        void *p = NULL;
        rc = gpu_check_err(dev, cudaMallocHost(&p, arrays[i].bytes), "pinned memory", err);
        memcpy(arrays[i].field, &p, sizeof p);
    }
    if (rc != OK) return rc;
    /* unpack, embed, (push, read, qkv, attend, out, push, read, mlp) a layer, readout, head, draw */
    rt->stages_cap = 8 * dev->shape.n_layers + 8;
    rt->stages = calloc(rt->stages_cap, sizeof *rt->stages);
    rt->slot_waits = calloc(l->n_slots, sizeof *rt->slot_waits);
    if (!rt->stages || !rt->slot_waits || plan_init(&rt->plan, dev) != OK)
        return err_set(err, ERR_NOMEM, "device: no memory for the plan of %u rows", l->max_rows);
    return OK;
}

static int reserve_all(struct device *dev, struct err *err) {
    struct runtime *rt = dev->runtime;
    const struct device_limits *l = &dev->limits;
    size_t kv_bytes = SIZE_MAX;
    dev->page_bytes = gpu_page_bytes(dev, l->kv_dtype);
    dev->layer_bytes = dev->page_bytes / dev->shape.n_layers;
    dev->head_bytes = dev->layer_bytes / dev->shape.n_kv_heads;
    dev->value_bytes = kv_value_bytes(l->kv_dtype, dev->head_pad);
    void *kv = NULL, *workspace = NULL, *blas;
    if (mul_size(dev->page_bytes, l->n_pages, &kv_bytes) != OK) kv_bytes = SIZE_MAX;
    int rc = take_memory(dev, kv_bytes, "KV pages", &kv, err);
    dev->kv = kv;
    size_t bytes = gpu_workspace_bytes(dev, l);
    if (rc == OK) rc = take_memory(dev, bytes, "the workspace", &workspace, err);
    rt->workspace = workspace;
    if (rc != OK) return rc;
    cut_workspace(dev, workspace, &blas);
    if (blas && cublasSetWorkspace(rt->blas, blas, BLAS_WORKSPACE_BYTES) != CUBLAS_STATUS_SUCCESS)
        return err_set(err, ERR_DEVICE, "cuda: cuBLAS takes no workspace");
    if (!gpu_attend_fits(dev))
        return err_set(err, ERR_INVALID,
                       "model: head_dim %u needs more shared memory than there is",
                       dev->shape.head_dim);
    rc = reserve_host(dev, err);
    return rc == OK ? gpu_check_err(dev, cudaStreamSynchronize(rt->cu_stream), "loading", err) : rc;
}

/* What a refused reserve took is given back, so that another one may ask for less. */
static void give_back(struct device *dev) {
    struct runtime *rt = dev->runtime;
    void *pinned[] = {rt->slots, rt->outcomes, rt->logits};
    cudaStreamSynchronize(rt->cu_stream);
    for (size_t i = 0; i < ARRAY_LEN(pinned); i++)
        if (pinned[i]) cudaFreeHost(pinned[i]);
    for (int i = 0; i < 2; i++)
        gpu_pinned_free(&rt->inboxes[i]);
    cudaFree(rt->workspace);
    cudaFree(dev->kv);
    plan_fini(&rt->plan);
    free(rt->stages);
    free(rt->slot_waits);
    rt->slots = NULL, rt->outcomes = NULL, rt->logits = NULL, rt->stages = NULL;
    rt->slot_waits = NULL, rt->workspace = NULL, dev->kv = NULL;
}

int gpu_reserve(struct device *dev, const struct device_limits *limits, struct err *err) {
    struct runtime *rt = dev->runtime;
    struct err unread;
    ASSERT(!rt->reserved);
    if (!err) err = &unread;
    int rc = limits_check(limits, err);
    if (rc == OK) rc = gpu_check_weights(dev, err);
    if (rc != OK) return rc;
    if (dev->shape.tied_head) dev->lm_head = dev->embed;
    dev->limits = *limits;
    rc = reserve_all(dev, err);
    if (rc != OK) {
        give_back(dev);
        return rc;
    }
    gpu_close_loading(dev);
    rt->reserved = true;
    return OK;
}

/* ---- between forwards ------------------------------------------------------------------------- */

/* The slot's pinned copy may still be on its way if nothing was waited for since. */
void gpu_slot_set(struct device *dev, uint32_t slot, const struct rules *rules) {
    struct runtime *rt = dev->runtime;
    ASSERT(slot < dev->limits.n_slots);
    ASSERT(rules->n_end_ids <= MAX_END_IDS);
    ASSERT(rules->n_bias <= MAX_BIAS);
    for (uint32_t i = 0; i < rules->n_bias; i++) {
        ASSERT(rules->bias[i].id >= 0);
        ASSERT((uint32_t)rules->bias[i].id < dev->shape.vocab_size);
    }
    struct plan_slot *known = &rt->plan.slots[slot];
    *known = (struct plan_slot){.counts_text = (rules->repetition > 0 && rules->repetition != 1) ||
                                               rules->frequency != 0 || rules->presence != 0};
    if (gpu_flush(dev) != OK) return;
    if (rt->slot_waits[slot] == rt->counts.waits + 1 && gpu_wait(dev) != OK) return;
    rt->slot_waits[slot] = rt->counts.waits + 1;
    struct gpu_slot *s = &rt->slots[slot];
    s->repetition = rules->repetition;
    s->frequency = rules->frequency;
    s->presence = rules->presence;
    s->temperature = rules->temperature;
    s->top_p = rules->top_p;
    s->min_p = rules->min_p;
    s->top_k = rules->top_k;
    s->seeded = rules->seeded;
    s->choice = rules->choice;
    s->min_tokens = rules->min_tokens;
    s->n_end_ids = rules->n_end_ids;
    s->n_bias = rules->n_bias;
    s->seed = rules->seed;
    memcpy(s->end_ids, rules->end_ids, sizeof s->end_ids);
    if (rules->n_bias) memcpy(s->bias, rules->bias, rules->n_bias * sizeof *s->bias);
    size_t bytes = offsetof(struct gpu_slot, bias) + rules->n_bias * sizeof *s->bias;
    gpu_check(dev,
              cudaMemcpyAsync(dev->slots + slot, s, bytes, cudaMemcpyHostToDevice, rt->cu_stream),
              "sampling rules");
}

/* Pages that follow each other, as fresh ones often do, in one go. */
void gpu_pages_clear(struct device *dev, const uint32_t *pages, uint32_t n_pages) {
    if (gpu_flush(dev) != OK) return;
    for (uint32_t i = 0, n; i < n_pages; i += n) {
        ASSERT(pages[i] < dev->limits.n_pages);
        for (n = 1; i + n < n_pages && pages[i + n] == pages[i] + n; n++)
            ASSERT(pages[i + n] < dev->limits.n_pages);
        gpu_check(dev,
                  cudaMemsetAsync(dev->kv + pages[i] * dev->page_bytes, 0, n * dev->page_bytes,
                                  dev->runtime->cu_stream),
                  "clearing pages");
    }
}

void gpu_copy_page(struct device *dev, uint32_t from, uint32_t to) {
    ASSERT(from < dev->limits.n_pages);
    ASSERT(to < dev->limits.n_pages);
    ASSERT(from != to);
    if (gpu_flush(dev) != OK) return;
    gpu_check(dev, gpu_page_copy(dev, from, to, dev->runtime->cu_stream), "copying a page");
}

/* ---- MSAR state ------------------------------------------------------------------------------- */

size_t gpu_snapshot_bytes(const struct device *dev) {
    return (size_t)dev->msar.history * dev->msar.n_pushes * dev->ld_model * sizeof(float);
}

/* Positions before `pos` that a row there looks at. */
static uint32_t reach(const struct device *dev, uint32_t pos) {
    return pos < dev->msar.history ? pos : dev->msar.history;
}

void gpu_state_save(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    if (dev->msar.ring_len == 0) return;
    ASSERT(slot < dev->limits.n_slots);
    ASSERT(snapshot < dev->limits.n_snapshots);
    uint32_t n = reach(dev, pos);
    const struct plan_slot *known = &dev->runtime->plan.slots[slot];
    ASSERT(known->ring_lo <= pos - n);
    ASSERT(pos <= known->ring_hi);
    if (n == 0 || gpu_flush(dev) != OK) return;
    gpu_check(dev, gpu_msar_save(dev, slot, pos, n, snapshot, false, dev->runtime->cu_stream),
              "saving a sequence's state");
}

void gpu_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    if (dev->msar.ring_len == 0) return;
    ASSERT(slot < dev->limits.n_slots);
    ASSERT(snapshot < dev->limits.n_snapshots);
    uint32_t n = reach(dev, pos);
    struct plan_slot *known = &dev->runtime->plan.slots[slot];
    known->ring_lo = pos - n;
    known->ring_hi = pos;
    if (n == 0 || gpu_flush(dev) != OK) return;
    gpu_check(dev, gpu_msar_save(dev, slot, pos, n, snapshot, true, dev->runtime->cu_stream),
              "loading a sequence's state");
}

void gpu_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot) {
    if (dev->msar.ring_len == 0) return;
    ASSERT(from_slot < dev->limits.n_slots);
    ASSERT(to_slot < dev->limits.n_slots);
    ASSERT(from_slot != to_slot);
    struct plan_slot *slots = dev->runtime->plan.slots;
    slots[to_slot].ring_lo = slots[from_slot].ring_lo;
    slots[to_slot].ring_hi = slots[from_slot].ring_hi;
    if (gpu_flush(dev) != OK) return;
    gpu_check(dev, gpu_msar_copy(dev, from_slot, to_slot, dev->runtime->cu_stream),
              "copying a sequence's state");
}
