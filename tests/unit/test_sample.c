/* The sampler: its random numbers against published vectors, every rule against a slow reading of
 * the same words, and the laws of draws and verified drafts by chi-square with fixed seeds. */
#include "tests/unit/sampling.h"

static int32_t draw(struct rules rules, uint64_t seed, const float *logits, uint32_t vocab) {
    rules.seed = seed;
    return sample_token(&rules, logits, AT(0), DRAW_GUMBEL, scratch_for(vocab));
}

/* ---- random numbers ---------------------------------------------------------------------------- */

static void philox_gives_the_published_vectors(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t want[4];
    } cases[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, /* pi; the key's low word comes first */
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t out[4];
        philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].want, sizeof out);
    }
}

static void gumbel_noise_is_finite_at_the_ends(void **state) {
    (void)state;
    static const uint32_t words[] = {0, 1, 0x80000000u, 0xFFFFFFFFu};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        float g = gumbel_noise(words[i]);
        assert_true(isfinite(g) && g > -2.9f && g < 23);
    }
    assert_true(fabsf(gumbel_noise(0x80000000u) - 0.366513f) < 1e-5f); /* -log(log 2) */
    float before = gumbel_noise(0);
    for (uint64_t x = 1; x <= 0xFFFFFFFFu; x += 0x00FEDCBAu) {
        float g = gumbel_noise((uint32_t)x);
        assert_true(g <= before);
        before = g;
    }
}

/* ---- rules, one by one ------------------------------------------------------------------------- */

static void greedy_takes_the_largest_and_the_smallest_id_of_ties(void **state) {
    (void)state;
    float z[1500];
    for (uint32_t n = 1; n <= 1500; n += n < 20 ? 1 : 37) {
        for (uint32_t i = 0; i < n; i++)
            z[i] = -(float)(i % 7);
        z[n - 1] = z[n / 2] = 3;
        assert_int_equal(draw(plain_rules(0), 1, z, n), n / 2);
        assert_int_equal(draw(plain_rules(9.9e-5f), 1, z, n), n / 2);
    }
    float low[] = {-INFINITY, -FLT_MAX, -INFINITY};
    assert_int_equal(draw(plain_rules(0), 1, low, 3), 1);
}

static void nan_and_infinities_never_spread(void **state) {
    (void)state;
    float z[] = {NAN, -INFINITY, 1, NAN, 0.5f, -INFINITY};
    float top[] = {0, INFINITY, NAN, 3};
    float none[] = {-INFINITY, NAN, -INFINITY};
    struct rules all = plain_rules(1);
    all.top_k = 5, all.top_p = 0.99f, all.min_p = 0.01f;
    assert_int_equal(draw(plain_rules(0), 0, z, 6), 2);
    assert_int_equal(draw(plain_rules(0), 0, top, 4), 1);
    assert_int_equal(draw(plain_rules(0), 0, none, 3), -1);
    assert_int_equal(draw(all, 0, none, 3), -1);
    for (uint64_t seed = 0; seed < 300; seed++) {
        int32_t token = draw(plain_rules(1), seed, z, 6), ruled = draw(all, seed, z, 6);
        assert_true(token == 2 || token == 4);
        assert_true(ruled == 2 || ruled == 4);
        assert_int_equal(draw(plain_rules(1), seed, top, 4), 1);
        assert_int_equal(draw(plain_rules(1), seed, none, 3), -1);
    }
}

static void s5_02_tiny_top_p_and_full_min_p_give_the_best_token(void **state) {
    (void)state;
    float z[] = {1, 2, 3, 9};
    struct rules tiny = plain_rules(0.8f), zero = tiny, full = tiny, one = tiny;
    tiny.top_p = 1e-9f, zero.top_p = 0, full.min_p = 1, one.top_k = 1;
    for (uint64_t seed = 0; seed < 200; seed++) {
        assert_int_equal(draw(tiny, seed, z, 4), 3);
        assert_int_equal(draw(zero, seed, z, 4), 3);
        assert_int_equal(draw(full, seed, z, 4), 3);
        assert_int_equal(draw(one, seed, z, 4), 3);
    }
    float flat[] = {2, 2, 2,
                    2}; /* ties: the smallest ids stay; min_p 1 keeps all that equal the best */
    bool seen = false;
    for (uint64_t seed = 0; seed < 200; seed++) {
        assert_int_equal(draw(zero, seed, flat, 4), 0);
        assert_int_equal(draw(one, seed, flat, 4), 0);
        seen = seen || draw(full, seed, flat, 4) == 3;
    }
    assert_true(seen);
}

/* The ids that 400 draws reach, as bits. */
static unsigned support(struct rules rules, const float *z, uint32_t vocab) {
    unsigned reached = 0;
    for (uint64_t seed = 0; seed < 400; seed++)
        reached |= 1u << draw(rules, seed, z, vocab);
    return reached;
}

static void rules_keep_what_they_say(void **state) {
    (void)state;
    float z[8], ten[10] = {0};
    static const double p[8] = {.1, .2, .05, .15, .15, .2, .1, .05};
    for (int i = 0; i < 8; i++)
        z[i] = (float)log(p[i]);
    struct rules rules = plain_rules(1);
    rules.top_k = 3; /* 1, 5, and of the tie 3, 4 the smaller */
    assert_int_equal(support(rules, z, 8), 1 << 1 | 1 << 5 | 1 << 3);
    rules.top_k = 100; /* more than there are: off */
    assert_int_equal(support(rules, z, 8), 0xFF);
    rules = plain_rules(1);
    rules.top_p = 0.5f; /* .2 + .2 + .15 */
    assert_int_equal(support(rules, z, 8), 1 << 1 | 1 << 5 | 1 << 3);
    rules.top_p = 0.75f; /* .2 + .2 + .15 + .15 + .1 */
    assert_int_equal(support(rules, z, 8), 0x3F & ~(1 << 2));
    rules = plain_rules(1);
    rules.min_p = 0.6f; /* .12 and more */
    assert_int_equal(support(rules, z, 8), 1 << 1 | 1 << 5 | 1 << 3 | 1 << 4);
    rules = plain_rules(1);
    rules.top_k = 4, rules.top_p = 0.6f; /* of .7 in all: .2 + .2 = .57, so a third is needed */
    assert_int_equal(support(rules, z, 8), 1 << 1 | 1 << 5 | 1 << 3);
    rules = plain_rules(1);
    rules.top_p = 0.3f; /* three of ten equal tokens, whatever 0.3 is in binary */
    assert_int_equal(support(rules, ten, 10), 7);
    float far[4] = {0, -FLT_MAX, -FLT_MAX, -FLT_MAX}; /* the lowest scores there are */
    rules = plain_rules(1);
    rules.top_k = 2;
    assert_int_equal(support(rules, far, 4), 1);
    rules.top_p = 0.999f;
    assert_int_equal(support(rules, far, 4), 1);
    rules = plain_rules(0.25f);
    rules.min_p = 0.3f; /* after the temperature: (.15 / .2)^4 = .316 */
    assert_int_equal(support(rules, z, 8), 1 << 1 | 1 << 5 | 1 << 3 | 1 << 4);
}

static void end_ids_are_masked_before_min_tokens(void **state) {
    (void)state;
    float z[] = {1, 9, 8, 0};
    struct rules rules = plain_rules(0);
    rules.min_tokens = 3, rules.n_end_ids = 3;
    rules.end_ids[0] = 1, rules.end_ids[1] = 2,
    rules.end_ids[2] = 900; /* none of this vocabulary */
    for (uint32_t pos = 0; pos < 5; pos++) {
        rules.temperature = 0;
        int32_t token = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(4));
        assert_int_equal(token, pos < 3 ? 0 : 1);
        rules.temperature = 1;
        for (rules.seed = 0; rules.seed < 50; rules.seed++) {
            token = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(4));
            if (pos < 3) assert_true(token == 0 || token == 3);
        }
    }
    float only_ends[] = {-INFINITY, 2, 3, -INFINITY};
    rules.temperature = 1;
    assert_int_equal(sample_token(&rules, only_ends, AT(2), DRAW_GUMBEL, scratch_for(4)), -1);
    rules.temperature = 0;
    assert_int_equal(sample_token(&rules, only_ends, AT(2), DRAW_GUMBEL, scratch_for(4)), -1);
    assert_int_equal(sample_token(&rules, only_ends, AT(3), DRAW_GUMBEL, scratch_for(4)), 2);
}

/* ---- rules together, against a slow reading ----------------------------------------------------- */

static void random_rules_draw_what_a_slow_reading_draws(void **state) {
    (void)state;
    static float z[VOCAB_MAX];
    static struct place places[VOCAB_MAX];
    struct rng rng;
    rng_seed(&rng, test_seed());
    uint32_t n_called = 0;
    for (int round = 0; round < 4000; round++) {
        uint32_t vocab = 1 + rng_below(&rng, round % 50 ? 60 : 3000), n = 0;
        int shape = (int)rng_below(&rng, 4); /* flat, spread, full of ties, with holes */
        for (uint32_t i = 0; i < vocab; i++) {
            z[i] = rng_normal(&rng) * (shape == 1 ? 6 : 1);
            if (shape == 2) z[i] = (float)rng_below(&rng, 4);
            if (shape == 3 && rng_below(&rng, 2)) z[i] = -INFINITY;
        }
        z[rng_below(&rng, vocab)] = 1;
        struct rules rules;
        random_rules(&rng, &rules, vocab);
        uint32_t purpose = rng_below(&rng, 4), out_pos = rng_below(&rng, 1000);
        int32_t want = -1;
        uint32_t noise = rules.seeded ? DRAW_GUMBEL : purpose; /* seeded rows share their noise */
        if (!slow_rules(&rules, z, vocab, places, &n)) continue;
        if (!slow_draw(&rules, places, n, out_pos, noise, &want)) continue;
        n_called++;
        int32_t got = sample_token(&rules, z, AT(out_pos), purpose, scratch_for(vocab));
        if (got != want)
            fail_msg("round %d: token %d, want %d (vocab %u, T %g, k %u, p %g, min_p %g)", round,
                     got, want, vocab, (double)rules.temperature, rules.top_k, (double)rules.top_p,
                     (double)rules.min_p);
    }
    assert_true(n_called > 3000);
}

static void plain_draws_follow_softmax(void **state) {
    (void)state;
    static const float z[] = {0, 1.5f, -1, 0.3f, 2, -3, 1};
    static const float temperatures[] = {0.5f, 1, 2};
    for (size_t k = 0; k < ARRAY_LEN(temperatures); k++) {
        uint32_t counts[7] = {0};
        double law[7], total = 0;
        for (int i = 0; i < 7; i++)
            total += law[i] = exp((double)z[i] / (double)temperatures[k]);
        for (int i = 0; i < 7; i++)
            law[i] /= total;
        for (uint64_t seed = 0; seed < 50000; seed++)
            counts[draw(plain_rules(temperatures[k]), seed, z, 7)]++;
        assert_law(counts, law, 7, "softmax");
    }
}

static void draws_differ_by_position_choice_and_seed(void **state) {
    (void)state;
    float z[4] = {0};
    for (int what = 0; what < 3; what++) {
        uint32_t counts[16] = {0};
        double law[16];
        for (uint32_t i = 0; i < 20000; i++) { /* neighbours must be independent */
            int32_t pair[2];
            for (uint32_t j = 0; j < 2; j++) {
                struct rules rules = plain_rules(1);
                uint32_t v = 2 * i + j;
                rules.seed = what == 0 ? v : 7, rules.choice = what == 1 ? v : 0;
                pair[j] =
                    sample_token(&rules, z, AT(what == 2 ? v : 3), DRAW_GUMBEL, scratch_for(4));
            }
            counts[4 * pair[0] + pair[1]]++;
        }
        for (int i = 0; i < 16; i++)
            law[i] = 1.0 / 16;
        assert_law(counts, law, 16, "neighbours");
    }
}

static void s5_11_seeds_alone_tell_texts_apart(void **state) {
    (void)state;
    enum { TEXT = 8, N_TEXTS = 8 };
    float z[16] = {0};
    int32_t texts[N_TEXTS][TEXT], again[TEXT];
    uint32_t n_equal = 0;
    struct rules rules = plain_rules(1);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        rules.seed = i;
        for (uint32_t pos = 0; pos < TEXT; pos++) {
            texts[i][pos] = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(16));
            again[pos] = sample_token(&rules, z, AT(pos), DRAW_GUMBEL, scratch_for(16));
        }
        assert_memory_equal(texts[i], again, sizeof again);
        for (uint32_t j = 0; j < i; j++)
            n_equal += memcmp(texts[i], texts[j], sizeof again) == 0;
    }
    assert_int_equal(n_equal, 0);
}

/* ---- verification ------------------------------------------------------------------------------ */

static void s9_08_nothing_counts_after_the_first_miss(void **state) {
    (void)state;
    enum { VOCAB = 8, DRAFTS = 5 };
    static const int32_t target[DRAFTS + 1] = {1, 2, 3, 4, 5, 6};
    static const int32_t draft[DRAFTS] = {1, 7, 3, 4, 5}; /* matches 1, 0, 1, 1, 1 */
    float z[(DRAFTS + 1) * VOCAB];
    for (int i = 0; i <= DRAFTS; i++)
        for (int t = 0; t < VOCAB; t++)
            z[i * VOCAB + t] = t == target[i] ? 30 : -30;
    for (int mode = 0; mode < 3; mode++) { /* greedy, seeded, rejection sampling */
        struct rules rules = plain_rules(mode == 0 ? 0 : 1);
        rules.seeded = mode == 1;
        struct outcome out;
        sample_accept(&rules, draft, DRAFTS, z, NULL, AT(0), scratch_for(VOCAB), &out);
        assert_int_equal(out.n_proposed, 5);
        assert_int_equal(out.n_accepted, 1);
        assert_int_equal(out.n_tokens, 2);
        assert_memory_equal(out.tokens, target, 2 * sizeof *target);
        assert_memory_equal(out.proposed, draft, sizeof draft);
        assert_false(out.exhausted);
        sample_accept(&rules, target, DRAFTS, z, NULL, AT(0), scratch_for(VOCAB), &out);
        assert_int_equal(out.n_accepted, 5);
        assert_int_equal(out.n_tokens, 6);
        assert_memory_equal(out.tokens, target, sizeof target);
        sample_accept(&rules, NULL, 0, z, NULL, AT(0), scratch_for(VOCAB), &out);
        assert_int_equal(out.n_proposed, 0);
        assert_int_equal(out.n_tokens, 1);
    }
}

static void a_masked_row_exhausts_the_text(void **state) {
    (void)state;
    float z[3][4] = {{0, 30, 0, 0}, {NAN, -INFINITY, -INFINITY, -INFINITY}, {0}};
    static const int32_t draft[2] = {1, 0};
    for (int mode = 0; mode < 3; mode++) {
        struct rules rules = plain_rules(mode == 0 ? 0 : 1);
        rules.seeded = mode == 1;
        struct outcome out;
        sample_accept(&rules, draft, 2, z[0], NULL, AT(0), scratch_for(4), &out);
        assert_true(out.exhausted);
        assert_int_equal(out.n_accepted, 1);
        assert_int_equal(out.n_tokens, 1);
    }
}

static void log_row(const double *p, float *z, int n) {
    for (int i = 0; i < n; i++)
        z[i] = (float)log(p[i]);
}

static void s9_07_acceptance_keeps_the_law(void **state) {
    (void)state;
    enum { DRAWS = 100000 };
    static const double p[] = {.5, .3, .2}, q[] = {.2, .7, .1};
    static const double law_1[] = {.5, .3, .2}, law_half[] = {.25 / .38, .09 / .38, .04 / .38};
    static const double residual[] = {.75, 0, .25};
    float target[6], proposals[3];
    log_row(p, target, 3);
    log_row(p, target + 3, 3);
    log_row(q, proposals, 3);
    for (int half = 0; half < 2; half++) {
        uint32_t counts[3] = {0}, refused[3] = {0}, n_accepted = 0;
        for (uint64_t seed = 0; seed < DRAWS; seed++) {
            struct rules rules = plain_rules(half ? 0.5f : 1);
            rules.seed = seed * 0x9E3779B97F4A7C15u;
            struct sample_scratch *scratch = scratch_for(3);
            int32_t draft = sample_token(&rules, proposals, AT(0), DRAW_DRAFT, scratch);
            struct outcome out;
            sample_accept(&rules, &draft, 1, target, proposals, AT(0), scratch, &out);
            counts[out.tokens[0]]++;
            n_accepted += out.n_accepted;
            if (!out.n_accepted) refused[out.tokens[0]]++;
        }
        assert_law(counts, half ? law_half : law_1, 3, "emitted");
        if (!half) {
            assert_true(fabs(n_accepted / (double)DRAWS - .6) < .006); /* four sigma */
            assert_law(refused, residual, 3, "residual");
        }
    }
}

static void a_proposal_that_cannot_have_been_drawn_is_refused(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    static const double p[] = {.5, .3, .2};
    float target[6], none[3] = {-INFINITY, -INFINITY, -INFINITY};
    log_row(p, target, 3);
    log_row(p, target + 3, 3);
    for (int32_t draft = -1; draft <= 3; draft += 4) { /* outside the vocabulary on both sides */
        uint32_t counts[3] = {0};
        for (uint64_t seed = 0; seed < DRAWS; seed++) {
            struct rules rules = plain_rules(1);
            rules.seed = seed;
            struct outcome out;
            sample_accept(&rules, &draft, 1, target, draft < 0 ? none : NULL, AT(0), scratch_for(3),
                          &out);
            assert_int_equal(out.n_tokens, 1);
            counts[out.tokens[0]]++;
        }
        assert_law(counts, p, 3, "p alone");
    }
    /* Forbidden by p (min_tokens): an ordinary refusal, drawn from the residual. */
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct rules rules = plain_rules(1);
        rules.seed = seed, rules.min_tokens = 1, rules.n_end_ids = 1;
        int32_t end = 0;
        struct outcome out;
        sample_accept(&rules, &end, 1, target, NULL, AT(0), scratch_for(3), &out);
        assert_int_equal(out.n_accepted, 0);
        assert_true(out.tokens[0] == 1 || out.tokens[0] == 2);
    }
}

static void a_proposal_without_a_distribution_keeps_the_law(void **state) {
    (void)state;
    enum { DRAWS = 60000 };
    static const double p[] = {.5, .3, .2};
    float target[6];
    log_row(p, target, 3);
    log_row(p, target + 3, 3);
    for (int32_t draft = 0; draft < 3; draft++) {
        uint32_t counts[3] = {0}, n_accepted = 0;
        for (uint64_t seed = 0; seed < DRAWS; seed++) {
            struct rules rules = plain_rules(1);
            rules.seed = seed;
            struct outcome out;
            sample_accept(&rules, &draft, 1, target, NULL, AT(0), scratch_for(3), &out);
            counts[out.tokens[0]]++;
            n_accepted += out.n_accepted;
        }
        assert_law(counts, p, 3, "emitted");
        assert_true(fabs(n_accepted / (double)DRAWS - p[draft]) < .009);
    }
}

/* ---- texts of a toy with drafts ----------------------------------------------------------------- */

enum { TOY_VOCAB = 5, TOY_TEXT = 5 };

/* Logits after a token (-1: at the start); the drafter is a bad copy that sees the same. */
static void toy_logits(int32_t last, bool drafter, float *z) {
    struct rng rng;
    rng_seed(&rng, (uint64_t)(last + 10));
    for (int i = 0; i < TOY_VOCAB; i++)
        z[i] = 1.5f * rng_normal(&rng);
    if (drafter)
        for (int i = 0; i < TOY_VOCAB; i++)
            z[i] += rng_normal(&rng);
}

/* A text in cycles of `block` rows: block - 1 proposals, whose rows see the known text and then the
 * drafter's own greedy choices. Returns how many proposals were kept. */
static uint32_t toy_text(const struct rules *rules, uint32_t block, int32_t *text) {
    struct sample_scratch *scratch = scratch_for(TOY_VOCAB);
    uint32_t n = 0, kept = 0;
    while (n < TOY_TEXT) {
        int32_t draft[8], last = n ? text[n - 1] : -1;
        float q[8 * TOY_VOCAB], p[8 * TOY_VOCAB];
        struct rules greedy = plain_rules(0);
        for (uint32_t i = 0; i + 1 < block; i++) {
            float *row = q + i * TOY_VOCAB;
            toy_logits(last, true, row);
            last = sample_token(&greedy, row, AT(0), DRAW_GUMBEL, scratch);
            draft[i] = sample_token(rules, row, AT(n + i), DRAW_DRAFT, scratch);
        }
        toy_logits(n ? text[n - 1] : -1, false, p);
        for (uint32_t i = 0; i + 1 < block; i++)
            toy_logits(draft[i], false, p + (i + 1) * TOY_VOCAB);
        struct outcome out;
        sample_accept(rules, draft, block - 1, p, q, AT(n), scratch, &out);
        for (uint32_t i = 0; i < out.n_tokens && n < TOY_TEXT; i++)
            text[n++] = out.tokens[i];
        kept += out.n_accepted;
    }
    return kept;
}

static struct rules toy_rules(int kind) {
    struct rules rules = plain_rules(kind == 0 ? 1 : 0.7f);
    if (kind == 1) rules.top_k = 3;
    if (kind == 2) rules.top_p = 0.8f;
    if (kind == 3) rules.min_p = 0.15f;
    if (kind == 4) rules.top_k = 4, rules.top_p = 0.9f, rules.min_p = 0.05f;
    return rules;
}

/* The law of one row under the rules, by sorting. */
static void toy_law(const struct rules *rules, int32_t last, double *law) {
    float z[TOY_VOCAB];
    struct place places[TOY_VOCAB];
    uint32_t n = 0;
    double total = 0;
    toy_logits(last, false, z);
    assert_true(slow_rules(rules, z, TOY_VOCAB, places, &n));
    memset(law, 0, TOY_VOCAB * sizeof *law);
    for (uint32_t i = 0; i < n; i++)
        total += exp(places[i].score);
    for (uint32_t i = 0; i < n; i++)
        law[places[i].id] = exp(places[i].score) / total;
}

static void two_token_law_holds_with_any_block(void **state) {
    (void)state;
    static const uint32_t blocks[] = {1, 2, 4};
    for (int kind = 0; kind < 5; kind++) {
        struct rules rules = toy_rules(kind);
        double law[TOY_VOCAB * TOY_VOCAB], first[TOY_VOCAB], next[TOY_VOCAB];
        toy_law(&rules, -1, first);
        for (int32_t a = 0; a < TOY_VOCAB; a++) {
            toy_law(&rules, a, next);
            for (int b = 0; b < TOY_VOCAB; b++)
                law[a * TOY_VOCAB + b] = first[a] * next[b];
        }
        for (size_t k = 0; k < ARRAY_LEN(blocks); k++) {
            uint32_t heads[TOY_VOCAB * TOY_VOCAB] = {0}, tails[TOY_VOCAB * TOY_VOCAB] = {0};
            uint32_t kept = 0;
            for (uint64_t seed = 0; seed < 20000; seed++) {
                int32_t text[TOY_TEXT];
                rules.seed = seed * 0x9E3779B97F4A7C15u + (uint64_t)kind;
                kept += toy_text(&rules, blocks[k], text);
                heads[text[0] * TOY_VOCAB + text[1]]++;
                if (text[2] == 0) tails[text[3] * TOY_VOCAB + text[4]]++;
            }
            assert_law(heads, law, TOY_VOCAB * TOY_VOCAB, "first two tokens");
            assert_true(blocks[k] == 1 ? kept == 0 : kept > 5000);
            double tail_law[TOY_VOCAB * TOY_VOCAB]; /* the same law after "0", inside the text */
            toy_law(&rules, 0, first);
            for (int32_t a = 0; a < TOY_VOCAB; a++) {
                toy_law(&rules, a, next);
                for (int b = 0; b < TOY_VOCAB; b++)
                    tail_law[a * TOY_VOCAB + b] = first[a] * next[b];
            }
            assert_law(tails, tail_law, TOY_VOCAB * TOY_VOCAB, "last two tokens");
        }
    }
}

static void seeded_and_greedy_texts_never_depend_on_drafts(void **state) {
    (void)state;
    uint32_t kept = 0;
    for (int kind = 0; kind < 6; kind++) {
        struct rules rules = kind < 5 ? toy_rules(kind) : plain_rules(0);
        rules.seeded = kind < 5;
        for (rules.seed = 0; rules.seed < 1000; rules.seed++) {
            int32_t alone[TOY_TEXT], drafted[TOY_TEXT];
            toy_text(&rules, 1, alone);
            for (uint32_t block = 2; block <= 8; block += 3) {
                kept += toy_text(&rules, block, drafted);
                assert_memory_equal(alone, drafted, sizeof alone);
            }
        }
    }
    assert_true(kept > 6000); /* shared noise makes a fair drafter agree often */
}

static void seeded_draws_follow_the_law(void **state) {
    (void)state;
    struct rules rules = toy_rules(4);
    uint32_t counts[TOY_VOCAB] = {0};
    double law[TOY_VOCAB];
    rules.seeded = true;
    for (rules.seed = 0; rules.seed < 50000; rules.seed++) {
        int32_t text[TOY_TEXT];
        toy_text(&rules, 4, text);
        counts[text[0]]++;
    }
    toy_law(&rules, -1, law);
    assert_law(counts, law, TOY_VOCAB, "seeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(gumbel_noise_is_finite_at_the_ends),
        cmocka_unit_test(greedy_takes_the_largest_and_the_smallest_id_of_ties),
        cmocka_unit_test(nan_and_infinities_never_spread),
        cmocka_unit_test(s5_02_tiny_top_p_and_full_min_p_give_the_best_token),
        cmocka_unit_test(rules_keep_what_they_say),
        cmocka_unit_test(end_ids_are_masked_before_min_tokens),
        cmocka_unit_test(random_rules_draw_what_a_slow_reading_draws),
        cmocka_unit_test(plain_draws_follow_softmax),
        cmocka_unit_test(draws_differ_by_position_choice_and_seed),
        cmocka_unit_test(s5_11_seeds_alone_tell_texts_apart),
        cmocka_unit_test(s9_08_nothing_counts_after_the_first_miss),
        cmocka_unit_test(a_masked_row_exhausts_the_text),
        cmocka_unit_test(s9_07_acceptance_keeps_the_law),
        cmocka_unit_test(a_proposal_that_cannot_have_been_drawn_is_refused),
        cmocka_unit_test(a_proposal_without_a_distribution_keeps_the_law),
        cmocka_unit_test(two_token_law_holds_with_any_block),
        cmocka_unit_test(seeded_and_greedy_texts_never_depend_on_drafts),
        cmocka_unit_test(seeded_draws_follow_the_law),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
