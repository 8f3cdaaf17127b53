/* stages.c: the stages of a forward. A call only notes its stage; the list is queued when something
 * needs the work (`sample` of a draft forward, `end`, a read-back, a change of pages or slots):
 *
 *   begin   embed   qkv 0   attend 0   ...   lm_head   accept        end
 *     │       └───────┴────────┴─── list ──────┴─────────┘            │
 *     └ inbox copied                            queued: launches, or one graph; then outcomes
 *
 * A forward of few rows is bound by the host's launches, so its second time with the same stages and
 * sizes it is captured, and later ones replay the graph. Sizes are those of its bucket, the next
 * powers of two: blocks beyond the counts, which they read from device memory, return at once. */
#include <string.h>

#include "kernels/cuda/msar.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/runtime.h"

/* ---- what one stage queues -------------------------------------------------------------------- */

static cudaError_t product(const struct device *dev, const struct gemm_call *call, uint32_t n_rows,
                           uint32_t n_tail_rows) {
    const struct runtime *rt = dev->runtime;
    return gpu_product(dev, call, n_rows, n_tail_rows, rt->blas, rt->cu_stream);
}

static struct gemm_call call_of(const struct device *dev, const struct matrix *w, const float *bias,
                                const void *x, uint32_t ldx) {
    return (struct gemm_call){.w = w,
                              .bias = bias,
                              .x = x,
                              .ldx = ldx,
                              .n_out = w->rows,
                              .max_rows = dev->grid.rows,
                              .n_rows = &dev->batch.counts->n_rows};
}

/* What the branch adds to. A function of the branch alone: a graph that is replayed sets nothing here. */
static float *residual_of(const struct device *dev, uint32_t branch) {
    return dev->shape.n_msar_streams ? gpu_msar_residual(dev, branch) : dev->x;
}

static cudaError_t queue_qkv(struct device *dev, uint32_t index) {
    const struct layer *l = &dev->layers[index];
    bool d = dev->drafting;
    struct gemm_call call = call_of(dev, d ? &l->qkv_diff : &l->qkv,
                                    d ? l->qkv_diff_bias : l->qkv_bias, dev->u, dev->ld_model);
    call.y = dev->qkv;
    call.ldy = dev->ld_qkv;
    call.out = GEMM_STORE;
    if (dev->shape.orthros && !d) { /* output rows make no K and V */
        call.tail = dev->k_at;
        call.n_tail_rows = &dev->batch.counts->n_kv_rows;
    }
    cudaError_t error = gpu_norm(dev, l->attn_norm, false, dev->runtime->cu_stream);
    if (!error) error = product(dev, &call, dev->grid.rows, dev->grid.kv_rows);
    return error ? error : gpu_heads(dev, index, dev->runtime->cu_stream);
}

static cudaError_t queue_out(struct device *dev, uint32_t index) {
    const struct layer *l = &dev->layers[index];
    bool d = dev->drafting;
    struct gemm_call call =
        call_of(dev, d ? &l->o_diff : &l->o, d ? l->o_diff_bias : l->o_bias, dev->o, dev->ld_q);
    call.y = residual_of(dev, 2 * index);
    call.ldy = dev->ld_model;
    call.out = GEMM_ADD;
    return product(dev, &call, dev->grid.rows, 0);
}

static cudaError_t queue_mlp(struct device *dev, uint32_t index) {
    const struct layer *l = &dev->layers[index];
    struct gemm_call in = call_of(dev, &l->gate_up, l->gate_up_bias, dev->u, dev->ld_model);
    in.y = dev->gate;
    in.ldy = dev->ld_ff;
    in.out = GEMM_SILU;
    in.n_out = dev->shape.d_ff;
    struct gemm_call out = call_of(dev, &l->down, l->down_bias, dev->gate, dev->ld_ff);
    out.y = residual_of(dev, 2 * index + 1);
    out.ldy = dev->ld_model;
    out.out = GEMM_ADD;
    cudaError_t error = gpu_norm(dev, l->mlp_norm, false, dev->runtime->cu_stream);
    if (!error) error = product(dev, &in, dev->grid.rows, 0);
    return error ? error : product(dev, &out, dev->grid.rows, 0);
}

static cudaError_t queue_head(struct device *dev) {
    struct gemm_call call = call_of(dev, &dev->lm_head, NULL, dev->u, dev->ld_model);
    call.y = dev->last_logits;
    call.ldy = dev->shape.vocab_size;
    call.out = GEMM_STORE;
    call.max_rows = dev->grid.logit_rows;
    call.n_rows = &dev->batch.counts->n_logit_rows;
    cudaError_t error = gpu_norm(dev, dev->final_norm, true, dev->runtime->cu_stream);
    return error ? error : product(dev, &call, dev->grid.logit_rows, 0);
}

static cudaError_t queue_stage(struct device *dev, const struct stage *stage) {
    cudaStream_t stream = dev->runtime->cu_stream;
    switch (stage->kind) {
    case STAGE_UNPACK:
        return gpu_unpack(dev, dev->runtime->inbox, stream);
    case STAGE_EMBED:
        return gpu_embed(dev, dev->shape.n_msar_streams ? gpu_msar_view(dev, 0, 0) : dev->x,
                         stream);
    case STAGE_QKV:
        return queue_qkv(dev, stage->index);
    case STAGE_ATTEND:
        return gpu_attend(dev, stage->index, stream);
    case STAGE_OUT_RESIDUAL:
        return queue_out(dev, stage->index);
    case STAGE_MLP:
        return queue_mlp(dev, stage->index);
    case STAGE_MSAR_PUSH:
        return gpu_msar_push(dev, stage->index, stream);
    case STAGE_MSAR_READ:
        if (stage->index == dev->msar.n_pushes && dev->grid.logit_rows == 0)
            return cudaSuccess; /* the readout is for rows with logits */
        return gpu_msar_read(dev, stage->index, stream);
    case STAGE_LM_HEAD:
        return dev->grid.logit_rows ? queue_head(dev) : cudaSuccess;
    case STAGE_SAMPLE:
        return dev->grid.propose ? gpu_sample(dev, stream) : cudaSuccess;
    case STAGE_ACCEPT:
        return dev->grid.accept ? gpu_accept(dev, stream) : cudaSuccess;
    }
    return cudaErrorUnknown;
}

static const char *const stage_names[] = {"unpack",       "embed",  "qkv",       "attend",
                                          "out_residual", "mlp",    "msar_push", "msar_read",
                                          "lm_head",      "sample", "accept"};

static cudaError_t queue_all(struct device *dev, const char **where) {
    const struct runtime *rt = dev->runtime;
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < rt->n_stages && !error; i++) {
        *where = stage_names[rt->stages[i].kind];
        error = queue_stage(dev, &rt->stages[i]);
    }
    return error;
}

/* ---- graphs ----------------------------------------------------------------------------------- */

/* The next power of two, but no more than there can be. */
static uint32_t bucket(uint32_t n, uint32_t most) {
    uint32_t b = 1;
    while (b < n)
        b *= 2;
    return n == 0 ? 0 : b < most ? b : most;
}

static struct grid bucket_grid(const struct device *dev) {
    const struct grid *g = &dev->grid;
    const struct device_limits *l = &dev->limits;
    uint32_t segments = bucket(g->segments, 2 * l->n_slots);
    struct grid b = {.rows = bucket(g->rows, l->max_rows),
                     .kv_rows = bucket(g->kv_rows, l->max_rows),
                     .logit_rows = bucket(g->logit_rows, l->max_logit_rows),
                     .segments = segments,
                     .merges = g->merges ? bucket(g->rows, l->max_rows) : 0,
                     .accept = g->accept ? (segments < l->n_slots ? segments : l->n_slots) : 0,
                     .propose = g->propose ? bucket(g->logit_rows, l->max_logit_rows) : 0,
                     .draft_segments = g->draft_segments ? segments : 0};
    for (int kind = 0; kind < ATTEND_KINDS; kind++)
        b.items[kind] = bucket(g->items[kind], dev->max_items);
    return b;
}

/* FNV-1a over the list; never 0. */
static uint64_t hash_stages(const struct runtime *rt) {
    uint64_t hash = 14695981039346656037u;
    for (uint32_t i = 0; i < rt->n_stages; i++) {
        hash = (hash ^ (uint64_t)rt->stages[i].kind) * 1099511628211u;
        hash = (hash ^ rt->stages[i].index) * 1099511628211u;
    }
    return hash ? hash : 1;
}

static void drop_graph(struct graph *graph) {
    if (graph->exec) cudaGraphExecDestroy(graph->exec);
    *graph = (struct graph){0};
}

void gpu_drop_graphs(struct device *dev) {
    for (uint32_t i = 0; i < GRAPHS; i++)
        drop_graph(&dev->runtime->graphs[i]);
}

/* The graph of the list and grid at hand, or the place of the least recently used one, emptied. */
static struct graph *find_graph(struct device *dev, bool *known) {
    struct runtime *rt = dev->runtime;
    struct graph key = {.stages = hash_stages(rt),
                        .n_stages = rt->n_stages,
                        .drafting = dev->drafting,
                        .grid = dev->grid};
    struct graph *oldest = &rt->graphs[0];
    *known = true;
    for (struct graph *g = rt->graphs; g < rt->graphs + GRAPHS; g++) {
        if (g->stages == key.stages && g->n_stages == key.n_stages && g->drafting == key.drafting &&
            memcmp(&g->grid, &key.grid, sizeof key.grid) == 0)
            return g;
        if (g->used < oldest->used) oldest = g;
    }
    *known = false;
    drop_graph(oldest);
    *oldest = key;
    return oldest;
}

/* Queueing into a graph in place of the stream. */
static cudaError_t capture(struct device *dev, struct graph *graph, const char **where) {
    cudaStream_t stream = dev->runtime->cu_stream;
    cudaGraph_t captured = NULL;
    *where = "capturing a graph";
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error) return error;
    error = queue_all(dev, where);
    cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    if (error) {
        if (captured) cudaGraphDestroy(captured);
        return error;
    }
    *where = "capturing a graph";
    if (!ended) ended = cudaGraphInstantiate(&graph->exec, captured, 0);
    if (ended) graph->exec = NULL;
    if (captured) cudaGraphDestroy(captured);
    return ended;
}

static cudaError_t queue_by_graph(struct device *dev, const char **where) {
    struct runtime *rt = dev->runtime;
    bool known;
    struct graph *graph = find_graph(dev, &known);
    graph->used = ++rt->clock;
    if (!known) {
        rt->counts.plain++;
        return queue_all(dev, where);
    }
    if (!graph->exec) {
        cudaError_t error = capture(dev, graph, where);
        if (error == cudaErrorMemoryAllocation) { /* a graph only saves time: go on without any */
            cudaGetLastError();
            rt->no_graphs = true; /* those there are may still run, so they are kept */
            rt->counts.plain++;
            return queue_all(dev, where);
        }
        if (error) return error;
        rt->counts.captured++;
    }
    rt->counts.replayed++;
    *where = "launching a graph";
    return cudaGraphLaunch(graph->exec, rt->cu_stream);
}

/* ---- the list --------------------------------------------------------------------------------- */

int gpu_flush(struct device *dev) {
    struct runtime *rt = dev->runtime;
    if (rt->failed || rt->n_stages == 0 || dev->grid.rows == 0) {
        rt->n_stages = 0;
        return rt->failed ? ERR_DEVICE : OK;
    }
    const char *where = "";
    cudaError_t error;
    if (dev->grid.rows <= GRAPH_ROWS && !rt->no_graphs) {
        dev->grid = bucket_grid(dev);
        error = queue_by_graph(dev, &where);
    } else {
        rt->counts.plain++;
        error = queue_all(dev, &where);
    }
    rt->n_stages = 0;
    return gpu_check(dev, error, where);
}

static int add_stage(struct device *dev, enum stage_kind kind, uint32_t index) {
    struct runtime *rt = dev->runtime;
    if (rt->failed) return ERR_DEVICE;
    int rc = OK;
    if (rt->n_stages == rt->stages_cap) rc = gpu_flush(dev);
    rt->stages[rt->n_stages++] = (struct stage){kind, index};
    return rc;
}

static int set_mark(struct device *dev, enum mark mark) {
    struct runtime *rt = dev->runtime;
    rt->marked[mark] = true;
    return gpu_check(dev, cudaEventRecord(rt->marks[mark], rt->cu_stream), "a forward's border");
}

int gpu_begin(struct device *dev, const struct forward *fwd) {
    struct runtime *rt = dev->runtime;
    ASSERT(rt->reserved);
    if (gpu_flush(dev) != OK) return ERR_DEVICE;
    bool drafts = fwd->n_segments > 0 && fwd->segments[0].view == VIEW_DRAFT;
    if (set_mark(dev, drafts ? MARK_DRAFT : MARK_MAIN) != OK) return ERR_DEVICE;
    plan_make(&rt->plan, dev, fwd);
    dev->drafting = rt->plan.drafting;
    dev->last_logits = dev->drafting ? dev->draft_logits : dev->logits;
    dev->grid = plan_grid(&rt->plan);
    rt->accepted = false;
    struct pinned *pinned = &rt->inboxes[rt->next_inbox];
    rt->next_inbox ^= 1;
    if (gpu_pinned_take(dev, pinned) != OK) return ERR_DEVICE;
    size_t bytes = plan_pack(&rt->plan, (struct inbox *)(void *)pinned->data);
    cudaError_t error =
        cudaMemcpyAsync(rt->inbox, pinned->data, bytes, cudaMemcpyHostToDevice, rt->cu_stream);
    if (gpu_check(dev, error, "begin") != OK) return ERR_DEVICE;
    if (gpu_pinned_sent(dev, pinned) != OK) return ERR_DEVICE;
    return add_stage(dev, STAGE_UNPACK, 0);
}

int gpu_stage_embed(struct device *dev) {
    return add_stage(dev, STAGE_EMBED, 0);
}

int gpu_stage_qkv(struct device *dev, uint32_t layer) {
    return add_stage(dev, STAGE_QKV, layer);
}

int gpu_stage_attend(struct device *dev, uint32_t layer) {
    return add_stage(dev, STAGE_ATTEND, layer);
}

int gpu_stage_out_residual(struct device *dev, uint32_t layer) {
    return add_stage(dev, STAGE_OUT_RESIDUAL, layer);
}

int gpu_stage_mlp(struct device *dev, uint32_t layer) {
    return add_stage(dev, STAGE_MLP, layer);
}

/* What the rings hold once base rows have gone through all of the model. */
static void note_rings(struct device *dev) {
    struct plan *p = &dev->runtime->plan;
    for (uint32_t i = 0; dev->msar.ring_len && i < p->fwd.n_segments; i++) {
        const struct seg *s = &p->segments[i];
        if (s->view != VIEW_BASE) continue;
        struct plan_slot *slot = &p->slots[s->slot];
        uint32_t end = s->pos + s->n_rows;
        uint32_t oldest = end > dev->msar.ring_len ? end - dev->msar.ring_len : 0;
        if (s->pos < slot->ring_lo) slot->ring_lo = s->pos;
        if (oldest > slot->ring_lo) slot->ring_lo = oldest;
        slot->ring_hi = end;
    }
}

int gpu_stage_msar_push(struct device *dev, uint32_t push) {
    ASSERT(push < dev->msar.n_pushes);
    if (push + 1 == dev->msar.n_pushes) note_rings(dev);
    return add_stage(dev, STAGE_MSAR_PUSH, push);
}

int gpu_stage_msar_read(struct device *dev, uint32_t branch) {
    ASSERT(dev->shape.n_msar_streams > 0);
    ASSERT(branch <= dev->msar.n_pushes);
    return add_stage(dev, STAGE_MSAR_READ, branch);
}

int gpu_stage_lm_head(struct device *dev) {
    return add_stage(dev, STAGE_LM_HEAD, 0);
}

int gpu_stage_sample(struct device *dev) {
    struct plan *p = &dev->runtime->plan;
    ASSERT(dev->drafting);
    for (uint32_t i = 0; i < p->fwd.n_segments; i++)
        if (p->segments[i].pick == PICK_PROPOSE)
            p->slots[p->segments[i].slot].n_asked = p->segments[i].n_logits;
    int rc = add_stage(dev, STAGE_SAMPLE, 0);
    if (rc == OK) rc = gpu_flush(dev); /* the device works while the main forward is planned */
    return rc == OK ? set_mark(dev, MARK_DRAFTED) : rc;
}

int gpu_stage_accept(struct device *dev) {
    struct plan *p = &dev->runtime->plan;
    ASSERT(!dev->drafting);
    for (uint32_t i = 0; i < p->fwd.n_segments; i++)
        if (p->segments[i].pick == PICK_ACCEPT)
            ASSERT(p->segments[i].n_logits == p->segments[i].n_proposed + 1);
    dev->runtime->accepted = true;
    return add_stage(dev, STAGE_ACCEPT, 0);
}

/* ---- back to the host ------------------------------------------------------------------------- */

/* Between two marks, which the stream has passed; 0 where one was not set. */
static uint64_t time_between(struct device *dev, enum mark from, enum mark to) {
    struct runtime *rt = dev->runtime;
    float ms = 0;
    if (!rt->marked[from] || !rt->marked[to]) return 0;
    cudaError_t error = cudaEventElapsedTime(&ms, rt->marks[from], rt->marks[to]);
    if (gpu_check(dev, error, "a forward's time") != OK) return 0;
    return ms > 0.001f ? (uint64_t)(ms * 1000) : 1; /* the clock's grain */
}

static int read_times(struct device *dev) {
    struct runtime *rt = dev->runtime;
    rt->draft_us = time_between(dev, MARK_DRAFT, MARK_DRAFTED);
    rt->main_us = time_between(dev, MARK_MAIN, MARK_ENDED);
    memset(rt->marked, 0, sizeof rt->marked);
    return rt->failed ? ERR_DEVICE : OK;
}

void gpu_forward_us(const struct device *dev, uint64_t *draft_us, uint64_t *main_us) {
    *draft_us = dev->runtime->draft_us;
    *main_us = dev->runtime->main_us;
}

int gpu_end(struct device *dev, struct outcome *out) {
    struct runtime *rt = dev->runtime;
    uint32_t n = rt->plan.counts.n_accept;
    ASSERT(n == 0 || rt->accepted || rt->failed);
    int rc = gpu_flush(dev);
    if (rc == OK && n)
        rc = gpu_check(dev,
                       cudaMemcpyAsync(rt->outcomes, dev->outcomes, n * sizeof *out,
                                       cudaMemcpyDeviceToHost, rt->cu_stream),
                       "end");
    if (rc == OK) rc = set_mark(dev, MARK_ENDED);
    if (rc == OK) rc = gpu_wait(dev);
    if (rc == OK) rc = read_times(dev);
    for (uint32_t i = 0; i < dev->limits.n_slots; i++) /* proposals live for one cycle */
        rt->plan.slots[i].n_asked = 0;
    rt->plan.fwd.n_segments = 0;
    rt->plan.counts.n_accept = 0;
    if (rc == OK && n) memcpy(out, rt->outcomes, n * sizeof *out);
    return rc;
}

int gpu_read_logits(struct device *dev, uint32_t logit_row, float *out) {
    struct runtime *rt = dev->runtime;
    size_t vocab = dev->shape.vocab_size;
    ASSERT(rt->failed || logit_row < rt->plan.counts.n_logit_rows);
    ASSERT(rt->failed || dev->last_logits);
    int rc = gpu_flush(dev);
    if (rc == OK)
        rc = gpu_check(dev,
                       cudaMemcpyAsync(rt->logits, dev->last_logits + logit_row * vocab,
                                       vocab * sizeof *out, cudaMemcpyDeviceToHost, rt->cu_stream),
                       "reading logits");
    if (rc == OK) rc = gpu_wait(dev);
    if (rc == OK) memcpy(out, rt->logits, vocab * sizeof *out);
    return rc;
}
