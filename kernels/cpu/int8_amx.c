/* int8_amx.c: activations in int8 against blocks of 8- and 4-bit weights on the tile unit. Definition and
 * bits: int8_avx2.c. A step of 32 numbers is one product of half depth, an exact integer:
 *
 *   16 rows x 32 columns   tile A [16][32] q of x     B [8][16 columns x 4] twice, C two i32 tiles
 *   a run of 4 steps       products into the first-level cache; then, row by row,
 *                          acc = fma((float)C * scale, d, acc), with minima fma(m, sums, acc)
 *
 * The float steps take four operations for 16 outputs, twice what their product takes, so they
 * bound it; sums stay in registers over a run. Few rows, and the types that are only read, are
 * vpdpbusd's. */
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    RUN = 4,               /* steps */
    TILE = 16,             /* rows */
    FEW = 6,               /* rows, at most, that vpdpbusd takes */
    TOGETHER = TILE / RUN, /* rows of the float steps */
    PREFETCH_BYTES = 4096,
};

/* A run of steps as the products and the float steps want it. */
struct run {
    int8_t w[RUN][8][2 * 64]; /* q8_0: not used, the stream has it so */
    float d[RUN][GROUP], m[RUN][GROUP];
};

static inline __m512 f16_at(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

static inline void widen_f16(const uint8_t *p, float *out) {
    _mm512_store_ps(out, f16_at(p));
    _mm512_store_ps(out + 16, f16_at(p + 32));
}

/* Nibbles of a step into bytes: row 2 c of quads from the low halves, 2 c + 1 from the high ones. */
static inline void expand_nibbles(const uint8_t *step, __m512i table, int8_t (*w)[2 * 64]) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int c = 0; c < 4; c++)
        for (int v = 0; v < 2; v++) {
            __m512i z = _mm512_loadu_si512(step + 128 * c + 64 * v);
            __m512i high = _mm512_and_si512(_mm512_srli_epi32(z, 4), low);
            _mm512_store_si512(w[2 * c] + 64 * v,
                               _mm512_shuffle_epi8(table, _mm512_and_si512(z, low)));
            _mm512_store_si512(w[2 * c + 1] + 64 * v, _mm512_shuffle_epi8(table, high));
        }
}

static void fill_run(enum dtype dtype, const uint8_t *at, uint32_t n, struct run *run) {
    const __m128i plain = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i less_8 = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i table = _mm512_broadcast_i32x4(dtype == DTYPE_Q4_0 ? less_8 : plain);
    uint32_t bytes = pack_step_bytes(dtype), scales = pack_scales_at(dtype);
    for (uint32_t i = 0; i < n; i++, at += bytes) {
        for (uint32_t b = 0; b < bytes; b += 64)
            _mm_prefetch((const char *)at + PREFETCH_BYTES + b, _MM_HINT_T0);
        if (dtype != DTYPE_Q8_0) expand_nibbles(at, table, run->w[i]);
        widen_f16(at + scales, run->d[i]);
        if (dtype == DTYPE_Q4_1) widen_f16(at + scales + 64, run->m[i]);
    }
}

/* ---- products ---------------------------------------------------------------------------------- */

/* A tile of rows in a run. */
struct part {
    const uint8_t *w; /* the run's first step */
    size_t step_bytes;
    const int8_t *q; /* its first row there */
    uint32_t n;      /* steps */
    bool whole;      /* 16 rows */
    int32_t (*dots)[TILE][GROUP];
};

#define PRODUCT(C0, C1, A)                  \
    TILE_LOAD(A, part->q + i * GROUP, ldx); \
    TILE_LOAD(6, w, 128);                   \
    TILE_LOAD(7, w + 64, 128);              \
    TILE_ZERO(C0);                          \
    TILE_INT8(C0, A, 6);                    \
    TILE_ZERO(C1);                          \
    TILE_INT8(C1, A, 7);                    \
    TILE_STORE(C0, to, sizeof to[0]);       \
    TILE_STORE(C1, &to[0][16], sizeof to[0]);

/* dots[step i] of the part. */
static inline void product(const struct part *part, uint32_t i, size_t ldx) {
    if (i >= part->n) return;
    const uint8_t *w = part->w + i * part->step_bytes;
    int32_t(*to)[GROUP] = part->dots[i];
    if (part->whole) {
        PRODUCT(0, 1, 4)
    } else {
        PRODUCT(2, 3, 5)
    }
}

/* ---- float steps ------------------------------------------------------------------------------- */

#define ROW_BEGIN(i)                                                   \
    const float *scale##i = in->scales + (row + (i)) * in->ldsums + s, \
                *sum##i = in->sums + (row + (i)) * in->ldsums + s;     \
    __m512 a##i = _mm512_load_ps(acc[row + (i)]), b##i = _mm512_load_ps(acc[row + (i)] + 16);
#define ROW_STEP(i)                                                               \
    {                                                                             \
        __m512 scale = _mm512_set1_ps(scale##i[k]);                               \
        __m512 u = _mm512_cvtepi32_ps(_mm512_load_si512(dots[k][at + (i)]));      \
        __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(dots[k][at + (i)] + 16)); \
        a##i = _mm512_fmadd_ps(_mm512_mul_ps(u, scale), d0, a##i);                \
        b##i = _mm512_fmadd_ps(_mm512_mul_ps(v, scale), d1, b##i);                \
        if (minima) {                                                             \
            __m512 sum = _mm512_set1_ps(sum##i[k]);                               \
            a##i = _mm512_fmadd_ps(m0, sum, a##i);                                \
            b##i = _mm512_fmadd_ps(m1, sum, b##i);                                \
        }                                                                         \
    }
#define ROW_END(i)                         \
    _mm512_store_ps(acc[row + (i)], a##i); \
    _mm512_store_ps(acc[row + (i)] + 16, b##i);

/* Rows row .. row + R - 1, which are `at` .. of their tile; steps s .. s + n - 1. */
#define DEFINE_FLOATS(NAME, R, REPEAT, MINIMA)                                                   \
    static void NAME##_##R(const struct run *run, int32_t(*dots)[TILE][GROUP], uint32_t at,      \
                           uint32_t s, uint32_t n, const struct gemm_rows *in, uint32_t row,     \
                           float(*acc)[GROUP]) {                                                 \
        const bool minima = MINIMA;                                                              \
        REPEAT(ROW_BEGIN)                                                                        \
        for (uint32_t k = 0; k < n; k++) {                                                       \
            __m512 d0 = _mm512_load_ps(run->d[k]), d1 = _mm512_load_ps(run->d[k] + 16), m0 = d0, \
                   m1 = d1;                                                                      \
            if (minima) m0 = _mm512_load_ps(run->m[k]), m1 = _mm512_load_ps(run->m[k] + 16);     \
            REPEAT(ROW_STEP)                                                                     \
        }                                                                                        \
        REPEAT(ROW_END)                                                                          \
    }
#define DEFINE_ALL_FLOATS(NAME, MINIMA)           \
    DEFINE_FLOATS(NAME, 1, AVX2_REPEAT_1, MINIMA) \
    DEFINE_FLOATS(NAME, 2, AVX2_REPEAT_2, MINIMA) \
    DEFINE_FLOATS(NAME, 3, AVX2_REPEAT_3, MINIMA) \
    DEFINE_FLOATS(NAME, 4, AVX2_REPEAT_4, MINIMA)
DEFINE_ALL_FLOATS(plain, false)
DEFINE_ALL_FLOATS(minima, true)

typedef void (*floats_fn)(const struct run *run, int32_t (*dots)[TILE][GROUP], uint32_t at,
                          uint32_t s, uint32_t n, const struct gemm_rows *in, uint32_t row,
                          float (*acc)[GROUP]);
static const floats_fn floats[2][TOGETHER + 1] = {
    {NULL, plain_1, plain_2, plain_3, plain_4},
    {NULL, minima_1, minima_2, minima_3, minima_4},
};

/* ---- */

static bool has_products(enum dtype dtype) {
    return dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0 || dtype == DTYPE_Q4_1;
}

/* A walk over the parts: runs ascending, and in a run all rows. The products of the next part are
 * mixed with the float steps of the one before, since they keep different units busy. */
struct walk {
    struct run run[2];
    int32_t dots[2][RUN][TILE][GROUP];
    const struct matrix *m;
    const struct gemm_rows *in;
    const uint8_t *at; /* its group's first step */
    uint32_t s, n_steps, row, index;
};

/* The next part; n = 0 behind the last. */
static struct part walk_next(struct walk *w) {
    struct part part = {.dots = w->dots[w->index++ % 2]};
    if (w->row >= w->in->n_rows) w->s += RUN, w->row = 0;
    if (w->s >= w->n_steps) return part;
    struct run *run = &w->run[w->s / RUN % 2];
    uint32_t bytes = pack_step_bytes(w->m->dtype);
    bool as_it_lies = w->m->dtype == DTYPE_Q8_0;
    const uint8_t *at = w->at + (size_t)w->s * bytes;
    part.n = w->n_steps - w->s < RUN ? w->n_steps - w->s : RUN;
    if (w->row == 0) fill_run(w->m->dtype, at, part.n, run);
    part.w = as_it_lies ? at : (const uint8_t *)run->w;
    part.step_bytes = as_it_lies ? bytes : sizeof run->w[0];
    part.q = w->in->q + w->row * w->in->ldx + (size_t)w->s * GROUP;
    part.whole = w->in->n_rows - w->row >= TILE;
    w->row += TILE;
    return part;
}

void amx_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                   float (*acc)[GROUP]) {
    if (in->n_rows <= FEW || !has_products(m->dtype)) {
        avx512_gemm_int8(m, group, in, acc);
        return;
    }
    struct walk w __attribute__((aligned(MEMORY_ALIGN)));
    w.m = m, w.in = in, w.n_steps = m->cols / GROUP, w.s = w.row = w.index = 0;
    w.at = (const uint8_t *)m->data + group * m->group_bytes;
    const floats_fn *rows = floats[block_has_minima(m->dtype)];
    uint32_t rest = in->n_rows % TILE;
    amx_configure(AMX_INT8, TILE, rest ? rest : TILE);
    memset(acc, 0, in->n_rows * sizeof *acc);
    struct part part = walk_next(&w);
    for (uint32_t i = 0; i < RUN; i++)
        product(&part, i, in->ldx);
    while (part.n > 0) {
        uint32_t s = w.s, row = w.row - TILE, end = part.whole ? TILE : rest;
        const struct run *run = &w.run[s / RUN % 2];
        struct part next = walk_next(&w);
        for (uint32_t i = 0; i < RUN; i++) {
            product(&next, i, in->ldx);
            uint32_t first = i * TOGETHER;
            if (first >= end) continue;
            uint32_t n = end - first < TOGETHER ? end - first : TOGETHER;
            rows[n](run, part.dots, first, s, part.n, in, row + first, acc);
        }
        part = next;
    }
}
