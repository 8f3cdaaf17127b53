/* int8_avx2.c: activations in int8 (cpu.h, struct int8_step) against blocks of 8- to 4-bit weights.
 *
 *   for each step of 32 k:   acc = fma((float)dot * scale, d, acc), with minima fma(m, sums, acc)
 *
 * dot is an exact integer, so any order of its 32 products gives the bits of the definition in
 * ops_ref.c; only the float steps keep theirs. vpmaddubsw wants unsigned x signed bytes and adds
 * pairs in 16 bits, which never saturate:
 *   nibbles  0 .. 15 as they are: eight of them add up to 8 * 2 * 15 * 127 = 30480; q4_0 takes 8
 *            times the sum of x off afterwards
 *   bytes    |w| unsigned, the sign of w moved to x: 2 * 128 * 127 = 32512
 *   5 bits   0 .. 31: four of them, half of a step, 4 * 2 * 31 * 127 = 31496; q5_0 as q4_0
 *   6 bits   q - 32 as bytes are treated: four of them 4 * 2 * 32 * 127 = 32512; the half's scale is
 *            multiplied in where 16 bits become 32; dot is below 2^24, so (float)dot is exact
 *
 * A tile is 1 to 4 rows x 16 columns, half of a step; a run of steps stays in the first-level cache
 * while all tiles of rows go over it. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/quads_avx2.h"

enum {
    TILE = 4,
    RUN_BYTES = 12288, /* of weights */
    STREAM_ROWS = 2,   /* that wait for memory */
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

void avx2_quantise(const float *x, uint32_t first, uint32_t n, uint32_t n_steps,
                   struct int8_step *rows, uint32_t row) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    struct int8_step *to = rows + (size_t)(row / ROW_TILE) * n_steps + first;
    for (uint32_t i = 0; i < n; i++, x += GROUP, to++) {
        int8_t *q = to->q[row % ROW_TILE];
        struct int8_row *r = &to->rows[row % ROW_TILE];
        __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
        __m256 c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
        float most = largest(a, b, c, d), inverse = 127.0f / most;
        if (!(most >= 0x1p-100f && most < INFINITY)) { /* tiny, infinite or NaN */
            r->scale = most < 0x1p-100f ? 0 : most;
            r->sum = 0 * r->scale;
            r->qsum = 0;
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
        r->scale = most / 127.0f;
        r->qsum = sum_int8(bytes);
        r->sum = (float)r->qsum * r->scale;
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

#define TILE_Q(i) __m256i u##i = _mm256_setzero_si256(), v##i = u##i;

/* Nibbles: sums of 16 bits over the whole step. */
#define TILE_NIBBLES(i)                                             \
    {                                                               \
        __m256i x = quad(q[i] + k);                                 \
        u##i = _mm256_add_epi16(u##i, _mm256_maddubs_epi16(w0, x)); \
        v##i = _mm256_add_epi16(v##i, _mm256_maddubs_epi16(w1, x)); \
    }
/* Bytes: of 32 bits after each quad. */
#define TILE_BYTES(i)                                                                   \
    {                                                                                   \
        __m256i x = quad(q[i] + k);                                                     \
        __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x, w0)); \
        __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x, w1)); \
        u##i = _mm256_add_epi32(u##i, _mm256_madd_epi16(a, ones));                      \
        v##i = _mm256_add_epi32(v##i, _mm256_madd_epi16(b, ones));                      \
    }

#define TILE_WIDEN(i)                     \
    u##i = _mm256_madd_epi16(u##i, ones); \
    v##i = _mm256_madd_epi16(v##i, ones);
#define TILE_LESS(i, zero)                                    \
    {                                                         \
        __m256i off = _mm256_set1_epi32((zero)*rows[i].qsum); \
        u##i = _mm256_sub_epi32(u##i, off);                   \
        v##i = _mm256_sub_epi32(v##i, off);                   \
    }
#define TILE_LESS_8(i)  TILE_LESS(i, 8)
#define TILE_LESS_16(i) TILE_LESS(i, 16)
#define TILE_ADD(i)                                                                      \
    {                                                                                    \
        float *to = acc[row + (i)] + 16 * half;                                          \
        __m256 scale = _mm256_set1_ps(rows[i].scale);                                    \
        __m256 a = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(u##i), scale), t.d0, \
                                   _mm256_loadu_ps(to));                                 \
        __m256 b = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(v##i), scale), t.d1, \
                                   _mm256_loadu_ps(to + 8));                             \
        if (minima) {                                                                    \
            __m256 sum = _mm256_set1_ps(rows[i].sum);                                    \
            a = _mm256_fmadd_ps(t.m0, sum, a);                                           \
            b = _mm256_fmadd_ps(t.m1, sum, b);                                           \
        }                                                                                \
        _mm256_storeu_ps(to, a);                                                         \
        _mm256_storeu_ps(to + 8, b);                                                     \
    }

#define NUMBERS_BYTES(REPEAT)                              \
    const uint8_t *p = step + 64 * half;                   \
    for (uint32_t k = 0; k < GROUP; k += 4, p += 128) {    \
        __m256i w0 = avx2_load(p), w1 = avx2_load(p + 32); \
        REPEAT(TILE_BYTES)                                 \
    }
#define NUMBERS_NIBBLES(REPEAT, FLIP)                                           \
    const uint8_t *p = step + 64 * half;                                        \
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

/* Numbers of 5 and 6 bits. Half a step at a time is summed in 16 bits, then with WIDEN in 32. */
#define HALF_SUMS(i) __m256i s##i, t##i;
#define HALF_KEEP(i) s##i = u##i, t##i = v##i, u##i = v##i = _mm256_setzero_si256();
#define HALF_JOIN(i) u##i = _mm256_add_epi32(u##i, s##i), v##i = _mm256_add_epi32(v##i, t##i);
#define HALF_SCALE(i) \
    u##i = _mm256_madd_epi16(u##i, scale0), v##i = _mm256_madd_epi16(v##i, scale1);
#define TILE_SIGNED(i)                                                                 \
    {                                                                                  \
        __m256i x = quad(q[i] + k);                                                    \
        u##i = _mm256_add_epi16(                                                       \
            u##i, _mm256_maddubs_epi16(_mm256_abs_epi8(w0), _mm256_sign_epi8(x, w0))); \
        v##i = _mm256_add_epi16(                                                       \
            v##i, _mm256_maddubs_epi16(_mm256_abs_epi8(w1), _mm256_sign_epi8(x, w1))); \
    }
#define QUAD_5(REPEAT, r)                                                           \
    {                                                                               \
        const uint32_t k = 4 * (r);                                                 \
        __m256i w0 = quad_5(step, 2 * half, r), w1 = quad_5(step, 2 * half + 1, r); \
        REPEAT(TILE_NIBBLES)                                                        \
    }
#define QUAD_6(REPEAT, r)                                                  \
    {                                                                      \
        const uint32_t k = 4 * (r);                                        \
        const __m256i zero = _mm256_set1_epi8(32);                         \
        __m256i w0 = _mm256_sub_epi8(quad_6(step, 2 * half, r), zero);     \
        __m256i w1 = _mm256_sub_epi8(quad_6(step, 2 * half + 1, r), zero); \
        REPEAT(TILE_SIGNED)                                                \
    }
#define NUMBERS_Q5_1(REPEAT) \
    REPEAT(HALF_SUMS);       \
    QUAD_5(REPEAT, 0);       \
    QUAD_5(REPEAT, 1);       \
    QUAD_5(REPEAT, 2);       \
    QUAD_5(REPEAT, 3);       \
    REPEAT(TILE_WIDEN);      \
    REPEAT(HALF_KEEP);       \
    QUAD_5(REPEAT, 4);       \
    QUAD_5(REPEAT, 5);       \
    QUAD_5(REPEAT, 6);       \
    QUAD_5(REPEAT, 7);       \
    REPEAT(TILE_WIDEN);      \
    REPEAT(HALF_JOIN);
#define NUMBERS_Q5_0(REPEAT) NUMBERS_Q5_1(REPEAT) REPEAT(TILE_LESS_16)
#define NUMBERS_Q6_K(REPEAT)                                                \
    const uint8_t *scales = step + pack_scales_at(DTYPE_Q6_K) + 16 * half;  \
    __m256i scale0 = pair_scales(scales), scale1 = pair_scales(scales + 8); \
    REPEAT(HALF_SUMS);                                                      \
    QUAD_6(REPEAT, 0);                                                      \
    QUAD_6(REPEAT, 1);                                                      \
    QUAD_6(REPEAT, 2);                                                      \
    QUAD_6(REPEAT, 3);                                                      \
    REPEAT(HALF_SCALE);                                                     \
    REPEAT(HALF_KEEP);                                                      \
    scale0 = pair_scales(scales + GROUP);                                   \
    scale1 = pair_scales(scales + GROUP + 8);                               \
    QUAD_6(REPEAT, 4);                                                      \
    QUAD_6(REPEAT, 5);                                                      \
    QUAD_6(REPEAT, 6);                                                      \
    QUAD_6(REPEAT, 7);                                                      \
    REPEAT(HALF_SCALE);                                                     \
    REPEAT(HALF_JOIN);

/* int8 scales of eight columns, each in both halves of its dword. */
static inline __m256i pair_scales(const uint8_t *p) {
    const __m256i both = _mm256_set_epi8(13, 12, 13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0, 13, 12,
                                         13, 12, 9, 8, 9, 8, 5, 4, 5, 4, 1, 0, 1, 0);
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_shuffle_epi8(_mm256_cvtepi8_epi32(bytes), both);
}

/* What a tile's two column vectors are multiplied by, and their minima where the type has some. */
struct tile_scales {
    __m256 d0, d1, m0, m1;
};

static inline struct tile_scales scales_of(enum dtype dtype, const uint8_t *head,
                                           const uint8_t *step, uint32_t half) {
    const uint8_t *own = step + pack_scales_at(dtype);
    bool minima = block_has_minima(dtype), k_type = pack_head_bytes(dtype) > 0;
    const uint8_t *f16 = (k_type ? head : own) + 32 * half;
    struct tile_scales t = {.d0 = f16_at(f16), .d1 = f16_at(f16 + 16)};
    if (!minima) return t;
    t.m0 = f16_at(f16 + 64), t.m1 = f16_at(f16 + 80);
    if (!k_type) return t;
    own += 16 * half;
    t.d0 = _mm256_mul_ps(t.d0, quad_scales(own));
    t.d1 = _mm256_mul_ps(t.d1, quad_scales(own + 8));
    const __m256 minus = _mm256_set1_ps(-0.0f);
    t.m0 = _mm256_mul_ps(_mm256_xor_ps(t.m0, minus), quad_scales(own + GROUP));
    t.m1 = _mm256_mul_ps(_mm256_xor_ps(t.m1, minus), quad_scales(own + GROUP + 8));
    return t;
}

/* Rows row .. row + R - 1, which lie together, columns 16 half .. 16 half + 15, steps s .. end - 1 from
 * `step` on. */
#define DEFINE_TILE(NAME, R, REPEAT, DTYPE, NUMBERS)                                       \
    static void NAME##_##R(const uint8_t *step, uint32_t s, uint32_t end, uint32_t half,   \
                           const struct gemm_rows *in, uint32_t row, float(*acc)[GROUP]) { \
        const __m256i ones = _mm256_set1_epi16(1);                                         \
        const bool minima = block_has_minima(DTYPE);                                       \
        const uint8_t *head = step;                                                        \
        const struct int8_step *at = in->int8 + row / ROW_TILE * (in->ldx / GROUP) + s;    \
        (void)ones;                                                                        \
        for (; s < end; s++, at++, step += pack_step_bytes(DTYPE)) {                       \
            const int8_t(*q)[GROUP] = at->q + row % ROW_TILE;                              \
            const struct int8_row *rows = at->rows + row % ROW_TILE;                       \
            if (s % PACK_HEAD_STEPS == 0) head = step, step += pack_head_bytes(DTYPE);     \
            if (half == 0 && row == 0 && in->n_rows <= STREAM_ROWS)                        \
                pack_fetch_stream(step, pack_step_bytes(DTYPE));                           \
            else if (half == 0 && row == 0)                                                \
                pack_fetch_ahead(step, pack_step_bytes(DTYPE));                            \
            REPEAT(TILE_Q)                                                                 \
            NUMBERS(REPEAT)                                                                \
            const struct tile_scales t = scales_of(DTYPE, head, step, half);               \
            REPEAT(TILE_ADD)                                                               \
        }                                                                                  \
    }
#define DEFINE_TILES(NAME, DTYPE, NUMBERS)              \
    DEFINE_TILE(NAME, 1, AVX2_REPEAT_1, DTYPE, NUMBERS) \
    DEFINE_TILE(NAME, 2, AVX2_REPEAT_2, DTYPE, NUMBERS) \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, DTYPE, NUMBERS) \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, DTYPE, NUMBERS)
DEFINE_TILES(q8_0, DTYPE_Q8_0, NUMBERS_Q8_0)
DEFINE_TILES(q4_0, DTYPE_Q4_0, NUMBERS_Q4_0)
DEFINE_TILES(q4_1, DTYPE_Q4_1, NUMBERS_Q4_1)
DEFINE_TILES(q5_0, DTYPE_Q5_0, NUMBERS_Q5_0)
DEFINE_TILES(q5_1, DTYPE_Q5_1, NUMBERS_Q5_1)
DEFINE_TILES(q4_k, DTYPE_Q4_K, NUMBERS_Q4_1)
DEFINE_TILES(q5_k, DTYPE_Q5_K, NUMBERS_Q5_1)
DEFINE_TILES(q6_k, DTYPE_Q6_K, NUMBERS_Q6_K)

typedef void (*tile_fn)(const uint8_t *step, uint32_t s, uint32_t end, uint32_t half,
                        const struct gemm_rows *in, uint32_t row, float (*acc)[GROUP]);
static const tile_fn tiles[DTYPE_COUNT][TILE + 1] = {
    [DTYPE_Q8_0] = {NULL, q8_0_1, q8_0_2, q8_0_3, q8_0_4},
    [DTYPE_Q4_0] = {NULL, q4_0_1, q4_0_2, q4_0_3, q4_0_4},
    [DTYPE_Q4_1] = {NULL, q4_1_1, q4_1_2, q4_1_3, q4_1_4},
    [DTYPE_Q5_0] = {NULL, q5_0_1, q5_0_2, q5_0_3, q5_0_4},
    [DTYPE_Q5_1] = {NULL, q5_1_1, q5_1_2, q5_1_3, q5_1_4},
    [DTYPE_Q4_K] = {NULL, q4_k_1, q4_k_2, q4_k_3, q4_k_4},
    [DTYPE_Q5_K] = {NULL, q5_k_1, q5_k_2, q5_k_3, q5_k_4},
    [DTYPE_Q6_K] = {NULL, q6_k_1, q6_k_2, q6_k_3, q6_k_4},
};

void avx2_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                    float (*acc)[GROUP]) {
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = m->cols / GROUP, run = pack_run(m->dtype, RUN_BYTES);
    memset(acc, 0, in->n_rows * sizeof *acc);
    for (uint32_t s = 0; s < n_steps; s += run, at += pack_bytes(m->dtype, run)) {
        uint32_t end = n_steps - s < run ? n_steps : s + run;
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = int8_rows_together(i, in->n_rows, TILE);
            for (uint32_t half = 0; half < 2; half++)
                tiles[m->dtype][n](at, s, end, half, in, i, acc);
        }
    }
}
