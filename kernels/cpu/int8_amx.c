/* int8_amx.c: activations in int8 against blocks of 8- and 4-bit weights on the tile unit. Definition and
 * bits: int8_avx2.c. A step of 32 numbers is one product of half depth, an exact integer:
 *
 *   16 rows x 32 columns   tile A [16][32] q of x     B [8][16 columns x 4] twice, C two i32 tiles
 *   products               into the first-level cache, one tile of rows ahead of
 *   float steps            acc = fma((float)C * scale, d, acc), with minima fma(m, sums, acc)
 *
 * The float steps take four operations for 16 outputs, twice what their product takes, so they
 * bound it. Sums stay in memory: in registers over several steps the products' buffers grow, and the
 * processor takes reads for ones of stores 4096 bytes apart (measured: 8 % slower). Few rows, and the
 * types that are only read, are vpdpbusd's. */
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/pack_avx2.h"

enum {
    TILE = ROW_TILE,
    FEW = 6, /* rows, at most, that vpdpbusd takes */
};

/* A step as the products and the float steps want it. */
struct step {
    int8_t w[8][2 * 64]; /* q8_0: not used, the stream has it so */
    float d[GROUP], m[GROUP];
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

static void fill(enum dtype dtype, const uint8_t *at, struct step *step) {
    const __m128i plain = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m128i less_8 = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m512i table = _mm512_broadcast_i32x4(dtype == DTYPE_Q4_0 ? less_8 : plain);
    uint32_t bytes = pack_step_bytes(dtype), scales = pack_scales_at(dtype);
    for (uint32_t b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)at + TILE_AHEAD_BYTES + b, _MM_HINT_T0);
    if (dtype != DTYPE_Q8_0) expand_nibbles(at, table, step->w);
    widen_f16(at + scales, step->d);
    if (dtype == DTYPE_Q4_1) widen_f16(at + scales + 64, step->m);
}

/* ---- products ---------------------------------------------------------------------------------- */

#define PRODUCT(C0, C1, A)              \
    TILE_LOAD(A, q, GROUP);             \
    TILE_LOAD(6, w, 128);               \
    TILE_LOAD(7, w + 64, 128);          \
    TILE_ZERO(C0);                      \
    TILE_INT8(C0, A, 6);                \
    TILE_ZERO(C1);                      \
    TILE_INT8(C1, A, 7);                \
    TILE_STORE(C0, dots, sizeof *dots); \
    TILE_STORE(C1, &dots[0][16], sizeof *dots);

static inline void product(const uint8_t *w, const int8_t (*q)[GROUP], bool whole,
                           int32_t (*dots)[GROUP]) {
    if (whole) {
        PRODUCT(0, 1, 4)
    } else {
        PRODUCT(2, 3, 5)
    }
}

/* ---- float steps ------------------------------------------------------------------------------- */

/* A step of n rows. */
#define DEFINE_FLOATS(NAME, MINIMA)                                                                \
    static void NAME(const struct step *step, int32_t(*dots)[GROUP], const struct int8_row *rows,  \
                     uint32_t n, float(*acc)[GROUP]) {                                             \
        __m512 d0 = _mm512_load_ps(step->d), d1 = _mm512_load_ps(step->d + 16), m0 = d0, m1 = d1;  \
        if (MINIMA) m0 = _mm512_load_ps(step->m), m1 = _mm512_load_ps(step->m + 16);               \
        _Pragma("GCC unroll 4") for (uint32_t i = 0; i < n; i++) {                                 \
            __m512 scale = _mm512_set1_ps(rows[i].scale);                                          \
            __m512 u = _mm512_cvtepi32_ps(_mm512_load_si512(dots[i]));                             \
            __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(dots[i] + 16));                        \
            __m512 a = _mm512_fmadd_ps(_mm512_mul_ps(u, scale), d0, _mm512_loadu_ps(acc[i]));      \
            __m512 b = _mm512_fmadd_ps(_mm512_mul_ps(v, scale), d1, _mm512_loadu_ps(acc[i] + 16)); \
            if (MINIMA) {                                                                          \
                __m512 sum = _mm512_set1_ps(rows[i].sum);                                          \
                a = _mm512_fmadd_ps(m0, sum, a);                                                   \
                b = _mm512_fmadd_ps(m1, sum, b);                                                   \
            }                                                                                      \
            _mm512_storeu_ps(acc[i], a);                                                           \
            _mm512_storeu_ps(acc[i] + 16, b);                                                      \
        }                                                                                          \
    }
DEFINE_FLOATS(floats_plain, false)
DEFINE_FLOATS(floats_minima, true)

static bool has_products(enum dtype dtype) {
    return dtype == DTYPE_Q8_0 || dtype == DTYPE_Q4_0 || dtype == DTYPE_Q4_1;
}

void amx_gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                   float (*acc)[GROUP]) {
    if (in->n_rows <= FEW || !has_products(m->dtype)) {
        avx512_gemm_int8(m, group, in, acc);
        return;
    }
    int32_t dots[2][TILE][GROUP] __attribute__((aligned(4096)));
    struct step steps[2] __attribute__((aligned(MEMORY_ALIGN)));
    const uint8_t *at = (const uint8_t *)m->data + group * m->group_bytes;
    uint32_t n_steps = m->cols / GROUP, bytes = pack_step_bytes(m->dtype);
    const struct int8_step *x = in->int8; /* of the float steps; the products are one tile ahead */
    bool minima = block_has_minima(m->dtype), as_it_lies = m->dtype == DTYPE_Q8_0;
    uint32_t rest = in->n_rows % TILE;
    amx_configure(AMX_INT8, TILE, rest ? rest : TILE);
    memset(acc, 0, in->n_rows * sizeof *acc);
    uint32_t s = 0, row = 0, index = 0;
    fill(m->dtype, at, &steps[0]);
    product(as_it_lies ? at : (const uint8_t *)steps[0].w, x->q, in->n_rows >= TILE, dots[0]);
    while (s < n_steps) {
        uint32_t n = in->n_rows - row < TILE ? in->n_rows - row : TILE, s2 = s, row2 = row + n;
        if (row2 == in->n_rows) {
            s2++, row2 = 0;
            if (s2 < n_steps) fill(m->dtype, at + (size_t)s2 * bytes, &steps[s2 % 2]);
        }
        const struct int8_step *x2 = in->int8 + (size_t)(row2 / TILE) * (in->ldx / GROUP) + s2;
        if (s2 < n_steps)
            product(as_it_lies ? at + (size_t)s2 * bytes : (const uint8_t *)steps[s2 % 2].w, x2->q,
                    in->n_rows - row2 >= TILE, dots[(index + 1) % 2]);
        (minima ? floats_minima : floats_plain)(&steps[s % 2], dots[index % 2], x->rows, n,
                                                acc + row);
        s = s2, row = row2, x = x2, index++;
    }
}
