/* prop_invariance: whatever the engine does for speed changes no text. Scenarios composed at random
 * over the golden checkpoints: number formats, kernel tables, threads, drafts, neighbours, chunks,
 * budgets, tiny pools, cancels, the prefix cache, choices that share a prompt. Every greedy or
 * seeded text equals its run alone with everything off: ids, text, finish reason, and the bits of
 * every logit row that decided a token. Of a text drawn without a seed those bits must be what a
 * plain forward over the finished text yields.
 *
 * Linked with the CUDA backend (tests/sim): fewer and shorter ones, on that table alone. With the tile
 * unit in software (tests/amx): fewer, on the amx table, and all of them on tiles.
 *
 *   GERYON_SCENARIOS=N   how many (default 500; the first changes every day)
 *   GERYON_SEED=S        that scenario alone, and what it is */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/prop/watch.h"
#include "tests/unit/tables.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SCENARIOS = 40, SCENARIOS_CUDA = 5, SCENARIOS_AMX = 10 };
#else
enum { SCENARIOS = 500, SCENARIOS_CUDA = 40, SCENARIOS_AMX = 150 };
#endif

enum {
    MAX_REQUESTS = 32,
    MAX_PROMPT = 240,
    MAX_OUTPUT = 72,
    ALONE_PAGES = 22, /* MAX_PROMPT + MAX_OUTPUT and a little */
    MAX_STEPS = 100000,
};

static const char *const checkpoints[] = {
    "qwen3-single-standard-none",
    "qwen2-single-standard-none",
    "llama-single-standard-none-rope-llama3-untied",
    "llama-single-standard-none-rope-linear-sharded",
    "qwen3-single-standard-none-rope-yarn",
    "llama-orthros-standard-none",
    "qwen3-single-standard-orthrus",
    "qwen3-single-standard-orthrus-bf16",
    "qwen3-orthros-standard-orthrus",
    "llama-single-msar-none",
    "qwen3-orthros-msar-none-f16",
    "qwen3-single-msar-orthrus-bf16",
    "qwen3-orthros-msar-orthrus",
};
static const enum dtype kv_dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0};
static const char *const dtypes[] = {"auto", "f32", "bf16", "f16", "q8_0", "q4_0"};

/* ---- a scenario -------------------------------------------------------------------------------- */

struct scenario {
    uint64_t seed;
    const char *checkpoint;
    enum dtype kv;
    const char *dtype, *activations;
    const struct kernels *kernels;
    uint32_t n_threads, block; /* the model's draft block */
    int32_t drafts;
    uint32_t n_requests, n_seqs, n_rows, chunk;
    uint32_t spare_pages;                             /* beyond what the largest request needs */
    bool prefix_cache, cancels, prefill_first, burst; /* burst: all come at once */
};

struct result {
    int32_t tokens[MAX_OUTPUT];
    uint64_t rows[MAX_OUTPUT]; /* hash of the logits that decided each */
    uint32_t n_tokens, text_len;
    uint64_t text_hash;
    enum finish_reason finish;
    int32_t stop_index, stop_id;
    struct seq_stats stats;
    bool ended, failed;
};

struct subject {
    struct request request;
    int32_t prompt[MAX_PROMPT];
    struct token_bias bias[4];
    int32_t after; /* submitted once that one has ended; -1: any time */
    bool fixed;    /* greedy or seeded */
    bool cancelled;
    struct result want, got;
};
static struct subject subjects[MAX_REQUESTS];

/* What happened over all scenarios: a test in which nothing happens proves nothing. */
static struct tally {
    uint64_t requests, preempted, accepted, rejected, cancelled, stopped, cached, steps, drawn,
        bites;
} tally;

/* How long things are: a simulated device takes its time. */
static struct {
    uint32_t output, prompt, requests; /* at most; prompt: of those with any length */
    uint32_t pages;                    /* that a prompt ends near */
} sizes = {MAX_OUTPUT, 130, 12, 4};
static const struct { uint32_t output, prompt, requests, pages; } cuda_sizes = {16, 50, 4, 3};

static const char *draw_checkpoint(struct rng *rng) {
    while (tables_are_cuda() &&
           rng_below(rng, 2)) { /* few scenarios: half of them with a draft view */
        const char *name = checkpoints[rng_below(rng, ARRAY_LEN(checkpoints))];
        if (strstr(name, "orthrus")) return name;
    }
    return checkpoints[rng_below(rng, ARRAY_LEN(checkpoints))];
}

/* 2 .. block, what adapts, what looks the text up, or none. */
static int32_t draw_drafts(struct rng *rng, uint32_t block) {
    if (rng_below(rng, 4) == 0) return DRAFTS_NGRAM;
    if (!block) return DRAFTS_OFF;
    uint32_t kind = rng_below(rng, 6);
    if (kind == 0) return DRAFTS_OFF;
    return kind == 1 ? DRAFTS_AUTO : (int32_t)(2 + rng_below(rng, block - 1));
}

static struct scenario draw_scenario(struct rng *rng, uint64_t seed) {
    struct scenario sc = {.seed = seed,
                          .checkpoint = draw_checkpoint(rng),
                          .kv = kv_dtypes[rng_below(rng, ARRAY_LEN(kv_dtypes))]};
    sc.dtype = dtypes[rng_below(rng, ARRAY_LEN(dtypes))];
    bool blocks = sc.dtype[0] == 'q';
    static const char *const kinds[] = {"f32", "bf16", "int8"};
    sc.activations = kinds[rng_below(rng, blocks && !tables_are_cuda() ? 3 : 2)];
    /* The reference is slow, and its stages are the others' too. */
    sc.kernels =
        tables[rng_below(rng, 6) == 0 || n_tables == 1 ? 0 : 1 + rng_below(rng, n_tables - 1)];
    if (tiles_are_emulated()) { /* each reaches them */
        sc.kernels = kernels_amx();
        if (sc.activations == kinds[0]) sc.activations = kinds[1];
    }
    sc.n_threads = 1 + rng_below(rng, 2);
    sc.block = strstr(sc.checkpoint, "orthrus") ? 8 : 0;
    sc.drafts = draw_drafts(rng, sc.block);
    uint32_t most = sc.kernels == tables[0] ? 5 : rng_below(rng, 8) == 0 ? MAX_REQUESTS : 12;
    if (tables_are_cuda()) most = sizes.requests;
    sc.n_requests = 1 + rng_below(rng, most);
    sc.n_seqs = 1 + rng_below(rng, rng_below(rng, 4) ? 8 : 32);
    sc.n_rows = rng_below(rng, 2) ? 512 : 8 + rng_below(rng, 60);
    sc.chunk = rng_below(rng, 2) ? 1 + rng_below(rng, 40) : 0;
    sc.spare_pages = rng_below(rng, 3) ? rng_below(rng, 10) : 200;
    if (tables_are_cuda() && sc.spare_pages < 10) sc.spare_pages /= 4; /* texts are short */
    sc.prefix_cache = rng_below(rng, 4) > 0;
    sc.cancels = rng_below(rng, 4) == 0;
    sc.prefill_first = rng_below(rng, 8) == 0;
    sc.burst = rng_below(rng, 2);
    return sc;
}

static void describe(const struct scenario *sc, char *out, size_t cap) {
    snprintf(
        out, cap,
        "GERYON_SEED=%llu: %s, weights %s, activations %s, kv %s, table %s, threads %u, drafts "
        "%d, requests %u, seqs %u, rows %u, chunk %u, spare pages %u, cache %d, cancels %d",
        (unsigned long long)sc->seed, sc->checkpoint, sc->dtype, sc->activations,
        dtype_name(sc->kv), sc->kernels->name, sc->n_threads, sc->drafts, sc->n_requests,
        sc->n_seqs, sc->n_rows, sc->chunk, sc->spare_pages, sc->prefix_cache, sc->cancels);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static int32_t draw_token(struct rng *rng) {
    return (int32_t)rng_below(rng, 312); /* text; what follows are the tokenizer's own */
}

/* Lengths around page borders are as likely as all others together. */
static uint32_t draw_length(struct rng *rng) {
    uint32_t kind = rng_below(rng, 4);
    if (kind == 0) return 1 + rng_below(rng, 8);
    if (kind == 1) return 1 + rng_below(rng, sizes.prompt);
    return PAGE_TOKENS * (1 + rng_below(rng, sizes.pages)) - 1 + rng_below(rng, 3);
}

static void draw_rules(struct rng *rng, struct subject *s) {
    struct sampling *rules = &s->request.sampling;
    sampling_defaults(rules);
    uint32_t kind = rng_below(rng, 5);
    rules->seed = rng_u64(rng);
    rules->temperature = kind < 2 ? 0 : 0.2 + 1.3 * rng_unit(rng);
    rules->has_seed = kind == 2 || kind == 3;
    if (rng_below(rng, 2)) rules->top_k = 1 + (int32_t)rng_below(rng, 60);
    if (rng_below(rng, 3) == 0) rules->top_p = 0.2 + 0.8 * rng_unit(rng);
    if (rng_below(rng, 3) == 0) rules->min_p = 0.2 * rng_unit(rng);
    if (rng_below(rng, 4) == 0) rules->frequency_penalty = 4 * rng_unit(rng) - 2;
    if (rng_below(rng, 4) == 0) rules->presence_penalty = 4 * rng_unit(rng) - 2;
    if (rng_below(rng, 4) == 0) rules->repetition_penalty = 0.7 + rng_unit(rng);
    if (rng_below(rng, 3) == 0) {
        rules->n_bias = 1 + rng_below(rng, ARRAY_LEN(s->bias));
        int32_t id = draw_token(rng);
        for (uint32_t i = 0; i < rules->n_bias; i++, id = (id + 7) % 320)
            s->bias[i] = (struct token_bias){id, rng_below(rng, 3) ? 8 * rng_unit(rng) : -100};
    }
    if (rng_below(rng, 6) == 0) {
        rules->n_stop = 1 + rng_below(rng, 2);
        for (uint32_t i = 0; i < rules->n_stop; i++) {
            rules->stop[i].len = (uint16_t)(1 + rng_below(rng, 2));
            for (uint32_t c = 0; c < rules->stop[i].len; c++)
                rules->stop[i].text[c] = (char)('!' + rng_below(rng, 90));
        }
    }
    rules->ignore_eos = rng_below(rng, 2);
    if (rng_below(rng, 3) == 0) rules->min_tokens = rng_below(rng, s->request.max_tokens + 1);
}

/* A prompt that has to do with an earlier text: the same, its continuation, or a part of it. */
static void derive_prompt(struct rng *rng, struct subject *s, const struct subject *from) {
    struct request *r = &s->request;
    uint32_t kind = rng_below(rng, 3), n = from->request.n_prompt, added = rng_below(rng, 6);
    memcpy(s->prompt, from->prompt, n * sizeof *s->prompt);
    if (kind == 0) added = 0;
    if (kind == 1) {
        for (uint32_t i = 0; i < from->want.n_tokens && n < MAX_PROMPT; i++)
            s->prompt[n++] = from->want.tokens[i];
        s->after = (int32_t)(from - subjects);
    }
    if (kind == 2) n = 1 + rng_below(rng, n), added = rng_below(rng, 30);
    for (uint32_t i = 0; i < added && n < MAX_PROMPT; i++)
        s->prompt[n++] = draw_token(rng);
    r->n_prompt = n;
    if (rng_below(rng, 2)) s->after = (int32_t)(from - subjects);
}

static void draw_request(struct rng *rng, uint32_t i) {
    struct subject *s = &subjects[i];
    const struct subject *from = i && rng_below(rng, 2) ? &subjects[rng_below(rng, i)] : NULL;
    memset(s, 0, sizeof *s);
    s->after = -1;
    s->request = (struct request){.id = i, .max_tokens = 1 + rng_below(rng, sizes.output)};
    if (rng_below(rng, 4) == 0) s->request.salt_len = 1, s->request.salt[0] = 't';
    s->request.priority = (int32_t)rng_below(rng, 3) - 1;
    draw_rules(rng, s);
    if (from) {
        derive_prompt(rng, s, from);
    } else {
        s->request.n_prompt = draw_length(rng);
        for (uint32_t t = 0; t < s->request.n_prompt; t++)
            s->prompt[t] = draw_token(rng);
    }
    /* A stop that does come: a token of the same text without it. */
    if (from && from->want.n_tokens && rng_below(rng, 2)) {
        if (rng_below(rng, 2)) {
            uint32_t max_tokens = s->request.max_tokens;
            s->request.sampling = from->request.sampling;
            memcpy(s->bias, from->bias, sizeof s->bias);
            if (s->request.sampling.min_tokens > max_tokens)
                s->request.sampling.min_tokens = max_tokens;
        }
        s->request.sampling.n_stop_ids = 1;
        s->request.sampling.stop_ids[0] = from->want.tokens[rng_below(rng, from->want.n_tokens)];
    }
}

/* Requests that are choices of one prompt: the same but for the number. */
static void repeat_request(uint32_t i, uint32_t choice) {
    struct subject *s = &subjects[i];
    *s = subjects[i - 1];
    s->request.id = i;
    s->request.choice = choice;
    memset(&s->want, 0, sizeof s->want);
    memset(&s->got, 0, sizeof s->got);
}

static void settle_request(struct subject *s) {
    s->request.prompt = s->prompt;
    s->request.sampling.bias = s->bias;
    s->fixed = s->request.sampling.temperature == 0 || s->request.sampling.has_seed;
}

/* ---- running ----------------------------------------------------------------------------------- */

struct run {
    struct model *model;
    struct engine *engine;
    bool alone;
    struct rng clock;
    uint64_t now_us;
};

static void take_event(struct result *r, const struct event *event) {
    ASSERT(r->n_tokens + event->n_tokens <= MAX_OUTPUT);
    memcpy(r->tokens + r->n_tokens, event->tokens, event->n_tokens * sizeof *r->tokens);
    r->n_tokens += event->n_tokens;
    for (uint32_t i = 0; i < event->text_len; i++)
        r->text_hash = (r->text_hash ^ (unsigned char)event->text[i]) * 0x100000001B3u;
    r->text_len += event->text_len;
    if (event->kind == EVENT_TOKENS) return;
    r->ended = true;
    r->failed = event->kind == EVENT_FAILED;
    r->finish = event->finish;
    r->stop_index = event->stop_index;
    r->stop_id = event->stop_id;
    r->stats = event->stats;
}

static void drain(struct run *run) {
    struct event event;
    while (engine_next_event(run->engine, &event)) {
        struct subject *s = &subjects[event.id];
        take_event(run->alone ? &s->want : &s->got, &event);
    }
}

static void row_seen(void *arg, uint32_t slot, uint32_t out_pos, uint64_t hash) {
    struct run *run = arg;
    struct sequence *seq = scheduler_running(run->engine->scheduler)[slot];
    struct subject *s = &subjects[seq->request->id];
    if (out_pos < MAX_OUTPUT) (run->alone ? &s->want : &s->got)->rows[out_pos] = hash;
}

/* Steps cost what chance says, so that what follows the clock (chunks, draft lengths) varies. */
static uint64_t random_clock(void *arg) {
    struct run *run = arg;
    return run->now_us += rng_below(&run->clock, 4000);
}

static struct model *load(const struct scenario *sc, const struct kernels *kernels,
                          uint32_t n_threads) {
    struct model_options options = {.path = golden_path(sc->checkpoint),
                                    .dtype = sc->dtype,
                                    .activations = sc->activations,
                                    .deterministic = tables_are_cuda(),
                                    .n_threads = n_threads};
    struct model *model = NULL;
    struct err err;
    if (model_load_on(&options, kernels, &model, &err) != OK) fail_msg("%s", err.msg);
    return model;
}

/* Memory of n pages; a share may go to snapshots of what a text keeps beyond its KV. */
static uint64_t page_memory(const struct model *model, enum dtype kv, uint32_t n_pages) {
    uint64_t bytes = n_pages * model->kernels->page_bytes(model->device, kv);
    return model->kernels->snapshot_bytes(model->device) ? div_ceil(bytes * 8, 7) : bytes;
}

static void open_engine(struct run *run, const struct engine_config *config) {
    struct err err;
    if (engine_create(run->model, config, &run->engine, &err) != OK) fail_msg("%s", err.msg);
}

static void close_run(struct run *run) {
    engine_destroy(run->engine);
    model_destroy(run->model);
}

static void open_alone(struct run *run, const struct scenario *sc) {
    struct engine_config config;
    *run = (struct run){.alone = true};
    run->model = load(sc, watch_kernels(sc->kernels, PLANT_NONE, row_seen, run), 1);
    engine_config_defaults(&config);
    config.kv_dtype = dtype_name(sc->kv);
    config.kv_bytes = page_memory(run->model, sc->kv, ALONE_PAGES);
    config.max_num_seqs = 1;
    config.drafts = DRAFTS_OFF;
    config.prefix_cache = false;
    open_engine(run, &config);
}

static void run_alone(struct run *run, struct subject *s) {
    struct request request = s->request;
    struct err err;
    request.group = 0;
    request.salt_len = 0;
    if (engine_submit(run->engine, &request, &err) != OK) fail_msg("%s", err.msg);
    for (uint64_t t = 0; engine_step(run->engine, t) > 0; t++)
        drain(run);
    drain(run);
    ASSERT(s->want.ended && !s->want.failed);
}

static uint32_t pages_of(const struct request *r) {
    return (uint32_t)div_ceil(r->n_prompt + r->max_tokens, PAGE_TOKENS);
}

static void open_company(struct run *run, const struct scenario *sc, enum plant plant) {
    struct engine_config config;
    uint32_t need = 2;
    for (uint32_t i = 0; i < sc->n_requests; i++)
        if (pages_of(&subjects[i].request) > need) need = pages_of(&subjects[i].request);
    *run = (struct run){0};
    rng_seed(&run->clock, sc->seed);
    run->model = load(sc, watch_kernels(sc->kernels, plant, row_seen, run), sc->n_threads);
    engine_config_defaults(&config);
    config.kv_dtype = dtype_name(sc->kv);
    config.kv_bytes = page_memory(run->model, sc->kv, need + sc->spare_pages);
    config.max_num_seqs = sc->n_seqs;
    config.max_batched_rows = sc->n_rows;
    config.prefill_chunk = sc->chunk;
    config.drafts = sc->drafts;
    config.prefix_cache = sc->prefix_cache;
    config.prefill_first = sc->prefill_first;
    config.clock = random_clock;
    config.clock_arg = run;
    open_engine(run, &config);
    ASSERT(engine_info(run->engine)->max_model_len >= need * PAGE_TOKENS);
}

/* Submit what may come now. Returns how many have been submitted. */
static uint32_t submit_some(struct run *run, struct rng *rng, uint32_t n, uint32_t submitted,
                            bool burst, struct request *requests) {
    while (submitted < n && (burst || rng_below(rng, 3) == 0)) {
        const struct subject *s = &subjects[submitted];
        if (s->after >= 0 && !subjects[s->after].got.ended) break;
        struct err err;
        requests[submitted] = s->request;
        if (engine_submit(run->engine, &requests[submitted], &err) != OK) fail_msg("%s", err.msg);
        submitted++;
    }
    return submitted;
}

/* False: it never ended. */
static bool run_company(struct run *run, struct rng *rng, const struct scenario *sc) {
    struct request requests[MAX_REQUESTS];
    uint32_t submitted = 0, steps = 0;
    for (int rc = 1; rc > 0 || submitted < sc->n_requests; steps++) {
        submitted = submit_some(run, rng, sc->n_requests, submitted, sc->burst, requests);
        if (sc->cancels && submitted && rng_below(rng, 40) == 0) {
            uint32_t id = rng_below(rng, submitted);
            subjects[id].cancelled = true;
            engine_cancel(run->engine, id);
        }
        rc = engine_step(run->engine, run->now_us);
        if (rc < 0 || steps > MAX_STEPS) return false;
        scheduler_check(run->engine->scheduler);
        drain(run);
    }
    tally.steps += steps;
    return true;
}

/* ---- comparing --------------------------------------------------------------------------------- */

struct rescore {
    uint32_t n_prompt;
    uint64_t rows[MAX_PROMPT + MAX_OUTPUT];
    uint32_t vocab;
};

static void rescored(void *arg, uint32_t position, const float *logits) {
    struct rescore *r = arg;
    r->rows[position] = watch_hash(logits, r->vocab);
}

/* What one forward over a finished text says at every place of its output. */
static void rescore(struct run *alone, struct subject *s) {
    int32_t tokens[MAX_PROMPT + MAX_OUTPUT];
    uint32_t n = s->request.n_prompt;
    struct rescore r = {.vocab = alone->model->shape.vocab_size};
    memcpy(tokens, s->prompt, n * sizeof *tokens);
    memcpy(tokens + n, s->got.tokens, s->got.n_tokens * sizeof *tokens);
    struct logits_job job = {.tokens = tokens, .n_tokens = n + s->got.n_tokens, .all = true};
    struct err err;
    if (engine_logits(alone->engine, &job, rescored, &r, &err) != OK) fail_msg("%s", err.msg);
    memcpy(s->want.rows, r.rows + n - 1, s->got.n_tokens * sizeof *s->want.rows);
}

/* Where they differ first, or n. */
static uint32_t first_difference(const struct subject *s, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (s->got.rows[i] != s->want.rows[i] ||
            (s->fixed && s->got.tokens[i] != s->want.tokens[i]))
            return i;
    return n;
}

static bool same(const struct subject *s, uint32_t i, char *why, size_t cap) {
    const struct result *got = &s->got, *want = &s->want;
    bool cut = s->cancelled && got->finish == FINISH_CANCELLED;
    uint32_t n = got->n_tokens;
    if (s->fixed && want->n_tokens < n) n = want->n_tokens;
    uint32_t at = first_difference(s, n);
    if (!got->ended || got->failed)
        snprintf(why, cap, "request %u %s", i, got->failed ? "failed" : "never ended");
    else if (at < n)
        snprintf(why, cap, "request %u: %s differ at output %u", i,
                 got->rows[at] != want->rows[at] ? "logits" : "tokens", at);
    else if (s->fixed && !cut &&
             (got->n_tokens != want->n_tokens || got->finish != want->finish ||
              got->stop_index != want->stop_index || got->stop_id != want->stop_id ||
              got->text_len != want->text_len || got->text_hash != want->text_hash ||
              got->stats.n_output != want->stats.n_output))
        snprintf(why, cap, "request %u: %u tokens, finish %d, text %u bytes; alone %u, %d, %u", i,
                 got->n_tokens, got->finish, got->text_len, want->n_tokens, want->finish,
                 want->text_len);
    else
        return true;
    return false;
}

static void count(const struct subject *s) {
    const struct seq_stats *stats = &s->got.stats;
    tally.requests++;
    tally.drawn += !s->fixed;
    tally.preempted += stats->preemptions;
    tally.accepted += stats->n_accepted;
    tally.rejected += stats->n_rejected;
    tally.cancelled += s->got.finish == FINISH_CANCELLED;
    tally.stopped += s->got.finish == FINISH_STOP;
    tally.cached += stats->n_cached;
}

/* ---- the whole --------------------------------------------------------------------------------- */

/* False: a text differed, and why says which. */
static bool run_scenario(uint64_t seed, enum plant plant, char *why, size_t cap) {
    struct rng rng;
    struct run alone, company;
    rng_seed(&rng, seed);
    struct scenario sc = draw_scenario(&rng, seed);
    describe(&sc, why, cap);
    size_t used = strlen(why);
    why += used, cap -= used;
    open_alone(&alone, &sc);
    uint32_t choices = 0, choice = 0;
    for (uint32_t i = 0; i < sc.n_requests; i++) {
        if (++choice < choices) {
            repeat_request(i, choice);
        } else {
            draw_request(&rng, i);
            choice = 0;
            choices = rng_below(&rng, 4) ? 1 : 2 + rng_below(&rng, 3);
            subjects[i].request.group = choices > 1 && i + 1 < sc.n_requests ? i + 1 : 0;
        }
        settle_request(&subjects[i]);
        run_alone(&alone, &subjects[i]);
    }
    open_company(&company, &sc, plant);
    bool ended = run_company(&company, &rng, &sc), equal = ended;
    if (!ended) snprintf(why, cap, ": never ended");
    struct engine_gauges gauges;
    engine_gauges(company.engine, &gauges);
    if (ended && gauges.pages_used > 0) {
        snprintf(why, cap, ": %u pages never came back", gauges.pages_used);
        equal = false;
    }
    close_run(&company);
    tally.bites += watch_bites();
    watch_kernels(sc.kernels, PLANT_NONE, NULL, NULL);
    for (uint32_t i = 0; ended && i < sc.n_requests; i++) {
        if (!subjects[i].fixed) rescore(&alone, &subjects[i]);
        if (equal) why[0] = ':', why[1] = ' ', equal = same(&subjects[i], i, why + 2, cap - 2);
        count(&subjects[i]);
    }
    close_run(&alone);
    if (equal) why[0] = 0;
    return equal;
}

static uint64_t env_number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 0) : otherwise;
}

static uint64_t usual_scenarios(void) {
    return tables_are_cuda() ? SCENARIOS_CUDA : tiles_are_emulated() ? SCENARIOS_AMX : SCENARIOS;
}

static void every_text_equals_its_run_alone(void **state) {
    (void)state;
    char why[1024];
    uint64_t one = env_number("GERYON_SEED", 0),
             n = env_number("GERYON_SCENARIOS", usual_scenarios());
    uint64_t first = one ? one : (uint64_t)(time(NULL) / 86400) * 1000000;
    if (one) n = 1;
    tally = (struct tally){0};
    uint64_t failed = 0;
    for (uint64_t i = 0; i < n; i++) {
        bool equal = run_scenario(first + i, PLANT_NONE, why, sizeof why);
        if (!equal || one) printf("# %s %s\n", equal ? "equal" : "NOT EQUAL", why);
        failed += !equal;
    }
    printf(
        "# %llu scenarios from %llu: %llu requests (%llu unseeded) in %llu steps; %llu stopped, "
        "%llu cancelled, %llu preempted; drafts %llu accepted, %llu rejected; %llu tokens cached\n",
        (unsigned long long)n, (unsigned long long)first, (unsigned long long)tally.requests,
        (unsigned long long)tally.drawn, (unsigned long long)tally.steps,
        (unsigned long long)tally.stopped, (unsigned long long)tally.cancelled,
        (unsigned long long)tally.preempted, (unsigned long long)tally.accepted,
        (unsigned long long)tally.rejected, (unsigned long long)tally.cached);
    if (failed) fail_msg("%llu scenarios differ", (unsigned long long)failed);
    if (n < (tables_are_cuda() ? 200 : 40)) return; /* too few for chance to have done everything */
    assert_true(tally.preempted > 0 && tally.cancelled > 0 && tally.stopped > 0);
    assert_true(tally.accepted > 0 && tally.rejected > 0 && tally.drawn > 0);
    assert_true(tally.cached > 0);
}

/* ---- the test of the test ---------------------------------------------------------------------- */

/* The bug is planted in scenario after scenario until a text shows it. */
static void planted_bug_is_caught(void **state) {
    enum plant plant = *(enum plant *)*state;
    /* Of a simulated device the plain build shows it, and snapshots are test_msar's. */
    if (tables_are_cuda() && (SCENARIOS < 500 || plant == PLANT_STATE_LOAD)) skip();
    char why[1024];
    tally = (struct tally){0};
    for (uint64_t seed = 1; seed <= 200; seed++) {
        bool equal = run_scenario(seed, plant, why, sizeof why);
        if (equal) continue;
        printf("# planted \"%s\" caught: %s\n", plant_names[plant], why);
        return;
    }
    fail_msg("planted \"%s\" bit %llu times and no text differed", plant_names[plant],
             (unsigned long long)tally.bites);
}

int main(void) {
    static enum plant company = PLANT_COMPANY, chunk = PLANT_CHUNK, uncut = PLANT_UNCUT,
                      keeps = PLANT_KEEPS_REFUSED, seed = PLANT_SEED_OF_SLOT,
                      page_copy = PLANT_PAGE_COPY, state_load = PLANT_STATE_LOAD;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_equals_its_run_alone),
        {"planted_company_bug_is_caught", planted_bug_is_caught, NULL, NULL, &company},
        {"planted_chunk_bug_is_caught", planted_bug_is_caught, NULL, NULL, &chunk},
        {"planted_uncut_kv_is_caught", planted_bug_is_caught, NULL, NULL, &uncut},
        {"planted_kept_refusal_is_caught", planted_bug_is_caught, NULL, NULL, &keeps},
        {"planted_seed_of_slot_is_caught", planted_bug_is_caught, NULL, NULL, &seed},
        {"planted_page_not_copied_is_caught", planted_bug_is_caught, NULL, NULL, &page_copy},
        {"planted_state_of_another_is_caught", planted_bug_is_caught, NULL, NULL, &state_load},
    };
    tables_find();
    if (tables_are_cuda()) memcpy(&sizes, &cuda_sizes, sizeof sizes);
    const struct CMUnitTest on_tiles[] = {
        cmocka_unit_test(every_text_equals_its_run_alone),
    };
    if (tiles_are_emulated())
        return cmocka_run_group_tests_name("prop_invariance", on_tiles, NULL, NULL);
    return cmocka_run_group_tests_name("prop_invariance", tests, NULL, NULL);
}
