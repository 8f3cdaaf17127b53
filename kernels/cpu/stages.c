/* stages.c: the stages of a forward, in terms of the table's operations.
 *
 * Each stage is a few phases on the worker pool; a phase is a set of tasks over (matrix, block of
 * rows, run of column groups) or over chunks of rows. How work is cut depends on row and thread
 * counts; what one row's numbers are does not: every operation is defined row by row. */
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"

/* ---- phases over rows ------------------------------------------------------------------------- */

struct row_phase {
    struct device *dev;
    void (*fn)(struct row_phase *phase, uint32_t row);
    uint32_t n_rows, chunk;
    uint32_t layer;
    enum weight norm; /* of norm_row */
    float *in;        /* [n_rows] */
    size_t ld_in;
    const uint32_t *gather; /* row i reads in[gather[i]]; NULL: in[i] */
    unsigned needs;         /* of the matrices that the rows go through next */
};

/* What a matrix wants beside the rows themselves. */
enum { NEED_SUMS = 1, NEED_INT8 = 2, NEED_BF16 = 4 };

static unsigned needs_of(const struct matrix *m) {
    if (!m) return 0;
    return m->bf16 ? NEED_BF16 : m->int8 ? NEED_INT8 : block_has_minima(m->dtype) ? NEED_SUMS : 0;
}

/* Does the matrix whose they are read the rows in float32? */
static bool needs_floats(const struct device *dev, unsigned needs) {
    return needs & NEED_BF16 ? !dev->ops->tiles : !(needs & NEED_INT8);
}

/* Steps first .. first + n - 1, in x, of row number `row` of ldx numbers made ready for its matrices. */
static void prepare_steps(struct device *dev, struct ready *r, float *x, uint32_t first, uint32_t n,
                          size_t ldx, uint32_t row, unsigned needs) {
    uint32_t n_steps = (uint32_t)(ldx / GROUP);
    if (needs & NEED_SUMS) dev->ops->step_sums(x, n, r->sums + row * dev->ld_sums + first);
    if (needs & NEED_INT8) dev->ops->quantise(x, first, n, n_steps, r->int8, row);
    if (needs & NEED_BF16) dev->ops->narrow(x, first, n, n_steps, r->bf16, row);
}

static void prepare_row(struct device *dev, float *x, size_t ldx, uint32_t row, unsigned needs) {
    prepare_steps(dev, &dev->ready, x, 0, (uint32_t)(ldx / GROUP), ldx, row, needs);
}

static void row_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct row_phase *phase = arg;
    uint32_t row = task * phase->chunk, end = row + phase->chunk;
    for (; row < end && row < phase->n_rows; row++)
        phase->fn(phase, row);
}

/* A few rows are not worth waking a worker; chunks of 16 keep threads off each other's lines. */
static void run_rows(struct row_phase *phase) {
    uint32_t n = phase->n_rows, n_threads = pool_threads(phase->dev->pool);
    phase->chunk = n <= 3 ? n : (uint32_t)div_ceil(n, 2 * n_threads);
    if (phase->chunk > 16) phase->chunk = 16;
    if (n) pool_run(phase->dev->pool, row_task, phase, (uint32_t)div_ceil(n, phase->chunk));
    cpu_note_work(phase->dev, WORK_ROWS);
}

/* u[row] = RMSNorm(in[row]; norm). */
static void norm_row(struct row_phase *phase, uint32_t row) {
    struct device *dev = phase->dev;
    uint32_t from = phase->gather ? phase->gather[row] : row;
    float *u = dev->u + row * dev->ld_model;
    dev->ops->rmsnorm(phase->in + from * phase->ld_in, cpu_vector(dev, phase->norm, phase->layer),
                      dev->shape.d_model, dev->shape.rms_eps, u);
    prepare_row(dev, u, dev->ld_model, row, phase->needs);
}

static void plain_row(struct row_phase *phase, uint32_t row) {
    prepare_row(phase->dev, phase->in + row * phase->ld_in, phase->ld_in, row, phase->needs);
}

/* ---- heads ------------------------------------------------------------------------------------ */

/* q' = scale * q + shift of the row's view, of numbers first .. first + n - 1; a missing vector is the
 * identity. */
static void affine(const struct device *dev, uint32_t layer, enum view view, uint32_t first,
                   uint32_t n, float *q) {
    bool base = view == VIEW_BASE;
    const float *scale =
        cpu_vector(dev, base ? WEIGHT_AFFINE_BASE_SCALE : WEIGHT_AFFINE_OUTPUT_SCALE, layer);
    const float *shift =
        cpu_vector(dev, base ? WEIGHT_AFFINE_BASE_SHIFT : WEIGHT_AFFINE_OUTPUT_SHIFT, layer);
    for (uint32_t i = 0; scale && i < n; i++)
        q[i] *= scale[first + i];
    for (uint32_t i = 0; shift && i < n; i++)
        q[i] += shift[first + i];
}

static void norm_and_rotate(const struct device *dev, float *heads, uint32_t n_heads,
                            const float *norm, uint32_t pos) {
    uint32_t e = dev->shape.head_dim, half = e / 2;
    const float *cosines = dev->cosines + (size_t)pos * half;
    const float *sines = dev->sines + (size_t)pos * half;
    for (uint32_t h = 0; h < n_heads; h++, heads += e) {
        if (norm) dev->ops->rmsnorm(heads, norm, e, dev->shape.rms_eps, heads);
        dev->ops->rope(heads, cosines, sines, half);
    }
}

/* What follows a product of qkv. */
enum heads { HEADS_NONE, HEADS_Q, HEADS_K, HEADS_V };

/* Heads first .. first + n - 1 of a row: affine, norm and RoPE of q, norm and RoPE of k; k, v into
 * their page. */
static void finish_heads(struct device *dev, uint32_t layer, enum heads what, uint32_t row,
                         uint32_t first, uint32_t n) {
    uint32_t e = dev->shape.head_dim, pos = dev->row_pos[row], segment = dev->row_segment[row];
    enum view view = dev->fwd.segments[segment].view;
    bool draft = view == VIEW_DRAFT;
    size_t at = (size_t)first * e;
    if (what == HEADS_Q) {
        float *q = dev->q + row * dev->ld_q + at;
        if (dev->shape.orthros && !draft) affine(dev, layer, view, first * e, n * e, q);
        norm_and_rotate(dev, q, n,
                        cpu_vector(dev, draft ? WEIGHT_Q_DIFF_NORM : WEIGHT_Q_NORM, layer), pos);
        return;
    }
    float *x = (what == HEADS_K ? dev->k : dev->v) + row * dev->ld_kv + at;
    if (what == HEADS_K)
        norm_and_rotate(dev, x, n,
                        cpu_vector(dev, draft ? WEIGHT_K_DIFF_NORM : WEIGHT_K_NORM, layer), pos);
    char *page = cpu_page(dev, segment, layer, pos / PAGE_TOKENS) + first * dev->head_bytes;
    for (uint32_t h = 0; h < n; h++, page += dev->head_bytes, x += e)
        dev->ops->kv_store(dev, page, pos % PAGE_TOKENS, what == HEADS_K ? x : NULL,
                           what == HEADS_V ? x : NULL);
}

/* ---- phases over matrices --------------------------------------------------------------------- */

/* y[i] = W x[i] + bias (add: y[i] += that); with `up`: y = silu(W x + bias) * (up x + up_bias), made
 * ready for the matrices whose `needs` those are, which may not need y itself. */
struct gemm_job {
    const struct matrix *w, *up;
    const float *bias, *up_bias; /* NULL: none */
    const float *x;
    size_t ldx;
    const struct ready *ready; /* of x */
    unsigned needs;
    float *y;
    size_t ldy;
    uint32_t n_rows, row_block;
    bool add;
    bool padded; /* y has room for whole groups, and wants zeros there */
    bool maxima; /* note those of y (lm_head) */
    enum heads heads;
};

struct gemm_phase {
    struct device *dev;
    uint32_t layer;
    uint32_t n_jobs, run; /* column groups a task takes: */
    uint32_t unit;        /* a multiple of these */
    struct gemm_job jobs[3];
};

static uint32_t job_groups(const struct gemm_job *job) {
    return (uint32_t)div_ceil(job->w->rows, GROUP);
}

static uint32_t job_tasks(const struct gemm_job *job, uint32_t run) {
    return (uint32_t)(div_ceil(job->n_rows, job->row_block) * div_ceil(job_groups(job), run));
}

static void multiply(const struct device *dev, const struct matrix *w, uint32_t group,
                     const struct gemm_rows *in, float (*acc)[GROUP]) {
    if (w->bf16)
        dev->ops->gemm_bf16(w, group, in, acc);
    else if (w->int8)
        dev->ops->gemm_int8(w, group, in, acc);
    else
        dev->ops->gemm_group(w, group, in, acc);
}

static struct gemm_rows job_rows(const struct device *dev, const struct gemm_job *job,
                                 uint32_t row0, uint32_t n_rows) {
    const struct ready *r = job->ready;
    struct gemm_rows in = {.x = job->x + row0 * job->ldx,
                           .ldx = job->ldx,
                           .sums = r->sums + row0 * dev->ld_sums,
                           .ldsums = dev->ld_sums,
                           .n_rows = n_rows};
    if (r->int8) in.int8 = r->int8 + row0 / ROW_TILE * (job->ldx / GROUP);
    if (r->bf16) in.bf16 = r->bf16 + row0 * job->ldx;
    return in;
}

static void add_columns(float (*acc)[GROUP], uint32_t n_rows, const float *bias) {
    for (uint32_t i = 0; bias && i < n_rows; i++)
        for (uint32_t j = 0; j < GROUP; j++)
            acc[i][j] += bias[j];
}

/* acc = silu(acc + bias) * up: still in a near cache, it is one step of the matrix that follows. */
static void gemm_silu(struct device *dev, const struct gemm_job *job, uint32_t row0,
                      const struct gemm_rows *in, uint32_t group, float (*acc)[GROUP]) {
    float up[ROW_BLOCK_MAX][GROUP] __attribute__((aligned(4096)));
    uint32_t n_rows = in->n_rows, col = group * GROUP;
    ASSERT(job->padded && !job->add);
    multiply(dev, job->up, group, in, up);
    add_columns(acc, n_rows, job->bias ? job->bias + col : NULL);
    add_columns(up, n_rows, job->up_bias ? job->up_bias + col : NULL);
    dev->ops->silu_mul(acc[0], up[0], n_rows * GROUP);
    for (uint32_t i = 0; job->needs && i < n_rows; i++)
        prepare_steps(dev, &dev->ready_ff, acc[i], group, 1, job->ldy, row0 + i, job->needs);
    if (needs_floats(dev, job->needs))
        dev->ops->finish(acc, n_rows, NULL, false, job->y + row0 * job->ldy + col, job->ldy);
}

static void gemm_columns(struct gemm_phase *phase, const struct gemm_job *job, uint32_t row0,
                         uint32_t n_rows, uint32_t group) {
    struct device *dev = phase->dev;
    float acc[ROW_BLOCK_MAX][GROUP] __attribute__((aligned(4096))); /* int8_amx.c */
    struct gemm_rows in = job_rows(dev, job, row0, n_rows);
    multiply(dev, job->w, group, &in, acc);
    if (job->up) {
        gemm_silu(dev, job, row0, &in, group, acc);
        return;
    }
    uint32_t col = group * GROUP, n = GROUP;
    if (!job->padded && job->w->rows - col < GROUP) n = job->w->rows - col;
    const float *bias = job->bias ? job->bias + col : NULL;
    float *y = job->y + row0 * job->ldy + col;
    if (n == GROUP)
        dev->ops->finish(acc, n_rows, bias, job->add, y, job->ldy);
    else
        cpu_finish_columns(acc, n_rows, n, bias, job->add, y, job->ldy);
    for (uint32_t i = 0; job->maxima && i < n_rows; i++) /* no bias there: y is acc */
        cpu_note_maximum(dev, row0 + i, group, acc[i], n);
}

static void gemm_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct gemm_phase *phase = arg;
    const struct gemm_job *job = phase->jobs;
    for (uint32_t n; task >= (n = job_tasks(job, phase->run)); job++)
        task -= n;
    uint32_t n_runs = (uint32_t)div_ceil(job_groups(job), phase->run);
    uint32_t row0 = task / n_runs * job->row_block, group = task % n_runs * phase->run;
    uint32_t n_rows = job->n_rows - row0 < job->row_block ? job->n_rows - row0 : job->row_block;
    uint32_t end = group + phase->run < job_groups(job) ? group + phase->run : job_groups(job);
    uint32_t first = group / phase->unit, n_heads = (end - group) / phase->unit;
    for (; group < end; group++)
        gemm_columns(phase, job, row0, n_rows, group);
    if (phase->dev->ops->task_end) phase->dev->ops->task_end();
    for (uint32_t i = row0; job->heads && i < row0 + n_rows; i++)
        finish_heads(phase->dev, phase->layer, job->heads, i, first, n_heads);
}

/* About eight tasks a thread, or more where they would be long, so that a thread that loses its core, or
 * is the last, costs little. */
static void run_gemm(struct gemm_phase *phase) {
    enum { RUN_MAX = 16, TASK_ROWS = 256 }; /* groups of a task; times rows */
    uint32_t n_tasks = 0, n_rows = 1, n_threads = pool_threads(phase->dev->pool);
    for (uint32_t i = 0; i < phase->n_jobs; i++) {
        struct gemm_job *job = &phase->jobs[i];
        job->row_block = cpu_row_block(phase->dev);
        n_tasks += job_tasks(job, 1);
        uint32_t together = job->n_rows < job->row_block ? job->n_rows : job->row_block;
        if (n_rows < together) n_rows = together;
    }
    phase->run = n_tasks / (8 * n_threads);
    if (phase->run > RUN_MAX) phase->run = RUN_MAX;
    if (phase->run > TASK_ROWS / n_rows) phase->run = TASK_ROWS / n_rows;
    if (!phase->unit) phase->unit = 1;
    phase->run -= phase->run % phase->unit;
    if (phase->run < phase->unit) phase->run = phase->unit;
    n_tasks = 0;
    for (uint32_t i = 0; i < phase->n_jobs; i++)
        n_tasks += job_tasks(&phase->jobs[i], phase->run);
    pool_run(phase->dev->pool, gemm_task, phase, n_tasks);
    cpu_note_work(phase->dev, WORK_PRODUCTS);
}

/* ---- embed ------------------------------------------------------------------------------------ */

static void embed_row(struct row_phase *phase, uint32_t row) {
    struct device *dev = phase->dev;
    float *x = dev->residual + row * dev->ld_model;
    dev->ops->matrix_row(cpu_weight(dev, WEIGHT_EMBED, 0), (uint32_t)dev->row_token[row], x);
    memset(x + dev->shape.d_model, 0, (dev->ld_model - dev->shape.d_model) * sizeof *x);
    if (dev->shape.activations == ACTIVATIONS_BF16) /* the numbers of a table that rounds at load */
        cpu_narrow(x, 0, (uint32_t)(dev->ld_model / GROUP), 0, NULL, 0);
}

int cpu_embed(struct device *dev) {
    struct row_phase phase = {.dev = dev, .fn = embed_row, .n_rows = dev->n_rows};
    run_rows(&phase);
    return OK;
}

/* ---- qkv -------------------------------------------------------------------------------------- */

/* The first scratch page of a draft block begins with what the cache holds of that page. */
static void start_scratch(struct device *dev, uint32_t layer) {
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->pos % PAGE_TOKENS == 0) continue;
        uint32_t index = s->pos / PAGE_TOKENS;
        memcpy(cpu_page(dev, i, layer, index), cpu_cached_page(dev, s->pages[index], layer),
               dev->layer_bytes);
    }
}

static struct gemm_job projection(const struct device *dev, uint32_t layer, enum weight weight,
                                  enum weight bias, uint32_t n_rows, float *y, size_t ldy) {
    return (struct gemm_job){.w = cpu_weight(dev, weight, layer),
                             .bias = cpu_vector(dev, bias, layer),
                             .x = dev->u,
                             .ldx = dev->ld_model,
                             .ready = &dev->ready,
                             .y = y,
                             .ldy = ldy,
                             .n_rows = n_rows,
                             .padded = true};
}

/* All heads of a row, where the products are not cut by heads. */
static void head_row(struct row_phase *phase, uint32_t row) {
    struct device *dev = phase->dev;
    finish_heads(dev, phase->layer, HEADS_Q, row, 0, dev->shape.n_heads);
    if (row >= dev->n_kv_rows) return;
    finish_heads(dev, phase->layer, HEADS_K, row, 0, dev->shape.n_kv_heads);
    finish_heads(dev, phase->layer, HEADS_V, row, 0, dev->shape.n_kv_heads);
}

/* Heads are finished where their product was made, in a near cache and without a phase of their own, if
 * that leaves every thread some tasks. */
static bool heads_in_products(const struct device *dev) {
    uint32_t n_heads = dev->shape.n_heads + 2 * dev->shape.n_kv_heads;
    size_t n_tasks = n_heads * div_ceil(dev->n_rows, cpu_row_block(dev));
    return dev->shape.head_dim % GROUP == 0 && n_tasks >= 4 * (size_t)pool_threads(dev->pool);
}

int cpu_qkv(struct device *dev, uint32_t layer) {
    bool d = dev->drafting, fused = heads_in_products(dev);
    struct gemm_phase gemm = {.dev = dev, .layer = layer, .n_jobs = 3};
    gemm.jobs[0] =
        projection(dev, layer, d ? WEIGHT_Q_DIFF : WEIGHT_Q, d ? WEIGHT_Q_DIFF_BIAS : WEIGHT_Q_BIAS,
                   dev->n_rows, dev->q, dev->ld_q);
    gemm.jobs[1] =
        projection(dev, layer, d ? WEIGHT_K_DIFF : WEIGHT_K, d ? WEIGHT_K_DIFF_BIAS : WEIGHT_K_BIAS,
                   dev->n_kv_rows, dev->k, dev->ld_kv);
    gemm.jobs[2] =
        projection(dev, layer, d ? WEIGHT_V_DIFF : WEIGHT_V, d ? WEIGHT_V_DIFF_BIAS : WEIGHT_V_BIAS,
                   dev->n_kv_rows, dev->v, dev->ld_kv);
    struct row_phase norm = {.dev = dev,
                             .fn = norm_row,
                             .n_rows = dev->n_rows,
                             .layer = layer,
                             .norm = WEIGHT_ATTN_NORM,
                             .in = dev->x,
                             .ld_in = dev->ld_model};
    for (int i = 0; i < 3; i++)
        norm.needs |= needs_of(gemm.jobs[i].w);
    for (int i = 0; fused && i < 3; i++)
        gemm.jobs[i].heads = (enum heads)(HEADS_Q + i);
    if (fused) gemm.unit = dev->shape.head_dim / GROUP;
    run_rows(&norm);
    if (d) start_scratch(dev, layer);
    run_gemm(&gemm);
    if (fused) return OK;
    struct row_phase heads = {.dev = dev, .fn = head_row, .n_rows = dev->n_rows, .layer = layer};
    run_rows(&heads);
    return OK;
}

/* ---- attend ----------------------------------------------------------------------------------- */

struct attend_phase {
    struct device *dev;
    uint32_t layer;
    unsigned needs;
};

static const struct matrix *out_projection(const struct device *dev, uint32_t layer) {
    return cpu_weight(dev, dev->drafting ? WEIGHT_O_DIFF : WEIGHT_O, layer);
}

/* Numbers of o that a kv head's heads make. */
static uint32_t head_floats(const struct device *dev) {
    return dev->group * dev->shape.head_dim;
}

/* What cpu_attend makes ready for it: nothing where a kv head's heads are no whole steps. */
static unsigned attend_needs(const struct device *dev, uint32_t layer) {
    return head_floats(dev) % GROUP ? 0 : needs_of(out_projection(dev, layer));
}

static void prepare_heads(struct device *dev, const struct attend_task *task, unsigned needs) {
    const struct attend_tile *t = &dev->tiles[task->tile];
    uint32_t n = head_floats(dev) / GROUP, first = task->kv_head * n;
    for (uint32_t i = t->first; i < t->first + t->n_rows; i++) {
        float *o = dev->o + dev->order[i] * dev->ld_q + (size_t)first * GROUP;
        prepare_steps(dev, &dev->ready, o, first, n, dev->ld_q, dev->order[i], needs);
    }
}

static void attend_task(void *arg, uint32_t task, uint32_t thread) {
    struct attend_phase *phase = arg;
    struct device *dev = phase->dev;
    uint32_t n_heads = dev->shape.n_kv_heads, n_firsts = dev->n_tiles * n_heads;
    struct attend_task what = {.tile = task / n_heads, .kv_head = task % n_heads};
    if (task >= n_firsts) {
        const struct attend_split *split = dev->splits;
        task -= n_firsts;
        for (; task >= (split->n_parts - 1) * n_heads; split++)
            task -= (split->n_parts - 1) * n_heads;
        what = (struct attend_task){split->tile, task % n_heads, 1 + task / n_heads};
    }
    bool whole = dev->ops->attend_tile(dev, phase->layer, &what, dev->thread_scratch[thread]);
    if (dev->ops->task_end) dev->ops->task_end();
    if (whole && phase->needs) prepare_heads(dev, &what, phase->needs);
}

/* Each tile and kv head, whole or its first part; then the further parts of the tiles that are split. */
int cpu_attend(struct device *dev, uint32_t layer) {
    struct attend_phase phase = {.dev = dev, .layer = layer, .needs = attend_needs(dev, layer)};
    uint32_t n = dev->n_tiles;
    for (uint32_t i = 0; i < dev->n_splits; i++)
        n += dev->splits[i].n_parts - 1;
    pool_run(dev->pool, attend_task, &phase, n * dev->shape.n_kv_heads);
    cpu_note_work(dev, WORK_ATTENTION);
    return OK;
}

int cpu_out_residual(struct device *dev, uint32_t layer) {
    struct gemm_phase gemm = {.dev = dev, .n_jobs = 1};
    gemm.jobs[0] = projection(dev, layer, dev->drafting ? WEIGHT_O_DIFF : WEIGHT_O,
                              dev->drafting ? WEIGHT_O_DIFF_BIAS : WEIGHT_O_BIAS, dev->n_rows,
                              dev->residual, dev->ld_model);
    gemm.jobs[0].x = dev->o;
    gemm.jobs[0].ldx = dev->ld_q;
    gemm.jobs[0].add = true;
    struct row_phase rows = {.dev = dev,
                             .fn = plain_row,
                             .n_rows = dev->n_rows,
                             .in = dev->o,
                             .ld_in = dev->ld_q,
                             .needs = needs_of(gemm.jobs[0].w)};
    if (rows.needs && !attend_needs(dev, layer)) run_rows(&rows);
    run_gemm(&gemm);
    return OK;
}

/* ---- mlp, lm_head ----------------------------------------------------------------------------- */

int cpu_mlp(struct device *dev, uint32_t layer) {
    struct gemm_phase in = {.dev = dev, .n_jobs = 1}, out = {.dev = dev, .n_jobs = 1};
    in.jobs[0] =
        projection(dev, layer, WEIGHT_GATE, WEIGHT_GATE_BIAS, dev->n_rows, dev->gate, dev->ld_ff);
    in.jobs[0].up = cpu_weight(dev, WEIGHT_UP, layer);
    in.jobs[0].up_bias = cpu_vector(dev, WEIGHT_UP_BIAS, layer);
    in.jobs[0].needs = needs_of(cpu_weight(dev, WEIGHT_DOWN, layer));
    out.jobs[0] = projection(dev, layer, WEIGHT_DOWN, WEIGHT_DOWN_BIAS, dev->n_rows, dev->residual,
                             dev->ld_model);
    out.jobs[0].x = dev->gate;
    out.jobs[0].ready = &dev->ready_ff;
    out.jobs[0].ldx = dev->ld_ff;
    out.jobs[0].add = true;
    struct row_phase norm = {.dev = dev,
                             .fn = norm_row,
                             .n_rows = dev->n_rows,
                             .layer = layer,
                             .norm = WEIGHT_MLP_NORM,
                             .in = dev->x,
                             .ld_in = dev->ld_model,
                             .needs = needs_of(in.jobs[0].w) | needs_of(in.jobs[0].up)};
    run_rows(&norm);
    run_gemm(&in);
    run_gemm(&out);
    return OK;
}

int cpu_lm_head(struct device *dev) {
    enum weight which = dev->shape.tied_head ? WEIGHT_EMBED : WEIGHT_LM_HEAD;
    struct gemm_phase gemm = {.dev = dev, .n_jobs = 1};
    gemm.jobs[0] = (struct gemm_job){.w = cpu_weight(dev, which, 0),
                                     .x = dev->u,
                                     .ldx = dev->ld_model,
                                     .ready = &dev->ready,
                                     .y = dev->last_logits,
                                     .ldy = dev->shape.vocab_size,
                                     .n_rows = dev->n_logit_rows,
                                     .maxima = true};
    struct row_phase norm = {.dev = dev,
                             .fn = norm_row,
                             .n_rows = dev->n_logit_rows,
                             .norm = WEIGHT_FINAL_NORM,
                             .in = dev->x,
                             .ld_in = dev->ld_model,
                             .gather = dev->logit_row,
                             .needs = needs_of(gemm.jobs[0].w)};
    run_rows(&norm);
    run_gemm(&gemm);
    return OK;
}
