/* The loops that measure peaks: what they count, which one a table takes, and which one a model asks
 * for. Those of the tile unit are counted in tests/amx/test_table.c. */
#include "engine/model.h"
#include "kernels/cpu/peaks.h"
#include "tests/harness.h"

static enum activations asked;

static int fake_peaks(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                      double *flops_per_s, struct err *err) {
    (void)err;
    asked = activations;
    *bytes_per_s = *flops_per_s = n_threads;
    return OK;
}

/* Weights without blocks meet rows in f32, though int8 was asked for. */
static void a_model_asks_for_what_its_products_are_made_in(void **state) {
    (void)state;
    static const struct kernels table = {.peaks = fake_peaks};
    for (enum activations a = 0; a < ACTIVATIONS_COUNT; a++) {
        struct model model = {
            .kernels = &table, .products = a, .shape = {.activations = ACTIVATIONS_INT8}};
        double bytes, flops;
        asked = ACTIVATIONS_COUNT;
        assert_int_equal(model_peaks(&model, 3, &bytes, &flops, NULL), OK);
        assert_int_equal(asked, a);
    }
}

#if defined(__x86_64__)
/* All factors are 1: the sum is the number of products. */
static void counts(const struct peaks_ops *ops) {
    for (uint32_t rounds = 1; rounds <= 1000; rounds *= 10)
        assert_true(2 * (double)ops->multiply_add(rounds) == (double)rounds * ops->round_flops);
}

static void loops_of_int8_count_their_products(void **state) {
    (void)state;
    if (!kernels_avx2()) skip();
    counts(&peaks_ops_avx2_int8);
    if (kernels_avx512() && __builtin_cpu_supports("avx512vnni"))
        counts(&peaks_ops_avx512_vnni_int8);
}

/* Whatever byte is another makes another result. */
static void reads_take_in_every_byte(void **state) {
    (void)state;
    enum { BYTES = 4096 };
    static char bytes[BYTES] __attribute__((aligned(64)));
    const peaks_read_fn reads[] = {peaks_read_avx2, peaks_read_avx512};
    const bool here[] = {kernels_avx2() != NULL, kernels_avx512() != NULL};
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (char)rng_below(&rng, 256);
    for (size_t r = 0; r < ARRAY_LEN(reads); r++) {
        if (!here[r]) continue;
        uint64_t before = reads[r](bytes, BYTES);
        for (size_t i = 0; i < BYTES; i++) {
            bytes[i] ^= 0x10;
            assert_true(reads[r](bytes, BYTES) != before);
            bytes[i] ^= 0x10;
        }
    }
}

static void a_table_takes_the_loop_of_its_products(void **state) {
    (void)state;
    for (enum activations a = 0; a < ACTIVATIONS_COUNT; a++) {
        bool int8 = a == ACTIVATIONS_INT8;
        assert_ptr_equal(peaks_choose_avx2(a), int8 ? &peaks_ops_avx2_int8 : &peaks_ops_avx2);
        assert_ptr_equal(peaks_choose_avx512(a, true),
                         int8 ? &peaks_ops_avx512_vnni_int8 : &peaks_ops_avx512);
        assert_ptr_equal(peaks_choose_avx512(a, false),
                         int8 ? &peaks_ops_avx2_int8 : &peaks_ops_avx512);
    }
    assert_ptr_equal(peaks_choose_amx(ACTIVATIONS_F32), &peaks_ops_avx512);
    assert_ptr_equal(peaks_choose_amx(ACTIVATIONS_BF16), &peaks_ops_amx_bf16);
    assert_ptr_equal(peaks_choose_amx(ACTIVATIONS_INT8), &peaks_ops_amx_int8);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_asks_for_what_its_products_are_made_in),
#if defined(__x86_64__)
        cmocka_unit_test(loops_of_int8_count_their_products),
        cmocka_unit_test(a_table_takes_the_loop_of_its_products),
        cmocka_unit_test(reads_take_in_every_byte),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
