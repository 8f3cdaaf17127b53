/* The sampler's passes over a vocabulary: each as it is defined, every width of vectors with the bits
 * of the plain one; and what rules make of rows that are long enough for their short cuts. */
#include "kernels/cpu/passes.h"
#include "tests/unit/sampling.h"

enum { N_MAX = 5000, MARGIN = 16 };

static const struct passes *widths[3];
static uint32_t n_widths;

static void find_widths(void) {
    widths[n_widths++] = &passes_plain;
#if defined(__x86_64__)
    if (passes_find() != &passes_plain) widths[n_widths++] = &passes_avx2;
    if (passes_find() == &passes_avx512) widths[n_widths++] = &passes_avx512;
#endif
}

/* Lengths around the vectors', and long ones. */
static const uint32_t lengths[] = {1,  2,  3,  4,  5,   7,   8,   9,    15,   16,  17,
                                   31, 33, 63, 65, 100, 511, 513, 1024, 1500, 4999};

enum kind { SPREAD, FLAT, TIED, HOLES, DEEP, MASKED, KINDS };

/* Scores: the best is 0, unless all are masked. */
static void fill_scores(struct rng *rng, enum kind kind, uint32_t n, float *z) {
    for (uint32_t i = 0; i < n; i++) {
        z[i] = -fabsf(rng_normal(rng)) * (kind == FLAT ? 0.2f : 6);
        if (kind == TIED) z[i] = rintf(z[i]);
        if (kind == HOLES && rng_below(rng, 3)) z[i] = -INFINITY;
        if (kind == DEEP) z[i] *= exp2f((float)rng_below(rng, 120) - 20);
        if (kind == MASKED) z[i] = -INFINITY;
    }
    if (kind != MASKED) z[rng_below(rng, n)] = 0;
}

/* Every pass reads n numbers and writes n: what lies behind is poison, and stays. */
static void put_margin(float *z, uint32_t n) {
    for (uint32_t i = n; i < n + MARGIN; i++)
        z[i] = 12345;
}

static void assert_margin(const float *z, uint32_t n) {
    for (uint32_t i = n; i < n + MARGIN; i++)
        assert_true(z[i] == 12345);
}

/* Run check(passes, scores, n, rng) on rows of every kind and length, in every width. */
static void on_rows(void (*check)(const struct passes *p, const float *z, uint32_t n,
                                  struct rng *rng)) {
    static float z[N_MAX + MARGIN];
    for (uint32_t w = 0; w < n_widths; w++) {
        struct rng rng;
        rng_seed(&rng, 11);
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
            for (enum kind kind = 0; kind < KINDS; kind++)
                for (int round = 0; round < 3; round++) {
                    fill_scores(&rng, kind, lengths[i], z);
                    put_margin(z, lengths[i]);
                    check(widths[w], z, lengths[i], &rng);
                }
    }
}

/* ---- the simple ones -------------------------------------------------------------------------- */

static void check_clean(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static float logits[N_MAX], out[N_MAX + MARGIN];
    const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, -0.0f, 1e-45f};
    for (uint32_t i = 0; i < n; i++)
        logits[i] = rng_below(rng, 5) ? z[i] + 3 : odd[rng_below(rng, ARRAY_LEN(odd))];
    put_margin(out, n);
    p->clean(logits, n, out);
    assert_margin(out, n);
    for (uint32_t i = 0; i < n; i++) {
        float want = isnan(logits[i]) ? -INFINITY : fminf(logits[i], FLT_MAX);
        assert_memory_equal(&out[i], &want, sizeof want);
    }
    int32_t best = -1; /* NaN never wins */
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > (best < 0 ? -INFINITY : logits[best])) best = (int32_t)i;
    assert_int_equal(p->argmax(logits, n), best);
}

static void logits_are_cleaned_and_nan_never_wins(void **state) {
    (void)state;
    on_rows(check_clean);
}

static void check_scores(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static float out[N_MAX + MARGIN];
    float max = rng_normal(rng), temperature = 0.1f + (float)rng_unit(rng);
    memcpy(out, z, (n + MARGIN) * sizeof *out);
    p->scores(out, n, max, temperature);
    assert_margin(out, n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(out[i] == (z[i] - max) / temperature);
}

static void scores_are_divided_exactly(void **state) {
    (void)state;
    on_rows(check_scores);
}

/* Disjoint sets of no more than len: so many of a row's numbers are at least as large as a maximum. */
static void check_maxima(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static float out[N_MAX + MARGIN];
    uint32_t len = 1 + rng_below(rng, 9), strip = 16 * len;
    uint32_t n_out = p->maxima(z, n, len, out);
    assert_int_equal(n_out, 16 * div_ceil(n, strip));
    for (uint32_t i = 0; i < n_out; i++) {
        float want = -INFINITY;
        uint32_t first = i / 16 * strip + i % 16;
        for (uint32_t j = first; j < n && j < first + strip; j += 16)
            want = fmaxf(want, z[j]);
        assert_true(out[i] == want);
    }
}

static void maxima_are_those_of_disjoint_sets(void **state) {
    (void)state;
    on_rows(check_maxima);
}

static void check_list(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static float out[N_MAX + MARGIN];
    static uint32_t ids[N_MAX];
    float least = rng_below(rng, 3) ? z[rng_below(rng, n)] : -INFINITY;
    memcpy(out, z, (n + MARGIN) * sizeof *out);
    uint32_t n_ids = p->list(out, n, least, ids), k = 0;
    assert_margin(out, n);
    for (uint32_t i = 0; i < n; i++) {
        bool keep = z[i] >= least && z[i] > -INFINITY;
        assert_true(out[i] == (keep ? z[i] : -INFINITY));
        if (keep) assert_int_equal(ids[k++], i);
    }
    assert_int_equal(n_ids, k);
    float hi = rng_below(rng, 3) ? z[rng_below(rng, n)] : INFINITY;
    n_ids = p->between(z, n, least, hi, ids);
    k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (z[i] >= least && z[i] < hi && z[i] > -INFINITY) assert_int_equal(ids[k++], i);
    assert_int_equal(n_ids, k);
}

static void lists_hold_what_lies_above(void **state) {
    (void)state;
    on_rows(check_list);
}

/* ---- weights ---------------------------------------------------------------------------------- */

static void weights_are_exponentials(void **state) {
    (void)state;
    assert_true(score_weight(0) == 1);
    assert_true(score_weight(-0.0f) == 1);
    assert_true(score_weight(-INFINITY) == 0);
    assert_true(score_weight(-1e30f) == 0);
    assert_true(score_weight(-700.1f) == 0);
    double before = 1;
    for (float s = -1e-9f; s > -700; s = s * 1.0001f - 1e-6f) {
        double w = score_weight(s), want = exp((double)s);
        if (!(fabs(w - want) < 1e-8 * want)) fail_msg("weight of %.9g is %.17g", (double)s, w);
        assert_true(w <= before);
        before = w;
    }
}

static void check_sums(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    float least = rng_below(rng, 3) ? z[rng_below(rng, n)] : -INFINITY;
    float scale = rng_below(rng, 2) ? 25 : 1e-3f;
    double lane[WEIGHT_LANES] = {0}, want[SCORE_BINS] = {0}, sum[SCORE_BINS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (z[i] < least || z[i] == -INFINITY) continue;
        lane[i % WEIGHT_LANES] += score_weight(z[i]);
        want[score_bin(z[i], scale)] += score_weight(z[i]);
    }
    double total =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    assert_true(p->total(z, n, least) == total);
    p->bins(z, n, least, scale, sum);
    assert_memory_equal(sum, want, sizeof sum);
}

static void weights_are_summed_in_the_defined_order(void **state) {
    (void)state;
    on_rows(check_sums);
}

static void bins_are_ordered_as_scores(void **state) {
    (void)state;
    const float scales[] = {1023 / 40.0f, 1023 / 0.7f, 100};
    for (size_t i = 0; i < ARRAY_LEN(scales); i++) {
        assert_int_equal(score_bin(0, scales[i]), SCORE_BINS - 1);
        assert_int_equal(score_bin(-INFINITY, scales[i]), 0);
        assert_int_equal(score_bin(-3e38f, scales[i]), 0);
        uint32_t before = SCORE_BINS - 1;
        for (float s = 0; s > -50; s -= 1.7e-3f) {
            uint32_t bin = score_bin(s, scales[i]);
            assert_true(bin <= before && before - bin < 4);
            before = bin;
        }
    }
}

/* Against logarithms in double; the plain width gives the bits. */
static void check_residual(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static float q[N_MAX + MARGIN], out[N_MAX + MARGIN], bits[N_MAX];
    for (uint32_t i = 0; i < n; i++)
        q[i] = rng_below(rng, 4) ? z[i] - (float)rng_unit(rng) : z[i];
    double p_share = 0.2, q_share = 0.2 + 0.1 * rng_unit(rng);
    bool whole = rng_below(rng, 4) == 0; /* no q */
    if (rng_below(rng, 3) == 0) q_share = p_share;
    passes_plain.residual(z, p_share, whole ? NULL : q, q_share, n, bits);
    memcpy(out, q, n * sizeof *out);
    put_margin(out, n);
    p->residual(z, p_share, whole ? NULL : out, q_share, n, out); /* in place */
    assert_margin(out, n);
    assert_same_bits(out, bits, n, p->name);
    for (uint32_t i = 0; i < n; i++) {
        double d = score_weight(z[i]) * p_share - (whole ? 0 : score_weight(q[i]) * q_share);
        if (d < 1e-36) {
            assert_true(out[i] < -82);
            continue;
        }
        if (!(fabs((double)out[i] - log(d)) < 1e-6 * fmax(1, fabs(log(d)))))
            fail_msg("log of %.17g is %.9g", d, (double)out[i]);
    }
}

static void residuals_are_logarithms_of_differences(void **state) {
    (void)state;
    on_rows(check_residual);
}

/* ---- noise ------------------------------------------------------------------------------------ */

static void check_noisy(const struct passes *p, const float *z, uint32_t n, struct rng *rng) {
    static uint32_t ids[N_MAX], words[N_MAX];
    struct noise_place place = {{rng_below(rng, 99), rng_below(rng, 3), rng_below(rng, 4)},
                                rng_u64(rng)};
    float floor = 8 * (float)rng_unit(rng) - 3;
    uint32_t lo = rng_below(rng, 2) && n > 64 ? 64 : 0, k = 0;
    uint32_t n_ids = p->noisy(z, lo, n, &place, floor, ids, words);
    for (uint32_t i = lo; i < n; i++) {
        uint32_t own[4], counter[4] = {place.counter[0], place.counter[1], place.counter[2], i / 4};
        philox4x32(counter, place.key, own);
        bool listed = k < n_ids && ids[k] == i;
        if (listed) assert_int_equal(words[k++], own[i % 4]);
        if (z[i] + gumbel_noise(own[i % 4]) >= floor) assert_true(listed);
    }
    assert_int_equal(k, n_ids);
    if (n > 1000 && floor > 3) assert_true(n_ids < n / 5); /* and few others */
}

static void no_token_that_may_win_is_left_out(void **state) {
    (void)state;
    on_rows(check_noisy);
}

/* The largest noise there is, and words of which the bound sees no bit. */
static void the_bound_of_the_noise_holds_at_its_ends(void **state) {
    (void)state;
    const uint32_t words[] = {0,          1,          0xff,       0x100,      0x101,
                              0x7fffffff, 0x80000000, 0xfffffeff, 0xffffff00, 0xffffffff};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        float x = (float)(words[i] >> 8), log2_x; /* as passes_body.h bounds it */
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        log2_x = (float)bits * 0x1p-23f - 127;
        assert_true(gumbel_noise(words[i]) <= (24 - log2_x) * 0.69314724f + 0.001f);
        assert_true(gumbel_noise(words[i]) < 23);
    }
}

/* ---- rules over long rows --------------------------------------------------------------------- */

/* Rows on which top_k and top_p look at little: against sorting. */
static void rules_over_long_rows_draw_what_a_slow_reading_draws(void **state) {
    (void)state;
    static float z[VOCAB_MAX];
    static struct place places[VOCAB_MAX];
    struct rng rng;
    rng_seed(&rng, test_seed());
    uint32_t n_called = 0;
    for (int round = 0; round < 400; round++) {
        uint32_t vocab = VOCAB_MAX - rng_below(&rng, 600), n = 0;
        fill_scores(&rng, (enum kind)rng_below(&rng, DEEP), vocab, z);
        struct rules rules = plain_rules(round % 3 ? 1 : 0.6f);
        if (round % 4 < 3) rules.top_k = 1 + rng_below(&rng, round % 4 == 2 ? vocab : 130);
        if (round % 2 || round % 4 == 3) rules.top_p = (float)(1 - pow(rng_unit(&rng), 6));
        if (rng_below(&rng, 5) == 0) rules.min_p = (float)pow(rng_unit(&rng), 4);
        rules.seeded = true;
        rules.seed = rng_u64(&rng);
        if (!slow_rules(&rules, z, vocab, places, &n)) continue;
        for (uint32_t pos = 0; pos < 5; pos++) {
            int32_t want = -1;
            if (!slow_draw(&rules, places, n, pos, DRAW_GUMBEL, &want)) continue;
            n_called++;
            int32_t got = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(vocab));
            if (got != want)
                fail_msg("round %d: token %d, want %d (k %u, p %.9g, min_p %g: %u)", round, got,
                         want, rules.top_k, (double)rules.top_p, (double)rules.min_p, n);
        }
    }
    assert_true(n_called > 1000);
}

/* Exactly what the rules keep, by what is ever drawn: every survivor of a flat row comes up. */
static void short_cuts_lose_no_survivor(void **state) {
    (void)state;
    static float z[VOCAB_MAX];
    static bool seen[VOCAB_MAX];
    enum { KEPT = 60, DRAWS = 3000 };
    for (int rule = 0; rule < 3; rule++) {
        struct rng rng;
        rng_seed(&rng, 5);
        for (uint32_t i = 0; i < VOCAB_MAX; i++)
            z[i] = -30 - (float)rng_unit(&rng);
        for (uint32_t i = 0; i < KEPT; i++) /* many in one set of maxima, and at both ends */
            z[i < 20 ? 64 * i : i < 40 ? VOCAB_MAX - i : i] = 1;
        struct rules rules = plain_rules(1);
        rules.seeded = true;
        if (rule == 0) rules.top_k = KEPT;
        if (rule == 1) rules.top_p = 0.9999f;
        if (rule == 2) rules.min_p = 0.5f;
        memset(seen, 0, sizeof seen);
        uint32_t n_seen = 0;
        for (uint32_t pos = 0; pos < DRAWS; pos++) {
            int32_t token = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(VOCAB_MAX));
            assert_true(z[token] == 1);
            n_seen += !seen[token];
            seen[token] = true;
        }
        assert_int_equal(n_seen, KEPT);
    }
}

int main(void) {
    find_widths();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_cleaned_and_nan_never_wins),
        cmocka_unit_test(scores_are_divided_exactly),
        cmocka_unit_test(maxima_are_those_of_disjoint_sets),
        cmocka_unit_test(lists_hold_what_lies_above),
        cmocka_unit_test(weights_are_exponentials),
        cmocka_unit_test(weights_are_summed_in_the_defined_order),
        cmocka_unit_test(bins_are_ordered_as_scores),
        cmocka_unit_test(residuals_are_logarithms_of_differences),
        cmocka_unit_test(no_token_that_may_win_is_left_out),
        cmocka_unit_test(the_bound_of_the_noise_holds_at_its_ends),
        cmocka_unit_test(rules_over_long_rows_draw_what_a_slow_reading_draws),
        cmocka_unit_test(short_cuts_lose_no_survivor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
