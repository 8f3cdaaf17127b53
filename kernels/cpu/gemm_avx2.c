/* gemm_avx2.c: acc[i][j] = sum_k W[j][k] x[i][k] for 32 output columns j and any number of rows i.
 *
 * One definition of the sum, whatever the row count and the kernel below:
 *
 *   for each step of 32 k:   e = fma chain from 0 over even k ascending,  o = the same over odd k
 *       f32 f16 bf16         acc = fma(e + o, 1, acc)                 = acc + (e + o)
 *       q8_0 q4_0            acc = fma(e + o, d, acc)                 e, o over the integers q
 *       q4_1 q5_1            acc = fma(m, sum of x over the step, fma(e + o, d, acc))
 *       q5_0                 as q4_0
 *       q4_k q5_k            as q4_1, with d * scale and -m * min, both exact
 *       q6_k                 as q4_0; e, o over the integers scale * (q - 32)
 *
 * which is the order of a matrix tile unit (two chains a step), so that all tables share it.
 *
 * Two kernels compute it:
 *   1 to 3 rows weights are expanded in registers and used at once, row by row: a read of the
 *               packed stream.
 *   more rows   a step is expanded into a panel of 4 KiB in the first-level cache, used by tiles of
 *               up to 6 rows x 16 columns; even and odd chains one after the other, since both
 *               would need 24 registers. Bound by FMA: 12 of them for 8 loads.
 *
 *   panel: [half 2][parity 2][k / 2: 16][column 16] */
#include <string.h>

#include "kernels/cpu/quads_avx2.h"

enum {
    HALF = 16, /* columns of a tile */
    PARITY_FLOATS = GROUP / 2 * HALF,
    HALF_FLOATS = 2 * PARITY_FLOATS,
    TILE_FROM = 4,     /* rows */
    RUN_BYTES = 16384, /* of weights that stay in the first-level cache */
};

/* Expand: number k (0 .. 31) of the step for columns 8 v .. 8 v + 7. Nibbles of Q4_1 unsigned, of
 * Q4_0 signed; bytes of Q8_0 signed. z is the dword vector that holds k. */
#define NIBBLE_UNSIGNED(z, j) \
    _mm256_cvtepi32_ps(       \
        _mm256_and_si256(_mm256_srli_epi32(z, PACK_NIBBLE(j)), _mm256_set1_epi32(15)))
#define NIBBLE_SIGNED(z, j) \
    _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(z, 28 - PACK_NIBBLE(j)), 28))
#define BYTE_SIGNED(z, j) \
    _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(z, 24 - 8 * (j)), 24))
#define HALF_AT(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))

static const uint8_t *step_at(const struct matrix *m, uint32_t group) {
    return (const uint8_t *)m->data + group * m->group_bytes;
}

void avx2_step_sums(const float *x, uint32_t n_steps, float *sums) {
    for (uint32_t i = 0; i < n_steps; i++, x += GROUP) {
        __m256 a = _mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8));
        __m256 b = _mm256_add_ps(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24));
        sums[i] = avx2_sum(_mm256_add_ps(a, b));
    }
}

/* ---- one row ---------------------------------------------------------------------------------- */

/* Four column vectors 0 .. 3; A is e (even k) or o (odd k); W(v) yields the weights of vector v. */
#define ROW_MADD(A, k, W)                         \
    do {                                          \
        __m256 xk = _mm256_broadcast_ss(x + (k)); \
        A##0 = _mm256_fmadd_ps(W(0), xk, A##0);   \
        A##1 = _mm256_fmadd_ps(W(1), xk, A##1);   \
        A##2 = _mm256_fmadd_ps(W(2), xk, A##2);   \
        A##3 = _mm256_fmadd_ps(W(3), xk, A##3);   \
    } while (0)

#define ROW_LOAD(p)                                                                \
    __m256i z0 = avx2_load(p), z1 = avx2_load((p) + 32), z2 = avx2_load((p) + 64), \
            z3 = avx2_load((p) + 96)

/* Scales: ones, or f16 at p. */
#define ROW_ONE(v)   _mm256_set1_ps(1.0f)
#define ROW_SCALE(v) HALF_AT(p + 16 * (v))

#define ROW_FINISH(v)                                                  \
    a##v = _mm256_fmadd_ps(_mm256_add_ps(e##v, o##v), ROW_D(v), a##v); \
    ROW_M(v)

#define ROW_ACC(v)  __m256 a##v = _mm256_loadu_ps(acc + 8 * v);
#define ROW_STEP(v) __m256 e##v = _mm256_setzero_ps(), o##v = _mm256_setzero_ps();
#define ROW_OUT(v)  _mm256_storeu_ps(acc + 8 * v, a##v);

/* A function that adds steps to acc; BODY moves p over the step's numbers to its scales. */
#define DEFINE_ROW(NAME, DTYPE, BODY)                                                       \
    static void NAME(const uint8_t *p, uint32_t n_steps, const float *x, const float *sums, \
                     float *acc) {                                                          \
        (void)sums;                                                                         \
        const uint32_t bytes = pack_step_bytes(DTYPE), head_bytes = pack_head_bytes(DTYPE); \
        const uint8_t *step = p, *head = p;                                                 \
        AVX2_REPEAT_4(ROW_ACC)                                                              \
        for (uint32_t s = 0; s < n_steps; s++, x += GROUP) {                                \
            AVX2_REPEAT_4(ROW_STEP)                                                         \
            if (s % PACK_HEAD_STEPS == 0) head = step, step += head_bytes;                  \
            p = step;                                                                       \
            pack_fetch_ahead(p, bytes);                                                     \
            BODY;                                                                           \
            AVX2_REPEAT_4(ROW_FINISH)                                                       \
            step += bytes;                                                                  \
        }                                                                                   \
        (void)head;                                                                         \
        AVX2_REPEAT_4(ROW_OUT)                                                              \
    }

#define ROW_D(v) ROW_ONE(v)
#define ROW_M(v)

#define F32_AT(v) _mm256_loadu_ps((const float *)(const void *)p + 8 * (v))
DEFINE_ROW(
    row_f32, DTYPE_F32, for (uint32_t k = 0; k < GROUP; k += 2) {
        ROW_MADD(e, k, F32_AT);
        p += 128;
        ROW_MADD(o, k + 1, F32_AT);
        p += 128;
    })

DEFINE_ROW(
    row_f16, DTYPE_F16, for (uint32_t k = 0; k < GROUP; k += 2) {
        ROW_MADD(e, k, ROW_SCALE);
        p += 64;
        ROW_MADD(o, k + 1, ROW_SCALE);
        p += 64;
    })

#define BF16_LOW(v)  avx2_bf16_low(z##v)
#define BF16_HIGH(v) avx2_bf16_high(z##v)
DEFINE_ROW(
    row_bf16, DTYPE_BF16, for (uint32_t k = 0; k < GROUP; k += 2) {
        ROW_LOAD(p);
        ROW_MADD(e, k, BF16_LOW);
        ROW_MADD(o, k + 1, BF16_HIGH);
        p += 128;
    })

#undef ROW_D
#define ROW_D(v) ROW_SCALE(v)

#define B0(v) BYTE_SIGNED(z##v, 0)
#define B1(v) BYTE_SIGNED(z##v, 1)
#define B2(v) BYTE_SIGNED(z##v, 2)
#define B3(v) BYTE_SIGNED(z##v, 3)
DEFINE_ROW(
    row_q8_0, DTYPE_Q8_0, for (uint32_t k = 0; k < GROUP; k += 4) {
        ROW_LOAD(p);
        ROW_MADD(e, k, B0);
        ROW_MADD(o, k + 1, B1);
        ROW_MADD(e, k + 2, B2);
        ROW_MADD(o, k + 3, B3);
        p += 128;
    })

#define S0(v) NIBBLE_SIGNED(z##v, 0)
#define S1(v) NIBBLE_SIGNED(z##v, 1)
#define S2(v) NIBBLE_SIGNED(z##v, 2)
#define S3(v) NIBBLE_SIGNED(z##v, 3)
#define S4(v) NIBBLE_SIGNED(z##v, 4)
#define S5(v) NIBBLE_SIGNED(z##v, 5)
#define S6(v) NIBBLE_SIGNED(z##v, 6)
#define S7(v) NIBBLE_SIGNED(z##v, 7)
DEFINE_ROW(
    row_q4_0, DTYPE_Q4_0, for (uint32_t k = 0; k < GROUP; k += 8) {
        ROW_LOAD(p);
        ROW_MADD(e, k, S0);
        ROW_MADD(o, k + 1, S1);
        ROW_MADD(e, k + 2, S2);
        ROW_MADD(o, k + 3, S3);
        ROW_MADD(e, k + 4, S4);
        ROW_MADD(o, k + 5, S5);
        ROW_MADD(e, k + 6, S6);
        ROW_MADD(o, k + 7, S7);
        p += 128;
    })

#undef ROW_M
#define ROW_M(v) \
    a##v = _mm256_fmadd_ps(HALF_AT(p + 64 + 16 * (v)), _mm256_broadcast_ss(sums + s), a##v);

#define U0(v) NIBBLE_UNSIGNED(z##v, 0)
#define U1(v) NIBBLE_UNSIGNED(z##v, 1)
#define U2(v) NIBBLE_UNSIGNED(z##v, 2)
#define U3(v) NIBBLE_UNSIGNED(z##v, 3)
#define U4(v) NIBBLE_UNSIGNED(z##v, 4)
#define U5(v) NIBBLE_UNSIGNED(z##v, 5)
#define U6(v) NIBBLE_UNSIGNED(z##v, 6)
#define U7(v) NIBBLE_UNSIGNED(z##v, 7)
#define ROW_UNSIGNED                          \
    for (uint32_t k = 0; k < GROUP; k += 8) { \
        ROW_LOAD(p);                          \
        ROW_MADD(e, k, U0);                   \
        ROW_MADD(o, k + 1, U1);               \
        ROW_MADD(e, k + 2, U2);               \
        ROW_MADD(o, k + 3, U3);               \
        ROW_MADD(e, k + 4, U4);               \
        ROW_MADD(o, k + 5, U5);               \
        ROW_MADD(e, k + 6, U6);               \
        ROW_MADD(o, k + 7, U7);               \
        p += 128;                             \
    }
DEFINE_ROW(row_q4_1, DTYPE_Q4_1, ROW_UNSIGNED)

/* Numbers of 5 and 6 bits: bytes b of four numbers k at a time, which QUAD makes. */
#define ROW_QUAD(QUAD, r)                                                                       \
    {                                                                                           \
        __m256i b0 = QUAD(p, 0, r), b1 = QUAD(p, 1, r), b2 = QUAD(p, 2, r), b3 = QUAD(p, 3, r); \
        ROW_MADD(e, 4 * (r), Q0);                                                               \
        ROW_MADD(o, 4 * (r) + 1, Q1);                                                           \
        ROW_MADD(e, 4 * (r) + 2, Q2);                                                           \
        ROW_MADD(o, 4 * (r) + 3, Q3);                                                           \
    }
#define Q0(v) Q(v, 0)
#define Q1(v) Q(v, 1)
#define Q2(v) Q(v, 2)
#define Q3(v) Q(v, 3)

#define Q(v, j)       quad_float(b##v, j)
#define ROW_QUAD_5(r) ROW_QUAD(quad_5, r)
DEFINE_ROW(row_q5_1, DTYPE_Q5_1, QUADS_ALL(ROW_QUAD_5) p += pack_scales_at(DTYPE_Q5_1))

#undef ROW_D
#undef ROW_M
#define ROW_D(v) _mm256_mul_ps(HALF_AT(head + 16 * (v)), quad_scales(p + 8 * (v)))
#define ROW_M(v)                                                                        \
    a##v = _mm256_fnmadd_ps(                                                            \
        _mm256_mul_ps(HALF_AT(head + 64 + 16 * (v)), quad_scales(p + GROUP + 8 * (v))), \
        _mm256_broadcast_ss(sums + s), a##v);
DEFINE_ROW(row_q5_k, DTYPE_Q5_K, QUADS_ALL(ROW_QUAD_5) p += pack_scales_at(DTYPE_Q5_K))
DEFINE_ROW(row_q4_k, DTYPE_Q4_K, ROW_UNSIGNED)

#undef ROW_D
#undef ROW_M
#define ROW_D(v) ROW_SCALE(v)
#define ROW_M(v)
#undef Q
#define Q(v, j) _mm256_sub_ps(quad_float(b##v, j), _mm256_set1_ps(16))
DEFINE_ROW(row_q5_0, DTYPE_Q5_0, QUADS_ALL(ROW_QUAD_5) p += pack_scales_at(DTYPE_Q5_0))

/* The numbers of q6_k, scale * (q - 32), integers below 2^13, as scale * q - 32 * scale. */
static inline __m256 q6_number(__m256i bytes, int j, __m256 scale, __m256 offset) {
    return _mm256_fmsub_ps(quad_float(bytes, j), scale, offset);
}

static inline __m256 q6_offset(__m256 scale) {
    return _mm256_mul_ps(scale, _mm256_set1_ps(32));
}

/* Their scales take registers, so two column vectors at a time, with four chains; expanding hides
 * their latency. Half h of the step's K, quads r of it. */
#define Q6_MADD(A, k, j)                                                     \
    {                                                                        \
        __m256 xk = _mm256_broadcast_ss(x + (k) + (j));                      \
        A##0 = _mm256_fmadd_ps(q6_number(b0, j, scale0, offset0), xk, A##0); \
        A##1 = _mm256_fmadd_ps(q6_number(b1, j, scale1, offset1), xk, A##1); \
    }
#define Q6_QUAD(r)                                              \
    {                                                           \
        __m256i b0 = quad_6(p, v, r), b1 = quad_6(p, v + 1, r); \
        Q6_MADD(e, 4 * (r), 0)                                  \
        Q6_MADD(o, 4 * (r), 1)                                  \
        Q6_MADD(e, 4 * (r), 2)                                  \
        Q6_MADD(o, 4 * (r), 3)                                  \
    }
#define Q6_HALF(h, QUADS)                                                            \
    {                                                                                \
        const uint8_t *at = p + pack_scales_at(DTYPE_Q6_K) + (h)*GROUP + 8 * v;      \
        __m256 scale0 = quad_signed_scales(at), scale1 = quad_signed_scales(at + 8); \
        __m256 offset0 = q6_offset(scale0), offset1 = q6_offset(scale1);             \
        QUADS(Q6_QUAD)                                                               \
    }

static void row_q6_k(const uint8_t *p, uint32_t n_steps, const float *x, const float *sums,
                     float *acc) {
    (void)sums;
    const uint8_t *head = p;
    for (uint32_t s = 0; s < n_steps; s++, x += GROUP, p += pack_step_bytes(DTYPE_Q6_K)) {
        if (s % PACK_HEAD_STEPS == 0) head = p, p += pack_head_bytes(DTYPE_Q6_K);
        pack_fetch_ahead(p, pack_step_bytes(DTYPE_Q6_K));
        for (uint32_t v = 0; v < 4; v += 2) {
            __m256 e0 = _mm256_setzero_ps(), e1 = e0, o0 = e0, o1 = e0;
            Q6_HALF(0, QUADS_FIRST)
            Q6_HALF(1, QUADS_LAST)
            float *to = acc + 8 * v;
            _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_add_ps(e0, o0), HALF_AT(head + 16 * v),
                                                 _mm256_loadu_ps(to)));
            _mm256_storeu_ps(to + 8,
                             _mm256_fmadd_ps(_mm256_add_ps(e1, o1), HALF_AT(head + 16 * v + 16),
                                             _mm256_loadu_ps(to + 8)));
        }
    }
}

typedef void (*row_fn)(const uint8_t *p, uint32_t n_steps, const float *x, const float *sums,
                       float *acc);
static const row_fn row_fns[DTYPE_COUNT] = {
    [DTYPE_F32] = row_f32,   [DTYPE_F16] = row_f16,   [DTYPE_BF16] = row_bf16,
    [DTYPE_Q8_0] = row_q8_0, [DTYPE_Q4_0] = row_q4_0, [DTYPE_Q4_1] = row_q4_1,
    [DTYPE_Q5_0] = row_q5_0, [DTYPE_Q5_1] = row_q5_1, [DTYPE_Q4_K] = row_q4_k,
    [DTYPE_Q5_K] = row_q5_k, [DTYPE_Q6_K] = row_q6_k,
};

/* Row by row over runs of steps short enough to be in the first-level cache for the second row. */
static void few_rows(enum dtype dtype, const uint8_t *step, uint32_t n_steps,
                     const struct gemm_rows *in, float (*acc)[GROUP]) {
    uint32_t run = in->n_rows == 1 ? n_steps : pack_run(dtype, RUN_BYTES);
    for (uint32_t s = 0; s < n_steps; s += run, step += pack_bytes(dtype, run)) {
        uint32_t n = n_steps - s < run ? n_steps - s : run;
        for (uint32_t i = 0; i < in->n_rows; i++)
            row_fns[dtype](step, n, in->x + i * in->ldx + s * GROUP, in->sums + i * in->ldsums + s,
                           acc[i]);
    }
}

/* ---- a panel ---------------------------------------------------------------------------------- */

/* Number k of column vector v goes to its half, its parity and its place there. With k and v
 * constants the address is one too. */
#define PANEL_AT(k, v) \
    ((v) / 2 * HALF_FLOATS + (k) % 2 * PARITY_FLOATS + (k) / 2 * HALF + (v) % 2 * 8)
#define PUT(k, v, w) _mm256_store_ps(to + PANEL_AT(k, v), w)

#define PUT_F32(v)                                           \
    PUT(0, v, _mm256_castsi256_ps(avx2_load(p + 32 * (v)))); \
    PUT(1, v, _mm256_castsi256_ps(avx2_load(p + 128 + 32 * (v))));
#define PUT_F16(v)                    \
    PUT(0, v, HALF_AT(p + 16 * (v))); \
    PUT(1, v, HALF_AT(p + 64 + 16 * (v)));
#define PUT_BF16(v)                          \
    {                                        \
        __m256i z = avx2_load(p + 32 * (v)); \
        PUT(0, v, avx2_bf16_low(z));         \
        PUT(1, v, avx2_bf16_high(z));        \
    }
#define PUT_4(v, WIDEN)     \
    PUT(0, v, WIDEN(z, 0)); \
    PUT(1, v, WIDEN(z, 1)); \
    PUT(2, v, WIDEN(z, 2)); \
    PUT(3, v, WIDEN(z, 3));
#define PUT_8(v, WIDEN)     \
    PUT_4(v, WIDEN)         \
    PUT(4, v, WIDEN(z, 4)); \
    PUT(5, v, WIDEN(z, 5)); \
    PUT(6, v, WIDEN(z, 6)); \
    PUT(7, v, WIDEN(z, 7));
#define PUT_Q8_0(v)                          \
    {                                        \
        __m256i z = avx2_load(p + 32 * (v)); \
        PUT_4(v, BYTE_SIGNED)                \
    }
#define PUT_Q4_0(v)                          \
    {                                        \
        __m256i z = avx2_load(p + 32 * (v)); \
        PUT_8(v, NIBBLE_SIGNED)              \
    }
#define PUT_Q4_1(v)                          \
    {                                        \
        __m256i z = avx2_load(p + 32 * (v)); \
        PUT_8(v, NIBBLE_UNSIGNED)            \
    }

/* N of K a round, from BYTES of the step. */
#define DEFINE_EXPAND(NAME, N, BYTES, PUT_V)                                            \
    static void NAME(const uint8_t *p, float *to) {                                     \
        for (uint32_t k = 0; k < GROUP; k += (N), p += (BYTES), to += (N) / 2 * HALF) { \
            AVX2_REPEAT_4(PUT_V)                                                        \
        }                                                                               \
    }
DEFINE_EXPAND(expand_f32, 2, 256, PUT_F32)
DEFINE_EXPAND(expand_f16, 2, 128, PUT_F16)
DEFINE_EXPAND(expand_bf16, 2, 128, PUT_BF16)
DEFINE_EXPAND(expand_q8_0, 4, 128, PUT_Q8_0)
DEFINE_EXPAND(expand_q4_0, 8, 128, PUT_Q4_0)
DEFINE_EXPAND(expand_q4_1, 8, 128, PUT_Q4_1)

/* The types that are only read: four numbers k of a column vector a round. PLACE says where number k
 * of column vector v goes, so that the same text fills another table's panel. */
#define PUT_NUMBER(PLACE, r, j) _mm256_storeu_ps(to + PLACE(4 * (r) + (j), v), NUMBER(r, j))
#define PUT_QUAD(PLACE, QUAD, r)   \
    {                              \
        __m256i b = QUAD(p, v, r); \
        PUT_NUMBER(PLACE, r, 0);   \
        PUT_NUMBER(PLACE, r, 1);   \
        PUT_NUMBER(PLACE, r, 2);   \
        PUT_NUMBER(PLACE, r, 3);   \
    }
#define PANEL_QUAD_4(r) PUT_QUAD(PANEL_AT, quad_4, r)
#define PANEL_QUAD_5(r) PUT_QUAD(PANEL_AT, quad_5, r)
#define PANEL_QUAD_6(r) PUT_QUAD(PANEL_AT, quad_6, r)
#define ROWS_AT(k, v)   ((k)*GROUP + (v)*8)
#define ROWS_QUAD_4(r)  PUT_QUAD(ROWS_AT, quad_4, r)
#define ROWS_QUAD_5(r)  PUT_QUAD(ROWS_AT, quad_5, r)
#define ROWS_QUAD_6(r)  PUT_QUAD(ROWS_AT, quad_6, r)
#define DEFINE_EXPAND_QUADS(NAME, BEGIN, PUT_R)     \
    static void NAME(const uint8_t *p, float *to) { \
        for (uint32_t v = 0; v < 4; v++) {          \
            BEGIN                                   \
            QUADS_ALL(PUT_R)                        \
        }                                           \
    }

#define NUMBER(r, j) quad_float(b, j)
DEFINE_EXPAND_QUADS(expand_u4, , PANEL_QUAD_4)
DEFINE_EXPAND_QUADS(expand_u5, , PANEL_QUAD_5)
DEFINE_EXPAND_QUADS(rows_u4, , ROWS_QUAD_4)
DEFINE_EXPAND_QUADS(rows_u5, , ROWS_QUAD_5)
#undef NUMBER
#define NUMBER(r, j) _mm256_sub_ps(quad_float(b, j), _mm256_set1_ps(16))
DEFINE_EXPAND_QUADS(expand_q5_0, , PANEL_QUAD_5)
DEFINE_EXPAND_QUADS(rows_q5_0, , ROWS_QUAD_5)
#undef NUMBER
#define NUMBER(r, j) q6_number(b, j, scale[(r) / 4], offset[(r) / 4])
#define BEGIN_Q6                                                                     \
    const uint8_t *at = p + pack_scales_at(DTYPE_Q6_K) + 8 * v;                      \
    const __m256 scale[] = {quad_signed_scales(at), quad_signed_scales(at + GROUP)}; \
    const __m256 offset[] = {q6_offset(scale[0]), q6_offset(scale[1])};
DEFINE_EXPAND_QUADS(expand_q6_k, BEGIN_Q6, PANEL_QUAD_6)
DEFINE_EXPAND_QUADS(rows_q6_k, BEGIN_Q6, ROWS_QUAD_6)

typedef void (*expand_fn)(const uint8_t *step, float *panel);
static const expand_fn expand[DTYPE_COUNT] = {
    [DTYPE_F32] = expand_f32,   [DTYPE_F16] = expand_f16,   [DTYPE_BF16] = expand_bf16,
    [DTYPE_Q8_0] = expand_q8_0, [DTYPE_Q4_0] = expand_q4_0, [DTYPE_Q4_1] = expand_q4_1,
    [DTYPE_Q5_0] = expand_q5_0, [DTYPE_Q5_1] = expand_u5,   [DTYPE_Q4_K] = expand_u4,
    [DTYPE_Q5_K] = expand_u5,   [DTYPE_Q6_K] = expand_q6_k,
};
static const expand_fn expand_rows[DTYPE_COUNT] = {
    [DTYPE_Q5_0] = rows_q5_0, [DTYPE_Q5_1] = rows_u5,   [DTYPE_Q4_K] = rows_u4,
    [DTYPE_Q5_K] = rows_u5,   [DTYPE_Q6_K] = rows_q6_k,
};

/* Scales (ones where the type has none) and minima (NULL where it has none) of a step. */
struct step_scales {
    float d[GROUP], m[GROUP];
    bool minima;
};

/* The products with a K type's own scales and minima are exact. */
static void load_head_scales(enum dtype dtype, const uint8_t *head, const uint8_t *step, float *d,
                             float *m) {
    const uint8_t *p = step + pack_scales_at(dtype);
    for (uint32_t v = 0; v < 4; v++) {
        __m256 dv = HALF_AT(head + 16 * v);
        if (block_has_minima(dtype)) {
            dv = _mm256_mul_ps(dv, quad_scales(p + 8 * v));
            __m256 mv = _mm256_mul_ps(HALF_AT(head + 64 + 16 * v), quad_scales(p + GROUP + 8 * v));
            _mm256_storeu_ps(m + 8 * v, _mm256_xor_ps(mv, _mm256_set1_ps(-0.0f)));
        }
        _mm256_storeu_ps(d + 8 * v, dv);
    }
}

static void load_scales(enum dtype dtype, const uint8_t *head, const uint8_t *step,
                        struct step_scales *s) {
    s->minima = block_has_minima(dtype);
    if (pack_head_bytes(dtype)) {
        load_head_scales(dtype, head, step, s->d, s->m);
        return;
    }
    bool scaled = dtype_block(dtype) > 1;
    const uint8_t *p = step + pack_scales_at(dtype);
    for (uint32_t v = 0; v < 4; v++) {
        _mm256_storeu_ps(s->d + 8 * v, scaled ? HALF_AT(p + 16 * v) : _mm256_set1_ps(1.0f));
        if (s->minima) _mm256_storeu_ps(s->m + 8 * v, HALF_AT(p + 64 + 16 * v));
    }
}

void avx2_expand_rows(enum dtype dtype, const uint8_t *head, const uint8_t *step, float (*w)[GROUP],
                      float *d, float *m) {
    struct step_scales s;
    expand_rows[dtype](step, w[0]);
    load_scales(dtype, head, step, &s);
    memcpy(d, s.d, sizeof s.d);
    if (s.minima) memcpy(m, s.m, sizeof s.m);
}

/* ---- tiles of 3 to 6 rows x 16 columns -------------------------------------------------------- */

#define TILE_X(i)    const float *x##i = x + (i)*ldx;
#define TILE_DECL(i) __m256 a##i, b##i;
#define TILE_ZERO(i) a##i = b##i = _mm256_setzero_ps();
#define TILE_MADD(i)                               \
    {                                              \
        __m256 xk = _mm256_broadcast_ss(x##i + k); \
        a##i = _mm256_fmadd_ps(w0, xk, a##i);      \
        b##i = _mm256_fmadd_ps(w1, xk, b##i);      \
    }
#define TILE_KEEP(i)                \
    _mm256_store_ps(even[i], a##i); \
    _mm256_store_ps(even[i] + 8, b##i);
#define TILE_FINISH(i)                                                               \
    {                                                                                \
        float *to = acc[i];                                                          \
        a##i = _mm256_fmadd_ps(_mm256_add_ps(_mm256_load_ps(even[i]), a##i), d0,     \
                               _mm256_loadu_ps(to));                                 \
        b##i = _mm256_fmadd_ps(_mm256_add_ps(_mm256_load_ps(even[i] + 8), b##i), d1, \
                               _mm256_loadu_ps(to + 8));                             \
        if (m) {                                                                     \
            __m256 sum = _mm256_broadcast_ss(sums + (i)*ldsums);                     \
            a##i = _mm256_fmadd_ps(_mm256_loadu_ps(m), sum, a##i);                   \
            b##i = _mm256_fmadd_ps(_mm256_loadu_ps(m + 8), sum, b##i);               \
        }                                                                            \
        _mm256_storeu_ps(to, a##i);                                                  \
        _mm256_storeu_ps(to + 8, b##i);                                              \
    }

/* acc points at the tile's columns of its first row; rows of acc are GROUP floats apart. */
#define DEFINE_TILE(R)                                                                      \
    static void tile_##R(const float *p, const float *x, size_t ldx, const float *d,        \
                         const float *m, const float *sums, size_t ldsums, float *at) {     \
        float even[R][HALF] __attribute__((aligned(32)));                                   \
        float(*acc)[GROUP] = (float(*)[GROUP])(void *)at;                                   \
        AVX2_REPEAT_##R(TILE_X) AVX2_REPEAT_##R(TILE_DECL)                                  \
            AVX2_REPEAT_##R(TILE_ZERO) for (uint32_t k = 0; k < GROUP; k += 2, p += HALF) { \
            __m256 w0 = _mm256_load_ps(p), w1 = _mm256_load_ps(p + 8);                      \
            AVX2_REPEAT_##R(TILE_MADD)                                                      \
        }                                                                                   \
        AVX2_REPEAT_##R(TILE_KEEP)                                                          \
            AVX2_REPEAT_##R(TILE_ZERO) for (uint32_t k = 1; k < GROUP; k += 2, p += HALF) { \
            __m256 w0 = _mm256_load_ps(p), w1 = _mm256_load_ps(p + 8);                      \
            AVX2_REPEAT_##R(TILE_MADD)                                                      \
        }                                                                                   \
        __m256 d0 = _mm256_loadu_ps(d), d1 = _mm256_loadu_ps(d + 8);                        \
        AVX2_REPEAT_##R(TILE_FINISH)                                                        \
    }

DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)

typedef void (*tile_fn)(const float *p, const float *x, size_t ldx, const float *d, const float *m,
                        const float *sums, size_t ldsums, float *at);
/* even_part never cuts TILE_FROM rows or more into tiles of fewer than 3. */
static const tile_fn tiles[AVX2_TILE + 1] = {[3] = tile_3, tile_4, tile_5, tile_6};

void avx2_gemm_group(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                     float (*acc)[GROUP]) {
    const uint8_t *step = step_at(m, group);
    uint32_t n_steps = (uint32_t)div_ceil(m->cols, GROUP), bytes = pack_step_bytes(m->dtype);
    memset(acc, 0, in->n_rows * sizeof *acc);
    if (in->n_rows < TILE_FROM) { /* cheaper than a panel */
        few_rows(m->dtype, step, n_steps, in, acc);
        return;
    }
    float panel[2 * HALF_FLOATS] __attribute__((aligned(MEMORY_ALIGN)));
    struct step_scales scales;
    const uint8_t *head = step;
    for (uint32_t s = 0; s < n_steps; s++, step += bytes) {
        if (s % PACK_HEAD_STEPS == 0) head = step, step += pack_head_bytes(m->dtype);
        pack_fetch_ahead(step, bytes);
        expand[m->dtype](step, panel);
        load_scales(m->dtype, head, step, &scales);
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = even_part(in->n_rows - i, AVX2_TILE);
            for (uint32_t half = 0; half < 2; half++)
                tiles[n](panel + half * HALF_FLOATS, in->x + i * in->ldx + s * GROUP, in->ldx,
                         scales.d + half * HALF, scales.minima ? scales.m + half * HALF : NULL,
                         in->sums + i * in->ldsums + s, in->ldsums, acc[i] + half * HALF);
        }
    }
}
