/* prop_engine_cache: pages that outlive their texts, prompts that choices share, and who waits for
 * whom: the engine on the scripted model, whose device asserts that every row finds the history it
 * must. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/scripted/scripted.h"

enum { VOCAB = 9, EOS = 8, BLOCK = 8, PROMPT_MAX = 4096, OUTPUT_MAX = 256, REQUESTS_MAX = 256 };

/* ---- models ------------------------------------------------------------------------------------ */

struct setup {
    uint32_t n_pages, n_seqs, n_rows, chunk, context, window;
    int32_t drafts;
    bool cache_off, state, useless_drafts;
    const char *fail; /* more of the script, or NULL */
};

/* Logits for every pair of last tokens; inverted for a drafter that is always wrong. */
static size_t put_table(char *out, size_t cap, const char *name, bool invert) {
    struct rng rng;
    rng_seed(&rng, 3);
    size_t len = (size_t)snprintf(out, cap, ",\"%s\":{\"\":{\"1\":3.0}", name);
    for (int a = 0; a < VOCAB; a++)
        for (int b = 0; b < VOCAB; b++) {
            len += (size_t)snprintf(out + len, cap - len, ",\"%d,%d\":{", a, b);
            for (int id = 0; id < VOCAB; id++) {
                double logit = 4 * rng_unit(&rng) - (id == EOS ? 1.0 : 0);
                len += (size_t)snprintf(out + len, cap - len, "%s\"%d\":%.4f", id ? "," : "", id,
                                        invert ? -logit : logit);
            }
            len += (size_t)snprintf(out + len, cap - len, "}");
        }
    return len + (size_t)snprintf(out + len, cap - len, "}");
}

static struct model *make_model(const struct setup *setup) {
    enum { CAP = 64 << 10 };
    char *json = malloc(CAP);
    size_t len = (size_t)snprintf(
        json, CAP,
        "{\"vocab\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",{\"special\":\"<eos>\"}],"
        "\"eos\":[%d],\"context\":%u,\"block_size\":%d,\"state\":%s%s",
        EOS, setup->context ? setup->context : 512, BLOCK, setup->state ? "true" : "false",
        setup->fail ? setup->fail : "");
    len += put_table(json + len, CAP - len, "target", false);
    len += put_table(json + len, CAP - len, "draft", setup->useless_drafts);
    len += (size_t)snprintf(json + len, CAP - len, "}");
    struct model *model = NULL;
    struct err err;
    struct model_options options = {.path = "script", .window = setup->window};
    if (scripted_model_create(json, len, &options, &model, &err) != OK) fail_msg("%s", err.msg);
    free(json);
    return model;
}

/* ---- one engine and what its requests became ----------------------------------------------------- */

struct result {
    int32_t tokens[OUTPUT_MAX];
    uint32_t n_tokens;
    enum finish_reason finish;
    struct seq_stats stats;
    bool ended, failed;
};

struct run {
    struct model *model;
    struct engine *engine;
    struct request requests[REQUESTS_MAX];
    struct result results[REQUESTS_MAX];
    int32_t prompts[REQUESTS_MAX][PROMPT_MAX];
    uint64_t next_id, now;
};

static struct run *run_open(const struct setup *setup) {
    struct run *run = calloc(1, sizeof *run);
    run->model = make_model(setup);
    struct engine_config config;
    engine_config_defaults(&config);
    config.drafts = setup->drafts;
    config.prefill_chunk = setup->chunk;
    config.max_num_seqs = setup->n_seqs ? setup->n_seqs : 8;
    if (setup->n_rows) config.max_batched_rows = setup->n_rows;
    config.prefix_cache = !setup->cache_off;
    config.kv_bytes = (setup->n_pages ? setup->n_pages : 256) *
                      run->model->kernels->page_bytes(run->model->device, DTYPE_F32);
    struct err err;
    if (engine_create(run->model, &config, &run->engine, &err) != OK) fail_msg("%s", err.msg);
    return run;
}

static void run_close(struct run *run) {
    struct engine_gauges gauges;
    scheduler_check(run->engine->scheduler);
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.running + gauges.waiting, 0);
    assert_int_equal(gauges.pages_used, 0);
    /* Nobody holds a page: all of them can be had, cached ones included. */
    uint32_t n = page_pool_n_pages(run->engine->pool), *pages = calloc(n, sizeof *pages);
    for (uint32_t p = 0; p < n; p++)
        assert_int_equal(page_pool_refs(run->engine->pool, p), 0);
    assert_int_equal(page_pool_acquire(run->engine->pool, n, pages), OK);
    free(pages);
    engine_destroy(run->engine);
    model_destroy(run->model);
    free(run);
}

/* A greedy request; its prompt is what fill wrote to the returned place. Submitted by run_submit. */
static struct request *run_request(struct run *run, uint32_t n_prompt, uint32_t max_tokens) {
    uint64_t id = run->next_id++;
    assert_true(n_prompt <= PROMPT_MAX && max_tokens <= OUTPUT_MAX);
    struct request *r = &run->requests[id % REQUESTS_MAX];
    *r = (struct request){.id = id, .n_prompt = n_prompt, .max_tokens = max_tokens};
    r->prompt = run->prompts[id % REQUESTS_MAX];
    memset(&run->results[id % REQUESTS_MAX], 0, sizeof run->results[0]);
    sampling_defaults(&r->sampling);
    r->sampling.temperature = 0;
    r->sampling.ignore_eos = true;
    for (uint32_t i = 0; i < n_prompt; i++)
        r->prompt[i] = (int32_t)(i * i % 7);
    return r;
}

static struct result *run_submit(struct run *run, struct request *request) {
    struct err err;
    if (engine_submit(run->engine, request, &err) != OK) fail_msg("%s", err.msg);
    return &run->results[request->id % REQUESTS_MAX];
}

static int run_step(struct run *run) {
    int rc = engine_step(run->engine, ++run->now);
    scheduler_check(run->engine->scheduler);
    struct event event;
    while (engine_next_event(run->engine, &event)) {
        struct result *r = &run->results[event.id % REQUESTS_MAX];
        assert_false(r->ended);
        memcpy(r->tokens + r->n_tokens, event.tokens, event.n_tokens * sizeof(int32_t));
        r->n_tokens += event.n_tokens;
        if (event.kind == EVENT_TOKENS) continue;
        r->ended = true;
        r->failed = event.kind == EVENT_FAILED;
        r->finish = event.finish;
        r->stats = event.stats;
    }
    return rc;
}

static void run_all(struct run *run) {
    for (uint32_t i = 0; run_step(run) > 0; i++)
        assert_true(i < 100000);
    run_step(run);
}

static struct result *run_one(struct run *run, struct request *request) {
    struct result *result = run_submit(run, request);
    run_all(run);
    assert_true(result->ended);
    return result;
}

static struct sequence *sequence_of(const struct run *run, uint64_t id) {
    for (uint32_t slot = 0; slot < run->engine->config.max_num_seqs; slot++) {
        struct sequence *seq = scheduler_running(run->engine->scheduler)[slot];
        if (seq && seq->request->id == id) return seq;
    }
    return NULL;
}

/* The text, token by token, from the script's own logits: no engine, no pages. */
static void assert_greedy(const struct run *run, const struct request *request,
                          const struct result *result) {
    static int32_t history[PROMPT_MAX + OUTPUT_MAX];
    float logits[VOCAB];
    memcpy(history, request->prompt, request->n_prompt * sizeof *history);
    for (uint32_t i = 0; i < result->n_tokens; i++) {
        uint32_t n = request->n_prompt + i;
        scripted_logits(run->model, history, n, request->n_prompt, logits);
        int32_t best = 0;
        for (int32_t id = 1; id < VOCAB; id++)
            if (logits[id] > logits[best]) best = id;
        assert_int_equal(result->tokens[i], best);
        history[n] = best;
    }
    if (result->finish == FINISH_LENGTH) assert_int_equal(result->n_tokens, request->max_tokens);
}

/* All ways to serve: with and without drafts, Orthros streams, state, small chunks. */
static const struct setup SETUPS[] = {
    {0},
    {.drafts = BLOCK},
    {.drafts = 5, .useless_drafts = true, .chunk = 7},
    {.window = 9, .chunk = 5},
    {.window = 20, .drafts = BLOCK, .state = true},
    {.state = true},
    {.state = true, .drafts = 4, .useless_drafts = true, .chunk = 10},
};

/* ---- hits -------------------------------------------------------------------------------------- */

static void test_s8_02_whole_prompt_found_still_computes_its_last_token(void **state) {
    (void)state;
    static const struct {
        uint32_t n_prompt, n_cached;
    } asks[] = {{32, 0}, {32, 16}, {31, 16}, {33, 32}, {16, 0}, {33, 32}, {48, 32}, {48, 32}};
    for (size_t i = 0; i < ARRAY_LEN(SETUPS); i++) {
        struct run *run = run_open(&SETUPS[i]);
        for (size_t k = 0; k < ARRAY_LEN(asks); k++) {
            struct request *r = run_request(run, asks[k].n_prompt, 6);
            struct result *got = run_one(run, r);
            assert_greedy(run, r, got);
            assert_int_equal(got->stats.n_cached, asks[k].n_cached);
            assert_true(got->stats.prefill_passes >= 1);
        }
        struct engine_gauges gauges;
        engine_gauges(run->engine, &gauges);
        assert_int_equal(gauges.prefix_query_tokens, 32 + 32 + 31 + 33 + 16 + 33 + 48 + 48);
        assert_int_equal(gauges.prefix_hit_tokens, 16 + 16 + 32 + 32 + 32 + 32);
        assert_int_equal(gauges.prompt_tokens, gauges.prefix_query_tokens); /* found or computed */
        run_close(run);
    }
}

static void nothing_is_kept_with_the_cache_off(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.cache_off = true});
    for (int i = 0; i < 3; i++)
        assert_int_equal(run_one(run, run_request(run, 40, 20))->stats.n_cached, 0);
    struct engine_gauges gauges;
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.pages_cached + gauges.prefix_query_tokens + gauges.page_evictions, 0);
    run_close(run);
}

/* The next turn of a conversation: what was written is found like what was asked. */
static void test_s9_10_next_prompt_continues_a_drafted_text(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(SETUPS); i++)
        for (uint32_t n_output = 1; n_output <= 40; n_output++) {
            struct run *run = run_open(&SETUPS[i]);
            struct request *r = run_request(run, 13, n_output);
            struct result *first = run_one(run, r);
            assert_greedy(run, r, first);
            uint32_t n = 13 + first->n_tokens + 1;
            struct request *next = run_request(run, n, 8);
            memcpy(next->prompt, r->prompt, 13 * sizeof *r->prompt);
            memcpy(next->prompt + 13, first->tokens, first->n_tokens * sizeof *r->prompt);
            next->prompt[n - 1] = 2;
            struct result *second = run_one(run, next);
            assert_greedy(run, next, second);
            /* All but the newest token was committed: full pages of that, and no page more. */
            assert_int_equal(second->stats.n_cached, (n - 2) / PAGE_TOKENS * PAGE_TOKENS);
            run_close(run);
        }
}

static void test_s9_10_accepted_length_does_not_change_across_pages(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.drafts = BLOCK});
    struct result *got = run_one(run, run_request(run, 20, 1 + 6 * BLOCK));
    assert_int_equal(got->stats.n_accepted, 6 * (BLOCK - 1));
    got = run_one(run, run_request(run, 20, 1 + 6 * BLOCK)); /* the drafter reads found pages */
    assert_int_equal(got->stats.n_cached, 16);
    assert_int_equal(got->stats.n_accepted, 6 * (BLOCK - 1));
    run_close(run);
}

static void test_s8_04_salts_are_tenants(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){0});
    const char *salts[] = {"x", "y", "", "x", "y", ""};
    for (int i = 0; i < 6; i++) {
        struct request *r = run_request(run, 40, 4);
        r->salt_len = (uint8_t)strlen(salts[i]);
        memcpy(r->salt, salts[i], r->salt_len);
        struct result *got = run_one(run, r);
        assert_greedy(run, r, got);
        assert_int_equal(got->stats.n_cached, i < 3 ? 0 : 32);
    }
    run_close(run);
}

/* What a failed text computed may be anything: nobody finds it. */
static void failed_text_leaves_nothing_to_find(void **state) {
    (void)state;
    struct run *run =
        run_open(&(struct setup){.fail = ",\"fail\":{\"at_output\":20,\"kind\":\"request\"}"});
    assert_true(run_one(run, run_request(run, 40, 30))->failed);
    struct engine_gauges gauges;
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.pages_cached, 0);
    assert_int_equal(run_one(run, run_request(run, 40, 10))->stats.n_cached, 0);
    /* What others hold stays; else one that began on pages of another takes them along. */
    struct result *fails = run_submit(run, run_request(run, 40, 30));
    for (int step = 0; step < 5; step++)
        run_step(run);
    run_submit(run, run_request(run, 40, 19));
    run_all(run);
    assert_true(fails->failed);
    assert_int_equal(run_one(run, run_request(run, 40, 10))->stats.n_cached, 32);
    assert_true(run_one(run, run_request(run, 40, 30))->failed);
    assert_int_equal(run_one(run, run_request(run, 40, 10))->stats.n_cached, 0);
    run_close(run);
}

static void oldest_prompt_is_evicted_leaf_first(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.n_pages = 8, .context = 128});
    for (int32_t k = 0; k < 2; k++) { /* 3 full pages each, and a last one */
        struct request *r = run_request(run, 50, 2);
        r->prompt[0] = k;
        run_one(run, r);
    }
    struct engine_gauges gauges;
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.pages_cached, 6);
    struct request *r = run_request(run, 60, 2); /* needs 4: two are free */
    r->prompt[0] = 2;
    run_one(run, r);
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.page_evictions, 2);
    r = run_request(run, 50, 2);
    r->prompt[0] = 0; /* the oldest lost its last pages */
    assert_int_equal(run_one(run, r)->stats.n_cached, 16);
    run_close(run);
}

/* State beyond the KV takes its share of the memory, and with none of it nothing can be found. */
static void snapshots_take_an_eighth_of_the_memory(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.n_pages = 64, .state = true});
    const struct kernels *kernels = run->model->kernels;
    size_t page = kernels->page_bytes(run->model->device, DTYPE_F32);
    size_t one = kernels->snapshot_bytes(run->model->device);
    assert_int_equal(run->engine->limits.n_snapshots, 64 * page / 8 / one);
    assert_int_equal(run->engine->limits.n_pages, 64 - 64 / 8);
    assert_int_equal(engine_info(run->engine)->kv_bytes, 64 * page);
    run_close(run);
    run = run_open(&(struct setup){.n_pages = 2, .context = 32, .state = true});
    assert_int_equal(run->engine->limits.n_snapshots, 0);
    assert_int_equal(run->engine->limits.n_pages, 2);
    for (int i = 0; i < 2; i++) {
        struct request *r = run_request(run, 20, 6);
        struct result *got = run_one(run, r);
        assert_greedy(run, r, got);
        assert_int_equal(got->stats.n_cached, 0);
    }
    run_close(run);
    run = run_open(&(struct setup){.n_pages = 64, .state = true, .cache_off = true});
    assert_int_equal(run->engine->limits.n_snapshots, 0);
    run_close(run);
}

/* ---- every way out gives everything back ---------------------------------------------------------- */

/* 2,000 requests, 8 at a time: ended by eos, length, stop, cancel, failure, preempted and not. */
static void run_mixed_ends(const struct setup *setup) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct run *run = run_open(setup);
    uint64_t n_ended = 0, n_cancelled = 0, n_failed = 0, n_stopped = 0, n_preempted = 0;
    struct request *live[8] = {0};
    for (uint64_t n_submitted = 0; n_ended < 2000;) {
        for (int i = 0; i < 8; i++) {
            struct result *result = live[i] ? &run->results[live[i]->id % REQUESTS_MAX] : NULL;
            if (result && !result->ended) {
                if (rng_below(&rng, 400) == 0) engine_cancel(run->engine, live[i]->id);
                continue;
            }
            if (result) {
                n_ended++;
                n_cancelled += result->finish == FINISH_CANCELLED;
                n_failed += result->failed;
                n_stopped += result->finish == FINISH_STOP;
                n_preempted += result->stats.preemptions;
                live[i] = NULL;
            }
            if (n_submitted == 2000) continue;
            n_submitted++;
            /* Ids of live requests must not meet: take the next place that is free. */
            struct request *r;
            for (bool taken = true; taken;) {
                taken = false;
                for (int k = 0; k < 8; k++)
                    taken = taken || (live[k] && (live[k]->id - run->next_id) % REQUESTS_MAX == 0);
                if (taken) run->next_id++;
            }
            r = run_request(run, 1 + rng_below(&rng, 60), 1 + rng_below(&rng, 50));
            r->prompt[0] = (int32_t)rng_below(&rng, 3);
            r->sampling.ignore_eos = rng_below(&rng, 2);
            r->sampling.n_stop_ids = rng_below(&rng, 8) == 0;
            run_submit(run, r);
            live[i] = r;
        }
        run_step(run);
    }
    run_all(run);
    assert_true(n_cancelled > 20 && n_failed > 20 && n_stopped > 20 && n_preempted > 20);
    struct engine_gauges gauges;
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.preemptions, n_preempted);
    if (setup->cache_off) assert_int_equal(gauges.pages_cached, 0);
    run_close(run); /* every reference count is 0 */
}

#define FAILS_LATE ",\"fail\":{\"at_output\":45,\"kind\":\"request\"}"

static void test_s8_01_two_thousand_requests_lose_no_page(void **state) {
    (void)state;
    struct setup setup = {.n_pages = 14, .context = 128, .drafts = 4, .fail = FAILS_LATE};
    for (int i = 0; i < 8; i++) {
        setup.cache_off = i & 1;
        setup.useless_drafts = i & 2; /* every block is refused whole */
        setup.state = i & 4;
        run_mixed_ends(&setup);
    }
}

/* ---- preemption ---------------------------------------------------------------------------------- */

static void test_s8_03_preempted_text_finds_its_own_pages(void **state) {
    (void)state;
    uint32_t n_straight = 0; /* all of a preempted text was there: it decoded at once */
    for (size_t i = 0; i < ARRAY_LEN(SETUPS); i++) {
        struct setup setup = SETUPS[i];
        setup.n_pages = 16;
        setup.context = 200;
        if (setup.chunk) setup.chunk = 16;
        struct run *run = run_open(&setup);
        run->engine->preempt_every = 5;
        struct request *requests[4];
        struct result *results[4];
        for (int32_t k = 0; k < 4; k++) {
            requests[k] = run_request(run, 60, 90);
            for (uint32_t t = 48; t < 60; t++)
                requests[k]->prompt[t] = k;
            results[k] = run_submit(run, requests[k]);
        }
        uint32_t preemptions[4] = {0}, passes[4] = {0};
        for (int rc = 1; rc > 0;) {
            rc = run_step(run);
            for (int k = 0; k < 4; k++) {
                const struct sequence *seq = sequence_of(run, requests[k]->id);
                if (!seq) continue;
                if (seq->stats.preemptions > preemptions[k])
                    n_straight +=
                        seq->state == SEQ_DECODE && seq->stats.prefill_passes == passes[k];
                preemptions[k] = seq->stats.preemptions;
                passes[k] = seq->stats.prefill_passes;
            }
        }
        for (int k = 0; k < 4; k++) {
            assert_true(results[k]->ended);
            assert_int_equal(results[k]->n_tokens, 90);
            assert_greedy(run, requests[k], results[k]);
        }
        struct engine_gauges gauges;
        run_step(run);
        engine_gauges(run->engine, &gauges);
        assert_true(gauges.preemptions >= 4);
        run_close(run);
    }
    assert_true(n_straight > 0);
}

static void block_at_the_end_of_the_pool_is_shortened(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){
        .n_pages = 6, .n_seqs = 2, .context = 96, .drafts = BLOCK, .cache_off = true});
    struct request *a = run_request(run, 60, 30), *b = run_request(run, 10, 20);
    struct result *got_a = run_submit(run, a), *got_b = run_submit(run, b);
    run_step(run); /* both prompts: 4 pages and 1 */
    run_step(run);
    /* The first block took the last page; the second one verifies what its own page still holds:
     * position 10 is its newest token's, 5 proposals follow. */
    assert_int_equal(sequence_of(run, a->id)->stats.n_accepted, BLOCK - 1);
    assert_int_equal(sequence_of(run, b->id)->stats.n_accepted, 5);
    run_all(run);
    assert_greedy(run, a, got_a);
    assert_greedy(run, b, got_b);
    run_close(run);
}

/* A block may take the place of a cached page, which costs a later hit and nothing else. */
static void drafts_evict_cached_pages(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.n_pages = 4, .context = 64, .drafts = BLOCK});
    run_one(run, run_request(run, 50, 2)); /* 3 pages stay */
    struct request *r = run_request(run, 10, 1 + BLOCK);
    r->prompt[0] = 6;
    struct result *got = run_one(run, r);
    assert_int_equal(got->stats.n_accepted, BLOCK - 1);
    struct engine_gauges gauges;
    engine_gauges(run->engine, &gauges);
    assert_int_equal(gauges.page_evictions, 1);
    run_close(run);
}

/* ---- choices of one prompt ------------------------------------------------------------------------- */

static struct request *group_request(struct run *run, uint64_t group, uint32_t choice,
                                     uint32_t n_prompt, uint32_t max_tokens) {
    struct request *r = run_request(run, n_prompt, max_tokens);
    r->group = group;
    r->choice = choice;
    r->sampling.has_seed = true;
    r->sampling.seed = 99;
    r->sampling.temperature = 1;
    return r;
}

/* What each choice says alone, in an engine of its own. */
static void choices_alone(uint32_t n_prompt, uint32_t n, struct result *out) {
    struct run *run = run_open(&(struct setup){.cache_off = true});
    for (uint32_t i = 0; i < n; i++)
        out[i] = *run_one(run, group_request(run, 0, i, n_prompt, 30));
    run_close(run);
}

static void choices_share_one_prefill(void **state) {
    (void)state;
    static const uint32_t lens[] = {1, 2, 15, 16, 17, 32, 40, 64};
    for (size_t i = 0; i < 2 * ARRAY_LEN(SETUPS); i++)
        for (size_t k = 0; k < ARRAY_LEN(lens); k++) {
            static struct result alone[3];
            choices_alone(lens[k], 3, alone);
            struct setup setup = SETUPS[i / 2];
            setup.cache_off = i & 1;
            struct run *run = run_open(&setup);
            struct request *requests[3];
            struct result *results[3];
            for (uint32_t c = 0; c < 3; c++)
                results[c] = run_submit(run, requests[c] = group_request(run, 5, c, lens[k], 30));
            struct request *other = run_request(run, 9, 3); /* is not held up by those that wait */
            struct result *other_result = run_submit(run, other);
            run_step(run);
            assert_int_equal(scheduler_n_running(run->engine->scheduler), 2);
            uint32_t n_shared = 0;
            for (int rc = 1; rc > 0;) {
                rc = run_step(run);
                const struct sequence *a = sequence_of(run, requests[0]->id);
                const struct sequence *b = sequence_of(run, requests[2]->id);
                if (!a || !b) continue;
                uint32_t n = (lens[k] - 1) / PAGE_TOKENS;
                assert_memory_equal(a->pages, b->pages, n * sizeof *a->pages);
                n_shared++;
            }
            assert_true(n_shared > 0);
            assert_true(other_result->ended);
            uint32_t n_chunks = setup.chunk ? (uint32_t)div_ceil(lens[k], setup.chunk) : 1;
            for (uint32_t c = 0; c < 3; c++) {
                assert_int_equal(results[c]->n_tokens, 30);
                assert_memory_equal(results[c]->tokens, alone[c].tokens, 30 * sizeof(int32_t));
                assert_int_equal(results[c]->stats.n_cached, 0);
                assert_int_equal(results[c]->stats.prefill_passes, c ? 1 : n_chunks);
            }
            /* Their own draws, from their own last position. */
            assert_true(memcmp(alone[0].tokens, alone[1].tokens, sizeof alone[0].tokens) != 0);
            run_close(run);
        }
}

static void late_choice_shares_what_still_runs_or_was_kept(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        static struct result alone[2];
        choices_alone(40, 2, alone);
        struct setup setup = {.cache_off = i & 1, .state = i & 2, .n_seqs = 2};
        bool first_ended = i & 4;
        struct run *run = run_open(&setup);
        struct request *a = group_request(run, 5, 0, 40, 30);
        struct result *got_a = run_submit(run, a);
        for (int step = 0; step < 26; step++) /* past what the ring of the state holds */
            run_step(run);
        if (first_ended) run_all(run);
        struct request *b = group_request(run, 5, 1, 40, 30);
        struct result *got_b = run_submit(run, b);
        run_step(run);
        const struct sequence *seq = sequence_of(run, b->id);
        uint32_t n_run = 40; /* rows that its first step needed */
        if (!first_ended && !setup.state)
            n_run = 1;
        else if (!setup.cache_off)
            n_run = 40 - 32;
        assert_int_equal(seq->n_run - seq->n_kv, 0);
        assert_int_equal(seq->stats.prefill_passes, 1);
        assert_int_equal(40 - seq->state_lo, n_run);
        run_all(run);
        assert_memory_equal(got_a->tokens, alone[0].tokens, 30 * sizeof(int32_t));
        assert_memory_equal(got_b->tokens, alone[1].tokens, 30 * sizeof(int32_t));
        run_close(run);
    }
}

static void choices_take_over_when_the_first_one_goes(void **state) {
    (void)state;
    static struct result alone[3];
    choices_alone(64, 3, alone);
    struct run *run = run_open(&(struct setup){.chunk = 8, .cache_off = true});
    struct result *results[3];
    struct request *requests[3];
    for (uint32_t c = 0; c < 3; c++)
        results[c] = run_submit(run, requests[c] = group_request(run, 5, c, 64, 30));
    for (int step = 0; step < 4; step++)
        run_step(run);
    assert_int_equal(scheduler_n_running(run->engine->scheduler), 1);
    engine_cancel(run->engine, requests[0]->id); /* in the middle of the prompt */
    run_all(run);
    assert_int_equal(results[0]->finish, FINISH_CANCELLED);
    for (uint32_t c = 1; c < 3; c++)
        assert_memory_equal(results[c]->tokens, alone[c].tokens, 30 * sizeof(int32_t));
    assert_int_equal(results[1]->stats.prefill_passes, 8);
    assert_int_equal(results[2]->stats.prefill_passes, 1);
    run_close(run);
}

static void requests_that_only_claim_to_be_choices_share_nothing(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.cache_off = true});
    struct request *a = run_request(run, 40, 5), *b = run_request(run, 40, 5);
    a->group = b->group = 3;
    b->prompt[7] = 5; /* in a page that choices would share */
    struct result *got_a = run_submit(run, a), *got_b = run_submit(run, b);
    run_all(run);
    assert_greedy(run, a, got_a);
    assert_greedy(run, b, got_b);
    run_close(run);
}

/* ---- fairness -------------------------------------------------------------------------------------- */

static void test_s8_06_short_prompt_starts_before_a_long_one_ends(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) { /* rows for several chunks a step, or for one */
        struct setup setup = {.n_pages = 400, .chunk = 64, .context = 4200};
        setup.drafts = i & 1 ? 4 : DRAFTS_OFF;
        setup.n_rows = i & 2 ? 64 : 512;
        struct run *run = run_open(&setup);
        struct request *streams[4];
        struct result *results[4];
        for (int k = 0; k < 4; k++) {
            streams[k] = run_request(run, 2, 250);
            results[k] = run_submit(run, streams[k]);
        }
        run_step(run);
        struct request *big = run_request(run, 4000, 4);
        struct result *got_big = run_submit(run, big);
        for (int step = 0; step < 5; step++)
            run_step(run);
        uint32_t chunk = sequence_of(run, big->id)->n_kv / 5;
        assert_true(setup.n_rows == 512 ? chunk == 64 : chunk > 16);
        struct request *small = run_request(run, 10, 4);
        small->prompt[0] = 6;
        struct result *got_small = run_submit(run, small);
        uint32_t n_steps = 0;
        for (; !got_small->ended; n_steps++) {
            uint32_t had[4];
            for (int k = 0; k < 4; k++)
                had[k] = results[k]->n_tokens;
            run_step(run);
            for (int k = 0; k < 4; k++) /* nobody's text pauses */
                assert_true(results[k]->ended || results[k]->n_tokens > had[k]);
        }
        assert_true(n_steps <= 5); /* a chunk and three tokens */
        assert_true(sequence_of(run, big->id)->state == SEQ_PREFILL);
        run_all(run);
        assert_greedy(run, big, got_big);
        run_close(run);
    }
}

/* Prefill rows alone: half of them stay the oldest prompt's, however many short ones come. */
static void oldest_prompt_keeps_half_of_the_rows(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.n_pages = 1200, .context = 4200, .n_seqs = 32});
    struct request *big = run_request(run, 4000, 1);
    struct result *got = run_submit(run, big);
    run->engine->us_per_row = 1; /* the budget alone bounds a step */
    uint32_t n_steps = 0;
    for (; !got->ended; n_steps++) {
        while (scheduler_n_running(run->engine->scheduler) < 20 && run->next_id < 60) {
            struct request *r = run_request(run, 200, 1);
            r->prompt[0] = (int32_t)(run->next_id % 7);
            r->prompt[1] = (int32_t)(run->next_id / 7 % 7);
            run_submit(run, r);
            if (scheduler_n_waiting(run->engine->scheduler) + run->next_id >= 60) break;
        }
        const struct sequence *seq = sequence_of(run, big->id);
        uint32_t before = seq ? seq->n_kv : 0;
        run_step(run);
        seq = sequence_of(run, big->id);
        if (seq && n_steps > 0) assert_true(seq->n_kv - before >= 256);
    }
    assert_true(n_steps <= 4000 / 256 + 1);
    run_all(run);
    run_close(run);
}

/* A request that needs nearly all pages waits in front of small ones: they pass, but not for ever. */
static void test_s8_06_request_for_all_pages_is_passed_but_not_starved(void **state) {
    (void)state;
    struct run *run = run_open(&(struct setup){.n_pages = 16, .context = 256, .n_seqs = 4});
    run_submit(run, run_request(run, 20, 60));
    run_step(run);
    struct request *big = run_request(run, 250, 2);
    big->prompt[0] = 6;
    struct result *got_big = run_submit(run, big), *small[3] = {0};
    uint32_t n_passed = 0;
    for (uint32_t i = 0; !got_big->ended; i++) {
        struct result **last = &small[i % 3];
        if (!*last ||
            (*last)->ended) { /* always some more behind it, which end at different times */
            n_passed += *last != NULL;
            *last = run_submit(run, run_request(run, 20, 20 + i % 7));
        }
        run_step(run);
        assert_true(n_passed < 40);
    }
    assert_true(n_passed >= 5); /* until it was passed too often */
    assert_greedy(run, big, got_big);
    run_all(run);
    run_close(run);
}

/* A text of low priority among ones of higher priority that never end coming. Returns how often it
 * was preempted. */
static uint32_t run_low_priority(uint32_t n_output) {
    struct run *run =
        run_open(&(struct setup){.n_pages = 16, .context = 256, .n_seqs = 4, .cache_off = true});
    struct request *low = run_request(run, 60, n_output);
    low->priority = 5;
    struct result *got = run_submit(run, low), *others[3] = {0};
    uint32_t n_others = 0;
    run_step(run);
    for (uint32_t i = 0; !got->ended; i++) {
        struct result **last = &others[i % 3];
        if (!*last || (*last)->ended) {
            if ((run->next_id - low->id) % REQUESTS_MAX == 0) run->next_id++; /* its place */
            *last = run_submit(run, run_request(run, 40, 20 + i % 7));
            n_others++;
        }
        run_step(run);
        assert_true(n_others < 1000);
    }
    run_all(run);
    assert_greedy(run, low, got);
    uint32_t n_preempted = got->stats.preemptions;
    run_close(run);
    return n_preempted;
}

static void low_priority_waits_for_room_and_is_not_starved(void **state) {
    (void)state;
    assert_in_range(run_low_priority(60), 1, 2); /* no coming and going */
    assert_true(run_low_priority(140) > 0);      /* the others would leave it no room, ever */
}

/* ---- company ----------------------------------------------------------------------------------------- */

static void test_s8_07_company_changes_no_text(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(SETUPS); i++) {
        struct setup setup = SETUPS[i];
        setup.n_pages = 60;
        setup.n_seqs = 16;
        struct run *run = run_open(&setup);
        struct request *requests[50];
        struct result *results[50];
        for (uint32_t k = 0; k < 50; k++) {
            requests[k] = run_request(run, 5 + 3 * (k % 17), 40);
            requests[k]->prompt[0] = (int32_t)(k % 7);
            results[k] = run_submit(run, requests[k]);
        }
        run_all(run);
        for (uint32_t k = 0; k < 50; k++)
            assert_greedy(run, requests[k], results[k]);
        run_close(run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s8_02_whole_prompt_found_still_computes_its_last_token),
        cmocka_unit_test(nothing_is_kept_with_the_cache_off),
        cmocka_unit_test(test_s9_10_next_prompt_continues_a_drafted_text),
        cmocka_unit_test(test_s9_10_accepted_length_does_not_change_across_pages),
        cmocka_unit_test(test_s8_04_salts_are_tenants),
        cmocka_unit_test(failed_text_leaves_nothing_to_find),
        cmocka_unit_test(oldest_prompt_is_evicted_leaf_first),
        cmocka_unit_test(snapshots_take_an_eighth_of_the_memory),
        cmocka_unit_test(test_s8_01_two_thousand_requests_lose_no_page),
        cmocka_unit_test(test_s8_03_preempted_text_finds_its_own_pages),
        cmocka_unit_test(block_at_the_end_of_the_pool_is_shortened),
        cmocka_unit_test(drafts_evict_cached_pages),
        cmocka_unit_test(choices_share_one_prefill),
        cmocka_unit_test(late_choice_shares_what_still_runs_or_was_kept),
        cmocka_unit_test(choices_take_over_when_the_first_one_goes),
        cmocka_unit_test(requests_that_only_claim_to_be_choices_share_nothing),
        cmocka_unit_test(test_s8_06_short_prompt_starts_before_a_long_one_ends),
        cmocka_unit_test(oldest_prompt_keeps_half_of_the_rows),
        cmocka_unit_test(test_s8_06_request_for_all_pages_is_passed_but_not_starved),
        cmocka_unit_test(low_priority_waits_for_room_and_is_not_starved),
        cmocka_unit_test(test_s8_07_company_changes_no_text),
    };
    return cmocka_run_group_tests_name("prop_engine_cache", tests, NULL, NULL);
}
