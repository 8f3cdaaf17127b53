/* int8_avx512_vnni.c: activations in int8 against blocks of 8- and 4-bit weights, by vpdpbusd: four
 * products of unsigned x signed bytes added to a dword, exactly. Definition and bits: int8_avx2.c, whose
 * tiles also take the types that are only read (q5_0 .. q6_k).
 *
 *   columns     | register 0: 0 .. 15 | register 1: 16 .. 31 |     a tile: 1 to 6 rows, with
 *   for a quad  u += 4 bytes of w (unsigned) . 4 bytes of x        2 integers and 2 floats a row in
 *   for a step  acc = fma((float)u * scale, d, acc) ...            24 of the 32 registers
 *
 * Signed weights are stored so; flipping the top bit adds 128 (8 for nibbles), which u starts with
 * as minus that times the sum of x. A run of steps stays in the first-level cache while all tiles
 * of rows go over it. Few rows are a read of the stream; many are bound by vpdpbusd, 16 of them for
 * 10 other operations of a row. */
#include <string.h>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = 6,
    RUN_BYTES = 16384,     /* of weights */
    PREFETCH_BYTES = 4096, /* ahead in the stream: across the page where the hardware stops */
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

static inline void prefetch_step(const uint8_t *step, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)step + PREFETCH_BYTES + i, _MM_HINT_T0);
}

#define TILE_BEGIN(i)                                                       \
    const int8_t *q##i = in->q + (row + (i)) * in->ldx + (size_t)s * GROUP; \
    __m512 a##i = _mm512_loadu_ps(acc[row + (i)]), b##i = _mm512_loadu_ps(acc[row + (i)] + 16);
#define TILE_START(i)                                                                          \
    __m512i u##i, v##i;                                                                        \
    u##i = v##i = offset ? _mm512_set1_epi32(offset * in->qsums[(row + (i)) * in->ldsums + s]) \
                         : _mm512_setzero_si512();
#define TILE_DOT(i)                              \
    {                                            \
        __m512i x = quad(q##i);                  \
        u##i = _mm512_dpbusd_epi32(u##i, w0, x); \
        v##i = _mm512_dpbusd_epi32(v##i, w1, x); \
        q##i += 4;                               \
    }
#define TILE_ADD(i)                                                                       \
    {                                                                                     \
        __m512 scale = _mm512_set1_ps(in->scales[(row + (i)) * in->ldsums + s]);          \
        a##i = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(u##i), scale), d0, a##i); \
        b##i = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(v##i), scale), d1, b##i); \
        if (minima) {                                                                     \
            __m512 sum = _mm512_set1_ps(in->sums[(row + (i)) * in->ldsums + s]);          \
            a##i = _mm512_fmadd_ps(f16_at(p + 64), sum, a##i);                            \
            b##i = _mm512_fmadd_ps(f16_at(p + 96), sum, b##i);                            \
        }                                                                                 \
    }
#define TILE_END(i)                         \
    _mm512_storeu_ps(acc[row + (i)], a##i); \
    _mm512_storeu_ps(acc[row + (i)] + 16, b##i);

#define LOAD(v, FLIP) \
    _mm512_xor_si512(_mm512_loadu_si512(p + 64 * (v)), _mm512_set1_epi8((char)(FLIP)))
#define NUMBERS_BYTES(REPEAT)                           \
    for (uint32_t c = 0; c < GROUP; c += 4, p += 128) { \
        __m512i w0 = LOAD(0, 0x80), w1 = LOAD(1, 0x80); \
        REPEAT(TILE_DOT)                                \
    }
#define NUMBERS_NIBBLES(REPEAT, FLIP)                                           \
    for (uint32_t c = 0; c < GROUP; c += 8, p += 128) {                         \
        const __m512i low = _mm512_set1_epi8(15);                               \
        __m512i z0 = LOAD(0, FLIP), z1 = LOAD(1, FLIP);                         \
        __m512i w0 = _mm512_and_si512(z0, low), w1 = _mm512_and_si512(z1, low); \
        REPEAT(TILE_DOT)                                                        \
        w0 = _mm512_and_si512(_mm512_srli_epi32(z0, 4), low);                   \
        w1 = _mm512_and_si512(_mm512_srli_epi32(z1, 4), low);                   \
        REPEAT(TILE_DOT)                                                        \
    }
#define NUMBERS_Q4_0(REPEAT) NUMBERS_NIBBLES(REPEAT, 0x88)
#define NUMBERS_Q4_1(REPEAT) NUMBERS_NIBBLES(REPEAT, 0)

/* Rows row .. row + R - 1, steps s .. end - 1 from `step` on. */
#define DEFINE_TILE(NAME, R, REPEAT, BYTES, OFFSET, MINIMA, NUMBERS)                       \
    static void NAME##_##R(const uint8_t *step, uint32_t s, uint32_t end,                  \
                           const struct gemm_rows *in, uint32_t row, float(*acc)[GROUP]) { \
        const int32_t offset = OFFSET;                                                     \
        const bool minima = MINIMA;                                                        \
        REPEAT(TILE_BEGIN)                                                                 \
        for (; s < end; s++, step += (BYTES)) {                                            \
            const uint8_t *p = step;                                                       \
            if (row == 0) prefetch_step(p, BYTES);                                         \
            REPEAT(TILE_START)                                                             \
            NUMBERS(REPEAT)                                                                \
            __m512 d0 = f16_at(p), d1 = f16_at(p + 32);                                    \
            REPEAT(TILE_ADD)                                                               \
        }                                                                                  \
        REPEAT(TILE_END)                                                                   \
    }
#define DEFINE_TILES(NAME, BYTES, OFFSET, MINIMA, NUMBERS)              \
    DEFINE_TILE(NAME, 1, AVX2_REPEAT_1, BYTES, OFFSET, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 2, AVX2_REPEAT_2, BYTES, OFFSET, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, BYTES, OFFSET, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, BYTES, OFFSET, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 5, AVX2_REPEAT_5, BYTES, OFFSET, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 6, AVX2_REPEAT_6, BYTES, OFFSET, MINIMA, NUMBERS)
DEFINE_TILES(q8_0, 1088, -128, false, NUMBERS_BYTES)
DEFINE_TILES(q4_0, 576, -8, false, NUMBERS_Q4_0)
DEFINE_TILES(q4_1, 640, 0, true, NUMBERS_Q4_1)

typedef void (*tile_fn)(const uint8_t *step, uint32_t s, uint32_t end, const struct gemm_rows *in,
                        uint32_t row, float (*acc)[GROUP]);
static const tile_fn tiles[DTYPE_COUNT][TILE + 1] = {
    [DTYPE_Q8_0] = {NULL, q8_0_1, q8_0_2, q8_0_3, q8_0_4, q8_0_5, q8_0_6},
    [DTYPE_Q4_0] = {NULL, q4_0_1, q4_0_2, q4_0_3, q4_0_4, q4_0_5, q4_0_6},
    [DTYPE_Q4_1] = {NULL, q4_1_1, q4_1_2, q4_1_3, q4_1_4, q4_1_5, q4_1_6},
};

void avx512_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]) {
    if (block_is_read_only(m->dtype)) {
        avx2_gemm_int8(m, group, in, acc);
        return;
    }
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = m->cols / GROUP, bytes = pack_step_bytes(m->dtype), run = RUN_BYTES / bytes;
    memset(acc, 0, in->n_rows * sizeof *acc);
    for (uint32_t s = 0; s < n_steps; s += run, at += (size_t)run * bytes) {
        uint32_t end = n_steps - s < run ? n_steps : s + run;
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = even_rows(in->n_rows - i, TILE);
            tiles[m->dtype][n](at, s, end, in, i, acc);
        }
    }
}
