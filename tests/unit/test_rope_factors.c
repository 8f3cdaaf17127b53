/* The llama3 rule recovered from the float32 factors that GGUF files hold. */
#include <math.h>
#include <string.h>

#include "engine/load/rope.h"
#include "tests/harness.h"

enum { HALF_MAX = 128 };

static struct rope llama3(double theta, double s, double lo, double hi, double original) {
    struct rope r;
    rope_init(&r);
    r.type = ROPE_LLAMA3;
    r.theta = theta;
    r.factor = s;
    r.low_freq_factor = lo;
    r.high_freq_factor = hi;
    r.original_max = original;
    return r;
}

static void factors_of(const struct rope *rope, uint32_t head_dim, float *out) {
    double freq[HALF_MAX], scale;
    struct err err = {0};
    if (rope_frequencies(rope, head_dim, 4096, freq, &scale, &err)) fail_msg("%s", err.msg);
    for (uint32_t m = 0; m < head_dim / 2; m++)
        out[m] = (float)(pow(rope->theta, -2.0 * m / head_dim) / freq[m]);
}

/* What comes back rotates as the first did; published rules come back as they were. */
static void every_rule_comes_back(void **state) {
    (void)state;
    static const struct {
        double theta, s, lo, hi, original;
        uint32_t head_dim;
        bool as_it_was;
    } cases[] = {
        {500000, 8, 1, 4, 8192, 128, true}, /* Llama 3.1 */
        {500000, 32, 1, 4, 8192, 64, true}, /* Llama 3.2 */
        {500000, 8, 1, 4, 64, 16, true},    /* one pair on the ramp */
        {10000, 4, 1, 4, 512, 128, true},     {10000, 16, 1, 2, 2048, 128, true},
        {500000, 8, 2, 8, 16384, 128, false}, /* the ratios of Llama 3.1 */
        {1e6, 40, 1, 3.5, 1000, 96, true},    {500000, 8, 1, 4, 8192, 4, false}, /* no pair on it */
        {500000, 8, 1, 4, 2, 16, false},                                         /* all are cut */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rope was =
            llama3(cases[i].theta, cases[i].s, cases[i].lo, cases[i].hi, cases[i].original);
        float factors[HALF_MAX], again[HALF_MAX];
        factors_of(&was, cases[i].head_dim, factors);
        struct rope rope;
        rope_init(&rope);
        rope.theta = cases[i].theta;
        struct err err = {0};
        if (rope_from_factors(&rope, cases[i].head_dim, factors, &err))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(rope.type, ROPE_LLAMA3);
        factors_of(&rope, cases[i].head_dim, again);
        assert_close(again, factors, cases[i].head_dim / 2, 0, 1e-5, "factors");
        if (!cases[i].as_it_was) continue;
        assert_true(rope.factor == cases[i].s && rope.low_freq_factor == cases[i].lo);
        assert_true(fabs(rope.high_freq_factor - cases[i].hi) < 1e-3);
        assert_true(fabs(rope.original_max / cases[i].original - 1) < 1e-4);
        if (cases[i].hi == round(cases[i].hi))
            assert_true(rope.high_freq_factor == cases[i].hi &&
                        rope.original_max == cases[i].original);
    }
}

static void ones_leave_the_plain_rule(void **state) {
    (void)state;
    float factors[32];
    for (size_t i = 0; i < ARRAY_LEN(factors); i++)
        factors[i] = 1;
    struct rope rope;
    rope_init(&rope);
    struct err err;
    assert_int_equal(rope_from_factors(&rope, 64, factors, &err), OK);
    assert_int_equal(rope.type, ROPE_DEFAULT);
}

static void other_factors_are_refused_by_name(void **state) {
    (void)state;
    struct rope base = llama3(500000, 8, 1, 4, 8192), rope;
    float factors[HALF_MAX];
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int round = 0; round < 200; round++) {
        factors_of(&base, 128, factors);
        uint32_t at = rng_below(&rng, 64);
        if (round < 100)
            factors[at] *= 1.01f; /* one of them is off */
        else
            for (uint32_t m = 0; m < 64; m++)
                factors[m] = 1 + 7 * (float)rng_unit(&rng);
        rope_init(&rope);
        rope.theta = 500000;
        struct err err = {0};
        assert_int_equal(rope_from_factors(&rope, 128, factors, &err), ERR_INVALID);
        assert_non_null(strstr(err.msg, "rope_freqs.weight"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_comes_back),
        cmocka_unit_test(ones_leave_the_plain_rule),
        cmocka_unit_test(other_factors_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
