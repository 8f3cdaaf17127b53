/* attend_mma.cu: attention on tensor cores: bf16 rows over KV of bf16 or of bytes with scales.
 *
 *   A block has 1, 2 or 4 warps (items of up to 16, 32, 64 query rows), a warp 16 query rows:
 *
 *   query rows   warp 0 | S 16 x 64 | = Q 16 x HEAD . K^T      O 16 x HEAD += P 16 x 64 . V
 *                warp 1 | ...       |
 *                          KV_TILE positions, shared by all warps: K and V by cp.async into STAGES
 *                          buffers each, in rows 16 bytes longer than HEAD (no bank conflicts)
 *
 *   K0 V0 K1 V1 ... are groups of copies, in this order; K(j + STAGES) is asked for when Q K(j) is
 *   done, V(j + STAGES) when P V(j) is: 2 STAGES - 1 groups are in flight while a product runs.
 *
 * Few query rows (a decode) are bound by the bytes of KV: 64 KB of buffers for a block of one warp, of
 * which 48 are in flight (HEAD 128; two blocks an SM of 228 KB). Many (a prefill) are bound by
 * multiply-adds and by shared memory: a warp reads a KV tile of 32 KB for 128 mma.
 *
 * Numbers. A score is one chain over HEAD in steps of 16 (mma, float32). P is rounded to bf16 for
 * P V, not in its row's total. Thread t of a quad keeps the total of its own columns; the four are
 * added at the end of a split (1, then 2 apart). KV of bytes: integers as bf16, exact; scores times
 * the scale of K, probabilities times that of V, before rounding, save those that are 0.
 *
 * Bytes need no rearranging: ldmatrix takes two for one element. Of K a lane gets elements 4t ..
 * 4t + 3 of position g; bytes 0 and 2 are one register of B, 1 and 3 the other, and Q is loaded in
 * the same order. Of V (transposed) it gets elements 2g, 2g + 1 of positions 2t, 2t + 1: even bytes
 * are B of one mma, odd ones that of the next, whose columns are then elements 0 2 4 .. and 1 3 5 ..
 *
 * HEAD is head_dim rounded up to 16, 64 or 128 (chunks beyond ep are zero, and cost no bytes of KV);
 * larger heads are attend_f32.cu's. At 128 the sums over all splits lie in shared memory in the order of
 * the threads, since registers do not suffice. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/attend.h"

template <int HEAD_, bool BYTES_> struct mma_layout {
    enum {
        HEAD = HEAD_,
        BYTES = BYTES_,
        CHUNKS = HEAD * (BYTES ? 1 : 2) / 16, /* of 16 bytes, a position */
        ROW = 16 * CHUNKS + 16,
        BUFFER = KV_TILE * ROW + (BYTES ? KV_TILE * 2 : 0), /* scales behind */
        ALL_SHARED = HEAD >= 128,
        THREAD_ALL = ALL_SHARED ? 16 * (HEAD / 8) : 0, /* bytes */
    };
    static_assert((CHUNKS & (CHUNKS - 1)) == 0, "a warp is whole positions");
};

/* 32 pages from a multiple on, one a lane, and the next 32. */
enum { WINDOW = WARP / TILE_PAGES };
struct page_window {
    uint32_t now, next;
};
GPU_INLINE uint32_t lane_page(const struct attend_args *a, const struct attend_walk *w,
                              uint32_t tile) {
    return attend_page(a, w, tile / WINDOW * WARP + threadIdx.x % WARP);
}

/* Asks for K or V of a tile: some threads a position, a chunk each. */
template <class L>
GPU_INLINE void fill(char *buffer, const struct attend_args *a, const struct attend_walk *w,
                     uint32_t tile, uint32_t kv_head, uint32_t pages, bool v) {
    const int thread = (int)threadIdx.x, chunk = thread % L::CHUNKS,
              step = (int)blockDim.x / L::CHUNKS;
    const uint32_t row_bytes = a->ep * (L::BYTES ? 1 : 2), n_known = w->tile.hi - w->tile.lo;
    const bool within = 16 * (uint32_t)chunk < row_bytes;
    const size_t at = (v ? a->value_bytes : 0) + 16 * (size_t)chunk,
                 scales = 2 * a->value_bytes + (v ? 2 * PAGE_TOKENS : 0);
    for (int p = 0; p < TILE_PAGES; p++, buffer += PAGE_TOKENS * L::ROW) {
        const char *const page = attend_address(
            a, __shfl_sync(FULL_MASK, pages, (int)(tile % WINDOW) * TILE_PAGES + p), kv_head);
        const uint32_t pos = tile * KV_TILE + (uint32_t)(p * PAGE_TOKENS);
        for (int row = thread / L::CHUNKS; row < PAGE_TOKENS; row += step)
            cp_async16(buffer + row * L::ROW + 16 * chunk, page + at + (uint32_t)row * row_bytes,
                       within && pos + (uint32_t)row - w->tile.lo < n_known);
        if (L::BYTES && thread < 2) /* eight scales each */
            cp_async16(buffer + (KV_TILE - p * PAGE_TOKENS) * L::ROW + 2 * PAGE_TOKENS * p +
                           16 * thread,
                       page + scales + 16 * thread,
                       pos + 8 * (uint32_t)thread + 8 > w->tile.lo &&
                           pos + 8 * (uint32_t)thread < w->tile.hi);
    }
}

/* Until all groups of copies but the youngest 2 stages - 2 have come, here and in other threads. */
GPU_INLINE void wait_for_copies(uint32_t stages) {
    if (stages == 1)
        cp_async_wait<0>();
    else if (stages == 2)
        cp_async_wait<2>();
    else
        cp_async_wait<6>();
    __syncthreads();
}

/* Two elements of q; head_dim is even. */
GPU_INLINE uint32_t q_pair(const struct attend_args *a, const bf16 *q, int element) {
    return (uint32_t)element < a->head_dim ? *(const uint32_t *)(q + element) : 0;
}
/* The thread's part of A: elements 16 step .. 16 step + 15 of its two rows. */
template <class L>
GPU_INLINE void load_q(uint32_t out[4], const struct attend_args *a, const bf16 *const q[2],
                       int step) {
    const int t = (int)threadIdx.x % 4;
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        const uint32_t x = q_pair(a, q[r], 16 * step + (L::BYTES ? 4 * t : 2 * t));
        const uint32_t y = q_pair(a, q[r], 16 * step + (L::BYTES ? 4 * t + 2 : 2 * t + 8));
        out[r] = L::BYTES ? (x & 0xFFFFu) | y << 16 : x;
        out[2 + r] = L::BYTES ? x >> 16 | (y & 0xFFFF0000u) : y;
    }
}

/* s = 16 rows of q . K^T. */
template <class L>
GPU_INLINE void multiply_k(float (*s)[4], const uint32_t (*q)[4], const char *k) {
    const int lane = (int)threadIdx.x % WARP;
    GPU_UNROLL
    for (int i = 0; i < KV_TILE / 2; i++)
        s[i / 4][i % 4] = 0.0f;
    GPU_UNROLL
    for (int step = 0; step < L::HEAD / 16; step++) {
        uint32_t b[4], wide[2];
        if (L::BYTES) {
            GPU_UNROLL
            for (int n = 0; n < KV_TILE / 8; n += 4) {
                ldmatrix_x4(b, k + (8 * n + lane) * L::ROW + 16 * step);
                GPU_UNROLL
                for (int j = 0; j < 4; j++) {
                    bf16_of_spaced_bytes(wide, b[j]);
                    mma_m16n8k16(s[n + j], q[step], wide);
                }
            }
        } else {
            GPU_UNROLL
            for (int n = 0; n < KV_TILE / 8; n += 2) {
                ldmatrix_x4(b, k + (8 * n + lane / 16 * 8 + lane % 8) * L::ROW + 32 * step +
                                   lane / 8 % 2 * 16);
                mma_m16n8k16(s[n], q[step], b);
                mma_m16n8k16(s[n + 1], q[step], b + 2);
            }
        }
    }
}

/* o += P V; of s the probabilities, packed here. */
template <class L> GPU_INLINE void multiply_v(float (*o)[4], const float (*s)[4], const char *v) {
    const int lane = (int)threadIdx.x % WARP;
    GPU_UNROLL
    for (int step = 0; step < KV_TILE / 16; step += L::BYTES ? 2 : 1) {
        uint32_t p[2][4], b[4];
        GPU_UNROLL
        for (int i = 0; i < 8; i++) {
            const float *pair = &s[2 * step + i / 4 * 2 + i / 2 % 2][i % 2 * 2];
            if (L::BYTES || i < 4) p[i / 4][i % 4] = bf16_pair(pair[0], pair[1]);
        }
        GPU_UNROLL
        for (int n = 0; n < L::HEAD / 8; n += 2) {
            if (L::BYTES) {
                ldmatrix_x4_trans(b, v + (16 * step + lane) * L::ROW + 8 * n);
                GPU_UNROLL
                for (int half = 0; half < 2; half++) {
                    uint32_t x[2], y[2];
                    bf16_of_spaced_bytes(x, b[2 * half]);
                    bf16_of_spaced_bytes(y, b[2 * half + 1]);
                    const uint32_t even[2] = {x[0], y[0]}, odd[2] = {x[1], y[1]};
                    mma_m16n8k16(o[n], p[half], even);
                    mma_m16n8k16(o[n + 1], p[half], odd);
                }
            } else {
                ldmatrix_x4_trans(b,
                                  v + (16 * step + lane % 16) * L::ROW + 16 * n + lane / 16 * 16);
                mma_m16n8k16(o[n], p[0], b);
                mma_m16n8k16(o[n + 1], p[0], b + 2);
            }
        }
    }
}

/* Scores times the scales of K or probabilities times those of V, behind the tile. */
template <class L> GPU_INLINE void multiply_scales(float (*s)[4], const char *tile) {
    const uint32_t *scales = (const uint32_t *)(tile + KV_TILE * L::ROW) + threadIdx.x % 4;
    GPU_UNROLL
    for (int n = 0; n < KV_TILE / 8; n++) {
        const uint32_t pair = scales[4 * n];
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            const float d = i % 2 ? f16_hi(pair) : f16_lo(pair);
            s[n][i] = s[n][i] == 0.0f ? 0.0f : __fmul_rn(s[n][i], d);
        }
    }
}

/* What a thread knows of its two rows. */
struct mma_rows {
    uint32_t lo[2], hi[2];
    float most[2], sum[2]; /* of the split; sum: of the thread's own columns */
    float all_most[2], all_total[2];
    uint32_t least_lo, most_lo, least_hi, most_hi; /* of the warp's rows */
};
GPU_INLINE uint32_t first_query(void) { /* the second is 8 further */
    return threadIdx.x / WARP * 16 + threadIdx.x % WARP / 4;
}

/* Scores of a tile into probabilities; o is made ready to take in their sums. masked: the tile reaches
 * beyond some row's span. */
template <class L>
GPU_INLINE void softmax(float (*s)[4], float (*o)[4], struct mma_rows *rows, float scale,
                        uint32_t tile, bool masked) {
    const uint32_t pos = tile * KV_TILE + threadIdx.x % 4 * 2;
    if (masked) {
        GPU_UNROLL
        for (int i = 0; i < KV_TILE / 2; i++) {
            const uint32_t t = pos + (uint32_t)(i / 4 * 8 + i % 2);
            const int r = i / 2 % 2;
            if (t < rows->lo[r] || t >= rows->hi[r]) s[i / 4][i % 4] = -INFINITY;
        }
    }
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        float most = -INFINITY, sum = 0.0f, kept;
        GPU_UNROLL
        for (int n = 0; n < KV_TILE / 8; n++)
            most = fmaxf(most, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 1));
        most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 2));
        const float base = attend_raise(&rows->most[r], __fmul_rn(most, scale), &kept);
        GPU_UNROLL
        for (int i = 0; i < KV_TILE / 4; i++) {
            float *p = &s[i / 2][2 * r + i % 2];
            *p = exp2_approx(__fmaf_rn(*p, scale, -base));
            sum += *p;
        }
        rows->sum[r] = __fmaf_rn(rows->sum[r], kept, sum);
        GPU_UNROLL
        for (int n = 0; n < L::HEAD / 8; n++) {
            o[n][2 * r] = __fmul_rn(o[n][2 * r], kept);
            o[n][2 * r + 1] = __fmul_rn(o[n][2 * r + 1], kept);
        }
    }
}

/* The total of a row's split. */
GPU_INLINE float quad_sum(float sum) {
    sum += __shfl_xor_sync(FULL_MASK, sum, 1);
    return sum + __shfl_xor_sync(FULL_MASK, sum, 2);
}

/* The split is done: it joins those before, and the next begins from nothing. */
template <class L>
GPU_INLINE void join_split(float (*all)[4], float4 *all_shared, float (*o)[4],
                           struct mma_rows *rows) {
    float kept[2], share[2];
    bool some[2];
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(rows->sum[r]);
        some[r] = !(total == 0.0f); /* NaN is something */
        kept[r] = share[r] = 0.0f;
        if (some[r])
            attend_join(&rows->all_most[r], &rows->all_total[r], rows->most[r], total, &kept[r],
                        &share[r]);
        rows->most[r] = -INFINITY;
        rows->sum[r] = 0.0f;
    }
    GPU_UNROLL
    for (int n = 0; n < L::HEAD / 8; n++) {
        float sums[4];
        float4 *shared = all_shared + n * (int)blockDim.x + (int)threadIdx.x;
        if (L::ALL_SHARED) {
            const float4 v = *shared;
            sums[0] = v.x, sums[1] = v.y, sums[2] = v.z, sums[3] = v.w;
        }
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            float *sum = L::ALL_SHARED ? &sums[i] : &all[n][i];
            if (some[i / 2]) *sum = attend_join_sum(*sum, o[n][i], kept[i / 2], share[i / 2]);
            o[n][i] = 0.0f;
        }
        if (L::ALL_SHARED) *shared = make_float4(sums[0], sums[1], sums[2], sums[3]);
    }
}

/* A thread's elements of row r of a warp's result, two at a time. */
template <class L> GPU_INLINE int pair_element(int pair) {
    const int t = (int)threadIdx.x % 4;
    return pair / 2 * 16 + (L::BYTES ? 4 * t + pair % 2 * 2 : 2 * t + pair % 2 * 8);
}
template <class L> GPU_INLINE float2 pair_of(const float (*o)[4], int pair, int r) {
    const int n = pair / 2 * 2, half = pair % 2;
    return L::BYTES ? make_float2(o[n][2 * r + half], o[n + 1][2 * r + half])
                    : make_float2(o[n + half][2 * r], o[n + half][2 * r + 1]);
}

/* The split's sums, not divided. */
template <class L>
GPU_INLINE void store_part(const struct attend_args *a, const float (*o)[4],
                           const struct mma_rows *rows, int r, size_t part) {
    GPU_UNROLL
    for (int pair = 0; pair < L::HEAD / 8; pair++) {
        const int element = pair_element<L>(pair);
        if ((uint32_t)element < a->ep)
            *(float2 *)(a->parts + part * a->ep + element) = pair_of<L>(o, pair, r);
    }
    if (threadIdx.x % 4 == 0)
        *(float2 *)(a->part_stats + 2 * part) = make_float2(rows->most[r], rows->sum[r]);
}
template <class L>
GPU_INLINE void store_row(const struct attend_args *a, const float (*all)[4],
                          const float4 *all_shared, float total, int r, bf16 *out) {
    const float share = __frcp_rn(total);
    GPU_UNROLL
    for (int n = 0; n < L::HEAD / 8; n += 2) {
        float two[2][4];
        GPU_UNROLL
        for (int j = 0; j < 2; j++) {
            if (L::ALL_SHARED) {
                const float4 v = all_shared[(n + j) * (int)blockDim.x + (int)threadIdx.x];
                two[j][0] = v.x, two[j][1] = v.y, two[j][2] = v.z, two[j][3] = v.w;
            } else {
                GPU_UNROLL
                for (int i = 0; i < 4; i++)
                    two[j][i] = all[n + j][i];
            }
        }
        GPU_UNROLL
        for (int half = 0; half < 2; half++) {
            const int element = pair_element<L>(n + half);
            const float2 v = pair_of<L>(two, half, r);
            if ((uint32_t)element < a->head_dim)
                *(uint32_t *)(out + element) =
                    bf16_pair(__fmul_rn(v.x, share), __fmul_rn(v.y, share));
        }
    }
}

GPU_INLINE uint32_t warp_min_of_groups(uint32_t v) {
    GPU_UNROLL
    for (int offset = 4; offset < WARP; offset *= 2)
        v = min(v, __shfl_xor_sync(FULL_MASK, v, offset));
    return v;
}

/* The thread's two rows; those beyond the last are the last one again, and never stored. */
template <class L>
GPU_INLINE void begin_rows(struct mma_rows *rows, uint32_t (*q)[4], const struct attend_args *a,
                           const struct attend_walk *w, uint32_t kv_head) {
    const bf16 *q_at[2];
    GPU_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t query = min(first_query() + 8 * r, w->n_query - 1);
        const uint32_t row = attend_row(a, w, query);
        q_at[r] = (const bf16 *)a->q + attend_element(a, row, query, kv_head);
        rows->lo[r] = a->rows[row].lo;
        rows->hi[r] = a->rows[row].hi;
    }
    GPU_UNROLL
    for (int step = 0; step < L::HEAD / 16; step++)
        load_q<L>(q[step], a, q_at, step);
    rows->least_lo = warp_min_of_groups(min(rows->lo[0], rows->lo[1]));
    rows->most_lo = ~warp_min_of_groups(~max(rows->lo[0], rows->lo[1]));
    rows->least_hi = warp_min_of_groups(min(rows->hi[0], rows->hi[1]));
    rows->most_hi = ~warp_min_of_groups(~max(rows->hi[0], rows->hi[1]));
}

/* The loop begins `stages` tiles early, when there is only something to ask for. */
template <class L>
GPU_INLINE void mma_item(const struct attend_args *a, uint32_t number, uint32_t kv_head,
                         char *shared) {
    const struct attend_walk w = attend_begin(a, number);
    const bool in_parts = w.item.part != GPU_NONE;
    const bool works = threadIdx.x / WARP * 16 < w.n_query; /* a warp without rows only copies */
    const int stages = (int)a->stages, first = (int)w.first, end = (int)w.end;
    float4 *const all_shared = (float4 *)(shared + 2 * stages * L::BUFFER);
    uint32_t q[L::HEAD / 16][4] = {};
    float o[L::HEAD / 8][4], all[L::ALL_SHARED ? 1 : L::HEAD / 8][4], s[KV_TILE / 8][4];
    struct mma_rows rows = {};
    GPU_UNROLL
    for (int r = 0; r < 2; r++)
        rows.most[r] = rows.all_most[r] = -INFINITY;
    GPU_UNROLL
    for (int n = 0; n < L::HEAD / 8; n++) {
        if (L::ALL_SHARED)
            all_shared[n * (int)blockDim.x + (int)threadIdx.x] =
                make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            o[n][i] = 0.0f;
            if (!L::ALL_SHARED) all[n][i] = 0.0f;
        }
    }
    struct page_window window = {lane_page(a, &w, w.first), lane_page(a, &w, w.first + WINDOW)};
    int slot = 0;
    for (int tile = first - stages; tile < end; tile++) {
        char *const k = shared + slot * L::BUFFER, *const v = k + stages * L::BUFFER;
        const uint32_t t0 = (uint32_t)tile * KV_TILE, t1 = t0 + KV_TILE;
        const int later = tile + stages;
        const bool active = works && tile >= first && t0 < rows.most_hi && t1 > rows.least_lo;
        if (active) {
            multiply_k<L>(s, q, k);
            if (L::BYTES) multiply_scales<L>(s, k);
            softmax<L>(s, o, &rows, a->scale, (uint32_t)tile,
                       t0 < rows.most_lo || t1 > rows.least_hi);
        }
        wait_for_copies(a->stages); /* V is there, and all are done with K */
        if (later % WINDOW == 0 && later > first) {
            window.now = window.next;
            window.next = lane_page(a, &w, (uint32_t)later + WINDOW);
        }
        if (later < end) fill<L>(k, a, &w, (uint32_t)later, kv_head, window.now, false);
        cp_async_commit();
        if (active) {
            if (L::BYTES) multiply_scales<L>(s, v);
            multiply_v<L>(o, s, v);
        }
        if (tile >= first && !in_parts && works && (t1 % SPLIT == 0 || tile + 1 == end))
            join_split<L>(all, all_shared, o, &rows);
        wait_for_copies(a->stages); /* the next K is there, and all are done with V */
        if (later < end) fill<L>(v, a, &w, (uint32_t)later, kv_head, window.now, true);
        cp_async_commit();
        if (tile + 1 == first && works) begin_rows<L>(&rows, q, a, &w, kv_head);
        slot = slot + 1 == stages ? 0 : slot + 1;
    }
    if (!works) return;
    GPU_UNROLL
    for (int r = 0; r < 2; r++) {
        const uint32_t query = first_query() + 8 * (uint32_t)r;
        rows.sum[r] = quad_sum(rows.sum[r]);
        if (query >= w.n_query) continue;
        if (in_parts)
            store_part<L>(a, o, &rows, r, attend_part(a, &w, query, kv_head));
        else
            store_row<L>(a, all, all_shared, rows.all_total[r], r,
                         (bf16 *)a->o +
                             attend_element(a, attend_row(a, &w, query), query, kv_head));
    }
}

template <int HEAD, bool BYTES>
static __global__ void __launch_bounds__(4 * WARP) attend_mma(struct attend_args a) {
    GPU_DYN_SHARED(char, shared);
    const uint32_t first = attend_first_item(&a), n_items = a.counts->n_items[a.kind];
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x)
        mma_item<mma_layout<HEAD, BYTES>>(&a, first + i, blockIdx.y, shared);
}

/* ---- choice ----------------------------------------------------------------------------------- */

/* One warp is to have much in flight; four share what they copy, and two blocks are to fit an SM
 * (164 KB before sm_90). */
template <class L> static uint32_t stages_of(uint32_t kind, int sm) {
    if (kind > 0) return L::HEAD == 128 && sm < 90 ? 1 : 2;
    const uint32_t fit = (64 << 10) / (2 * KV_TILE * 16 * L::CHUNKS);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}
template <int HEAD, bool BYTES> static struct attend_kernel kernel_of(uint32_t kind, int sm) {
    typedef mma_layout<HEAD, BYTES> layout;
    struct attend_kernel k = {attend_mma<HEAD, BYTES>, (uint32_t)WARP << kind, 1, 0, 0};
    k.stages = stages_of<layout>(kind, sm);
    k.shared_bytes = 2 * k.stages * layout::BUFFER + k.threads * (uint32_t)layout::THREAD_ALL;
    return k;
}
template <int HEAD> static struct attend_kernel kernel_for(bool bytes, uint32_t kind, int sm) {
    return bytes ? kernel_of<HEAD, true>(kind, sm) : kernel_of<HEAD, false>(kind, sm);
}
struct attend_kernel attend_mma_kernel(uint32_t ep, bool bytes, uint32_t kind, int sm) {
    if (ep <= 16) return kernel_for<16>(bytes, kind, sm);
    if (ep <= 64) return kernel_for<64>(bytes, kind, sm);
    return kernel_for<MMA_HEAD_MAX>(bytes, kind, sm);
}
