/* attend_avx2.c: what the avx2 table does to a page of K and V; the walk is in attend.c.
 *
 *   K page   f32 [dim][16 positions]          V page   f32 [position][ep]
 *            bf16 [dim pair][16] dword                 bf16 [position pair][ep] dword
 *            int8 [dim][16]                            int8 [position][ep]
 *
 * Sums: q . k one fma chain over dims ascending; part one chain over positions ascending; l in 8
 * lanes over position mod 8. The avx512 table keeps to the same and gives the same bits. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/avx2.h"

/* Lanes i .. i + 7 that lie in lo .. hi - 1. */
static inline __m256 lanes(uint32_t i, uint32_t lo, uint32_t hi) {
    __m256i at =
        _mm256_add_epi32(_mm256_set1_epi32((int)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i above = _mm256_cmpgt_epi32(at, _mm256_set1_epi32((int)lo - 1));
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), at);
    return _mm256_castsi256_ps(_mm256_and_si256(above, below));
}

/* ---- storing K and V -------------------------------------------------------------------------- */

/* Eight floats to bf16, to nearest even, one in each dword; as f32_to_bf16. */
static inline __m256i round_bf16(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}

/* n <= 8 numbers as bf16. */
static inline void convert_bf16(const float *x, uint32_t n, uint32_t *out) {
    if (n == 8)
        _mm256_storeu_si256((__m256i *)out, round_bf16(_mm256_loadu_ps(x)));
    else
        for (uint32_t i = 0; i < n; i++)
            out[i] = f32_to_bf16(x[i]);
}

static void store_k_bf16(uint32_t *kd, uint32_t at, uint32_t e, const float *k) {
    uint32_t b[8];
    for (uint32_t i = 0; i < e; i += 8) {
        uint32_t n = e - i < 8 ? e - i : 8;
        convert_bf16(k + i, n, b);
        for (uint32_t j = 0; j < n; j += 2)
            kd[(i + j) / 2 * PAGE_TOKENS + at] = b[j] | b[j + 1] << 16;
    }
}

static void store_v_bf16(uint16_t *vd, uint32_t at, uint32_t e, size_t ep, const float *v) {
    uint32_t b[8];
    vd += at / 2 * ep * 2 + at % 2;
    for (uint32_t i = 0; i < e; i += 8) {
        uint32_t n = e - i < 8 ? e - i : 8;
        convert_bf16(v + i, n, b);
        for (uint32_t j = 0; j < n; j++)
            vd[2 * (i + j)] = (uint16_t)b[j];
    }
}

/* Numbers i .. i + 7 of x [n], with zeros behind the last. */
static inline __m256 load_some(const float *x, uint32_t i, uint32_t n) {
    if (i + 8 <= n) return _mm256_loadu_ps(x + i);
    return _mm256_maskload_ps(x + i, _mm256_castps_si256(lanes(0, 0, n - i)));
}

/* The d of x [n] (cpu.h). Magnitudes compare like their bits; above infinity lies NaN. */
static uint16_t vector_scale(const float *x, uint32_t n) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most8 = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i u = _mm256_castps_si256(load_some(x, i, n));
        most8 = _mm256_max_epi32(most8, _mm256_and_si256(u, magnitude));
    }
    __m128i most4 =
        _mm_max_epi32(_mm256_castsi256_si128(most8), _mm256_extracti128_si256(most8, 1));
    most4 = _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0x4e));
    most4 = _mm_max_epi32(most4, _mm_shuffle_epi32(most4, 0xb1));
    float most = _mm_cvtss_f32(_mm_castsi128_ps(most4));
    if (!(most < INFINITY)) return KV_SCALE_NAN;
    float d = most / 127.0f;
    return _cvtss_sh(d < 65504.0f ? d : 65504.0f, _MM_FROUND_TO_NEAREST_INT);
}

/* Numbers i .. i + 7 of x [n] over d; d infinite where all are to become 0. */
static inline void quantise(const float *x, uint32_t i, uint32_t n, __m256 d, int8_t out[8]) {
    __m256 r = _mm256_div_ps(load_some(x, i, n), d);
    r = _mm256_and_ps(r, _mm256_cmp_ps(r, r, _CMP_ORD_Q)); /* infinity over infinity, NaN */
    r = _mm256_min_ps(_mm256_max_ps(r, _mm256_set1_ps(-127)), _mm256_set1_ps(127));
    __m256i q = _mm256_cvtps_epi32(r);
    __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64((__m128i *)(void *)out, _mm_packs_epi16(w, w));
}

/* What to divide by: a vector of zeros, and one that is not finite, keeps no integers. */
static inline __m256 divisor(uint16_t scale) {
    return _mm256_set1_ps(scale == 0 || scale == KV_SCALE_NAN ? INFINITY : _cvtsh_ss(scale));
}

/* K of a position lies 16 bytes apart, V together. */
static void store_int8(int8_t *to, size_t apart, const float *x, uint32_t e, uint16_t *scale) {
    int8_t q[8];
    *scale = vector_scale(x, e);
    __m256 d = divisor(*scale);
    for (uint32_t i = 0; i < e; i += 8) {
        uint32_t n = e - i < 8 ? e - i : 8;
        quantise(x, i, e, d, q);
        for (uint32_t j = 0; j < n; j++)
            to[(i + j) * apart] = q[j];
    }
}

void avx2_kv_store(const struct device *dev, void *page, uint32_t at, const float *k,
                   const float *v) {
    uint32_t e = dev->shape.head_dim;
    size_t ep = dev->head_pad;
    void *v_page = (char *)page + dev->value_bytes;
    if (dev->limits.kv_dtype == DTYPE_Q8_0) {
        int8_t *kd = page, *vd = v_page;
        if (k) store_int8(kd + at, PAGE_TOKENS, k, e, &cpu_kv_scales(dev, page, false)[at]);
        if (v) store_int8(vd + at * ep, 1, v, e, &cpu_kv_scales(dev, page, true)[at]);
    } else if (dev->limits.kv_dtype == DTYPE_BF16) {
        if (k) store_k_bf16(page, at, e, k);
        if (v) store_v_bf16(v_page, at, e, ep, v);
    } else {
        float *kd = page, *vd = v_page;
        for (uint32_t i = 0; k && i < e; i++)
            kd[i * PAGE_TOKENS + at] = k[i];
        if (v) memcpy(vd + at * ep, v, e * sizeof *vd);
    }
}

/* ---- scores of a page: 1 to 6 query rows x 16 positions --------------------------------------- */

#define QK_ROW(i)                         \
    const float *q##i = q + rows[i] * ep; \
    __m256 a##i = _mm256_setzero_ps(), b##i = a##i;
#define QK_MADD(i)                                \
    {                                             \
        __m256 x = _mm256_broadcast_ss(q##i + d); \
        a##i = _mm256_fmadd_ps(k0, x, a##i);      \
        b##i = _mm256_fmadd_ps(k1, x, b##i);      \
    }
#define QK_OUT(i)                                                    \
    _mm256_storeu_ps(scores + rows[i] * (size_t)ATTEND_BLOCK, a##i); \
    _mm256_storeu_ps(scores + rows[i] * (size_t)ATTEND_BLOCK + 8, b##i);

/* DIMS: the body for one step of K, which adds to d. */
#define DEFINE_QK_OF(R, NAME, TYPE, DIMS)                                                    \
    static void qk_##NAME##_##R(const char *const *pages, uint32_t n_pages, size_t ahead,    \
                                uint32_t e, const float *q, size_t ep, const uint32_t *rows, \
                                float *scores) {                                             \
        for (uint32_t i = 0; i < n_pages; i++, scores += PAGE_TOKENS) {                      \
            const TYPE *k = (const TYPE *)(const void *)pages[i];                            \
            AVX2_REPEAT_##R(QK_ROW) for (uint32_t d = 0; d < e; k += PAGE_TOKENS) {          \
                if (ahead) attend_fetch_line((const char *)k + ahead);                       \
                DIMS(R)                                                                      \
            }                                                                                \
            AVX2_REPEAT_##R(QK_OUT)                                                          \
        }                                                                                    \
    }
#define QK_F32(R)                                                \
    __m256 k0 = _mm256_loadu_ps(k), k1 = _mm256_loadu_ps(k + 8); \
    AVX2_REPEAT_##R(QK_MADD) d++;
#define QK_INT8(R)                                   \
    __m256 k0 = avx2_int8(k), k1 = avx2_int8(k + 8); \
    AVX2_REPEAT_##R(QK_MADD) d++;
#define QK_BF16(R)                                         \
    __m256i z0 = avx2_load(k), z1 = avx2_load(k + 8);      \
    __m256 k0 = avx2_bf16_low(z0), k1 = avx2_bf16_low(z1); \
    AVX2_REPEAT_##R(QK_MADD) d++;                          \
    k0 = avx2_bf16_high(z0), k1 = avx2_bf16_high(z1);      \
    AVX2_REPEAT_##R(QK_MADD) d++;
#define DEFINE_QK(R)                       \
    DEFINE_QK_OF(R, f32, float, QK_F32)    \
    DEFINE_QK_OF(R, int8, int8_t, QK_INT8) \
    DEFINE_QK_OF(R, bf16, uint32_t, QK_BF16)

DEFINE_QK(1)
DEFINE_QK(2)
DEFINE_QK(3)
DEFINE_QK(4)
DEFINE_QK(5)
DEFINE_QK(6)

static const qk_fn qk[KV_KINDS][AVX2_TILE + 1] = {
    {NULL, qk_f32_1, qk_f32_2, qk_f32_3, qk_f32_4, qk_f32_5, qk_f32_6},
    {NULL, qk_bf16_1, qk_bf16_2, qk_bf16_3, qk_bf16_4, qk_bf16_5, qk_bf16_6},
    {NULL, qk_int8_1, qk_int8_2, qk_int8_3, qk_int8_4, qk_int8_5, qk_int8_6},
};

/* ---- p V of pages: 1 to 6 query rows, positions lo .. hi - 1 of each page ---------------------- */

#define PV_ROW(i)                                               \
    const float *p##i = probs + rows[i] * (size_t)ATTEND_BLOCK; \
    float *o##i = part + rows[i] * ep;
#define PV_LOAD(i) __m256 a##i = _mm256_loadu_ps(o##i + d), b##i = _mm256_loadu_ps(o##i + d + 8);
#define PV_MADD(i)                                     \
    {                                                  \
        __m256 x = _mm256_broadcast_ss(p##i + t0 + t); \
        a##i = _mm256_fmadd_ps(v0, x, a##i);           \
        b##i = _mm256_fmadd_ps(v1, x, b##i);           \
    }
#define PV_OUT(i)                     \
    _mm256_storeu_ps(o##i + d, a##i); \
    _mm256_storeu_ps(o##i + d + 8, b##i);
#define PV_BF16_HALF(R, HALF)                                          \
    {                                                                  \
        const uint32_t *at = v + t / 2 * ep + d;                       \
        __m256 v0 = HALF(avx2_load(at)), v1 = HALF(avx2_load(at + 8)); \
        AVX2_REPEAT_##R(PV_MADD) t++;                                  \
    }

/* STEPS: the body for positions lo .. hi - 1 of a page, in steps of its kind. */
#define DEFINE_PV_OF(R, NAME, TYPE, STEPS)                                                      \
    static void pv_##NAME##_##R(const char *const *pages, const char *const *nexts,             \
                                uint32_t n_pages, uint32_t lo, uint32_t hi, const float *probs, \
                                const uint32_t *rows, size_t ep, float *part) {                 \
        AVX2_REPEAT_##R(PV_ROW) for (size_t d = 0; d < ep; d += 16) {                           \
            AVX2_REPEAT_##R(PV_LOAD) for (uint32_t p = 0; p < n_pages; p++) {                   \
                const TYPE *v = (const TYPE *)(const void *)pages[p];                           \
                const char *next = nexts ? nexts[p] : NULL;                                     \
                const uint32_t t0 = p * PAGE_TOKENS;                                            \
                uint32_t t = lo;                                                                \
                STEPS(R)                                                                        \
            }                                                                                   \
            AVX2_REPEAT_##R(PV_OUT)                                                             \
        }                                                                                       \
    }
#define PV_EACH(R, LOAD)                                    \
    for (; t < hi; t++) {                                   \
        const size_t at = t * ep + d;                       \
        if (next) attend_fetch_line(next + at * sizeof *v); \
        __m256 v0 = LOAD(v + at), v1 = LOAD(v + at + 8);    \
        AVX2_REPEAT_##R(PV_MADD)                            \
    }
#define PV_F32(R)  PV_EACH(R, _mm256_loadu_ps)
#define PV_INT8(R) PV_EACH(R, avx2_int8)
#define PV_BF16(R)                                                        \
    if (t % 2 && t < hi) PV_BF16_HALF(R, avx2_bf16_high)                  \
    while (t + 2 <= hi) {                                                 \
        if (next) attend_fetch_line(next + (t / 2 * ep + d) * sizeof *v); \
        PV_BF16_HALF(R, avx2_bf16_low)                                    \
        PV_BF16_HALF(R, avx2_bf16_high)                                   \
    }                                                                     \
    if (t < hi) PV_BF16_HALF(R, avx2_bf16_low)
#define DEFINE_PV(R)                       \
    DEFINE_PV_OF(R, f32, float, PV_F32)    \
    DEFINE_PV_OF(R, int8, int8_t, PV_INT8) \
    DEFINE_PV_OF(R, bf16, uint32_t, PV_BF16)

DEFINE_PV(1)
DEFINE_PV(2)
DEFINE_PV(3)
DEFINE_PV(4)
DEFINE_PV(5)
DEFINE_PV(6)

static const pv_fn pv[KV_KINDS][AVX2_TILE + 1] = {
    {NULL, pv_f32_1, pv_f32_2, pv_f32_3, pv_f32_4, pv_f32_5, pv_f32_6},
    {NULL, pv_bf16_1, pv_bf16_2, pv_bf16_3, pv_bf16_4, pv_bf16_5, pv_bf16_6},
    {NULL, pv_int8_1, pv_int8_2, pv_int8_3, pv_int8_4, pv_int8_5, pv_int8_6},
};

/* ---- 8-bit KV --------------------------------------------------------------------------------- */

static void widen(const int8_t *q, size_t n, float *out) {
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(out + i, avx2_int8(q + i));
}

static void scale(const uint16_t *scales, const uint32_t *rows, uint32_t n, float *scores) {
    __m256 d0 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)scales));
    __m256 d1 = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(scales + 8)));
    for (uint32_t i = 0; i < n; i++) {
        float *s = scores + rows[i] * (size_t)ATTEND_BLOCK;
        _mm256_storeu_ps(s, _mm256_mul_ps(_mm256_loadu_ps(s), d0));
        _mm256_storeu_ps(s + 8, _mm256_mul_ps(_mm256_loadu_ps(s + 8), d1));
    }
}

/* ---- softmax of a block ----------------------------------------------------------------------- */

/* Scores lo .. hi - 1 of a row into probabilities against their own maximum; *total = their sum.
 * Lanes outside the span are replaced before anything is made of them. */
static float softmax(float *s, uint32_t lo, uint32_t hi, float *total) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 most8 = lowest, total8 = _mm256_setzero_ps();
    for (uint32_t i = lo & ~7u; i < hi; i += 8)
        most8 = _mm256_max_ps(most8,
                              _mm256_blendv_ps(lowest, _mm256_loadu_ps(s + i), lanes(i, lo, hi)));
    __m128 most4 = _mm_max_ps(_mm256_castps256_ps128(most8), _mm256_extractf128_ps(most8, 1));
    most4 = _mm_max_ps(most4, _mm_movehl_ps(most4, most4));
    float most = _mm_cvtss_f32(_mm_max_ss(most4, _mm_movehdup_ps(most4)));
    most8 = _mm256_set1_ps(most);
    for (uint32_t i = lo & ~7u; i < hi; i += 8) {
        __m256 p = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(s + i), most8));
        p = _mm256_and_ps(p, lanes(i, lo, hi));
        total8 = _mm256_add_ps(total8, p);
        _mm256_storeu_ps(s + i, p);
    }
    *total = avx2_sum(total8);
    return most;
}

void avx2_merge(float *out, float *most, float *total, const float *part, float part_most,
                float part_total, size_t ep) {
    float larger = *most > part_most ? *most : part_most;
    __m256 a = avx2_exp(_mm256_set1_ps(*most - larger));
    __m256 b = avx2_exp(_mm256_set1_ps(part_most - larger));
    for (size_t d = 0; d < ep; d += 8)
        _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(part + d), b,
                                                  _mm256_mul_ps(_mm256_loadu_ps(out + d), a)));
    *most = larger;
    *total = *total * _mm256_cvtss_f32(a) + part_total * _mm256_cvtss_f32(b);
}

static void scaled(float *to, const float *from, uint32_t n, float by) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(by)));
    for (; i < n; i++)
        to[i] = from[i] * by;
}

static const struct attend_ops ops = {
    .rows_max = AVX2_TILE,
    .qk = {qk[KV_F32], qk[KV_BF16], qk[KV_Q8]},
    .pv = {pv[KV_F32], pv[KV_BF16], pv[KV_Q8]},
    .scaled = scaled,
    .widen = widen,
    .scale = scale,
    .softmax = softmax,
    .merge = avx2_merge,
};

bool avx2_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                      void *scratch) {
    return attend_tile(&ops, dev, layer, task, scratch);
}
