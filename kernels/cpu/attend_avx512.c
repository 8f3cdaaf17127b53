/* attend_avx512.c: what the avx512 table does to a page of K and V. Layouts and the order of every
 * sum are those of attend_avx2.c, so the bits are too. A page's 16 positions are one register. */
#include <math.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attend.h"

enum { ROWS_MAX = 8 };

/* ---- scores of a page: 1 to 8 query rows x 16 positions ---------------------------------------- */

#define QK_ROW(i)                         \
    const float *q##i = q + rows[i] * ep; \
    __m512 a##i = _mm512_setzero_ps();
#define QK_MADD(i) a##i = _mm512_fmadd_ps(kd, _mm512_set1_ps(q##i[d]), a##i);
#define QK_OUT(i)  _mm512_storeu_ps(scores + rows[i] * (size_t)ATTEND_BLOCK, a##i);

#define DEFINE_QK_OF(R, REPEAT, NAME, TYPE, LOAD)                                        \
    static void qk_##NAME##_##R(const void *page, uint32_t e, const float *q, size_t ep, \
                                const uint32_t *rows, float *scores) {                   \
        const TYPE *k = page;                                                            \
        REPEAT(QK_ROW)                                                                   \
        for (uint32_t d = 0; d < e; d++, k += PAGE_TOKENS) {                             \
            __m512 kd = LOAD(k);                                                         \
            REPEAT(QK_MADD)                                                              \
        }                                                                                \
        REPEAT(QK_OUT)                                                                   \
    }
#define DEFINE_QK(R, REPEAT)                                                         \
    DEFINE_QK_OF(R, REPEAT, f32, float, _mm512_loadu_ps)                             \
    DEFINE_QK_OF(R, REPEAT, int8, int8_t, avx512_int8)                               \
    static void qk_bf16_##R(const void *page, uint32_t e, const float *q, size_t ep, \
                            const uint32_t *rows, float *scores) {                   \
        const uint32_t *k = page;                                                    \
        REPEAT(QK_ROW)                                                               \
        for (uint32_t d = 0; d < e; d++, k += PAGE_TOKENS) {                         \
            __m512i z = _mm512_loadu_si512(k);                                       \
            __m512 kd = avx512_bf16_low(z);                                          \
            REPEAT(QK_MADD)                                                          \
            d++;                                                                     \
            kd = avx512_bf16_high(z);                                                \
            REPEAT(QK_MADD)                                                          \
        }                                                                            \
        REPEAT(QK_OUT)                                                               \
    }

DEFINE_QK(1, AVX2_REPEAT_1)
DEFINE_QK(2, AVX2_REPEAT_2)
DEFINE_QK(3, AVX2_REPEAT_3)
DEFINE_QK(4, AVX2_REPEAT_4)
DEFINE_QK(5, AVX2_REPEAT_5)
DEFINE_QK(6, AVX2_REPEAT_6)
DEFINE_QK(7, AVX512_REPEAT_7)
DEFINE_QK(8, AVX512_REPEAT_8)

static const qk_fn qk[KV_KINDS][ROWS_MAX + 1] = {
    {NULL, qk_f32_1, qk_f32_2, qk_f32_3, qk_f32_4, qk_f32_5, qk_f32_6, qk_f32_7, qk_f32_8},
    {NULL, qk_bf16_1, qk_bf16_2, qk_bf16_3, qk_bf16_4, qk_bf16_5, qk_bf16_6, qk_bf16_7, qk_bf16_8},
    {NULL, qk_int8_1, qk_int8_2, qk_int8_3, qk_int8_4, qk_int8_5, qk_int8_6, qk_int8_7, qk_int8_8},
};

/* ---- p V of a page: 1 to 8 query rows, positions lo .. hi - 1 of the page ---------------------- */

#define PV_ROW(i)                                               \
    const float *p##i = probs + rows[i] * (size_t)ATTEND_BLOCK; \
    float *o##i = part + rows[i] * ep;
#define PV_LOAD(i) __m512 a##i = _mm512_loadu_ps(o##i + d);
#define PV_MADD(i) a##i = _mm512_fmadd_ps(vt, _mm512_set1_ps(p##i[t]), a##i);
#define PV_OUT(i)  _mm512_storeu_ps(o##i + d, a##i);
#define PV_BF16(REPEAT, HALF)                                     \
    {                                                             \
        __m512 vt = HALF(_mm512_loadu_si512(v + t / 2 * ep + d)); \
        REPEAT(PV_MADD)                                           \
        t++;                                                      \
    }

#define DEFINE_PV_OF(R, REPEAT, NAME, TYPE, LOAD)                                               \
    static void pv_##NAME##_##R(const void *page, uint32_t lo, uint32_t hi, const float *probs, \
                                const uint32_t *rows, size_t ep, float *part) {                 \
        const TYPE *v = page;                                                                   \
        REPEAT(PV_ROW)                                                                          \
        for (size_t d = 0; d < ep; d += 16) {                                                   \
            REPEAT(PV_LOAD)                                                                     \
            for (uint32_t t = lo; t < hi; t++) {                                                \
                __m512 vt = LOAD(v + t * ep + d);                                               \
                REPEAT(PV_MADD)                                                                 \
            }                                                                                   \
            REPEAT(PV_OUT)                                                                      \
        }                                                                                       \
    }
#define DEFINE_PV(R, REPEAT)                                                                \
    DEFINE_PV_OF(R, REPEAT, f32, float, _mm512_loadu_ps)                                    \
    DEFINE_PV_OF(R, REPEAT, int8, int8_t, avx512_int8)                                      \
    static void pv_bf16_##R(const void *page, uint32_t lo, uint32_t hi, const float *probs, \
                            const uint32_t *rows, size_t ep, float *part) {                 \
        const uint32_t *v = page;                                                           \
        REPEAT(PV_ROW)                                                                      \
        for (size_t d = 0; d < ep; d += 16) {                                               \
            REPEAT(PV_LOAD)                                                                 \
            uint32_t t = lo;                                                                \
            if (t % 2 && t < hi) PV_BF16(REPEAT, avx512_bf16_high)                          \
            while (t + 2 <= hi) {                                                           \
                PV_BF16(REPEAT, avx512_bf16_low)                                            \
                PV_BF16(REPEAT, avx512_bf16_high)                                           \
            }                                                                               \
            if (t < hi) PV_BF16(REPEAT, avx512_bf16_low)                                    \
            REPEAT(PV_OUT)                                                                  \
        }                                                                                   \
    }

DEFINE_PV(1, AVX2_REPEAT_1)
DEFINE_PV(2, AVX2_REPEAT_2)
DEFINE_PV(3, AVX2_REPEAT_3)
DEFINE_PV(4, AVX2_REPEAT_4)
DEFINE_PV(5, AVX2_REPEAT_5)
DEFINE_PV(6, AVX2_REPEAT_6)
DEFINE_PV(7, AVX512_REPEAT_7)
DEFINE_PV(8, AVX512_REPEAT_8)

static const pv_fn pv[KV_KINDS][ROWS_MAX + 1] = {
    {NULL, pv_f32_1, pv_f32_2, pv_f32_3, pv_f32_4, pv_f32_5, pv_f32_6, pv_f32_7, pv_f32_8},
    {NULL, pv_bf16_1, pv_bf16_2, pv_bf16_3, pv_bf16_4, pv_bf16_5, pv_bf16_6, pv_bf16_7, pv_bf16_8},
    {NULL, pv_int8_1, pv_int8_2, pv_int8_3, pv_int8_4, pv_int8_5, pv_int8_6, pv_int8_7, pv_int8_8},
};

/* ---- 8-bit KV --------------------------------------------------------------------------------- */

static void widen(const int8_t *q, size_t n, float *out) {
    for (size_t i = 0; i < n; i += 16)
        _mm512_storeu_ps(out + i, avx512_int8(q + i));
}

static void scale(const uint16_t *scales, const uint32_t *rows, uint32_t n, float *scores) {
    __m512 d = _mm512_cvtph_ps(avx2_load(scales));
    for (uint32_t i = 0; i < n; i++) {
        float *s = scores + rows[i] * (size_t)ATTEND_BLOCK;
        _mm512_storeu_ps(s, _mm512_mul_ps(_mm512_loadu_ps(s), d));
    }
}

/* ---- softmax of a block ----------------------------------------------------------------------- */

/* Lanes i .. i + 15 that lie in lo .. hi - 1. */
static inline __mmask16 lanes(uint32_t i, uint32_t lo, uint32_t hi) {
    uint32_t from = lo > i ? lo - i : 0, to = hi - i < 16 ? hi - i : 16;
    return (__mmask16)((1u << to) - (1u << from));
}

/* Lanes outside the span are replaced before anything is made of them; the total keeps the eight
 * lanes of attend_avx2.c, where adding 0 changes nothing. */
static float softmax(float *s, uint32_t lo, uint32_t hi, float *total) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 most16 = lowest;
    __m256 total8 = _mm256_setzero_ps();
    for (uint32_t i = lo & ~15u; i < hi; i += 16)
        most16 = _mm512_max_ps(most16, _mm512_mask_loadu_ps(lowest, lanes(i, lo, hi), s + i));
    float most = _mm512_reduce_max_ps(most16);
    most16 = _mm512_set1_ps(most);
    for (uint32_t i = lo & ~15u; i < hi; i += 16) {
        __m512 p = avx512_exp(_mm512_sub_ps(_mm512_loadu_ps(s + i), most16));
        p = _mm512_maskz_mov_ps(lanes(i, lo, hi), p);
        total8 = _mm256_add_ps(total8, _mm512_castps512_ps256(p));
        total8 = _mm256_add_ps(total8, _mm512_extractf32x8_ps(p, 1));
        _mm512_storeu_ps(s + i, p);
    }
    *total = avx2_sum(total8);
    return most;
}

static void scaled(float *to, const float *from, uint32_t n, float by) {
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 some = lanes(i, 0, n);
        _mm512_mask_storeu_ps(
            to + i, some, _mm512_mul_ps(_mm512_maskz_loadu_ps(some, from + i), _mm512_set1_ps(by)));
    }
}

#define OPS(...)                                                                      \
    {                                                                                 \
        .rows_max = ROWS_MAX, .qk = {qk[KV_F32], qk[KV_BF16], qk[KV_Q8]},             \
        .pv = {pv[KV_F32], pv[KV_BF16], pv[KV_Q8]}, .scaled = scaled, .widen = widen, \
        .scale = scale, .softmax = softmax, .merge = avx2_merge, __VA_ARGS__          \
    }
static const struct attend_ops ops = OPS(.block = NULL);
static const struct attend_ops ops_amx =
    OPS(.block = amx_attend_block, .queries = amx_attend_queries);

bool avx512_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                        void *scratch) {
    return attend_tile(&ops, dev, layer, task, scratch);
}

/* Rows of one device have one arithmetic: float32 activations keep to that of the other tables. */
bool amx_attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                     void *scratch) {
    bool tiles = dev->shape.activations != ACTIVATIONS_F32 && dev->limits.kv_dtype == DTYPE_BF16;
    return attend_tile(tiles ? &ops_amx : &ops, dev, layer, task, scratch);
}
