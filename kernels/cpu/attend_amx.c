/* attend_amx.c: a block of 128 positions on the tile unit: query rows and probabilities in bf16, sums in
 * float32. For KV in bf16 and activations below float32; the walk and the merging are attend.c's, the
 * layout of a page attend_avx2.c's, which is that of tiles:
 *
 *   K page   [dim pair][16 positions] dword     S [16 rows][16 positions] += Q [16][32 dims] K
 *   V page   [position pair][dim] dword         O [16 rows][16 dims] += P [16][16 positions] V
 *
 *   rows     32 at a time (the last may be numbers that nobody asked for)
 *   S        of all pages into the first-level cache; p = 2^((s - m) log2 e), 0 outside a row's
 *            span, in bf16 where s was; l sums what p was before it was rounded
 *   O        one chain over pages ascending, so that pages that a row does not see add zeros
 *
 * A page may hold NaN or infinity where a row does not look: behind the last position that any row sees
 * (stale), or where another row looks (its sequence's own fault), and 0 times that is not 0. So the
 * tile's last V page is copied with zeros behind that position, and where rows see different
 * positions that are not all finite, each goes by itself over copies with zeros around its span. The
 * bits are the same, since what it does not see adds zeros either way. The products take 1.5 times as long as dims alone would
 * ask for (16 positions fill half of a tile's depth), the softmax about as long as they. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attend.h"

enum { AHEAD = 4, /* pages */ TILE = 16, SCORE_BYTES = ATTEND_BLOCK * 4 };

/* Queries [n][ep] f32 become bf16, each in the first half of its row. */
void amx_attend_queries(const struct tile_walk *w) {
    size_t ep = w->dev->head_pad;
    for (uint32_t r = 0; r < w->n; r++) {
        float *q = w->s.q + r * ep;
        for (size_t d = 0; d < ep; d += 16)
            _mm256_storeu_si256((__m256i *)(void *)((char *)q + 2 * d),
                                amx_narrow_16(_mm512_loadu_ps(q + d)));
    }
}

/* ---- scores ------------------------------------------------------------------------------------ */

/* Dims that fill tiles A and B, of two pages; two: also the 16 rows behind. */
#define SCORE_DIMS(A, B)                             \
    TILE_LOAD(A, q, q_stride);                       \
    TILE_LOAD(B, k0, 64);                            \
    TILE_BF16(0, A, B);                              \
    if (two) {                                       \
        TILE_LOAD(A, q + TILE * q_stride, q_stride); \
        TILE_BF16(2, A, B);                          \
        TILE_LOAD(B, k1, 64);                        \
        TILE_BF16(3, A, B);                          \
        TILE_LOAD(A, q, q_stride);                   \
    } else {                                         \
        TILE_LOAD(B, k1, 64);                        \
    }                                                \
    TILE_BF16(1, A, B);

static void score_pages(const char *q, size_t q_stride, size_t ep, const char *k0, const char *k1,
                        bool two, float *scores) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (; ep >= 32; ep -= 32, q += 64, k0 += 1024, k1 += 1024) {
        SCORE_DIMS(4, 6)
    }
    if (ep > 0) { /* 16 are left */
        SCORE_DIMS(5, 7)
    }
    TILE_STORE(0, scores, SCORE_BYTES);
    TILE_STORE(1, scores + PAGE_TOKENS, SCORE_BYTES);
    if (!two) return;
    TILE_STORE(2, scores + TILE * ATTEND_BLOCK, SCORE_BYTES);
    TILE_STORE(3, scores + TILE * ATTEND_BLOCK + PAGE_TOKENS, SCORE_BYTES);
}

static void fetch(const struct tile_walk *w, const char *k_or_v) {
    for (size_t i = 0; i < w->dev->value_bytes; i += 64)
        attend_fetch_line(k_or_v + i);
}

/* An odd page is taken twice: scores have room for a whole block. */
static void block_scores(const struct tile_walk *w, uint32_t first, uint32_t end, uint32_t row,
                         bool two) {
    size_t ep = w->dev->head_pad;
    const char *q = (const char *)(w->s.q + row * ep);
    uint32_t at_page = w->block / PAGE_TOKENS;
    for (uint32_t p = first & ~1u; p < end; p += 2) {
        const char *k1 = attend_page(w, p + 1 < end ? p + 1 : end - 1);
        const char *k0 = p >= first ? attend_page(w, p) : k1;
        if (w->n <= ATTEND_FEW_ROWS) {
            fetch(w, k0 + w->dev->value_bytes);
            fetch(w, k1 + w->dev->value_bytes);
            for (uint32_t later = p + AHEAD; later < p + AHEAD + 2 && later < w->n_pages; later++)
                fetch(w, attend_page(w, later));
        }
        float *scores = w->s.scores + row * (size_t)ATTEND_BLOCK + (p - at_page) * PAGE_TOKENS;
        score_pages(q, ep * sizeof(float), ep, k0, k1, two, scores);
    }
}

/* ---- softmax ----------------------------------------------------------------------------------- */

/* 2^x for x <= 0, within 3e-6 of itself: below what bf16 keeps. */
static inline __m512 exp2_of(__m512 x) {
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(0.00957006961107254f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0559178851544857f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2402474582195282f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931217908859253f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.9999992847442627f));
    return _mm512_scalef_ps(p, n);
}

/* Lanes i .. i + 15 that lie in lo .. hi - 1. */
static inline __mmask16 lanes(uint32_t i, uint32_t lo, uint32_t hi) {
    uint32_t from = lo <= i ? 0 : lo - i < 16 ? lo - i : 16;
    uint32_t to = hi <= i ? 0 : hi - i < 16 ? hi - i : 16;
    return from < to ? (__mmask16)((1u << to) - (1u << from)) : 0;
}

static inline __m512 probabilities(const float *s, uint32_t i, uint32_t lo, uint32_t hi,
                                   __m512 most, __m512 *total) {
    const __m512 log2_e = _mm512_set1_ps(1.44269504f);
    __m512 p = exp2_of(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(s + i), most), log2_e));
    p = _mm512_maskz_mov_ps(lanes(i, lo, hi), p);
    *total = _mm512_add_ps(*total, p);
    return p;
}

/* Scores of a row into bf16 probabilities at their place's front: from .. to - 1, multiples of 32, of
 * which lo .. hi - 1 are seen. Sums go by position mod 16. */
static void softmax(float *s, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi, float *most,
                    float *total) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 most16 = lowest, total16 = _mm512_setzero_ps();
    for (uint32_t i = from; i < to; i += 16)
        most16 = _mm512_max_ps(most16, _mm512_mask_loadu_ps(lowest, lanes(i, lo, hi), s + i));
    *most = _mm512_reduce_max_ps(most16);
    most16 = _mm512_set1_ps(*most);
    for (uint32_t i = from; i < to; i += 32) {
        __m512 p0 = probabilities(s, i, lo, hi, most16, &total16);
        __m512 p1 = probabilities(s, i + 16, lo, hi, most16, &total16);
        _mm512_storeu_si512((uint16_t *)(void *)s + i, amx_narrow_32(p1, p0));
    }
    *total = _mm512_reduce_add_ps(total16);
}

static uint32_t clip(uint32_t t, uint32_t lo) {
    return t <= lo ? 0 : t - lo >= ATTEND_BLOCK ? ATTEND_BLOCK : t - lo;
}

/* ---- p V --------------------------------------------------------------------------------------- */

/* V pages of the block; the last one without what lies behind the last position seen. */
static void value_pages(const struct tile_walk *w, uint32_t first, uint32_t end,
                        const char *pages[ATTEND_BLOCK / PAGE_TOKENS]) {
    uint32_t most = 0;
    size_t ep = w->dev->head_pad;
    for (uint32_t r = 0; r < w->n; r++)
        if (w->s.hi[r] > most) most = w->s.hi[r];
    for (uint32_t p = first; p < end; p++)
        pages[p - first] = attend_page(w, p) + w->dev->value_bytes;
    if (most >= end * PAGE_TOKENS) return;
    uint32_t *copy = (uint32_t *)(void *)w->s.wide, left = most % PAGE_TOKENS;
    memset(copy, 0, w->dev->value_bytes);
    memcpy(copy, pages[end - 1 - first], left / 2 * ep * 4);
    if (left % 2) { /* of the last pair the even position alone */
        memcpy(copy + left / 2 * ep, pages[end - 1 - first] + left / 2 * ep * 4, ep * 4);
        for (size_t d = 0; d < ep; d++)
            copy[left / 2 * ep + d] &= 0xffff;
    }
    pages[end - 1 - first] = (const char *)copy;
}

/* Dims d .. d + 15 and, wide, 16 more of 16 rows; two: of 32. */
static void add_values(const char *const *pages, uint32_t n, const char *probs, size_t ep, size_t d,
                       bool two, float *out) {
    size_t stride = ep * sizeof *out;
    bool wide = d + TILE < ep;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (uint32_t i = 0; i < n; i++, probs += 2 * PAGE_TOKENS) {
        const char *v = pages[i] + 4 * d;
        TILE_LOAD(5, probs, SCORE_BYTES);
        TILE_LOAD(7, v, stride);
        TILE_BF16(0, 5, 7);
        if (two) {
            TILE_LOAD(5, probs + TILE * SCORE_BYTES, SCORE_BYTES);
            TILE_BF16(2, 5, 7);
        }
        if (!wide) continue;
        TILE_LOAD(7, v + 64, stride);
        if (two) {
            TILE_BF16(3, 5, 7);
            TILE_LOAD(5, probs, SCORE_BYTES);
        }
        TILE_BF16(1, 5, 7);
    }
    TILE_STORE(0, out + d, stride);
    if (wide) TILE_STORE(1, out + d + TILE, stride);
    if (!two) return;
    TILE_STORE(2, out + TILE * ep + d, stride);
    if (wide) TILE_STORE(3, out + TILE * ep + d + TILE, stride);
}

/* ---- rows that see different positions ---------------------------------------------------------- */

struct span {
    uint32_t lo, hi; /* in the block */
};

static struct span span_of(const struct tile_walk *w, uint32_t row) {
    return (struct span){clip(w->s.lo[row], w->block), clip(w->s.hi[row], w->block)};
}

static bool is_finite(const char *page, size_t bytes) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 broken = 0;
    for (size_t i = 0; i < bytes; i += 64) {
        __m512i z = _mm512_and_si512(_mm512_loadu_si512(page + i), exponent);
        broken |= _mm512_cmpeq_epi16_mask(z, exponent);
    }
    return broken == 0;
}

/* Are all V finite in pages of which some active row sees a part that another does not? */
static bool seen_alike_or_finite(const struct tile_walk *w, uint32_t first, uint32_t end,
                                 const char *const *pages) {
    struct span all = {ATTEND_BLOCK, 0}, each = {0, ATTEND_BLOCK};
    for (uint32_t i = 0; i < w->n_active; i++) {
        struct span s = span_of(w, w->s.active[i]);
        if (s.lo < all.lo) all.lo = s.lo;
        if (s.hi > all.hi) all.hi = s.hi;
        if (s.lo > each.lo) each.lo = s.lo;
        if (s.hi < each.hi) each.hi = s.hi;
    }
    for (uint32_t p = first; p < end; p++) {
        uint32_t t0 = p * PAGE_TOKENS - w->block, t1 = t0 + PAGE_TOKENS;
        bool front = all.lo < each.lo && t0 < each.lo && t1 > all.lo;
        bool back = each.hi < all.hi && t0 < all.hi && t1 > each.hi;
        if ((front || back) && !is_finite(pages[p - first], w->dev->value_bytes)) return false;
    }
    return true;
}

/* Pages with zeros outside of s: its own, or copies where it sees a part or nothing of one. */
static void mask_pages(const struct tile_walk *w, uint32_t first, uint32_t end, struct span s,
                       const char *const *pages, const char **masked) {
    size_t ep = w->dev->head_pad;
    for (uint32_t p = first; p < end; p++) {
        uint32_t t0 = p * PAGE_TOKENS - w->block, i = p - first;
        masked[i] = pages[i];
        if (s.lo <= t0 && s.hi >= t0 + PAGE_TOKENS) continue;
        uint16_t *copy = (uint16_t *)(void *)(w->s.wide + (i + 1) * PAGE_TOKENS * ep);
        memcpy(copy, pages[i], w->dev->value_bytes);
        for (uint32_t t = 0; t < PAGE_TOKENS; t++)
            if (t0 + t < s.lo || t0 + t >= s.hi)
                for (size_t d = 0; d < ep; d++)
                    copy[(t / 2 * ep + d) * 2 + t % 2] = 0;
        masked[i] = (const char *)copy;
    }
}

/* Rows row .. of all dims. */
static void add_all_values(const struct tile_walk *w, const char *const *pages, uint32_t first,
                           uint32_t end, uint32_t row, float *out) {
    size_t ep = w->dev->head_pad;
    const char *probs = (const char *)(w->s.scores + row * (size_t)ATTEND_BLOCK) +
                        2 * (first * PAGE_TOKENS - w->block);
    for (size_t d = 0; d < ep; d += 2 * TILE)
        add_values(pages, end - first, probs, ep, d, w->n - row > TILE, out);
}

static void add_values_by_row(const struct tile_walk *w, uint32_t first, uint32_t end,
                              const char *const *pages) {
    const char *masked[ATTEND_BLOCK / PAGE_TOKENS];
    size_t ep = w->dev->head_pad;
    for (uint32_t i = 0; i < w->n_active; i++) {
        uint32_t row = w->s.active[i], from = row / (2 * TILE) * (2 * TILE);
        mask_pages(w, first, end, span_of(w, row), pages, masked);
        add_all_values(w, masked, first, end, from, w->s.apart);
        memcpy(w->s.part + row * ep, w->s.apart + (row - from) * ep, ep * sizeof *w->s.part);
    }
}

void amx_attend_block(const struct tile_walk *w, uint32_t first, uint32_t end) {
    const struct tile_scratch *s = &w->s;
    const char *pages[ATTEND_BLOCK / PAGE_TOKENS];
    uint32_t from = (first * PAGE_TOKENS - w->block) & ~31u;
    uint32_t to = (uint32_t)align_up(end * PAGE_TOKENS - w->block, 32);
    amx_configure(AMX_ATTEND, w->n < TILE ? w->n : TILE, TILE);
    for (uint32_t row = 0; row < w->n; row += 2 * TILE)
        block_scores(w, first, end, row, w->n - row > TILE);
    for (uint32_t i = 0; i < w->n_active; i++) {
        uint32_t r = s->active[i];
        softmax(s->scores + r * (size_t)ATTEND_BLOCK, from, to, clip(s->lo[r], w->block),
                clip(s->hi[r], w->block), &s->block_most[r], &s->block_total[r]);
    }
    value_pages(w, first, end, pages);
    if (!seen_alike_or_finite(w, first, end, pages)) {
        add_values_by_row(w, first, end, pages);
        return;
    }
    for (uint32_t row = 0; row < w->n; row += 2 * TILE)
        add_all_values(w, pages, first, end, row, s->part + row * w->dev->head_pad);
}
