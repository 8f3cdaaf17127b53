/* msar.c: the residual path of MSAR models, multi-stream attention over depth (MSAR, sections 3.2
 * and 3.3), in place of x = x + f(x).
 *
 *   sources   s = 0: the embedding; s = n + 1: the running sum of block n, up to its last branch
 *   views     v_s^(0)_t = v_s,t;   v_s^(r)_t = sum_{delta < kappa_r} c[s,r,delta] * v_s,t-delta
 *   read      alpha_s = softmax over s of  w_l^(r) . RMSNorm(v_s^(r));   z^(r) = sum_s alpha_s v_s^(r)
 *   mix       x = sum_r sigmoid(a_l * (M_l RMSNorm([z^(0); ...; z^(R-1)]))_r + b_l,r) z^(r)
 *   branch    p = p + f_l(x), p the running sum of l's block
 *   readout   x = sum_s softmax_s(w_out . RMSNorm(v_s)) v_s     rows with logits only
 *
 *   c[s,r] [kappa_r, d]   w_l [R, d]   M_l [R, R d]   b_l [R]   a_l [1]   w_out [d]
 *
 * RMSNorm has no weight here. Positions before 0 count as zero: their terms are left out.
 *
 *   source:      0    1    1    1    2    2       blocks of 3 branches: push 3 leaves the summary
 *   push:        0    1    2    3    4    5  ...  of block 0, push 4 the first sum of block 1
 *   branch:       0    1    2    3    4    5      branch l reads sources 0 .. source of push l
 *
 * So the newest source is expanded anew at each push, over its former value in the workspace, and a
 * finished one is never expanded again in the forward. v_s,t-delta is what the same push saw at
 * position t - delta:
 *
 *   row of view    history                                           enters the ring
 *   base           rows of its segment, before them the ring         yes
 *   output         base rows of its slot, before them the ring       no
 *   draft          rows of its block, before them the ring           no
 *
 * The ring keeps float32, as the forward used it. Order: a view sums delta in ascending order, z
 * the sources, x the streams, each as one chain; dot products run over the padded row as the table's
 * `dots` does. Nothing depends on rows of other sequences, chunks or threads.
 *
 * Work: of a row, branch l reads 2 R (sources of l) d floats of views, which the second pass finds
 * in the cache; for few rows far less than the weights of the branch. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* ---- phases over (row, stream) ------------------------------------------------------------------ */

struct msar_phase {
    struct device *dev;
    void (*fn)(const struct msar_phase *phase, uint32_t row, uint32_t stream,
               const struct msar_scratch *scratch);
    uint32_t step;      /* push or branch */
    uint32_t n_sources; /* that it reads */
    uint32_t n_streams; /* parts of a row */
    uint32_t n_rows, chunk;
};

/* Floats that a task should touch: fewer are not worth waking a worker. */
enum { TASK_FLOATS = 1 << 15 };

static void phase_task(void *arg, uint32_t task, uint32_t thread) {
    const struct msar_phase *phase = arg;
    uint32_t item = task * phase->chunk, end = item + phase->chunk;
    uint32_t n_items = phase->n_rows * phase->n_streams;
    for (; item < end && item < n_items; item++)
        phase->fn(phase, item % phase->n_rows, item / phase->n_rows,
                  &phase->dev->msar.scratch[thread]);
}

/* Stream by stream, so that a task walks along each view's rows. n_vectors: of d_model floats that
 * an item touches. */
static void run_phase(struct msar_phase *phase, uint32_t n_rows, uint32_t n_vectors) {
    if (n_rows == 0) return;
    phase->n_rows = n_rows;
    phase->chunk = (uint32_t)div_ceil(TASK_FLOATS, n_vectors * phase->dev->ld_model);
    uint32_t n_tasks = (uint32_t)div_ceil(n_rows * phase->n_streams, phase->chunk);
    pool_run(phase->dev->pool, phase_task, phase, n_tasks);
    cpu_note_work(phase->dev, WORK_ROWS);
}

/* 1 / sqrt(mean(x^2) + eps) of n numbers in `padded` floats. */
static float rms_inverse(const struct device *dev, const float *x, size_t padded, size_t n) {
    float square;
    dev->ops->dots(&x, x, 1, (uint32_t)padded, &square);
    return 1.0f / sqrtf(square / (float)n + dev->shape.rms_eps);
}

/* ---- push -------------------------------------------------------------------------------------- */

/* v[delta], delta = 0 .. kappa - 1, of a row; returns how many of them are at positions >= 0. */
static uint32_t find_history(const struct device *dev, uint32_t row, uint32_t push, uint32_t kappa,
                             const float **v) {
    uint32_t segment = dev->row_segment[row], pos = dev->row_pos[row];
    const struct segment *s = &dev->fwd.segments[segment];
    int32_t own = s->view == VIEW_OUTPUT ? dev->slot_segment[VIEW_BASE][s->slot] : (int32_t)segment;
    uint32_t first = own == NONE ? UINT32_MAX : dev->fwd.segments[own].pos; /* position in hand */
    uint32_t source = msar_source(&dev->shape, push), n = kappa <= pos ? kappa : pos + 1;
    v[0] = msar_view(dev, source, 0, row);
    for (uint32_t delta = 1; delta < n; delta++) {
        uint32_t t = pos - delta;
        v[delta] = t >= first ? msar_view(dev, source, 0, dev->segment_row[own] + t - first)
                              : msar_ring(dev, s->slot, t, push);
    }
    return n;
}

static void expand_item(const struct msar_phase *phase, uint32_t row, uint32_t stream,
                        const struct msar_scratch *scratch) {
    struct device *dev = phase->dev;
    uint32_t source = phase->n_sources - 1, n_streams = phase->n_streams;
    float *view = msar_view(dev, source, stream, row);
    if (stream > 0) {
        uint32_t kappa = dev->shape.msar_kernels[stream];
        uint32_t n = find_history(dev, row, phase->step, kappa, scratch->v);
        const float *conv =
            msar_weight(dev, WEIGHT_MSAR_CONV, source * (n_streams - 1) + stream - 1);
        dev->ops->expand(scratch->v, conv, n, (uint32_t)dev->ld_model, view);
    }
    *msar_inverse(dev, source, stream, row) =
        rms_inverse(dev, view, dev->ld_model, dev->shape.d_model);
}

int cpu_msar_push(struct device *dev, uint32_t push) {
    ASSERT(push < dev->msar.n_pushes);
    struct msar_phase phase = {.dev = dev,
                               .fn = expand_item,
                               .step = push,
                               .n_sources = msar_source(&dev->shape, push) + 1,
                               .n_streams = dev->shape.n_msar_streams};
    run_phase(&phase, dev->n_rows, 2 + dev->msar.history);
    cpu_msar_enter(dev, push); /* after every row has read what the ring held before */
    return OK;
}

/* ---- read -------------------------------------------------------------------------------------- */

/* Scores become weights. NaN among them makes all of them NaN. */
static void softmax(float *scores, uint32_t n) {
    float most = scores[0];
    double total = 0;
    for (uint32_t i = 1; i < n; i++)
        if (!(scores[i] <= most)) most = scores[i];
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = expf(scores[i] - most);
        total += (double)scores[i];
    }
    for (uint32_t i = 0; i < n; i++)
        scores[i] = (float)((double)scores[i] / total);
}

static void read_item(const struct msar_phase *phase, uint32_t row, uint32_t stream,
                      const struct msar_scratch *scratch) {
    struct device *dev = phase->dev;
    uint32_t ld = (uint32_t)dev->ld_model;
    const float *query = msar_weight(dev, WEIGHT_MSAR_QUERY, phase->step) + stream * dev->ld_model;
    for (uint32_t s = 0; s < phase->n_sources; s++)
        scratch->v[s] = msar_view(dev, s, stream, row);
    dev->ops->dots(scratch->v, query, phase->n_sources, ld, scratch->weights);
    for (uint32_t s = 0; s < phase->n_sources; s++)
        scratch->weights[s] *= *msar_inverse(dev, s, stream, row);
    softmax(scratch->weights, phase->n_sources);
    float *z = dev->msar.z + ((size_t)row * phase->n_streams + stream) * ld;
    dev->ops->weighted_sum(scratch->v, scratch->weights, phase->n_sources, ld, z);
}

/* The whole of a row: phase->n_streams is 1. */
static void mix_item(const struct msar_phase *phase, uint32_t row, uint32_t stream,
                     const struct msar_scratch *scratch) {
    (void)stream, (void)scratch;
    struct device *dev = phase->dev;
    uint32_t n_streams = dev->shape.n_msar_streams;
    size_t ld = dev->ld_model, all = n_streams * ld;
    const float *z = dev->msar.z + row * all;
    const float *mix = msar_weight(dev, WEIGHT_MSAR_MIX, phase->step);
    const float *bias = msar_weight(dev, WEIGHT_MSAR_MIX_BIAS, phase->step);
    float scale = *msar_weight(dev, WEIGHT_MSAR_MIX_SCALE, phase->step);
    float inverse = rms_inverse(dev, z, all, (size_t)n_streams * dev->shape.d_model);
    const float *mixers[MAX_MSAR_STREAMS], *streams[MAX_MSAR_STREAMS];
    float gates[MAX_MSAR_STREAMS];
    for (uint32_t r = 0; r < n_streams; r++) {
        mixers[r] = mix + r * all;
        streams[r] = z + r * ld;
    }
    dev->ops->dots(mixers, z, n_streams, (uint32_t)all, gates);
    for (uint32_t r = 0; r < n_streams; r++)
        gates[r] = 1.0f / (1.0f + expf(-(scale * (gates[r] * inverse) + bias[r])));
    dev->ops->weighted_sum(streams, gates, n_streams, (uint32_t)ld, dev->x + row * ld);
    if (phase->step % dev->shape.msar_branches == 0) /* a block begins */
        memset(dev->residual + row * ld, 0, ld * sizeof *dev->residual);
}

/* The last block's sum was never pushed: its norm is taken here. */
static void readout_item(const struct msar_phase *phase, uint32_t i, uint32_t stream,
                         const struct msar_scratch *scratch) {
    struct device *dev = phase->dev;
    uint32_t row = dev->logit_row[i], ld = (uint32_t)dev->ld_model, last = phase->n_sources - 1;
    const float *query = msar_weight(dev, WEIGHT_MSAR_READOUT, 0);
    for (uint32_t s = 0; s <= last; s++)
        scratch->v[s] = msar_view(dev, s, stream, row);
    dev->ops->dots(scratch->v, query, phase->n_sources, ld, scratch->weights);
    for (uint32_t s = 0; s < last; s++)
        scratch->weights[s] *= *msar_inverse(dev, s, stream, row);
    scratch->weights[last] *= rms_inverse(dev, scratch->v[last], ld, dev->shape.d_model);
    softmax(scratch->weights, phase->n_sources);
    dev->ops->weighted_sum(scratch->v, scratch->weights, phase->n_sources, ld,
                           dev->x + (size_t)row * ld);
}

int cpu_msar_read(struct device *dev, uint32_t branch) {
    ASSERT(dev->shape.n_msar_streams > 0);
    ASSERT(branch <= dev->msar.n_pushes);
    struct msar_phase phase = {.dev = dev,
                               .step = branch,
                               .n_sources = msar_source(&dev->shape, branch) + 1,
                               .n_streams = 1};
    if (branch == dev->msar.n_pushes) {
        phase.fn = readout_item;
        run_phase(&phase, dev->n_logit_rows, 2 * phase.n_sources);
        return OK;
    }
    dev->residual = msar_view(dev, branch / dev->shape.msar_branches + 1, 0, 0);
    struct msar_phase read = phase;
    read.fn = read_item;
    read.n_streams = dev->shape.n_msar_streams;
    run_phase(&read, dev->n_rows, 2 * phase.n_sources);
    phase.fn = mix_item;
    run_phase(&phase, dev->n_rows, read.n_streams * (read.n_streams + 2));
    return OK;
}
