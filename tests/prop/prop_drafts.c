/* prop_drafts: --drafts auto and ngram on the scripted model in simulated time. Machines with several
 * costs, drafters that are perfect, useless, or change their mind: the text is always that of no
 * drafts, useless drafts cost next to nothing, good ones are used. */
#include "tests/harness.h"

#include <stdio.h>
#include <string.h>

#include "proto/proto.h"
#include "tests/scripted/scripted.h"

enum {
    VOCAB = 40,
    EOS = VOCAB,
    BLOCK = 16,
    CONTEXT = 4096,
    TEXTS_MAX = 8,    /* that run at once */
    SHORT_MIN = 3,    /* tokens of a short text */
    SHORT_MAX = 8,    /* at most */
    SHORT_BATCH = 40, /* of them submitted at once */
    N_SHORT = 2000,
};

/* ---- machines ---------------------------------------------------------------------------------- */

struct machine {
    const char *name;
    double main_0, main_1, draft_0, draft_1; /* microseconds a forward, and a row */
};

static const struct machine MACHINES[] = {
    {"memory-bound", 10000, 10, 10000, 10},  {"half and half", 5000, 400, 5000, 400},
    {"compute-bound", 100, 1000, 100, 1000}, {"cheap drafts", 10000, 300, 2000, 100},
    {"dear drafts", 3000, 100, 9000, 300},
};

static double cost_us(void *arg, bool draft, uint32_t n_rows) {
    const struct machine *m = arg;
    return draft ? m->draft_0 + m->draft_1 * n_rows : m->main_0 + m->main_1 * n_rows;
}

/* ---- scripts ----------------------------------------------------------------------------------- */

static void add_ids(struct buf *t, const char *key, const int32_t *ids, uint32_t n) {
    buf_fmt(t, ",\"%s\":[", key);
    for (uint32_t i = 0; i < n; i++)
        buf_fmt(t, "%s%d", i ? "," : "", ids[i]);
    buf_fmt(t, "]");
}

/* A text, and what the drafter says at its places; drafter NULL: the model has no draft view. more:
 * other keys of the script. */
static struct model *make_model_with(const int32_t *ids, const int32_t *drafter, uint32_t n,
                                     uint32_t window, int block, const char *more) {
    struct buf t = {0};
    buf_fmt(&t, "{\"vocab\":[");
    for (int i = 0; i < VOCAB; i++)
        buf_fmt(&t, "\"%c%c\",", 'a' + i / 7, 'A' + i % 7);
    buf_fmt(&t, "{\"special\":\"<eos>\"}],\"eos\":[%d],\"context\":%d,\"block_size\":%d", EOS,
            CONTEXT, drafter ? block : 0);
    add_ids(&t, "sequence", ids, n);
    if (drafter) add_ids(&t, "draft_sequence", drafter, n);
    buf_fmt(&t, "%s}", more);
    struct model *model = NULL;
    struct err err;
    struct model_options options = {.path = "script", .window = window};
    if (scripted_model_create(t.data, t.len, &options, &model, &err) != OK) fail_msg("%s", err.msg);
    buf_free(&t);
    return model;
}

static struct model *make_model(const int32_t *ids, const int32_t *drafter, uint32_t n,
                                uint32_t window) {
    return make_model_with(ids, drafter, n, window, BLOCK, "");
}

/* The drafter agrees at place i with probability agree(i). */
static void make_drafter(struct rng *rng, const int32_t *ids, uint32_t n, double first_half,
                         double second_half, int32_t *drafter) {
    for (uint32_t i = 0; i < n; i++) {
        bool agrees = rng_unit(rng) < (i < n / 2 ? first_half : second_half);
        drafter[i] = agrees ? ids[i] : (ids[i] + 1) % VOCAB;
    }
}

/* ---- runs -------------------------------------------------------------------------------------- */

struct run {
    double us; /* simulated, from the first text's start to the last one's end */
    uint64_t tokens, forwards, draft_forwards, proposed, accepted;
    uint32_t n_rejected, n_kept; /* of the texts' own counts */
};

/* An engine in simulated time, which starts at *time. */
static struct engine *make_engine(struct model *model, const struct machine *machine,
                                  int32_t drafts, struct scripted_time *time) {
    *time = (struct scripted_time){
        .now_us = 1000, .cost_us = cost_us, .arg = (void *)(uintptr_t)machine};
    scripted_set_time(model, time);
    struct engine_config config;
    engine_config_defaults(&config);
    config.drafts = drafts;
    config.max_num_seqs = TEXTS_MAX;
    config.clock = scripted_clock;
    config.clock_arg = time;
    struct engine *engine = NULL;
    struct err err;
    if (engine_create(model, &config, &engine, &err) != OK) fail_msg("%s", err.msg);
    return engine;
}

/* The texts ids[0 .. lens[i]), all submitted at once, until the last has ended. */
static void run_round(struct engine *engine, struct scripted_time *time, const int32_t *ids,
                      const uint32_t *lens, uint32_t n_texts, bool seeded, struct run *run) {
    static int32_t prompt[] = {7, 3, 9};
    struct request requests[SHORT_BATCH];
    uint32_t n_got[SHORT_BATCH] = {0}, n_ended = 0;
    struct err err;
    ASSERT(n_texts <= SHORT_BATCH);
    for (uint32_t i = 0; i < n_texts; i++) {
        requests[i] = (struct request){.id = i, .max_tokens = lens[i], .n_prompt = 3};
        requests[i].prompt = prompt;
        sampling_defaults(&requests[i].sampling);
        requests[i].sampling.temperature = seeded ? 0.5 : 0;
        requests[i].sampling.has_seed = seeded;
        requests[i].sampling.seed = i;
        requests[i].sampling.ignore_eos = true;
        assert_int_equal(engine_submit(engine, &requests[i], &err), OK);
    }
    for (int rc = 1; rc > 0;) {
        rc = engine_step(engine, time->now_us);
        struct event event;
        while (engine_next_event(engine, &event)) {
            assert_true(event.kind != EVENT_FAILED);
            for (uint32_t t = 0; t < event.n_tokens; t++)
                assert_int_equal(event.tokens[t], ids[n_got[event.id]++]);
            if (event.kind != EVENT_FINISHED) continue;
            n_ended++;
            run->n_kept += event.stats.n_accepted;
            run->n_rejected += event.stats.n_rejected;
        }
    }
    assert_int_equal(n_ended, n_texts);
    for (uint32_t i = 0; i < n_texts; i++)
        assert_int_equal(n_got[i], lens[i]);
}

static void end_run(struct engine *engine, const struct scripted_time *time, uint32_t n_texts,
                    struct run *run) {
    struct engine_gauges gauges;
    engine_gauges(engine, &gauges);
    run->us = (double)time->now_us;
    run->tokens = gauges.generated_tokens;
    run->forwards = gauges.main_forwards + gauges.draft_forwards;
    run->draft_forwards = gauges.draft_forwards;
    run->proposed = gauges.proposed_tokens;
    run->accepted = gauges.accepted_tokens;
    assert_true(run->accepted == run->n_kept);
    assert_true(run->proposed >= run->n_kept + run->n_rejected);
    /* Emitted tokens summed over passes are all but the first of each text (S9-09). */
    assert_true(gauges.accepted_length.sum == (double)(run->tokens - n_texts));
    engine_destroy(engine);
}

/* n_texts texts at once, n_rounds times; every text must be ids[0 .. n). */
static struct run run_texts(struct model *model, const struct machine *machine, int32_t drafts,
                            const int32_t *ids, uint32_t n, uint32_t n_texts, uint32_t n_rounds,
                            bool seeded) {
    struct scripted_time time;
    struct engine *engine = make_engine(model, machine, drafts, &time);
    struct run run = {0};
    uint32_t lens[TEXTS_MAX];
    for (uint32_t i = 0; i < n_texts; i++)
        lens[i] = n;
    for (uint32_t round = 0; round < n_rounds; round++)
        run_round(engine, &time, ids, lens, n_texts, seeded, &run);
    end_run(engine, &time, n_texts * n_rounds, &run);
    return run;
}

/* N_SHORT texts of SHORT_MIN to SHORT_MAX tokens, at_once in the line at a time. */
static struct run run_short(struct model *model, const struct machine *machine, int32_t drafts,
                            const int32_t *ids, uint32_t at_once) {
    struct scripted_time time;
    struct engine *engine = make_engine(model, machine, drafts, &time);
    struct run run = {0};
    struct rng rng;
    rng_seed(&rng, 5); /* the same lengths in every setting */
    for (uint32_t done = 0; done < N_SHORT; done += at_once) {
        uint32_t lens[SHORT_BATCH];
        for (uint32_t i = 0; i < at_once; i++)
            lens[i] = SHORT_MIN + rng_below(&rng, SHORT_MAX - SHORT_MIN + 1);
        run_round(engine, &time, ids, lens, at_once, false, &run);
    }
    end_run(engine, &time, N_SHORT, &run);
    return run;
}

static void random_ids(struct rng *rng, uint32_t n, int32_t *ids) {
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, VOCAB);
}

/* ---- auto -------------------------------------------------------------------------------------- */

static void useless_drafts_cost_at_most_a_twentieth(void **state) {
    (void)state;
    enum { N = 600 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    random_ids(&rng, N, ids);
    make_drafter(&rng, ids, N, 0, 0, drafter);
    struct model *model = make_model(ids, drafter, N, 0);
    static const uint32_t COUNTS[] = {1, 3, 8};
    for (size_t i = 0; i < ARRAY_LEN(MACHINES); i++)
        for (size_t j = 0; j < ARRAY_LEN(COUNTS); j++) {
            const struct machine *m = &MACHINES[i];
            struct run off = run_texts(model, m, DRAFTS_OFF, ids, N, COUNTS[j], 2, false);
            struct run got = run_texts(model, m, DRAFTS_AUTO, ids, N, COUNTS[j], 2, false);
            assert_int_equal(got.accepted, 0);
            assert_true(got.proposed > 0); /* they were tried */
            if (got.us > 1.05 * off.us)
                fail_msg("%s, %u texts: %.3f times the time without drafts", m->name, COUNTS[j],
                         got.us / off.us);
        }
    model_destroy(model);
}

static void perfect_drafts_fill_their_blocks(void **state) {
    (void)state;
    enum { N = 2000 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    random_ids(&rng, N, ids);
    make_drafter(&rng, ids, N, 1, 1, drafter);
    for (uint32_t window = 0; window <= 30; window += 30) {
        struct model *model = make_model(ids, drafter, N, window);
        for (size_t i = 0; i < 2; i++) { /* where long blocks pay */
            struct run got = run_texts(model, &MACHINES[i], DRAFTS_AUTO, ids, N, 1, 1, false);
            double per_forward = (double)got.tokens / (double)got.forwards;
            if (per_forward < 0.95 * BLOCK / 2)
                fail_msg("%s, window %u: %.2f tokens a forward", MACHINES[i].name, window,
                         per_forward);
        }
        model_destroy(model);
    }
}

static void drafter_that_changes_its_mind_is_followed(void **state) {
    (void)state;
    enum { N = 2000 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    random_ids(&rng, N, ids);
    const struct machine *m = &MACHINES[0];
    for (int to_bad = 0; to_bad < 2; to_bad++) {
        make_drafter(&rng, ids, N, to_bad, !to_bad, drafter);
        struct model *model = make_model(ids, drafter, N, 0);
        struct run off = run_texts(model, m, DRAFTS_OFF, ids, N, 1, 1, false);
        struct run got = run_texts(model, m, DRAFTS_AUTO, ids, N, 1, 1, false);
        model_destroy(model);
        /* Half of the text at nearly eight times the speed, half at nearly that of no drafts; the
         * turn to the better is found by a trial block, at worst 256 passes and its wait late. */
        double best = off.us * (0.5 + 0.5 / (BLOCK / 2.0));
        double slack = to_bad ? 1.06 : 1.4;
        if (got.us > slack * best)
            fail_msg("to the %s: %.3f of the time without drafts, at best %.3f",
                     to_bad ? "worse" : "better", got.us / off.us, best / off.us);
        assert_true(got.accepted > (to_bad ? 0.9 : 0.6) * N / 2);
    }
}

static void choice_is_never_far_from_the_best_fixed_length(void **state) {
    (void)state;
    enum { N = 1200 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    random_ids(&rng, N, ids);
    static const double QUALITIES[] = {0.95, 0.8, 0.5};
    for (size_t q = 0; q < ARRAY_LEN(QUALITIES); q++) {
        make_drafter(&rng, ids, N, QUALITIES[q], QUALITIES[q], drafter);
        struct model *model = make_model(ids, drafter, N, 0);
        for (size_t i = 0; i < ARRAY_LEN(MACHINES); i++)
            for (uint32_t n_texts = 1; n_texts <= 8; n_texts += 7) {
                const struct machine *m = &MACHINES[i];
                struct run off = run_texts(model, m, DRAFTS_OFF, ids, N, n_texts, 1, false);
                struct run got = run_texts(model, m, DRAFTS_AUTO, ids, N, n_texts, 1, false);
                double best = off.us;
                for (int32_t rows = 2; rows <= BLOCK; rows += 2) {
                    struct run fixed = run_texts(model, m, rows, ids, N, n_texts, 1, false);
                    if (fixed.us < best) best = fixed.us;
                }
                /* Learning and trial blocks take their time in a text so short, the longer the dearer
                 * drafts are; test_drafts asks for more of long runs. */
                double saved = off.us - got.us, possible = off.us - best;
                if (saved < -0.06 * off.us || saved < 0.5 * possible - 0.08 * off.us)
                    fail_msg("%s, agreement %g, %u texts: %.3f of off, %.3f of the best fixed",
                             m->name, QUALITIES[q], n_texts, got.us / off.us, got.us / best);
            }
        model_destroy(model);
    }
}

/* ---- short texts ------------------------------------------------------------------------------- */

/* One at a time, a batch's worth, and with others in line, so that most forwards hold a prompt too. */
static const uint32_t AT_ONCE[] = {1, TEXTS_MAX, SHORT_BATCH};

static void short_texts_are_drafted_from_their_first_pass_on(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[SHORT_MAX], drafter[SHORT_MAX];
    random_ids(&rng, SHORT_MAX, ids);
    make_drafter(&rng, ids, SHORT_MAX, 1, 1, drafter);
    drafter[4] =
        (ids[4] + 1) % VOCAB; /* all but the fifth token, which half of the texts never ask */
    struct model *model = make_model(ids, drafter, SHORT_MAX, 0);
    for (size_t i = 0; i < ARRAY_LEN(MACHINES); i++)
        for (size_t j = 0; j < ARRAY_LEN(AT_ONCE); j++) {
            const struct machine *m = &MACHINES[i];
            struct run off = run_short(model, m, DRAFTS_OFF, ids, AT_ONCE[j]);
            struct run got = run_short(model, m, DRAFTS_AUTO, ids, AT_ONCE[j]);
            double best = off.us, possible = 0;
            for (int32_t rows = 2; rows <= 8; rows++) {
                struct run fixed = run_short(model, m, rows, ids, AT_ONCE[j]);
                if (fixed.us >= best) continue;
                best = fixed.us;
                possible = (double)fixed.accepted / N_SHORT;
            }
            double a_text = (double)got.accepted / N_SHORT;
            bool pays = best < 0.95 * off.us;
            if (got.us > 1.05 * off.us || (pays && got.us > 1.1 * best) ||
                (pays && a_text < 0.8 * possible))
                fail_msg(
                    "%s, %u at once: %.3f of off, best fixed %.3f; accepted %.2f of %.2f a text",
                    m->name, AT_ONCE[j], got.us / off.us, best / off.us, a_text, possible);
        }
    model_destroy(model);
}

static void useless_drafts_of_short_texts_cost_at_most_a_twentieth(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[SHORT_MAX], drafter[SHORT_MAX];
    random_ids(&rng, SHORT_MAX, ids);
    make_drafter(&rng, ids, SHORT_MAX, 0, 0, drafter);
    struct model *model = make_model(ids, drafter, SHORT_MAX, 0);
    for (size_t i = 0; i < ARRAY_LEN(MACHINES); i++)
        for (size_t j = 0; j < ARRAY_LEN(AT_ONCE); j++) {
            const struct machine *m = &MACHINES[i];
            struct run off = run_short(model, m, DRAFTS_OFF, ids, AT_ONCE[j]);
            struct run got = run_short(model, m, DRAFTS_AUTO, ids, AT_ONCE[j]);
            assert_int_equal(got.accepted, 0);
            assert_true(got.proposed > 0);
            if (got.us > 1.05 * off.us)
                fail_msg("%s, %u at once: %.3f times the time without drafts", m->name, AT_ONCE[j],
                         got.us / off.us);
        }
    model_destroy(model);
}

/* ---- ngram ------------------------------------------------------------------------------------- */

static void repetitive_text_is_found_in_itself(void **state) {
    (void)state;
    enum { N = 1000, PERIOD = 50 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N];
    for (uint32_t i = 0; i < N; i++)
        ids[i] = i < PERIOD ? (int32_t)rng_below(&rng, VOCAB) : ids[i - PERIOD];
    for (uint32_t window = 0; window <= 30; window += 30) {
        struct model *model = make_model(ids, NULL, N, window);
        for (uint32_t n_texts = 1; n_texts <= 4; n_texts += 3) {
            struct run off = run_texts(model, &MACHINES[0], DRAFTS_OFF, ids, N, n_texts, 1, false);
            struct run got =
                run_texts(model, &MACHINES[0], DRAFTS_NGRAM, ids, N, n_texts, 1, false);
            assert_int_equal(got.draft_forwards, 0);
            if (got.us > off.us / 5 || got.accepted < n_texts * 0.85 * N)
                fail_msg("%u texts: %.3f of off, %llu of %llu accepted", n_texts, got.us / off.us,
                         (unsigned long long)got.accepted, (unsigned long long)got.tokens);
        }
        model_destroy(model);
    }
}

static void random_text_costs_little(void **state) {
    (void)state;
    enum { N = 1000 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    random_ids(&rng, N, ids);
    make_drafter(&rng, ids, N, 1, 1, drafter);
    for (int view = 0; view < 2; view++) { /* with a draft view it is not used */
        struct model *model = make_model(ids, view ? drafter : NULL, N, 0);
        for (size_t i = 0; i < ARRAY_LEN(MACHINES); i++) {
            struct run off = run_texts(model, &MACHINES[i], DRAFTS_OFF, ids, N, 2, 1, false);
            struct run got = run_texts(model, &MACHINES[i], DRAFTS_NGRAM, ids, N, 2, 1, false);
            assert_int_equal(got.draft_forwards, 0);
            if (got.us > 1.05 * off.us)
                fail_msg("%s: %.3f times the time without drafts", MACHINES[i].name,
                         got.us / off.us);
        }
        model_destroy(model);
    }
}

/* A text, its end token included, at once; its tokens are asserted. */
static struct seq_stats run_one(struct engine *engine, struct scripted_time *time, int32_t *prompt,
                                uint32_t n_prompt, uint32_t max_tokens, const int32_t *ids,
                                uint32_t n) {
    struct request request = {.n_prompt = n_prompt, .max_tokens = max_tokens, .prompt = prompt};
    struct seq_stats stats = {0};
    struct err err;
    uint32_t n_got = 0;
    sampling_defaults(&request.sampling);
    request.sampling.temperature = 0;
    assert_int_equal(engine_submit(engine, &request, &err), OK);
    for (int rc = 1; rc > 0;) {
        rc = engine_step(engine, time->now_us);
        struct event event;
        while (engine_next_event(engine, &event)) {
            assert_true(event.kind != EVENT_FAILED);
            for (uint32_t t = 0; t < event.n_tokens; t++)
                assert_true(n_got < n && event.tokens[t] == ids[n_got++]);
            if (event.kind == EVENT_FINISHED) stats = event.stats;
        }
    }
    assert_int_equal(n_got, n);
    return stats;
}

/* A loop that ends in its middle, where 15 more of its tokens are being verified: the state at the
 * last page border is still at hand, so the next prompt starts there. */
static void state_outlives_given_proposals_at_the_end_of_a_text(void **state) {
    (void)state;
    enum { PERIOD = 10, N_MAX = 130, N_PROMPT = 13 };
    static const char *const NAMES[] = {"no draft view", "blocks of 16 unused",
                                        "blocks of 4 unused"};
    struct rng rng;
    rng_seed(&rng, test_seed());
    int32_t loop[PERIOD], prompt[N_PROMPT + N_MAX + 1], ids[N_MAX + 1], drafter[N_MAX + 1] = {0};
    uint32_t n_long = 0;
    for (int i = 0; i < PERIOD; i++)
        loop[i] = i + (int32_t)rng_below(&rng, 2) * PERIOD; /* ten different tokens */
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 20 + (int32_t)i;
    for (uint32_t n = N_MAX - 2 * PAGE_TOKENS; n <= N_MAX; n++)
        for (int kind = 0; kind < 3; kind++) {
            for (uint32_t i = 0; i < n; i++)
                ids[i] = prompt[N_PROMPT + i] = loop[i % PERIOD];
            ids[n] = EOS;
            prompt[N_PROMPT + n] = 39;
            struct model *model = make_model_with(ids, kind ? drafter : NULL, n + 1, 0,
                                                  kind == 2 ? 4 : BLOCK, ",\"state\":true");
            struct scripted_time time;
            struct engine *engine = make_engine(model, &MACHINES[0], DRAFTS_NGRAM, &time);
            struct seq_stats first = run_one(engine, &time, prompt, N_PROMPT, 1000, ids, n + 1);
            n_long += first.n_rejected >= 8;
            struct seq_stats next = run_one(engine, &time, prompt, N_PROMPT + n + 1, 7, ids, 7);
            uint32_t whole = (N_PROMPT + n) / PAGE_TOKENS * PAGE_TOKENS;
            if (next.n_cached != whole)
                fail_msg("%s, %u tokens: %u cached, not %u", NAMES[kind], n, next.n_cached, whole);
            engine_destroy(engine);
            model_destroy(model);
        }
    assert_true(n_long > PAGE_TOKENS); /* many ends had a long run of proposals to refuse */
}

/* ---- texts ------------------------------------------------------------------------------------- */

/* Logit 10 against -10 at temperature 0.5 leaves one token, so seeded texts are the script's too; that
 * the rules agree is prop_engine's matter. */
static void no_setting_changes_a_text(void **state) {
    (void)state;
    enum { N = 150 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    static int32_t ids[N], drafter[N];
    static const int32_t SETTINGS[] = {DRAFTS_OFF, DRAFTS_AUTO, DRAFTS_NGRAM, 2, 7, BLOCK};
    for (int round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < N; i++)
            ids[i] = (int32_t)rng_below(&rng, 3 + rng_below(&rng, VOCAB - 3));
        make_drafter(&rng, ids, N, rng_unit(&rng), rng_unit(&rng), drafter);
        struct model *model = make_model(ids, drafter, N, round % 2 ? 9 : 0);
        const struct machine *m = &MACHINES[rng_below(&rng, ARRAY_LEN(MACHINES))];
        for (size_t i = 0; i < ARRAY_LEN(SETTINGS); i++)
            run_texts(model, m, SETTINGS[i], ids, N, 1 + rng_below(&rng, TEXTS_MAX), 1, round % 3);
        model_destroy(model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(useless_drafts_cost_at_most_a_twentieth),
        cmocka_unit_test(perfect_drafts_fill_their_blocks),
        cmocka_unit_test(drafter_that_changes_its_mind_is_followed),
        cmocka_unit_test(choice_is_never_far_from_the_best_fixed_length),
        cmocka_unit_test(short_texts_are_drafted_from_their_first_pass_on),
        cmocka_unit_test(useless_drafts_of_short_texts_cost_at_most_a_twentieth),
        cmocka_unit_test(repetitive_text_is_found_in_itself),
        cmocka_unit_test(random_text_costs_little),
        cmocka_unit_test(state_outlives_given_proposals_at_the_end_of_a_text),
        cmocka_unit_test(no_setting_changes_a_text),
    };
    return cmocka_run_group_tests_name("prop_drafts", tests, NULL, NULL);
}
