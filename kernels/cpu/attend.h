/* attend.h: attention over pages of 16 positions, shared by the vector tables; the layout of a page
 * is in attend_avx2.c. */
#ifndef GERYON_KERNELS_CPU_ATTEND_H
#define GERYON_KERNELS_CPU_ATTEND_H

#include "kernels/cpu/cpu.h"

/* Scores of the query rows rows[0 .. n - 1] against n_pages K pages: scores[row][ATTEND_BLOCK], of
 * which 16 a page are written, one behind the other; q [row][ep]. What lies `ahead` bytes behind a
 * page is fetched meanwhile (0: nothing is). */
typedef void (*qk_fn)(const char *const *pages, uint32_t n_pages, size_t ahead, uint32_t e,
                      const float *q, size_t ep, const uint32_t *rows, float *scores);
/* part[row][0 .. ep - 1] += probs[row][t] v[t], t = lo .. hi - 1 of each of the V pages, whose probs lie one
 * behind the other; nexts[i] is fetched meanwhile, as much as a page of the kind (NULL: nothing is). */
typedef void (*pv_fn)(const char *const *pages, const char *const *nexts, uint32_t n_pages,
                      uint32_t lo, uint32_t hi, const float *probs, const uint32_t *rows, size_t ep,
                      float *part);

/* Of K and V pages: as the limits' kv_dtype says. */
enum kv_kind { KV_F32, KV_BF16, KV_Q8, KV_KINDS };

struct tile_walk;
struct attend_ops {
    uint32_t rows_max;         /* query rows of one call */
    const qk_fn *qk[KV_KINDS]; /* [rows]; 8-bit KV: of the integers alone */
    const pv_fn *pv[KV_KINDS];
    /* n integers of 8-bit KV as float32; n a multiple of 16. */
    void (*widen)(const int8_t *q, size_t n, float *out);
    /* scores[row][t] *= scale t, t = 0 .. PAGE_TOKENS - 1, of n rows. */
    void (*scale)(const uint16_t *scales, const uint32_t *rows, uint32_t n, float *scores);
    /* Scores lo .. hi - 1 into exp(score - maximum), *total = their sum; returns the maximum. What
     * lies around them is overwritten as far as the vectors reach. */
    float (*softmax)(float *scores, uint32_t lo, uint32_t hi, float *total);
    /* to[i] = from[i] * scale; any n. */
    void (*scaled)(float *to, const float *from, uint32_t n, float scale);
    /* (most, total, out [ep]) of a row takes in those of its next block. */
    void (*merge)(float *out, float *most, float *total, const float *part, float part_most,
                  float part_total, size_t ep);
    /* NULL, or instead of the above but merge: what attend_block of attend.c does for all rows of the
     * walk, where `queries` has prepared them. Room for rows up to a multiple of 16. */
    void (*block)(const struct tile_walk *w, uint32_t first, uint32_t end);
    void (*queries)(const struct tile_walk *w);
};

/* What a task computes with; n = query rows. */
struct tile_scratch {
    float *q;      /* [n][ep], times 1 / sqrt(D); then what `queries` makes of it */
    float *scores; /* [n][ATTEND_BLOCK], then probabilities */
    float *wide;   /* [1 + a block's pages][PAGE_TOKENS][ep] of K or V: 8-bit widened; or copies */
    float *apart;  /* [32][ep] sums of a row by itself, among others' */
    float *out;    /* [n][ep] O */
    float *most, *total; /* [n] M, L */
    uint32_t *lo, *hi;   /* [n] a row attends lo .. hi - 1 */
    uint32_t *active;    /* rows that see any of the block */
    /* Of the block, its active rows alone; in the parts of a split tile they lie in dev->parts. */
    float *part;                     /* [n][ep] sum p v */
    float *block_most, *block_total; /* [n] m, l */
};

struct tile_walk {
    const struct attend_ops *ops;
    const struct device *dev;
    enum kv_kind kind;
    uint32_t segment, layer, kv_head;
    uint32_t block;   /* its first position */
    uint32_t n;       /* query rows */
    uint32_t n_pages; /* those behind are seen by no row */
    uint32_t n_active;
    struct tile_scratch s;
};

enum { BLOCK_PAGES = ATTEND_BLOCK / PAGE_TOKENS };

/* K or V of a page is on its way before it is read: pages lie anywhere, so the hardware does not
 * foresee them. For few rows, which are a read of the pages. Into the second-level cache, as weights
 * (pack_avx2.h): an EPYC then decodes 35 % faster behind 2048 positions. Line by line between products,
 * so that memory and multiply-adds are busy at once. */
enum { ATTEND_FEW_ROWS = 16 };
static inline void attend_fetch_line(const void *at) {
    __builtin_prefetch(at, 0, 2);
}

/* The memory of the walk's kv head in page `index`. */
static inline char *attend_page(const struct tile_walk *w, uint32_t index) {
    return cpu_page(w->dev, w->segment, w->layer, index) + w->kv_head * w->dev->head_bytes;
}

/* A task of stage attend, in scratch memory of attend_scratch bytes. */
bool attend_tile(const struct attend_ops *ops, struct device *dev, uint32_t layer,
                 const struct attend_task *task, void *scratch);
size_t attend_scratch(const struct device *dev);

#endif
