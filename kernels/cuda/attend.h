/* attend.h: what the attention kernels share: their arguments, where a page lies, and how splits of
 * positions merge. attend_mma.cu: tensor cores, for bf16 rows over bf16 or 8-bit KV, heads of up to
 * MMA_HEAD_MAX. attend_f32.cu: all else. attend.cu: the merge of parts in memory, and the launches.
 *
 *   o[row, H, :] = sum_t softmax_t(q[row, H, :] . k[t, g, :] / sqrt(head_dim)) v[t, g, :]
 *                                                   g = H / group, lo[row] <= t < hi[row]
 *   Online softmax: Milakov & Gimelshein 2018, algorithm 3.
 *
 * A tile's query rows are its rows times the heads of the group: query row r is head r % group of its
 * row r / group. Positions go by in tiles of KV_TILE and splits of SPLIT at absolute multiples:
 *
 *   t:      | KV_TILE | KV_TILE | KV_TILE | KV_TILE | KV_TILE | ...
 *           |<--------------- split 0 ------------->|<------- split 1: begins from nothing
 *             (most, total, sums) by online softmax    joined to split 0 by attend_join(), either
 *                                                      here in registers or by the merge kernel
 *
 * A position outside a row's span is selected away before the maximum and has probability 0, so a
 * KV tile that is wholly outside changes no bit of a row, whether it is gone through or skipped. In
 * the sum over V it is multiplied by that 0: positions outside the tile's span are read as zero
 * (stale pages may hold NaN), those within it hold what the sequence's own rows wrote, finite.
 *
 * Products and sums whose rounding decides bits are __fmaf_rn and __fmul_rn: the compiler may fuse
 * what is written with * and +, and not alike in two kernels. */
#ifndef GERYON_CUDA_ATTEND_H
#define GERYON_CUDA_ATTEND_H

#include "kernels/cuda/cuda.h"

enum { MMA_HEAD_MAX = 128 };
enum { TILE_PAGES = KV_TILE / PAGE_TOKENS, SPLIT_TILES = SPLIT / KV_TILE };
static_assert(KV_TILE % PAGE_TOKENS == 0, "a softmax tile is whole pages");
static_assert(SPLIT % KV_TILE == 0, "a split is whole softmax tiles");

/* What a kernel needs of struct device, by value. */
struct attend_args {
    const struct counts *counts;
    const struct row *rows;
    const struct seg *segments;
    const uint32_t *order, *pages;
    const struct tile *tiles;
    const struct item *items;
    const struct merge *merges;
    const char *kv, *scratch; /* of the layer */
    size_t page_bytes, scratch_bytes, head_bytes, value_bytes;
    const void *q; /* act */
    void *o;
    float *parts, *part_stats;
    uint32_t kind, stages, /* of attend_kernel */
        group, head_dim, ep, ld_q, n_kv_heads;
    float scale; /* log2(e) / sqrt(head_dim): probabilities are powers of two */
};

/* A kernel for the items of one kind: grid (some items, kv heads, slices). */
struct attend_kernel {
    void (*run)(struct attend_args args);
    uint32_t threads, slices, shared_bytes, stages;
};
struct attend_kernel attend_mma_kernel(uint32_t ep, bool bytes, uint32_t kind, int sm);
struct attend_kernel attend_f32_kernel(uint32_t ep, enum dtype act, enum dtype kv, uint32_t kind);

/* ---- for kernels ------------------------------------------------------------------------------ */

/* One item with what it names. Positions begin .. end - 1 are gone through, those outside the tile's
 * lo .. hi - 1 read as zero. */
struct attend_walk {
    struct item item;
    struct tile tile;
    uint32_t n_query;                          /* query rows */
    uint32_t first, end;                       /* KV tiles */
    uint32_t view, draft_page, scratch, pages; /* of the segment whose block table it is */
};

GPU_INLINE uint32_t attend_first_item(const struct attend_args *a) {
    uint32_t first = 0;
    for (uint32_t kind = 0; kind < a->kind; kind++)
        first += a->counts->n_items[kind];
    return first;
}

GPU_INLINE struct attend_walk attend_begin(const struct attend_args *a, uint32_t item) {
    struct attend_walk w;
    w.item = a->items[item];
    w.tile = a->tiles[w.item.tile];
    const struct seg *seg = a->segments + w.tile.segment;
    w.view = seg->view;
    w.draft_page = seg->pos / PAGE_TOKENS;
    w.scratch = seg->scratch;
    w.pages = seg->pages;
    w.n_query = w.tile.n_rows * a->group;
    w.first = max(w.item.split * SPLIT_TILES, w.tile.lo / KV_TILE);
    w.end = min(w.item.split_end * SPLIT_TILES, (w.tile.hi + KV_TILE - 1) / KV_TILE);
    return w;
}

/* Page number `page` of the sequence: a page of the cache, or IN_SCRATCH and one of a draft block's own;
 * any beyond the tile's span, where nothing is read. */
#define IN_SCRATCH 0x80000000u
GPU_INLINE uint32_t attend_page(const struct attend_args *a, const struct attend_walk *w,
                                uint32_t page) {
    if (page * PAGE_TOKENS >= w->tile.hi) return 0;
    if (w->view == VIEW_DRAFT && page >= w->draft_page)
        return (w->scratch + page - w->draft_page) | IN_SCRATCH;
    return a->pages[w->pages + page];
}
/* K of the kv head in it; V and the scales follow. */
GPU_INLINE const char *attend_address(const struct attend_args *a, uint32_t page,
                                      uint32_t kv_head) {
    const char *at = page & IN_SCRATCH
                         ? a->scratch + (size_t)(page & ~IN_SCRATCH) * a->scratch_bytes
                         : a->kv + (size_t)page * a->page_bytes;
    return at + kv_head * a->head_bytes;
}

/* Place of query row r of the tile: its row, and its head's first element in q and o. */
GPU_INLINE uint32_t attend_row(const struct attend_args *a, const struct attend_walk *w,
                               uint32_t r) {
    return a->order[w->tile.first + r / a->group];
}
GPU_INLINE size_t attend_element(const struct attend_args *a, uint32_t row, uint32_t r,
                                 uint32_t kv_head) {
    return (size_t)row * a->ld_q + (size_t)(kv_head * a->group + r % a->group) * a->head_dim;
}
/* Number of query row r's part among all (part row, kv head). */
GPU_INLINE size_t attend_part(const struct attend_args *a, const struct attend_walk *w, uint32_t r,
                              uint32_t kv_head) {
    return ((size_t)w->item.part + r) * a->n_kv_heads + kv_head;
}

/* (most, total) takes in those of the next split, which has a total other than 0 (a split without
 * is to be left out); sums then become sums * kept + the split's * share. */
GPU_INLINE void attend_join(float *most, float *total, float split_most, float split_total,
                            float *kept, float *share) {
    const float joint = fmaxf(*most, split_most);
    *kept = exp2_approx(*most - joint); /* the first split: of -inf, 0 */
    *share = exp2_approx(split_most - joint);
    *total = __fmaf_rn(*total, *kept, __fmul_rn(split_total, *share));
    *most = joint;
}
GPU_INLINE float attend_join_sum(float sum, float split_sum, float kept, float share) {
    return __fmaf_rn(sum, kept, __fmul_rn(split_sum, share));
}

/* A row's maximum takes in that of a tile (times the scale). Returns what to take from the scores'
 * exponents; *kept is what earlier sums are to be multiplied by: exactly 1 where the maximum stays. */
GPU_INLINE float attend_raise(float *most, float tile_most, float *kept) {
    const float now = fmaxf(*most, tile_most), base = now == -INFINITY ? 0.0f : now;
    *kept = exp2_approx(*most - base);
    *most = now;
    return base;
}

#endif
