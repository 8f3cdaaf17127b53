/* msar.cu: the residual path of MSAR models (kernels/cpu/msar.c has the formulas and who reads what
 * history), in float32.
 *
 *   push l    expand   view r of the newest source, r >= 1: a sum over former positions
 *   read l    depth    a block a (row, stream): softmax over the sources, z; what z adds to the gates;
 *                      the newest source's norm; its vector into the ring
 *             mix      x = sum over streams of sigmoid(gate) z
 *   readout   depth    over view 0, rows with logits only: x at once
 *
 * A view is read once a branch: the sources' vectors stay in registers between their scores and the
 * sum that these weigh. So norms and the ring cost no pass of their own either. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/msar.h"
#include "kernels/cuda/vec4.h"

/* ---- push ---------------------------------------------------------------------------------------
 *
 *   view r [row, :] = sum_delta conv_r[delta, :] v[pos - delta, :]      delta < kappa_r, pos - delta >= 0
 *
 *   v[t] of a row: view 0 of this forward's rows from `own`'s first position on, before it the ring.
 *
 *   block: EXPAND_ROWS rows x 4 EXPAND_THREADS columns of one stream; a thread has 4 columns of all
 *          rows, so a weight is read once for EXPAND_ROWS rows and neighbours' history is in the
 *          first-level cache:
 *
 *     row:     t0  t1 .. t7      table[row][delta]: where v lies, found once for all columns
 *     delta 0  |x| |x|   |x|
 *     delta 1  |x| |x|   |x|     sums: one chain a number, ascending delta
 *
 * Bytes: R - 1 views of d out; d in, and kappa rows of weights for every EXPAND_ROWS rows (from the
 * second-level cache). Bound by bytes. */
enum { EXPAND_ROWS = 8, EXPAND_THREADS = 128 };

struct expand_args {
    const struct counts *counts;
    const struct row *rows;
    const struct seg *segments;
    float *views;       /* of the newest source, [R][max_rows][ld] */
    const float *rings; /* at this push */
    const float *conv[MAX_MSAR_STREAMS];
    uint32_t kernels[MAX_MSAR_STREAMS];
    uint32_t max_rows, ld, ring_len, n_pushes;
};

GPU_INLINE const float *find_history(const expand_args &a, uint32_t row, uint32_t delta) {
    const struct row r = a.rows[row];
    if (delta > r.pos) return NULL;
    const uint32_t t = r.pos - delta;
    const int32_t own = a.segments[r.segment].own;
    if (delta == 0) return a.views + (size_t)row * a.ld;
    if (own >= 0 && t >= a.segments[own].pos)
        return a.views + (size_t)(a.segments[own].first_row + t - a.segments[own].pos) * a.ld;
    const size_t place = (size_t)r.slot * a.ring_len + t % a.ring_len;
    return a.rings + place * a.n_pushes * a.ld;
}

static __global__ void __launch_bounds__(EXPAND_THREADS) expand(expand_args a) {
    GPU_DYN_SHARED(const float *, table);
    const uint32_t n_rows = a.counts->n_rows, first = blockIdx.y * EXPAND_ROWS;
    const uint32_t stream = blockIdx.z + 1, kappa = a.kernels[stream];
    const uint32_t col = (blockIdx.x * EXPAND_THREADS + threadIdx.x) * 4;
    if (first >= n_rows) return;
    for (uint32_t i = threadIdx.x; i < kappa * EXPAND_ROWS; i += EXPAND_THREADS) {
        const uint32_t row = first + i % EXPAND_ROWS;
        table[i] = row < n_rows ? find_history(a, row, i / EXPAND_ROWS) : NULL;
    }
    __syncthreads();
    if (col >= a.ld) return;
    vec4 sums[EXPAND_ROWS];
    GPU_UNROLL
    for (int j = 0; j < EXPAND_ROWS; j++)
        sums[j] = zero4();
    for (uint32_t delta = 0; delta < kappa; delta++) {
        const vec4 c = load4(a.conv[stream] + (size_t)delta * a.ld + col);
        vec4 v[EXPAND_ROWS];
        bool there[EXPAND_ROWS];
        GPU_UNROLL
        for (int j = 0; j < EXPAND_ROWS; j++) {
            const float *from = table[delta * EXPAND_ROWS + j];
            there[j] = from != NULL;
            v[j] = there[j] ? load4(from + col) : zero4();
        }
        GPU_UNROLL
        for (int j = 0; j < EXPAND_ROWS; j++)
            if (there[j]) sums[j] = muladd4(c, v[j], sums[j]);
    }
    float *out = a.views + ((size_t)stream * a.max_rows + first) * a.ld + col;
    GPU_UNROLL
    for (uint32_t j = 0; j < EXPAND_ROWS; j++)
        if (first + j < n_rows) store4(out + (size_t)j * a.ld, sums[j]);
}

extern "C" cudaError_t gpu_msar_push(const struct device *dev, uint32_t push, cudaStream_t stream) {
    const struct model_shape *s = &dev->shape;
    const struct gpu_msar *m = &dev->msar;
    const uint32_t source = msar_source(s, push), n_streams = s->n_msar_streams;
    expand_args a = {};
    uint32_t most = 1;
    if (push >= m->n_pushes) return cudaErrorInvalidValue;
    if (n_streams == 1 || dev->grid.rows == 0) return cudaSuccess;
    a.counts = dev->batch.counts;
    a.rows = dev->batch.rows;
    a.segments = dev->batch.segments;
    a.views = gpu_msar_view(dev, source, 0);
    a.rings = m->rings + (size_t)push * dev->ld_model;
    for (uint32_t r = 1; r < n_streams; r++) {
        a.conv[r] = gpu_msar_weight(dev, WEIGHT_MSAR_CONV, source * (n_streams - 1) + r - 1);
        a.kernels[r] = s->msar_kernels[r];
        if (a.kernels[r] > most) most = a.kernels[r];
    }
    a.max_rows = dev->limits.max_rows;
    a.ld = dev->ld_model;
    a.ring_len = m->ring_len;
    a.n_pushes = m->n_pushes;
    const dim3 grid((unsigned)div_ceil(a.ld, 4 * EXPAND_THREADS),
                    (unsigned)div_ceil(dev->grid.rows, EXPAND_ROWS), n_streams - 1);
    return GPU_LAUNCH(expand, grid, dim3(EXPAND_THREADS), most * EXPAND_ROWS * sizeof(float *),
                      stream, a);
}

/* ---- depth --------------------------------------------------------------------------------------
 *
 *   score_s = (w . v_s) / sqrt(mean(v_s^2) + eps)      z = sum_s softmax_s(score) v_s
 *   gates[row][r][k] = M[k, r] . z, k < R;   gates[row][r][R] = z . z
 *
 *   A block has one stream of a row; thread t holds columns 4 (t + i blockDim) ..+ 3, i < PER, of up to
 *   CHUNK sources at once (so many that two blocks fit on a multiprocessor):
 *
 *     sources:  | 0 1 2 3 4 5 | 6 7 ..       chunks at absolute multiples of CHUNK: online softmax
 *                v in registers  merged in    (Milakov & Gimelshein 2018), ascending
 *
 * Two barriers a chunk: all its scores are summed together. Sums: a thread's numbers ascending, then
 * warp_sum, then the warps by another. Blocks have a size that follows from d alone.
 * Bytes: n_sources x d floats of views in and z out; w, and for the gates R rows of M, come from the
 * second-level cache. Bound by the views' bytes. */
enum { DEPTH_THREADS = 512, SUMS_MAX = MAX_MSAR_STREAMS + 1 };

struct depth_args {
    const struct counts *counts;
    const struct row *rows;
    const struct seg *segments;
    const uint32_t *logit_rows; /* readout: which rows; else NULL */
    const float *views;
    float *inverse;
    const float *query; /* [R][ld] */
    const float *mix;   /* [R][R][ld] */
    float *out;         /* z, or x */
    float *gates;
    float *rings; /* at this push; NULL: none is entered */
    uint32_t n_sources, n_streams, max_rows, d, ld, ring_len, n_pushes;
    float eps;
};

/* Sums over the block, many at a time: each thread puts its share of every sum k < n; then all
 * receive total[k], times factors[k] where there are factors. Two barriers; free to use again. */
struct block_sums {
    float part[SUMS_MAX][WARP], total[SUMS_MAX];
};

GPU_INLINE void put_sum(block_sums *b, uint32_t k, float v) {
    const float sum = warp_sum(v);
    if (threadIdx.x % WARP == 0) b->part[k][threadIdx.x / WARP] = sum;
}
GPU_INLINE void make_totals(block_sums *b, uint32_t n, const float *factors) {
    const uint32_t lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;
    __syncthreads();
    for (uint32_t k = threadIdx.x / WARP; k < n; k += n_warps) {
        const float sum = warp_sum(lane < n_warps ? b->part[k][lane] : 0.0f);
        if (lane == 0) b->total[k] = factors ? sum * factors[k] : sum;
    }
    __syncthreads();
}

/* The newest source of base rows: into its place of the ring; of a chunk longer than the ring,
 * only what would not be overwritten. */
template <int PER>
GPU_INLINE void enter_ring(const depth_args &a, uint32_t row, const vec4 (&v)[PER]) {
    const uint32_t first = threadIdx.x * 4, stride = blockDim.x * 4;
    const struct row r = a.rows[row];
    const struct seg s = a.segments[r.segment];
    if (r.view != VIEW_BASE || s.n_rows - (row - s.first_row) > a.ring_len) return;
    const size_t place = (size_t)r.slot * a.ring_len + r.pos % a.ring_len;
    float *to = a.rings + place * a.n_pushes * a.ld + first;
    GPU_UNROLL
    for (uint32_t i = 0; i < PER; i++)
        if (first + i * stride < a.ld) store4(to + i * stride, v[i]);
}

/* The shares of z in the gates of its row, and of its squares. */
template <int PER>
GPU_INLINE void put_gates(const depth_args &a, block_sums *b, uint32_t stream,
                          const vec4 (&z)[PER]) {
    const uint32_t first = threadIdx.x * 4, stride = blockDim.x * 4;
    float squares = 0.0f;
    for (uint32_t k = 0; k < a.n_streams; k++) {
        const float *mix = a.mix + ((size_t)k * a.n_streams + stream) * a.ld + first;
        float sum = 0.0f;
        GPU_UNROLL
        for (uint32_t i = 0; i < PER; i++)
            if (first + i * stride < a.ld) sum = dot4(load4(mix + i * stride), z[i], sum);
        put_sum(b, k, sum);
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < PER; i++)
        squares = dot4(z[i], z[i], squares);
    put_sum(b, a.n_streams, squares);
}

template <int PER, int CHUNK>
static __global__ void __launch_bounds__(DEPTH_THREADS, PER <= 2 ? 2 : 1) depth(depth_args a) {
    static_assert(CHUNK < SUMS_MAX, "a chunk's scores, and the newest's squares");
    __shared__ block_sums sums;
    __shared__ float norms[CHUNK + 1];
    if (blockIdx.x >= (a.logit_rows ? a.counts->n_logit_rows : a.counts->n_rows)) return;
    const uint32_t row = a.logit_rows ? a.logit_rows[blockIdx.x] : blockIdx.x;
    const uint32_t stream = blockIdx.y, newest = a.n_sources - 1;
    const uint32_t first = threadIdx.x * 4, stride = blockDim.x * 4;
    const size_t next = (size_t)a.n_streams * a.max_rows; /* rows from a source to the next */
    const size_t at = (size_t)stream * a.max_rows + row;
    vec4 z[PER];
    float best = -INFINITY, weights = 0.0f;
    GPU_UNROLL
    for (int i = 0; i < PER; i++)
        z[i] = zero4();
    for (uint32_t s0 = 0; s0 < a.n_sources; s0 += CHUNK) {
        vec4 v[CHUNK][PER];
        float dots[CHUNK], squares = 0.0f;
        GPU_UNROLL
        for (uint32_t j = 0; j < CHUNK; j++) {
            const float *from = a.views + (at + (s0 + j) * next) * a.ld + first;
            dots[j] = 0.0f;
            GPU_UNROLL
            for (uint32_t i = 0; i < PER; i++) {
                const bool ok = s0 + j <= newest && first + i * stride < a.ld;
                v[j][i] = ok ? load4(from + i * stride) : zero4();
            }
        }
        if (threadIdx.x <= CHUNK) {
            const uint32_t s = s0 + threadIdx.x;
            norms[threadIdx.x] =
                threadIdx.x < CHUNK && s < newest ? a.inverse[at + s * next] : 1.0f;
        }
        GPU_UNROLL
        for (uint32_t i = 0; i < PER; i++) {
            if (first + i * stride >= a.ld) break;
            const vec4 w = load4(a.query + (size_t)stream * a.ld + first + i * stride);
            GPU_UNROLL
            for (uint32_t j = 0; j < CHUNK; j++)
                dots[j] = dot4(w, v[j][i], dots[j]);
        }
        GPU_UNROLL
        for (uint32_t j = 0; j < CHUNK; j++) {
            put_sum(&sums, j, dots[j]);
            if (s0 + j != newest) continue;
            GPU_UNROLL
            for (uint32_t i = 0; i < PER; i++)
                squares = dot4(v[j][i], v[j][i], squares);
            if (a.rings && stream == 0) enter_ring<PER>(a, row, v[j]);
        }
        put_sum(&sums, CHUNK, squares);
        make_totals(&sums, CHUNK + 1, norms);

        const float inverse = 1.0f / sqrtf(sums.total[CHUNK] / (float)a.d + a.eps); /* newest's */
        float most = best;
        GPU_UNROLL
        for (uint32_t j = 0; j < CHUNK; j++) {
            dots[j] = sums.total[j] * (s0 + j == newest ? inverse : 1.0f);
            if (s0 + j <= newest) most = fmaxf(most, dots[j]);
            if (s0 + j == newest && threadIdx.x == 0) a.inverse[at + newest * next] = inverse;
        }
        const float shrink = expf(best - most);
        best = most;
        weights *= shrink;
        GPU_UNROLL
        for (int i = 0; i < PER; i++)
            z[i] = scaled4(z[i], shrink);
        GPU_UNROLL
        for (uint32_t j = 0; j < CHUNK; j++) {
            if (s0 + j > newest) break;
            const float weight = expf(dots[j] - best);
            weights += weight;
            GPU_UNROLL
            for (int i = 0; i < PER; i++)
                add4(&z[i], weight, v[j][i]);
        }
    }
    const size_t out = a.logit_rows ? row : (size_t)row * a.n_streams + stream;
    GPU_UNROLL
    for (uint32_t i = 0; i < PER; i++) {
        GPU_UNROLL
        for (int k = 0; k < 4; k++)
            z[i].at[k] /= weights;
        if (first + i * stride < a.ld) store4(a.out + out * a.ld + first + i * stride, z[i]);
    }
    if (a.logit_rows) return;
    put_gates<PER>(a, &sums, stream, z);
    make_totals(&sums, a.n_streams + 1, NULL);
    if (threadIdx.x <= a.n_streams)
        a.gates[out * (a.n_streams + 1) + threadIdx.x] = sums.total[threadIdx.x];
}

static cudaError_t launch_depth(const depth_args &a, uint32_t rows, uint32_t n_streams,
                                cudaStream_t stream) {
    uint32_t per = 1;
    while (a.ld / 4 > per * DEPTH_THREADS)
        per *= 2;
    const dim3 grid(rows, n_streams), block((unsigned)align_up(div_ceil(a.ld / 4, per), WARP));
    switch (per) {
    case 1:
        return GPU_LAUNCH((depth<1, 6>), grid, block, 0, stream, a);
    case 2:
        return GPU_LAUNCH((depth<2, 3>), grid, block, 0, stream, a);
    case 4:
        return GPU_LAUNCH((depth<4, 2>), grid, block, 0, stream, a);
    case 8:
        return GPU_LAUNCH((depth<8, 1>), grid, block, 0, stream, a);
    default:
        return cudaErrorInvalidValue; /* d_model beyond 16384 */
    }
}

/* ---- mix ----------------------------------------------------------------------------------------
 *
 *   g_k = sum_r gates[r][k] / sqrt(sum_r gates[r][R] / (R d) + eps)
 *   x = sum_k sigmoid(a g_k + b_k) z_k
 *
 * A block has 4 MIX_THREADS columns of a row; the sums over streams are one chain each. At a block of
 * branches' first, its running sum becomes zero. Bytes: R d floats in, d (or 2 d) out. */
enum { MIX_THREADS = 256 };

struct mix_args {
    const struct counts *counts;
    const float *z, *gates, *scale, *bias;
    float *x, *sum; /* sum: NULL where a block goes on */
    uint32_t n_streams, d, ld;
    float eps;
};

static __global__ void mix(mix_args a) {
    __shared__ float weights[MAX_MSAR_STREAMS];
    const uint32_t row = blockIdx.x, n = a.n_streams; /* x: the grid's y ends at 65535 */
    const uint32_t col = (blockIdx.y * blockDim.x + threadIdx.x) * 4;
    if (row >= a.counts->n_rows) return;
    if (threadIdx.x < n) {
        const float *gates = a.gates + (size_t)row * n * (n + 1);
        float gate = 0.0f, squares = 0.0f;
        for (uint32_t r = 0; r < n; r++) {
            gate += gates[r * (n + 1) + threadIdx.x];
            squares += gates[r * (n + 1) + n];
        }
        const float inverse = 1.0f / sqrtf(squares / (float)(n * a.d) + a.eps);
        weights[threadIdx.x] =
            1.0f / (1.0f + expf(-(*a.scale * (gate * inverse) + a.bias[threadIdx.x])));
    }
    __syncthreads();
    if (col >= a.ld) return;
    vec4 x = zero4();
    for (uint32_t r = 0; r < n; r++)
        add4(&x, weights[r], load4(a.z + ((size_t)row * n + r) * a.ld + col));
    store4(a.x + (size_t)row * a.ld + col, x);
    if (a.sum) store4(a.sum + (size_t)row * a.ld + col, zero4());
}

/* ---- read --------------------------------------------------------------------------------------- */

static cudaError_t launch_mix(const struct device *dev, uint32_t branch, cudaStream_t stream) {
    mix_args a = {};
    a.counts = dev->batch.counts;
    a.z = dev->msar.z;
    a.gates = dev->msar.gates;
    a.scale = gpu_msar_weight(dev, WEIGHT_MSAR_MIX_SCALE, branch);
    a.bias = gpu_msar_weight(dev, WEIGHT_MSAR_MIX_BIAS, branch);
    a.x = dev->x;
    a.sum = branch % dev->shape.msar_branches == 0 ? gpu_msar_residual(dev, branch) : NULL;
    a.n_streams = dev->shape.n_msar_streams;
    a.d = dev->shape.d_model;
    a.ld = dev->ld_model;
    a.eps = dev->shape.rms_eps;
    uint32_t threads = (uint32_t)align_up(a.ld / 4, WARP);
    if (threads > MIX_THREADS) threads = MIX_THREADS;
    const dim3 grid(dev->grid.rows, (unsigned)div_ceil(a.ld, 4 * threads));
    return GPU_LAUNCH(mix, grid, dim3(threads), 0, stream, a);
}

extern "C" cudaError_t gpu_msar_read(const struct device *dev, uint32_t branch,
                                     cudaStream_t stream) {
    const struct gpu_msar *m = &dev->msar;
    const bool readout = branch == m->n_pushes;
    const uint32_t n_streams = dev->shape.n_msar_streams;
    const uint32_t rows = readout ? dev->grid.logit_rows : dev->grid.rows;
    depth_args a = {};
    if (branch > m->n_pushes) return cudaErrorInvalidValue;
    if (rows == 0) return cudaSuccess;
    a.counts = dev->batch.counts;
    a.rows = dev->batch.rows;
    a.segments = dev->batch.segments;
    a.views = m->views;
    a.inverse = m->inverse;
    a.n_sources = msar_source(&dev->shape, branch) + 1;
    a.n_streams = n_streams;
    a.max_rows = dev->limits.max_rows;
    a.d = dev->shape.d_model;
    a.ld = dev->ld_model;
    a.eps = dev->shape.rms_eps;
    if (readout) {
        a.logit_rows = dev->batch.logit_rows;
        a.query = gpu_msar_weight(dev, WEIGHT_MSAR_READOUT, 0);
        a.out = dev->x;
        return launch_depth(a, rows, 1, stream);
    }
    a.query = gpu_msar_weight(dev, WEIGHT_MSAR_QUERY, branch);
    a.mix = gpu_msar_weight(dev, WEIGHT_MSAR_MIX, branch);
    a.out = m->z;
    a.gates = m->gates;
    if (m->ring_len && !dev->drafting) a.rings = m->rings + (size_t)branch * a.ld;
    a.ring_len = m->ring_len;
    a.n_pushes = m->n_pushes;
    cudaError_t error = launch_depth(a, rows, n_streams, stream);
    return error == cudaSuccess ? launch_mix(dev, branch, stream) : error;
}

/* ---- state -------------------------------------------------------------------------------------- */

extern "C" cudaError_t gpu_msar_save(const struct device *dev, uint32_t slot, uint32_t pos,
                                     uint32_t n, uint32_t snapshot, bool load,
                                     cudaStream_t stream) {
    const struct gpu_msar *m = &dev->msar;
    const size_t position = (size_t)m->n_pushes * dev->ld_model;
    float *saved = m->snapshots + (size_t)snapshot * m->history * position;
    if (n > m->history || n > pos) return cudaErrorInvalidValue;
    for (uint32_t t = pos - n, run; t < pos; t += run, saved += run * position) {
        const uint32_t left = m->ring_len - t % m->ring_len; /* to the ring's end */
        run = pos - t < left ? pos - t : left;
        float *ring = gpu_msar_ring(dev, slot, t);
        cudaError_t error =
            cudaMemcpyAsync(load ? ring : saved, load ? saved : ring,
                            run * position * sizeof(float), cudaMemcpyDeviceToDevice, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

extern "C" cudaError_t gpu_msar_copy(const struct device *dev, uint32_t from_slot, uint32_t to_slot,
                                     cudaStream_t stream) {
    const size_t ring = (size_t)dev->msar.ring_len * dev->msar.n_pushes * dev->ld_model;
    if (ring == 0) return cudaSuccess;
    return cudaMemcpyAsync(gpu_msar_ring(dev, to_slot, 0), gpu_msar_ring(dev, from_slot, 0),
                           ring * sizeof(float), cudaMemcpyDeviceToDevice, stream);
}
