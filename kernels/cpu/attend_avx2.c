/* attend_avx2.c: a tile of query rows of one sequence against one kv head.
 *
 *   o[r] = sum_t softmax_t(q[r] . k[t] / sqrt(D)) v[t]      lo[r] <= t < hi[r]
 *   Online softmax: Milakov & Gimelshein 2018, algorithm 3, over blocks of 128 positions.
 *
 *   t:       | block 0: pages 0 .. 7 | block 1: pages 8 .. 15 |  ...  absolute positions, so that a
 *   rows     [ scores 128 ] -> m, p, l, part = sum p v                block's part is the same in
 *                             merged into (M, L, O) in block order    every tile and chunk
 *
 *   K page   f32 [dim][16 positions]          V page   f32 [position][ep]
 *            bf16 [dim pair][16] dword                 bf16 [position pair][ep] dword
 *
 * Each page is read once for all query rows (rows x heads of the group). Scores are computed for
 * whole pages and those outside a row's span are never looked at; in the sum over V only positions
 * inside the span enter, so a stale page may hold NaN. Sums: q . k one fma chain over dims
 * ascending; part one chain over positions ascending; l in 8 lanes over position mod 8. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/avx2.h"

struct tile_scratch {
    float *q;            /* [n][ep], times 1 / sqrt(D) */
    float *scores;       /* [n][ATTEND_BLOCK], then probabilities */
    float *part;         /* [n][ep] sum p v of this block */
    float *out;          /* [n][ep] O */
    float *most, *total; /* [n] M, L */
    float *block_most, *block_total;
    uint32_t *lo, *hi, *active; /* [n] */
};

static struct tile_scratch cut_scratch(const struct device *dev, struct carve *c) {
    size_t n = (size_t)dev->tile_rows * dev->group, ep = dev->head_pad;
    struct tile_scratch s;
    s.q = carve(c, n * ep, sizeof(float));
    s.scores = carve(c, n * ATTEND_BLOCK, sizeof(float));
    s.part = carve(c, n * ep, sizeof(float));
    s.out = carve(c, n * ep, sizeof(float));
    s.most = carve(c, n, sizeof(float));
    s.total = carve(c, n, sizeof(float));
    s.block_most = carve(c, n, sizeof(float));
    s.block_total = carve(c, n, sizeof(float));
    s.lo = carve(c, n, sizeof *s.lo);
    s.hi = carve(c, n, sizeof *s.hi);
    s.active = carve(c, n, sizeof *s.active);
    return s;
}

size_t avx2_attend_scratch(const struct device *dev) {
    struct carve c = {0};
    cut_scratch(dev, &c);
    return c.used;
}

/* ---- storing K and V -------------------------------------------------------------------------- */

/* Eight floats to bf16, to nearest even, one in each dword; as f32_to_bf16. */
static inline __m256i round_bf16(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(r, quiet, nan), 16);
}

/* n <= 8 numbers as bf16. */
static inline void convert_bf16(const float *x, uint32_t n, uint32_t *out) {
    if (n == 8)
        _mm256_storeu_si256((__m256i *)out, round_bf16(_mm256_loadu_ps(x)));
    else
        for (uint32_t i = 0; i < n; i++)
            out[i] = f32_to_bf16(x[i]);
}

static void store_bf16(uint32_t *kd, uint16_t *vd, uint32_t at, uint32_t e, size_t ep,
                       const float *k, const float *v) {
    uint32_t b[8];
    vd += at / 2 * ep * 2 + at % 2;
    for (uint32_t i = 0; i < e; i += 8) {
        uint32_t n = e - i < 8 ? e - i : 8;
        convert_bf16(k + i, n, b);
        for (uint32_t j = 0; j < n; j += 2)
            kd[(i + j) / 2 * PAGE_TOKENS + at] = b[j] | b[j + 1] << 16;
        convert_bf16(v + i, n, b);
        for (uint32_t j = 0; j < n; j++)
            vd[2 * (i + j)] = (uint16_t)b[j];
    }
}

void avx2_kv_store(const struct device *dev, void *page, uint32_t at, const float *k,
                   const float *v) {
    uint32_t e = dev->shape.head_dim;
    size_t ep = dev->head_pad;
    void *v_page = (char *)page + dev->head_bytes / 2;
    if (dev->limits.kv_dtype == DTYPE_BF16) {
        store_bf16(page, v_page, at, e, ep, k, v);
        return;
    }
    float *kd = page, *vd = v_page;
    for (uint32_t i = 0; i < e; i++)
        kd[i * PAGE_TOKENS + at] = k[i];
    memcpy(vd + at * ep, v, e * sizeof *vd);
}

/* ---- scores of a page: 1 to 6 query rows x 16 positions --------------------------------------- */

#define QK_ROW(i)                         \
    const float *q##i = q + rows[i] * ep; \
    __m256 a##i = _mm256_setzero_ps(), b##i = a##i;
#define QK_MADD(i)                                \
    {                                             \
        __m256 x = _mm256_broadcast_ss(q##i + d); \
        a##i = _mm256_fmadd_ps(k0, x, a##i);      \
        b##i = _mm256_fmadd_ps(k1, x, b##i);      \
    }
#define QK_OUT(i)                                                    \
    _mm256_storeu_ps(scores + rows[i] * (size_t)ATTEND_BLOCK, a##i); \
    _mm256_storeu_ps(scores + rows[i] * (size_t)ATTEND_BLOCK + 8, b##i);

#define DEFINE_QK(R)                                                                 \
    static void qk_f32_##R(const void *page, uint32_t e, const float *q, size_t ep,  \
                           const uint32_t *rows, float *scores) {                    \
        const float *k = page;                                                       \
        AVX2_REPEAT_##R(QK_ROW) for (uint32_t d = 0; d < e; d++, k += PAGE_TOKENS) { \
            __m256 k0 = _mm256_loadu_ps(k), k1 = _mm256_loadu_ps(k + 8);             \
            AVX2_REPEAT_##R(QK_MADD)                                                 \
        }                                                                            \
        AVX2_REPEAT_##R(QK_OUT)                                                      \
    }                                                                                \
    static void qk_bf16_##R(const void *page, uint32_t e, const float *q, size_t ep, \
                            const uint32_t *rows, float *scores) {                   \
        const uint32_t *k = page;                                                    \
        AVX2_REPEAT_##R(QK_ROW) for (uint32_t d = 0; d < e; k += PAGE_TOKENS) {      \
            __m256i z0 = avx2_load(k), z1 = avx2_load(k + 8);                        \
            __m256 k0 = avx2_bf16_low(z0), k1 = avx2_bf16_low(z1);                   \
            AVX2_REPEAT_##R(QK_MADD) d++;                                            \
            k0 = avx2_bf16_high(z0), k1 = avx2_bf16_high(z1);                        \
            AVX2_REPEAT_##R(QK_MADD) d++;                                            \
        }                                                                            \
        AVX2_REPEAT_##R(QK_OUT)                                                      \
    }

DEFINE_QK(1)
DEFINE_QK(2)
DEFINE_QK(3)
DEFINE_QK(4)
DEFINE_QK(5)
DEFINE_QK(6)

typedef void (*qk_fn)(const void *page, uint32_t e, const float *q, size_t ep, const uint32_t *rows,
                      float *scores);
static const qk_fn qk[2][AVX2_TILE + 1] = {
    {NULL, qk_f32_1, qk_f32_2, qk_f32_3, qk_f32_4, qk_f32_5, qk_f32_6},
    {NULL, qk_bf16_1, qk_bf16_2, qk_bf16_3, qk_bf16_4, qk_bf16_5, qk_bf16_6},
};

/* ---- p V of a page: 1 to 6 query rows, positions lo .. hi - 1 of the page ---------------------- */

#define PV_ROW(i)                                               \
    const float *p##i = probs + rows[i] * (size_t)ATTEND_BLOCK; \
    float *o##i = part + rows[i] * ep;
#define PV_LOAD(i) __m256 a##i = _mm256_loadu_ps(o##i + d), b##i = _mm256_loadu_ps(o##i + d + 8);
#define PV_MADD(i)                                \
    {                                             \
        __m256 x = _mm256_broadcast_ss(p##i + t); \
        a##i = _mm256_fmadd_ps(v0, x, a##i);      \
        b##i = _mm256_fmadd_ps(v1, x, b##i);      \
    }
#define PV_OUT(i)                     \
    _mm256_storeu_ps(o##i + d, a##i); \
    _mm256_storeu_ps(o##i + d + 8, b##i);
#define PV_BF16(R, HALF)                                               \
    {                                                                  \
        const uint32_t *at = v + t / 2 * ep + d;                       \
        __m256 v0 = HALF(avx2_load(at)), v1 = HALF(avx2_load(at + 8)); \
        AVX2_REPEAT_##R(PV_MADD) t++;                                  \
    }

#define DEFINE_PV(R)                                                                        \
    static void pv_f32_##R(const void *page, uint32_t lo, uint32_t hi, const float *probs,  \
                           const uint32_t *rows, size_t ep, float *part) {                  \
        const float *v = page;                                                              \
        AVX2_REPEAT_##R(PV_ROW) for (size_t d = 0; d < ep; d += 16) {                       \
            AVX2_REPEAT_##R(PV_LOAD) for (uint32_t t = lo; t < hi; t++) {                   \
                const float *at = v + t * ep + d;                                           \
                __m256 v0 = _mm256_loadu_ps(at), v1 = _mm256_loadu_ps(at + 8);              \
                AVX2_REPEAT_##R(PV_MADD)                                                    \
            }                                                                               \
            AVX2_REPEAT_##R(PV_OUT)                                                         \
        }                                                                                   \
    }                                                                                       \
    static void pv_bf16_##R(const void *page, uint32_t lo, uint32_t hi, const float *probs, \
                            const uint32_t *rows, size_t ep, float *part) {                 \
        const uint32_t *v = page;                                                           \
        AVX2_REPEAT_##R(PV_ROW) for (size_t d = 0; d < ep; d += 16) {                       \
            AVX2_REPEAT_##R(PV_LOAD) uint32_t t = lo;                                       \
            if (t % 2 && t < hi) PV_BF16(R, avx2_bf16_high)                                 \
            while (t + 2 <= hi) {                                                           \
                PV_BF16(R, avx2_bf16_low)                                                   \
                PV_BF16(R, avx2_bf16_high)                                                  \
            }                                                                               \
            if (t < hi) PV_BF16(R, avx2_bf16_low)                                           \
            AVX2_REPEAT_##R(PV_OUT)                                                         \
        }                                                                                   \
    }

DEFINE_PV(1)
DEFINE_PV(2)
DEFINE_PV(3)
DEFINE_PV(4)
DEFINE_PV(5)
DEFINE_PV(6)

typedef void (*pv_fn)(const void *page, uint32_t lo, uint32_t hi, const float *probs,
                      const uint32_t *rows, size_t ep, float *part);
static const pv_fn pv[2][AVX2_TILE + 1] = {
    {NULL, pv_f32_1, pv_f32_2, pv_f32_3, pv_f32_4, pv_f32_5, pv_f32_6},
    {NULL, pv_bf16_1, pv_bf16_2, pv_bf16_3, pv_bf16_4, pv_bf16_5, pv_bf16_6},
};

/* ---- softmax of a block ----------------------------------------------------------------------- */

/* Lanes i .. i + 7 that lie in lo .. hi - 1. */
static inline __m256 lanes(uint32_t i, uint32_t lo, uint32_t hi) {
    __m256i at =
        _mm256_add_epi32(_mm256_set1_epi32((int)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i above = _mm256_cmpgt_epi32(at, _mm256_set1_epi32((int)lo - 1));
    __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), at);
    return _mm256_castsi256_ps(_mm256_and_si256(above, below));
}

/* Scores lo .. hi - 1 of a row into probabilities against their own maximum; *total = their sum.
 * Lanes outside the span are replaced before anything is made of them. */
static float block_softmax(float *s, uint32_t lo, uint32_t hi, float *total) {
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 most8 = lowest, total8 = _mm256_setzero_ps();
    for (uint32_t i = lo & ~7u; i < hi; i += 8)
        most8 = _mm256_max_ps(most8,
                              _mm256_blendv_ps(lowest, _mm256_loadu_ps(s + i), lanes(i, lo, hi)));
    __m128 most4 = _mm_max_ps(_mm256_castps256_ps128(most8), _mm256_extractf128_ps(most8, 1));
    most4 = _mm_max_ps(most4, _mm_movehl_ps(most4, most4));
    float most = _mm_cvtss_f32(_mm_max_ss(most4, _mm_movehdup_ps(most4)));
    most8 = _mm256_set1_ps(most);
    for (uint32_t i = lo & ~7u; i < hi; i += 8) {
        __m256 p = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(s + i), most8));
        p = _mm256_and_ps(p, lanes(i, lo, hi));
        total8 = _mm256_add_ps(total8, p);
        _mm256_storeu_ps(s + i, p);
    }
    *total = avx2_sum(total8);
    return most;
}

/* (M, L, O) of a row becomes that of its span so far and this block. */
static void merge(const struct tile_scratch *s, uint32_t r, size_t ep) {
    float *out = s->out + r * ep;
    const float *part = s->part + r * ep;
    if (s->total[r] == 0) { /* its first block */
        memcpy(out, part, ep * sizeof *out);
        s->most[r] = s->block_most[r];
        s->total[r] = s->block_total[r];
        return;
    }
    float most = s->most[r] > s->block_most[r] ? s->most[r] : s->block_most[r];
    __m256 a = avx2_exp(_mm256_set1_ps(s->most[r] - most));
    __m256 b = avx2_exp(_mm256_set1_ps(s->block_most[r] - most));
    float fa = _mm256_cvtss_f32(a), fb = _mm256_cvtss_f32(b);
    for (size_t d = 0; d < ep; d += 8)
        _mm256_storeu_ps(out + d, _mm256_fmadd_ps(_mm256_loadu_ps(part + d), b,
                                                  _mm256_mul_ps(_mm256_loadu_ps(out + d), a)));
    s->most[r] = most;
    s->total[r] = s->total[r] * fa + s->block_total[r] * fb;
}

/* ---- the tile --------------------------------------------------------------------------------- */

struct tile_walk {
    const struct device *dev;
    uint32_t segment, layer, kv_head;
    uint32_t block; /* its first position */
    uint32_t n;     /* query rows */
    struct tile_scratch s;
};

static uint32_t clip(uint32_t t, uint32_t lo, uint32_t n) {
    return t <= lo ? 0 : t - lo >= n ? n : t - lo;
}

static const char *head_page(const struct tile_walk *w, uint32_t index) {
    return cpu_page(w->dev, w->segment, w->layer, index) + w->kv_head * w->dev->head_bytes;
}

static void block_scores(const struct tile_walk *w, uint32_t n_active, uint32_t first,
                         uint32_t end) {
    const qk_fn *fn = qk[w->dev->limits.kv_dtype == DTYPE_BF16];
    for (uint32_t p = first; p < end; p++) {
        const char *page = head_page(w, p);
        float *scores = w->s.scores + (p * PAGE_TOKENS - w->block);
        for (uint32_t i = 0, n; i < n_active; i += n) {
            n = avx2_tile_rows(n_active - i);
            fn[n](page, w->dev->shape.head_dim, w->s.q, w->dev->head_pad, w->s.active + i, scores);
        }
    }
}

/* Rows that see the same positions of a page go through it together. */
static void block_values(const struct tile_walk *w, uint32_t n_active, uint32_t first,
                         uint32_t end) {
    const pv_fn *fn = pv[w->dev->limits.kv_dtype == DTYPE_BF16];
    const struct tile_scratch *s = &w->s;
    for (uint32_t p = first; p < end; p++) {
        uint32_t t0 = p * PAGE_TOKENS;
        const char *page = head_page(w, p) + w->dev->head_bytes / 2;
        for (uint32_t i = 0, n; i < n_active; i += n) {
            uint32_t lo = clip(s->lo[s->active[i]], t0, PAGE_TOKENS);
            uint32_t hi = clip(s->hi[s->active[i]], t0, PAGE_TOKENS);
            uint32_t same = 1;
            while (i + same < n_active && clip(s->lo[s->active[i + same]], t0, PAGE_TOKENS) == lo &&
                   clip(s->hi[s->active[i + same]], t0, PAGE_TOKENS) == hi)
                same++;
            n = avx2_tile_rows(same);
            if (lo < hi)
                fn[n](page, lo, hi, s->scores + (t0 - w->block), s->active + i, w->dev->head_pad,
                      s->part);
        }
    }
}

/* Returns pages read. */
static uint32_t attend_block(struct tile_walk *w) {
    const struct tile_scratch *s = &w->s;
    uint32_t n_active = 0, least = UINT32_MAX, most = 0;
    size_t ep = w->dev->head_pad;
    for (uint32_t r = 0; r < w->n; r++) {
        uint32_t lo = clip(s->lo[r], w->block, ATTEND_BLOCK);
        uint32_t hi = clip(s->hi[r], w->block, ATTEND_BLOCK);
        if (lo >= hi) continue;
        s->active[n_active++] = r;
        if (lo < least) least = lo;
        if (hi > most) most = hi;
        memset(s->part + r * ep, 0, ep * sizeof *s->part);
    }
    if (n_active == 0) return 0;
    uint32_t first = (w->block + least) / PAGE_TOKENS;
    uint32_t end = (uint32_t)div_ceil(w->block + most, PAGE_TOKENS);
    block_scores(w, n_active, first, end);
    for (uint32_t i = 0; i < n_active; i++) {
        uint32_t r = s->active[i];
        s->block_most[r] = block_softmax(
            s->scores + r * (size_t)ATTEND_BLOCK, clip(s->lo[r], w->block, ATTEND_BLOCK),
            clip(s->hi[r], w->block, ATTEND_BLOCK), &s->block_total[r]);
    }
    block_values(w, n_active, first, end);
    for (uint32_t i = 0; i < n_active; i++)
        merge(s, s->active[i], ep);
    return end - first;
}

static void scale_copy(float *to, const float *from, uint32_t n, float scale) {
    for (uint32_t i = 0; i < n; i++)
        to[i] = from[i] * scale;
}

void avx2_attend_tile(struct device *dev, uint32_t layer, uint32_t tile, uint32_t kv_head,
                      void *scratch) {
    const struct attend_tile *t = &dev->tiles[tile];
    struct carve c = {.base = scratch};
    struct tile_walk w = {.dev = dev,
                          .segment = t->segment,
                          .layer = layer,
                          .kv_head = kv_head,
                          .s = cut_scratch(dev, &c)};
    const struct tile_scratch *s = &w.s;
    uint32_t e = dev->shape.head_dim, least = UINT32_MAX, most = 0;
    size_t ep = dev->head_pad, head = (size_t)kv_head * dev->group * e;
    float scale = (float)(1 / sqrt((double)e));
    for (uint32_t i = 0; i < t->n_rows; i++) {
        uint32_t row = dev->order[t->first + i];
        if (dev->row_lo[row] < least) least = dev->row_lo[row];
        if (dev->row_hi[row] > most) most = dev->row_hi[row];
        for (uint32_t h = 0; h < dev->group; h++, w.n++) {
            scale_copy(s->q + w.n * ep, dev->q + row * dev->ld_q + head + h * e, e, scale);
            s->lo[w.n] = dev->row_lo[row];
            s->hi[w.n] = dev->row_hi[row];
            s->total[w.n] = 0;
        }
    }
    uint64_t n_pages = 0;
    for (w.block = least / ATTEND_BLOCK * ATTEND_BLOCK; w.block < most; w.block += ATTEND_BLOCK)
        n_pages += attend_block(&w);
    dev->kv_pages_read += n_pages;
    for (uint32_t n = 0; n < w.n; n++) {
        uint32_t row = dev->order[t->first + n / dev->group];
        float *o = dev->o + row * dev->ld_q + head + n % dev->group * e;
        scale_copy(o, s->out + n * ep, e, 1.0f / s->total[n]);
    }
}
