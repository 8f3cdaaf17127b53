/* prop_engine: the engine on the scripted model. Random requests in random company, with drafts
 * that are perfect, useless and random, small pools, chunks, cancels: every text must be that of
 * one-token decoding alone with everything off, every page must come back, and good drafts must be
 * accepted (a broken drafter is otherwise silent). Prompts begin like others and come several times,
 * so pages are found again, shared by choices of a group, and evicted in the middle of it. */
#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "proto/proto.h"
#include "tests/scripted/scripted.h"

enum {
    VOCAB = 9,
    EOS = 8,
    MAX_REQUESTS = 12,
    MAX_OUTPUT = 48,
    CONTEXT = 128,
    BLOCK = 8,
    BIAS_MAX = 3
};

enum drafter { DRAFTER_PERFECT, DRAFTER_USELESS, DRAFTER_RANDOM, N_DRAFTERS };

/* ---- random models ----------------------------------------------------------------------------- */

/* A table of logits for every pair of last tokens; `flip` swaps best and worst now and then. */
static void add_table(struct buf *t, const char *name, uint64_t seed, bool invert) {
    struct rng rng;
    rng_seed(&rng, seed);
    buf_fmt(t, "\"%s\":{\"\":{\"1\":3.0}", name);
    for (int a = 0; a < VOCAB; a++)
        for (int b = 0; b < VOCAB; b++) {
            buf_fmt(t, ",\"%d,%d\":{", a, b);
            for (int id = 0; id < VOCAB; id++) {
                double logit = 4 * rng_unit(&rng) - (id == EOS ? 1.5 : 0);
                buf_fmt(t, "%s\"%d\":%.4f", id ? "," : "", id, invert ? -logit : logit);
            }
            buf_fmt(t, "}");
        }
    buf_fmt(t, "}");
}

static struct model *make_model(uint64_t seed, enum drafter drafter, uint32_t window,
                                bool has_state) {
    struct buf t = {0};
    buf_fmt(&t,
            "{\"vocab\":[\"a\",\"b\",\" c\",{\"hex\":\"C3\"},{\"hex\":\"A9\"},\"xy\",\"yx\","
            "{\"special\":\"<s>\"},{\"special\":\"<eos>\"}],\"eos\":[%d],\"context\":%d,"
            "\"block_size\":%d,\"state\":%s,",
            EOS, CONTEXT, BLOCK, has_state ? "true" : "false");
    add_table(&t, "target", seed, false);
    buf_fmt(&t, ",");
    add_table(&t, "draft", drafter == DRAFTER_RANDOM ? seed + 1 : seed, drafter == DRAFTER_USELESS);
    buf_fmt(&t, "}");
    struct model *model = NULL;
    struct err err;
    struct model_options options = {.path = "script", .window = window};
    if (scripted_model_create(t.data, t.len, &options, &model, &err) != OK) fail_msg("%s", err.msg);
    buf_free(&t);
    return model;
}

/* ---- running requests -------------------------------------------------------------------------- */

struct result {
    int32_t tokens[MAX_OUTPUT];
    uint32_t n_tokens; /* ids released by events */
    char text[4096];
    uint32_t text_len;
    enum finish_reason finish;
    int32_t stop_index, stop_id;
    struct seq_stats stats;
    bool ended;
};

static void drain(struct engine *engine, struct result *results) {
    struct event event;
    while (engine_next_event(engine, &event)) {
        struct result *r = &results[event.id];
        assert_false(r->ended);
        assert_true(event.kind != EVENT_FAILED);
        assert_true(r->n_tokens + event.n_tokens <= MAX_OUTPUT);
        memcpy(r->tokens + r->n_tokens, event.tokens, event.n_tokens * sizeof(int32_t));
        r->n_tokens += event.n_tokens;
        memcpy(r->text + r->text_len, event.text, event.text_len);
        r->text_len += event.text_len;
        if (event.kind == EVENT_TOKENS) continue;
        r->ended = true;
        r->finish = event.finish;
        r->stop_index = event.stop_index;
        r->stop_id = event.stop_id;
        r->stats = event.stats;
    }
}

/* Penalties that keep a text going, and some that drive it; a token or two preferred or forbidden. */
static void make_penalties(struct rng *rng, struct sampling *s, struct token_bias *bias) {
    static const double penalties[] = {-1.5, -0.2, 0.3, 0.7, 2},
                        repetitions[] = {0.7, 1.1, 1.5, 10};
    if (rng_below(rng, 3) == 0) s->frequency_penalty = penalties[rng_below(rng, 5)];
    if (rng_below(rng, 3) == 0) s->presence_penalty = penalties[rng_below(rng, 5)];
    if (rng_below(rng, 3) == 0) s->repetition_penalty = repetitions[rng_below(rng, 4)];
    s->bias = bias;
    s->n_bias = rng_below(rng, 3) ? 0 : 1 + rng_below(rng, BIAS_MAX);
    for (uint32_t i = 0; i < s->n_bias; i++)
        bias[i] = (struct token_bias){(int32_t)(i * VOCAB / BIAS_MAX),
                                      rng_below(rng, 2) ? -100 : 2 * rng_unit(rng)};
}

static struct request make_request(struct rng *rng, uint64_t id, int32_t *prompt,
                                   struct token_bias *bias) {
    struct request r = {.id = id, .max_tokens = 1 + rng_below(rng, MAX_OUTPUT), .prompt = prompt};
    r.n_prompt = 1 + rng_below(rng, rng_below(rng, 2) ? 40 : 5);
    for (uint32_t i = 0; i < r.n_prompt; i++)
        prompt[i] = (int32_t)rng_below(rng, VOCAB);
    r.priority = (int32_t)rng_below(rng, 2);
    struct sampling *s = &r.sampling;
    sampling_defaults(s);
    s->temperature = 0;
    s->seed = rng_u64(rng);
    if (rng_below(rng, 2)) { /* seeded, under some rules */
        s->has_seed = true;
        s->temperature = 0.3 + rng_unit(rng);
        if (rng_below(rng, 2)) s->top_k = 1 + (int32_t)rng_below(rng, VOCAB);
        if (rng_below(rng, 3) == 0) s->top_p = 0.2 + 0.8 * rng_unit(rng);
        if (rng_below(rng, 3) == 0) s->min_p = 0.3 * rng_unit(rng);
    }
    if (rng_below(rng, 2)) make_penalties(rng, s, bias);
    s->ignore_eos = rng_below(rng, 2);
    if (rng_below(rng, 3) == 0) s->min_tokens = rng_below(rng, r.max_tokens + 1);
    if (rng_below(rng, 3) == 0) {
        s->n_stop_ids = 1;
        s->stop_ids[0] = (int32_t)rng_below(rng, VOCAB);
    }
    if (rng_below(rng, 2)) {
        static const char *const stops[] = {"ab", "bx", "yxy", "\xC3\xA9", "c c", "xyyx"};
        s->n_stop = 1 + rng_below(rng, 2);
        for (uint32_t i = 0; i < s->n_stop; i++) {
            const char *stop = stops[rng_below(rng, ARRAY_LEN(stops))];
            s->stop[i].len = (uint16_t)strlen(stop);
            memcpy(s->stop[i].text, stop, strlen(stop));
        }
        s->include_stop_str_in_output = rng_below(rng, 3) == 0;
    }
    return r;
}

static struct engine *make_engine(struct model *model, uint32_t n_pages, int32_t drafts,
                                  uint32_t chunk, uint32_t n_seqs, uint32_t n_rows, bool cached) {
    struct engine_config config;
    engine_config_defaults(&config);
    config.drafts = drafts;
    config.prefill_chunk = chunk;
    config.max_num_seqs = n_seqs;
    config.max_batched_rows = n_rows;
    config.prefix_cache = cached;
    config.kv_bytes = n_pages * model->kernels->page_bytes(model->device, DTYPE_BF16);
    struct engine *engine = NULL;
    struct err err;
    if (engine_create(model, &config, &engine, &err) != OK) fail_msg("%s", err.msg);
    return engine;
}

/* What a token's logit becomes after `n` tokens, in the float32 steps of the README. */
static float ruled_logit(const struct request *request, const int32_t *history, uint32_t n,
                         int32_t id, float z) {
    const struct sampling *s = &request->sampling;
    uint32_t seen = 0, n_output = 0;
    for (uint32_t i = 0; i < n; i++) {
        seen += history[i] == id;
        n_output += history[i] == id && i >= request->n_prompt;
    }
    for (uint32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id == id)
            z = s->bias[i].value == -100 ? -INFINITY : z + (float)s->bias[i].value;
    float repetition = (float)s->repetition_penalty;
    if (seen) z = z > 0 ? z / repetition : z * repetition;
    if (n_output) {
        float counted = (float)s->frequency_penalty * (float)n_output;
        z -= counted + (float)s->presence_penalty;
    }
    return z;
}

/* A greedy text, token by token, from the script's own logits: no engine, no sampler. */
static void assert_greedy(const struct model *model, const struct request *request,
                          const struct result *result) {
    int32_t history[64 + MAX_OUTPUT];
    float logits[VOCAB];
    memcpy(history, request->prompt, request->n_prompt * sizeof *history);
    const struct sampling *s = &request->sampling;
    for (uint32_t i = 0; i < result->n_tokens; i++) {
        scripted_logits(model, history, request->n_prompt + i, request->n_prompt, logits);
        int32_t best = -1;
        for (int32_t id = 0; id < VOCAB; id++) {
            bool ends = (id == EOS && !s->ignore_eos) || (s->n_stop_ids && s->stop_ids[0] == id);
            if (ends && i < s->min_tokens) continue;
            logits[id] = ruled_logit(request, history, request->n_prompt + i, id, logits[id]);
            if (logits[id] > (best < 0 ? -INFINITY : logits[best])) best = id;
        }
        assert_int_equal(result->tokens[i], best);
        history[request->n_prompt + i] = best;
    }
}

/* Some prompts begin like another one, some are another choice of one, some tenants are apart. */
static void relate_requests(struct rng *rng, struct request *requests, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = &requests[i];
        if (rng_below(rng, 5) == 0) {
            r->salt_len = rng_below(rng, 2) ? 1 : CACHE_SALT_BYTES_MAX;
            memset(r->salt, 'x', r->salt_len);
        }
        if (i == 0 || rng_below(rng, 3) == 0) continue;
        struct request *other = &requests[rng_below(rng, i)];
        uint32_t same = other->n_prompt, own = 0;
        if (rng_below(rng, 3) == 0) { /* another choice of it */
            if (!other->group) other->group = other->id + 1;
            r->group = other->group;
            r->choice = i;
            r->salt_len = other->salt_len;
            memcpy(r->salt, other->salt, sizeof r->salt);
        } else {
            if (rng_below(rng, 2)) same = 1 + rng_below(rng, same);
            own = rng_below(rng, 1 + (64 - same < 20 ? 64 - same : 20));
        }
        memcpy(r->prompt, other->prompt, same * sizeof *r->prompt);
        for (uint32_t t = 0; t < own; t++)
            r->prompt[same + t] = (int32_t)rng_below(rng, VOCAB);
        r->n_prompt = same + own;
    }
}

/* Alone, no drafts, all the room: the definition. */
static void run_alone(uint64_t model_seed, const struct request *requests, uint32_t n,
                      struct result *results) {
    struct model *model = make_model(model_seed, DRAFTER_PERFECT, 0, false);
    struct engine *engine = make_engine(model, 64, DRAFTS_OFF, 0, 1, 512, false);
    for (uint32_t i = 0; i < n; i++) {
        struct request request = requests[i];
        struct err err;
        assert_int_equal(engine_submit(engine, &request, &err), OK);
        for (uint64_t t = 0; engine_step(engine, t) > 0; t++)
            drain(engine, results);
        drain(engine, results);
        assert_true(results[i].ended);
        if (request.sampling.temperature == 0) assert_greedy(model, &request, &results[i]);
    }
    engine_destroy(engine);
    model_destroy(model);
}

static void assert_same_result(const struct result *got, const struct result *want, uint32_t i,
                               uint64_t seed) {
    if (got->n_tokens != want->n_tokens || got->text_len != want->text_len ||
        memcmp(got->tokens, want->tokens, want->n_tokens * sizeof(int32_t)) != 0 ||
        memcmp(got->text, want->text, want->text_len) != 0 || got->finish != want->finish ||
        got->stop_index != want->stop_index || got->stop_id != want->stop_id ||
        got->stats.n_output != want->stats.n_output)
        fail_msg("scenario %llu request %u: \"%.*s\" (%u ids, finish %d), alone \"%.*s\" (%u, %d)",
                 (unsigned long long)seed, i, (int)got->text_len, got->text, got->n_tokens,
                 got->finish, (int)want->text_len, want->text, want->n_tokens, want->finish);
}

static uint64_t count_of(const struct histogram *h) {
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->n_bounds; i++)
        n += h->counts[i];
    return n;
}

/* What the engine counted is what its texts say of themselves, cut blocks and preemptions or not. */
static void check_counters(const struct engine_gauges *gauges, const struct request *requests,
                           const struct result *got, uint32_t n) {
    uint64_t n_prompt = 0, n_output = 0, n_first = 0, n_accepted = 0, n_rejected = 0, n_passes = 0;
    bool cancelled = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct seq_stats *stats = &got[i].stats;
        n_prompt += requests[i].choice == 0 ? stats->n_prompt : 0;
        n_output += stats->n_output;
        n_first += stats->n_output > 0;
        n_accepted += stats->n_accepted;
        n_rejected += stats->n_rejected;
        n_passes += stats->verify_passes;
        cancelled = cancelled || got[i].finish == FINISH_CANCELLED;
    }
    assert_true(gauges->prompt_tokens == n_prompt ||
                (cancelled && gauges->prompt_tokens < n_prompt));
    assert_int_equal(gauges->generated_tokens, n_output);
    assert_int_equal(gauges->accepted_tokens, n_accepted);
    assert_true(gauges->proposed_tokens >= n_accepted + n_rejected);
    assert_true(gauges->accepted_length.sum == (double)(n_output - n_first));
    assert_int_equal(count_of(&gauges->accepted_length), n_passes);
    assert_int_equal(count_of(&gauges->inter_token_seconds), n_output - n_first);
    uint64_t by_position = 0, by_kind = 0;
    for (uint32_t i = 0; i < gauges->n_draft_positions; i++)
        by_position += gauges->accepted_position[i];
    for (int kind = 0; kind < FORWARD_KINDS; kind++)
        by_kind += gauges->forwards[kind];
    assert_int_equal(by_position, n_accepted);
    assert_int_equal(by_kind, gauges->draft_forwards + gauges->main_forwards);
    assert_int_equal(gauges->forwards[FORWARD_DRAFT], gauges->draft_forwards);
    assert_int_equal(gauges->batch_sequences, 0);
}

/* What came up in all scenarios together: a test that never met it proves nothing. */
struct met {
    uint64_t preempted, found, found_with_state, shared, evicted;
};

/* Whether running texts hold a page together: with the index off only choices of a group do. */
static bool shares_pages(struct engine *engine) {
    struct sequence *const *running = scheduler_running(engine->scheduler);
    for (uint32_t slot = 0; slot < engine->config.max_num_seqs; slot++)
        for (uint32_t i = 0; running[slot] && i < running[slot]->n_pages; i++)
            if (page_pool_refs(engine->pool, running[slot]->pages[i]) > 1) return true;
    return false;
}

/* The index answered as the texts say, and what it keeps is all that is left. */
static void check_cache(const struct engine *engine, const struct engine_gauges *gauges,
                        const struct result *got, uint32_t n) {
    uint64_t n_found = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_found += got[i].stats.n_cached;
        assert_int_equal(got[i].stats.n_cached % PAGE_TOKENS, 0);
        assert_true(got[i].stats.n_cached < got[i].stats.n_prompt || !got[i].stats.n_cached);
    }
    assert_int_equal(gauges->prefix_hit_tokens, n_found);
    assert_true(gauges->prefix_query_tokens >= n_found);
    assert_int_equal(gauges->pages_cached, page_pool_n_cached(engine->pool));
    assert_int_equal(page_pool_n_free(engine->pool), gauges->pages_total);
    if (engine->config.prefix_cache) return;
    assert_int_equal(n_found + gauges->pages_cached + gauges->page_evictions, 0);
}

/* One scenario in random company. */
static void run_scenario(uint64_t seed, struct met *met) {
    struct rng rng;
    rng_seed(&rng, seed);
    static struct result want[MAX_REQUESTS], got[MAX_REQUESTS];
    static int32_t prompts[MAX_REQUESTS][64];
    static struct token_bias biases[MAX_REQUESTS][BIAS_MAX];
    struct request requests[MAX_REQUESTS];
    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    uint32_t n = 1 + rng_below(&rng, MAX_REQUESTS);
    for (uint32_t i = 0; i < n; i++)
        requests[i] = make_request(&rng, i, prompts[i], biases[i]);
    relate_requests(&rng, requests, n);
    run_alone(seed, requests, n, want);

    enum drafter drafter = rng_below(&rng, N_DRAFTERS);
    uint32_t window = rng_below(&rng, 3) == 0 ? 1 + rng_below(&rng, 20) : 0; /* Orthros streams */
    bool has_state = rng_below(&rng, 3) == 0, cached = rng_below(&rng, 4) > 0;
    struct model *model = make_model(seed, drafter, window, has_state);
    int32_t drafts = rng_below(&rng, 4) ? (int32_t)(2 + rng_below(&rng, BLOCK - 1))
                                        : -(int32_t)rng_below(&rng, 3); /* off, auto, ngram */
    uint32_t chunk = rng_below(&rng, 2) ? 1 + rng_below(&rng, 20) : 0;
    uint32_t n_pages = 8 + rng_below(&rng, 12); /* a request may need 7: preemption is common */
    uint32_t n_rows = rng_below(&rng, 2) ? 512 : 8 + rng_below(&rng, 24);
    struct engine *engine =
        make_engine(model, n_pages, drafts, chunk, 1 + rng_below(&rng, 8), n_rows, cached);
    /* Where the first step after it gets on, also without any need. */
    if (!chunk && n_rows == 512 && rng_below(&rng, 3) == 0)
        engine->preempt_every = 3 + rng_below(&rng, 4);
    bool cancelled[MAX_REQUESTS] = {false};
    uint32_t submitted = 0;
    uint64_t t = 0;
    for (int rc = 1; rc > 0 || submitted < n; t++) {
        while (submitted < n && rng_below(&rng, 3) == 0) {
            struct err err;
            if (engine_submit(engine, &requests[submitted], &err) != OK) fail_msg("%s", err.msg);
            submitted++;
        }
        if (submitted && rng_below(&rng, 60) == 0) {
            uint32_t id = rng_below(&rng, submitted);
            cancelled[id] = cancelled[id] || !got[id].ended;
            engine_cancel(engine, id);
        }
        rc = engine_step(engine, t * 1000);
        scheduler_check(engine->scheduler);
        met->shared += !cached && shares_pages(engine);
        drain(engine, got);
        assert_true(t < 20000);
    }
    uint32_t n_preempted = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_true(got[i].ended);
        n_preempted += got[i].stats.preemptions;
        if (cancelled[i] && got[i].finish == FINISH_CANCELLED) {
            assert_true(got[i].stats.n_output <= want[i].stats.n_output);
            uint32_t shared =
                got[i].n_tokens < want[i].n_tokens ? got[i].n_tokens : want[i].n_tokens;
            assert_memory_equal(got[i].tokens, want[i].tokens, shared * sizeof(int32_t));
            continue;
        }
        assert_same_result(&got[i], &want[i], i, seed);
        if (drafts == DRAFTS_OFF) {
            assert_int_equal(got[i].stats.n_accepted + got[i].stats.n_rejected, 0);
            assert_int_equal(got[i].stats.draft_passes, 0);
        }
    }
    struct engine_gauges gauges;
    assert_int_equal(engine_step(engine, t * 1000), 0); /* a turn without work empties the batch */
    engine_gauges(engine, &gauges);
    assert_int_equal(gauges.pages_used, 0);
    assert_int_equal(gauges.running + gauges.waiting, 0);
    check_counters(&gauges, requests, got, n);
    check_cache(engine, &gauges, got, n);
    assert_int_equal(gauges.preemptions, n_preempted);
    met->preempted += n_preempted;
    met->found += gauges.prefix_hit_tokens;
    if (has_state) met->found_with_state += gauges.prefix_hit_tokens;
    met->evicted += gauges.page_evictions;
    engine_destroy(engine);
    model_destroy(model);
}

static void any_company_gives_the_text_of_decoding_alone(void **state) {
    (void)state;
    uint64_t seed = test_seed();
    struct met met = {0};
    for (uint64_t i = 0; i < 300; i++)
        run_scenario(seed + i, &met);
    assert_true(met.preempted > 0 && met.evicted > 0); /* the pools really were too small */
    assert_true(met.found > 0 && met.found_with_state > 0 && met.shared > 0);
}

/* ---- accepted length --------------------------------------------------------------------------- */

static struct seq_stats run_greedy(enum drafter drafter, int32_t drafts, uint32_t n_tokens) {
    struct model *model = make_model(7, drafter, 0, false);
    struct engine *engine = make_engine(model, 64, drafts, 0, 4, 512, true);
    int32_t prompt[] = {0, 1, 2};
    struct request request = {.max_tokens = n_tokens, .n_prompt = 3, .prompt = prompt};
    sampling_defaults(&request.sampling);
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    struct result result = {0};
    struct err err;
    assert_int_equal(engine_submit(engine, &request, &err), OK);
    for (uint64_t t = 0; engine_step(engine, t) > 0; t++)
        drain(engine, &result);
    drain(engine, &result);
    assert_int_equal(result.stats.n_output, n_tokens);
    engine_destroy(engine);
    model_destroy(model);
    return result.stats;
}

static void perfect_drafts_are_all_accepted(void **state) {
    (void)state;
    for (int32_t block = 2; block <= BLOCK; block++) {
        /* The first token is prefill's; then whole cycles of `block` tokens. */
        struct seq_stats s = run_greedy(DRAFTER_PERFECT, block, 1 + 5 * (uint32_t)block);
        assert_int_equal(s.n_accepted, 5 * (block - 1));
        assert_int_equal(s.n_rejected, 0);
        assert_int_equal(s.draft_passes, 5);
        assert_int_equal(s.verify_passes, 5);
    }
}

static void useless_drafts_cost_passes_and_no_text(void **state) {
    (void)state;
    struct seq_stats s = run_greedy(DRAFTER_USELESS, 4, 30);
    assert_int_equal(s.n_accepted, 0);
    assert_true(s.n_rejected > 0);
    assert_int_equal(s.verify_passes, 29); /* one token a pass */
}

static void last_cycle_is_cut_to_the_token_limit(void **state) {
    (void)state; /* S9-02 */
    for (uint32_t n = 1; n <= 17; n++) {
        struct seq_stats s = run_greedy(DRAFTER_PERFECT, BLOCK, n);
        assert_int_equal(s.n_output, n);
        assert_true(s.n_accepted + s.verify_passes == n - 1);
    }
}

/* ---- scheduling -------------------------------------------------------------------------------- */

static void decode_goes_on_while_a_long_prompt_prefills(void **state) {
    (void)state;
    struct model *model = make_model(11, DRAFTER_PERFECT, 0, false);
    struct engine *engine = make_engine(model, 64, DRAFTS_OFF, 4, 4, 8, true);
    int32_t a[] = {1, 2}, b[100];
    for (int i = 0; i < 100; i++)
        b[i] = i % VOCAB;
    struct request requests[2] = {{.id = 0, .max_tokens = 40, .n_prompt = 2, .prompt = a},
                                  {.id = 1, .max_tokens = 4, .n_prompt = 100, .prompt = b}};
    struct result results[2];
    memset(results, 0, sizeof results);
    struct err err;
    for (int i = 0; i < 2; i++) {
        sampling_defaults(&requests[i].sampling);
        requests[i].sampling.temperature = 0;
        requests[i].sampling.ignore_eos = true;
        assert_int_equal(engine_submit(engine, &requests[i], &err), OK);
        engine_step(engine, 0);
        drain(engine, results);
    }
    /* From here on every step must give the first text a token and the second a chunk. */
    for (int step = 0; step < 20 && !results[1].n_tokens; step++) {
        uint32_t had = results[0].stats.n_output, kv = 0, tokens = 0;
        struct sequence *const *running = scheduler_running(engine->scheduler);
        for (int i = 0; i < 4; i++)
            if (running[i]) {
                if (running[i]->request->id == 1)
                    kv = running[i]->n_kv;
                else
                    tokens = running[i]->n_output;
            }
        engine_step(engine, 0);
        drain(engine, results);
        for (int i = 0; i < 4; i++)
            if (running[i]) {
                if (running[i]->request->id == 1 && running[i]->state == SEQ_PREFILL)
                    assert_int_equal(running[i]->n_kv, kv + 4);
                if (running[i]->request->id == 0)
                    assert_int_equal(running[i]->n_output, tokens + 1);
            }
        (void)had;
    }
    while (engine_step(engine, 0) > 0)
        drain(engine, results);
    drain(engine, results);
    assert_true(results[0].ended && results[1].ended);
    engine_destroy(engine);
    model_destroy(model);
}

static void prefill_goes_on_under_a_full_batch_of_decodes(void **state) {
    (void)state;
    enum { N = 9 }; /* eight texts fill the eight rows of a step; the ninth comes last */
    struct model *model = make_model(13, DRAFTER_PERFECT, 0, false);
    for (int32_t drafts = 0; drafts <= 4; drafts += 4) {
        struct engine *engine = make_engine(model, 128, drafts, 0, N, 8, true);
        int32_t prompt[30] = {0};
        struct result results[N];
        memset(results, 0, sizeof results);
        for (uint64_t i = 0; i < N; i++) {
            struct request request = {.id = i, .max_tokens = 40, .n_prompt = i == N - 1 ? 30 : 1};
            request.prompt = prompt;
            sampling_defaults(&request.sampling);
            request.sampling.temperature = 0;
            request.sampling.ignore_eos = true;
            struct err err;
            static struct request requests[N];
            requests[i] = request;
            assert_int_equal(engine_submit(engine, &requests[i], &err), OK);
        }
        while (!results[N - 1].n_tokens && engine_step(engine, 0) > 0)
            drain(engine, results);
        for (int i = 0; i < N - 1; i++)
            assert_false(results[i].ended);
        while (engine_step(engine, 0) > 0)
            drain(engine, results);
        drain(engine, results);
        engine_destroy(engine);
    }
    model_destroy(model);
}

static void full_queue_refuses_and_takes_again(void **state) {
    (void)state;
    struct model *model = make_model(3, DRAFTER_PERFECT, 0, false);
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = 1;
    config.max_queued = 2;
    config.kv_bytes = 16 * model->kernels->page_bytes(model->device, DTYPE_BF16);
    struct engine *engine;
    struct err err;
    assert_int_equal(engine_create(model, &config, &engine, &err), OK);
    int32_t prompt[] = {0};
    struct request requests[4];
    for (uint64_t i = 0; i < 4; i++) {
        requests[i] = (struct request){.id = i, .max_tokens = 2, .n_prompt = 1, .prompt = prompt};
        sampling_defaults(&requests[i].sampling);
        assert_int_equal(engine_submit(engine, &requests[i], &err), i < 3 ? OK : ERR_FULL);
    }
    struct result results[4];
    memset(results, 0, sizeof results);
    while (engine_step(engine, 0) > 0)
        drain(engine, results);
    drain(engine, results);
    assert_int_equal(engine_submit(engine, &requests[3], &err), OK);
    engine_cancel(engine, 3);
    engine_cancel(engine, 3); /* twice is once */
    engine_step(engine, 0);
    drain(engine, results);
    assert_int_equal(results[3].finish, FINISH_CANCELLED);
    engine_destroy(engine);
    model_destroy(model);
}

/* Between two steps: all that ended are told to go nevertheless, their places are taken anew, and
 * those go at once as well. */
static void commands_of_two_generations_have_room(void **state) {
    (void)state;
    enum { N = 16 };
    struct model *model = make_model(3, DRAFTER_PERFECT, 0, false);
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = N;
    config.max_queued = 0;
    struct engine *engine;
    struct err err;
    assert_int_equal(engine_create(model, &config, &engine, &err), OK);
    int32_t prompt[] = {0};
    struct request requests[2 * N];
    struct result results[2 * N];
    memset(results, 0, sizeof results);
    for (uint64_t i = 0; i < 2 * N; i++) {
        requests[i] = (struct request){.id = i, .max_tokens = 1, .n_prompt = 1, .prompt = prompt};
        sampling_defaults(&requests[i].sampling);
        if (i == N) {
            while (engine_step(engine, 0) > 0)
                continue;
            for (uint64_t old = 0; old < N; old++) {
                engine_cancel_waiting(engine, old);
                engine_cancel(engine, old);
            }
            drain(engine, results);
        }
        assert_int_equal(engine_submit(engine, &requests[i], &err), OK);
        if (i < N) continue;
        engine_cancel_waiting(engine, i);
        engine_cancel(engine, i);
    }
    engine_step(engine, 0);
    drain(engine, results);
    for (uint32_t i = 0; i < 2 * N; i++)
        assert_int_equal(results[i].finish == FINISH_CANCELLED, i >= N);
    engine_destroy(engine);
    model_destroy(model);
}

static void prompt_that_can_never_fit_is_refused(void **state) {
    (void)state; /* S6-03 */
    struct model *model = make_model(3, DRAFTER_PERFECT, 0, false);
    struct engine *engine = make_engine(model, 4, DRAFTS_OFF, 0, 4, 512, true);
    assert_int_equal(engine_info(engine)->max_model_len, 64);
    assert_non_null(engine_info(engine)->notice);
    int32_t prompt[64] = {0};
    struct request request = {.max_tokens = 100, .n_prompt = 64, .prompt = prompt};
    sampling_defaults(&request.sampling);
    struct err err;
    assert_int_equal(engine_submit(engine, &request, &err), ERR_TOO_LONG);
    request.n_prompt = 60;
    request.sampling.ignore_eos = true;
    assert_int_equal(engine_submit(engine, &request, &err), OK);
    struct result result = {0};
    int steps = 0;
    for (; engine_step(engine, 0) > 0; steps++)
        drain(engine, &result);
    drain(engine, &result);
    assert_int_equal(result.finish, FINISH_LENGTH);
    assert_int_equal(result.stats.n_output, 4);
    assert_true(steps < 20);
    engine_destroy(engine);
    model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_company_gives_the_text_of_decoding_alone),
        cmocka_unit_test(perfect_drafts_are_all_accepted),
        cmocka_unit_test(useless_drafts_cost_passes_and_no_text),
        cmocka_unit_test(last_cycle_is_cut_to_the_token_limit),
        cmocka_unit_test(decode_goes_on_while_a_long_prompt_prefills),
        cmocka_unit_test(prefill_goes_on_under_a_full_batch_of_decodes),
        cmocka_unit_test(full_queue_refuses_and_takes_again),
        cmocka_unit_test(commands_of_two_generations_have_room),
        cmocka_unit_test(prompt_that_can_never_fit_is_refused),
    };
    return cmocka_run_group_tests_name("prop_engine", tests, NULL, NULL);
}
