/* The amx table on tiles in software, beside what the tests of all tables ask: that it is them which
 * multiply, that no thread keeps any, the bits of a whole model, and the loops that measure peaks. */
#include "kernels/cpu/peaks.h"
#include "tests/unit/tiny_model.h"

enum { TOKENS = 200 };

/* Products of a prompt. Threads wait between the stages, with no tiles in use. */
static uint64_t products_of(enum activations activations, enum dtype weights, enum dtype kv) {
    struct tiny_options o = tiny_defaults();
    o.activations = activations;
    o.weights = weights;
    o.kv = kv;
    o.n_threads = 3;
    struct tiny t = tiny_open(kernels_amx(), &o);
    struct tiny_sequence s = tiny_sequence(0, TOKENS, 3, 0, 1);
    struct segment rows = tiny_segment(&s, VIEW_BASE, 0, TOKENS, 1);
    uint64_t before = tiles_products();
    struct forward fwd = {1, &rows};
    assert_int_equal(t.k->begin(t.dev, &fwd), OK);
    assert_int_equal(t.k->embed(t.dev), OK);
    for (uint32_t l = 0; l < t.shape.n_layers; l++) {
        int (*const stages[])(struct device *, uint32_t) = {t.k->qkv, t.k->attend,
                                                            t.k->out_residual, t.k->mlp};
        for (size_t i = 0; i < ARRAY_LEN(stages); i++) {
            assert_int_equal(stages[i](t.dev, l), OK);
            assert_int_equal(tiles_in_use(), 0);
        }
    }
    assert_int_equal(t.k->lm_head(t.dev), OK);
    assert_int_equal(tiles_in_use(), 0);
    tiny_end(&t);
    tiny_close(&t);
    return tiles_products() - before;
}

static void stages_multiply_on_tiles_and_leave_none_in_use(void **state) {
    (void)state;
    uint64_t bf16 = products_of(ACTIVATIONS_BF16, DTYPE_BF16, DTYPE_F32);
    uint64_t both = products_of(ACTIVATIONS_BF16, DTYPE_BF16, DTYPE_BF16);
    uint64_t int8 = products_of(ACTIVATIONS_INT8, DTYPE_Q4_0, DTYPE_F32);
    assert_true(bf16 > 0 && both > bf16 && int8 > 0); /* both: attention too */
    assert_int_equal(products_of(ACTIVATIONS_F32, DTYPE_BF16, DTYPE_BF16), 0);
}

/* Attention has the order of sums of its own, in bf16; all else the one that tables share. */
static void models_have_the_bits_of_avx512(void **state) {
    (void)state;
    static const enum dtype kv[] = {DTYPE_F32, DTYPE_Q8_0};
    float *want = malloc((size_t)TOKENS * 320 * sizeof *want),
          *got = malloc((size_t)TOKENS * 320 * sizeof *got);
    for (enum dtype w = 0; w < DTYPE_COUNT; w++)
        for (uint32_t kind = 0; kind < 4; kind++) {
            struct tiny_options o = tiny_defaults();
            o.weights = w;
            o.activations = kind % 2 ? ACTIVATIONS_INT8 : ACTIVATIONS_BF16;
            o.kv = kv[kind / 2];
            o.orthros = kind / 2;
            o.window = 20;
            o.biases = w % 2;
            struct tiny t = tiny_open(kernels_avx512(), &o);
            struct tiny_sequence s = tiny_sequence(0, TOKENS, 7, 9, 5);
            tiny_prefill(&t, &s, 71, want);
            tiny_close(&t);
            t = tiny_open(kernels_amx(), &o);
            tiny_prefill(&t, &s, 71, got);
            tiny_close(&t);
            assert_same_bits(got, want, (size_t)TOKENS * 320, dtype_name(w));
        }
    free(want);
    free(got);
}

static void loops_for_peaks_count_their_products(void **state) {
    (void)state;
    const struct peaks_ops *ops[] = {&peaks_ops_amx_bf16, &peaks_ops_amx_int8};
    const uint32_t depth[] = {32, 64};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        uint64_t before = tiles_products();
        assert_true(ops[i]->multiply_add(10) == 0);
        uint64_t n = tiles_products() - before;
        assert_int_equal(n * 16 * 16 * depth[i] * 2, 10 * (uint64_t)ops[i]->round_flops);
        assert_int_equal(tiles_in_use(), 0);
    }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_multiply_on_tiles_and_leave_none_in_use),
        cmocka_unit_test(models_have_the_bits_of_avx512),
        cmocka_unit_test(loops_for_peaks_count_their_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
