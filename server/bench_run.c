/* bench_run.c: measuring. Steps the engine by hand, as a server's engine thread would. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/bench.h"
#include "server/clock.h"

/* A sequence of the repetition at hand. */
struct seen {
    uint32_t n_output;
    uint64_t last_us;
    struct seq_stats stats; /* at its end */
};

/* Sums over the sequences and repetitions of a case. */
struct totals {
    uint64_t prefill_steps, decode_steps, draft_forwards; /* the last: of the engine */
    uint64_t draft_passes, verify_passes, n_accepted, n_rejected;
    /* Of the steps: [0] prefill, [1] decode. */
    uint64_t step_us[2], work_ns[2][ENGINE_WORKS];
    bool has_work;
    uint64_t forwards[FORWARD_KINDS];
    double forward_s[FORWARD_KINDS];
    double read_rates; /* of memory, two a repetition */
};

struct bench_runner {
    const struct model *model;
    struct engine *engine;
    const struct bench *bench;
    struct meter *meter; /* or NULL */
    uint32_t max_prompt;
    struct request *requests; /* [max_batch] */
    int32_t *prompts;         /* [max_batch][max_prompt] */
    struct seen *seen;        /* [max_batch] */
    double *scratch;          /* [max_batch] */
};

struct bench_runner *bench_runner_create(const struct model *model, struct engine *engine,
                                         const struct bench *bench, uint32_t max_batch,
                                         uint32_t max_prompt) {
    struct bench_runner *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (struct bench_runner){
        .model = model, .engine = engine, .bench = bench, .max_prompt = max_prompt};
    r->requests = calloc(max_batch, sizeof *r->requests);
    r->prompts = calloc((size_t)max_batch * max_prompt, sizeof *r->prompts);
    r->seen = calloc(max_batch, sizeof *r->seen);
    r->scratch = calloc(max_batch, sizeof *r->scratch);
    if (r->requests && r->prompts && r->seen && r->scratch) return r;
    bench_runner_destroy(r);
    return NULL;
}

void bench_runner_destroy(struct bench_runner *r) {
    if (!r) return;
    free(r->requests);
    free(r->prompts);
    free(r->seen);
    free(r->scratch);
    free(r);
}

void bench_runner_meter(struct bench_runner *r, struct meter *meter) {
    r->meter = meter;
}

/* ---- statistics -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values: the smallest that at least `share` of them do not exceed. */
static double percentile(const double *sorted, size_t n, double share) {
    if (n == 0) return 0;
    size_t at = (size_t)ceil(share * (double)n);
    return sorted[at > 0 ? at - 1 : 0];
}

static double median(const double *sorted, size_t n) {
    if (n == 0) return 0;
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static struct spread spread_of(double *values, size_t n) {
    qsort(values, n, sizeof *values, ascending);
    return (struct spread){median(values, n), n ? values[0] : 0, n ? values[n - 1] : 0};
}

/* ---- one repetition ---------------------------------------------------------------------------- */

/* The same case has the same prompts everywhere, but no two texts share a beginning, nor do cases:
 * the prefix cache would find it. */
static int32_t prompt_token(const struct bench_case *c, uint32_t rep, uint32_t seq, uint32_t i,
                            uint32_t vocab_size) {
    uint64_t x = ((uint64_t)rep << 48) ^ ((uint64_t)seq << 32) ^ i;
    x ^= (((uint64_t)c->prompt_tokens << 32) | c->batch) * 0x9e3779b97f4a7c15u;
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u; /* splitmix64 */
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (int32_t)((x >> 32) % vocab_size);
}

/* A plain repetition has the texts of its pair, but none may find the other's pages. */
static int submit(struct bench_runner *r, const struct bench_case *c, uint32_t rep, bool plain,
                  struct err *err) {
    for (uint32_t s = 0; s < c->batch; s++) {
        struct request *request = &r->requests[s];
        int32_t *prompt = r->prompts + (size_t)s * r->max_prompt;
        for (uint32_t i = 0; i < c->prompt_tokens; i++)
            prompt[i] = prompt_token(c, rep, s, i, r->bench->model->vocab_size);
        *request = (struct request){
            .id = s, .max_tokens = c->gen_tokens, .n_prompt = c->prompt_tokens, .prompt = prompt};
        sampling_defaults(&request->sampling);
        request->sampling.temperature = 0;
        request->sampling.ignore_eos = true;
        request->salt[0] = 'p';
        request->salt_len = plain;
        r->seen[s] = (struct seen){0};
        int rc = engine_submit(r->engine, request, err);
        if (rc) return rc;
    }
    return OK;
}

/* What became known of a sequence's tokens; gaps has room for all of a case. */
static void note(struct seen *seen, const struct seq_stats *stats, double *gaps, uint64_t *n_gaps) {
    if (stats->n_output == seen->n_output) return;
    uint32_t n = stats->n_output - seen->n_output;
    double ms = clock_ms(seen->last_us, stats->last_token_us) / n;
    for (uint32_t i = 0; seen->n_output && i < n; i++)
        gaps[(*n_gaps)++] = ms;
    seen->n_output = stats->n_output;
    seen->last_us = stats->last_token_us;
}

/* Take in what a step emitted; false when a sequence failed or ended early. */
static bool take_events(struct bench_runner *r, struct bench_case *c, double *gaps,
                        uint32_t *n_left) {
    bool well = true;
    struct event event;
    while (engine_next_event(r->engine, &event)) {
        struct seen *seen = &r->seen[event.id];
        if (event.kind != EVENT_FAILED) note(seen, &event.stats, gaps, &c->n_gaps);
        if (event.kind == EVENT_TOKENS) continue;
        seen->stats = event.stats;
        well = well && event.kind == EVENT_FINISHED && event.stats.n_output == c->gen_tokens;
        --*n_left;
    }
    return well;
}

static int timed_step(struct engine *engine, bool decodes, struct totals *totals) {
    uint64_t before[ENGINE_WORKS], after[ENGINE_WORKS], begun = clock_us();
    totals->has_work = engine_work_ns(engine, before);
    int more = engine_step(engine, begun);
    totals->step_us[decodes] += clock_us() - begun;
    if (!totals->has_work) return more;
    engine_work_ns(engine, after);
    for (int i = 0; i < ENGINE_WORKS; i++)
        totals->work_ns[decodes][i] += after[i] - before[i];
    return more;
}

/* sign -1 before, 1 after: the difference stays. */
static void count_forwards(struct totals *totals, const struct engine_gauges *gauges, int sign) {
    totals->draft_forwards += (uint64_t)sign * gauges->draft_forwards;
    for (int kind = 0; kind < FORWARD_KINDS; kind++) {
        totals->forwards[kind] += (uint64_t)sign * gauges->forwards[kind];
        totals->forward_s[kind] += sign * gauges->step_seconds[kind].sum;
    }
}

static int run_steps(struct bench_runner *r, struct bench_case *c, double *gaps,
                     struct totals *totals, struct err *err) {
    struct engine_gauges gauges;
    engine_gauges(r->engine, &gauges);
    uint64_t all_begun = gauges.generated_tokens + c->batch;
    count_forwards(totals, &gauges, -1);
    bool decoding = false;
    for (uint32_t n_left = c->batch; n_left;) {
        bool decodes = gauges.generated_tokens >= all_begun;
        /* The wait for the other prompts is no time between tokens. */
        for (uint32_t i = 0; decodes && !decoding && i < c->batch; i++)
            r->seen[i].last_us = clock_us();
        decoding = decodes;
        ++*(decodes ? &totals->decode_steps : &totals->prefill_steps);
        int more = timed_step(r->engine, decodes, totals);
        bool well = take_events(r, c, gaps, &n_left);
        const char *fault = engine_fault(r->engine);
        if (fault) return err_set(err, ERR_DEVICE, "the compute device failed: %s", fault);
        if (!well || more < 0 || (more == 0 && n_left))
            return err_set(err, ERR_DEVICE, "the engine could not finish a text");
        engine_gauges(r->engine, &gauges);
    }
    count_forwards(totals, &gauges, 1);
    return OK;
}

/* Speeds and times of one repetition, in the arrays of its case. */
struct rep_figures {
    double *prefill, *decode, *first_token; /* [reps] */
};

static void measure_rep(struct bench_runner *r, const struct bench_case *c, uint32_t rep,
                        uint64_t begun_us, const struct rep_figures *figures,
                        struct totals *totals) {
    uint64_t first_us = 0, last_us = 0;
    for (uint32_t s = 0; s < c->batch; s++) {
        const struct seq_stats *stats = &r->seen[s].stats;
        if (stats->first_token_us > first_us) first_us = stats->first_token_us;
        if (stats->last_token_us > last_us) last_us = stats->last_token_us;
        r->scratch[s] = clock_ms(begun_us, stats->first_token_us);
        totals->draft_passes += stats->draft_passes;
        totals->verify_passes += stats->verify_passes;
        totals->n_accepted += stats->n_accepted;
        totals->n_rejected += stats->n_rejected;
    }
    double prefill_s = clock_ms(begun_us, first_us) / 1000;
    double decode_s = clock_ms(first_us, last_us) / 1000;
    double n_prefill = (double)c->batch * c->prompt_tokens;
    double n_decode = (double)c->batch * (c->gen_tokens - 1);
    figures->prefill[rep] = prefill_s > 0 ? n_prefill / prefill_s : 0;
    figures->decode[rep] = decode_s > 0 ? n_decode / decode_s : 0;
    figures->first_token[rep] = spread_of(r->scratch, c->batch).median;
}

/* ---- the price of a token ---------------------------------------------------------------------- */

/* Positions that a base row attends, on average over positions 0 .. n - 1. */
static double mean_attended(const struct model_info *model, double n) {
    double w = model->window;
    if (w == 0 || w >= n) return (n + 1) / 2;
    return w - w * (w - 1) / (2 * n);
}

/* The whole of a phase from its two parts, all tokens together, and where its time went. */
static void sum_up(struct bench_phase *phase, const struct totals *t, bool decode) {
    phase->whole.bytes = phase->products.bytes + phase->attention.bytes;
    phase->whole.flops = phase->products.flops + phase->attention.flops;
    phase->seconds = (double)t->step_us[decode] * 1e-6;
    phase->has_work = t->has_work && phase->seconds > 0;
    if (!phase->has_work) return;
    phase->rest_share = 1;
    for (int i = 0; i < ENGINE_WORKS; i++) {
        phase->work_share[i] = (double)t->work_ns[decode][i] * 1e-9 / phase->seconds;
        phase->rest_share -= phase->work_share[i];
    }
}

static void price(const struct bench *bench, struct bench_case *c, const struct totals *t) {
    const struct model_costs *costs = &bench->costs;
    const struct engine_info *engine = bench->engine;
    double kv = (double)engine->kv_bytes / ((double)engine->n_pages * engine->page_tokens);
    bool streams = bench->model->window > 0;
    double n = c->prompt_tokens, attend = (double)costs->attend_flops;
    double n_texts = (double)c->batch * c->reps, tokens = n_texts * n;
    double last_row = (double)costs->head_flops + (streams ? (double)costs->output_flops : 0);
    struct bench_phase *prefill = &c->prefill, *decode = &c->decode;
    prefill->tokens = tokens;
    prefill->products.bytes = (double)t->prefill_steps * (double)costs->main_bytes / tokens;
    prefill->products.flops = (double)costs->base_flops + last_row / n;
    prefill->attention.bytes = kv;
    prefill->attention.flops = attend * (mean_attended(bench->model, n) + (streams ? 1 : 0));
    sum_up(prefill, t, false);
    if (c->gen_tokens < 2) return;

    double context = n + c->gen_tokens / 2.0;
    double near = streams && bench->model->window < context ? bench->model->window : context;
    double rows = (double)(t->verify_passes + t->n_accepted + t->n_rejected);
    double passes = (double)t->verify_passes, drafts = (double)t->draft_passes;
    double block = drafts > 0 ? 1 + (double)(t->n_accepted + t->n_rejected) / drafts : 0;
    double flops = rows * (double)(costs->base_flops + costs->head_flops);
    double attended = rows * near + drafts * block * (context + block);
    if (streams) {
        flops += rows * (double)costs->output_flops;
        attended += rows * context;
    }
    flops += drafts * (block * (double)costs->draft_flops +
                       (block - 1) * (double)costs->head_flops * (drafts > 0));
    double weights = (double)t->decode_steps * (double)costs->main_bytes +
                     (double)t->draft_forwards * (double)costs->draft_bytes;
    tokens = n_texts * (c->gen_tokens - 1);
    decode->tokens = tokens;
    decode->products.bytes = weights / tokens;
    decode->products.flops = flops / tokens;
    decode->attention.bytes = (passes + drafts) * kv * context / tokens;
    decode->attention.flops = attend * attended / tokens;
    sum_up(decode, t, true);
    c->tokens_per_forward = tokens / (passes + drafts);
    c->accepted_length = (double)(t->verify_passes + t->n_accepted) / passes;
}

/* ---- one case ---------------------------------------------------------------------------------- */

static bool fits(const struct bench *bench, struct bench_case *c) {
    const struct engine_info *engine = bench->engine;
    uint64_t len = (uint64_t)c->prompt_tokens + c->gen_tokens;
    /* The last block of drafts may reach beyond the text, and admission keeps a page in reserve. */
    uint64_t pages = (div_ceil(len + engine->draft_block, engine->page_tokens) + 1) * c->batch;
    if (len > engine->max_model_len)
        snprintf(c->skipped, sizeof c->skipped, "%llu tokens, the engine holds %u",
                 (unsigned long long)len, engine->max_model_len);
    else if (pages > engine->n_pages)
        snprintf(c->skipped, sizeof c->skipped, "%llu pages of KV, the pool has %u: --kv-memory",
                 (unsigned long long)pages, engine->n_pages);
    return !c->skipped[0];
}

/* What the repetitions leave until all are done. */
struct reps {
    double *gaps, *values;
    struct rep_figures figures;
    struct totals totals;
};

static int reps_init(struct reps *reps, const struct bench_case *c, struct err *err) {
    size_t n_gaps = (size_t)c->reps * c->batch * c->gen_tokens;
    *reps = (struct reps){.gaps = calloc(n_gaps, sizeof *reps->gaps),
                          .values = calloc((size_t)c->reps * 3, sizeof *reps->values)};
    if (!reps->gaps || !reps->values)
        return err_set(err, ERR_NOMEM, "no memory for %zu times", n_gaps);
    double *v = reps->values;
    reps->figures = (struct rep_figures){v, v + c->reps, v + 2 * (size_t)c->reps};
    return OK;
}

static void reps_fini(struct reps *reps) {
    free(reps->gaps);
    free(reps->values);
}

static int run_rep(struct bench_runner *r, struct bench_case *c, uint32_t rep, bool plain,
                   struct reps *reps, struct err *err) {
    reps->totals.read_rates += model_meter_rate(r->model, r->meter);
    uint64_t begun_us = clock_us();
    engine_pause_drafts(r->engine, plain);
    int rc = submit(r, c, rep, plain, err);
    if (rc == OK) rc = run_steps(r, c, reps->gaps, &reps->totals, err);
    if (rc == OK) measure_rep(r, c, rep, begun_us, &reps->figures, &reps->totals);
    reps->totals.read_rates += model_meter_rate(r->model, r->meter);
    engine_pause_drafts(r->engine, false);
    return rc;
}

/* With pairs: A B B A, so that neither gains by a machine that grows slower or faster. */
static int run_reps(struct bench_runner *r, struct bench_case *c, struct reps *drafting,
                    struct reps *plain, struct err *err) {
    struct bench_case aside = *c; /* takes what is not told of the plain ones */
    bool paired = r->bench->paired;
    int rc = OK;
    for (uint32_t rep = 0; rc == OK && rep < c->reps; rep++) {
        bool plain_first = paired && rep % 2 == 0;
        if (plain_first) rc = run_rep(r, &aside, rep, true, plain, err);
        if (rc == OK) rc = run_rep(r, c, rep, false, drafting, err);
        if (rc == OK && paired && !plain_first) rc = run_rep(r, &aside, rep, true, plain, err);
    }
    return rc;
}

static int compare(struct bench_case *c, const double *drafting, double *plain, struct err *err) {
    struct bench_paired *p = &c->paired;
    double *sorted = calloc(c->reps, sizeof *sorted);
    p->ratios = calloc(c->reps, sizeof *p->ratios);
    int rc = sorted && p->ratios ? OK : err_set(err, ERR_NOMEM, "no memory for %u pairs", c->reps);
    for (uint32_t i = 0; rc == OK && i < c->reps; i++)
        sorted[i] = p->ratios[i] = plain[i] > 0 ? drafting[i] / plain[i] : 0;
    if (rc == OK) {
        p->median = spread_of(sorted, c->reps).median;
        p->q1 = percentile(sorted, c->reps, 0.25);
        p->q3 = percentile(sorted, c->reps, 0.75);
        p->plain_tokens_per_s = spread_of(plain, c->reps);
    }
    free(sorted);
    return rc;
}

static void summarise(struct bench_case *c, struct reps *reps) {
    const struct totals *t = &reps->totals;
    qsort(reps->gaps, c->n_gaps, sizeof *reps->gaps, ascending);
    c->gap_ms_p50 = percentile(reps->gaps, c->n_gaps, 0.50);
    c->gap_ms_p95 = percentile(reps->gaps, c->n_gaps, 0.95);
    c->gap_ms_p99 = percentile(reps->gaps, c->n_gaps, 0.99);
    c->prefill.tokens_per_s = spread_of(reps->figures.prefill, c->reps);
    c->decode.tokens_per_s = spread_of(reps->figures.decode, c->reps);
    c->first_token_ms = spread_of(reps->figures.first_token, c->reps);
    c->read_bytes_per_s = t->read_rates / (2.0 * c->reps);
    c->prompt_total = (uint64_t)c->prompt_tokens * c->batch * c->reps;
    c->output_total = (uint64_t)c->gen_tokens * c->batch * c->reps;
    for (int kind = 0; kind < FORWARD_KINDS; kind++)
        if (t->forwards[kind])
            c->forward_ms[kind] = t->forward_s[kind] * 1e3 / (double)t->forwards[kind];
}

int bench_run(struct bench_runner *r, struct bench_case *c, struct err *err) {
    if (!fits(r->bench, c)) return OK;
    struct reps drafting, plain = {0};
    int rc = reps_init(&drafting, c, err);
    if (rc == OK && r->bench->paired) rc = reps_init(&plain, c, err);
    if (rc == OK) rc = run_reps(r, c, &drafting, &plain, err);
    if (rc == OK && r->bench->paired)
        rc = compare(c, drafting.figures.decode, plain.figures.decode, err);
    if (rc == OK) {
        price(r->bench, c, &drafting.totals);
        summarise(c, &drafting);
    }
    reps_fini(&drafting);
    reps_fini(&plain);
    return rc;
}

void bench_case_fini(struct bench_case *c) {
    free(c->paired.ratios);
}
