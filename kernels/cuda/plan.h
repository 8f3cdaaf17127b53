/* plan.h: from segments to what the kernels walk over: rows, attention tiles, items and merges; made
 * on the host and packed into an inbox, which one copy takes to the device. No call of CUDA here.
 *
 *   segments ─▶ rows ─▶ order, tiles ─▶ items, merges         struct plan, on the host
 *                  └──────────┬──────────────┘
 *              inbox  | header | rows | segments | order | ...| pages | tokens |
 *                                 │ one copy, then gpu_unpack
 *              batch  rows [max_rows]   segments [2 n_slots]   ...     addresses never change */
#ifndef GERYON_CUDA_PLAN_H
#define GERYON_CUDA_PLAN_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Arrays of a forward, in the order of struct batch. */
enum inbox_part {
    INBOX_COUNTS,
    INBOX_ROWS,
    INBOX_SEGMENTS,
    INBOX_ORDER,
    INBOX_TILES,
    INBOX_ITEMS,
    INBOX_MERGES,
    INBOX_LOGIT_ROWS,
    INBOX_LOGIT_SEGMENTS,
    INBOX_PAGES,
    INBOX_TOKENS,
    INBOX_PARTS
};

/* Units are quads of 16 bytes; parts follow each other without gaps. A row whose token is negative takes proposal -1 - token of its slot. */
struct inbox {
    uint32_t at[INBOX_PARTS]; /* from the inbox's start */
    uint32_t n[INBOX_PARTS];
    uint32_t unused[2]; /* whole quads */
};
#ifndef __cplusplus
_Static_assert(sizeof(struct inbox) % 16 == 0, "parts begin at whole quads");
#endif

/* What the host knows of a slot beside the device's struct gpu_slot. */
struct plan_slot {
    uint32_t n_asked;          /* rows of this cycle's draft forward that were to propose */
    bool counts_text;          /* its rules look at the text so far */
    uint32_t ring_lo, ring_hi; /* MSAR: positions whose vectors its ring holds */
};

struct plan {
    struct forward fwd;
    bool drafting;
    struct counts counts;
    uint32_t n_ordered, n_part_rows, n_pages, n_tokens;

    struct row *rows;
    struct seg *segments;
    uint32_t *order;
    struct tile *tiles;
    struct item *items;
    struct merge *merges;
    uint32_t *logit_rows, *logit_segments;
    const struct segment *
        *tables;              /* [2 n_slots] whose block table is packed at seg.pages; NULL: none */
    int32_t *slot_segment[3]; /* [view][slot], GPU_NONE */
    struct plan_slot *slots;
    void *memory;
};

/* Fill in the bounds that follow from dev->limits: max_items, max_pages, max_tokens, max_part_rows. */
void plan_bounds(struct device *dev);
/* Bytes of an inbox that holds any forward within those bounds. */
size_t plan_inbox_bytes(const struct device *dev);

int plan_init(struct plan *plan, const struct device *dev); /* ERR_NOMEM */
void plan_fini(struct plan *plan);

/* Rows, pages and limits are checked by ASSERT. Reads fwd's arrays, which live until `end`. */
void plan_make(struct plan *plan, const struct device *dev, const struct forward *fwd);
/* The plan as one block of memory; its size in bytes. */
size_t plan_pack(const struct plan *plan, struct inbox *inbox);

/* Exact sizes of launches. */
struct grid plan_grid(const struct plan *plan);

#ifdef __cplusplus
}
#endif
#endif
