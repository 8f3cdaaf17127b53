/* gemm_avx512.c: acc[i][j] = sum_k W[j][k] x[i][k] for 32 output columns j and any number of rows i,
 * activations in float32. The sum is the one that gemm_avx2.c defines, so the bits are equal too:
 *
 *   for each step of 32 k:   acc = fma(e + o, d, acc), then fma(m, sum of x, acc)
 *   columns                  | register 0: 0 .. 15 | register 1: 16 .. 31 |
 *
 * A tile is 1 to 6 rows x 32 columns with both chains, even and odd: 24 of the 32 registers. Its
 * weights come from one of two places:
 *   1 to 4 rows  the packed stream, expanded in registers (nibbles by one permute of a table of 16
 *                floats): a read of the stream.
 *   more rows    a panel of one step, expanded into the first-level cache and used by all tiles:
 *                [k 32][column 32] f32, then d and m. Bound by FMA: 12 of them for 8 loads.
 * Float32 weights are such a panel as they lie. Of the types that are only read (q5_0 .. q6_k) avx2
 * expands the panels, and takes few rows. */
#include <string.h>

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = 6,        /* rows, at most */
    DIRECT = 4,      /* rows, at most, that expand weights for themselves */
    PANEL_D = GROUP, /* after the numbers of a panel, in rows of GROUP floats */
    PANEL_M = GROUP + 1,
    PANEL_ROWS = GROUP + 2,
};

static inline __m512 f32_at(const uint8_t *p) {
    return _mm512_loadu_ps((const float *)(const void *)p);
}
static inline __m512 f16_at(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline __m512i dwords_at(const uint8_t *p) {
    return _mm512_loadu_si512((const void *)p);
}

/* ---- a tile ------------------------------------------------------------------------------------ */

#define TILE_X(i) const float *x##i = in->x + (row + (i)) * in->ldx;
#define TILE_ZERO(i)                   \
    __m512 e0##i, e1##i, o0##i, o1##i; \
    e0##i = e1##i = o0##i = o1##i = _mm512_setzero_ps();
#define TILE_EVEN(i)                            \
    {                                           \
        __m512 xk = _mm512_set1_ps(x##i[k]);    \
        e0##i = _mm512_fmadd_ps(w0, xk, e0##i); \
        e1##i = _mm512_fmadd_ps(w1, xk, e1##i); \
    }
#define TILE_ODD(i)                             \
    {                                           \
        __m512 xk = _mm512_set1_ps(x##i[k]);    \
        o0##i = _mm512_fmadd_ps(w0, xk, o0##i); \
        o1##i = _mm512_fmadd_ps(w1, xk, o1##i); \
    }
#define TILE_ADD(i)                                                                         \
    {                                                                                       \
        float *to = acc[row + (i)];                                                         \
        e0##i = _mm512_fmadd_ps(_mm512_add_ps(e0##i, o0##i), d0, _mm512_loadu_ps(to));      \
        e1##i = _mm512_fmadd_ps(_mm512_add_ps(e1##i, o1##i), d1, _mm512_loadu_ps(to + 16)); \
        if (minima) {                                                                       \
            __m512 sum = _mm512_set1_ps(in->sums[(row + (i)) * in->ldsums + step]);         \
            e0##i = _mm512_fmadd_ps(m0, sum, e0##i);                                        \
            e1##i = _mm512_fmadd_ps(m1, sum, e1##i);                                        \
        }                                                                                   \
        _mm512_storeu_ps(to, e0##i);                                                        \
        _mm512_storeu_ps(to + 16, e1##i);                                                   \
    }

/* The next pair of numbers k (even), k + 1 of all rows; W(v, j) yields number j of register v. */
#define TILE_PAIR(REPEAT, W, j)             \
    w0 = W(0, j), w1 = W(1, j);             \
    REPEAT(TILE_EVEN)                       \
    k++;                                    \
    w0 = W(0, (j) + 1), w1 = W(1, (j) + 1); \
    REPEAT(TILE_ODD)                        \
    k++;

/* Rows row .. row + R - 1, steps step .. end - 1 from p on; NUMBERS moves p over a step's numbers,
 * SCALES is what follows them. */
#define DEFINE_TILE(NAME, R, REPEAT, BYTES, AHEAD, NUMBERS, SCALES)                        \
    static void NAME##_##R(const uint8_t *p, uint32_t step, uint32_t end,                  \
                           const struct gemm_rows *in, uint32_t row, float(*acc)[GROUP]) { \
        REPEAT(TILE_X)                                                                     \
        size_t k = (size_t)step * GROUP;                                                   \
        const uint8_t *next = p;                                                           \
        for (; step < end; step++) {                                                       \
            if (AHEAD) pack_fetch_ahead(next, BYTES);                                      \
            p = next;                                                                      \
            next += (BYTES);                                                               \
            REPEAT(TILE_ZERO)                                                              \
            __m512 w0, w1;                                                                 \
            NUMBERS(REPEAT)                                                                \
            SCALES()                                                                       \
            REPEAT(TILE_ADD)                                                               \
        }                                                                                  \
    }

#define SCALES_NONE()          \
    const bool minima = false; \
    __m512 d0 = _mm512_set1_ps(1.0f), d1 = d0, m0 = d0, m1 = d0;
#define SCALES_D()             \
    const bool minima = false; \
    __m512 d0 = f16_at(p), d1 = f16_at(p + 32), m0 = d0, m1 = d0;
#define SCALES_DM()           \
    const bool minima = true; \
    __m512 d0 = f16_at(p), d1 = f16_at(p + 32), m0 = f16_at(p + 64), m1 = f16_at(p + 96);
#define SCALES_PANEL_D()       \
    const bool minima = false; \
    __m512 d0 = f32_at(p), d1 = f32_at(p + 64), m0 = d0, m1 = d0;
#define SCALES_PANEL_DM()     \
    const bool minima = true; \
    __m512 d0 = f32_at(p), d1 = f32_at(p + 64), m0 = f32_at(p + 128), m1 = f32_at(p + 192);

#define W_F32(v, j) f32_at(p + 128 * (j) + 64 * (v))
#define NUMBERS_F32(REPEAT)                             \
    for (uint32_t c = 0; c < GROUP; c += 2, p += 256) { \
        TILE_PAIR(REPEAT, W_F32, 0)                     \
    }

#define W_F16(v, j) f16_at(p + 64 * (j) + 32 * (v))
#define NUMBERS_F16(REPEAT)                             \
    for (uint32_t c = 0; c < GROUP; c += 2, p += 128) { \
        TILE_PAIR(REPEAT, W_F16, 0)                     \
    }

#define W_BF16(v, j) ((j) ? avx512_bf16_high(z##v) : avx512_bf16_low(z##v))
#define NUMBERS_BF16(REPEAT)                               \
    for (uint32_t c = 0; c < GROUP; c += 2, p += 128) {    \
        __m512i z0 = dwords_at(p), z1 = dwords_at(p + 64); \
        TILE_PAIR(REPEAT, W_BF16, 0)                       \
    }

#define W_BYTE(v, j) \
    _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(z##v, 24 - 8 * (j)), 24))
#define NUMBERS_Q8_0(REPEAT)                               \
    for (uint32_t c = 0; c < GROUP; c += 4, p += 128) {    \
        __m512i z0 = dwords_at(p), z1 = dwords_at(p + 64); \
        TILE_PAIR(REPEAT, W_BYTE, 0)                       \
        TILE_PAIR(REPEAT, W_BYTE, 2)                       \
    }

/* The permute looks at the low four bits of a dword alone. */
#define W_NIBBLE(v, j) _mm512_permutexvar_ps(_mm512_srli_epi32(z##v, PACK_NIBBLE(j)), table)
#define NUMBERS_NIBBLES(REPEAT)                            \
    for (uint32_t c = 0; c < GROUP; c += 8, p += 128) {    \
        __m512i z0 = dwords_at(p), z1 = dwords_at(p + 64); \
        TILE_PAIR(REPEAT, W_NIBBLE, 0)                     \
        TILE_PAIR(REPEAT, W_NIBBLE, 2)                     \
        TILE_PAIR(REPEAT, W_NIBBLE, 4)                     \
        TILE_PAIR(REPEAT, W_NIBBLE, 6)                     \
    }
#define TABLE_SIGNED   _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
#define TABLE_UNSIGNED _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define NUMBERS_Q4_0(REPEAT)           \
    const __m512 table = TABLE_SIGNED; \
    NUMBERS_NIBBLES(REPEAT)
#define NUMBERS_Q4_1(REPEAT)             \
    const __m512 table = TABLE_UNSIGNED; \
    NUMBERS_NIBBLES(REPEAT)

#define DEFINE_DIRECT(NAME, BYTES, NUMBERS, SCALES)                   \
    DEFINE_TILE(NAME, 1, AVX2_REPEAT_1, BYTES, true, NUMBERS, SCALES) \
    DEFINE_TILE(NAME, 2, AVX2_REPEAT_2, BYTES, true, NUMBERS, SCALES) \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, BYTES, true, NUMBERS, SCALES) \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, BYTES, true, NUMBERS, SCALES)
DEFINE_DIRECT(f32, 4096, NUMBERS_F32, SCALES_NONE)
DEFINE_DIRECT(f16, 2048, NUMBERS_F16, SCALES_NONE)
DEFINE_DIRECT(bf16, 2048, NUMBERS_BF16, SCALES_NONE)
DEFINE_DIRECT(q8_0, 1088, NUMBERS_Q8_0, SCALES_D)
DEFINE_DIRECT(q4_0, 576, NUMBERS_Q4_0, SCALES_D)
DEFINE_DIRECT(q4_1, 640, NUMBERS_Q4_1, SCALES_DM)

/* Five rows and more are cut into tiles of 3 to 6. */
#define DEFINE_PANEL(NAME, SCALES)                                                        \
    DEFINE_TILE(NAME, 3, AVX2_REPEAT_3, sizeof(struct panel), false, NUMBERS_F32, SCALES) \
    DEFINE_TILE(NAME, 4, AVX2_REPEAT_4, sizeof(struct panel), false, NUMBERS_F32, SCALES) \
    DEFINE_TILE(NAME, 5, AVX2_REPEAT_5, sizeof(struct panel), false, NUMBERS_F32, SCALES) \
    DEFINE_TILE(NAME, 6, AVX2_REPEAT_6, sizeof(struct panel), false, NUMBERS_F32, SCALES)

struct panel {
    float w[GROUP][GROUP], d[GROUP], m[GROUP];
};
DEFINE_PANEL(panel, SCALES_NONE)
DEFINE_PANEL(panel_d, SCALES_PANEL_D)
DEFINE_PANEL(panel_dm, SCALES_PANEL_DM)

typedef void (*tile_fn)(const uint8_t *p, uint32_t step, uint32_t end, const struct gemm_rows *in,
                        uint32_t row, float (*acc)[GROUP]);
static const tile_fn direct[DTYPE_COUNT][DIRECT + 1] = {
    [DTYPE_F32] = {NULL, f32_1, f32_2, f32_3, f32_4},
    [DTYPE_F16] = {NULL, f16_1, f16_2, f16_3, f16_4},
    [DTYPE_BF16] = {NULL, bf16_1, bf16_2, bf16_3, bf16_4},
    [DTYPE_Q8_0] = {NULL, q8_0_1, q8_0_2, q8_0_3, q8_0_4},
    [DTYPE_Q4_0] = {NULL, q4_0_1, q4_0_2, q4_0_3, q4_0_4},
    [DTYPE_Q4_1] = {NULL, q4_1_1, q4_1_2, q4_1_3, q4_1_4},
};
static const tile_fn from_panel[3][TILE + 1] = {
    {[3] = panel_3, panel_4, panel_5, panel_6},
    {[3] = panel_d_3, panel_d_4, panel_d_5, panel_d_6},
    {[3] = panel_dm_3, panel_dm_4, panel_dm_5, panel_dm_6},
};

/* ---- a panel ----------------------------------------------------------------------------------- */

#define PUT(v, j, number) _mm512_store_ps(to->w[k + (j)] + 16 * (v), number)

#define DEFINE_EXPAND(NAME, N, BYTES, PUT_ALL)                       \
    static const uint8_t *NAME(const uint8_t *p, struct panel *to) { \
        for (uint32_t k = 0; k < GROUP; k += (N), p += (BYTES)) {    \
            PUT_ALL                                                  \
        }                                                            \
        return p;                                                    \
    }
#define PUT_2(W)                            \
    PUT(0, 0, W(0, 0)), PUT(1, 0, W(1, 0)); \
    PUT(0, 1, W(0, 1)), PUT(1, 1, W(1, 1));
#define PUT_4(W)                            \
    PUT_2(W)                                \
    PUT(0, 2, W(0, 2)), PUT(1, 2, W(1, 2)); \
    PUT(0, 3, W(0, 3)), PUT(1, 3, W(1, 3));
#define PUT_8(W)                            \
    PUT_4(W)                                \
    PUT(0, 4, W(0, 4)), PUT(1, 4, W(1, 4)); \
    PUT(0, 5, W(0, 5)), PUT(1, 5, W(1, 5)); \
    PUT(0, 6, W(0, 6)), PUT(1, 6, W(1, 6)); \
    PUT(0, 7, W(0, 7)), PUT(1, 7, W(1, 7));
#define LOAD_Z __m512i z0 = dwords_at(p), z1 = dwords_at(p + 64);
DEFINE_EXPAND(expand_f16, 2, 128, PUT_2(W_F16))
DEFINE_EXPAND(expand_bf16, 2, 128, LOAD_Z PUT_2(W_BF16))
DEFINE_EXPAND(expand_q8_0, 4, 128, LOAD_Z PUT_4(W_BYTE))
DEFINE_EXPAND(expand_q4_0, 8, 128, const __m512 table = TABLE_SIGNED; LOAD_Z PUT_8(W_NIBBLE))
DEFINE_EXPAND(expand_q4_1, 8, 128, const __m512 table = TABLE_UNSIGNED; LOAD_Z PUT_8(W_NIBBLE))

typedef const uint8_t *(*expand_fn)(const uint8_t *step, struct panel *to);
static const expand_fn expand[DTYPE_COUNT] = {
    [DTYPE_F16] = expand_f16,   [DTYPE_BF16] = expand_bf16, [DTYPE_Q8_0] = expand_q8_0,
    [DTYPE_Q4_0] = expand_q4_0, [DTYPE_Q4_1] = expand_q4_1,
};

static void fill_panel(enum dtype dtype, const uint8_t *head, const uint8_t *step,
                       struct panel *panel) {
    if (block_is_read_only(dtype)) {
        avx2_expand_rows(dtype, head, step, panel->w, panel->d, panel->m);
        return;
    }
    const uint8_t *p = expand[dtype](step, panel);
    if (dtype_block(dtype) == 1) return;
    _mm512_store_ps(panel->d, f16_at(p));
    _mm512_store_ps(panel->d + 16, f16_at(p + 32));
    if (dtype != DTYPE_Q4_1) return;
    _mm512_store_ps(panel->m, f16_at(p + 64));
    _mm512_store_ps(panel->m + 16, f16_at(p + 96));
}

void avx512_gemm_group(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                       float (*acc)[GROUP]) {
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = (uint32_t)div_ceil(m->cols, GROUP), bytes = pack_step_bytes(m->dtype);
    if (in->n_rows <= DIRECT && block_is_read_only(m->dtype)) {
        avx2_gemm_group(m, group, in, acc); /* a read of the stream, in half the width */
        return;
    }
    memset(acc, 0, in->n_rows * sizeof *acc);
    if (in->n_rows <= DIRECT) {
        direct[m->dtype][in->n_rows](at, 0, n_steps, in, 0, acc);
        return;
    }
    struct panel panel __attribute__((aligned(MEMORY_ALIGN)));
    bool as_it_lies = m->dtype == DTYPE_F32;
    int scales = block_has_minima(m->dtype) ? 2 : dtype_block(m->dtype) > 1;
    const uint8_t *head = at;
    for (uint32_t s = 0; s < n_steps; s++, at += bytes) {
        if (s % PACK_HEAD_STEPS == 0) head = at, at += pack_head_bytes(m->dtype);
        pack_fetch_ahead(at, bytes);
        if (!as_it_lies) fill_panel(m->dtype, head, at, &panel);
        const uint8_t *from = as_it_lies ? at : (const uint8_t *)&panel;
        for (uint32_t i = 0, n; i < in->n_rows; i += n) {
            n = even_part(in->n_rows - i, TILE);
            from_panel[scales][n](from, s, s + 1, in, i, acc);
        }
    }
}
