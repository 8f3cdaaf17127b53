/* attend.c: a tile of query rows of one sequence against one kv head, for the vector tables.
 *
 *   o[r] = sum_t softmax_t(q[r] . k[t] / sqrt(D)) v[t]      lo[r] <= t < hi[r]
 *   Online softmax: Milakov & Gimelshein 2018, algorithm 3, over blocks of 128 positions.
 *
 *   t:       | block 0: pages 0 .. 7 | block 1: pages 8 .. 15 |  ...  absolute positions, so that a
 *   rows     [ scores 128 ] -> m, p, l, part = sum p v                block's part is the same in
 *                             merged into (M, L, O) in block order    every tile and chunk
 *
 * A tile whose blocks are split among threads leaves (m, l, part) of each in dev->parts; whichever
 * part is done last merges them all, in block order and by the same arithmetic, so that the bits
 * are those of one thread that walks the whole.
 *
 * Each page is read once for all query rows (rows x heads of the group). Scores are computed for
 * whole pages and those outside a row's span are never looked at; in the sum over V only positions
 * inside the span enter, so a stale page may hold NaN (attend_amx.c has its own way). What is done to a page is the table's:
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
#include <stdatomic.h>
#include <string.h>

static struct tile_scratch cut_scratch(const struct device *dev, struct carve *c) {
    size_t n = align_up((size_t)dev->tile_rows * dev->group, 16), ep = dev->head_pad;
    struct tile_scratch s;
    s.q = carve(c, n * ep, sizeof(float));
    s.scores = carve(c, n * ATTEND_BLOCK, sizeof(float));
    s.part = carve(c, n * ep, sizeof(float));
    s.out = carve(c, n * ep, sizeof(float));
    s.wide = carve(c, (1 + ATTEND_BLOCK / PAGE_TOKENS) * PAGE_TOKENS * ep, sizeof(float));
    s.apart = carve(c, 32 * ep, sizeof(float));
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

/* ---- a block ---------------------------------------------------------------------------------- */

static uint32_t clip(uint32_t t, uint32_t lo, uint32_t n) {
    return t <= lo ? 0 : t - lo >= n ? n : t - lo;
}

/* K or V of a page as n rows read it, which may change how it is kept; i: which of those that are read
 * at once. */
static const char *readable(const struct tile_walk *w, const char *page, uint32_t n, uint32_t i,
                            enum kv_kind *kind) {
    size_t numbers = PAGE_TOKENS * w->dev->head_pad;
    float *wide = w->s.wide + i * numbers;
    *kind = w->kind;
    if (w->kind != KV_Q8 || n <= w->ops->rows_max) return page;
    *kind = KV_F32;
    w->ops->widen((const int8_t *)page, numbers, wide);
    return (const char *)wide;
}

/* Few rows go against all pages of the block at once; many against two, which stay in the first-level
 * cache. */
static void block_scores(const struct tile_walk *w, uint32_t first, uint32_t end) {
    uint32_t n_active = w->n_active, most = n_active <= w->ops->rows_max ? BLOCK_PAGES : 2;
    size_t ahead = w->n <= ATTEND_FEW_ROWS ? w->dev->value_bytes : 0;
    for (uint32_t p = first, n_pages; p < end; p += n_pages) {
        const char *pages[BLOCK_PAGES];
        enum kv_kind kind;
        float *scores = w->s.scores + (p * PAGE_TOKENS - w->block);
        n_pages = end - p < most ? end - p : most;
        for (uint32_t i = 0; i < n_pages; i++)
            pages[i] = readable(w, attend_page(w, p + i), n_active, i, &kind);
        for (uint32_t i = 0, n; i < n_active; i += n) {
            n = even_part(n_active - i, w->ops->rows_max);
            w->ops->qk[kind][n](pages, n_pages, i == 0 ? ahead : 0, w->dev->shape.head_dim, w->s.q,
                                w->dev->head_pad, w->s.active + i, scores);
        }
        for (uint32_t i = 0; w->kind == KV_Q8 && i < n_pages; i++)
            w->ops->scale(cpu_kv_scales(w->dev, attend_page(w, p + i), false), w->s.active,
                          n_active, scores + (size_t)i * PAGE_TOKENS);
    }
}

/* Rows that see the same positions go through them together; of more pages than one, all see all. */
static void pages_values(const struct tile_walk *w, uint32_t first, uint32_t n_pages) {
    const struct tile_scratch *s = &w->s;
    uint32_t n_active = w->n_active, t0 = first * PAGE_TOKENS;
    const char *pages[BLOCK_PAGES], *nexts[BLOCK_PAGES];
    bool fetch = w->n <= ATTEND_FEW_ROWS;
    enum kv_kind kind;
    float *probs = s->scores + (t0 - w->block);
    for (uint32_t p = 0; p < n_pages; p++) {
        char *head = attend_page(w, first + p);
        uint32_t later = first + p + BLOCK_PAGES;
        pages[p] = readable(w, head + w->dev->value_bytes, n_active, p, &kind);
        if (fetch) nexts[p] = later < w->n_pages ? attend_page(w, later) : pages[p];
        if (w->kind == KV_Q8)
            w->ops->scale(cpu_kv_scales(w->dev, head, true), s->active, n_active,
                          probs + (size_t)p * PAGE_TOKENS);
    }
    for (uint32_t i = 0, n; i < n_active; i += n) {
        uint32_t lo = clip(s->lo[s->active[i]], t0, PAGE_TOKENS);
        uint32_t hi = clip(s->hi[s->active[i]], t0, PAGE_TOKENS);
        uint32_t same = n_pages > 1 ? n_active - i : 1;
        while (i + same < n_active && clip(s->lo[s->active[i + same]], t0, PAGE_TOKENS) == lo &&
               clip(s->hi[s->active[i + same]], t0, PAGE_TOKENS) == hi)
            same++;
        n = even_part(same, w->ops->rows_max);
        if (lo < hi)
            w->ops->pv[kind][n](pages, fetch && i == 0 ? nexts : NULL, n_pages, lo, hi, probs,
                                s->active + i, w->dev->head_pad, s->part);
    }
}

/* Pages that all active rows see whole, together; the others one by one. */
static void block_values(const struct tile_walk *w, uint32_t first, uint32_t end) {
    uint32_t lo = 0, hi = ATTEND_BLOCK;
    for (uint32_t i = 0; i < w->n_active; i++) {
        uint32_t r = w->s.active[i];
        uint32_t row_lo = clip(w->s.lo[r], w->block, ATTEND_BLOCK);
        uint32_t row_hi = clip(w->s.hi[r], w->block, ATTEND_BLOCK);
        if (row_lo > lo) lo = row_lo;
        if (row_hi < hi) hi = row_hi;
    }
    uint32_t whole = (w->block + lo + PAGE_TOKENS - 1) / PAGE_TOKENS;
    uint32_t whole_end = (w->block + hi) / PAGE_TOKENS;
    for (uint32_t p = first, n; p < end; p += n) {
        n = p >= whole && p < whole_end ? whole_end - p : 1;
        pages_values(w, p, n);
    }
}

/* Scores, m, p, l and part of the active rows in the block, pages first .. end - 1 of it. */
static void attend_block(const struct tile_walk *w, uint32_t first, uint32_t end) {
    const struct tile_scratch *s = &w->s;
    size_t ep = w->dev->head_pad;
    block_scores(w, first, end);
    for (uint32_t i = 0; i < w->n_active; i++) {
        uint32_t r = s->active[i];
        memset(s->part + r * ep, 0, ep * sizeof *s->part);
        s->block_most[r] = w->ops->softmax(
            s->scores + r * (size_t)ATTEND_BLOCK, clip(s->lo[r], w->block, ATTEND_BLOCK),
            clip(s->hi[r], w->block, ATTEND_BLOCK), &s->block_total[r]);
    }
    block_values(w, first, end);
}

/* The rows that see any of the block become active; *first .. *end - 1: the pages that they see. */
static void find_active(struct tile_walk *w, uint32_t *first, uint32_t *end) {
    const struct tile_scratch *s = &w->s;
    uint32_t least = ATTEND_BLOCK, most = 0;
    w->n_active = 0;
    for (uint32_t r = 0; r < w->n; r++) {
        uint32_t lo = clip(s->lo[r], w->block, ATTEND_BLOCK);
        uint32_t hi = clip(s->hi[r], w->block, ATTEND_BLOCK);
        if (lo >= hi) continue;
        s->active[w->n_active++] = r;
        if (lo < least) least = lo;
        if (hi > most) most = hi;
    }
    *first = (w->block + least) / PAGE_TOKENS;
    *end = (uint32_t)div_ceil(w->block + most, PAGE_TOKENS);
}

/* Returns pages read. */
static uint32_t enter_block(struct tile_walk *w, uint32_t block) {
    uint32_t first, end;
    w->block = block * ATTEND_BLOCK;
    find_active(w, &first, &end);
    if (w->n_active == 0) return 0;
    (w->ops->block ? w->ops->block : attend_block)(w, first, end);
    return end - first;
}

/* (M, L, O) of the active rows becomes that of their spans so far and this block. */
static void merge_block(const struct tile_walk *w) {
    const struct tile_scratch *s = &w->s;
    size_t ep = w->dev->head_pad;
    for (uint32_t i = 0; i < w->n_active; i++) {
        uint32_t r = s->active[i];
        if (s->total[r] == 0) { /* its first block */
            memcpy(s->out + r * ep, s->part + r * ep, ep * sizeof *s->out);
            s->most[r] = s->block_most[r];
            s->total[r] = s->block_total[r];
            continue;
        }
        w->ops->merge(s->out + r * ep, &s->most[r], &s->total[r], s->part + r * ep,
                      s->block_most[r], s->block_total[r], ep);
    }
}

/* ---- a tile, whole or in parts ---------------------------------------------------------------- */

static uint64_t walk_whole(struct tile_walk *w, const struct attend_tile *t) {
    uint64_t n_pages = 0;
    for (uint32_t b = t->lo / ATTEND_BLOCK; b * ATTEND_BLOCK < t->hi; b++) {
        n_pages += enter_block(w, b);
        merge_block(w);
    }
    return n_pages;
}

/* What block i of a split leaves for this kv head stands in `parts`. */
static void aim_at(struct tile_walk *w, const struct attend_split *split, uint32_t i) {
    size_t at = (size_t)w->kv_head * split->n_blocks + i;
    w->s.part = w->dev->parts + split->at + at * split->block_floats;
    size_t n = align_up(w->n, 16);
    w->s.block_most = w->s.part + n * w->dev->head_pad;
    w->s.block_total = w->s.block_most + n;
}

static uint64_t walk_part(struct tile_walk *w, const struct attend_split *split, uint32_t part) {
    uint32_t i = part * split->run, end = i + split->run;
    uint64_t n_pages = 0;
    for (; i < end && i < split->n_blocks; i++) {
        aim_at(w, split, i);
        n_pages += enter_block(w, split->first_block + i);
    }
    return n_pages;
}

/* Is this the last of a kv head's parts? Then all that the others wrote can be read. */
static bool arrive(struct device *dev, const struct attend_split *split, uint32_t kv_head) {
    size_t at = (size_t)(split - dev->splits) * dev->shape.n_kv_heads + kv_head;
    if (atomic_fetch_add(&dev->arrivals[at], 1) + 1 < split->n_parts) return false;
    atomic_store_explicit(&dev->arrivals[at], 0, memory_order_relaxed);
    return true;
}

static void merge_parts(struct tile_walk *w, const struct attend_split *split) {
    for (uint32_t i = 0, first, end; i < split->n_blocks; i++) {
        w->block = (split->first_block + i) * ATTEND_BLOCK;
        aim_at(w, split, i);
        find_active(w, &first, &end);
        merge_block(w);
    }
}

static void take_rows(struct tile_walk *w, const struct attend_tile *t) {
    const struct device *dev = w->dev;
    const struct tile_scratch *s = &w->s;
    uint32_t e = dev->shape.head_dim;
    size_t ep = dev->head_pad, head = (size_t)w->kv_head * dev->group * e;
    float scale = (float)(1 / sqrt((double)e));
    for (uint32_t i = 0; i < t->n_rows; i++) {
        uint32_t row = dev->order[t->first + i];
        for (uint32_t h = 0; h < dev->group; h++, w->n++) {
            w->ops->scaled(s->q + w->n * ep, dev->q + row * dev->ld_q + head + h * e, e, scale);
            s->lo[w->n] = dev->row_lo[row];
            s->hi[w->n] = dev->row_hi[row];
            s->total[w->n] = 0;
        }
    }
    if (w->ops->queries) w->ops->queries(w);
}

static void give_rows(const struct tile_walk *w, const struct attend_tile *t) {
    const struct device *dev = w->dev;
    uint32_t e = dev->shape.head_dim;
    size_t ep = dev->head_pad, head = (size_t)w->kv_head * dev->group * e;
    for (uint32_t n = 0; n < w->n; n++) {
        uint32_t row = dev->order[t->first + n / dev->group];
        float *o = dev->o + row * dev->ld_q + head + n % dev->group * e;
        w->ops->scaled(o, w->s.out + n * ep, e, 1.0f / w->s.total[n]);
    }
}

bool attend_tile(const struct attend_ops *ops, struct device *dev, uint32_t layer,
                 const struct attend_task *task, void *scratch) {
    const struct attend_tile *t = &dev->tiles[task->tile];
    struct carve c = {.base = scratch};
    struct tile_walk w = {.ops = ops,
                          .dev = dev,
                          .kind = dev->limits.kv_dtype == DTYPE_F32    ? KV_F32
                                  : dev->limits.kv_dtype == DTYPE_BF16 ? KV_BF16
                                                                       : KV_Q8,
                          .segment = t->segment,
                          .layer = layer,
                          .kv_head = task->kv_head,
                          .n_pages = (uint32_t)div_ceil(t->hi, PAGE_TOKENS),
                          .s = cut_scratch(dev, &c)};
    take_rows(&w, t);
    if (t->split == NONE) {
        dev->kv_pages_read += walk_whole(&w, t);
    } else {
        const struct attend_split *split = &dev->splits[t->split];
        dev->kv_pages_read += walk_part(&w, split, task->part);
        if (!arrive(dev, split, task->kv_head)) return false;
        merge_parts(&w, split);
    }
    give_rows(&w, t);
    return true;
}
