/* attend.cu: one query row and head against the paged K and V of its sequence.
 *
 *   o[r, h, :] = sum_t softmax_t(q[r, h, :] . k[t, g, :] / sqrt(D)) v[t, g, :]    g = h / (H / G)
 *                                                                               t < row_len[r]
 *   q [R, H, D] bf16   k, v [n_pages, G, P, D] bf16   block_table [S, T]   o [R, H, D] f32
 *
 *   t:     |<-- page 7 -->|<-- page 2 -->| ...      SPLIT = 64 positions = 4 pages a warp, at absolute
 *          |<---------- split 0 --------------->|   multiples; each leaves (max, sum, acc[D]) in work,
 *                                                   and the merge joins them in ascending order.
 *
 * Scores: lane = position of a tile of 32. Values: lane = two of the D dimensions. */
#include "kernels/cuda/gpu.h"
#include "tests/gpusim/kernels/kernels.h"

enum { D = ATTEND_D, P = ATTEND_PAGE, SPLIT = ATTEND_SPLIT, PART = D + 2 };

static __global__ void attend_split(float *work, const bf16 *q, const bf16 *k, const bf16 *v,
                                    const uint32_t *block_table, const int32_t *row_seq,
                                    const int32_t *row_len, attend_shape shape) {
    __shared__ float query[D], weight[WARP];
    const int lane = (int)threadIdx.x, split = (int)blockIdx.x, h = (int)blockIdx.y,
              r = (int)blockIdx.z;
    const int g = h / (shape.heads / shape.kv_heads), len = row_len[r];
    const uint32_t *table = block_table + (size_t)row_seq[r] * (size_t)shape.max_pages;
    float best = -INFINITY, sum = 0.0f, acc0 = 0.0f, acc1 = 0.0f;
    if (split * SPLIT >= len) return; /* the whole block */
    for (int i = lane; i < D; i += WARP)
        query[i] = to_f32(q[((size_t)r * (size_t)shape.heads + (size_t)h) * D + (size_t)i]);
    __syncwarp();
    for (int t0 = split * SPLIT; t0 < (split + 1) * SPLIT && t0 < len; t0 += WARP) {
        const int t = t0 + lane;
        float score = -INFINITY;
        if (t < len) {
            const size_t at = (((size_t)table[t / P] * (size_t)shape.kv_heads + (size_t)g) * P +
                               (size_t)(t % P)) *
                              D;
            score = 0.0f;
            for (int i = 0; i < D; i += 8) {
                const uint4 chunk = load16(k + at + i);
                const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
                GPU_UNROLL
                for (int j = 0; j < 4; j++) {
                    score += query[i + 2 * j] * bf16_lo(words[j]);
                    score += query[i + 2 * j + 1] * bf16_hi(words[j]);
                }
            }
            score *= rsqrtf((float)D);
        }
        const float tile_best = fmaxf(best, warp_max(score)), shrink = __expf(best - tile_best);
        weight[lane] = t < len ? __expf(score - tile_best) : 0.0f;
        sum = sum * shrink + warp_sum(weight[lane]);
        best = tile_best;
        acc0 *= shrink;
        acc1 *= shrink;
        __syncwarp();
        for (int j = 0; j < WARP && t0 + j < len; j++) {
            const int u = t0 + j;
            const size_t at = (((size_t)table[u / P] * (size_t)shape.kv_heads + (size_t)g) * P +
                               (size_t)(u % P)) *
                              D;
            const uint32_t pair = *(const uint32_t *)(v + at + 2 * lane);
            acc0 += weight[j] * bf16_lo(pair);
            acc1 += weight[j] * bf16_hi(pair);
        }
        __syncwarp(); /* before the next tile's weights */
    }
    float *part = work + (((size_t)r * (size_t)shape.heads + (size_t)h) * (size_t)shape.n_splits +
                          (size_t)split) *
                             PART;
    if (lane == 0) {
        part[0] = best;
        part[1] = sum;
    }
    part[2 + 2 * lane] = acc0;
    part[3 + 2 * lane] = acc1;
}

static __global__ void attend_merge(float *o, const float *work, const int32_t *row_len,
                                    attend_shape shape) {
    const int i = (int)threadIdx.x, h = (int)blockIdx.x, r = (int)blockIdx.y;
    const size_t row = (size_t)r * (size_t)shape.heads + (size_t)h;
    const float *part = work + row * (size_t)shape.n_splits * PART;
    float best = -INFINITY, sum = 0.0f, acc = 0.0f;
    for (int t = 0; t < row_len[r]; t += SPLIT, part += PART) {
        const float joint = fmaxf(best, part[0]);
        const float old_share = __expf(best - joint), share = __expf(part[0] - joint);
        sum = sum * old_share + part[1] * share;
        acc = acc * old_share + part[2 + i] * share;
        best = joint;
    }
    o[row * D + (size_t)i] = acc / sum;
}

extern "C" int launch_attend(float *o, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                             const uint32_t *block_table, const int32_t *row_seq,
                             const int32_t *row_len, float *work, struct attend_shape shape,
                             void *stream) {
    const unsigned rows = (unsigned)shape.rows, heads = (unsigned)shape.heads;
    const cudaStream_t s = (cudaStream_t)stream;
    const cudaError_t error = GPU_LAUNCH(attend_split, dim3((unsigned)shape.n_splits, heads, rows),
                                         dim3(WARP), 0, s, work, (const bf16 *)q, (const bf16 *)k,
                                         (const bf16 *)v, block_table, row_seq, row_len, shape);
    if (error) return error;
    return GPU_LAUNCH(attend_merge, dim3(heads, rows), dim3(D), 0, s, o, (const float *)work,
                      row_len, shape);
}
