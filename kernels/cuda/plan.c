/* plan.c: see plan.h.
 *
 * An attention tile holds rows of one slot whose pages are the same: the rows of a draft block, or
 * base and output rows merged by position (a position's two rows read the same pages):
 *
 *   base    b4 b5 b6 b7          order   b4 b5 b6 o6 b7 o7        tiles of tile_rows rows
 *   output        o6 o7
 *
 * A tile is one item that goes through all splits of its span, or one item a split, whose parts a
 * second kernel merges. Both give the same bits, so the choice is one of speed: with `share` the
 * splits that each of the blocks the device wants would have to walk if work were dealt evenly, a tile
 * of more splits than that is cut, if its parts find room. So a few long texts fill the device,
 * one long text among short ones does not keep the others waiting, and a prefill of many tiles
 * leaves no parts in memory. */
#include "kernels/cuda/plan.h"

#include "kernels/shape.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCKS_A_SM = 2,            /* of attention, that hide each other's loads */
    PART_BYTES_MAX = 128 << 20, /* of all parts: at most so much memory is set aside for them */
    QUAD = 16,
};
_Static_assert(sizeof(struct row) == 2 * QUAD && offsetof(struct row, token) == 0 &&
                   offsetof(struct row, slot) == 12,
               "unpack finds a row's token and slot in its first quad");
_Static_assert(SPLIT % KV_TILE == 0 && KV_TILE % PAGE_TOKENS == 0,
               "a page never straddles two tiles of positions");

/* ---- sizes ------------------------------------------------------------------------------------ */

/* Positions of one sequence at most. */
static uint64_t longest(const struct device *dev) {
    uint64_t held = (uint64_t)dev->limits.n_pages * PAGE_TOKENS + PAGE_TOKENS;
    return held < dev->shape.max_position ? held : dev->shape.max_position;
}

static uint32_t capped(uint64_t n) {
    return n < UINT32_MAX / 2 ? (uint32_t)n : UINT32_MAX / 2;
}

void plan_bounds(struct device *dev) {
    const struct device_limits *l = &dev->limits;
    uint64_t splits = div_ceil(longest(dev), SPLIT);
    size_t part_bytes = (size_t)dev->shape.n_kv_heads * (dev->head_pad + 2) * sizeof(float);
    uint64_t wanted = splits > 1 ? (uint64_t)l->max_rows * dev->group * splits : 0;
    uint64_t room = PART_BYTES_MAX / part_bytes;
    dev->max_part_rows = capped(wanted < room ? wanted : room);
    dev->max_items = capped(l->max_rows + (uint64_t)dev->max_part_rows / dev->group);
    dev->max_pages = capped(l->n_slots * div_ceil(longest(dev), PAGE_TOKENS));
    dev->max_tokens = capped(l->n_slots * (longest(dev) + DRAFT_MAX));
}

/* Bytes of each part, given how many elements it has. */
static void part_bytes(const struct counts *n, uint32_t n_ordered, uint32_t n_pages,
                       uint32_t n_tokens, size_t bytes[INBOX_PARTS]) {
    size_t n_items = 0;
    for (int kind = 0; kind < ATTEND_KINDS; kind++)
        n_items += n->n_items[kind];
    bytes[INBOX_COUNTS] = sizeof(struct counts);
    bytes[INBOX_ROWS] = n->n_rows * sizeof(struct row);
    bytes[INBOX_SEGMENTS] = n->n_segments * sizeof(struct seg);
    bytes[INBOX_ORDER] = n_ordered * sizeof(uint32_t);
    bytes[INBOX_TILES] = n->n_tiles * sizeof(struct tile);
    bytes[INBOX_ITEMS] = n_items * sizeof(struct item);
    bytes[INBOX_MERGES] = n->n_merges * sizeof(struct merge);
    bytes[INBOX_LOGIT_ROWS] = n->n_logit_rows * sizeof(uint32_t);
    bytes[INBOX_LOGIT_SEGMENTS] = n->n_logit_rows * sizeof(uint32_t);
    bytes[INBOX_PAGES] = n_pages * sizeof(uint32_t);
    bytes[INBOX_TOKENS] = n_tokens * sizeof(int32_t);
}

size_t plan_inbox_bytes(const struct device *dev) {
    const struct device_limits *l = &dev->limits;
    struct counts most = {.n_rows = l->max_rows,
                          .n_logit_rows = l->max_logit_rows,
                          .n_segments = 2 * l->n_slots,
                          .n_tiles = l->max_rows,
                          .n_items = {dev->max_items},
                          .n_merges = l->max_rows};
    size_t bytes[INBOX_PARTS], sum = sizeof(struct inbox);
    part_bytes(&most, l->max_rows, dev->max_pages, dev->max_tokens, bytes);
    for (int i = 0; i < INBOX_PARTS; i++)
        sum += align_up(bytes[i], QUAD);
    return sum;
}

/* Arrays one behind the other; with base NULL only measured. */
static size_t cut_plan(struct plan *p, const struct device *dev, char *base) {
    const struct device_limits *l = &dev->limits;
    size_t used = 0, segments = 2 * (size_t)l->n_slots;
    const struct {
        void *field;
        size_t bytes;
    } arrays[] = {
        {&p->rows, l->max_rows * sizeof *p->rows},
        {&p->segments, segments * sizeof *p->segments},
        {&p->order, l->max_rows * sizeof *p->order},
        {&p->tiles, l->max_rows * sizeof *p->tiles},
        {&p->items, dev->max_items * sizeof *p->items},
        {&p->merges, l->max_rows * sizeof *p->merges},
        {&p->logit_rows, l->max_logit_rows * sizeof *p->logit_rows},
        {&p->logit_segments, l->max_logit_rows * sizeof *p->logit_segments},
        {&p->tables, segments * sizeof *p->tables},
        {&p->slot_segment[0], l->n_slots * sizeof(int32_t)},
        {&p->slot_segment[1], l->n_slots * sizeof(int32_t)},
        {&p->slot_segment[2], l->n_slots * sizeof(int32_t)},
        {&p->slots, l->n_slots * sizeof *p->slots},
    };
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++) {
        void *at = base + used;
        if (base) memcpy(arrays[i].field, &at, sizeof at);
        used += align_up(arrays[i].bytes, QUAD);
    }
    return used;
}

int plan_init(struct plan *plan, const struct device *dev) {
    *plan = (struct plan){0};
    plan->memory = calloc(1, cut_plan(plan, dev, NULL));
    if (!plan->memory) return ERR_NOMEM;
    cut_plan(plan, dev, plan->memory);
    return OK;
}

void plan_fini(struct plan *plan) {
    free(plan->memory);
    *plan = (struct plan){0};
}

/* ---- rows ------------------------------------------------------------------------------------- */

static void check_segment(const struct plan *p, const struct device *dev, const struct segment *s,
                          int view_before) {
    ASSERT(s->slot < dev->limits.n_slots);
    segment_check(s, &dev->shape, &dev->limits, view_before, p->slots[s->slot].n_asked);
    ASSERT(p->slot_segment[s->view][s->slot] == GPU_NONE);
    ASSERT(s->n_rows <= dev->limits.max_rows - p->counts.n_rows);
    ASSERT(s->n_logits <= dev->limits.max_logit_rows - p->counts.n_logit_rows);
    if (s->view == VIEW_DRAFT) ASSERT(p->drafting); /* all draft, or none */
}

static int32_t token_of(const struct device *dev, const struct segment *s, uint32_t i) {
    uint32_t n_known = s->n_rows - s->n_proposed;
    if (!s->given && i >= n_known) return -1 - (int32_t)(i - n_known);
    ASSERT(s->tokens[i] >= 0);
    ASSERT((uint32_t)s->tokens[i] < dev->shape.vocab_size);
    return s->tokens[i];
}

static void add_row(struct plan *p, const struct device *dev, uint32_t segment, uint32_t i) {
    const struct segment *s = &p->fwd.segments[segment];
    uint32_t row = p->counts.n_rows++, pos = s->pos + i, page = pos / PAGE_TOKENS;
    bool draft = s->view == VIEW_DRAFT;
    struct row *r = &p->rows[row];
    *r = (struct row){.token = token_of(dev, s, i),
                      .pos = pos,
                      .segment = segment,
                      .slot = s->slot,
                      .hi = draft ? s->pos + s->n_rows : pos + 1,
                      .view = s->view};
    if (s->view == VIEW_BASE && dev->shape.orthros && pos + 1 > dev->shape.window)
        r->lo = pos + 1 - dev->shape.window;
    if (draft)
        r->kv_page = p->segments[segment].scratch + page - s->pos / PAGE_TOKENS;
    else if (s->view == VIEW_BASE)
        r->kv_page = s->pages[page];
    /* A draft row predicts its next token, so the last one is not needed; elsewhere the last are. */
    bool has_logits = draft ? i < s->n_logits : i >= s->n_rows - s->n_logits;
    if (!has_logits) return;
    p->logit_rows[p->counts.n_logit_rows] = row;
    p->logit_segments[p->counts.n_logit_rows++] = segment;
}

/* Everything of a segment but its block table. */
static void add_segment(struct plan *p, const struct device *dev, uint32_t index) {
    const struct segment *s = &p->fwd.segments[index];
    struct counts *n = &p->counts;
    uint32_t end = s->view == VIEW_DRAFT ? s->pos : s->pos + s->n_rows;
    int32_t base = s->view == VIEW_OUTPUT ? p->slot_segment[VIEW_BASE][s->slot] : (int32_t)index;
    p->slot_segment[s->view][s->slot] = (int32_t)index;
    p->segments[index] = (struct seg){.slot = s->slot,
                                      .view = s->view,
                                      .pick = s->pick,
                                      .pos = s->pos,
                                      .n_rows = s->n_rows,
                                      .n_proposed = s->n_proposed,
                                      .given = s->given,
                                      .first_row = n->n_rows,
                                      .first_logit = n->n_logit_rows,
                                      .n_logits = s->n_logits,
                                      .out_pos = s->out_pos,
                                      .prompt_len = s->prompt_len,
                                      .n_pages = (uint32_t)div_ceil(end, PAGE_TOKENS),
                                      .own = base};
    struct seg *seg = &p->segments[index];
    if (s->view == VIEW_DRAFT) seg->scratch = index * dev->scratch_pages;
    if (s->given) {
        seg->tokens = p->n_tokens;
        p->n_tokens += s->n_proposed;
    }
    if (s->pick != PICK_NONE && p->slots[s->slot].counts_text) {
        seg->history = p->n_tokens;
        p->n_tokens += s->prompt_len + s->out_pos;
    }
    ASSERT(p->n_tokens <= dev->max_tokens);
    if (s->pick == PICK_ACCEPT) {
        ASSERT(n->n_accept < dev->limits.n_slots);
        seg->outcome = n->n_accept++;
    }
    if (s->pick == PICK_PROPOSE) n->n_propose += s->n_logits;
    for (uint32_t i = 0; i < s->n_rows; i++)
        add_row(p, dev, index, i);
    if (s->view != VIEW_OUTPUT) n->n_kv_rows = n->n_rows;
}

/* ---- attention -------------------------------------------------------------------------------- */

/* Append the rows of segment a (and b, or GPU_NONE) to order, merged by position, and cut tiles. */
static void add_tiles(struct plan *p, const struct device *dev, uint32_t a, int32_t b,
                      uint32_t widest) {
    const struct seg *sa = &p->segments[a], *sb = b == GPU_NONE ? NULL : &p->segments[b];
    uint32_t first = p->n_ordered, i = 0, j = 0, na = sa->n_rows, nb = sb ? sb->n_rows : 0;
    while (i < na || j < nb) {
        bool take_a = j == nb || (i < na && sa->pos + i <= sb->pos + j);
        p->order[p->n_ordered++] = take_a ? sa->first_row + i++ : sb->first_row + j++;
    }
    for (uint32_t at = first; at < p->n_ordered; at += dev->tile_rows) {
        uint32_t left = p->n_ordered - at;
        struct tile tile = {.first = at,
                            .n_rows = left < dev->tile_rows ? left : dev->tile_rows,
                            .segment = widest,
                            .lo = UINT32_MAX};
        for (uint32_t r = at; r < at + tile.n_rows; r++) {
            const struct row *row = &p->rows[p->order[r]];
            if (row->lo < tile.lo) tile.lo = row->lo;
            if (row->hi > tile.hi) tile.hi = row->hi;
        }
        p->tiles[p->counts.n_tiles++] = tile;
    }
}

/* Block tables, one a slot, and tiles. Output rows go with the base rows of their slot. */
static void make_tiles(struct plan *p, const struct device *dev) {
    for (uint32_t i = 0; i < p->fwd.n_segments; i++) {
        const struct segment *s = &p->fwd.segments[i];
        p->tables[i] = NULL;
        if (s->view == VIEW_OUTPUT && p->slot_segment[VIEW_BASE][s->slot] != GPU_NONE) continue;
        int32_t other = s->view == VIEW_BASE ? p->slot_segment[VIEW_OUTPUT][s->slot] : GPU_NONE;
        uint32_t widest = i;
        if (other != GPU_NONE) { /* one sequence has one block table */
            const struct segment *o = &p->fwd.segments[other];
            uint32_t a = s->pos + s->n_rows, b = o->pos + o->n_rows;
            for (uint32_t page = 0; page < div_ceil(a < b ? a : b, PAGE_TOKENS); page++)
                ASSERT_SLOW(s->pages[page] == o->pages[page]);
            if (b > a) widest = (uint32_t)other;
            p->segments[other].pages = p->n_pages;
        }
        p->segments[i].pages = p->n_pages;
        p->tables[i] = &p->fwd.segments[widest];
        p->n_pages += p->segments[widest].n_pages;
        ASSERT(p->n_pages <= dev->max_pages);
        add_tiles(p, dev, i, other, widest);
    }
    ASSERT(p->n_ordered == p->counts.n_rows);
}

static uint32_t first_split(const struct tile *t) {
    return t->lo / SPLIT;
}
static uint32_t n_splits(const struct tile *t) {
    return (uint32_t)div_ceil(t->hi, SPLIT) - first_split(t);
}

static int kind_of(const struct device *dev, const struct tile *t) {
    uint32_t n = t->n_rows * dev->group;
    return n <= 16 ? 0 : n <= 32 ? 1 : 2;
}

/* One item a split, if their parts find room. */
static bool cut_tile(struct plan *p, const struct device *dev, uint32_t index, uint32_t *at) {
    const struct tile *t = &p->tiles[index];
    uint32_t n = n_splits(t), first = first_split(t), part = p->n_part_rows;
    uint64_t stride = (uint64_t)t->n_rows * dev->group;
    if (n * stride > dev->max_part_rows - part) return false;
    for (uint32_t i = 0; i < n; i++)
        p->items[(*at)++] = (struct item){.tile = index,
                                          .split = first + i,
                                          .split_end = first + i + 1,
                                          .part = (int32_t)(part + i * (uint32_t)stride)};
    for (uint32_t r = 0; r < t->n_rows; r++)
        p->merges[p->counts.n_merges++] = (struct merge){.row = p->order[t->first + r],
                                                         .part = part + r * dev->group,
                                                         .stride = (uint32_t)stride,
                                                         .n_splits = n};
    p->n_part_rows += n * (uint32_t)stride;
    return true;
}

/* Kind by kind; within a kind the last tiles first, since they are the longest of a prefill. */
static void make_items(struct plan *p, const struct device *dev) {
    uint64_t work = 0, blocks = (uint64_t)dev->n_sms * BLOCKS_A_SM;
    for (uint32_t i = 0; i < p->counts.n_tiles; i++)
        work += n_splits(&p->tiles[i]);
    uint64_t share = div_ceil(work * dev->shape.n_kv_heads, blocks);
    uint32_t at = 0;
    for (int kind = 0; kind < ATTEND_KINDS; kind++) {
        uint32_t begun = at;
        for (uint32_t i = p->counts.n_tiles; i-- > 0;) {
            const struct tile *t = &p->tiles[i];
            if (kind_of(dev, t) != kind) continue;
            if (n_splits(t) > share && n_splits(t) > 1 && cut_tile(p, dev, i, &at)) continue;
            p->items[at++] = (struct item){.tile = i,
                                           .split = first_split(t),
                                           .split_end = first_split(t) + n_splits(t),
                                           .part = GPU_NONE};
        }
        p->counts.n_items[kind] = at - begun;
    }
    ASSERT(at <= dev->max_items);
}

/* ---- the whole -------------------------------------------------------------------------------- */

/* The rings hold what rows of this forward will read. */
static void check_rings(const struct plan *p, const struct device *dev) {
    for (uint32_t i = 0; dev->msar.ring_len && i < p->fwd.n_segments; i++) {
        const struct seg *s = &p->segments[i];
        uint32_t reach = s->pos < dev->msar.history ? s->pos : dev->msar.history;
        uint32_t lo = s->pos - reach, hi = s->pos + s->n_rows - 1;
        if (s->own != GPU_NONE) {
            const struct seg *b = &p->segments[s->own];
            ASSERT(s->pos + s->n_rows <= b->pos + b->n_rows);
            if (b->pos < hi) hi = b->pos;
        }
        if (lo >= hi) continue;
        ASSERT(p->slots[s->slot].ring_lo <= lo);
        ASSERT(hi <= p->slots[s->slot].ring_hi);
    }
}

void plan_make(struct plan *p, const struct device *dev, const struct forward *fwd) {
    ASSERT(fwd->n_segments <= 2 * (size_t)dev->limits.n_slots);
    p->fwd = *fwd;
    p->drafting = fwd->n_segments > 0 && fwd->segments[0].view == VIEW_DRAFT;
    p->counts = (struct counts){.n_segments = fwd->n_segments};
    p->n_ordered = p->n_part_rows = p->n_pages = p->n_tokens = 0;
    for (int view = 0; view < 3; view++)
        for (uint32_t i = 0; i < dev->limits.n_slots; i++)
            p->slot_segment[view][i] = GPU_NONE;
    int view = p->drafting ? VIEW_DRAFT : VIEW_BASE;
    for (uint32_t i = 0; i < fwd->n_segments; i++) {
        check_segment(p, dev, &fwd->segments[i], view);
        view = fwd->segments[i].view;
        add_segment(p, dev, i);
    }
    make_tiles(p, dev);
    make_items(p, dev);
    check_rings(p, dev);
}

static void pack_tokens(const struct plan *p, int32_t *out) {
    for (uint32_t i = 0; i < p->fwd.n_segments; i++) {
        const struct segment *s = &p->fwd.segments[i];
        const struct seg *seg = &p->segments[i];
        if (s->given && s->n_proposed)
            memcpy(out + seg->tokens, s->tokens + s->n_rows - s->n_proposed,
                   s->n_proposed * sizeof *out);
        size_t n = s->prompt_len + (size_t)s->out_pos;
        if (n && s->pick != PICK_NONE && p->slots[s->slot].counts_text)
            memcpy(out + seg->history, s->history, n * sizeof *out);
    }
}

size_t plan_pack(const struct plan *p, struct inbox *inbox) {
    const void *from[INBOX_PARTS] = {[INBOX_COUNTS] = &p->counts,
                                     [INBOX_ROWS] = p->rows,
                                     [INBOX_SEGMENTS] = p->segments,
                                     [INBOX_ORDER] = p->order,
                                     [INBOX_TILES] = p->tiles,
                                     [INBOX_ITEMS] = p->items,
                                     [INBOX_MERGES] = p->merges,
                                     [INBOX_LOGIT_ROWS] = p->logit_rows,
                                     [INBOX_LOGIT_SEGMENTS] = p->logit_segments};
    size_t bytes[INBOX_PARTS], used = sizeof *inbox;
    part_bytes(&p->counts, p->n_ordered, p->n_pages, p->n_tokens, bytes);
    char *to[INBOX_PARTS];
    for (int i = 0; i < INBOX_PARTS; i++) {
        to[i] = (char *)inbox + used;
        inbox->at[i] = (uint32_t)(used / QUAD);
        inbox->n[i] = (uint32_t)div_ceil(bytes[i], QUAD);
        if (from[i] && bytes[i]) memcpy(to[i], from[i], bytes[i]);
        used += align_up(bytes[i], QUAD);
    }
    for (uint32_t i = 0; i < p->fwd.n_segments; i++)
        if (p->tables[i]) {
            const struct seg *s = &p->segments[p->tables[i] - p->fwd.segments];
            if (s->n_pages)
                memcpy(to[INBOX_PAGES] + s->pages * sizeof(uint32_t), p->tables[i]->pages,
                       s->n_pages * sizeof(uint32_t));
        }
    pack_tokens(p, (int32_t *)(void *)to[INBOX_TOKENS]);
    return used;
}

struct grid plan_grid(const struct plan *p) {
    const struct counts *n = &p->counts;
    struct grid grid = {.rows = n->n_rows,
                        .kv_rows = n->n_kv_rows,
                        .logit_rows = n->n_logit_rows,
                        .segments = n->n_segments,
                        .merges = n->n_merges,
                        .accept = n->n_accept,
                        .propose = n->n_propose,
                        .draft_segments = p->drafting ? n->n_segments : 0};
    memcpy(grid.items, n->n_items, sizeof grid.items);
    return grid;
}
