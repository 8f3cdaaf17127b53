/* attend_avx512.c: what the avx512 table does to a page of K and V. Layouts and the order of every
 * sum are those of attend_avx2.c, so the bits are too. A page's 16 positions are one register. */
#include <math.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attend.h"

enum { ROWS_MAX = 8 };

/* ---- pages: 1 to 8 query rows x 16 positions, or x 16 of the numbers of v ---------------------- */

/* Kind, rows and columns are constants wherever these are inlined: loops over them are unrolled and the
 * sums are registers. Up to FEW rows go against four pages, or 64 numbers of v, at once: fewer sums
 * would leave the adders waiting. */
#define INLINED static inline __attribute__((always_inline))
enum { FEW = 4, COLUMNS_MAX = 4, LINE = 64 };

INLINED uint32_t columns_together(uint32_t n_rows) {
    return n_rows <= FEW ? COLUMNS_MAX : 2;
}

/* Dims that one register of a K page has, or positions of a V page. */
INLINED uint32_t depth(enum kv_kind kind) {
    return kind == KV_BF16 ? 2 : 1;
}

INLINED size_t number_bytes(enum kv_kind kind) {
    return kind == KV_F32 ? 4 : kind == KV_BF16 ? 2 : 1;
}

/* Of the 16 columns at `at` number i (below depth). */
INLINED __m512 column(enum kv_kind kind, const char *at, uint32_t i) {
    if (kind == KV_F32) return _mm512_loadu_ps(at);
    if (kind == KV_Q8) return avx512_int8((const int8_t *)at);
    __m512i z = _mm512_loadu_si512(at);
    return i ? avx512_bf16_high(z) : avx512_bf16_low(z);
}

/* sums[row][column] += x[row] * v[column]. */
INLINED void add_products(uint32_t n_rows, uint32_t n_columns, const float *const *x, size_t at,
                          const __m512 *v, __m512 (*sums)[COLUMNS_MAX]) {
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++) {
        __m512 xr = _mm512_set1_ps(x[r][at]);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < n_columns; c++)
            sums[r][c] = _mm512_fmadd_ps(v[c], xr, sums[r][c]);
    }
}

INLINED void qk_pages(enum kv_kind kind, uint32_t n_rows, uint32_t n_pages,
                      const char *const *pages, size_t ahead, uint32_t e, const float *const *q,
                      float *const *scores) {
    __m512 sums[ROWS_MAX][COLUMNS_MAX], k[COLUMNS_MAX];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++)
#pragma GCC unroll 8
        for (uint32_t p = 0; p < n_pages; p++)
            sums[r][p] = _mm512_setzero_ps();
    size_t at = 0;
    for (uint32_t d = 0; d < e; d += depth(kind)) {
        if (ahead && at % LINE == 0) {
#pragma GCC unroll 8
            for (uint32_t p = 0; p < n_pages; p++)
                attend_fetch_line(pages[p] + ahead + at);
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < depth(kind); i++) {
#pragma GCC unroll 8
            for (uint32_t p = 0; p < n_pages; p++)
                k[p] = column(kind, pages[p] + at, i);
            add_products(n_rows, n_pages, q, d + i, k, sums);
        }
        at += PAGE_TOKENS * number_bytes(kind) * depth(kind);
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++)
#pragma GCC unroll 8
        for (uint32_t p = 0; p < n_pages; p++)
            _mm512_storeu_ps(scores[r] + p * PAGE_TOKENS, sums[r][p]);
}

INLINED void qk_rows(enum kv_kind kind, uint32_t n_rows, const char *const *pages, uint32_t n_pages,
                     size_t ahead, uint32_t e, const float *q, size_t ep, const uint32_t *rows,
                     float *scores) {
    const float *row_q[ROWS_MAX];
    float *row_scores[ROWS_MAX];
    const uint32_t together = columns_together(n_rows);
    for (uint32_t p = 0, n; p < n_pages; p += n, pages += n) {
#pragma GCC unroll 8
        for (uint32_t r = 0; r < n_rows; r++) {
            row_q[r] = q + rows[r] * ep;
            row_scores[r] = scores + rows[r] * (size_t)ATTEND_BLOCK + p * PAGE_TOKENS;
        }
        n = n_pages - p < together ? 1 : together;
        if (n == together)
            qk_pages(kind, n_rows, together, pages, ahead, e, row_q, row_scores);
        else
            qk_pages(kind, n_rows, 1, pages, ahead, e, row_q, row_scores);
    }
}

/* Numbers d .. d + 16 n_columns - 1 of v; whole: lo is 0 and hi PAGE_TOKENS. */
INLINED void pv_columns(enum kv_kind kind, uint32_t n_rows, uint32_t n_columns, bool whole,
                        const char *const *pages, const char *const *nexts, uint32_t n_pages,
                        uint32_t lo, uint32_t hi, const float *const *probs, size_t ep, size_t d,
                        float *const *part) {
    const size_t step = number_bytes(kind) * depth(kind);
    const uint32_t first = whole ? 0 : lo / depth(kind) * depth(kind);
    const uint32_t end = whole ? PAGE_TOKENS : hi;
    __m512 sums[ROWS_MAX][COLUMNS_MAX], v[COLUMNS_MAX];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < n_columns; c++)
            sums[r][c] = _mm512_loadu_ps(part[r] + d + 16 * c);
    for (uint32_t p = 0; p < n_pages; p++) {
        for (uint32_t t = first; t < end; t += depth(kind)) {
            size_t at = (t / depth(kind) * ep + d) * step;
            for (size_t line = at; nexts && line < at + 16 * n_columns * step; line += LINE)
                attend_fetch_line(nexts[p] + line);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < depth(kind); i++) {
                if (!whole && depth(kind) > 1 && (t + i < lo || t + i >= hi)) continue;
#pragma GCC unroll 8
                for (uint32_t c = 0; c < n_columns; c++)
                    v[c] = column(kind, pages[p] + at + 16 * c * step, i);
                add_products(n_rows, n_columns, probs, p * PAGE_TOKENS + t + i, v, sums);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++)
#pragma GCC unroll 8
        for (uint32_t c = 0; c < n_columns; c++)
            _mm512_storeu_ps(part[r] + d + 16 * c, sums[r][c]);
}

INLINED void pv_rows(enum kv_kind kind, uint32_t n_rows, bool whole, const char *const *pages,
                     const char *const *nexts, uint32_t n_pages, uint32_t lo, uint32_t hi,
                     const float *probs, const uint32_t *rows, size_t ep, float *part) {
    const float *row_probs[ROWS_MAX];
    float *row_part[ROWS_MAX];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < n_rows; r++) {
        row_probs[r] = probs + rows[r] * (size_t)ATTEND_BLOCK;
        row_part[r] = part + rows[r] * ep;
    }
    size_t d = 0;
    const uint32_t together = columns_together(n_rows);
    for (; d + 16 * together <= ep; d += 16 * together)
        pv_columns(kind, n_rows, together, whole, pages, nexts, n_pages, lo, hi, row_probs, ep, d,
                   row_part);
    for (; d < ep; d += 16)
        pv_columns(kind, n_rows, 1, whole, pages, nexts, n_pages, lo, hi, row_probs, ep, d,
                   row_part);
}

#define DEFINE(NAME, KIND, R)                                                                   \
    static void qk_##NAME##_##R(const char *const *pages, uint32_t n_pages, size_t ahead,       \
                                uint32_t e, const float *q, size_t ep, const uint32_t *rows,    \
                                float *scores) {                                                \
        qk_rows(KIND, R, pages, n_pages, ahead, e, q, ep, rows, scores);                        \
    }                                                                                           \
    static void pv_##NAME##_##R(const char *const *pages, const char *const *nexts,             \
                                uint32_t n_pages, uint32_t lo, uint32_t hi, const float *probs, \
                                const uint32_t *rows, size_t ep, float *part) {                 \
        if (hi - lo == PAGE_TOKENS)                                                             \
            pv_rows(KIND, R, true, pages, nexts, n_pages, lo, hi, probs, rows, ep, part);       \
        else                                                                                    \
            pv_rows(KIND, R, false, pages, nexts, n_pages, lo, hi, probs, rows, ep, part);      \
    }
#define DEFINE_KINDS(R) DEFINE(f32, KV_F32, R) DEFINE(bf16, KV_BF16, R) DEFINE(int8, KV_Q8, R)
DEFINE_KINDS(1)
DEFINE_KINDS(2)
DEFINE_KINDS(3)
DEFINE_KINDS(4)
DEFINE_KINDS(5)
DEFINE_KINDS(6)
DEFINE_KINDS(7)
DEFINE_KINDS(8)

static const qk_fn qk[KV_KINDS][ROWS_MAX + 1] = {
    {NULL, qk_f32_1, qk_f32_2, qk_f32_3, qk_f32_4, qk_f32_5, qk_f32_6, qk_f32_7, qk_f32_8},
    {NULL, qk_bf16_1, qk_bf16_2, qk_bf16_3, qk_bf16_4, qk_bf16_5, qk_bf16_6, qk_bf16_7, qk_bf16_8},
    {NULL, qk_int8_1, qk_int8_2, qk_int8_3, qk_int8_4, qk_int8_5, qk_int8_6, qk_int8_7, qk_int8_8},
};
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
 * lanes of attend_avx2.c, where adding 0 changes nothing. whole: lo and hi are multiples of 16. */
INLINED float softmax_of(bool whole, float *s, uint32_t lo, uint32_t hi, float *total) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 most16 = lowest;
    __m256 total8 = _mm256_setzero_ps();
    for (uint32_t i = lo & ~15u; i < hi; i += 16)
        most16 =
            _mm512_max_ps(most16, whole ? _mm512_loadu_ps(s + i)
                                        : _mm512_mask_loadu_ps(lowest, lanes(i, lo, hi), s + i));
    float most = _mm512_reduce_max_ps(most16);
    most16 = _mm512_set1_ps(most);
    for (uint32_t i = lo & ~15u; i < hi; i += 16) {
        __m512 p = avx512_exp(_mm512_sub_ps(_mm512_loadu_ps(s + i), most16));
        if (!whole) p = _mm512_maskz_mov_ps(lanes(i, lo, hi), p);
        total8 = _mm256_add_ps(total8, _mm512_castps512_ps256(p));
        total8 = _mm256_add_ps(total8, _mm512_extractf32x8_ps(p, 1));
        _mm512_storeu_ps(s + i, p);
    }
    *total = avx2_sum(total8);
    return most;
}

static float softmax(float *s, uint32_t lo, uint32_t hi, float *total) {
    if ((lo | hi) % 16 == 0) return softmax_of(true, s, lo, hi, total);
    return softmax_of(false, s, lo, hi, total);
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
