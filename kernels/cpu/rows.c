/* rows.c: from segments to rows: which token and position each has, what it attends, and which rows
 * attend together.
 *
 * An attention tile holds rows of one slot whose pages are the same: the rows of a draft block, or
 * base and output rows merged by position (a position's two rows read the same pages):
 *
 *   base    b4 b5 b6 b7          order   b4 b5 b6 o6 b7 o7        tiles of tile_rows rows
 *   output        o6 o7
 *
 * A tile that is more than its share of the forward's work is split into runs of blocks (attend.c),
 * so that one long sequence uses all threads. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/shape.h"

static void check_segment(const struct device *dev, const struct segment *s, int view_before) {
    ASSERT(s->slot < dev->limits.n_slots);
    segment_check(s, &dev->shape, &dev->limits, view_before, dev->slots[s->slot].n_asked);
    ASSERT(dev->slot_segment[s->view][s->slot] == NONE);
}

static int32_t token_of(const struct device *dev, const struct segment *s, uint32_t i) {
    uint32_t n_known = s->n_rows - s->n_proposed;
    if (s->given || i < n_known) return s->tokens[i];
    const struct slot *slot = &dev->slots[s->slot];
    i -= n_known;
    return i < slot->n_proposals ? slot->proposals[i] : 0; /* computed for nothing: any token */
}

static void add_row(struct device *dev, uint32_t segment, uint32_t i) {
    const struct segment *s = &dev->fwd.segments[segment];
    uint32_t row = dev->n_rows++, pos = s->pos + i;
    int32_t token = token_of(dev, s, i);
    ASSERT(token >= 0);
    ASSERT((uint32_t)token < dev->shape.vocab_size);
    dev->row_token[row] = token;
    dev->row_pos[row] = pos;
    dev->row_segment[row] = segment;
    dev->row_lo[row] = 0;
    dev->row_hi[row] = s->view == VIEW_DRAFT ? s->pos + s->n_rows : pos + 1;
    if (s->view == VIEW_BASE && dev->shape.orthros && pos + 1 > dev->shape.window)
        dev->row_lo[row] = pos + 1 - dev->shape.window;
    /* A draft row predicts its next token, so the last one is not needed; elsewhere the last are. */
    bool has_logits = s->view == VIEW_DRAFT ? i < s->n_logits : i >= s->n_rows - s->n_logits;
    if (has_logits) {
        ASSERT(dev->n_logit_rows < dev->limits.max_logit_rows);
        dev->logit_row[dev->n_logit_rows++] = row;
    }
}

/* Append the rows of segment a (and b, or NONE) to order, merged by position, and cut tiles. */
static void add_tiles(struct device *dev, uint32_t *n_ordered, uint32_t a, int32_t b) {
    const struct segment *sa = &dev->fwd.segments[a],
                         *sb = b == NONE ? NULL : &dev->fwd.segments[b];
    uint32_t first = *n_ordered, i = 0, j = 0;
    uint32_t na = sa->n_rows, nb = sb ? sb->n_rows : 0;
    uint32_t widest = a;
    if (sb && sb->pos + nb > sa->pos + na) widest = (uint32_t)b;
    while (i < na || j < nb) {
        bool take_a = j == nb || (i < na && sa->pos + i <= sb->pos + j);
        uint32_t row = take_a ? dev->segment_row[a] + i++ : dev->segment_row[b] + j++;
        dev->order[(*n_ordered)++] = row;
    }
    for (uint32_t at = first; at < *n_ordered; at += dev->tile_rows) {
        uint32_t n = *n_ordered - at < dev->tile_rows ? *n_ordered - at : dev->tile_rows;
        struct attend_tile tile = {at, n, widest, UINT32_MAX, 0, NONE};
        for (uint32_t r = at; r < at + n; r++) {
            uint32_t lo = dev->row_lo[dev->order[r]], hi = dev->row_hi[dev->order[r]];
            if (lo < tile.lo) tile.lo = lo;
            if (hi > tile.hi) tile.hi = hi;
        }
        dev->tiles[dev->n_tiles++] = tile;
    }
}

static uint32_t tile_blocks(const struct attend_tile *t) {
    return (uint32_t)div_ceil(t->hi, ATTEND_BLOCK) - t->lo / ATTEND_BLOCK;
}

/* Shorter runs than this are not worth a task. */
enum { SPLIT_RUN_MIN = 2 };

/* Work is counted in rows x blocks. How it is cut changes no row: blocks are merged in their order
 * whoever computed them. */
static void make_splits(struct device *dev) {
    uint32_t heads = dev->shape.n_kv_heads, n_shares = SPLIT_SHARE * pool_threads(dev->pool);
    uint64_t work = 0, used = 0;
    dev->n_splits = 0;
    if (dev->parts_cap == 0) return;
    for (uint32_t i = 0; i < dev->n_tiles; i++)
        work += (uint64_t)tile_blocks(&dev->tiles[i]) * dev->tiles[i].n_rows;
    uint64_t share = div_ceil(work * heads, n_shares);
    for (uint32_t i = 0; i < dev->n_tiles && dev->n_splits < n_shares; i++) {
        struct attend_tile *t = &dev->tiles[i];
        uint32_t n_blocks = tile_blocks(t);
        uint64_t run = share / t->n_rows > SPLIT_RUN_MIN ? share / t->n_rows : SPLIT_RUN_MIN;
        if (n_blocks <= run) continue;
        run = div_ceil(n_blocks, div_ceil(n_blocks, run)); /* parts alike */
        struct attend_split s = {.tile = i,
                                 .first_block = t->lo / ATTEND_BLOCK,
                                 .n_blocks = n_blocks,
                                 .run = (uint32_t)run,
                                 .n_parts = (uint32_t)div_ceil(n_blocks, run),
                                 .at = used,
                                 .block_floats = attend_block_floats(dev, t->n_rows)};
        size_t floats = s.block_floats * n_blocks * heads;
        if (floats > dev->parts_cap - used) continue;
        used += floats;
        t->split = (int32_t)dev->n_splits;
        dev->splits[dev->n_splits++] = s;
    }
}

static void make_tiles(struct device *dev) {
    uint32_t n_ordered = 0;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->view == VIEW_OUTPUT && dev->slot_segment[VIEW_BASE][s->slot] != NONE)
            continue; /* went with its base rows */
        int32_t other = s->view == VIEW_BASE ? dev->slot_segment[VIEW_OUTPUT][s->slot] : NONE;
        if (other != NONE) { /* one sequence has one block table */
            const struct segment *o = &dev->fwd.segments[other];
            uint32_t a = s->pos + s->n_rows, b = o->pos + o->n_rows;
            for (uint32_t p = 0; p < div_ceil(a < b ? a : b, PAGE_TOKENS); p++)
                ASSERT_SLOW(s->pages[p] == o->pages[p]);
        }
        add_tiles(dev, &n_ordered, i, other);
    }
    ASSERT(n_ordered == dev->n_rows);
}

int cpu_begin(struct device *dev, const struct forward *fwd) {
    ASSERT(dev->reserved);
    ASSERT(fwd->n_segments <= 2 * (size_t)dev->limits.n_slots);
    dev->fwd = *fwd;
    dev->n_rows = dev->n_kv_rows = dev->n_logit_rows = dev->n_tiles = 0;
    dev->accepted = false;
    dev->drafting = fwd->n_segments > 0 && fwd->segments[0].view == VIEW_DRAFT;
    dev->last_logits = dev->drafting ? dev->draft_logits : dev->logits;
    for (int view = 0; view < 3; view++)
        for (uint32_t i = 0; i < dev->limits.n_slots; i++)
            dev->slot_segment[view][i] = NONE;

    int view = dev->drafting ? VIEW_DRAFT : VIEW_BASE;
    uint32_t n_drafts = 0;
    for (uint32_t i = 0; i < fwd->n_segments; i++) {
        const struct segment *s = &fwd->segments[i];
        check_segment(dev, s, view);
        if (!dev->drafting) ASSERT(s->view != VIEW_DRAFT); /* all draft, or none */
        ASSERT(s->n_rows <= dev->limits.max_rows - dev->n_rows);
        view = s->view;
        dev->slot_segment[view][s->slot] = (int32_t)i;
        dev->segment_row[i] = dev->n_rows;
        dev->segment_logit[i] = dev->n_logit_rows;
        if (view == VIEW_DRAFT) dev->segment_scratch[i] = n_drafts++;
        for (uint32_t r = 0; r < s->n_rows; r++)
            add_row(dev, i, r);
        if (view != VIEW_OUTPUT) dev->n_kv_rows = dev->n_rows;
    }
    make_tiles(dev);
    make_splits(dev);
    dev->residual = dev->x;
    if (dev->shape.n_msar_streams) {
        dev->residual = msar_view(dev, 0, 0, 0);
        cpu_msar_check_rows(dev);
    }
    dev->work_at = pool_clock_ns();
    return OK;
}

int cpu_end(struct device *dev, struct outcome *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++)
        if (dev->fwd.segments[i].pick == PICK_ACCEPT) n++;
    ASSERT(n == 0 || dev->accepted);
    if (n) memcpy(out, dev->outcomes, n * sizeof *out);
    for (uint32_t i = 0; i < dev->limits.n_slots; i++) /* proposals live for one cycle */
        dev->slots[i].n_asked = dev->slots[i].n_proposals = 0;
    dev->fwd.n_segments = 0;
    return OK;
}
