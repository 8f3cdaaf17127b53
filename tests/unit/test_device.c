/* A device's life and limits: what it refuses, and what it asserts. */
#include "tests/unit/tiny_model.h"

/* The first table, and the one that a user gets. */
#define PLAIN (tables[0])
#define BEST  (tables[n_tables - 1])

static const double freq[8] = {1, 0.5, 0.25, 0.125, 0.1, 0.05, 0.02, 0.01};

static struct model_shape small_shape(void) {
    struct tiny_options o = tiny_defaults();
    return tiny_shape(&o, freq);
}

static void shapes_that_cannot_be_are_refused(void **state) {
    (void)state;
    const struct kernels *k = PLAIN;
    struct device *dev = NULL;
    struct err err = {0};
    for (int i = 0; i < 8; i++) {
        struct model_shape s = small_shape();
        const char *words[] = {"layers is 0", "4 kv heads", "head_dim 15",  "block_size 65",
                               "window 0",    "vocab_size", "positions is", "0, expected 1 .. 256"};
        uint32_t n_threads = i == 7 ? 0 : 1;
        if (i == 0) s.n_layers = 0;
        if (i == 1) s.n_kv_heads = 4;
        if (i == 2) s.head_dim = 15;
        if (i == 3) s.block_size = 65;
        if (i == 4) s.orthros = true;
        if (i == 5) s.vocab_size = UINT32_MAX;
        if (i == 6) s.max_position = 0;
        assert_int_equal(k->open(&s, n_threads, &dev, &err), ERR_INVALID);
        if (!strstr(err.msg, words[i])) fail_msg("%d: %s", i, err.msg);
        assert_null(dev);
    }
    k->close(NULL);
}

static void weights_of_the_wrong_shape_or_type_are_named(void **state) {
    (void)state;
    const struct kernels *k = BEST;
    struct model_shape s = small_shape();
    struct device *dev;
    struct err err = {0};
    assert_int_equal(k->open(&s, 1, &dev, &err), OK);
    static float zeros[96 * 64];
    struct tensor t = {DTYPE_F32, 96, 63, zeros};
    assert_int_equal(k->load(dev, WEIGHT_Q, 1, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: layers.1.q_proj: shape [96,63], config wants [96,64]");
    t = (struct tensor){DTYPE_F32, 64, 96, zeros};
    assert_int_equal(k->load(dev, WEIGHT_Q, 0, &t, &err), ERR_INVALID);
    t = (struct tensor){DTYPE_F16, 1, 64, zeros};
    assert_int_equal(k->load(dev, WEIGHT_FINAL_NORM, 0, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: norm: a vector of type f16, expected f32");
    t = (struct tensor){DTYPE_F32, 96, 64, zeros};
    assert_int_equal(k->load(dev, WEIGHT_Q, 2, &t, &err), ERR_INVALID); /* layer */
    assert_int_equal(k->load(dev, WEIGHT_Q, 1, &t, &err), OK);
    assert_int_equal(k->load(dev, WEIGHT_Q, 1, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: layers.1.q_proj: loaded twice");
    t = (struct tensor){DTYPE_F32, 320, 64, zeros};
    assert_int_equal(k->load(dev, WEIGHT_LM_HEAD, 0, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: lm_head: the model's head is tied");
    k->close(dev);

    s.d_model = 40;
    assert_int_equal(k->open(&s, 1, &dev, &err), OK);
    t = (struct tensor){DTYPE_Q4_0, 96, 40, zeros};
    assert_int_equal(k->load(dev, WEIGHT_Q, 0, &t, &err), ERR_INVALID);
    assert_string_equal(err.msg,
                        "weights: layers.0.q_proj: 40 columns, q4_0 needs a multiple of 32");
    k->close(dev);
}

static const struct device_limits limits = {
    .kv_dtype = DTYPE_F32, .n_pages = 8, .n_slots = 2, .max_rows = 16, .max_logit_rows = 4};

static void reserve_names_the_first_missing_weight(void **state) {
    (void)state;
    const struct kernels *k = PLAIN;
    struct tiny_options o = tiny_defaults();
    struct err err = {0};
    struct tiny t = {.k = k, .shape = small_shape()};
    t.shape.block_size = 4;
    assert_int_equal(k->open(&t.shape, 1, &t.dev, &err), OK);
    assert_int_equal(k->reserve(t.dev, &limits, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: embed_tokens: missing");
    tiny_load(&t, WEIGHT_EMBED, 0, DTYPE_F32, 320, 64, 0, 1);
    tiny_load(&t, WEIGHT_FINAL_NORM, 0, DTYPE_F32, 1, 64, 0, 1);
    t.shape.block_size = 0; /* tiny_load_layer: no *_diff */
    for (uint32_t l = 0; l < 2; l++)
        tiny_load_layer(&t, l, &o);
    assert_int_equal(k->reserve(t.dev, &limits, &err), ERR_INVALID);
    assert_string_equal(err.msg, "weights: layers.0.q_proj_diff: missing");
    k->close(t.dev);
}

static void impossible_limits_are_errors(void **state) {
    (void)state;
    const struct kernels *k = PLAIN;
    struct tiny_options o = tiny_defaults();
    struct err err = {0};
    struct tiny t = {.k = k, .shape = small_shape()};
    assert_int_equal(k->open(&t.shape, 1, &t.dev, &err), OK);
    tiny_load(&t, WEIGHT_EMBED, 0, DTYPE_F32, 320, 64, 0, 1);
    tiny_load(&t, WEIGHT_FINAL_NORM, 0, DTYPE_F32, 1, 64, 0, 1);
    for (uint32_t l = 0; l < 2; l++)
        tiny_load_layer(&t, l, &o);
    struct device_limits l = limits;
    l.kv_dtype = DTYPE_F16;
    assert_int_equal(k->reserve(t.dev, &l, &err), ERR_INVALID);
    l = limits, l.n_slots = 0;
    assert_int_equal(k->reserve(t.dev, &l, &err), ERR_INVALID);
    assert_string_equal(err.msg, "device: 0 slots, expected 1 .. 1073741824");
    l = limits, l.n_pages = 1u << 30; /* 8 TiB */
    assert_int_equal(k->reserve(t.dev, &l, &err), ERR_NOMEM);
    if (!tables_are_cuda()) assert_non_null(strstr(err.msg, "8796093022208"));
    l = limits, l.max_logit_rows = 1u << 30;
    l.max_rows = 1u << 30;
    assert_true(k->workspace_bytes(t.dev, &l) > (size_t)1 << 40);
    assert_int_equal(k->reserve(t.dev, &l, &err), ERR_NOMEM);
    assert_int_equal(k->reserve(t.dev, &limits, &err), OK);
    assert_true(k->workspace_bytes(t.dev, &limits) > 16 * 64 * 4);
    assert_int_equal(k->page_bytes(t.dev, DTYPE_BF16), 2 * 2 * 2 * 16 * 16 * 2);
    k->close(t.dev);
}

static int begin(struct tiny *t, struct segment a) {
    struct forward fwd = {1, &a};
    return t->k->begin(t->dev, &fwd);
}

static void begin_trips(struct tiny *t, struct segment a) {
    assert_trips(begin(t, a));
}

static void rows_outside_the_limits_trip_assertions(void **state) {
    (void)state;
    struct tiny_options o = tiny_defaults();
    struct tiny t = tiny_open(BEST, &o);
    struct tiny_sequence s = tiny_sequence(0, TINY_POSITIONS, 1, 0, 1);
    struct segment good = tiny_segment(&s, VIEW_BASE, 0, 20, 1), bad;
    assert_int_equal(begin(&t, good), OK);
    tiny_end(&t);
    bad = good, bad.slot = TINY_SLOTS;
    begin_trips(&t, bad);
    bad = good, bad.n_rows = 0;
    begin_trips(&t, bad);
    bad = good, bad.n_rows = TINY_ROWS + 1;
    begin_trips(&t, bad);
    bad = good, bad.pos = TINY_POSITIONS - 19;
    begin_trips(&t, bad);
    bad = good, bad.pos = UINT32_MAX;
    begin_trips(&t, bad);
    bad = good, bad.n_logits = 21;
    begin_trips(&t, bad);
    bad = good, bad.n_proposed = 1;
    begin_trips(&t, bad);
    bad = good, bad.n_proposed = 21, bad.given = true;
    begin_trips(&t, bad);
    bad = good, bad.view = VIEW_OUTPUT;
    begin_trips(&t, bad); /* not an Orthros model */
    bad = good, bad.view = VIEW_DRAFT;
    begin_trips(&t, bad); /* no draft view */
    bad = good, bad.view = 3;
    begin_trips(&t, bad);
    bad = good, bad.pick = PICK_PROPOSE;
    begin_trips(&t, bad);
    s.pages[1] = TINY_PAGES;
    begin_trips(&t, good);
    s.pages[1] = 1;
    s.tokens[19] = 320;
    begin_trips(&t, good);
    s.tokens[19] = -1;
    begin_trips(&t, good);
    bad = good, bad.n_proposed = 1, bad.given = true;
    begin_trips(&t, bad); /* a given proposal is no token */
    s.tokens[19] = 319;
    assert_int_equal(begin(&t, bad), OK);
    struct bias outside = {320, 1};
    assert_trips(t.k->slot_set(t.dev, 0, &(struct rules){.n_bias = 1, .bias = &outside}));
    struct segment twice[2] = {good, good};
    struct forward fwd = {2, twice};
    assert_trips(t.k->begin(t.dev, &fwd));
    assert_int_equal(begin(&t, good), OK);
    tiny_close(&t);
}

static void tables_are_found_by_name(void **state) {
    (void)state;
    struct err err = {0};
    const struct kernels *cpu_tables[] = {kernels_ref(), kernels_avx2(), kernels_avx512(),
                                          kernels_amx()};
    const char *names[] = {"ref", "avx2", "avx512", "amx"};
    const struct kernels *best = NULL;
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(kernels_find(names[i], &err), cpu_tables[i]);
        if (!cpu_tables[i]) {
            assert_non_null(strstr(err.msg, "this processor lacks"));
            continue;
        }
        assert_string_equal(cpu_tables[i]->name, names[i]);
        best = cpu_tables[i];
    }
    assert_ptr_equal(kernels_find("auto", &err), best);
    assert_null(kernels_find("sse9", &err));
    assert_string_equal(err.msg, "kernels: 'sse9', expected auto, ref, avx2, avx512 or amx");
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_cannot_be_are_refused),
        cmocka_unit_test(weights_of_the_wrong_shape_or_type_are_named),
        cmocka_unit_test(reserve_names_the_first_missing_weight),
        cmocka_unit_test(impossible_limits_are_errors),
        cmocka_unit_test(rows_outside_the_limits_trip_assertions),
        cmocka_unit_test(tables_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
