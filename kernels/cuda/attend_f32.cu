/* attend_f32.cu: attention in float32, for every combination of types that attend_mma.cu does not take.
 *
 *   A block takes 16 query rows of an item (blockIdx.z: which 16) and has 4 warps, a warp 4 rows:
 *
 *   scores   lane = positions lane, lane + 32 of the KV tile; q broadcast, K in rows of ep + 4 floats
 *   softmax  a row is one warp's
 *   values   lane = elements lane, lane + 32, ... of its 4 rows; probabilities broadcast
 *
 * K and then V of a KV tile lie widened in one buffer. Bound by shared memory: 3 words for 8 multiply-
 * adds; a float32 model is for checking others, so K and V are not asked for ahead, and tiles of more
 * than 16 query rows read them again.
 *
 * Numbers. A score is one chain over ep; a position's probability enters a row's total by the butterfly
 * of warp_sum after that of the position 32 further was added; sums over V ascend. Bytes are widened
 * to d * integer, exact in float32. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/attend.h"

enum { ROWS = 16, WARP_ROWS = 4, WARPS = ROWS / WARP_ROWS, THREADS = WARPS * WARP };

/* Sixteen bytes of a row of KV from `from` on, as floats; bytes: times d. */
template <class T> struct chunk_of {
    enum { N = 16 / sizeof(T) };
};
GPU_INLINE void widen(float *to, uint4 v, float, float) {
    *(float4 *)to = make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                                __uint_as_float(v.w));
}
GPU_INLINE void widen(float *to, uint4 v, float, bf16) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2)
        *(float4 *)(to + 2 * i) = make_float4(bf16_lo(words[i]), bf16_hi(words[i]),
                                              bf16_lo(words[i + 1]), bf16_hi(words[i + 1]));
}
GPU_INLINE void widen(float *to, uint4 v, float d, int8_t) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    GPU_UNROLL
    for (int i = 0; i < 4; i++) {
        float f[4];
        GPU_UNROLL
        for (int j = 0; j < 4; j++)
            f[j] = __fmul_rn(d, (float)(int8_t)(words[i] >> 8 * j));
        *(float4 *)(to + 4 * i) = make_float4(f[0], f[1], f[2], f[3]);
    }
}

/* K or V of a tile into rows of ld floats; zero outside the span. */
template <class KV>
GPU_INLINE void fill(float *to, uint32_t ld, const struct attend_args *a,
                     const struct attend_walk *w, uint32_t tile, uint32_t kv_head, bool v) {
    const uint32_t row_chunks = a->ep / chunk_of<KV>::N;
    for (uint32_t i = threadIdx.x; i < KV_TILE * row_chunks; i += THREADS) {
        const uint32_t row = i / row_chunks, chunk = i % row_chunks, t = tile * KV_TILE + row;
        uint4 raw = make_uint4(0, 0, 0, 0);
        float d = 0.0f;
        if (t >= w->tile.lo && t < w->tile.hi) {
            const char *page = attend_address(a, attend_page(a, w, t / PAGE_TOKENS), kv_head);
            const uint32_t at = t % PAGE_TOKENS * row_chunks + chunk;
            raw = load16(page + (v ? a->value_bytes : 0) + 16 * (size_t)at);
            if (sizeof(KV) == 1)
                d = to_f32(
                    ((const f16 *)(page +
                                   2 * a->value_bytes))[(v ? PAGE_TOKENS : 0) + t % PAGE_TOKENS]);
        }
        widen(to + row * ld + chunk * (uint32_t)chunk_of<KV>::N, raw, d, KV());
    }
}

/* A warp's rows: whose they are, and (most, total) of the split at hand and of all before. */
struct f32_rows {
    uint32_t lo[WARP_ROWS], hi[WARP_ROWS];
    float most[WARP_ROWS], total[WARP_ROWS];
    float all_most[WARP_ROWS], all_total[WARP_ROWS];
};

/* Scores of the warp's rows at positions lane and lane + 32. */
GPU_INLINE void multiply_k(float (*s)[2], const float *q, const float *k, uint32_t ep,
                           uint32_t ld) {
    const uint32_t lane = threadIdx.x % WARP;
    GPU_UNROLL
    for (int r = 0; r < WARP_ROWS; r++)
        s[r][0] = s[r][1] = 0.0f;
    for (uint32_t e = 0; e < ep; e += 4) {
        const float4 x = *(const float4 *)(k + lane * ld + e);
        const float4 y = *(const float4 *)(k + (lane + WARP) * ld + e);
        GPU_UNROLL
        for (uint32_t r = 0; r < WARP_ROWS; r++) {
            const float4 f = *(const float4 *)(q + r * ep + e);
            s[r][0] = __fmaf_rn(f.x, x.x, s[r][0]);
            s[r][0] = __fmaf_rn(f.y, x.y, s[r][0]);
            s[r][0] = __fmaf_rn(f.z, x.z, s[r][0]);
            s[r][0] = __fmaf_rn(f.w, x.w, s[r][0]);
            s[r][1] = __fmaf_rn(f.x, y.x, s[r][1]);
            s[r][1] = __fmaf_rn(f.y, y.y, s[r][1]);
            s[r][1] = __fmaf_rn(f.z, y.z, s[r][1]);
            s[r][1] = __fmaf_rn(f.w, y.w, s[r][1]);
        }
    }
}

/* Scores into probabilities, p [row][KV_TILE]; o is made ready to take in their sums. */
template <int PER>
GPU_INLINE void softmax(float *p, const float (*s)[2], float (*o)[PER], struct f32_rows *rows,
                        float scale, uint32_t tile) {
    const uint32_t lane = threadIdx.x % WARP;
    GPU_UNROLL
    for (int r = 0; r < WARP_ROWS; r++) {
        float score[2], kept;
        GPU_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t t = tile * KV_TILE + lane + WARP * j;
            score[j] = t >= rows->lo[r] && t < rows->hi[r] ? s[r][j] : -INFINITY;
        }
        const float most = warp_max(fmaxf(score[0], score[1]));
        const float base = attend_raise(&rows->most[r], __fmul_rn(most, scale), &kept);
        const float p0 = exp2_approx(__fmaf_rn(score[0], scale, -base)),
                    p1 = exp2_approx(__fmaf_rn(score[1], scale, -base));
        rows->total[r] = __fmaf_rn(rows->total[r], kept, warp_sum(p0 + p1));
        p[r * KV_TILE + (int)lane] = p0;
        p[r * KV_TILE + (int)lane + WARP] = p1;
        GPU_UNROLL
        for (int i = 0; i < PER; i++)
            o[r][i] = __fmul_rn(o[r][i], kept);
    }
    __syncwarp();
}

template <int PER>
GPU_INLINE void multiply_v(float (*o)[PER], const float *p, const float *v, uint32_t ep,
                           uint32_t ld) {
    const uint32_t lane = threadIdx.x % WARP;
    for (int t = 0; t < KV_TILE; t++, v += ld) {
        GPU_UNROLL
        for (uint32_t i = 0; i < PER; i++) {
            const uint32_t element = lane + WARP * i;
            if (element >= ep) continue;
            const float x = v[element];
            GPU_UNROLL
            for (int r = 0; r < WARP_ROWS; r++)
                o[r][i] = __fmaf_rn(p[r * KV_TILE + t], x, o[r][i]);
        }
    }
}

template <int PER>
GPU_INLINE void join_split(float (*all)[PER], float (*o)[PER], struct f32_rows *rows) {
    GPU_UNROLL
    for (int r = 0; r < WARP_ROWS; r++) {
        float kept, share;
        if (!(rows->total[r] == 0.0f)) { /* NaN is something */
            attend_join(&rows->all_most[r], &rows->all_total[r], rows->most[r], rows->total[r],
                        &kept, &share);
            GPU_UNROLL
            for (int i = 0; i < PER; i++)
                all[r][i] = attend_join_sum(all[r][i], o[r][i], kept, share);
        }
        rows->most[r] = -INFINITY;
        rows->total[r] = 0.0f;
        GPU_UNROLL
        for (int i = 0; i < PER; i++)
            o[r][i] = 0.0f;
    }
}

template <class ACT, class KV, int PER>
GPU_INLINE void f32_item(const struct attend_args *a, uint32_t number, uint32_t kv_head,
                         float *shared) {
    const struct attend_walk w = attend_begin(a, number);
    const uint32_t lane = threadIdx.x % WARP, ep = a->ep, ld = ep + 4,
                   warp_row = threadIdx.x / WARP * WARP_ROWS, first_row = blockIdx.z * ROWS;
    if (first_row >= w.n_query) return; /* the whole block */
    const bool in_parts = w.item.part != GPU_NONE;
    float *const kv = shared, *const q = kv + KV_TILE * ld + warp_row * ep,
                 *const p = kv + KV_TILE * ld + ROWS * ep + warp_row * KV_TILE;
    float o[WARP_ROWS][PER], all[WARP_ROWS][PER], s[WARP_ROWS][2];
    struct f32_rows rows;
    GPU_UNROLL
    for (uint32_t r = 0; r < WARP_ROWS; r++) { /* rows beyond the last are the last one again */
        const uint32_t query = min(first_row + warp_row + r, w.n_query - 1);
        const uint32_t row = attend_row(a, &w, query);
        const ACT *from = (const ACT *)a->q + attend_element(a, row, query, kv_head);
        rows.lo[r] = a->rows[row].lo;
        rows.hi[r] = a->rows[row].hi;
        rows.most[r] = rows.all_most[r] = -INFINITY;
        rows.total[r] = rows.all_total[r] = 0.0f;
        for (uint32_t e = lane; e < ep; e += WARP)
            q[r * ep + e] = e < a->head_dim ? to_f32(from[e]) : 0.0f;
        GPU_UNROLL
        for (int i = 0; i < PER; i++)
            o[r][i] = all[r][i] = 0.0f;
    }
    for (uint32_t tile = w.first; tile < w.end; tile++) {
        fill<KV>(kv, ld, a, &w, tile, kv_head, false);
        __syncthreads();
        multiply_k(s, q, kv, ep, ld);
        softmax<PER>(p, s, o, &rows, a->scale, tile);
        __syncthreads(); /* all are done with K */
        fill<KV>(kv, ld, a, &w, tile, kv_head, true);
        __syncthreads();
        multiply_v<PER>(o, p, kv, ep, ld);
        __syncthreads(); /* before the next K, and the next item */
        if (!in_parts && ((tile + 1) % SPLIT_TILES == 0 || tile + 1 == w.end))
            join_split<PER>(all, o, &rows);
    }
    GPU_UNROLL
    for (uint32_t r = 0; r < WARP_ROWS; r++) {
        const uint32_t query = first_row + warp_row + r;
        if (query >= w.n_query) continue;
        const size_t part = attend_part(a, &w, query, kv_head);
        ACT *to = (ACT *)a->o + attend_element(a, attend_row(a, &w, query), query, kv_head);
        const float share = __frcp_rn(rows.all_total[r]);
        GPU_UNROLL
        for (uint32_t i = 0; i < PER; i++) {
            const uint32_t element = lane + WARP * i;
            if (in_parts && element < ep) a->parts[part * ep + element] = o[r][i];
            if (!in_parts && element < a->head_dim)
                to[element] = from_f32<ACT>(__fmul_rn(all[r][i], share));
        }
        if (in_parts && lane == 0)
            *(float2 *)(a->part_stats + 2 * part) = make_float2(rows.most[r], rows.total[r]);
    }
}

template <class ACT, class KV, int PER>
static __global__ void __launch_bounds__(THREADS, PER > 4 ? 2 : 3) attend_f32(struct attend_args a) {
    GPU_DYN_SHARED(float, shared);
    const uint32_t first = attend_first_item(&a), n_items = a.counts->n_items[a.kind];
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x)
        f32_item<ACT, KV, PER>(&a, first + i, blockIdx.y, shared);
}

/* ---- choice ----------------------------------------------------------------------------------- */

template <class ACT, class KV, int PER>
static struct attend_kernel kernel_of(uint32_t ep, uint32_t kind) {
    const uint32_t floats = KV_TILE * (ep + 4) + ROWS * ep + ROWS * KV_TILE;
    return {attend_f32<ACT, KV, PER>, THREADS, 1u << kind, floats * 4, 1};
}
struct attend_kernel attend_f32_kernel(uint32_t ep, enum dtype act, enum dtype kv, uint32_t kind) {
    const bool large = ep > MMA_HEAD_MAX;
    if (act == DTYPE_BF16) {
        if (!large) return kernel_of<bf16, float, 4>(ep, kind);
        if (kv == DTYPE_F32) return kernel_of<bf16, float, 8>(ep, kind);
        if (kv == DTYPE_BF16) return kernel_of<bf16, bf16, 8>(ep, kind);
        return kernel_of<bf16, int8_t, 8>(ep, kind);
    }
    if (kv == DTYPE_F32)
        return large ? kernel_of<float, float, 8>(ep, kind) : kernel_of<float, float, 4>(ep, kind);
    if (kv == DTYPE_BF16)
        return large ? kernel_of<float, bf16, 8>(ep, kind) : kernel_of<float, bf16, 4>(ep, kind);
    return large ? kernel_of<float, int8_t, 8>(ep, kind) : kernel_of<float, int8_t, 4>(ep, kind);
}
