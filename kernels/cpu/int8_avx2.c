/* int8_avx2.c: activations in int8 (cpu.h, struct gemm_rows) against blocks of 8- and 4-bit weights.
 *
 *   for each step of 32 k:   acc = fma((float)dot * scale, d, acc), then q4_1: fma(m, sums, acc)
 *
 * dot is an exact integer, so any order of its 32 products gives the bits of the definition in
 * ops_ref.c; only the float steps keep theirs. vpmaddubsw wants unsigned x signed bytes and adds
 * pairs in 16 bits, which never saturate:
 *   nibbles  0 .. 15 as they are: eight of them add up to 8 * 2 * 15 * 127 = 30480; q4_0 takes 8
 *            times the sum of x off afterwards
 *   bytes    |w| unsigned, the sign of w moved to x: 2 * 128 * 127 = 32512
 *
 * A tile is 1 to 4 rows x 16 columns, half of a step; a run of steps stays in the first-level cache
 * while all tiles of rows go over it. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = 4,
    RUN_BYTES = 12288,     /* of weights */
    PREFETCH_BYTES = 4096, /* ahead in the stream: across the page where the hardware stops */
};

/* ---- rows to int8 ------------------------------------------------------------------------------ */

static inline __m256i magnitude(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

/* The largest magnitude, by its bits: above every number lies infinity, above that NaN. */
static inline float largest(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256i m = _mm256_max_epi32(_mm256_max_epi32(magnitude(a), magnitude(b)),
                                 _mm256_max_epi32(magnitude(c), magnitude(d)));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

static inline int32_t sum_int8(__m256i q) {
    __m256i s =
        _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

void avx2_quantise(const float *x, uint32_t n_steps, int8_t *q, float *scales, int32_t *qsums,
                   float *sums) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (uint32_t i = 0; i < n_steps; i++, x += GROUP, q += GROUP) {
        __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
        __m256 c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
        float most = largest(a, b, c, d), inverse = 127.0f / most;
        if (!(most >= 0x1p-100f && most < INFINITY)) { /* tiny, infinite or NaN */
            scales[i] = most < 0x1p-100f ? 0 : most;
            sums[i] = 0 * scales[i];
            qsums[i] = 0;
            memset(q, 0, GROUP);
            continue;
        }
        __m256 by = _mm256_set1_ps(inverse);
        __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, by)),
                                        _mm256_cvtps_epi32(_mm256_mul_ps(b, by)));
        __m256i cd = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(c, by)),
                                        _mm256_cvtps_epi32(_mm256_mul_ps(d, by)));
        __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
        _mm256_storeu_si256((__m256i *)(void *)q, bytes);
        scales[i] = most / 127.0f;
        qsums[i] = sum_int8(bytes);
        sums[i] = (float)qsums[i] * scales[i];
    }
}

/* ---- tiles ------------------------------------------------------------------------------------- */

/* Four numbers of a row in every dword. */
static inline __m256i quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

static inline __m256 f16_at(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

#define TILE_Q(i)                                                   \
    const int8_t *q##i = in->q + (row + (i)) * in->ldx + s * GROUP; \
    __m256i u##i = _mm256_setzero_si256(), v##i = u##i;

/* Nibbles: sums of 16 bits over the whole step. */
#define TILE_NIBBLES(i)                                             \
    {                                                               \
        __m256i x = quad(q##i + k);                                 \
        u##i = _mm256_add_epi16(u##i, _mm256_maddubs_epi16(w0, x)); \
        v##i = _mm256_add_epi16(v##i, _mm256_maddubs_epi16(w1, x)); \
    }
/* Bytes: of 32 bits after each quad. */
#define TILE_BYTES(i)                                                                   \
    {                                                                                   \
        __m256i x = quad(q##i + k);                                                     \
        __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x, w0)); \
        __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x, w1)); \
        u##i = _mm256_add_epi32(u##i, _mm256_madd_epi16(a, ones));                      \
        v##i = _mm256_add_epi32(v##i, _mm256_madd_epi16(b, ones));                      \
    }

#define TILE_WIDEN(i)                     \
    u##i = _mm256_madd_epi16(u##i, ones); \
    v##i = _mm256_madd_epi16(v##i, ones);
#define TILE_LESS_8(i)                                                                \
    {                                                                                 \
        __m256i off = _mm256_set1_epi32(8 * in->qsums[(row + (i)) * in->ldsums + s]); \
        u##i = _mm256_sub_epi32(u##i, off);                                           \
        v##i = _mm256_sub_epi32(v##i, off);                                           \
    }
#define TILE_ADD(i)                                                                    \
    {                                                                                  \
        float *to = acc[row + (i)] + 16 * half;                                        \
        __m256 scale = _mm256_set1_ps(in->scales[(row + (i)) * in->ldsums + s]);       \
        __m256 a = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(u##i), scale), d0, \
                                   _mm256_loadu_ps(to));                               \
        __m256 b = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(v##i), scale), d1, \
                                   _mm256_loadu_ps(to + 8));                           \
        if (minima) {                                                                  \
            __m256 sum = _mm256_set1_ps(in->sums[(row + (i)) * in->ldsums + s]);       \
            a = _mm256_fmadd_ps(f16_at(p + 64), sum, a);                               \
            b = _mm256_fmadd_ps(f16_at(p + 80), sum, b);                               \
        }                                                                              \
        _mm256_storeu_ps(to, a);                                                       \
        _mm256_storeu_ps(to + 8, b);                                                   \
    }

#define NUMBERS_BYTES(REPEAT)                              \
    for (uint32_t k = 0; k < GROUP; k += 4, p += 128) {    \
        __m256i w0 = avx2_load(p), w1 = avx2_load(p + 32); \
        REPEAT(TILE_BYTES)                                 \
    }
#define NUMBERS_NIBBLES(REPEAT, FLIP)                                           \
    for (uint32_t k = 0; k < GROUP; p += 128) {                                 \
        __m256i z0 = avx2_load(p), z1 = avx2_load(p + 32);                      \
        const __m256i low = _mm256_set1_epi8(15);                               \
        if (FLIP) { /* stored as q - 8 */                                       \
            z0 = _mm256_xor_si256(z0, _mm256_set1_epi8((char)0x88));            \
            z1 = _mm256_xor_si256(z1, _mm256_set1_epi8((char)0x88));            \
        }                                                                       \
        __m256i w0 = _mm256_and_si256(z0, low), w1 = _mm256_and_si256(z1, low); \
        REPEAT(TILE_NIBBLES)                                                    \
        k += 4;                                                                 \
        w0 = _mm256_and_si256(_mm256_srli_epi32(z0, 4), low);                   \
        w1 = _mm256_and_si256(_mm256_srli_epi32(z1, 4), low);                   \
        REPEAT(TILE_NIBBLES)                                                    \
        k += 4;                                                                 \
    }                                                                           \
    REPEAT(TILE_WIDEN)
#define NUMBERS_Q8_0(REPEAT) NUMBERS_BYTES(REPEAT)
#define NUMBERS_Q4_0(REPEAT) NUMBERS_NIBBLES(REPEAT, true) REPEAT(TILE_LESS_8)
#define NUMBERS_Q4_1(REPEAT) NUMBERS_NIBBLES(REPEAT, false)

/* Rows row .. row + R - 1, columns 16 half .. 16 half + 15, steps s .. end - 1 from `step` on. */
#define DEFINE_TILE(NAME, R, REPEAT, BYTES, MINIMA, NUMBERS)                               \
    static void NAME##_##R(const uint8_t *step, uint32_t s, uint32_t end, uint32_t half,   \
                           const struct gemm_rows *in, uint32_t row, float(*acc)[GROUP]) { \
        const __m256i ones = _mm256_set1_epi16(1);                                         \
        const bool minima = MINIMA;                                                        \
        for (; s < end; s++, step += (BYTES)) {                                            \
            const uint8_t *p = step + 64 * half;                                           \
            _mm_prefetch((const char *)p + PREFETCH_BYTES, _MM_HINT_T0);                   \
            REPEAT(TILE_Q)                                                                 \
            NUMBERS(REPEAT)                                                                \
            p -= 32 * half; /* f16 after dwords */                                         \
            __m256 d0 = f16_at(p), d1 = f16_at(p + 16);                                    \
            REPEAT(TILE_ADD)                                                               \
        }                                                                                  \
    }
#define DEFINE_TILES(NAME, BYTES, MINIMA, NUMBERS)              \
    DEFINE_TILE(NAME, 1, AVX2_REPEAT_1, BYTES, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 2, AVX2_REPEAT_2, BYTES, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, BYTES, MINIMA, NUMBERS) \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, BYTES, MINIMA, NUMBERS)
DEFINE_TILES(q8_0, 1088, false, NUMBERS_Q8_0)
DEFINE_TILES(q4_0, 576, false, NUMBERS_Q4_0)
DEFINE_TILES(q4_1, 640, true, NUMBERS_Q4_1)

typedef void (*tile_fn)(const uint8_t *step, uint32_t s, uint32_t end, uint32_t half,
                        const struct gemm_rows *in, uint32_t row, float (*acc)[GROUP]);
static const tile_fn tiles[DTYPE_COUNT][TILE + 1] = {
    [DTYPE_Q8_0] = {NULL, q8_0_1, q8_0_2, q8_0_3, q8_0_4},
    [DTYPE_Q4_0] = {NULL, q4_0_1, q4_0_2, q4_0_3, q4_0_4},
    [DTYPE_Q4_1] = {NULL, q4_1_1, q4_1_2, q4_1_3, q4_1_4},
};

void avx2_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                    float (*acc)[GROUP]) {
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = m->cols / GROUP, bytes = pack_step_bytes(m->dtype), run = RUN_BYTES / bytes;
    memset(acc, 0, in->n_rows * sizeof *acc);
    for (uint32_t s = 0; s < n_steps; s += run, at += (size_t)run * bytes) {
        uint32_t end = n_steps - s < run ? n_steps : s + run;
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = even_rows(in->n_rows - i, TILE);
            for (uint32_t half = 0; half < 2; half++)
                tiles[m->dtype][n](at, s, end, half, in, i, acc);
        }
    }
}
