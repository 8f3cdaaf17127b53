#include "engine/counters.h"

/* Seconds of a forward, and between two tokens. */
static const double TIMES[] = {.001, .0025, .005, .01, .015, .02, .025, .03,
                               .04,  .05,   .075, .1,  .2,   .4,  1,    2.5};
static const double LENGTHS[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
_Static_assert(ARRAY_LEN(TIMES) <= HISTOGRAM_BOUNDS_MAX, "raise HISTOGRAM_BOUNDS_MAX");

#define MICRO 1e-6

static uint32_t bucket_of(const double *bounds, uint32_t n_bounds, double value) {
    uint32_t i = 0;
    while (i < n_bounds && value > bounds[i])
        i++;
    return i;
}

void histogram_observe(struct histogram *histogram, double value, uint64_t times) {
    histogram->counts[bucket_of(histogram->bounds, histogram->n_bounds, value)] += times;
    histogram->sum += value * (double)times;
}

/* ---- the engine's side ------------------------------------------------------------------------- */

static void add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void counters_forward(struct counters *counters, enum forward_kind kind, uint64_t took_us) {
    struct live_histogram *h = &counters->step_us[kind];
    add(&h->counts[bucket_of(TIMES, ARRAY_LEN(TIMES), (double)took_us * MICRO)], 1);
    add(&h->sum, took_us);
}

void counters_inter_token(struct counters *counters, uint64_t gap_us, uint32_t k) {
    struct live_histogram *h = &counters->inter_token_us;
    add(&h->counts[bucket_of(TIMES, ARRAY_LEN(TIMES), (double)gap_us * MICRO / k)], k);
    add(&h->sum, gap_us);
}

void counters_accepted_length(struct counters *counters, uint32_t n_tokens) {
    struct live_histogram *h = &counters->accepted_length;
    add(&h->counts[bucket_of(LENGTHS, ARRAY_LEN(LENGTHS), n_tokens)], 1);
    add(&h->sum, n_tokens);
}

/* ---- a snapshot -------------------------------------------------------------------------------- */

static uint64_t load(const _Atomic uint64_t *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void read_histogram(const struct live_histogram *h, double unit, struct histogram *out) {
    for (uint32_t i = 0; i <= out->n_bounds; i++)
        out->counts[i] = load(&h->counts[i]);
    out->sum = (double)load(&h->sum) * unit;
}

static uint64_t count_of(const struct histogram *h) {
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->n_bounds; i++)
        n += h->counts[i];
    return n;
}

void counters_read(const struct counters *c, struct engine_gauges *out) {
    *out = (struct engine_gauges){
        .inter_token_seconds = {.bounds = TIMES, .n_bounds = ARRAY_LEN(TIMES)},
        .accepted_length = {.bounds = LENGTHS, .n_bounds = ARRAY_LEN(LENGTHS)},
    };
    for (int kind = 0; kind < FORWARD_KINDS; kind++)
        out->step_seconds[kind] = (struct histogram){.bounds = TIMES, .n_bounds = ARRAY_LEN(TIMES)};
    if (!c) return;
    uint64_t taken = load(&c->taken), submitted = load(&c->submitted);
    uint64_t on_the_way = submitted > taken ? submitted - taken : 0;
    out->running = c->running;
    out->waiting = c->waiting + (uint32_t)on_the_way;
    out->pages_used = c->pages_used;
    out->pages_cached = c->pages_cached;
    out->batch_sequences = c->batch_sequences;
    out->batch_tokens = c->batch_tokens;
    out->failed = c->failed;
    out->last_step_us = load(&c->last_step_us);
    out->steps = load(&c->steps);
    out->draft_forwards = load(&c->draft_forwards);
    out->main_forwards = load(&c->main_forwards);
    out->prompt_tokens = load(&c->prompt_tokens);
    out->generated_tokens = load(&c->generated_tokens);
    out->proposed_tokens = load(&c->proposed_tokens);
    out->accepted_tokens = load(&c->accepted_tokens);
    out->draft_length = c->draft_length;
    out->draft_acceptance = c->draft_acceptance;
    out->preemptions = load(&c->preemptions);
    out->page_evictions = load(&c->page_evictions);
    out->prefix_query_tokens = load(&c->prefix_query_tokens);
    out->prefix_hit_tokens = load(&c->prefix_hit_tokens);
    for (uint32_t i = 0; i < DRAFT_POSITIONS_MAX; i++)
        out->accepted_position[i] = load(&c->accepted_position[i]);
    for (int kind = 0; kind < FORWARD_KINDS; kind++) {
        read_histogram(&c->step_us[kind], MICRO, &out->step_seconds[kind]);
        out->forwards[kind] = count_of(&out->step_seconds[kind]);
    }
    read_histogram(&c->inter_token_us, MICRO, &out->inter_token_seconds);
    read_histogram(&c->accepted_length, 1, &out->accepted_length);
}
