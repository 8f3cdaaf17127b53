/* What the host plans for a forward: rows, tiles, items and merges, and how they reach the device. */
#include "tests/gpusim/gpusim_test.h"

#include "kernels/cuda/plan.h"

enum { SLOTS = 12, ROWS = 640, LOGITS = 128, PAGES = 4096, POSITIONS = 8192, VOCAB = 1000 };

struct fixture {
    struct device dev;
    struct plan plan;
    uint32_t pages[SLOTS][POSITIONS / PAGE_TOKENS];
    int32_t tokens[POSITIONS];
};

/* Only what planning reads. */
static struct fixture *fixture_make(uint32_t group, uint32_t n_kv_heads, bool orthros) {
    struct fixture *f = (struct fixture *)calloc(1, sizeof *f);
    struct device *dev = &f->dev;
    dev->shape.n_layers = 2;
    dev->shape.n_kv_heads = n_kv_heads;
    dev->shape.n_heads = group * n_kv_heads;
    dev->shape.vocab_size = VOCAB;
    dev->shape.max_position = POSITIONS;
    dev->shape.block_size = orthros ? 0 : 16;
    dev->shape.orthros = orthros;
    dev->shape.window = 100;
    dev->group = group;
    dev->head_pad = 16;
    dev->tile_rows = QUERY_TILE / group;
    dev->n_sms = 8;
    dev->scratch_pages = 2;
    dev->limits.n_pages = PAGES;
    dev->limits.n_slots = SLOTS;
    dev->limits.max_rows = ROWS;
    dev->limits.max_logit_rows = LOGITS;
    dev->limits.max_proposed = 15;
    plan_bounds(dev);
    assert_int_equal(plan_init(&f->plan, dev), OK);
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t p = 0; p < POSITIONS / PAGE_TOKENS; p++)
            f->pages[s][p] = (s * 577 + p * 7) % PAGES;
    for (uint32_t i = 0; i < POSITIONS; i++)
        f->tokens[i] = (int32_t)(i * 31 % VOCAB);
    return f;
}
static void fixture_free(struct fixture *f) {
    plan_fini(&f->plan);
    free(f);
}

static struct segment segment_of(const struct fixture *f, enum view view, uint32_t slot,
                                 uint32_t pos, uint32_t n_rows, uint32_t n_logits) {
    struct segment s = {};
    s.slot = slot;
    s.view = (uint8_t)view;
    s.pick = PICK_NONE;
    s.pos = pos;
    s.n_rows = n_rows;
    s.n_logits = n_logits;
    s.tokens = f->tokens + pos;
    s.pages = f->pages[slot];
    return s;
}

static void make(struct fixture *f, const struct segment *segments, uint32_t n) {
    struct forward fwd = {n, segments};
    plan_make(&f->plan, &f->dev, &fwd);
}

static uint32_t n_items(const struct counts *n) {
    return n->n_items[0] + n->n_items[1] + n->n_items[2];
}

/* ---- invariants --------------------------------------------------------------------------------- */

static void check_tiles(const struct fixture *f) {
    const struct plan *p = &f->plan;
    char *seen = (char *)calloc(p->counts.n_rows + 1, 1);
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->counts.n_tiles; i++) {
        const struct tile *t = &p->tiles[i];
        uint32_t lo = UINT32_MAX, hi = 0, before = 0;
        assert_int_equal(t->first, at);
        assert_in_range(t->n_rows, 1, f->dev.tile_rows);
        for (uint32_t r = t->first; r < t->first + t->n_rows; r++) {
            const struct row *row = &p->rows[p->order[r]];
            assert_int_equal(seen[p->order[r]]++, 0);
            assert_int_equal(row->slot, p->segments[t->segment].slot);
            assert_true(row->pos >= before);
            before = row->pos;
            lo = row->lo < lo ? row->lo : lo;
            hi = row->hi > hi ? row->hi : hi;
        }
        assert_int_equal(t->lo, lo);
        assert_int_equal(t->hi, hi);
        at += t->n_rows;
    }
    assert_int_equal(at, p->counts.n_rows);
    free(seen);
}

/* Every split of every tile in one item; parts apart from each other; one merge a row that has parts. */
static void check_items(const struct fixture *f) {
    const struct plan *p = &f->plan;
    const uint32_t group = f->dev.group;
    char *parts = (char *)calloc(f->dev.max_part_rows + 1, 1);
    uint32_t *covered = (uint32_t *)calloc(p->counts.n_tiles + 1, sizeof *covered), n_cut_rows = 0;
    for (uint32_t i = 0; i < n_items(&p->counts); i++) {
        const struct item *item = &p->items[i];
        const struct tile *t = &p->tiles[item->tile];
        uint32_t n = t->n_rows * group, first = t->lo / SPLIT, end = (t->hi + SPLIT - 1) / SPLIT;
        int kind = i < p->counts.n_items[0]                          ? 0
                   : i < p->counts.n_items[0] + p->counts.n_items[1] ? 1
                                                                     : 2;
        assert_true(n <= 16u << kind);
        assert_true(kind == 0 || n > 8u << kind);
        assert_true(item->split >= first && item->split_end <= end &&
                    item->split < item->split_end);
        covered[item->tile] += item->split_end - item->split;
        if (item->part == GPU_NONE) {
            assert_int_equal(item->split, first);
            assert_int_equal(item->split_end, end);
            continue;
        }
        assert_int_equal(item->split_end, item->split + 1);
        assert_true((uint32_t)item->part + n <= f->dev.max_part_rows);
        for (uint32_t r = 0; r < n; r++)
            assert_int_equal(parts[item->part + r]++, 0);
        if (item->split > first) continue;
        for (uint32_t r = 0; r < t->n_rows; r++) { /* find its merge */
            uint32_t m = 0;
            while (m < p->counts.n_merges && p->merges[m].row != p->order[t->first + r])
                m++;
            assert_true(m < p->counts.n_merges);
            assert_int_equal(p->merges[m].part, item->part + r * group);
            assert_int_equal(p->merges[m].stride, n);
            assert_int_equal(p->merges[m].n_splits, end - first);
            n_cut_rows++;
        }
    }
    for (uint32_t i = 0; i < p->counts.n_tiles; i++)
        assert_int_equal(covered[i], (p->tiles[i].hi + SPLIT - 1) / SPLIT - p->tiles[i].lo / SPLIT);
    assert_int_equal(n_cut_rows, p->counts.n_merges);
    free(parts);
    free(covered);
}

static void check_rows(const struct fixture *f) {
    const struct plan *p = &f->plan;
    uint32_t logits = 0;
    for (uint32_t i = 0; i < p->counts.n_rows; i++) {
        const struct row *r = &p->rows[i];
        const struct seg *s = &p->segments[r->segment];
        uint32_t k = i - s->first_row;
        assert_true(k < s->n_rows);
        assert_int_equal(r->pos, s->pos + k);
        assert_int_equal(r->view, s->view);
        assert_int_equal(r->slot, s->slot);
        if (r->view == VIEW_DRAFT) {
            assert_int_equal(r->hi, s->pos + s->n_rows);
            assert_int_equal(r->kv_page, s->scratch + r->pos / 16 - s->pos / 16);
        } else {
            assert_int_equal(r->hi, r->pos + 1);
        }
        bool windowed = r->view == VIEW_BASE && f->dev.shape.orthros && r->pos >= 100;
        assert_int_equal(r->lo, windowed ? r->pos - 99 : 0);
        if (r->view == VIEW_BASE) assert_int_equal(r->kv_page, f->pages[r->slot][r->pos / 16]);
        bool has = r->view == VIEW_DRAFT ? k < s->n_logits : k >= s->n_rows - s->n_logits;
        if (!has) continue;
        assert_int_equal(p->logit_rows[logits], i);
        assert_int_equal(p->logit_segments[logits], r->segment);
        assert_true(logits >= s->first_logit && logits < s->first_logit + s->n_logits);
        logits++;
    }
    assert_int_equal(logits, p->counts.n_logit_rows);
}

/* Random rows of base, output or draft segments in as many slots as there is room for. */
static uint32_t random_segments(const struct fixture *f, struct rng *rng, struct segment *out) {
    uint32_t n = 0, left = ROWS, n_slots = 1 + rng_below(rng, SLOTS), ends[SLOTS];
    bool draft = !f->dev.shape.orthros && rng_below(rng, 3) == 0;
    for (uint32_t slot = 0; slot < n_slots && left > 1; slot++) {
        uint32_t most = draft ? 16 : rng_below(rng, 4) ? 8 : left / 2 + 1;
        uint32_t rows = 1 + rng_below(rng, most < left ? most : left);
        uint32_t pos = rng_below(rng, rng_below(rng, 3) ? 300 : POSITIONS - ROWS);
        ends[slot] = pos + rows;
        out[n++] = segment_of(f, draft ? VIEW_DRAFT : VIEW_BASE, slot, pos, rows,
                              f->dev.shape.orthros ? 0 : rng_below(rng, rows < 8 ? rows + 1 : 2));
        left -= rows;
    }
    for (uint32_t slot = 0; f->dev.shape.orthros && slot < n_slots && slot < n && left; slot++) {
        uint32_t rows = 1 + rng_below(rng, out[slot].n_rows < 8 ? out[slot].n_rows : 8);
        if (rows > left) break;
        left -= rows;
        out[n++] = segment_of(f, VIEW_OUTPUT, slot, ends[slot] - rows, rows, rows);
    }
    return n;
}

static void plans_cover_every_row_and_split_once(void **state) {
    (void)state;
    const uint32_t groups[] = {1, 2, 3, 4, 8, 64};
    struct rng rng;
    uint64_t seed = test_seed();
    rng_seed(&rng, seed);
    for (int round = 0; round < 120; round++) {
        struct fixture *f = fixture_make(groups[round % 6], 1 + rng_below(&rng, 8), round % 2);
        struct segment segments[2 * SLOTS];
        if (round % 5 == 4) f->dev.max_part_rows = rng_below(&rng, 200); /* little room */
        make(f, segments, random_segments(f, &rng, segments));
        check_rows(f);
        check_tiles(f);
        check_items(f);
        fixture_free(f);
    }
}

static void few_long_texts_are_cut_and_many_are_not(void **state) {
    (void)state;
    struct fixture *f = fixture_make(4, 2, false);
    struct segment s[SLOTS];
    s[0] = segment_of(f, VIEW_BASE, 0, 5000, 1, 1);
    make(f, s, 1);
    assert_int_equal(f->plan.counts.n_items[0], 20); /* 5001 positions */
    assert_int_equal(f->plan.counts.n_merges, 1);
    for (uint32_t i = 0; i < SLOTS; i++) /* 12 x 2 blocks for the 16 that 8 SMs want */
        s[i] = segment_of(f, VIEW_BASE, i, 5000, 1, 1);
    make(f, s, SLOTS);
    assert_int_equal(f->plan.counts.n_items[0], SLOTS);
    assert_int_equal(f->plan.counts.n_merges, 0);
    for (uint32_t i = 1; i < SLOTS; i++) /* a straggler */
        s[i].pos = 300;
    make(f, s, SLOTS);
    assert_int_equal(f->plan.counts.n_items[0], 20 + SLOTS - 1);
    assert_int_equal(f->plan.counts.n_merges, 1);
    s[0] = segment_of(f, VIEW_BASE, 0, 0, 200, 1); /* one split: nothing to cut */
    make(f, s, 1);
    assert_int_equal(n_items(&f->plan.counts), 13);
    assert_int_equal(f->plan.counts.n_merges, 0);
    fixture_free(f);
}

/* ---- contents ----------------------------------------------------------------------------------- */

static void rows_of_each_view_have_their_own_fields(void **state) {
    (void)state;
    struct fixture *f = fixture_make(2, 2, true);
    struct segment s[3] = {segment_of(f, VIEW_BASE, 3, 110, 5, 0),
                           segment_of(f, VIEW_BASE, 1, 0, 2, 0),
                           segment_of(f, VIEW_OUTPUT, 3, 113, 2, 2)};
    make(f, s, 3);
    const struct plan *p = &f->plan;
    assert_int_equal(p->counts.n_rows, 9);
    assert_int_equal(p->counts.n_kv_rows, 7);
    assert_int_equal(p->counts.n_logit_rows, 2);
    const uint32_t order[] = {0, 1, 2, 3, 7, 4, 8, 5, 6};
    assert_memory_equal(p->order, order, sizeof order);
    assert_int_equal(p->segments[2].own, 0);
    assert_int_equal(p->segments[2].pages, p->segments[0].pages); /* one table */
    assert_int_equal(p->n_pages, 8 + 1);
    assert_int_equal(p->rows[0].lo, 11);
    assert_int_equal(p->rows[7].lo, 0);
    check_rows(f);
    make(f, s + 2, 1); /* output rows alone */
    assert_int_equal(p->segments[0].own, GPU_NONE);
    assert_int_equal(p->counts.n_kv_rows, 0);
    fixture_free(f);
}

static void what_does_not_fit_trips_an_assertion(void **state) {
    (void)state;
    struct fixture *f = fixture_make(2, 2, false);
    struct segment bad[2];
    for (int i = 0; i < 11; i++) {
        bad[0] = segment_of(f, VIEW_BASE, 0, 20, 4, 1);
        bad[1] = segment_of(f, VIEW_BASE, 1, 20, 4, 1);
        if (i == 0) bad[1].slot = 0;
        if (i == 1) bad[1].slot = SLOTS;
        if (i == 2) bad[1].n_rows = ROWS - 3;
        if (i == 3) bad[1].pos = POSITIONS - 3;
        if (i == 4) bad[1].n_proposed = 1; /* nobody asked for any */
        if (i == 5) bad[1].view = VIEW_OUTPUT;
        if (i == 6) bad[1].view = VIEW_DRAFT;
        if (i == 7) bad[1].n_rows = 0;
        if (i == 8) bad[1].n_logits = 5;
        if (i == 9) bad[1].given = true, bad[1].n_proposed = 16, bad[1].n_rows = 20;
        if (i == 10) f->tokens[22] = VOCAB;
        assert_trips(make(f, bad, 2));
    }
    fixture_free(f);
}

/* ---- to the device ------------------------------------------------------------------------------ */

static struct batch batch_make(const struct device *dev) {
    const struct device_limits *l = &dev->limits;
    struct batch b;
    b.counts = device_copy<struct counts>(NULL, 2);
    b.rows = device_copy<struct row>(NULL, l->max_rows);
    b.segments = device_copy<struct seg>(NULL, 2 * l->n_slots + 1);
    b.order = device_copy<uint32_t>(NULL, l->max_rows + 4);
    b.tiles = device_copy<struct tile>(NULL, l->max_rows + 4);
    b.items = device_copy<struct item>(NULL, dev->max_items);
    b.merges = device_copy<struct merge>(NULL, l->max_rows);
    b.logit_rows = device_copy<uint32_t>(NULL, l->max_logit_rows + 4);
    b.logit_segments = device_copy<uint32_t>(NULL, l->max_logit_rows + 4);
    b.pages = device_copy<uint32_t>(NULL, dev->max_pages + 4);
    b.tokens = device_copy<int32_t>(NULL, dev->max_tokens + 4);
    return b;
}
static void batch_free(struct batch *b) {
    void *all[] = {b->counts, b->rows,       b->segments,       b->order, b->tiles, b->items,
                   b->merges, b->logit_rows, b->logit_segments, b->pages, b->tokens};
    for (void *p : all)
        check_cuda(cudaFree(p));
}
template <class T> static void same_on_device(const T *device, const T *host, size_t n) {
    T *back = (T *)malloc((n + 1) * sizeof(T));
    host_copy(back, device, n);
    assert_memory_equal(back, host, n * sizeof(T));
    free(back);
}

static void unpack_to(struct fixture *f, struct batch *b) {
    size_t room = plan_inbox_bytes(&f->dev);
    struct inbox *inbox = (struct inbox *)malloc(room);
    size_t bytes = plan_pack(&f->plan, inbox);
    assert_true(bytes <= room);
    char *packed = device_copy((const char *)inbox, bytes);
    f->dev.batch = *b;
    check_cuda(gpu_unpack(&f->dev, (const struct inbox *)packed, NULL));
    check_cuda(cudaDeviceSynchronize());
    check_cuda(cudaFree(packed));
    free(inbox);
}

static void an_inbox_arrives_whole(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    struct rng rng;
    rng_seed(&rng, seed);
    for (int i = 0; i < N_ORDERS; i++) {
        use_order(i, seed);
        struct fixture *f = fixture_make(4, 2, i % 2);
        struct segment segments[2 * SLOTS];
        struct batch b = batch_make(&f->dev);
        uint32_t n = random_segments(f, &rng, segments);
        make(f, segments, n);
        unpack_to(f, &b);
        const struct plan *p = &f->plan;
        same_on_device(b.counts, &p->counts, 1);
        same_on_device(b.rows, p->rows, p->counts.n_rows);
        same_on_device(b.segments, p->segments, n);
        same_on_device(b.order, p->order, p->n_ordered);
        same_on_device(b.tiles, p->tiles, p->counts.n_tiles);
        same_on_device(b.items, p->items, n_items(&p->counts));
        same_on_device(b.merges, p->merges, p->counts.n_merges);
        same_on_device(b.logit_rows, p->logit_rows, p->counts.n_logit_rows);
        same_on_device(b.logit_segments, p->logit_segments, p->counts.n_logit_rows);
        for (uint32_t k = 0; k < n; k++)
            same_on_device(b.pages + p->segments[k].pages, f->pages[p->segments[k].slot],
                           p->segments[k].n_pages);
        batch_free(&b);
        fixture_free(f);
    }
}

static void proposals_come_from_the_slot_and_given_ones_from_the_host(void **state) {
    (void)state;
    struct fixture *f = fixture_make(4, 2, false);
    struct batch b = batch_make(&f->dev);
    struct gpu_slot *slots = (struct gpu_slot *)calloc(SLOTS, sizeof *slots);
    slots[2].n_proposals = 2;
    slots[2].proposals[0] = 77, slots[2].proposals[1] = 78, slots[2].proposals[2] = 79;
    f->dev.slots = device_copy(slots, SLOTS);
    f->plan.slots[2].n_asked = 3;
    f->plan.slots[5].counts_text = true;
    struct segment s[2] = {segment_of(f, VIEW_BASE, 2, 40, 5, 4),
                           segment_of(f, VIEW_BASE, 5, 30, 3, 3)};
    s[0].n_proposed = 3;
    s[0].pick = PICK_ACCEPT;
    s[1].n_proposed = 2, s[1].given = true;
    s[1].pick = PICK_ACCEPT;
    s[1].prompt_len = 25, s[1].out_pos = 6;
    s[0].history = s[1].history = f->tokens + 3;
    make(f, s, 2);
    unpack_to(f, &b);
    struct row rows[8];
    host_copy(rows, b.rows, 8);
    const int32_t wanted[] = {f->tokens[40], f->tokens[41], 77,           78, 0,
                              f->tokens[30], f->tokens[31], f->tokens[32]};
    for (int i = 0; i < 8; i++)
        assert_int_equal(rows[i].token, wanted[i]);
    const struct seg *given = &f->plan.segments[1];
    assert_int_equal(f->plan.n_tokens, 2 + 31); /* slot 2's rules do not look at the text */
    same_on_device(b.tokens + given->tokens, f->tokens + 31, 2);
    same_on_device(b.tokens + given->history, f->tokens + 3, 31);
    assert_int_equal(given->outcome, 1);
    check_cuda(cudaFree(f->dev.slots));
    free(slots);
    batch_free(&b);
    fixture_free(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_cover_every_row_and_split_once),
        cmocka_unit_test(few_long_texts_are_cut_and_many_are_not),
        cmocka_unit_test(rows_of_each_view_have_their_own_fields),
        cmocka_unit_test(what_does_not_fit_trips_an_assertion),
        cmocka_unit_test(an_inbox_arrives_whole),
        cmocka_unit_test(proposals_come_from_the_slot_and_given_ones_from_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
