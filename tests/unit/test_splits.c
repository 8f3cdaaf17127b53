/* A tile of query rows whose blocks are dealt out among threads: its rows have the bits of a thread
 * that walks it whole, and each page is still read once. */
#include "tests/unit/tiny_model.h"

enum {
    POSITIONS = 4096,
    ROWS = 128,
    HEADS = 6,
    DIM = 32,
    WIDTH = HEADS * DIM,
    SLOTS = 6,
    SCENES_MAX = 12
};

struct text {
    int32_t tokens[POSITIONS];
    uint32_t pages[POSITIONS / PAGE_TOKENS];
};

/* All sequences of a test read the same pages, in orders of their own. */
static struct text texts[SLOTS];

static void make_texts(void) {
    for (uint32_t s = 0; s < SLOTS; s++)
        for (uint32_t i = 0; i < ARRAY_LEN(texts[s].pages); i++)
            texts[s].pages[i] = (i * (37 + 2 * s) + s) % ARRAY_LEN(texts[s].pages);
}

static struct segment rows_of(uint32_t slot, enum view view, uint32_t pos, uint32_t n) {
    return (struct segment){.slot = slot,
                            .view = (uint8_t)view,
                            .pos = pos,
                            .n_rows = n,
                            .n_logits = view == VIEW_DRAFT ? n : 0,
                            .tokens = texts[slot].tokens,
                            .pages = texts[slot].pages};
}

/* A forward's rows. */
struct scene {
    const char *what;
    uint32_t n_segments;
    struct segment segments[SLOTS];
};

/* Scenes of one model. */
struct play {
    uint32_t window, block_size;
    uint32_t n_scenes;
    struct scene scenes[SCENES_MAX];
};

/* Tables that attend in bf16 do so where both are. */
struct kind {
    enum dtype kv;
    enum activations activations;
};
static const struct kind in_bf16 = {DTYPE_BF16, ACTIVATIONS_BF16};

/* Every page holds random K and V. */
static struct tiny open_for(const struct kernels *k, const struct play *play, struct kind kind,
                            uint32_t n_threads) {
    struct tiny_options o = tiny_defaults();
    o.kv = kind.kv;
    o.activations = kind.activations;
    o.n_threads = n_threads;
    o.head_dim = DIM;
    o.positions = POSITIONS;
    o.rows = ROWS;
    o.orthros = play->window > 0;
    o.window = play->window;
    o.block_size = play->block_size;
    struct tiny t = tiny_open(k, &o);
    struct device *dev = t.dev;
    struct rng rng;
    rng_seed(&rng, 3);
    float x[2 * DIM + 64]; /* numbers enough for every vector to begin at another */
    for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
        x[i] = 2 * rng_normal(&rng);
    for (uint32_t page = 0; page < t.limits.n_pages; page++)
        for (uint32_t i = 0; i < 2 * PAGE_TOKENS; i++) {
            char *head = cpu_cached_page(dev, page, 0) + i % 2 * dev->head_bytes;
            const float *from = x + rng_below(&rng, 64);
            dev->ops->kv_store(dev, head, i / 2, from, from + DIM);
        }
    return t;
}

/* What the stages before attention leave: q, and the K and V of draft blocks. */
static void fill_rows(struct device *dev) {
    struct rng rng;
    rng_seed(&rng, 4);
    for (size_t i = 0; i < dev->n_rows * dev->ld_q; i++)
        dev->q[i] = rng_normal(&rng);
    for (uint32_t i = 0; dev->drafting && i < dev->scratch_pages * dev->fwd.n_segments; i++)
        memcpy(dev->kv_scratch + i * dev->layer_bytes, cpu_cached_page(dev, 3 + i, 0),
               dev->layer_bytes);
}

struct result {
    uint32_t n_rows, n_splits, n_tiles;
    uint64_t n_pages;
    float o[ROWS * WIDTH];
};

static void walk(struct tiny *t, const struct scene *scene, struct result *r) {
    struct device *dev = t->dev;
    uint64_t before = dev->kv_pages_read;
    memset(dev->o, 0xff, dev->n_rows * dev->ld_q * sizeof *dev->o);
    assert_int_equal(t->k->attend(dev, 0), OK);
    r->n_rows = dev->n_rows, r->n_tiles = dev->n_tiles, r->n_splits = dev->n_splits;
    r->n_pages = dev->kv_pages_read - before;
    for (uint32_t row = 0; row < dev->n_rows; row++)
        memcpy(r->o + (size_t)row * WIDTH, dev->o + row * dev->ld_q, WIDTH * sizeof *r->o);
    for (uint32_t i = 0; i < dev->n_rows * WIDTH; i++)
        if (!isfinite(r->o[i])) fail_msg("%s: number %u was not written", scene->what, i);
}

static void assert_same(const struct result *a, const struct result *b, const char *what) {
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_pages, b->n_pages);
    assert_same_bits(a->o, b->o, (size_t)a->n_rows * WIDTH, what);
}

/* All scenes on one device: results[n_scenes]. */
static void perform(const struct kernels *k, const struct play *play, struct kind kind,
                    uint32_t n_threads, struct result *results) {
    static struct result again;
    struct tiny t = open_for(k, play, kind, n_threads);
    for (uint32_t i = 0; i < play->n_scenes; i++) {
        const struct scene *scene = &play->scenes[i];
        struct forward fwd = {scene->n_segments, scene->segments};
        assert_int_equal(k->begin(t.dev, &fwd), OK);
        fill_rows(t.dev);
        walk(&t, scene, &results[i]);
        walk(&t, scene, &again); /* the counters are as the first walk found them */
        assert_same(&again, &results[i], scene->what);
        tiny_end(&t);
    }
    tiny_close(&t);
}

static void walk_play(const struct play *play) {
    static struct result whole[SCENES_MAX], split[SCENES_MAX];
    const struct kind kinds[] = {
        in_bf16, {.kv = DTYPE_F32}, {.kv = DTYPE_BF16}, {.kv = DTYPE_Q8_0}};
    size_t n_kinds = tiles_are_emulated() ? 1 : ARRAY_LEN(kinds);
    for (uint32_t i = 1; i < n_tables; i++)
        for (size_t kind = tables[i] != kernels_amx(); kind < n_kinds; kind++) {
            perform(tables[i], play, kinds[kind], 1, whole);
            for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
                perform(tables[i], play, kinds[kind], n_threads, split);
                for (uint32_t j = 0; j < play->n_scenes; j++) {
                    const char *what = play->scenes[j].what;
                    assert_int_equal(whole[j].n_splits, 0);
                    if (split[j].n_splits == 0) fail_msg("%s: nothing was split", what);
                    assert_same(&split[j], &whole[j], what);
                }
            }
        }
}

static struct scene scene_of(const char *what, struct segment segment) {
    return (struct scene){what, 1, {segment}};
}

static void splits_keep_the_bits_of_one_sequence(void **state) {
    (void)state;
    if (n_tables < 2) skip(); /* ref walks row by row */
    /* ends inside a page, a block and a run, and on their borders */
    const uint32_t ends[] = {385, 512, 1000, 1279, 2048, 4096};
    struct play play = {.n_scenes = 0};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        for (uint32_t n = 1; n <= 9; n += 8)
            play.scenes[play.n_scenes++] = scene_of(n == 1 ? "decode step" : "verification",
                                                    rows_of(0, VIEW_BASE, ends[i] - n, n));
    walk_play(&play);
}

static void splits_keep_the_bits_beside_other_sequences(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.n_scenes = 1};
    play.scenes[0] = (struct scene){"a long text among short ones",
                                    4,
                                    {rows_of(0, VIEW_BASE, 3, 1), rows_of(1, VIEW_BASE, 4000, 5),
                                     rows_of(2, VIEW_BASE, 130, 20), /* a chunk of two tiles */
                                     rows_of(3, VIEW_BASE, 1500, 1)}};
    walk_play(&play);
}

static void splits_keep_the_bits_of_draft_blocks(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.block_size = 16, .n_scenes = 1};
    play.scenes[0] =
        (struct scene){"draft blocks", /* the first lies across a block's end */
                       2,
                       {rows_of(0, VIEW_DRAFT, 1019, 16), rows_of(1, VIEW_DRAFT, 2000, 7)}};
    walk_play(&play);
}

/* Base rows see the last `window` positions, output rows all: blocks that base rows do not see are
 * merged for the others alone. */
static void splits_keep_the_bits_of_windows(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.window = 700, .n_scenes = 2};
    play.scenes[0] = scene_of("base rows alone", rows_of(0, VIEW_BASE, 3000, 4));
    play.scenes[1] =
        (struct scene){"base and output rows",
                       2,
                       {rows_of(0, VIEW_BASE, 2111, 4), rows_of(0, VIEW_OUTPUT, 2110, 5)}};
    walk_play(&play);
}

/* Six verifications of eight rows at full length want five times the room that there is. */
static void tiles_without_room_stay_whole(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.n_scenes = 1, .scenes = {{.what = "too many", .n_segments = SLOTS}}};
    for (uint32_t i = 0; i < SLOTS; i++)
        play.scenes[0].segments[i] = rows_of(i, VIEW_BASE, POSITIONS - 8 - i, 8);
    walk_play(&play);
    static struct result r;
    perform(tables[n_tables - 1], &play, in_bf16, 4, &r);
    assert_in_range(r.n_splits, 1, r.n_tiles - 1);
}

/* A chunk of a prompt has tiles enough for all threads, and is spared the detour; two blocks are not
 * worth a task each. */
static void prefill_and_short_texts_stay_whole(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.n_scenes = 2};
    play.scenes[0] = scene_of("chunk", rows_of(0, VIEW_BASE, 2000, ROWS));
    play.scenes[1] = scene_of("two blocks", rows_of(0, VIEW_BASE, 255, 1));
    static struct result r[2];
    perform(tables[n_tables - 1], &play, in_bf16, 2, r);
    assert_int_equal(r[0].n_splits, 0);
    assert_int_equal(r[1].n_splits, 0);
}

/* One thread and the ref table have nothing to merge; what the others hold is counted. */
static void the_workspace_counts_what_splits_need(void **state) {
    (void)state;
    if (n_tables < 2) skip();
    struct play play = {.n_scenes = 0};
    size_t parts = (size_t)POSITIONS / ATTEND_BLOCK * 2 * 10 * 3 * (DIM + 2) * sizeof(float);
    for (uint32_t i = 0; i < n_tables; i++) {
        struct tiny one = open_for(tables[i], &play, in_bf16, 1),
                    two = open_for(tables[i], &play, in_bf16, 2);
        size_t a = tables[i]->workspace_bytes(one.dev, &one.limits),
               b = tables[i]->workspace_bytes(two.dev, &two.limits);
        assert_int_equal(one.dev->parts_cap, 0);
        assert_true((two.dev->parts_cap > 0) == (i > 0));
        if (i > 0) assert_true(b - a >= parts);
        tiny_close(&one);
        tiny_close(&two);
    }
}

int main(void) {
    tables_find();
    make_texts();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_keep_the_bits_of_one_sequence),
        cmocka_unit_test(splits_keep_the_bits_beside_other_sequences),
        cmocka_unit_test(splits_keep_the_bits_of_draft_blocks),
        cmocka_unit_test(splits_keep_the_bits_of_windows),
        cmocka_unit_test(tiles_without_room_stay_whole),
        cmocka_unit_test(prefill_and_short_texts_stay_whole),
        cmocka_unit_test(the_workspace_counts_what_splits_need),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
