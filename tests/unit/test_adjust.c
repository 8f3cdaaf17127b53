/* Mask, bias and penalties: each against its words, in the order of the README, and counted alike in
 * plain, draft and verify rows; then whole texts with drafts, by equality and by their law. */
#include <stdio.h>

#include "kernels/cpu/adjust.h"
#include "tests/unit/sampling.h"

/* ---- one row ----------------------------------------------------------------------------------- */

/* A text and rules that count it, all random. */
struct setting {
    struct rules rules;
    struct bias bias[8];
    int32_t tokens[400], drafted[12];
    struct history history;
    uint32_t vocab;
    float z[3000];
};

static void random_text(struct rng *rng, struct setting *s) {
    uint32_t n = rng_below(rng, 400), some = 1 + rng_below(rng, s->vocab); /* few ids or many */
    for (uint32_t i = 0; i < n; i++)
        s->tokens[i] = (int32_t)rng_below(rng, some);
    s->history = (struct history){.tokens = s->tokens,
                                  .n_prompt = rng_below(rng, n + 1),
                                  .n_tokens = n,
                                  .drafted = s->drafted,
                                  .n_drafted = rng_below(rng, 3) ? 0 : rng_below(rng, 12)};
    for (uint32_t i = 0; i < s->history.n_drafted; i++)
        s->drafted[i] = (int32_t)rng_below(rng, some);
}

static void random_counting_rules(struct rng *rng, struct setting *s) {
    random_rules(rng, &s->rules, s->vocab);
    if (rng_below(rng, 4) == 0) s->rules.temperature = 0;
    static const float penalties[] = {-2, -0.3f, 0.1f, 0.6f, 2};
    static const float repetitions[] = {0.5f, 1, 1.1f, 1.7f, 10};
    if (rng_below(rng, 2)) s->rules.frequency = penalties[rng_below(rng, 5)];
    if (rng_below(rng, 2)) s->rules.presence = penalties[rng_below(rng, 5)];
    if (rng_below(rng, 2)) s->rules.repetition = repetitions[rng_below(rng, 5)];
    s->rules.bias = s->bias;
    for (uint32_t i = rng_below(rng, 8); i > 0; i--) {
        int32_t id = (int32_t)rng_below(rng, s->vocab);
        bool known = false; /* ids are distinct */
        for (uint32_t k = 0; k < s->rules.n_bias; k++)
            known = known || s->bias[k].id == id;
        if (known) continue;
        float value = rng_below(rng, 4) ? 4 * rng_normal(rng) : -INFINITY;
        s->bias[s->rules.n_bias++] = (struct bias){id, value};
    }
    if (rng_below(rng, 2)) {
        s->rules.min_tokens = rng_below(rng, 500);
        s->rules.n_end_ids = 1 + rng_below(rng, 3);
        for (uint32_t i = 0; i < s->rules.n_end_ids; i++)
            s->rules.end_ids[i] = (int32_t)rng_below(rng, s->vocab + 2); /* some beyond it */
    }
}

static void random_setting(struct rng *rng, struct setting *s, uint32_t vocab) {
    memset(s, 0, sizeof *s);
    s->vocab = vocab;
    random_text(rng, s);
    random_counting_rules(rng, s);
    int shape = (int)rng_below(rng, 4); /* flat, spread, full of ties, with holes */
    for (uint32_t i = 0; i < vocab; i++) {
        s->z[i] = rng_normal(rng) * (shape == 1 ? 6 : 1);
        if (shape == 2) s->z[i] = (float)rng_below(rng, 4) - 2;
        if (shape == 3 && rng_below(rng, 2)) s->z[i] = -INFINITY;
    }
}

static uint32_t out_pos_of(const struct history *h) {
    return h->n_tokens - h->n_prompt + h->n_drafted;
}

static void adjusted(const struct setting *s, float *z) {
    struct sample_scratch *scratch = scratch_for(s->vocab);
    memcpy(z, s->z, s->vocab * sizeof *z);
    adjust_begin(&s->rules, &s->history, scratch);
    if (adjust_wanted(&s->rules, out_pos_of(&s->history), scratch))
        adjust_logits(&s->rules, out_pos_of(&s->history), scratch, z);
    adjust_end(scratch);
}

static void logits_are_adjusted_by_the_words(void **state) {
    (void)state;
    static struct setting s;
    static float got[3000], want[3000];
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int round = 0; round < 3000; round++) {
        random_setting(&rng, &s, 1 + rng_below(&rng, round % 50 ? 60 : 3000));
        adjusted(&s, got);
        for (uint32_t id = 0; id < s.vocab; id++) {
            want[id] = slow_adjust_float(&s.rules, &s.history, (int32_t)id, s.z[id]);
            double better = slow_adjust_double(&s.rules, &s.history, (int32_t)id, (double)s.z[id]);
            if (better == -INFINITY || got[id] == -INFINITY)
                assert_true(better == (double)got[id]);
            else if (fabs(better - (double)got[id]) > 1e-5 * (1e2 + fabs(better)))
                fail_msg("round %d id %u: %g, want %g", round, id, (double)got[id], better);
        }
        assert_same_bits(got, want, s.vocab, "adjusted");
    }
    assert_counts_are_clear();
}

static void rows_draw_from_adjusted_logits(void **state) {
    (void)state;
    static struct setting s;
    static float z[3000];
    static struct place places[3000];
    struct rng rng;
    rng_seed(&rng, test_seed());
    uint32_t n_called = 0, n_masked = 0;
    for (int round = 0; round < 4000; round++) {
        random_setting(&rng, &s, 1 + rng_below(&rng, round % 50 ? 40 : 3000));
        int32_t best = -1, want = -1;
        for (uint32_t id = 0; id < s.vocab; id++) {
            z[id] = slow_adjust_float(&s.rules, &s.history, (int32_t)id, s.z[id]);
            if (z[id] > (best < 0 ? -INFINITY : z[best])) best = (int32_t)id;
        }
        uint32_t purpose = rng_below(&rng, 4), noise = s.rules.seeded ? DRAW_GUMBEL : purpose,
                 n = 0;
        if (best < 0 || s.rules.temperature == 0)
            want = best;
        else if (!slow_rules(&s.rules, z, s.vocab, places, &n) ||
                 !slow_draw(&s.rules, places, n, out_pos_of(&s.history), noise, &want))
            continue;
        int32_t got = sample_token(&s.rules, s.z, &s.history, purpose, scratch_for(s.vocab));
        if (got != want) fail_msg("round %d: token %d, want %d", round, got, want);
        n_called++;
        n_masked += want < 0;
    }
    assert_true(n_called > 3000 && n_masked > 0);
    assert_counts_are_clear();
}

/* Greedy choice among logits under rules, after a text whose first n_prompt tokens are the prompt. */
static int32_t choice(const struct rules *rules, const float *z, uint32_t vocab,
                      const int32_t *tokens, uint32_t n_prompt, uint32_t n_tokens) {
    struct history h = {.tokens = tokens, .n_prompt = n_prompt, .n_tokens = n_tokens};
    return sample_token(rules, z, &h, DRAW_GUMBEL, scratch_for(vocab));
}

/* Every pair is a place where the other order would choose the other token. */
static void rules_apply_in_their_order(void **state) {
    (void)state;
    static const int32_t text[] = {0, 0, 0, 2};
    struct bias bias[2] = {{0, 100}, {2, -INFINITY}};
    struct rules rules = {.min_tokens = 5, .n_end_ids = 1, .end_ids = {0}, .n_bias = 1};
    rules.bias = bias;
    assert_int_equal(choice(&rules, (float[]){5, 1}, 2, text, 0, 3), 1); /* masked, then biased */
    assert_int_equal(choice(&rules, (float[]){5, 1}, 2, text, 0, 0), 1);
    rules.min_tokens = 3;
    assert_int_equal(choice(&rules, (float[]){5, 1}, 2, text, 0, 3), 0);
    rules = (struct rules){.n_bias = 2, .bias = bias};
    assert_int_equal(choice(&rules, (float[]){0, 1, 90}, 3, text, 0, 0), 0); /* forbidden */

    /* bias, then repetition: (-1 + 3) / 4 = 0.5, not -1 * 4 + 3 = -1 */
    bias[0].value = 3;
    rules = (struct rules){.n_bias = 1, .bias = bias, .repetition = 4};
    assert_int_equal(choice(&rules, (float[]){-1, 0.4f}, 2, text, 3, 3), 0);
    /* repetition, then frequency: 6 / 2 - 2 = 1, not (6 - 2) / 2 = 2 */
    rules = (struct rules){.repetition = 2, .frequency = 2};
    assert_int_equal(choice(&rules, (float[]){6, 1.5f}, 2, text, 0, 1), 1);
    /* penalties, then temperature, min_p and top_k: without its three outputs 0 were the best */
    rules = (struct rules){.frequency = 2, .temperature = 1, .top_p = 1, .top_k = 1};
    for (rules.seed = 0; rules.seed < 50; rules.seed++)
        assert_int_equal(choice(&rules, (float[]){6, 1}, 2, text, 0, 3), 1);
    rules = (struct rules){.frequency = 2, .temperature = 1, .top_p = 1, .min_p = 0.9f};
    for (rules.seed = 0; rules.seed < 50; rules.seed++)
        assert_int_equal(choice(&rules, (float[]){6, 1}, 2, text, 0, 3), 1);
    /* (3 - 1) / 0.5 = 4 against 4.5, not 3 / 0.5 - 1 = 5 */
    rules = (struct rules){.frequency = 1, .temperature = 0.5f, .top_p = 1, .top_k = 1};
    assert_int_equal(choice(&rules, (float[]){3, 2.25f}, 2, text, 0, 1), 1);
}

static void repetition_counts_the_prompt_and_the_others_do_not(void **state) {
    (void)state;
    static const int32_t text[] = {0, 0, 1};
    struct rules rules = {.repetition = 2};
    float z[] = {3, 2.9f, 2}, negative[] = {-1, -1.5f, -2.5f};
    assert_int_equal(choice(&rules, z, 3, text, 0, 0), 0);
    assert_int_equal(choice(&rules, z, 3, text, 3, 3), 2); /* once, however often it occurs */
    assert_int_equal(choice(&rules, z, 3, text, 0, 3), 2);
    assert_int_equal(choice(&rules, negative, 3, text, 2, 2), 1); /* -2 */
    assert_int_equal(choice(&rules, negative, 3, text, 3, 3), 0); /* -2, -3: both below -1 */
    rules = (struct rules){.repetition = 0.5f};
    assert_int_equal(choice(&rules, negative, 3, text + 2, 1, 1), 1); /* -0.75 */
    rules = (struct rules){.frequency = 0.06f};
    assert_int_equal(choice(&rules, z, 3, text, 3, 3), 0); /* all prompt */
    assert_int_equal(choice(&rules, z, 3, text, 1, 3), 0); /* 2.94, 2.84 */
    assert_int_equal(choice(&rules, z, 3, text, 0, 2), 1); /* 2.88, 2.9 */
    rules = (struct rules){.presence = 0.06f};
    assert_int_equal(choice(&rules, z, 3, text, 0, 2), 0); /* 2.94 however often */
    rules =
        (struct rules){.frequency = 0.5f, .repetition = 0.99f}; /* a counted prompt is no output */
    assert_int_equal(choice(&rules, z, 3, text, 3, 3), 0);
    rules = (struct rules){.presence = -2};
    assert_int_equal(choice(&rules, z, 3, text, 2, 3), 1);
}

static void overflow_neither_spreads_nor_forbids(void **state) {
    (void)state;
    static const int32_t text[] = {0, 1, 2, 3, 4};
    struct bias bias[] = {{0, 100}, {1, -100}, {2, -FLT_MAX}, {3, FLT_MAX}, {4, 100}};
    float z[] = {FLT_MAX, -FLT_MAX, -FLT_MAX, FLT_MAX, -INFINITY};
    static const float want[][5] = {
        {FLT_MAX, -FLT_MAX, -FLT_MAX, FLT_MAX, -INFINITY},
        {FLT_MAX / 10, -FLT_MAX, -FLT_MAX, FLT_MAX / 10, -INFINITY},
        {FLT_MAX, -FLT_MAX * 1e-3f, -FLT_MAX * 1e-3f, FLT_MAX, -INFINITY},
        {FLT_MAX, -FLT_MAX, -FLT_MAX, FLT_MAX, -INFINITY}};
    struct rules rules[] = {
        {0}, {.repetition = 10}, {.repetition = 1e-3f}, {.frequency = -2, .presence = 2}};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        struct sample_scratch *scratch = scratch_for(5);
        struct history h = {.tokens = text, .n_prompt = 0, .n_tokens = 5};
        float got[5];
        rules[i].n_bias = 5, rules[i].bias = bias;
        memcpy(got, z, sizeof got);
        adjust_begin(&rules[i], &h, scratch);
        adjust_logits(&rules[i], 5, scratch, got);
        adjust_end(scratch);
        assert_same_bits(got, want[i], 5, "held");
        for (int hot = 0; hot < 2; hot++) { /* and the draw stays within what is allowed */
            rules[i].temperature = hot ? 0.01f : 0, rules[i].top_p = 1;
            int32_t token = sample_token(&rules[i], z, &h, DRAW_GUMBEL, scratch);
            assert_true(token == 0 || token == 3);
        }
    }
}

/* ---- rows of one segment ------------------------------------------------------------------------ */

enum { ROWS = 12, ROW_VOCAB = 30 };

/* Draft rows, then verify rows: each must choose what a row of its own chooses that finds the same
 * text before it, whoever counted it. */
static void rows_of_a_segment_count_their_predecessors(void **state) {
    (void)state;
    static struct setting s;
    static float rows[ROWS][ROW_VOCAB];
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct sample_scratch *scratch = scratch_for(ROW_VOCAB);
    uint32_t n_differ = 0;
    for (int round = 0; round < 1500; round++) {
        random_setting(&rng, &s, ROW_VOCAB);
        s.history.n_drafted = 0;
        s.rules.n_end_ids = 0;
        s.rules.seeded = s.rules.temperature > 0;
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t id = 0; id < ROW_VOCAB; id++)
                rows[i][id] = rng_normal(&rng) * 2;
        int32_t drafted[ROWS], alone[ROWS];
        uint32_t n = sample_propose(&s.rules, rows[0], ROWS, &s.history, scratch, drafted);
        assert_int_equal(n, ROWS);
        for (uint32_t i = 0; i < ROWS; i++) {
            struct history h = s.history;
            h.drafted = alone, h.n_drafted = i;
            alone[i] = sample_token(&s.rules, rows[i], &h, DRAW_DRAFT, scratch);
            struct history blind = s.history; /* the counts matter: some rows differ without */
            blind.drafted = (int32_t[ROWS]){0}, blind.n_drafted = i;
            n_differ += sample_token(&s.rules, rows[i], &blind, DRAW_DRAFT, scratch) != alone[i];
        }
        assert_memory_equal(drafted, alone, sizeof alone);
        struct outcome out;
        for (uint32_t wrong = 0; wrong < ROWS; wrong += 1 + rng_below(&rng, 4)) {
            memcpy(drafted, alone, sizeof drafted);
            if (wrong < ROWS - 1) drafted[wrong] = (drafted[wrong] + 1) % ROW_VOCAB;
            sample_accept(&s.rules, drafted, ROWS - 1, rows[0], NULL, &s.history, scratch, &out);
            assert_int_equal(out.n_accepted, wrong);
            assert_int_equal(out.n_tokens, wrong + 1);
            assert_memory_equal(out.tokens, alone, (wrong + 1) * sizeof *alone);
        }
    }
    assert_true(n_differ > 500);
    assert_counts_are_clear();
}

static void a_masked_row_ends_proposals_and_text(void **state) {
    (void)state;
    static const int32_t text[] = {0, 1};
    float z[3][2] = {{0, -INFINITY}, {-INFINITY, -INFINITY}, {0, 0}};
    for (int mode = 0; mode < 3; mode++) { /* greedy, seeded, rejection sampling */
        struct rules rules = {.frequency = 1, .repetition = 2, .top_p = 1};
        rules.temperature = mode > 0, rules.seeded = mode == 1;
        struct history h = {.tokens = text, .n_prompt = 1, .n_tokens = 2};
        int32_t proposals[3];
        struct outcome out;
        assert_int_equal(sample_propose(&rules, z[0], 3, &h, scratch_for(2), proposals), 1);
        assert_counts_are_clear();
        sample_accept(&rules, (int32_t[]){0, 1}, 2, z[0], NULL, &h, scratch_for(2), &out);
        assert_true(out.exhausted);
        assert_int_equal(out.n_tokens, 1);
        assert_counts_are_clear();
        struct bias all[] = {{0, -INFINITY}, {1, -INFINITY}};
        rules.n_bias = 2, rules.bias = all;
        assert_int_equal(sample_token(&rules, z[2], &h, DRAW_GUMBEL, scratch_for(2)), -1);
        sample_accept(&rules, (int32_t[]){0, 1}, 2, z[0], z[0], &h, scratch_for(2), &out);
        assert_true(out.exhausted);
        assert_int_equal(out.n_tokens, 0);
        assert_int_equal(out.n_proposed, 2);
    }
}

static void nothing_is_verified_after_an_accepted_end(void **state) {
    (void)state;
    enum { END = 3 };
    static const int32_t draft[] = {1, END, 2, 0};
    float z[5][4];
    for (int i = 0; i < 5; i++)
        for (int id = 0; id < 4; id++)
            z[i][id] = i < 4 && id == draft[i] ? 30 : -30;
    z[2][0] = NAN; /* what follows the end is not even read */
    for (int mode = 0; mode < 3; mode++) {
        struct rules rules = {.top_p = 1, .n_end_ids = 1, .end_ids = {END}};
        rules.temperature = mode > 0, rules.seeded = mode == 1;
        struct outcome out;
        sample_accept(&rules, draft, 4, z[0], NULL, AT(0), scratch_for(4), &out);
        assert_int_equal(out.n_drafted, 4);
        assert_int_equal(out.n_proposed, 2);
        assert_int_equal(out.n_accepted, 2);
        assert_int_equal(out.n_tokens, 2);
        assert_false(out.exhausted);
        assert_memory_equal(out.tokens, draft, 2 * sizeof *draft);
        rules.n_end_ids = 0; /* an ordinary token */
        z[2][0] = -30;
        sample_accept(&rules, draft, 4, z[0], NULL, AT(0), scratch_for(4), &out);
        assert_int_equal(out.n_accepted, 4);
        z[2][0] = NAN;
    }
}

/* ---- texts -------------------------------------------------------------------------------------- */

enum source { SOURCE_DRAFT, SOURCE_GIVEN }; /* proposals with a distribution q, or certain ones */

/* A model of at most 8 tokens: logits after the text so far. */
typedef void model_fn(const int32_t *tokens, uint32_t n_prompt, uint32_t n, bool drafter, float *z);

enum { TEXT_VOCAB = 8, TEXT_MAX = 32, BLOCK_MAX = 9 };

/* n tokens after a prompt, written in cycles of `block` rows. Draft rows see the known text, then the
 * drafter's own greedy choices; given proposals are those choices. After an end id the text is filled
 * up with it. Returns how many proposals were kept. */
static uint32_t write_text(const struct rules *rules, model_fn *model, uint32_t vocab,
                           enum source source, uint32_t block, int32_t *text, uint32_t n_prompt,
                           uint32_t n) {
    static const struct rules greedy;
    struct sample_scratch *scratch = scratch_for(vocab);
    uint32_t at = n_prompt, kept = 0, end = n_prompt + n;
    while (at < end) {
        int32_t draft[BLOCK_MAX], seen[TEXT_MAX + BLOCK_MAX];
        float q[BLOCK_MAX * TEXT_VOCAB], p[BLOCK_MAX * TEXT_VOCAB];
        struct history h = {.tokens = text, .n_prompt = n_prompt, .n_tokens = at};
        memcpy(seen, text, at * sizeof *text);
        for (uint32_t i = 0; i + 1 < block; i++) {
            model(seen, n_prompt, at + i, true, q + i * vocab);
            draft[i] = seen[at + i] =
                sample_token(&greedy, q + i * vocab, AT(0), DRAW_GUMBEL, scratch);
        }
        uint32_t n_draft = block - 1;
        if (source == SOURCE_DRAFT) n_draft = sample_propose(rules, q, n_draft, &h, scratch, draft);
        memcpy(seen + at, draft, n_draft * sizeof *draft);
        for (uint32_t i = 0; i <= n_draft; i++)
            model(seen, n_prompt, at + i, false, p + i * vocab);
        struct outcome out;
        sample_accept(rules, draft, n_draft, p, source == SOURCE_DRAFT ? q : NULL, &h, scratch,
                      &out);
        assert_false(out.exhausted);
        kept += out.n_accepted;
        for (uint32_t i = 0; i < out.n_tokens && at < end; i++) {
            int32_t token = text[at++] = out.tokens[i];
            for (uint32_t e = 0; e < rules->n_end_ids; e++)
                while (at < end && token == rules->end_ids[e])
                    text[at++] = token;
        }
    }
    return kept;
}

static void constant_logits(const int32_t *tokens, uint32_t n_prompt, uint32_t n, bool drafter,
                            float *z) {
    (void)tokens, (void)n_prompt, (void)n, (void)drafter;
    memcpy(z, (float[]){3, 2, -9}, 3 * sizeof *z);
}

static void constant_but_drafter_says_a(const int32_t *tokens, uint32_t n_prompt, uint32_t n,
                                        bool drafter, float *z) {
    constant_logits(tokens, n_prompt, n, drafter, z);
    if (drafter) z[0] = 100;
}

static void s9_06_penalties_count_accepted_tokens_and_no_others(void **state) {
    (void)state;
    static const int32_t want[] = {0, 0, 1, 0, 1, 0, 1}; /* aababab */
    struct rules rules = {.frequency = 0.6f};
    for (uint32_t block = 1; block <= BLOCK_MAX; block++)
        for (int source = 0; source < 2; source++) {
            int32_t text[TEXT_MAX];
            uint32_t kept = write_text(&rules, constant_but_drafter_says_a, 3, (enum source)source,
                                       block, text, 0, 7);
            assert_memory_equal(text, want, sizeof want);
            assert_true((kept > 0) == (block > 1));
            kept = write_text(&rules, constant_logits, 3, SOURCE_DRAFT, block, text, 0, 7);
            assert_memory_equal(text, want, sizeof want);
            /* A drafter with the same rules proposes the text itself: whole cycles are kept. */
            assert_int_equal(kept, div_ceil(7, block) * (block - 1));
        }
}

static void wants_the_end_at_3(const int32_t *tokens, uint32_t n_prompt, uint32_t n, bool drafter,
                               float *z) {
    (void)tokens, (void)drafter;
    for (int id = 0; id < 5; id++)
        z[id] = -40;
    z[1] = 0; /* what comes in its place where it is masked */
    z[n - n_prompt == 3 ? 4 : (n - n_prompt) % 3] = 40;
}

static void s9_11_min_tokens_masks_the_right_rows(void **state) {
    (void)state;
    static const int32_t ended[] = {0, 1, 2, 4, 4, 4, 4, 4, 4};
    static const int32_t goes_on[] = {0, 1, 2, 1, 1, 2, 0, 1, 2};
    for (uint32_t min_tokens = 2; min_tokens <= 4; min_tokens++)
        for (uint32_t block = 1; block <= BLOCK_MAX; block++)
            for (int mode = 0; mode < 6; mode++) {
                struct rules rules = {.top_p = 1, .min_tokens = min_tokens, .n_end_ids = 1};
                rules.end_ids[0] = 4;
                rules.temperature = mode % 3 > 0, rules.seeded = mode % 3 == 1, rules.seed = block;
                int32_t text[TEXT_MAX];
                write_text(&rules, wants_the_end_at_3, 5, (enum source)(mode / 3), block, text, 0,
                           9);
                assert_memory_equal(text, min_tokens <= 3 ? ended : goes_on, sizeof ended);
            }
}

/* ---- the law of texts --------------------------------------------------------------------------- */

enum { TOY_VOCAB = 5, TOY_PROMPT = 2, TOY_TEXT = 6, TOY_CELLS = 125 };

/* Logits after the last token; the drafter is a bad copy. */
static void toy_model(const int32_t *tokens, uint32_t n_prompt, uint32_t n, bool drafter,
                      float *z) {
    static float table[2][TOY_VOCAB][TOY_VOCAB];
    static bool made;
    (void)n_prompt;
    if (!made) {
        struct rng rng;
        rng_seed(&rng, 77);
        for (int last = 0; last < TOY_VOCAB; last++)
            for (int id = 0; id < TOY_VOCAB; id++) {
                table[0][last][id] = 1.3f * rng_normal(&rng);
                table[1][last][id] = table[0][last][id] + 0.7f * rng_normal(&rng);
            }
        made = true;
    }
    memcpy(z, table[drafter][tokens[n - 1]], sizeof table[0][0]);
}

static struct rules toy_rules(int kind) {
    static const struct bias bias[] = {{2, 0.7f}, {4, -INFINITY}};
    struct rules rules = {.temperature = 1, .top_p = 1};
    if (kind == 0) rules.frequency = 0.8f, rules.presence = 0.4f;
    if (kind == 1) rules.repetition = 1.6f, rules.n_bias = 2, rules.bias = bias;
    if (kind == 2) {
        rules.frequency = 0.5f, rules.repetition = 1.3f, rules.n_bias = 1, rules.bias = bias;
        rules.temperature = 0.8f, rules.top_p = 0.85f, rules.top_k = 4;
    }
    if (kind == 3) {
        rules.frequency = -0.5f, rules.presence = 0.3f, rules.repetition = 0.8f,
        rules.min_p = 0.04f;
        rules.min_tokens = 2, rules.n_end_ids = 1, rules.end_ids[0] = 1;
    }
    return rules;
}

/* Add the probability of every text that begins so to its cells. */
static void add_texts(const struct rules *rules, int32_t *text, uint32_t n, double weight,
                      double *heads, double *tails) {
    if (n == TOY_PROMPT + TOY_TEXT) {
        const int32_t *t = text + TOY_PROMPT;
        heads[(t[0] * TOY_VOCAB + t[1]) * TOY_VOCAB + t[2]] += weight;
        tails[(t[3] * TOY_VOCAB + t[4]) * TOY_VOCAB + t[5]] += weight;
        return;
    }
    if (n > TOY_PROMPT && rules->n_end_ids && text[n - 1] == rules->end_ids[0]) {
        text[n] = text[n - 1];
        add_texts(rules, text, n + 1, weight, heads, tails);
        return;
    }
    float logits[TOY_VOCAB], z[TOY_VOCAB];
    struct place places[TOY_VOCAB];
    struct history h = {.tokens = text, .n_prompt = TOY_PROMPT, .n_tokens = n};
    uint32_t n_kept = 0;
    double total = 0;
    toy_model(text, TOY_PROMPT, n, false, logits);
    for (int32_t id = 0; id < TOY_VOCAB; id++)
        z[id] = slow_adjust_float(rules, &h, id, logits[id]);
    assert_true(slow_rules(rules, z, TOY_VOCAB, places, &n_kept));
    for (uint32_t i = 0; i < n_kept; i++)
        total += exp(places[i].score);
    for (uint32_t i = 0; i < n_kept; i++) {
        text[n] = (int32_t)places[i].id;
        add_texts(rules, text, n + 1, weight * exp(places[i].score) / total, heads, tails);
    }
}

static void law_of_texts_holds_with_any_block_and_source(void **state) {
    (void)state;
    static const uint32_t blocks[] = {1, 2, 4, 8};
    const double limit = 4.7534; /* p > 1e-6 */
    for (int kind = 0; kind < 4; kind++) {
        struct rules rules = toy_rules(kind);
        double heads[TOY_CELLS] = {0}, tails[TOY_CELLS] = {0};
        int32_t text[TOY_PROMPT + TOY_TEXT] = {0, 3};
        add_texts(&rules, text, TOY_PROMPT, 1, heads, tails);
        for (size_t k = 0; k < ARRAY_LEN(blocks); k++)
            for (int source = 0; source < (k ? 2 : 1); source++) {
                uint32_t n_heads[TOY_CELLS] = {0}, n_tails[TOY_CELLS] = {0}, kept = 0;
                for (uint64_t i = 0; i < 25000; i++) {
                    rules.seed = (i * 64 + k * 8 + (uint64_t)source) * 0x9E3779B97F4A7C15u;
                    kept += write_text(&rules, toy_model, TOY_VOCAB, (enum source)source, blocks[k],
                                       text, TOY_PROMPT, TOY_TEXT);
                    const int32_t *t = text + TOY_PROMPT;
                    n_heads[(t[0] * TOY_VOCAB + t[1]) * TOY_VOCAB + t[2]]++;
                    n_tails[(t[3] * TOY_VOCAB + t[4]) * TOY_VOCAB + t[5]]++;
                }
                char what[64];
                snprintf(what, sizeof what, "rules %d block %u source %d", kind, blocks[k], source);
                assert_law_within(n_heads, heads, TOY_CELLS, limit, what);
                assert_law_within(n_tails, tails, TOY_CELLS, limit, what);
                assert_true(k == 0 ? kept == 0 : kept > 12000);
            }
    }
    assert_counts_are_clear();
}

static void seeded_and_greedy_texts_do_not_depend_on_drafts(void **state) {
    (void)state;
    uint32_t kept = 0;
    for (int kind = 0; kind < 8; kind++) {
        struct rules rules = toy_rules(kind % 4);
        if (kind >= 4) rules.temperature = 0;
        rules.seeded = kind < 4;
        for (rules.seed = 0; rules.seed < (kind < 4 ? 400 : 1); rules.seed++) {
            int32_t alone[TEXT_MAX] = {0, 3}, drafted[TEXT_MAX] = {0, 3};
            write_text(&rules, toy_model, TOY_VOCAB, SOURCE_GIVEN, 1, alone, TOY_PROMPT, 20);
            for (uint32_t block = 2; block <= BLOCK_MAX; block++)
                for (int source = 0; source < 2; source++) {
                    kept += write_text(&rules, toy_model, TOY_VOCAB, (enum source)source, block,
                                       drafted, TOY_PROMPT, 20);
                    assert_memory_equal(alone, drafted, (TOY_PROMPT + 20) * sizeof *alone);
                }
        }
    }
    assert_true(kept > 20000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_adjusted_by_the_words),
        cmocka_unit_test(rows_draw_from_adjusted_logits),
        cmocka_unit_test(rules_apply_in_their_order),
        cmocka_unit_test(repetition_counts_the_prompt_and_the_others_do_not),
        cmocka_unit_test(overflow_neither_spreads_nor_forbids),
        cmocka_unit_test(rows_of_a_segment_count_their_predecessors),
        cmocka_unit_test(a_masked_row_ends_proposals_and_text),
        cmocka_unit_test(nothing_is_verified_after_an_accepted_end),
        cmocka_unit_test(s9_06_penalties_count_accepted_tokens_and_no_others),
        cmocka_unit_test(s9_11_min_tokens_masks_the_right_rows),
        cmocka_unit_test(law_of_texts_holds_with_any_block_and_source),
        cmocka_unit_test(seeded_and_greedy_texts_do_not_depend_on_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
