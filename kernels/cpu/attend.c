/* attend.c: a tile of query rows of one sequence against one kv head, for the vector tables.
 *
 *   o[r] = sum_t softmax_t(q[r] . k[t] / sqrt(D)) v[t]      lo[r] <= t < hi[r]
 *   Online softmax: Milakov & Gimelshein 2018, algorithm 3, over blocks of 128 positions.
 *
 *   t:       | block 0: pages 0 .. 7 | block 1: pages 8 .. 15 |  ...  absolute positions, so that a
 *   rows     [ scores 128 ] -> m, p, l, part = sum p v                block's part is the same in
 *                             merged into (M, L, O) in block order    every tile and chunk
 *
 * Each page is read once for all query rows (rows x heads of the group). Scores are computed for
 * whole pages and those outside a row's span are never looked at; in the sum over V only positions
 * inside the span enter, so a stale page may hold NaN. What is done to a page is the table's:
 * struct attend_ops.
 *
 * 8-bit KV is d[t] times integers, and the d stay out of the long sums:
 *
 *   q . k[t] = (q . integers of k[t]) d_k[t]          sum p v = sum (p[t] d_v[t]) integers of v[t]
 *
 * Rows that are more than one call takes have the integers of a page widened for all of them; that
 * is exact, so the bits are those of few rows. */
#include "kernels/cpu/attend.h"

#include <math.h>
#include <string.h>

struct tile_scratch {
    float *q;            /* [n][ep], times 1 / sqrt(D) */
    float *scores;       /* [n][ATTEND_BLOCK], then probabilities */
    float *part;         /* [n][ep] sum p v of this block */
    float *wide;         /* [PAGE_TOKENS][ep] integers of 8-bit K or V */
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
    s.wide = carve(c, PAGE_TOKENS * ep, sizeof(float));
    s.most = carve(c, n, sizeof(float));
    s.total = carve(c, n, sizeof(float));
    s.block_most = carve(c, n, sizeof(float));
    s.block_total = carve(c, n, sizeof(float));
    s.lo = carve(c, n, sizeof *s.lo);
    s.hi = carve(c, n, sizeof *s.hi);
    s.active = carve(c, n, sizeof *s.active);
    return s;
}

size_t attend_scratch(const struct device *dev) {
    struct carve c = {0};
    cut_scratch(dev, &c);
    return c.used;
}

/* ---- the tile --------------------------------------------------------------------------------- */

struct tile_walk {
    const struct attend_ops *ops;
    const struct device *dev;
    enum kv_kind kind;
    uint32_t segment, layer, kv_head;
    uint32_t block; /* its first position */
    uint32_t n;     /* query rows */
    struct tile_scratch s;
};

static uint32_t clip(uint32_t t, uint32_t lo, uint32_t n) {
    return t <= lo ? 0 : t - lo >= n ? n : t - lo;
}

static char *head_page(const struct tile_walk *w, uint32_t index) {
    return cpu_page(w->dev, w->segment, w->layer, index) + w->kv_head * w->dev->head_bytes;
}

/* K or V of a page as n rows read it, which may change how it is kept. */
static const void *readable(const struct tile_walk *w, const char *page, uint32_t n,
                            enum kv_kind *kind) {
    *kind = w->kind;
    if (w->kind != KV_Q8 || n <= w->ops->rows_max) return page;
    *kind = KV_F32;
    w->ops->widen((const int8_t *)page, PAGE_TOKENS * w->dev->head_pad, w->s.wide);
    return w->s.wide;
}

static void block_scores(const struct tile_walk *w, uint32_t n_active, uint32_t first,
                         uint32_t end) {
    for (uint32_t p = first; p < end; p++) {
        enum kv_kind kind;
        char *head = head_page(w, p);
        const void *page = readable(w, head, n_active, &kind);
        float *scores = w->s.scores + (p * PAGE_TOKENS - w->block);
        for (uint32_t i = 0, n; i < n_active; i += n) {
            n = even_rows(n_active - i, w->ops->rows_max);
            w->ops->qk[kind][n](page, w->dev->shape.head_dim, w->s.q, w->dev->head_pad,
                                w->s.active + i, scores);
        }
        if (w->kind == KV_Q8)
            w->ops->scale(cpu_kv_scales(w->dev, head, false), w->s.active, n_active, scores);
    }
}

/* Rows that see the same positions of a page go through it together. */
static void block_values(const struct tile_walk *w, uint32_t n_active, uint32_t first,
                         uint32_t end) {
    const struct tile_scratch *s = &w->s;
    for (uint32_t p = first; p < end; p++) {
        enum kv_kind kind;
        uint32_t t0 = p * PAGE_TOKENS;
        char *head = head_page(w, p);
        const void *page = readable(w, head + w->dev->value_bytes, n_active, &kind);
        float *probs = s->scores + (t0 - w->block);
        if (w->kind == KV_Q8)
            w->ops->scale(cpu_kv_scales(w->dev, head, true), s->active, n_active, probs);
        for (uint32_t i = 0, n; i < n_active; i += n) {
            uint32_t lo = clip(s->lo[s->active[i]], t0, PAGE_TOKENS);
            uint32_t hi = clip(s->hi[s->active[i]], t0, PAGE_TOKENS);
            uint32_t same = 1;
            while (i + same < n_active && clip(s->lo[s->active[i + same]], t0, PAGE_TOKENS) == lo &&
                   clip(s->hi[s->active[i + same]], t0, PAGE_TOKENS) == hi)
                same++;
            n = even_rows(same, w->ops->rows_max);
            if (lo < hi)
                w->ops->pv[kind][n](page, lo, hi, probs, s->active + i, w->dev->head_pad, s->part);
        }
    }
}

/* (M, L, O) of a row becomes that of its span so far and this block. */
static void merge(const struct tile_walk *w, uint32_t r, size_t ep) {
    const struct tile_scratch *s = &w->s;
    if (s->total[r] == 0) { /* its first block */
        memcpy(s->out + r * ep, s->part + r * ep, ep * sizeof *s->out);
        s->most[r] = s->block_most[r];
        s->total[r] = s->block_total[r];
        return;
    }
    w->ops->merge(s->out + r * ep, &s->most[r], &s->total[r], s->part + r * ep, s->block_most[r],
                  s->block_total[r], ep);
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
        s->block_most[r] = w->ops->softmax(
            s->scores + r * (size_t)ATTEND_BLOCK, clip(s->lo[r], w->block, ATTEND_BLOCK),
            clip(s->hi[r], w->block, ATTEND_BLOCK), &s->block_total[r]);
    }
    block_values(w, n_active, first, end);
    for (uint32_t i = 0; i < n_active; i++)
        merge(w, s->active[i], ep);
    return end - first;
}

static void scale_copy(float *to, const float *from, uint32_t n, float scale) {
    for (uint32_t i = 0; i < n; i++)
        to[i] = from[i] * scale;
}

void attend_tile(const struct attend_ops *ops, struct device *dev, uint32_t layer, uint32_t tile,
                 uint32_t kv_head, void *scratch) {
    const struct attend_tile *t = &dev->tiles[tile];
    struct carve c = {.base = scratch};
    struct tile_walk w = {.ops = ops,
                          .dev = dev,
                          .kind = dev->limits.kv_dtype == DTYPE_F32    ? KV_F32
                                  : dev->limits.kv_dtype == DTYPE_BF16 ? KV_BF16
                                                                       : KV_Q8,
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
