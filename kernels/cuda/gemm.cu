/* gemm.cu: products of rows with a matrix, and what follows them at once.
 *
 *   s[r, n] = sum_k x[r, k] w[n, k] + bias[n]      r < rows, n < w.rows, k < ld = align_up(cols, 32)
 *   STORE  y[r, n] = s[r, n]       ADD  y[r, n] += s[r, n]
 *   SILU   y[r, j] = silu(s[r, gate j]) s[r, up j],   gate j = row 16 (j / 8) + j % 8 of w, up j 8 below
 *
 * Order of a sum, in every kernel that multiplies bf16, so that a row has the same bits in any batch:
 *
 *   k:       |c c c c c|c c c c c|c c c c c|c c c|     chunks of 32; four quarters of div_ceil(chunks, 4)
 *   quarter  chain 0   chain 1   chain 2   chain 3     a chain ascends from zero
 *   s        ((chain 0 + chain 1) + chain 2) + chain 3 (+ bias)
 *
 *   chunk    lane (g, t) = (lane / 4, lane % 4) holds elements 8t .. 8t + 7 of its rows. The first mma
 *            takes elements 8t .. 8t + 3 of each lane, the second 8t + 4 .. 8t + 7: K is permuted within
 *            the chunk, in both operands alike, and a lane reads 16 contiguous bytes
 *   bf16     chain = mma(second, mma(first, chain))
 *   q8_0     the bytes as bf16 (exact); chain = fma(scale, mma(second, mma(first, 0)), chain)
 *
 * Weights are the mma's A operand (16 rows of w), rows of x its B operand (8 of them); d[0], d[1] of lane
 * (g, t) belong to row g of w and rows 2t, 2t + 1 of x, d[2], d[3] to row g + 8 of w: in gate_up d[0]
 * is a gate, d[2] its up.
 *
 * Three kernels:
 *
 *   stream   up to 64 rows (q8_0: 32). A block owns 16 or 32 rows of w and each of its 4 warps a quarter
 *            of K. Bound by the bytes of w, which go from memory into registers, each once:
 *
 *              w rows 0 .. 15  [ warp 0 | warp 1 | warp 2 | warp 3 ]     a ring of DEPTH chunks a warp is
 *              w rows 16 .. 31 [ warp 0 | warp 1 | warp 2 | warp 3 ]     in flight: bf16 32 KiB a block
 *                                                                        and more, q8_0 16 KiB
 *            A load of a warp covers 64 bytes (q8_0: 32) of 8 rows: whole sectors. x comes through the
 *            first-level cache, which w does not enter, AHEAD chunks early. The four chains meet in
 *            shared memory. In bytes from L2 x weighs rows / 16 (/ 32) of w, in bf16, less what the
 *            first level holds for the next block.
 *   tiled    more rows. A block owns 64 x 64 or 128 x 128 sums (w by x; q8_0: 64 x 128), its 4 warps a
 *            quarter of them each, as 2 x 2. Chunks come by cp.async, STAGES of them in a ring:
 *
 *              w  [ BM x 32 ] [ BM x 32 ] [ BM x 32 ]      rows of 64 bytes back to back: 8 lanes read two
 *              x  [ BN x 32 ] [ BN x 32 ] [ BN x 32 ]      rows, 128 contiguous bytes, no bank conflict
 *
 *            At the end of a quarter the chains are added to totals in shared memory, in a place of the
 *            thread's own. 128 x 128: for a chunk a warp does 64 mma and 16 loads of 512 bytes, an SM of
 *            4 tensor cores 256 mma in 256 cycles at the very best (sm_90; some 400 by mma.sync, 512 on
 *            sm_80) and 256 cycles of shared loads beside them: bound by the tensor cores. q8_0 spends
 *            about as many instructions on widening and scaling as mma takes cycles. 64 x 64: 8 loads for
 *            16 mma, but four times the blocks: for fewer rows or small matrices, where bytes bind and
 *            SMs would idle.
 *   plain    f32 rows and weights: one fma chain over k in ascending order, whatever the tile. 64 fma a
 *            thread for 8 loads of 16 bytes: bound by shared memory; for exactness, not for speed.
 *
 * Sums leave through shared memory, so that stores to y are runs of whole sectors. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/cuda.h"

enum {
    CHUNK = 32,            /* of K */
    THREADS = 128,         /* of a block, in all three kernels */
    ROW_PAD = 4,           /* floats behind a row of sums: lanes (g, t) store to 32 banks */
    ROW_BYTES = CHUNK * 2, /* of a chunk in bf16 */
};

/* A call as kernels see it. */
struct product {
    const void *w, *x;
    const float *scales, *bias;
    void *y;
    const uint32_t *n_rows, *n_tail_rows;
    uint32_t w_rows, ld; /* rows of w that exist, padding included */
    uint32_t ldx, ldy, n_out, tail, max_rows;
    enum gemm_out out;
};

/* Rows that are stored: of columns before the tail, and from there on. */
struct row_limits {
    uint32_t body, tail;
};
GPU_INLINE row_limits load_limits(const product &p) {
    row_limits limits;
    limits.body = *p.n_rows;
    limits.tail = p.n_tail_rows ? min(limits.body, *p.n_tail_rows) : limits.body;
    return limits;
}
/* Of all columns of w from `first` on. */
GPU_INLINE uint32_t rows_from(const product &p, row_limits limits, uint32_t first) {
    return first >= p.tail ? limits.tail : limits.body;
}

/* ---- from sums to y --------------------------------------------------------------------------- */

GPU_INLINE float silu(float z) {
    return z / (1.0f + expf(-z));
}

GPU_INLINE void store_pair(float *y, float a, float b) {
    *(float2 *)y = make_float2(a, b);
}
GPU_INLINE void store_pair(bf16 *y, float a, float b) {
    *(uint32_t *)y = bf16_pair(a, b);
}

/* sums: PARTS tiles of BN rows of x by BM rows of w, which are added in order; w0, row0: what the first
 * sum belongs to. All threads of the block; after a barrier. */
template <class ACT, int BM, int BN, int PARTS>
GPU_INLINE void finish(const product &p, const float *sums, uint32_t w0, uint32_t row0,
                       row_limits limits) {
    const int LD = BM + ROW_PAD;
    const auto total = [=](int at) {
        float sum = sums[at];
        GPU_UNROLL
        for (int i = 1; i < PARTS; i++)
            sum += sums[at + i * BN * LD];
        return sum;
    };
    if (p.out == GEMM_SILU) {
        const uint32_t columns = (p.n_out + GPU_GROUP - 1) / GPU_GROUP * GPU_GROUP;
        for (int i = (int)threadIdx.x; i < BN * BM / 4; i += THREADS) {
            const int r = i / (BM / 4), j = i % (BM / 4) * 2, gate = j / 8 * 16 + j % 8;
            const uint32_t row = row0 + (uint32_t)r, column = w0 / 2 + (uint32_t)j;
            if (row >= limits.body || column >= columns) continue;
            float v[2];
            GPU_UNROLL
            for (int e = 0; e < 2; e++) {
                float g = total(r * LD + gate + e), u = total(r * LD + gate + e + 8);
                const bool there = column + (uint32_t)e < p.n_out;
                if (there && p.bias) {
                    g += p.bias[w0 + (uint32_t)(gate + e)];
                    u += p.bias[w0 + (uint32_t)(gate + e + 8)];
                }
                v[e] = there ? silu(g) * u : 0.0f;
            }
            store_pair((ACT *)p.y + (size_t)row * p.ldy + column, v[0], v[1]);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < BN * BM; i += THREADS) {
        const int r = i / BM, c = i % BM;
        const uint32_t row = row0 + (uint32_t)r, column = w0 + (uint32_t)c;
        if (column >= p.n_out || row >= rows_from(p, limits, column)) continue;
        float *y = (float *)p.y + (size_t)row * p.ldy + column, v = total(r * LD + c);
        if (p.bias) v += p.bias[column];
        *y = p.out == GEMM_ADD ? *y + v : v;
    }
}

/* ---- fragments -------------------------------------------------------------------------------- */

/* What a lane holds of 16 rows of w by a chunk, as it lies in memory: of rows g and g + 8. */
template <bool Q8> struct fragment;
template <> struct fragment<false> { uint4 low, high; };
template <> struct fragment<true> {
    uint2 low, high;
    float low_scale, high_scale;
};

/* Where a lane's part of a chunk of 16 rows of w lies: of row g, and how far off that of row g + 8. */
template <bool Q8> struct place;
template <> struct place<false> {
    const char *low;
    size_t high;
};
template <> struct place<true> {
    const char *low;
    size_t high;
    const float *scale;
    size_t high_scale;
};
GPU_INLINE void find(place<false> *at, const product &p, uint32_t row, int chunk) {
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    at->low = (const char *)p.w + ((size_t)(row + g) * p.ld + (uint32_t)chunk * CHUNK + 8 * t) * 2;
    at->high = (size_t)p.ld * 16;
}
GPU_INLINE void find(place<true> *at, const product &p, uint32_t row, int chunk) {
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4, ld = p.ld / CHUNK;
    at->low = (const char *)p.w + (size_t)(row + g) * p.ld + (uint32_t)chunk * CHUNK + 8 * t;
    at->high = (size_t)p.ld * 8;
    at->scale = p.scales + (size_t)(row + g) * ld + chunk;
    at->high_scale = (size_t)ld * 8;
}
GPU_INLINE void advance(place<false> *at, int chunks) {
    at->low += chunks * ROW_BYTES;
}
GPU_INLINE void advance(place<true> *at, int chunks) {
    at->low += chunks * CHUNK;
    at->scale += chunks;
}
/* The chunk `ahead` of the place. */
GPU_INLINE void load(fragment<false> *f, const place<false> &at, int ahead) {
    f->low = load16_once(at.low + ahead * ROW_BYTES);
    f->high = load16_once(at.low + at.high + ahead * ROW_BYTES);
}
GPU_INLINE void load(fragment<true> *f, const place<true> &at, int ahead) {
    f->low = load8_once(at.low + ahead * CHUNK);
    f->high = load8_once(at.low + at.high + ahead * CHUNK);
    f->low_scale = at.scale[ahead];
    f->high_scale = (at.scale + at.high_scale)[ahead];
}

/* The same as operands of two mma. */
template <bool Q8> struct operand {
    uint32_t first[4], second[4];
    float low_scale, high_scale;
};
GPU_INLINE void expand(operand<false> *a, const fragment<false> &f) {
    a->first[0] = f.low.x;
    a->first[1] = f.high.x;
    a->first[2] = f.low.y;
    a->first[3] = f.high.y;
    a->second[0] = f.low.z;
    a->second[1] = f.high.z;
    a->second[2] = f.low.w;
    a->second[3] = f.high.w;
}
GPU_INLINE void expand(operand<true> *a, const fragment<true> &f) {
    a->first[0] = bf16_of_bytes<false>(f.low.x);
    a->first[1] = bf16_of_bytes<false>(f.high.x);
    a->first[2] = bf16_of_bytes<true>(f.low.x);
    a->first[3] = bf16_of_bytes<true>(f.high.x);
    a->second[0] = bf16_of_bytes<false>(f.low.y);
    a->second[1] = bf16_of_bytes<false>(f.high.y);
    a->second[2] = bf16_of_bytes<true>(f.low.y);
    a->second[3] = bf16_of_bytes<true>(f.high.y);
    a->low_scale = f.low_scale;
    a->high_scale = f.high_scale;
}

/* chain += the chunk's products with 8 rows of x, of which x is the lane's part. */
GPU_INLINE void multiply(float chain[4], const operand<false> &a, uint4 x) {
    const uint32_t first[2] = {x.x, x.y}, second[2] = {x.z, x.w};
    mma_m16n8k16(chain, a.first, first);
    mma_m16n8k16(chain, a.second, second);
}
GPU_INLINE void multiply(float chain[4], const operand<true> &a, uint4 x) {
    const uint32_t first[2] = {x.x, x.y}, second[2] = {x.z, x.w};
    float sum[4] = {};
    mma_m16n8k16(sum, a.first, first);
    mma_m16n8k16(sum, a.second, second);
    chain[0] = fmaf(a.low_scale, sum[0], chain[0]);
    chain[1] = fmaf(a.low_scale, sum[1], chain[1]);
    chain[2] = fmaf(a.high_scale, sum[2], chain[2]);
    chain[3] = fmaf(a.high_scale, sum[3], chain[3]);
}

/* A lane's sums of 16 rows of w by 8 of x into a tile whose rows have LD floats; sums: the first one. */
template <int LD> GPU_INLINE void put(float *sums, const float chain[4]) {
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    sums[2 * t * LD + g] = chain[0];
    sums[(2 * t + 1) * LD + g] = chain[1];
    sums[2 * t * LD + g + 8] = chain[2];
    sums[(2 * t + 1) * LD + g + 8] = chain[3];
}

/* ---- up to 64 rows ---------------------------------------------------------------------------- */

/* One chunk of a warp: MT x 16 rows of w by NT x 8 of x. */
template <bool Q8, int MT, int NT>
GPU_INLINE void stream_chunk(float (*chain)[NT][4], const fragment<Q8> *w, const uint4 *x) {
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        operand<Q8> a;
        expand(&a, w[m]);
        GPU_UNROLL
        for (int n = 0; n < NT; n++)
            multiply(chain[m][n], a, x[n]);
    }
}

/* Blocks that an SM is to hold: it runs out of registers, which the rings of w and x take. */
constexpr int stream_blocks(int nt) {
    return nt == 1 ? 4 : nt == 2 ? 3 : 2;
}

template <bool Q8, int MT, int NT, int DEPTH, int AHEAD>
static __global__ void __launch_bounds__(THREADS, stream_blocks(NT)) stream(product p) {
    static_assert(DEPTH % AHEAD == 0, "the ring of x goes round with that of w");
    const int BM = 16 * MT, BN = 8 * NT, LD = BM + ROW_PAD;
    __shared__ float sums[GEMM_QUARTERS * BN * LD];
    const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const uint32_t w0 = blockIdx.x * BM, row0 = blockIdx.y * BN;
    const int quarter = (int)threadIdx.x / WARP;
    const int n_chunks = (int)(p.ld / CHUNK);
    const int run = (n_chunks + GEMM_QUARTERS - 1) / GEMM_QUARTERS;
    const int begin = min(quarter * run, n_chunks), end = min(begin + run, n_chunks);

    place<Q8> at[MT];
    fragment<Q8> w[DEPTH][MT];
    GPU_UNROLL
    for (int m = 0; m < MT; m++)
        find(&at[m], p, min(w0 + 16 * (uint32_t)m, p.w_rows - 16), begin);
    GPU_UNROLL
    for (int d = 0; d < DEPTH; d++)
        if (begin + d < end) {
            GPU_UNROLL
            for (int m = 0; m < MT; m++)
                load(&w[d][m], at[m], d);
        }
    /* The counts are for the end alone: a block that asked for them first had half of its loads of w wait.
     * Rows that are not there hold what they held, and are not stored; past the grid's last it is
     * repeated. */
    const char *x_at[NT];
    uint4 x[AHEAD][NT];
    GPU_UNROLL
    for (int n = 0; n < NT; n++) {
        const uint32_t row = min(row0 + 8 * (uint32_t)n + g, p.max_rows - 1);
        x_at[n] = (const char *)p.x + ((size_t)row * p.ldx + (uint32_t)begin * CHUNK + 8 * t) * 2;
    }
    GPU_UNROLL
    for (int d = 0; d < AHEAD; d++)
        if (begin + d < end) {
            GPU_UNROLL
            for (int n = 0; n < NT; n++)
                x[d][n] = load16(x_at[n] + d * ROW_BYTES);
        }

    float chain[MT][NT][4] = {};
    /* A chunk's place in the rings is filled again as soon as it was used; a `whole` turn need not ask
     * whether there is more. */
    int chunk = begin;
    const auto turn = [&](bool whole) {
        GPU_UNROLL
        for (int d = 0; d < DEPTH; d++) {
            if (!whole && chunk + d >= end) break;
            stream_chunk<Q8, MT, NT>(chain, w[d], x[d % AHEAD]);
            if (whole || chunk + d + AHEAD < end) {
                GPU_UNROLL
                for (int n = 0; n < NT; n++)
                    x[d % AHEAD][n] = load16(x_at[n] + (d + AHEAD) * ROW_BYTES);
            }
            if (whole || chunk + d + DEPTH < end) {
                GPU_UNROLL
                for (int m = 0; m < MT; m++)
                    load(&w[d][m], at[m], d + DEPTH);
            }
        }
        chunk += DEPTH;
        GPU_UNROLL
        for (int n = 0; n < NT; n++)
            x_at[n] += DEPTH * ROW_BYTES;
        GPU_UNROLL
        for (int m = 0; m < MT; m++)
            advance(&at[m], DEPTH);
    };
    while (chunk + 2 * DEPTH <= end)
        turn(true);
    while (chunk < end)
        turn(false);
    const row_limits limits = load_limits(p);

    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int n = 0; n < NT; n++)
            put<LD>(sums + (quarter * BN + 8 * n) * LD + 16 * m, chain[m][n]);
    }
    __syncthreads();
    finish<bf16, BM, BN, GEMM_QUARTERS>(p, sums, w0, row0, limits);
}

/* ---- many rows -------------------------------------------------------------------------------- */

/* What a block's shared memory holds, in bytes: totals and stages; at the end the sums, in their place. */
template <bool Q8, int BM, int BN, int STAGES> struct tiling {
    enum {
        MT = BM / 32, /* mma tiles of a warp */
        NT = BN / 16,
        W_ROW = Q8 ? (int)CHUNK : (int)ROW_BYTES,
        W_BYTES = BM * W_ROW,
        STAGE = W_BYTES + BN * ROW_BYTES,
        TOTALS = BM * BN * 4,
        SUMS = BN * (BM + ROW_PAD) * 4,
        SHARED = TOTALS + STAGES * STAGE,
    };
    static_assert((int)SUMS <= (int)SHARED, "the sums fit");
};

/* Ask for a chunk of the block's rows of w and x. */
template <bool Q8, int BM, int BN>
GPU_INLINE void fill(unsigned char *stage, const product &p, uint32_t w0, uint32_t row0,
                     uint32_t rows, int chunk) {
    const int W_ROW = Q8 ? CHUNK : ROW_BYTES, W_PIECES = W_ROW / 16, X_PIECES = ROW_BYTES / 16;
    GPU_UNROLL
    for (int i = (int)threadIdx.x; i < BM * W_PIECES; i += THREADS) {
        const uint32_t row = w0 + (uint32_t)(i / W_PIECES);
        const size_t at = ((size_t)row * p.ld + chunk * CHUNK) * (Q8 ? 1 : 2);
        cp_async16(stage + 16 * i, (const char *)p.w + at + 16 * (i % W_PIECES), row < p.w_rows);
    }
    unsigned char *x = stage + BM * W_ROW;
    GPU_UNROLL
    for (int i = (int)threadIdx.x; i < BN * X_PIECES; i += THREADS) {
        const uint32_t row = row0 + (uint32_t)(i / X_PIECES);
        const size_t at = ((size_t)row * p.ldx + chunk * CHUNK) * 2;
        cp_async16(x + 16 * i, (const char *)p.x + at + 16 * (i % X_PIECES), row < rows);
    }
}

GPU_INLINE void read_stage(fragment<false> *f, const unsigned char *w, const float *, uint32_t) {
    f->low = load16(w);
    f->high = load16(w + 8 * ROW_BYTES);
}
/* Scales come from memory: a sector has those of eight chunks, and mma runs meanwhile. */
GPU_INLINE void read_stage(fragment<true> *f, const unsigned char *w, const float *scale,
                           uint32_t ld) {
    f->low = *(const uint2 *)w;
    f->high = *(const uint2 *)(w + 8 * CHUNK);
    f->low_scale = scale[0];
    f->high_scale = scale[8 * ld];
}

template <bool Q8, int BM, int BN, int STAGES>
static __global__ void __launch_bounds__(THREADS, 2) tiled(product p) {
    typedef tiling<Q8, BM, BN, STAGES> T;
    const int MT = T::MT, NT = T::NT;
    GPU_DYN_SHARED(unsigned char, shared);
    float4 *totals = (float4 *)shared + threadIdx.x; /* [MT x NT][THREADS] */
    unsigned char *stages = shared + T::TOTALS;
    const int lane = (int)threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int warp_m = (int)threadIdx.x / WARP % 2 * (BM / 2);
    const int warp_n = (int)threadIdx.x / WARP / 2 * (BN / 2);
    const uint32_t w0 = blockIdx.y * BM, row0 = blockIdx.x * BN;
    const row_limits limits = load_limits(p);
    const uint32_t rows = rows_from(p, limits, w0);
    if (row0 >= rows) return;
    const int n_chunks = (int)(p.ld / CHUNK);
    const int run = (n_chunks + GEMM_QUARTERS - 1) / GEMM_QUARTERS;

    GPU_UNROLL
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n_chunks) fill<Q8, BM, BN>(stages + s * T::STAGE, p, w0, row0, rows, s);
        cp_async_commit();
    }
    const float *scale[MT];
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        const uint32_t row = min(w0 + (uint32_t)(warp_m + 16 * m), p.w_rows - 16) + (uint32_t)g;
        scale[m] = Q8 ? p.scales + (size_t)row * (p.ld / CHUNK) : NULL;
    }
    float chain[MT][NT][4] = {};
    int border = run; /* where the chain at hand ends */
    int now = 0;
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        if (chunk == border) {
            GPU_UNROLL
            for (int i = 0; i < MT * NT; i++) {
                float *c = chain[i / NT][i % NT];
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (border > run) v = totals[i * THREADS];
                totals[i * THREADS] = make_float4(v.x + c[0], v.y + c[1], v.z + c[2], v.w + c[3]);
                c[0] = c[1] = c[2] = c[3] = 0.0f;
            }
            border += run;
        }
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* the chunk is there, and all have done with the one before it */
        const int next = now == 0 ? STAGES - 1 : now - 1;
        if (chunk + STAGES - 1 < n_chunks)
            fill<Q8, BM, BN>(stages + next * T::STAGE, p, w0, row0, rows, chunk + STAGES - 1);
        cp_async_commit();
        const unsigned char *w = stages + now * T::STAGE, *x = w + T::W_BYTES;
        operand<Q8> a[MT];
        GPU_UNROLL
        for (int m = 0; m < MT; m++) {
            fragment<Q8> f;
            read_stage(&f, w + (warp_m + 16 * m + g) * T::W_ROW + T::W_ROW / 4 * t,
                       Q8 ? scale[m] + chunk : NULL, p.ld / CHUNK);
            expand(&a[m], f);
        }
        GPU_UNROLL
        for (int n = 0; n < NT; n++) {
            const uint4 b = load16(x + (warp_n + 8 * n + g) * ROW_BYTES + 16 * t);
            GPU_UNROLL
            for (int m = 0; m < MT; m++)
                multiply(chain[m][n], a[m], b);
        }
        now = now == STAGES - 1 ? 0 : now + 1;
    }
    if (border > run) {
        GPU_UNROLL
        for (int i = 0; i < MT * NT; i++) {
            float *c = chain[i / NT][i % NT];
            const float4 v = totals[i * THREADS];
            c[0] = v.x + c[0];
            c[1] = v.y + c[1];
            c[2] = v.z + c[2];
            c[3] = v.w + c[3];
        }
    }
    cp_async_wait<0>();
    __syncthreads(); /* sums take the place of totals and stages */
    const int LD = BM + ROW_PAD;
    float *sums = (float *)shared;
    GPU_UNROLL
    for (int m = 0; m < MT; m++) {
        GPU_UNROLL
        for (int n = 0; n < NT; n++)
            put<LD>(sums + (warp_n + 8 * n) * LD + warp_m + 16 * m, chain[m][n]);
    }
    __syncthreads();
    finish<bf16, BM, BN, 1>(p, sums, w0, row0, limits);
}

/* ---- float32 ---------------------------------------------------------------------------------- */

/* 32 rows of w by BN of x: thread (i, j) of TX x THREADS / TX has rows i, i + TX, ... of w and j, j +
 * THREADS / TX, ... of x. Slices of 32 of K, two in turn; rows of 36 floats: no bank conflicts. */
template <int BN, int TX> static __global__ void __launch_bounds__(THREADS) plain(product p) {
    const int BM = 32, TY = THREADS / TX, RM = BM / TX, RN = BN / TY, LD = CHUNK + ROW_PAD;
    static_assert(BM + ROW_PAD == LD, "sums take the place of a slice");
    __shared__ __align__(16) float slices[2 * (BM + BN) * LD];
    const uint32_t w0 = blockIdx.x * BM, row0 = blockIdx.y * BN;
    const row_limits limits = load_limits(p);
    const uint32_t rows = rows_from(p, limits, w0);
    if (row0 >= rows) return;
    const int i0 = (int)threadIdx.x % TX, j0 = (int)threadIdx.x / TX;
    const int n_chunks = (int)(p.ld / CHUNK);
    const auto fetch = [&](int chunk) {
        float *slice = slices + chunk % 2 * (BM + BN) * LD;
        for (int i = (int)threadIdx.x; i < (BM + BN) * (CHUNK / 4); i += THREADS) {
            const int r = i / (CHUNK / 4), k = i % (CHUNK / 4) * 4;
            const bool of_w = r < BM;
            const uint32_t row = of_w ? w0 + (uint32_t)r : row0 + (uint32_t)(r - BM);
            const float *from = of_w ? (const float *)p.w + (size_t)row * p.ld
                                     : (const float *)p.x + (size_t)row * p.ldx;
            cp_async16(slice + r * LD + k, from + chunk * CHUNK + k,
                       row < (of_w ? p.w_rows : rows));
        }
        cp_async_commit();
    };
    float sum[RN][RM] = {};
    fetch(0);
    for (int chunk = 0; chunk < n_chunks; chunk++) {
        if (chunk + 1 < n_chunks)
            fetch(chunk + 1);
        else
            cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const float *w = slices + chunk % 2 * (BM + BN) * LD, *x = w + BM * LD;
        GPU_UNROLL
        for (int k = 0; k < CHUNK; k += 4) {
            float4 a[RM];
            GPU_UNROLL
            for (int i = 0; i < RM; i++)
                a[i] = *(const float4 *)(w + (i0 + i * TX) * LD + k);
            GPU_UNROLL
            for (int j = 0; j < RN; j++) {
                const float4 b = *(const float4 *)(x + (j0 + j * TY) * LD + k);
                GPU_UNROLL
                for (int i = 0; i < RM; i++) {
                    float s = fmaf(a[i].x, b.x, sum[j][i]);
                    s = fmaf(a[i].y, b.y, s);
                    s = fmaf(a[i].z, b.z, s);
                    sum[j][i] = fmaf(a[i].w, b.w, s);
                }
            }
        }
        __syncthreads(); /* before the slice after next overwrites this one */
    }
    cp_async_wait<0>();
    GPU_UNROLL
    for (int j = 0; j < RN; j++)
        GPU_UNROLL
    for (int i = 0; i < RM; i++)
        slices[(j0 + j * TY) * LD + i0 + i * TX] = sum[j][i];
    __syncthreads();
    finish<float, BM, BN, 1>(p, slices, w0, row0, limits);
}

/* ---- after a library product ------------------------------------------------------------------ */

/* One thread a pair of columns. */
template <class ACT>
static __global__ void silu_rows(product p, const float *wide, uint32_t width, uint32_t row0) {
    const uint32_t row = row0 + blockIdx.y;
    const uint32_t column = (blockIdx.x * THREADS + threadIdx.x) * 2;
    const uint32_t gate = column / 8 * 16 + column % 8;
    if (row >= *p.n_rows || column >= (p.n_out + GPU_GROUP - 1) / GPU_GROUP * GPU_GROUP) return;
    const float *from = wide + (size_t)blockIdx.y * width;
    float v[2];
    GPU_UNROLL
    for (uint32_t e = 0; e < 2; e++) {
        v[e] = 0.0f;
        if (column + e >= p.n_out) continue;
        float g = from[gate + e], u = from[gate + e + 8];
        if (p.bias) {
            g += p.bias[gate + e];
            u += p.bias[gate + e + 8];
        }
        v[e] = silu(g) * u;
    }
    store_pair((ACT *)p.y + (size_t)row * p.ldy + column, v[0], v[1]);
}

/* Rows are the grid's x: its y ends at 65535. */
static __global__ void bias_rows(product p) {
    const uint32_t row = blockIdx.x, column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= p.n_out || row >= rows_from(p, load_limits(p), column)) return;
    ((float *)p.y)[(size_t)row * p.ldy + column] += p.bias[column];
}

/* ---- launchers -------------------------------------------------------------------------------- */

static unsigned blocks(uint32_t n, uint32_t of) {
    return (unsigned)((n + of - 1) / of);
}

static product product_of(const struct gemm_call *call) {
    product p = {};
    p.w = call->w->data;
    p.scales = call->w->scales;
    p.w_rows = (uint32_t)align_up(call->w->rows, WEIGHT_ROWS);
    p.ld = call->w->ld;
    p.bias = call->bias;
    p.x = call->x;
    p.ldx = call->ldx;
    p.y = call->y;
    p.ldy = call->ldy;
    p.n_out = call->n_out;
    p.max_rows = call->max_rows;
    p.n_rows = call->n_rows;
    p.tail = call->n_tail_rows ? call->tail : call->n_out;
    p.n_tail_rows = call->n_tail_rows;
    p.out = call->out;
    return p;
}

template <bool Q8, int MT, int NT, int DEPTH, int AHEAD>
static cudaError_t launch_stream(const product &p, uint32_t n_w, uint32_t max_rows,
                                 cudaStream_t cu_stream) {
    return GPU_LAUNCH((stream<Q8, MT, NT, DEPTH, AHEAD>),
                      dim3(blocks(n_w, 16 * MT), blocks(max_rows, 8 * NT)), dim3(THREADS), 0,
                      cu_stream, p);
}

template <bool Q8, int BM, int BN, int STAGES>
static cudaError_t launch_tiled(const product &p, uint32_t n_w, uint32_t max_rows,
                                cudaStream_t cu_stream) {
    const size_t bytes = tiling<Q8, BM, BN, STAGES>::SHARED;
    cudaError_t error = cudaFuncSetAttribute(
        tiled<Q8, BM, BN, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error) return error;
    return GPU_LAUNCH((tiled<Q8, BM, BN, STAGES>), dim3(blocks(max_rows, BN), blocks(n_w, BM)),
                      dim3(THREADS), bytes, cu_stream, p);
}

/* Devices that run sm_80's code or sm_120's on 99 KB of shared memory a block: not enough for 128 x 128. */
static bool is_narrow(const struct device *dev) {
    return dev->sm == 86 || dev->sm == 89 || dev->sm >= 120;
}

/* n_w: rows of w to go through. */
template <bool Q8>
static cudaError_t launch(const struct device *dev, const product &p, uint32_t n_w,
                          uint32_t max_rows, cudaStream_t s) {
    if (max_rows <= 8) return launch_stream<Q8, 1, 1, 8, 8>(p, n_w, max_rows, s);
    if (max_rows <= 16) return launch_stream < Q8, 1, 2, 8, Q8 ? 2 : 4 > (p, n_w, max_rows, s);
    if (max_rows <= 32) return launch_stream < Q8, 2, 4, Q8 ? 4 : 6, 2 > (p, n_w, max_rows, s);
    if constexpr (!Q8) /* of q8_0 x would weigh four times w: better a tile of 64 rows of w */
        if (max_rows <= 64) return launch_stream<Q8, 2, 8, 4, 2>(p, n_w, max_rows, s);
    if (blocks(max_rows, 128) * blocks(n_w, 128) < dev->n_sms || (!Q8 && is_narrow(dev)))
        return launch_tiled<Q8, 64, 64, 6>(p, n_w, max_rows, s);
    return launch_tiled < Q8, Q8 ? 64 : 128, 128, Q8 ? 4 : 3 > (p, n_w, max_rows, s);
}

extern "C" cudaError_t gpu_gemm(const struct device *dev, const struct gemm_call *call,
                                cudaStream_t cu_stream) {
    const product p = product_of(call);
    const bool silu = call->out == GEMM_SILU;
    const uint32_t columns = silu ? (uint32_t)align_up(call->n_out, GPU_GROUP) : call->n_out;
    const uint32_t n_w = silu ? 2 * columns : columns;
    const enum dtype type = call->w->dtype;
    if ((silu ? 2 : 1) * call->n_out > call->w->rows || p.ld % CHUNK || call->ldx < p.ld ||
        (silu && (call->n_tail_rows || call->ldy < columns)))
        return cudaErrorInvalidValue;
    if (n_w == 0 || call->max_rows == 0) return cudaSuccess;
    if (dev->act == DTYPE_F32 && type == DTYPE_F32)
        return call->max_rows <= 8
                   ? GPU_LAUNCH((plain<8, 16>), dim3(blocks(n_w, 32), 1), dim3(THREADS), 0,
                                cu_stream, p)
                   : GPU_LAUNCH((plain<64, 8>), dim3(blocks(n_w, 32), blocks(call->max_rows, 64)),
                                dim3(THREADS), 0, cu_stream, p);
    if (dev->act != DTYPE_BF16) return cudaErrorInvalidValue;
    if (type == DTYPE_BF16) return launch<false>(dev, p, n_w, call->max_rows, cu_stream);
    if (type == DTYPE_Q8_0) return launch<true>(dev, p, n_w, call->max_rows, cu_stream);
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t gpu_silu(const struct device *dev, const struct gemm_call *call,
                                const float *wide, uint32_t row0, uint32_t n_rows,
                                cudaStream_t cu_stream) {
    const product p = product_of(call);
    const dim3 grid(blocks((uint32_t)align_up(call->n_out, GPU_GROUP), 2 * THREADS), n_rows);
    if (n_rows == 0 || call->n_out == 0) return cudaSuccess;
    if (dev->act == DTYPE_F32)
        return GPU_LAUNCH((silu_rows<float>), grid, dim3(THREADS), 0, cu_stream, p, wide,
                          call->w->rows, row0);
    return GPU_LAUNCH((silu_rows<bf16>), grid, dim3(THREADS), 0, cu_stream, p, wide, call->w->rows,
                      row0);
}

extern "C" cudaError_t gpu_bias(const struct gemm_call *call, uint32_t n_rows,
                                cudaStream_t cu_stream) {
    if (n_rows == 0 || call->n_out == 0) return cudaSuccess;
    return GPU_LAUNCH(bias_rows, dim3(n_rows, blocks(call->n_out, THREADS)), dim3(THREADS), 0,
                      cu_stream, product_of(call));
}
