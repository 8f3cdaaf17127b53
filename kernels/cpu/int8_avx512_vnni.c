/* int8_avx512_vnni.c: activations in int8 against blocks of 8- to 4-bit weights, by vpdpbusd: four
 * products of unsigned x signed bytes added to a dword, exactly. Definition and bits: int8_avx2.c.
 *
 *   columns     | register 0: 0 .. 15 | register 1: 16 .. 31 |     a tile: 1 to 6 rows, with
 *   for a quad  u += 4 bytes of w (unsigned) . 4 bytes of x        2 integers and 2 floats a row in
 *   for a step  acc = fma((float)u * scale, d, acc) ...            24 of the 32 registers
 *
 * Weights are unsigned here, q_0 more than they are worth: u starts with -q_0 times the sum of x.
 * Signed bytes and nibbles (q8_0, q4_0) become so by flipping the top bit: q_0 = 128, 8. Numbers of 5
 * bits have q_0 = 16 or minima. In q6_k, q_0 = 32 and each half of a step has a scale: the sum of the
 * first half of x is taken anew, the second's is the rest. A half's |u| < 2^16 and its scale's product
 * with it is below 2^23, so what is added and multiplied in float32 there is exact as well. Its rows
 * have 2 floats more, so a tile has 4.
 *
 * A run of steps stays in the first-level cache while all tiles of rows go over it. Few rows are a
 * read of the stream; many are bound by vpdpbusd, 16 of them for 10 other operations of a row. */
#include <string.h>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = 6,
    TILE_Q6_K = 4,
    RUN_BYTES = 16384, /* of weights */
    STREAM_ROWS = 4,   /* that wait for memory */
};

/* Four numbers of a row in every dword. */
static inline __m512i quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

static inline __m512 f16_at(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

/* What the columns of a step are multiplied by, and their minima where the type has some. */
struct step_scales {
    __m512 d0, d1, m0, m1;
};

static inline __m512 u8_at(const uint8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

static inline struct step_scales scales_of(enum dtype dtype, const uint8_t *head,
                                           const uint8_t *step) {
    const uint8_t *own = step + pack_scales_at(dtype);
    bool k_type = pack_head_bytes(dtype) > 0;
    const uint8_t *f16 = k_type ? head : own;
    struct step_scales t = {.d0 = f16_at(f16), .d1 = f16_at(f16 + 32)};
    if (!block_has_minima(dtype)) return t;
    t.m0 = f16_at(f16 + 64), t.m1 = f16_at(f16 + 96);
    if (!k_type) return t;
    const __m512 minus = _mm512_set1_ps(-0.0f);
    t.d0 = _mm512_mul_ps(t.d0, u8_at(own));
    t.d1 = _mm512_mul_ps(t.d1, u8_at(own + 16));
    t.m0 = _mm512_mul_ps(_mm512_xor_ps(t.m0, minus), u8_at(own + GROUP));
    t.m1 = _mm512_mul_ps(_mm512_xor_ps(t.m1, minus), u8_at(own + GROUP + 16));
    return t;
}

/* Of columns 16 v .. 16 v + 15 the four numbers k = 4 r .. 4 r + 3, unsigned, a dword a column
 * (quads_avx2.h has eight columns). r is a constant. */
static inline __m512i load(const uint8_t *p) {
    return _mm512_loadu_si512(p);
}

static inline __m512i numbers_4(const uint8_t *step, uint32_t v, uint32_t r) {
    __m512i z = load(step + r / 2 * 128 + 64 * v);
    return _mm512_and_si512(r % 2 ? _mm512_srli_epi32(z, 4) : z, _mm512_set1_epi8(15));
}

/* Those of 4 bits with the bits of `high` that `mask` has, shifted left by n, or right by -n. */
static inline __m512i numbers_above(__m512i four, const uint8_t *high, int n, char mask) {
    __m512i z = load(high);
    z = n > 0 ? _mm512_slli_epi32(z, (unsigned)n) : n < 0 ? _mm512_srli_epi32(z, (unsigned)-n) : z;
    return _mm512_or_si512(four, _mm512_and_si512(z, _mm512_set1_epi8(mask)));
}

static inline __m512i numbers_5(const uint8_t *step, uint32_t v, uint32_t r) {
    const uint8_t *high = step + PACK_NIBBLES_BYTES + 64 * v;
    return numbers_above(numbers_4(step, v, r), high, 4 - (int)r, 16);
}

static inline __m512i numbers_6(const uint8_t *step, uint32_t v, uint32_t r) {
    const uint8_t *high = step + PACK_NIBBLES_BYTES + r / 4 * 128 + 64 * v;
    return numbers_above(numbers_4(step, v, r), high, 4 - (int)(r % 4) * 2, 48);
}

/* Sum of the first half of a step of a row. */
static inline int32_t half_sum(const int8_t *q) {
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)q);
    __m128i h = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), x);
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

#define TILE_BEGIN(i) \
    __m512 a##i = _mm512_loadu_ps(acc[row + (i)]), b##i = _mm512_loadu_ps(acc[row + (i)] + 16);
#define TILE_FROM(i, zero) \
    __m512i u##i, v##i;    \
    u##i = v##i = (zero) ? _mm512_set1_epi32(-(zero)*rows[i].qsum) : _mm512_setzero_si512();
#define TILE_FROM_0(i)   TILE_FROM(i, 0)
#define TILE_FROM_8(i)   TILE_FROM(i, 8)
#define TILE_FROM_16(i)  TILE_FROM(i, 16)
#define TILE_FROM_128(i) TILE_FROM(i, 128)
#define TILE_DOT(i)                              \
    {                                            \
        __m512i x = quad(q[i] + k);              \
        u##i = _mm512_dpbusd_epi32(u##i, w0, x); \
        v##i = _mm512_dpbusd_epi32(v##i, w1, x); \
    }
#define TILE_FLOAT(i) __m512 f##i = _mm512_cvtepi32_ps(u##i), g##i = _mm512_cvtepi32_ps(v##i);
#define TILE_ADD(i)                                                     \
    {                                                                   \
        __m512 scale = _mm512_set1_ps(rows[i].scale);                   \
        a##i = _mm512_fmadd_ps(_mm512_mul_ps(f##i, scale), t.d0, a##i); \
        b##i = _mm512_fmadd_ps(_mm512_mul_ps(g##i, scale), t.d1, b##i); \
        if (minima) {                                                   \
            __m512 sum = _mm512_set1_ps(rows[i].sum);                   \
            a##i = _mm512_fmadd_ps(t.m0, sum, a##i);                    \
            b##i = _mm512_fmadd_ps(t.m1, sum, b##i);                    \
        }                                                               \
    }
#define TILE_END(i)                         \
    _mm512_storeu_ps(acc[row + (i)], a##i); \
    _mm512_storeu_ps(acc[row + (i)] + 16, b##i);

/* The integers of a step, as floats f and g. */
#define NUMBERS_Q8_0(REPEAT)                               \
    REPEAT(TILE_FROM_128)                                  \
    const uint8_t *p = step;                               \
    for (uint32_t k = 0; k < GROUP; k += 4, p += 128) {    \
        const __m512i flip = _mm512_set1_epi8((char)0x80); \
        __m512i w0 = _mm512_xor_si512(load(p), flip);      \
        __m512i w1 = _mm512_xor_si512(load(p + 64), flip); \
        REPEAT(TILE_DOT)                                   \
    }                                                      \
    REPEAT(TILE_FLOAT)
#define NIBBLES(REPEAT, FLIP)                                                            \
    const uint8_t *p = step;                                                             \
    for (uint32_t k = 0; k < GROUP; k += 4, p += 128) {                                  \
        const __m512i low = _mm512_set1_epi8(15), flip = _mm512_set1_epi8((char)(FLIP)); \
        __m512i z0 = _mm512_xor_si512(load(p), flip);                                    \
        __m512i z1 = _mm512_xor_si512(load(p + 64), flip);                               \
        __m512i w0 = _mm512_and_si512(z0, low), w1 = _mm512_and_si512(z1, low);          \
        REPEAT(TILE_DOT)                                                                 \
        k += 4;                                                                          \
        w0 = _mm512_and_si512(_mm512_srli_epi32(z0, 4), low);                            \
        w1 = _mm512_and_si512(_mm512_srli_epi32(z1, 4), low);                            \
        REPEAT(TILE_DOT)                                                                 \
    }                                                                                    \
    REPEAT(TILE_FLOAT)
/* The same of one row, which is bound by all but the products: the high halves first, 16 times what
 * they are worth, which takes one shift of their sum for those of the numbers. */
#define NIBBLES_1(FLIP, zero)                                                      \
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8((char)0xf0); \
    __m512i z[8], u0 = _mm512_set1_epi32(-16 * (zero)*rows[0].qsum), v0 = u0;      \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {                          \
        z[i] = load(step + 64 * i);                                                \
        if (FLIP) z[i] = _mm512_xor_si512(z[i], _mm512_set1_epi8((char)(FLIP)));   \
        __asm__("" : "+v"(z[i])); /* not loaded twice */                           \
    }                                                                              \
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {                          \
        __m512i x = quad(q[0] + 8 * c + 4);                                        \
        u0 = _mm512_dpbusd_epi32(u0, _mm512_and_si512(z[2 * c], high), x);         \
        v0 = _mm512_dpbusd_epi32(v0, _mm512_and_si512(z[2 * c + 1], high), x);     \
    }                                                                              \
    u0 = _mm512_srai_epi32(u0, 4), v0 = _mm512_srai_epi32(v0, 4);                  \
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {                          \
        __m512i x = quad(q[0] + 8 * c);                                            \
        u0 = _mm512_dpbusd_epi32(u0, _mm512_and_si512(z[2 * c], low), x);          \
        v0 = _mm512_dpbusd_epi32(v0, _mm512_and_si512(z[2 * c + 1], low), x);      \
    }                                                                              \
    TILE_FLOAT(0)
#define NUMBERS_Q4_0_1(REPEAT) NIBBLES_1(0x88, 8)
#define NUMBERS_Q4_1_1(REPEAT) NIBBLES_1(0, 0)
#define NUMBERS_Q4_0(REPEAT)   REPEAT(TILE_FROM_8) NIBBLES(REPEAT, 0x88)
#define NUMBERS_Q4_1(REPEAT)   REPEAT(TILE_FROM_0) NIBBLES(REPEAT, 0)

#define QUAD(REPEAT, BITS, r)                                                     \
    {                                                                             \
        const uint32_t k = 4 * (r);                                               \
        __m512i w0 = numbers_##BITS(step, 0, r), w1 = numbers_##BITS(step, 1, r); \
        REPEAT(TILE_DOT)                                                          \
    }
#define QUADS_FIRST(REPEAT, BITS) \
    QUAD(REPEAT, BITS, 0) QUAD(REPEAT, BITS, 1) QUAD(REPEAT, BITS, 2) QUAD(REPEAT, BITS, 3)
#define QUADS_LAST(REPEAT, BITS) \
    QUAD(REPEAT, BITS, 4) QUAD(REPEAT, BITS, 5) QUAD(REPEAT, BITS, 6) QUAD(REPEAT, BITS, 7)
#define QUADS(REPEAT, BITS)  QUADS_FIRST(REPEAT, BITS) QUADS_LAST(REPEAT, BITS) REPEAT(TILE_FLOAT)
#define NUMBERS_Q5_0(REPEAT) REPEAT(TILE_FROM_16) QUADS(REPEAT, 5)
#define NUMBERS_Q5_1(REPEAT) REPEAT(TILE_FROM_0) QUADS(REPEAT, 5)

#define HALF_FROM(i)               \
    int32_t h##i = half_sum(q[i]); \
    __m512i u##i, v##i;            \
    u##i = v##i = _mm512_set1_epi32(-32 * h##i);
#define HALF_TURN(i)                                           \
    __m512 f##i = _mm512_mul_ps(_mm512_cvtepi32_ps(u##i), s0); \
    __m512 g##i = _mm512_mul_ps(_mm512_cvtepi32_ps(v##i), s1); \
    u##i = v##i = _mm512_set1_epi32(-32 * (rows[i].qsum - h##i));
#define HALF_END(i)                                             \
    f##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(u##i), s0, f##i); \
    g##i = _mm512_fmadd_ps(_mm512_cvtepi32_ps(v##i), s1, g##i);
#define NUMBERS_Q6_K(REPEAT)                                                  \
    const int8_t *halves = (const int8_t *)step + pack_scales_at(DTYPE_Q6_K); \
    __m512 s0 = avx512_int8(halves), s1 = avx512_int8(halves + 16);           \
    REPEAT(HALF_FROM)                                                         \
    QUADS_FIRST(REPEAT, 6)                                                    \
    REPEAT(HALF_TURN)                                                         \
    s0 = avx512_int8(halves + GROUP), s1 = avx512_int8(halves + GROUP + 16);  \
    QUADS_LAST(REPEAT, 6)                                                     \
    REPEAT(HALF_END)

/* Rows row .. row + R - 1, which lie together, steps s .. end - 1 from `step` on. */
#define DEFINE_TILE(NAME, R, REPEAT, DTYPE, NUMBERS)                                       \
    static void NAME##_##R(const uint8_t *step, uint32_t s, uint32_t end,                  \
                           const struct gemm_rows *in, uint32_t row, float(*acc)[GROUP]) { \
        const bool minima = block_has_minima(DTYPE);                                       \
        const uint8_t *head = step;                                                        \
        const struct int8_step *at = in->int8 + row / ROW_TILE * (in->ldx / GROUP) + s;    \
        REPEAT(TILE_BEGIN)                                                                 \
        for (; s < end; s++, at++, step += pack_step_bytes(DTYPE)) {                       \
            const int8_t(*q)[GROUP] = at->q + row % ROW_TILE;                              \
            const struct int8_row *rows = at->rows + row % ROW_TILE;                       \
            if (s % PACK_HEAD_STEPS == 0) head = step, step += pack_head_bytes(DTYPE);     \
            if (row == 0 && in->n_rows <= STREAM_ROWS)                                     \
                pack_fetch_stream(step, pack_step_bytes(DTYPE));                           \
            else if (row == 0)                                                             \
                pack_fetch_ahead(step, pack_step_bytes(DTYPE));                            \
            NUMBERS(REPEAT)                                                                \
            const struct step_scales t = scales_of(DTYPE, head, step);                     \
            REPEAT(TILE_ADD)                                                               \
        }                                                                                  \
        REPEAT(TILE_END)                                                                   \
    }
#define DEFINE_TILES_4(NAME, DTYPE, NUMBERS, NUMBERS_1)   \
    DEFINE_TILE(NAME, 1, AVX2_REPEAT_1, DTYPE, NUMBERS_1) \
    DEFINE_TILE(NAME, 2, AVX2_REPEAT_2, DTYPE, NUMBERS)   \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, DTYPE, NUMBERS)   \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, DTYPE, NUMBERS)
#define DEFINE_TILES(NAME, DTYPE, NUMBERS, NUMBERS_1)   \
    DEFINE_TILES_4(NAME, DTYPE, NUMBERS, NUMBERS_1)     \
    DEFINE_TILE(NAME, 5, AVX2_REPEAT_5, DTYPE, NUMBERS) \
    DEFINE_TILE(NAME, 6, AVX2_REPEAT_6, DTYPE, NUMBERS)
DEFINE_TILES(q8_0, DTYPE_Q8_0, NUMBERS_Q8_0, NUMBERS_Q8_0)
DEFINE_TILES(q4_0, DTYPE_Q4_0, NUMBERS_Q4_0, NUMBERS_Q4_0_1)
DEFINE_TILES(q4_1, DTYPE_Q4_1, NUMBERS_Q4_1, NUMBERS_Q4_1_1)
DEFINE_TILES(q5_0, DTYPE_Q5_0, NUMBERS_Q5_0, NUMBERS_Q5_0)
DEFINE_TILES(q5_1, DTYPE_Q5_1, NUMBERS_Q5_1, NUMBERS_Q5_1)
DEFINE_TILES(q4_k, DTYPE_Q4_K, NUMBERS_Q4_1, NUMBERS_Q4_1_1)
DEFINE_TILES(q5_k, DTYPE_Q5_K, NUMBERS_Q5_1, NUMBERS_Q5_1)
DEFINE_TILES_4(q6_k, DTYPE_Q6_K, NUMBERS_Q6_K, NUMBERS_Q6_K)

typedef void (*tile_fn)(const uint8_t *step, uint32_t s, uint32_t end, const struct gemm_rows *in,
                        uint32_t row, float (*acc)[GROUP]);
static const tile_fn tiles[DTYPE_COUNT][TILE + 1] = {
    [DTYPE_Q8_0] = {NULL, q8_0_1, q8_0_2, q8_0_3, q8_0_4, q8_0_5, q8_0_6},
    [DTYPE_Q4_0] = {NULL, q4_0_1, q4_0_2, q4_0_3, q4_0_4, q4_0_5, q4_0_6},
    [DTYPE_Q4_1] = {NULL, q4_1_1, q4_1_2, q4_1_3, q4_1_4, q4_1_5, q4_1_6},
    [DTYPE_Q5_0] = {NULL, q5_0_1, q5_0_2, q5_0_3, q5_0_4, q5_0_5, q5_0_6},
    [DTYPE_Q5_1] = {NULL, q5_1_1, q5_1_2, q5_1_3, q5_1_4, q5_1_5, q5_1_6},
    [DTYPE_Q4_K] = {NULL, q4_k_1, q4_k_2, q4_k_3, q4_k_4, q4_k_5, q4_k_6},
    [DTYPE_Q5_K] = {NULL, q5_k_1, q5_k_2, q5_k_3, q5_k_4, q5_k_5, q5_k_6},
    [DTYPE_Q6_K] = {NULL, q6_k_1, q6_k_2, q6_k_3, q6_k_4},
};

void avx512_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]) {
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = m->cols / GROUP, run = pack_run(m->dtype, RUN_BYTES);
    uint32_t height = m->dtype == DTYPE_Q6_K ? TILE_Q6_K : TILE;
    memset(acc, 0, in->n_rows * sizeof *acc);
    for (uint32_t s = 0; s < n_steps; s += run, at += pack_bytes(m->dtype, run)) {
        uint32_t end = n_steps - s < run ? n_steps : s + run;
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = int8_rows_together(i, in->n_rows, height);
            tiles[m->dtype][n](at, s, end, in, i, acc);
        }
    }
}
