/* Named shapes: sizes as published, options of a spec, and what a made model can do. */
#include "engine/load/synthetic.h"

#include <stdlib.h>
#include <string.h>

#include "engine/load/weights.h"
#include "tests/harness.h"
#include "tests/unit/fake_model_device.h"

static void shape_of(const char *spec, struct config *config, uint64_t *n_numbers) {
    struct err err = {0};
    struct weight_plan plan = {0};
    if (synthetic_config(spec, config, &err)) fail_msg("%s: %s", spec, err.msg);
    if (weights_plan(NULL, config, &plan, &err)) fail_msg("%s: %s", spec, err.msg);
    *n_numbers = 0;
    for (size_t i = 0; i < plan.n_items; i++)
        *n_numbers += (uint64_t)plan.items[i].rows * plan.items[i].cols;
    weights_plan_free(&plan);
}

static void make(const char *spec, const char *dtype, struct model **out) {
    struct err err = {0};
    struct model_options options = {
        .synthetic = spec, .dtype = dtype, .cpu_table = "auto", .n_threads = 1};
    if (model_load(&options, out, &err)) fail_msg("%s", err.msg);
}

static void shapes_have_the_published_number_of_parameters(void **state) {
    (void)state;
    const struct {
        const char *name;
        uint64_t n;
    } published[] = {{"smollm2-135m", 134515008},
                     {"qwen3-1.7b", 1720574976},
                     {"qwen3-8b", 8190735360},
                     {"llama3.1-8b", 8030261248}};
    for (size_t i = 0; i < ARRAY_LEN(published); i++) {
        struct config config;
        uint64_t n;
        shape_of(published[i].name, &config, &n);
        assert_int_equal(n, published[i].n);
        assert_false(config.shape.orthros);
        assert_int_equal(config.shape.block_size, 0);
        assert_in_range(config.shape.max_position, 32768, 131072); /* `make bench`: 16k and more */
        config_fini(&config);
    }
}

static void options_add_streams_and_a_draft_view(void **state) {
    (void)state;
    struct config plain, both;
    uint64_t n_plain, n_both;
    shape_of("smollm2-135m", &plain, &n_plain);
    shape_of("smollm2-135m,drafts=16,window=256", &both, &n_both);
    assert_true(both.shape.orthros);
    assert_int_equal(both.shape.window, 256);
    assert_int_equal(both.shape.block_size, 16);
    assert_in_range(both.shape.mask_token, 0, both.shape.vocab_size - 1);
    uint64_t projections = 2 * 576 * 576 + 2 * 576 * 192; /* q and o, k and v */
    assert_int_equal(n_both - n_plain, 30 * projections);
    config_fini(&plain);
    config_fini(&both);
}

static void msar_adds_a_residual_path_and_its_costs(void **state) {
    (void)state;
    struct config plain, msar;
    uint64_t n_plain, n_msar;
    shape_of("smollm2-135m", &plain, &n_plain);
    shape_of("smollm2-135m,drafts=8,msar", &msar, &n_msar);
    assert_int_equal(msar.shape.n_msar_streams, 4);
    assert_int_equal(msar.shape.msar_branches, 4);
    assert_int_equal(msar.shape.msar_kernels[3], 12);
    uint64_t drafts = 30 * (2 * 576 * 576 + 2 * 576 * 192);
    /* 60 branches in 15 blocks; kernels 4 + 8 + 12 */
    uint64_t convs = 16 * 24 * 576, reads = 60 * (4 * 576 + 16 * 576 + 4 + 1);
    assert_int_equal(n_msar - n_plain - drafts, convs + reads + 576);
    config_fini(&plain);
    config_fini(&msar);

    struct model *a, *b;
    struct model_costs without, with;
    make("smollm2-135m", "q8_0", &a);
    make("smollm2-135m,msar", "q8_0", &b);
    model_costs(a, &without);
    model_costs(b, &with);
    /* Branches 0 .. 3 of block n read n + 1, n + 2, n + 2, n + 2 sources. */
    uint64_t n_read = 0;
    for (uint64_t n = 0; n < 15; n++)
        n_read += 4 * n + 7;
    uint64_t scores_and_sums = n_read * 4 * (2 * 576 + 2 * 576);
    uint64_t expansions = 60 * 2 * 24 * 576, norms = 60 * 4 * 2 * 576;
    uint64_t mixers = 60 * (2 * 16 * 576 + 2 * 4 * 576 + 2 * 4 * 576);
    assert_int_equal(with.base_flops - without.base_flops,
                     scores_and_sums + expansions + norms + mixers);
    assert_int_equal(with.draft_flops - without.draft_flops, with.base_flops - without.base_flops);
    assert_int_equal(with.head_flops - without.head_flops, 16 * 4 * 576 + 2 * 576);
    assert_int_equal(with.main_bytes - without.main_bytes, 4 * (convs + reads + 576));
    model_destroy(a);
    model_destroy(b);
}

static void bad_specs_are_refused_by_name(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "NAME"},
        {",", "known are"},
        {"gpt-5", "gpt-5"},
        {"smollm2", "smollm2-135m"},
        {"qwen3-8b,msar=4", "msar=4"},
        {"qwen3-8b,fast", "fast"},
        {"qwen3-8b,window=0", "window=0"},
        {"qwen3-8b,window=", "window="},
        {"qwen3-8b,window=12x", "window=12x"},
        {"qwen3-8b,window=99999999999999999999", "window="},
        {"qwen3-8b,drafts=1", "drafts=1"},
        {"qwen3-8b,drafts=65", "drafts=65"},
        {"qwen3-8b,window=4,drafts=-2", "drafts=-2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct config config;
        struct err err = {0};
        assert_int_equal(synthetic_config(bad[i][0], &config, &err), ERR_INVALID);
        if (!strstr(err.msg, bad[i][1])) fail_msg("\"%s\": %s", bad[i][0], err.msg);
    }
    char longest[300];
    memset(longest, 'q', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    struct config config;
    struct err err = {0};
    assert_int_equal(synthetic_config(longest, &config, &err), ERR_INVALID);
}

static void a_made_model_knows_its_costs_and_repeats_itself(void **state) {
    (void)state;
    struct model *a, *b;
    make("smollm2-135m", "q8_0", &a);
    make("smollm2-135m", "q8_0", &b);
    assert_int_equal(model_info(a)->fingerprint, model_info(b)->fingerprint);
    struct model_costs costs;
    model_costs(a, &costs);
    const uint64_t layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536, head = 49152 * 576;
    assert_int_equal(costs.base_flops, 2 * 30 * layer);
    assert_int_equal(costs.head_flops, 2 * head);
    assert_int_equal(costs.main_bytes, (30 * layer + head) / 32 * 34); /* q8_0 blocks */
    assert_int_equal(costs.attend_flops, 4 * 30 * 576);
    assert_int_equal(costs.output_flops, 2 * 30 * (layer - 2 * 576 * 192));

    char *text;
    size_t len;
    struct err err = {0};
    int32_t ids[] = {0, 27, 49151};
    assert_int_equal(model_detokenize(a, ids, 3, false, &text, &len, &err), OK);
    assert_string_equal(text, " aaaa aabb cusl");
    free(text);
    model_destroy(a);
    model_destroy(b);
}

/* What a device that makes its own numbers is asked for. */
static struct {
    uint32_t n, n_random;
    uint64_t seeds; /* added up */
} made;

static int fake_load_random(struct device *dev, enum weight which, uint32_t layer, enum dtype dtype,
                            uint64_t seed, float mean, float spread, struct err *err) {
    (void)dev;
    (void)err;
    if (which == WEIGHT_DOWN && layer == 29) {
        assert_int_equal(dtype, DTYPE_Q8_0);
        assert_true(mean == 0 && spread > 0.044f && spread < 0.045f); /* sqrt(3 / 1536) */
    }
    if (which == WEIGHT_FINAL_NORM) assert_true(dtype == DTYPE_F32 && mean == 1 && spread == 0);
    made.n++;
    made.n_random += spread > 0;
    made.seeds += seed;
    return OK;
}

static void a_device_that_can_makes_the_numbers_itself(void **state) {
    (void)state;
    struct kernels table = fake_kernels;
    struct model_options options = {
        .synthetic = "smollm2-135m", .dtype = "q8_0", .n_threads = 1, .deterministic = true};
    struct model *m;
    struct err err = {0};
    table.load_random = fake_load_random;
    table.activations = 1 << ACTIVATIONS_F32 | 1 << ACTIVATIONS_BF16;
    if (synthetic_load(&options, &table, &m, &err)) fail_msg("%s", err.msg);
    assert_int_equal(made.n, 30 * 9 + 2); /* seven matrices and two norms, the embedding, a norm */
    assert_int_equal(made.n_random, 30 * 7 + 1);
    assert_int_equal(device_of(m)->n_records, 0);
    assert_int_equal(device_of(m)->shape.activations, ACTIVATIONS_BF16); /* auto */
    assert_true(device_of(m)->shape.deterministic);
    assert_string_equal(model_info(m)->backend, "cpu");
    assert_null(find(m, WEIGHT_DOWN, 0));
    uint64_t seeds = made.seeds;
    model_destroy(m);
    assert_int_equal(synthetic_load(&options, &table, &m, &err), OK);
    assert_true(made.seeds == 2 * seeds && seeds != 0);
    model_destroy(m);
    assert_int_equal(n_open, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_have_the_published_number_of_parameters),
        cmocka_unit_test(options_add_streams_and_a_draft_view),
        cmocka_unit_test(msar_adds_a_residual_path_and_its_costs),
        cmocka_unit_test(bad_specs_are_refused_by_name),
        cmocka_unit_test(a_made_model_knows_its_costs_and_repeats_itself),
        cmocka_unit_test(a_device_that_can_makes_the_numbers_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
