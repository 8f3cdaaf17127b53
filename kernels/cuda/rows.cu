/* rows.cu: what is done to rows one by one: embedding, norms, and between projections and attention
 * the heads; random weights; copies of pages. Layouts: cuda.h. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/vec4.h"

static dim3 grid_of(uint64_t n, uint32_t by) {
    return dim3((unsigned)((n + by - 1) / by));
}
/* Whole warps that take four numbers a thread, `most` threads at most. */
static uint32_t threads_of(uint32_t ld, uint32_t most) {
    const uint32_t threads = (uint32_t)align_up(ld / 4, WARP);
    return threads < most ? threads : most;
}

/* ---- embed --------------------------------------------------------------------------------------
 *
 *   out[row, :] = widened embed[token[row], :]
 *
 * One block a row, four numbers a thread at a time; the matrix's padding is the row's. Bytes: a row of
 * the matrix in, ld_model floats out. Nothing is summed. */
enum { EMBED_THREADS = 256 };

GPU_INLINE vec4 widen4(const float *p, float scale) {
    (void)scale;
    return load4(p);
}
GPU_INLINE vec4 widen4(const bf16 *p, float scale) {
    (void)scale;
    const uint2 v = *(const uint2 *)p;
    return {{bf16_lo(v.x), bf16_hi(v.x), bf16_lo(v.y), bf16_hi(v.y)}};
}
GPU_INLINE vec4 widen4(const int8_t *p, float scale) {
    const uint32_t v = *(const uint32_t *)p;
    vec4 out;
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        out.at[i] = scale * (float)(int8_t)(v >> 8 * i);
    return out;
}

template <class T>
static __global__ void embed(float *out, const T *matrix, const float *scales, uint32_t ld,
                             const struct counts *counts, const struct row *rows) {
    const uint32_t row = blockIdx.x;
    if (row >= counts->n_rows) return;
    const size_t from = (size_t)rows[row].token * ld;
    for (uint32_t i = threadIdx.x * 4; i < ld; i += blockDim.x * 4) {
        const float scale = scales ? scales[(from + i) / GPU_GROUP] : 1.0f;
        store4(out + (size_t)row * ld + i, widen4(matrix + from + i, scale));
    }
}

extern "C" cudaError_t gpu_embed(const struct device *dev, float *residual, cudaStream_t stream) {
    const struct matrix *m = &dev->embed;
    const struct batch *b = &dev->batch;
    const dim3 grid(dev->grid.rows), block(threads_of(m->ld, EMBED_THREADS));
    if (m->ld != dev->ld_model) return cudaErrorInvalidValue;
    if (dev->grid.rows == 0) return cudaSuccess;
    switch (m->dtype) {
    case DTYPE_F32:
        return GPU_LAUNCH((embed<float>), grid, block, 0, stream, residual, (const float *)m->data,
                          (const float *)NULL, m->ld, b->counts, b->rows);
    case DTYPE_BF16:
        return GPU_LAUNCH((embed<bf16>), grid, block, 0, stream, residual, (const bf16 *)m->data,
                          (const float *)NULL, m->ld, b->counts, b->rows);
    case DTYPE_Q8_0:
        return GPU_LAUNCH((embed<int8_t>), grid, block, 0, stream, residual,
                          (const int8_t *)m->data, m->scales, m->ld, b->counts, b->rows);
    default:
        return cudaErrorInvalidValue;
    }
}

/* ---- norm ---------------------------------------------------------------------------------------
 *
 *   u[i, :] = g[:] x[row, :] / sqrt(mean(x[row, :]^2) + eps)       row = i, or the i-th with logits
 *
 * One block a row. Thread t takes numbers 4t .. 4t + 3 of each stride of 4 blockDim, and keeps the first
 * NORM_HELD of its strides in registers: rows of up to 8192 are read once. Its squares are one chain in
 * ascending order, then block_sum; the number of threads follows from the row's length.
 * Bytes: ld_model floats in, as many act out. */
enum { NORM_THREADS = 512, NORM_HELD = 4 };

GPU_INLINE void store_act(float *p, vec4 v) {
    store4(p, v);
}
GPU_INLINE void store_act(bf16 *p, vec4 v) {
    *(uint2 *)p = make_uint2(bf16_pair(v.at[0], v.at[1]), bf16_pair(v.at[2], v.at[3]));
}

GPU_INLINE vec4 normed(vec4 x, vec4 g, float inverse) {
    GPU_UNROLL
    for (int i = 0; i < 4; i++)
        x.at[i] = g.at[i] * x.at[i] * inverse;
    return x;
}

template <class ACT>
static __global__ void norm(ACT *u, const float *x, const float *g, uint32_t d, uint32_t ld,
                            float eps, const uint32_t *n_rows, const uint32_t *gather) {
    __shared__ float warp[WARP];
    const bool there = blockIdx.x < *n_rows;
    if (gather && !there) return;
    const float *from = x + (size_t)(gather ? gather[blockIdx.x] : blockIdx.x) * ld;
    ACT *to = u + (size_t)blockIdx.x * ld;
    const uint32_t stride = blockDim.x * 4, first = threadIdx.x * 4,
                   rest = first + NORM_HELD * stride;
    vec4 held[NORM_HELD], scales[NORM_HELD];
    float squares = 0.0f;
    GPU_UNROLL
    for (uint32_t i = 0; i < NORM_HELD; i++)
        held[i] = first + i * stride < ld ? load4(from + first + i * stride) : zero4();
    GPU_UNROLL
    for (uint32_t i = 0; i < NORM_HELD;
         i++) /* or each would wait for the store before it, at the end */
        scales[i] = first + i * stride < ld ? load4(g + first + i * stride) : zero4();
    if (!there) return; /* asked only now: the count and the row were under way together */
    GPU_UNROLL
    for (uint32_t i = 0; i < NORM_HELD; i++)
        squares = dot4(held[i], held[i], squares);
    for (uint32_t at = rest; at < ld; at += stride) {
        const vec4 v = load4(from + at);
        squares = dot4(v, v, squares);
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares, warp) / (float)d + eps);
    GPU_UNROLL
    for (uint32_t i = 0; i < NORM_HELD; i++) {
        const uint32_t at = first + i * stride;
        if (at < ld) store_act(to + at, normed(held[i], scales[i], inverse));
    }
    for (uint32_t at = rest; at < ld; at += stride)
        store_act(to + at, normed(load4(from + at), load4(g + at), inverse));
}

extern "C" cudaError_t gpu_norm(const struct device *dev, const float *g, bool logit_rows,
                                cudaStream_t stream) {
    const struct counts *counts = dev->batch.counts;
    const uint32_t rows = logit_rows ? dev->grid.logit_rows : dev->grid.rows;
    const uint32_t *n_rows = logit_rows ? &counts->n_logit_rows : &counts->n_rows;
    const uint32_t *gather = logit_rows ? dev->batch.logit_rows : NULL;
    const uint32_t d = dev->shape.d_model, ld = dev->ld_model;
    const float eps = dev->shape.rms_eps;
    const dim3 block(threads_of(ld, NORM_THREADS));
    if (rows == 0) return cudaSuccess;
    if (dev->act == DTYPE_BF16)
        return GPU_LAUNCH((norm<bf16>), dim3(rows), block, 0, stream, (bf16 *)dev->u, dev->x, g, d,
                          ld, eps, n_rows, gather);
    return GPU_LAUNCH((norm<float>), dim3(rows), block, 0, stream, (float *)dev->u, dev->x, g, d,
                      ld, eps, n_rows, gather);
}

/* ---- heads --------------------------------------------------------------------------------------
 *
 *   q' = rope(norm(scale q + shift)), k' = rope(norm(k)), v' = v      of each (row, head)
 *   norm(x) = g x / sqrt(mean(x^2) + eps);   rope rotates pairs (m, m + half), half = head_dim / 2
 *
 *   qkv row:   [ q: heads x e | pad | k: kv heads x e | pad | v: kv heads x e | pad ]
 *   warp:        one head of e numbers        lane l holds pairs  m = (32 i + l) VEC ..+ VEC - 1:
 *
 *     m:     |lane 0|lane 1| ... |lane 31|lane 0 (i = 1)| ...     and their partners m + half, so that
 *            |<------------- half ------------->|                 both halves are read in whole lines
 *
 * q goes to dev->q, k and v of base and draft rows into their page, in slot pos % 16. 8-bit KV: the
 * largest magnitude is an exchange over the warp. In a draft forward more warps, one a (segment, kv
 * head), copy what the cache holds of a block's first page: positions below the block's first alone, so
 * they never meet the block's own stores.
 *
 * Sums: a lane's squares in ascending i, lo then hi, then warp_sum. Bytes: a row of qkv in, a row of q
 * and the KV of a position out; nothing is read twice but vectors and rotations. */
enum { HEAD_PAIRS = 4, HEAD_MAX = 2 * HEAD_PAIRS * WARP, HEADS_THREADS = 128 };

struct heads_args {
    const struct counts *counts;
    const struct row *rows;
    const struct seg *segments;
    const uint32_t *pages;
    const float *qkv;
    void *q;
    char *kv, *scratch; /* kv: of the layer, page 0 */
    const float *cosines, *sines;
    const float *q_norm, *k_norm;
    const float *scale[2], *shift[2]; /* of base rows and the others; NULL: identity */
    size_t page_bytes, layer_bytes, head_bytes, value_bytes;
    uint32_t n_heads, n_kv_heads, head_dim, head_pad, ld_q, ld_qkv, k_at, v_at;
    uint32_t n_row_warps; /* warps of rows; the others copy */
    float eps;
};

/* A lane's share of a head; zeros where there is no such pair. */
struct pairs {
    float lo[HEAD_PAIRS], hi[HEAD_PAIRS];
};

template <int VEC> GPU_INLINE void load_vec(float *to, const float *from) {
    if (VEC == 2) {
        const float2 v = *(const float2 *)from;
        to[0] = v.x;
        to[VEC - 1] = v.y;
    } else {
        to[0] = *from;
    }
}
template <int VEC> GPU_INLINE void store_vec(float *to, const float *from) {
    if (VEC == 2)
        *(float2 *)to = make_float2(from[0], from[VEC - 1]);
    else
        *to = from[0];
}
template <int VEC> GPU_INLINE void store_vec(bf16 *to, const float *from) {
    if (VEC == 2)
        *(uint32_t *)to = bf16_pair(from[0], from[VEC - 1]);
    else
        *to = from_f32<bf16>(from[0]);
}
template <int VEC> GPU_INLINE void store_vec(int8_t *to, const float *from) {
    const int lo = __float2int_rn(from[0]);
    if (VEC == 2)
        *(uint16_t *)to = (uint16_t)((lo & 0xFF) | (__float2int_rn(from[VEC - 1]) & 0xFF) << 8);
    else
        *to = (int8_t)lo;
}

/* The first number of lane's i-th vector. */
template <int VEC> GPU_INLINE uint32_t pair_at(uint32_t i) {
    return (i * WARP + threadIdx.x % WARP) * VEC;
}

template <int VEC> GPU_INLINE pairs load_pairs(const float *from, uint32_t half) {
    pairs p;
    GPU_UNROLL
    for (uint32_t i = 0; i < HEAD_PAIRS / VEC; i++) {
        const uint32_t m = pair_at<VEC>(i);
        GPU_UNROLL
        for (uint32_t j = 0; j < VEC; j++)
            p.lo[i * VEC + j] = p.hi[i * VEC + j] = 0.0f;
        if (m < half) {
            load_vec<VEC>(p.lo + i * VEC, from + m);
            load_vec<VEC>(p.hi + i * VEC, from + m + half);
        }
    }
    return p;
}
/* n numbers with zeros up to padded. */
template <int VEC, class T>
GPU_INLINE void store_pairs(T *to, const pairs &p, uint32_t half, uint32_t padded) {
    const uint32_t pad = 2 * half + threadIdx.x % WARP;
    const float zero = 0.0f;
    GPU_UNROLL
    for (uint32_t i = 0; i < HEAD_PAIRS / VEC; i++) {
        const uint32_t m = pair_at<VEC>(i);
        if (m < half) {
            store_vec<VEC>(to + m, p.lo + i * VEC);
            store_vec<VEC>(to + m + half, p.hi + i * VEC);
        }
    }
    if (pad < padded) store_vec<1>(to + pad, &zero);
}

template <int VEC>
GPU_INLINE void affine(pairs *p, const float *scale, const float *shift, uint32_t half) {
    if (scale) {
        const pairs s = load_pairs<VEC>(scale, half);
        GPU_UNROLL
        for (int i = 0; i < HEAD_PAIRS; i++) {
            p->lo[i] *= s.lo[i];
            p->hi[i] *= s.hi[i];
        }
    }
    if (shift) {
        const pairs s = load_pairs<VEC>(shift, half);
        GPU_UNROLL
        for (int i = 0; i < HEAD_PAIRS; i++) {
            p->lo[i] += s.lo[i];
            p->hi[i] += s.hi[i];
        }
    }
}
template <int VEC> GPU_INLINE void head_norm(pairs *p, const float *g, uint32_t half, float eps) {
    const pairs w = load_pairs<VEC>(g, half);
    float squares = 0.0f;
    GPU_UNROLL
    for (int i = 0; i < HEAD_PAIRS; i++) {
        squares = fmaf(p->lo[i], p->lo[i], squares);
        squares = fmaf(p->hi[i], p->hi[i], squares);
    }
    const float inverse = 1.0f / sqrtf(warp_sum(squares) / (float)(2 * half) + eps);
    GPU_UNROLL
    for (int i = 0; i < HEAD_PAIRS; i++) {
        p->lo[i] = w.lo[i] * p->lo[i] * inverse;
        p->hi[i] = w.hi[i] * p->hi[i] * inverse;
    }
}
template <int VEC>
GPU_INLINE void rotate(pairs *p, const float *cosines, const float *sines, uint32_t half) {
    GPU_UNROLL
    for (uint32_t i = 0; i < HEAD_PAIRS / VEC; i++) {
        const uint32_t m = pair_at<VEC>(i);
        float c[VEC], s[VEC];
        if (m >= half) continue;
        load_vec<VEC>(c, cosines + m);
        load_vec<VEC>(s, sines + m);
        GPU_UNROLL
        for (uint32_t j = 0; j < VEC; j++) {
            const float a = p->lo[i * VEC + j], b = p->hi[i * VEC + j];
            p->lo[i * VEC + j] = a * c[j] - b * s[j];
            p->hi[i * VEC + j] = b * c[j] + a * s[j];
        }
    }
}

/* Numbers of a head become integers; returns d. */
GPU_INLINE f16 quantise(pairs *p) {
    float most = 0.0f;
    bool finite = true;
    GPU_UNROLL
    for (int i = 0; i < HEAD_PAIRS; i++) {
        const float lo = fabsf(p->lo[i]), hi = fabsf(p->hi[i]);
        finite = finite && lo < INFINITY && hi < INFINITY;
        most = fmaxf(most, fmaxf(lo, hi));
    }
    most = warp_max(finite ? most : INFINITY); /* fmaxf would lose a NaN */
    finite = most < INFINITY;
    const f16 d = finite ? from_f32<f16>(fminf(most / 127.0f, 65504.0f)) : __ushort_as_half(0x7E00);
    const float scale = to_f32(d);
    const bool any = finite && scale > 0.0f;
    GPU_UNROLL
    for (int i = 0; i < HEAD_PAIRS; i++) {
        p->lo[i] = any ? fminf(fmaxf(p->lo[i] / scale, -127.0f), 127.0f) : 0.0f;
        p->hi[i] = any ? fminf(fmaxf(p->hi[i] / scale, -127.0f), 127.0f) : 0.0f;
    }
    return d;
}

/* head: the page's memory of the kv head; v: its V, else its K. */
template <class KV, int VEC>
GPU_INLINE void store_kv(const heads_args &a, char *head, uint32_t at, bool v, pairs p) {
    KV *to = (KV *)(head + (v ? a.value_bytes : 0)) + (size_t)at * a.head_pad;
    if (sizeof(KV) == 1) {
        const f16 d = quantise(&p);
        f16 *scales = (f16 *)(head + 2 * a.value_bytes) + (v ? PAGE_TOKENS : 0);
        if (threadIdx.x % WARP == 0) scales[at] = d;
    }
    store_pairs<VEC>(to, p, a.head_dim / 2, a.head_pad);
}

/* What the cache holds of a draft block's first page, of one kv head. */
GPU_INLINE void begin_scratch(const heads_args &a, uint32_t segment, uint32_t g) {
    const uint32_t lane = threadIdx.x % WARP;
    if (segment >= a.counts->n_segments) return;
    const struct seg s = a.segments[segment];
    const uint32_t n = s.pos % PAGE_TOKENS;
    if (s.view != VIEW_DRAFT || n == 0) return;
    const size_t page = a.pages[s.pages + s.pos / PAGE_TOKENS],
                 bytes = n * (a.value_bytes / PAGE_TOKENS);
    const char *from = a.kv + page * a.page_bytes + g * a.head_bytes;
    char *to = a.scratch + s.scratch * a.layer_bytes + g * a.head_bytes;
    for (size_t i = lane * 16; i < bytes; i += WARP * 16) {
        const uint4 k = load16(from + i), v = load16(from + a.value_bytes + i);
        store16(to + i, k);
        store16(to + a.value_bytes + i, v);
    }
    if (a.head_bytes == 2 * a.value_bytes || lane % PAGE_TOKENS >= n) return; /* no scales */
    ((f16 *)(to + 2 * a.value_bytes))[lane] = ((const f16 *)(from + 2 * a.value_bytes))[lane];
}

template <class ACT, class KV, int VEC> static __global__ void heads(heads_args a) {
    const uint32_t warp = blockIdx.x * (HEADS_THREADS / WARP) + threadIdx.x / WARP;
    const uint32_t n_heads = a.n_heads + 2 * a.n_kv_heads, half = a.head_dim / 2;
    if (warp >= a.n_row_warps) {
        const uint32_t i = warp - a.n_row_warps;
        begin_scratch(a, i / a.n_kv_heads, i % a.n_kv_heads);
        return;
    }
    const uint32_t row = warp / n_heads, h = warp % n_heads;
    const bool is_q = h < a.n_heads, v = h >= a.n_heads + a.n_kv_heads;
    const uint32_t g = h - (is_q ? 0 : v ? a.n_heads + a.n_kv_heads : a.n_heads);
    /* The count, the row and the numbers are under way together; of a row that is not there they are what
     * they were. */
    const uint32_t n_rows = is_q ? a.counts->n_rows : a.counts->n_kv_rows;
    const struct row r = a.rows[row];
    const float *in = a.qkv + (size_t)row * a.ld_qkv + (is_q ? 0 : v ? a.v_at : a.k_at);
    pairs p = load_pairs<VEC>(in + (size_t)g * a.head_dim, half);
    if (row >= n_rows) return;
    const float *cosines = a.cosines + (size_t)r.pos * half,
                *sines = a.sines + (size_t)r.pos * half;
    if (is_q) {
        const size_t at = (size_t)h * a.head_dim;
        const int view = r.view == VIEW_BASE ? 0 : 1;
        affine<VEC>(&p, a.scale[view] ? a.scale[view] + at : NULL,
                    a.shift[view] ? a.shift[view] + at : NULL, half);
        if (a.q_norm) head_norm<VEC>(&p, a.q_norm, half, a.eps);
        rotate<VEC>(&p, cosines, sines, half);
        /* The last head zeroes what pads the row. */
        const uint32_t end = h + 1 < a.n_heads ? a.head_dim : a.ld_q - (uint32_t)at;
        store_pairs<VEC>((ACT *)a.q + (size_t)row * a.ld_q + at, p, half, end);
        return;
    }
    if (!v && a.k_norm) head_norm<VEC>(&p, a.k_norm, half, a.eps);
    if (!v) rotate<VEC>(&p, cosines, sines, half);
    char *page = r.view == VIEW_DRAFT ? a.scratch + (size_t)r.kv_page * a.layer_bytes
                                      : a.kv + (size_t)r.kv_page * a.page_bytes;
    store_kv<KV, VEC>(a, page + g * a.head_bytes, r.pos % PAGE_TOKENS, v, p);
}

template <class ACT, class KV>
static cudaError_t launch_heads(const heads_args &a, dim3 grid, cudaStream_t stream) {
    if (a.head_dim % 4 == 0)
        return GPU_LAUNCH((heads<ACT, KV, 2>), grid, dim3(HEADS_THREADS), 0, stream, a);
    return GPU_LAUNCH((heads<ACT, KV, 1>), grid, dim3(HEADS_THREADS), 0, stream, a);
}
template <class ACT>
static cudaError_t launch_heads_act(const heads_args &a, enum dtype kv, dim3 grid,
                                    cudaStream_t stream) {
    switch (kv) {
    case DTYPE_F32:
        return launch_heads<ACT, float>(a, grid, stream);
    case DTYPE_BF16:
        return launch_heads<ACT, bf16>(a, grid, stream);
    case DTYPE_Q8_0:
        return launch_heads<ACT, int8_t>(a, grid, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t gpu_heads(const struct device *dev, uint32_t layer, cudaStream_t stream) {
    const struct model_shape *s = &dev->shape;
    const struct layer *l = &dev->layers[layer];
    const bool draft = dev->drafting, views = s->orthros && !draft;
    heads_args a = {};
    a.counts = dev->batch.counts;
    a.rows = dev->batch.rows;
    a.segments = dev->batch.segments;
    a.pages = dev->batch.pages;
    a.qkv = dev->qkv;
    a.q = dev->q;
    a.kv = dev->kv + layer * dev->layer_bytes;
    a.scratch = dev->kv_scratch;
    a.cosines = dev->cosines;
    a.sines = dev->sines;
    a.q_norm = draft ? l->q_diff_norm : l->q_norm;
    a.k_norm = draft ? l->k_diff_norm : l->k_norm;
    a.scale[0] = views ? l->base_scale : NULL;
    a.scale[1] = views ? l->output_scale : NULL;
    a.shift[0] = views ? l->base_shift : NULL;
    a.shift[1] = views ? l->output_shift : NULL;
    a.page_bytes = dev->page_bytes;
    a.layer_bytes = dev->layer_bytes;
    a.head_bytes = dev->head_bytes;
    a.value_bytes = dev->value_bytes;
    a.n_heads = s->n_heads;
    a.n_kv_heads = s->n_kv_heads;
    a.head_dim = s->head_dim;
    a.head_pad = dev->head_pad;
    a.ld_q = dev->ld_q;
    a.ld_qkv = dev->ld_qkv;
    a.k_at = dev->k_at;
    a.v_at = dev->v_at;
    a.n_row_warps = dev->grid.rows * (s->n_heads + 2 * s->n_kv_heads);
    a.eps = s->rms_eps;
    const uint64_t n_copies = draft ? (uint64_t)dev->grid.draft_segments * s->n_kv_heads : 0;
    const dim3 grid = grid_of(a.n_row_warps + n_copies, HEADS_THREADS / WARP);
    if (s->head_dim > HEAD_MAX) return cudaErrorInvalidValue;
    if (dev->grid.rows == 0) return cudaSuccess;
    return dev->act == DTYPE_BF16 ? launch_heads_act<bf16>(a, dev->limits.kv_dtype, grid, stream)
                                  : launch_heads_act<float>(a, dev->limits.kv_dtype, grid, stream);
}

extern "C" cudaError_t gpu_page_copy(const struct device *dev, uint32_t from, uint32_t to,
                                     cudaStream_t stream) {
    return cudaMemcpyAsync(dev->kv + to * dev->page_bytes, dev->kv + from * dev->page_bytes,
                           dev->page_bytes, cudaMemcpyDeviceToDevice, stream);
}

/* ---- random weights -----------------------------------------------------------------------------
 *
 *   value(seed, i) = mean + spread u,  u uniform in [-1, 1) from 24 bits of a mix of seed and i
 *   matrix: i = row * cols + col; q8_0: the nearest multiple of d = (|mean| + spread) / 127
 *
 * The mix is splitmix64 (Steele, Lea and Flood 2014): its counter is a function of i, so any thread may
 * make any number. Bytes: those of the matrix, out. */
enum { RANDOM_THREADS = 256 };

struct random_args {
    uint64_t seed;
    float mean, spread;
};

GPU_INLINE float random_number(random_args a, uint64_t i) {
    uint64_t z = a.seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return a.mean + a.spread * ((float)((int32_t)(z >> 40) - (1 << 23)) * 0x1p-23f);
}

static __global__ void random_vector(float *out, uint32_t n, random_args a) {
    const uint32_t i = blockIdx.x * RANDOM_THREADS + threadIdx.x;
    if (i < n) out[i] = random_number(a, i);
}

/* Four numbers a thread, of rows from row0 on. */
template <class T>
static __global__ void random_matrix(struct matrix m, uint32_t row0, uint32_t n_rows, float scale,
                                     random_args a) {
    const uint64_t number = (uint64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x;
    const uint64_t row = row0 + number / (m.ld / 4);
    const uint32_t col = (uint32_t)(number % (m.ld / 4)) * 4;
    if (row >= (uint64_t)row0 + n_rows) return;
    T *to = (T *)m.data + row * m.ld + col;
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const bool ok = row < m.rows && col + j < m.cols;
        const float w = ok ? random_number(a, row * m.cols + col + j) : 0.0f;
        const float stored = sizeof(T) == 1 ? w / scale : w;
        store_vec<1>(to + j, &stored);
    }
    if (sizeof(T) == 1 && col % GPU_GROUP == 0)
        m.scales[(row * m.ld + col) / GPU_GROUP] = row < m.rows ? scale : 0.0f;
}

static random_args random_from(uint64_t seed, float mean, float spread) {
    random_args a = {seed, mean, spread};
    return a;
}

extern "C" cudaError_t gpu_random_vector(float *out, uint32_t n, uint64_t seed, float mean,
                                         float spread, cudaStream_t stream) {
    if (n == 0) return cudaSuccess;
    return GPU_LAUNCH(random_vector, grid_of(n, RANDOM_THREADS), dim3(RANDOM_THREADS), 0, stream,
                      out, n, random_from(seed, mean, spread));
}

/* Rows row0 .. row0 + n_rows - 1; those at or beyond m->rows are padding. */
extern "C" cudaError_t gpu_random_matrix(const struct matrix *m, uint32_t row0, uint32_t n_rows,
                                         uint64_t seed, float mean, float spread,
                                         cudaStream_t stream) {
    const dim3 grid = grid_of((uint64_t)n_rows * (m->ld / 4), RANDOM_THREADS);
    const random_args a = random_from(seed, mean, spread);
    float scale = (fabsf(mean) + spread) / 127.0f;
    if (!(scale > 0.0f)) scale = 1.0f; /* all zero */
    if (n_rows == 0) return cudaSuccess;
    switch (m->dtype) {
    case DTYPE_F32:
        return GPU_LAUNCH((random_matrix<float>), grid, dim3(RANDOM_THREADS), 0, stream, *m, row0,
                          n_rows, scale, a);
    case DTYPE_BF16:
        return GPU_LAUNCH((random_matrix<bf16>), grid, dim3(RANDOM_THREADS), 0, stream, *m, row0,
                          n_rows, scale, a);
    case DTYPE_Q8_0:
        return GPU_LAUNCH((random_matrix<int8_t>), grid, dim3(RANDOM_THREADS), 0, stream, *m, row0,
                          n_rows, scale, a);
    default:
        return cudaErrorInvalidValue;
    }
}
