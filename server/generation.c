/* generation.c: a request's sequences in the engine.
 *
 *   prompts   p0        p1             one group of sequences each, which shares the prompt's pages
 *   choices   0 1 2     3 4 5          index = prompt x n + choice; the engine knows each by its own
 *                                      number (live.h)
 */
#include "server/generation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "server/clock.h"
#include "server/front.h"
#include "server/ids.h"
#include "server/live.h"
#include "server/metrics.h"

enum {
    WAKES_PER_TURN = 256,
    EVENTS_PER_TURN = 4096,
};

/* One sequence of the request. */
struct choice {
    uint64_t id;      /* in the engine; 0 = ended */
    bool prompt_sent; /* in a chunk */
    struct buf text;  /* whole answers only */
    struct tokens ids;
    struct seq_stats stats;
    enum finish_reason finish;
    int32_t stop_index, stop_id;
};

struct generation {
    struct api_request request;
    struct answer_head head;
    char id[64];
    uint64_t seed, submitted_us, first_us;
    struct tokens *prompts; /* with return_token_ids, else NULL */
    bool admitted, ended;
    uint64_t first_at; /* a stream's byte that begins the first token, until it is handed out */
    enum metrics_reason reason; /* once ended */
    bool asked_queue_timeout;
    uint32_t n_prompts, n_choices, n_running;
    struct choice choices[]; /* [n_choices]: n of each prompt */
};

/* ---- usage ----------------------------------------------------------------------------------- */

/* Of one prompt's tokens, those that were stored before the request: what the choice that started first
 * found. The others may find what that one computed. */
static uint32_t n_cached(const struct choice *choices, uint32_t n) {
    const struct seq_stats *first = NULL;
    for (uint32_t i = 0; i < n; i++) {
        const struct seq_stats *stats = &choices[i].stats;
        if (stats->started_us && (!first || stats->started_us < first->started_us)) first = stats;
    }
    return first ? first->n_cached : 0;
}

/* Prompts count once each, whatever n is. */
static struct usage usage_of(const struct generation *gen) {
    struct usage usage = {0};
    const uint32_t n = gen->request.n;
    for (uint32_t i = 0; i < gen->n_choices; i += n) {
        usage.prompt_tokens += gen->choices[i].stats.n_prompt;
        usage.cached_tokens += n_cached(&gen->choices[i], n);
    }
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const struct seq_stats *stats = &gen->choices[i].stats;
        usage.completion_tokens += stats->n_output;
        usage.accepted_tokens += stats->n_accepted;
        usage.rejected_tokens += stats->n_rejected;
    }
    return usage;
}

/* The prompt of choice i, until a chunk of that choice has said it; empty where nobody asked. */
static const struct tokens *prompt_to_send(const struct generation *gen, uint32_t i) {
    static const struct tokens none = {0};
    bool wanted = gen->prompts && !gen->choices[i].prompt_sent;
    return wanted ? &gen->prompts[i / gen->request.n] : &none;
}

/* ---- admission ------------------------------------------------------------------------------- */

static void request_free(struct request *request) {
    if (!request) return;
    free(request->prompt);
    free(request->sampling.bias);
    free(request);
}

/* No longer interested in what still runs. */
static void detach(struct exchange *ex) {
    struct generation *gen = ex->generation;
    if (!gen) return;
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        struct choice *choice = &gen->choices[i];
        if (!choice->id) continue;
        struct live_place *place = live_find(ex->server->live, choice->id);
        if (place) place->exchange = NULL;
        engine_cancel(ex->server->engine, choice->id);
        choice->id = 0;
    }
    gen->n_running = 0;
}

/* NULL: also where there is nothing to copy. */
static void *copy_of(const void *from, size_t bytes) {
    void *copy = bytes ? malloc(bytes) : NULL;
    if (copy) memcpy(copy, from, bytes);
    return copy;
}

/* Choice i of the request, with a prompt and a bias of its own. */
static struct request *make_request(const struct generation *gen, uint32_t i,
                                    const struct tokens *prompt) {
    const struct api_request *wants = &gen->request;
    struct request *request = calloc(1, sizeof *request);
    if (!request) return NULL;
    request->sampling = wants->sampling;
    request->prompt = copy_of(prompt->ids, prompt->n * sizeof *prompt->ids);
    request->sampling.bias =
        copy_of(wants->sampling.bias, wants->sampling.n_bias * sizeof *wants->sampling.bias);
    if (!request->prompt || (wants->sampling.n_bias && !request->sampling.bias)) {
        request_free(request);
        return NULL;
    }
    const int64_t max_tokens = wants->max_tokens;
    const uint32_t prompt_idx = i / wants->n;
    request->choice = i % wants->n;
    /* The number of the prompt's first choice; 0 in that one, which has no number yet. */
    request->group = wants->n > 1 ? gen->choices[prompt_idx * wants->n].id : 0;
    request->priority = wants->priority;
    request->salt_len = (uint8_t)wants->cache_salt_len;
    memcpy(request->salt, wants->cache_salt, wants->cache_salt_len);
    request->max_tokens =
        max_tokens < 0 || max_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)max_tokens;
    /* Without a client's seed, equal prompts of one request must not give equal texts. */
    request->sampling.seed = wants->sampling.has_seed ? gen->seed : gen->seed + prompt_idx;
    request->n_prompt = prompt->n;
    return request;
}

static int submit_one(struct exchange *ex, uint32_t i, const struct tokens *prompt,
                      struct api_error *error) {
    struct generation *gen = ex->generation;
    struct server *server = ex->server;
    struct choice *choice = &gen->choices[i];
    struct err err = {0};
    struct request *request = make_request(gen, i, prompt);
    if (!request)
        return api_error_set(error, API_INTERNAL_ERROR, NULL, "no memory for the request");
    uint64_t id = live_take(server->live, ex, i, clock_us());
    request->id = id;
    if (gen->request.n > 1 && !request->group) request->group = id;
    int rc = engine_submit(server->engine, request, &err);
    if (!rc) {
        choice->id = id;
        choice->stats.n_prompt = prompt->n;
        gen->n_running++;
        return OK;
    }
    live_free(server->live, id);
    request_free(request);
    switch (rc) {
    case ERR_FULL:
        return api_error_set(error, API_QUEUE_FULL, NULL, "the waiting line is full: %s", err.msg);
    case ERR_TOO_LONG:
        return api_error_set(error, API_CONTEXT_LENGTH_EXCEEDED, NULL, "%s", err.msg);
    case ERR_INVALID:
        return api_error_set(error, API_INVALID_VALUE, NULL, "%s", err.msg);
    case ERR_DEVICE:
        server_engine_failed(server);
        return api_error_set(error, API_ENGINE_FAILED, NULL, "the engine has failed");
    default:
        return api_error_set(error, API_INTERNAL_ERROR, NULL, "the request could not be admitted");
    }
}

static struct generation *create(struct exchange *ex, struct api_request *request,
                                 uint32_t n_prompts) {
    uint32_t n = request->n * n_prompts;
    struct generation *gen = calloc(1, sizeof *gen + n * sizeof gen->choices[0]);
    if (!gen) return NULL;
    gen->request = *request;
    gen->n_prompts = n_prompts;
    gen->n_choices = n;
    gen->seed = request->sampling.has_seed ? request->sampling.seed : ids_seed();
    if (ex->server->options->seeded_by_default) gen->request.sampling.has_seed = true;
    ids_completion(request->kind == ROUTE_CHAT ? "chatcmpl-" : "cmpl-", gen->id, sizeof gen->id);
    gen->head = (struct answer_head){
        .kind = request->kind,
        .id = gen->id,
        .created = clock_unix(),
        .model = gen->request.model,
        .fingerprint = ex->server->fingerprint,
        .include_usage = request->include_usage,
        .return_token_ids = request->return_token_ids,
    };
    for (uint32_t i = 0; i < n; i++)
        gen->choices[i].stop_index = gen->choices[i].stop_id = -1;
    ex->generation = gen;
    return gen;
}

/* All of the request's sequences, or an error; then some may be in the engine still. */
static int admit(struct exchange *ex, const struct tokens *prompts, struct api_error *error) {
    struct generation *gen = ex->generation;
    const struct live *live = ex->server->live;
    const uint32_t n = gen->n_choices, n_live = live_n(live), cap = live_cap(live);
    if (server_unavailable(ex->server, error)) return ERR_FULL;
    if (n > cap)
        return api_error_set(error, API_INVALID_VALUE, gen->request.n > 1 ? "n" : "prompt",
                             "n times prompts is %u, this server takes at most %u sequences", n,
                             cap);
    if (n > cap - n_live)
        return api_error_set(error, API_QUEUE_FULL, NULL,
                             "the server is busy: %u of %u sequences are running or waiting",
                             n_live, cap);
    gen->submitted_us = clock_us();
    for (uint32_t i = 0; i < n; i++) {
        int rc = submit_one(ex, i, &prompts[i / gen->request.n], error);
        if (rc) return rc;
    }
    return OK;
}

/* Chat streams begin with a chunk per choice. */
static void send_roles(struct exchange *ex) {
    struct generation *gen = ex->generation;
    struct usage usage = usage_of(gen);
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const struct tokens *prompt = prompt_to_send(gen, i);
        proto_chunk_role(&ex->out, &gen->head, i, prompt->ids, prompt->n,
                         gen->request.continuous_usage_stats ? &usage : NULL);
        gen->choices[i].prompt_sent = true;
    }
    exchange_out(ex);
}

/* Take the prompts; NULL: no memory. */
static struct tokens *take_prompts(struct tokens *prompts, uint32_t n) {
    struct tokens *taken = copy_of(prompts, n * sizeof *prompts);
    if (taken) memset(prompts, 0, n * sizeof *prompts);
    return taken;
}

void generation_begin(struct exchange *ex, struct api_request *request, struct tokens *prompts,
                      uint32_t n_prompts) {
    struct api_error error;
    struct generation *gen = create(ex, request, n_prompts);
    if (!gen) {
        api_request_free(request);
        api_error_set(&error, API_INTERNAL_ERROR, NULL, "no memory for the request");
        exchange_refuse(ex, &error);
        return;
    }
    int rc = admit(ex, prompts, &error);
    if (!rc && gen->request.return_token_ids) {
        gen->prompts = take_prompts(prompts, n_prompts);
        if (!gen->prompts)
            rc = api_error_set(&error, API_INTERNAL_ERROR, NULL, "no memory for the request");
    }
    if (rc) {
        detach(ex); /* those of its sequences that got in */
        exchange_refuse(ex, &error);
        return;
    }
    gen->admitted = true;
    ex->state = EXCHANGE_RUNNING;
    if (!gen->request.stream) return;
    exchange_begin_sse(ex);
    if (gen->request.kind == ROUTE_CHAT) send_roles(ex);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Several sequences of one request: from the first that moved to the last; counts are sums, cached
 * tokens those of usage. */
static struct timings timings_of(const struct exchange *ex) {
    const struct generation *gen = ex->generation;
    struct timings t = {0};
    uint64_t submitted = UINT64_MAX, started = UINT64_MAX, first = UINT64_MAX, last = 0;
    uint64_t n_output = 0, n_accepted = 0;
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        const struct seq_stats *s = &gen->choices[i].stats;
        if (s->submitted_us && s->submitted_us < submitted) submitted = s->submitted_us;
        if (s->started_us && s->started_us < started) started = s->started_us;
        if (s->first_token_us && s->first_token_us < first) first = s->first_token_us;
        if (s->last_token_us > last) last = s->last_token_us;
        t.prefill_passes += s->prefill_passes;
        t.draft_passes += s->draft_passes;
        t.verify_passes += s->verify_passes;
        t.preemptions += s->preemptions;
        n_output += s->n_output;
        n_accepted += s->n_accepted;
    }
    t.cached_tokens = usage_of(gen).cached_tokens;
    if (started != UINT64_MAX) t.queue_ms = clock_ms(submitted, started);
    if (first != UINT64_MAX) {
        t.prefill_ms = started != UINT64_MAX ? clock_ms(started, first) : 0;
        t.ttft_ms = clock_ms(ex->arrived_us, gen->submitted_us) + clock_ms(submitted, first);
        t.decode_ms = clock_ms(first, last);
    }
    if (t.decode_ms > 0 && n_output > gen->n_choices)
        t.tokens_per_second = (double)(n_output - gen->n_choices) * 1000.0 / t.decode_ms;
    if (t.verify_passes)
        t.mean_accepted_length = (double)(n_accepted + t.verify_passes) / (double)t.verify_passes;
    return t;
}

/* ---- what is counted ------------------------------------------------------------------------- */

static enum metrics_reason reason_of(const struct generation *gen) {
    for (uint32_t i = 0; i < gen->n_choices; i++)
        if (gen->choices[i].finish == FINISH_LENGTH) return REASON_LENGTH;
    return REASON_STOP;
}

/* Stages are known of requests that ended by themselves. */
static void count_stages(const struct exchange *ex) {
    struct usage usage = usage_of(ex->generation);
    struct timings timings = timings_of(ex);
    struct metrics_request request = {
        .queue = timings.queue_ms / 1000,
        .prefill = timings.prefill_ms / 1000,
        .decode = timings.decode_ms / 1000,
        .whole = clock_ms(ex->arrived_us, clock_us()) / 1000,
        .prompt_tokens = usage.prompt_tokens,
        .generation_tokens = usage.completion_tokens,
    };
    metrics_request(ex->server->metrics, &request);
}

/* An admitted request ends once, for the first reason given. */
static void note_end(struct exchange *ex, enum metrics_reason reason) {
    struct generation *gen = ex->generation;
    if (!gen || !gen->admitted || gen->ended) return;
    gen->ended = true;
    gen->reason = reason;
    metrics_finished(ex->server->metrics, reason, usage_of(gen).cached_tokens);
    if (reason <= REASON_TOOL_CALLS) count_stages(ex);
}

/* Whole answers: when the engine had the first token. Streams: when its bytes leave. */
static void note_first_token(struct exchange *ex, const struct event *event) {
    struct generation *gen = ex->generation;
    if (gen->first_us || gen->first_at || !event->stats.n_output) return;
    if (gen->request.stream) { /* its chunk comes next, behind what is still to be handed out */
        if (event->text_len || event->n_tokens || event->kind == EVENT_FINISHED)
            gen->first_at = ex->n_handed + (ex->out.len - ex->out_at) + 1;
        return;
    }
    gen->first_us = event->stats.first_token_us;
    metrics_first_token(ex->server->metrics, clock_ms(ex->arrived_us, gen->first_us) / 1000);
}

void generation_handed_over(struct exchange *ex) {
    struct generation *gen = ex->generation;
    if (!gen || !gen->first_at || ex->n_handed < gen->first_at) return;
    gen->first_at = 0;
    gen->first_us = clock_us();
    metrics_first_token(ex->server->metrics, clock_ms(ex->arrived_us, gen->first_us) / 1000);
}

/* ---- whole answers and chunks ---------------------------------------------------------------- */

static struct answer_choice describe(const struct generation *gen, uint32_t i) {
    const struct choice *choice = &gen->choices[i];
    const struct sampling *sampling = &gen->request.sampling;
    struct answer_choice out = {
        .index = i,
        .text = choice->text.data ? choice->text.data : "",
        .text_len = choice->text.len,
        .finish_reason = choice->finish == FINISH_LENGTH ? "length" : "stop",
        .stop_id = choice->stop_id,
    };
    if (gen->request.return_token_ids) {
        out.token_ids = choice->ids.ids;
        out.n_token_ids = choice->ids.n;
        out.prompt_ids = prompt_to_send(gen, i)->ids;
        out.n_prompt_ids = prompt_to_send(gen, i)->n;
    }
    if (choice->stop_index >= 0 && (uint32_t)choice->stop_index < sampling->n_stop) {
        out.stop_text = sampling->stop[choice->stop_index].text;
        out.stop_len = sampling->stop[choice->stop_index].len;
    }
    return out;
}

static void answer_whole(struct exchange *ex) {
    struct generation *gen = ex->generation;
    struct usage usage = usage_of(gen);
    struct timings timings = timings_of(ex);
    struct buf body = {0};
    struct answer_choice *choices = calloc(gen->n_choices, sizeof *choices);
    bool lost = !choices;
    for (uint32_t i = 0; i < gen->n_choices && !lost; i++) {
        lost = gen->choices[i].text.failed;
        choices[i] = describe(gen, i);
    }
    if (!lost)
        proto_answer(&body, &gen->head, choices, gen->n_choices, &usage,
                     gen->request.return_timings ? &timings : NULL);
    free(choices);
    if (lost || body.failed) {
        struct api_error error;
        buf_free(&body);
        api_error_set(&error, API_INTERNAL_ERROR, NULL, "no memory for the answer");
        exchange_refuse(ex, &error);
        return;
    }
    exchange_answer(ex, 200, &body);
}

/* What follows the last finish chunk. */
static void end_sse(struct exchange *ex) {
    struct generation *gen = ex->generation;
    if (gen->request.include_usage) {
        struct usage usage = usage_of(gen);
        struct timings timings = timings_of(ex);
        proto_chunk_usage(&ex->out, &gen->head, &usage,
                          gen->request.return_timings ? &timings : NULL);
    }
    proto_sse_done(&ex->out);
    ex->out_ended = true;
    ex->state = EXCHANGE_DONE;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void send_text(struct exchange *ex, uint32_t i, const struct event *event) {
    struct generation *gen = ex->generation;
    struct usage usage;
    const struct tokens *prompt = prompt_to_send(gen, i);
    bool with_usage = gen->request.continuous_usage_stats;
    if (with_usage) usage = usage_of(gen);
    proto_chunk_text(&ex->out, &gen->head, i, event->text, event->text_len, event->tokens,
                     event->n_tokens, prompt->ids, prompt->n, with_usage ? &usage : NULL);
    gen->choices[i].prompt_sent = true;
}

/* Text that became final; it may come with the ending event too. */
static void take_text(struct exchange *ex, uint32_t i, const struct event *event) {
    struct generation *gen = ex->generation;
    struct choice *choice = &gen->choices[i];
    choice->stats = event->stats;
    note_first_token(ex, event);
    bool late_ids = gen->request.stream && !event->text_len && event->kind == EVENT_FINISHED;
    if (gen->request.return_token_ids && (!gen->request.stream || late_ids))
        for (uint32_t k = 0; k < event->n_tokens; k++)
            if (tokens_push(&choice->ids, event->tokens[k])) choice->text.failed = true;
    if (gen->request.stream) {
        if (event->text_len || (event->n_tokens && !late_ids)) send_text(ex, i, event);
    } else {
        buf_add(&choice->text, event->text, event->text_len);
    }
}

static void finish_choice(struct exchange *ex, uint32_t i, const struct event *event) {
    struct generation *gen = ex->generation;
    struct choice *choice = &gen->choices[i];
    choice->finish = event->finish;
    choice->stop_index = event->stop_index;
    choice->stop_id = event->stop_id;
    choice->id = 0;
    bool last = --gen->n_running == 0;
    if (last) note_end(ex, reason_of(gen));
    if (gen->request.stream) {
        struct answer_choice described = describe(gen, i);
        struct usage usage = usage_of(gen);
        struct timings timings = timings_of(ex);
        bool here = last && gen->request.return_timings && !gen->request.include_usage;
        proto_chunk_finish(&ex->out, &gen->head, &described,
                           gen->request.continuous_usage_stats ? &usage : NULL,
                           here ? &timings : NULL);
        choice->prompt_sent = true;
        if (last) end_sse(ex);
    } else if (last) {
        answer_whole(ex);
    }
}

void generation_fail(struct exchange *ex, const struct api_error *error) {
    if (ex->has_answer || ex->out_ended || ex->out_failed) return;
    front_forget(ex);
    detach(ex);
    note_end(ex, REASON_ERROR);
    if (!ex->is_sse) {
        exchange_refuse(ex, error);
        return;
    }
    ex->code = error->code;
    proto_sse_error(&ex->out, error);
    ex->out_failed = true;
    ex->state = EXCHANGE_DONE;
    exchange_out(ex);
}

static void fail_event(struct exchange *ex, const struct event *event) {
    struct api_error error;
    if (event->error == ERR_DEVICE)
        api_error_set(&error, API_INTERNAL_ERROR, NULL, "the compute device failed");
    else
        api_error_set(&error, API_INTERNAL_ERROR, NULL, "the engine could not finish the request");
    generation_fail(ex, &error);
}

static void queue_timed_out(struct exchange *ex) {
    struct api_error error;
    api_error_set(&error, API_QUEUE_TIMEOUT, NULL,
                  "the request waited for its turn longer than %g s",
                  ex->server->options->queue_timeout);
    generation_fail(ex, &error);
}

/* One event for a living exchange. */
static void hand_on(struct exchange *ex, uint32_t i, const struct event *event) {
    struct generation *gen = ex->generation;
    switch (event->kind) {
    case EVENT_TOKENS:
        take_text(ex, i, event);
        break;
    case EVENT_FINISHED:
        if (event->finish == FINISH_CANCELLED) {
            gen->choices[i].id = 0;
            gen->choices[i].stats = event->stats;
            queue_timed_out(ex); /* nothing else cancels what somebody waits for */
            return;
        }
        take_text(ex, i, event);
        finish_choice(ex, i, event);
        break;
    case EVENT_FAILED:
        gen->choices[i].id = 0;
        gen->choices[i].stats = event->stats;
        fail_event(ex, event);
        return;
    }
    if (ex->is_sse) exchange_out(ex);
}

bool generation_deliver(struct server *server) {
    struct event event;
    uint32_t n_wakes = 0;
    for (uint32_t n = 0; n < EVENTS_PER_TURN; n++) {
        if (n_wakes >= WAKES_PER_TURN) return true;
        if (!engine_next_event(server->engine, &event)) return false;
        struct live_place *place = live_find(server->live, event.id);
        ASSERT(place); /* the engine reports only what was submitted and not yet ended */
        struct exchange *ex = place->exchange;
        uint32_t choice = place->choice;
        bool was_suspended = ex && ex->suspended;
        if (event.kind != EVENT_TOKENS) {
            live_free(server->live, event.id);
            live_note_ended(server->live, clock_us());
        }
        if (event.kind == EVENT_FAILED && event.error == ERR_DEVICE) server_engine_failed(server);
        if (ex) hand_on(ex, choice, &event);
        if (ex && was_suspended && !ex->suspended) n_wakes++;
        request_free(event.request);
    }
    return true;
}

/* ---- onlookers ------------------------------------------------------------------------------- */

void generation_write_slots(const struct server *server, struct buf *out) {
    static const char *const STATES[] = {
        [SLOT_WAITING] = "waiting",
        [SLOT_PREFILL] = "prefill",
        [SLOT_DECODE] = "decode",
        [SLOT_PREEMPTED] = "preempted",
    };
    uint32_t cap = live_n(server->live);
    struct engine_slot *slots = calloc(cap + 1, sizeof *slots);
    struct slot_card *cards = calloc(cap + 1, sizeof *cards);
    uint32_t n = slots && cards ? engine_slots(server->engine, slots, cap) : 0;
    uint64_t now_us = clock_us();
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_slot *slot = &slots[i];
        const struct live_place *place = live_find(server->live, slot->id);
        bool waited_for = place && place->exchange;
        cards[i] = (struct slot_card){
            .id = (uint32_t)slot->id,
            .request_id = waited_for ? place->exchange->request_id : NULL,
            .state = STATES[slot->state],
            .prompt_tokens = slot->n_prompt,
            .cached_tokens = slot->n_cached,
            .output_tokens = slot->n_output,
            .pages = slot->n_pages,
            .age_ms = (uint64_t)clock_ms(slot->submitted_us, now_us),
        };
        if (slot->n_passes)
            cards[i].mean_accepted_length =
                (double)(slot->n_accepted + slot->n_passes) / slot->n_passes;
    }
    if (slots && cards)
        proto_slots(out, cards, n);
    else
        out->failed = true;
    free(slots);
    free(cards);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void generation_abandon(struct exchange *ex) {
    detach(ex);
    note_end(ex, REASON_ABORT);
}

void generation_free(struct exchange *ex) {
    struct generation *gen = ex->generation;
    if (!gen) return;
    ASSERT(!gen->n_running);
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        buf_free(&gen->choices[i].text);
        tokens_free(&gen->choices[i].ids);
    }
    for (uint32_t i = 0; gen->prompts && i < gen->n_prompts; i++)
        tokens_free(&gen->prompts[i]);
    free(gen->prompts);
    api_request_free(&gen->request);
    free(gen);
    ex->generation = NULL;
}

void generation_tick(struct exchange *ex, uint64_t now_us) {
    const struct options *options = ex->server->options;
    struct generation *gen = ex->generation;
    double age = clock_ms(ex->arrived_us, now_us) / 1000;
    if (options->request_timeout > 0 && age > options->request_timeout) {
        struct api_error error;
        api_error_set(&error, API_DEADLINE, NULL, "the request took longer than %g s",
                      options->request_timeout);
        generation_fail(ex, &error);
    } else if (options->queue_timeout > 0 && age > options->queue_timeout && gen &&
               !gen->asked_queue_timeout) {
        /* A request's turn has come when its first sequence starts; the others may wait for that one
         * and its like. Only the engine knows what has started: it cancels what has not, and tells. */
        gen->asked_queue_timeout = true;
        if (gen->choices[0].id) engine_cancel_waiting(ex->server->engine, gen->choices[0].id);
    }
}

size_t generation_log_fields(const struct exchange *ex, struct log_field *fields, size_t cap) {
    const struct generation *gen = ex->generation;
    if (!gen || cap < 12) return 0;
    struct usage usage = usage_of(gen);
    struct timings timings = timings_of(ex);
    size_t n = 0;
    fields[n++] = log_str("stream", gen->request.stream ? "true" : "false");
    fields[n++] = log_int("choices", gen->n_choices);
    fields[n++] = log_int("prompt_tokens", (int64_t)usage.prompt_tokens);
    fields[n++] = log_int("cached_tokens", (int64_t)usage.cached_tokens);
    fields[n++] = log_int("completion_tokens", (int64_t)usage.completion_tokens);
    fields[n++] = log_int("accepted_tokens", (int64_t)usage.accepted_tokens);
    fields[n++] = log_str("finish", gen->ended ? metrics_reason_name(gen->reason) : NULL);
    fields[n++] = log_real("queue_ms", timings.queue_ms);
    fields[n++] = log_real("ttft_ms", gen->first_us ? clock_ms(ex->arrived_us, gen->first_us) : 0);
    fields[n++] = log_real("tokens_per_second", timings.tokens_per_second);
    /* A drawn seed reproduces the text only when sent as `seed`: seeded draws use another rule, unless
     * this request was drawn by it already. */
    fields[n++] = log_int("seed", (int64_t)gen->seed);
    fields[n++] = log_str("seed_note", gen->request.sampling.has_seed
                                           ? NULL
                                           : "drawn; reproduces a text only when sent as seed");
    return n;
}
