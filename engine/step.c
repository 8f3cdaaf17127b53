/* step.c: one step of the engine: drain commands, plan, run the two forwards of a cycle, take in
 * what they yielded, emit events. Nothing here waits, and nothing allocates. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"

enum {
    STEP_TARGET_US = 100000,   /* prefill is cut so that a step lasts about this long at most, */
    DECODE_TARGET_US = 50000,  /* and shorter while texts go on, which all wait for the step */
    PREFILL_ROWS_MEASURED = 8, /* steps with fewer prefill rows say nothing about their price, */
    DEVICE_ROWS_MEASURED = 64, /* and on a device, which reads all weights for one row as well */
    CHECKED_PAGES = 1 << 16,   /* a pool of so many is walked after every step */
};

static void add(_Atomic uint64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- events ------------------------------------------------------------------------------------ */

/* What a sequence's end looks like. */
struct ending {
    enum event_kind kind;
    enum finish_reason finish;
    int32_t stop_index, stop_id;
    int error;
};

static void push_event(struct engine *engine, struct sequence *seq, const struct text_chunk *chunk,
                       const struct ending *ending) {
    size_t bytes = sizeof(struct event_record) + chunk->text_len;
    struct event_record *record = ring_reserve(engine->events, bytes);
    ASSERT(record); /* step_run made sure of the room */
    *record = (struct event_record){
        .seq = seq,
        .kind = ending->kind,
        .finish = ending->finish,
        .stop_index = ending->stop_index,
        .stop_id = ending->stop_id,
        .error = ending->error,
        .first_token = chunk->first_token,
        .n_tokens = chunk->n_tokens,
        .text_len = chunk->text_len,
        .stats = seq->stats,
    };
    if (chunk->text_len) memcpy(record->text, chunk->text, chunk->text_len);
    ring_publish(engine->events, bytes);
}

/* The one way out: finished, cancelled, client gone or failed; gives back every page, and leaves what
 * was committed for others to find, unless it failed. After the event is published the loop thread
 * may free the sequence, so it is touched no more. */
static void retire(struct engine *engine, struct sequence *seq, const struct ending *ending) {
    scheduler_remove(engine->scheduler, seq, ending->kind == EVENT_FINISHED);
    struct text_chunk chunk = {0};
    if (ending->kind == EVENT_FINISHED) {
        text_finish(seq->text);
        chunk = text_take(seq->text);
    }
    seq->stats.n_output = seq->n_output;
    atomic_store_explicit(&seq->shown.n_pages, 0, memory_order_relaxed);
    push_event(engine, seq, &chunk, ending);
}

static void retire_failed(struct engine *engine, struct sequence *seq, int error) {
    retire(engine, seq,
           &(struct ending){.kind = EVENT_FAILED, .stop_index = -1, .stop_id = -1, .error = error});
}

/* A device failure is not survivable within a batch: everyone fails, and whoever comes later. */
static int fail_all(struct engine *engine, bool *emitted) {
    const struct kernels *kernels = engine->model->kernels;
    const char *fault = kernels->fault ? kernels->fault(engine->model->device) : NULL;
    snprintf(engine->fault, sizeof engine->fault, "%s",
             fault ? fault : "the device does not say why");
    engine->failed = true;
    atomic_store_explicit(&engine->counters.failed, true, memory_order_release);
    for (uint32_t slot = 0; slot < engine->config.max_num_seqs; slot++) {
        struct sequence *seq = scheduler_running(engine->scheduler)[slot];
        if (seq) retire_failed(engine, seq, ERR_DEVICE);
    }
    while (scheduler_waiting(engine->scheduler))
        retire_failed(engine, scheduler_waiting(engine->scheduler), ERR_DEVICE);
    *emitted = true;
    return ERR_DEVICE;
}

/* ---- commands ---------------------------------------------------------------------------------- */

static struct sequence *find(const struct engine *engine, uint64_t id) {
    for (uint32_t slot = 0; slot < engine->config.max_num_seqs; slot++) {
        struct sequence *seq = scheduler_running(engine->scheduler)[slot];
        if (seq && seq->request->id == id) return seq;
    }
    struct sequence *seq = scheduler_waiting(engine->scheduler);
    while (seq && seq->request->id != id)
        seq = seq->next;
    return seq;
}

static void drain_commands(struct engine *engine, bool *emitted) {
    const struct command *command;
    while ((command = ring_front(engine->commands))) {
        struct sequence *seq = command->seq;
        if (command->kind == COMMAND_SUBMIT) {
            scheduler_add(engine->scheduler, seq);
            add(&engine->counters.taken, 1);
            if (engine->failed) {
                retire_failed(engine, seq, ERR_DEVICE);
                *emitted = true;
            }
        } else if ((seq = find(engine, command->id)) && /* it may have ended before */
                   (command->kind == COMMAND_CANCEL || !seq->stats.started_us)) {
            retire(engine, seq,
                   &(struct ending){.kind = EVENT_FINISHED,
                                    .finish = FINISH_CANCELLED,
                                    .stop_index = -1,
                                    .stop_id = -1});
            *emitted = true;
        }
        ring_pop(engine->commands);
    }
}

/* ---- what a cycle yielded ---------------------------------------------------------------------- */

static void remember_cycle(struct engine *engine, const struct outcome *outcome) {
    if (engine->n_cycles == engine->cycles_cap) {
        uint32_t cap = engine->cycles_cap ? 2 * engine->cycles_cap : 256;
        struct cycle *grown = realloc(engine->cycles, cap * sizeof *grown);
        if (!grown) return; /* the record ends here; the text does not */
        engine->cycles = grown;
        engine->cycles_cap = cap;
    }
    struct cycle *cycle = &engine->cycles[engine->n_cycles++];
    cycle->n_drafted = outcome->n_drafted;
    cycle->n_accepted = outcome->n_accepted;
    memcpy(cycle->drafted, outcome->proposed, outcome->n_drafted * sizeof(int32_t));
}

/* A pass over a decoding text: what was offered, kept and yielded; n_accepted and n_emitted without
 * what an ending cut off. */
static void count_pass(struct engine *engine, uint32_t n_proposed, uint32_t n_accepted,
                       uint32_t n_emitted) {
    struct counters *c = &engine->counters;
    add(&c->proposed_tokens, n_proposed);
    add(&c->accepted_tokens, n_accepted);
    for (uint32_t i = 0; i < n_accepted; i++)
        add(&c->accepted_position[i], 1);
    counters_accepted_length(c, n_emitted);
}

/* The tokens one verification (or the end of a prefill) gave to a sequence. */
static void absorb_outcome(struct engine *engine, const struct work *work,
                           const struct outcome *outcome, uint64_t now_us) {
    struct sequence *seq = work->seq;
    struct ending ending = {.kind = EVENT_FINISHED};
    uint32_t n_emitted = sequence_append(seq, engine->model, outcome->tokens, outcome->n_tokens,
                                         &ending.finish, &ending.stop_index, &ending.stop_id);
    /* Proposals beyond an ending were neither kept nor refused as far as anyone can see. */
    uint32_t n_accepted = outcome->n_accepted < n_emitted ? outcome->n_accepted : n_emitted;
    bool cut = n_emitted < outcome->n_tokens;
    uint32_t n_rejected = cut ? 0 : outcome->n_proposed - outcome->n_accepted;
    if (outcome->exhausted && ending.finish == FINISH_NONE) ending.finish = FINISH_STOP;
    seq->stats.n_accepted += n_accepted;
    seq->stats.n_rejected += n_rejected;
    seq->stats.n_output = seq->n_output;
    if (n_emitted) {
        if (seq->n_output == n_emitted) /* nothing before them */
            seq->stats.first_token_us = now_us;
        else
            counters_inter_token(&engine->counters, now_us - seq->stats.last_token_us, n_emitted);
        seq->stats.last_token_us = now_us;
    }
    add(&engine->counters.generated_tokens, n_emitted);
    if (seq->state == SEQ_DECODE) count_pass(engine, outcome->n_proposed, n_accepted, n_emitted);
    if (engine->drafts && seq->state == SEQ_DECODE && outcome->n_proposed > 0)
        drafts_learn(engine->drafts, &seq->drafts, work->source, outcome->n_proposed,
                     outcome->n_accepted, ending.finish != FINISH_NONE);
    if (engine->config.keep_cycles && engine->info.draft_block && seq->state == SEQ_DECODE)
        remember_cycle(engine, outcome);
    /* Everything but the newest token is committed; refused drafts are cut off. A text that ended
     * without one has more. */
    if (seq->n_kv < seq->n_tokens - 1) seq->n_kv = seq->n_tokens - 1;
    scheduler_commit(engine->scheduler, seq);
    if (ending.finish != FINISH_NONE) {
        retire(engine, seq, &ending);
        return;
    }
    seq->state = SEQ_DECODE;
    sequence_cut(seq, seq->n_kv, engine->pool);
    struct text_chunk chunk = text_take(seq->text);
    if (chunk.text_len || chunk.n_tokens)
        push_event(engine, seq, &chunk,
                   &(struct ending){.kind = EVENT_TOKENS, .stop_index = -1, .stop_id = -1});
}

/* Prompt tokens computed for the first time; a preempted text is computed again, not counted, and of
 * several choices the first one counts. */
static void count_prompt(struct engine *engine, struct sequence *seq) {
    uint32_t n = seq->n_kv < seq->n_prompt ? seq->n_kv : seq->n_prompt;
    if (n <= seq->n_counted) return;
    if (seq->request->choice == 0) add(&engine->counters.prompt_tokens, n - seq->n_counted);
    seq->n_counted = n;
}

/* For timing: n proposals are kept whatever the model says. K and V of all of them are in the cache, as
 * those of kept ones are, so that the next cycle finds what it would. */
static void force_accepted(struct outcome *outcome, uint32_t n) {
    if (outcome->status != OK || outcome->n_tokens == 0) return;
    int32_t own = outcome->tokens[outcome->n_tokens - 1];
    if (n > outcome->n_proposed) n = outcome->n_proposed;
    memcpy(outcome->tokens, outcome->proposed, n * sizeof own);
    outcome->tokens[n] = own;
    outcome->n_accepted = n;
    outcome->n_tokens = n + 1;
    outcome->exhausted = false;
}

static void absorb(struct engine *engine, const struct plan *plan, uint64_t now_us, bool *emitted) {
    struct outcome *outcome = engine->outcomes;
    for (uint32_t i = 0; i < plan->n_work; i++) {
        const struct work *work = &plan->work[i];
        struct sequence *seq = work->seq;
        if (seq->n_run < seq->n_kv + work->n_rows) seq->n_run = seq->n_kv + work->n_rows;
        if (seq->state == SEQ_PREFILL) {
            seq->n_kv += work->n_rows;
            seq->stats.prefill_passes++;
            count_prompt(engine, seq);
            if (!work->samples && seq->n_kv == sequence_prefill_end(seq) && seq->n_output > 0)
                seq->state = SEQ_DECODE; /* a preempted text is whole again */
        } else {
            seq->stats.draft_passes += work->n_block > 0;
            seq->stats.verify_passes++;
        }
        if (!work->samples) {
            scheduler_commit(engine->scheduler, seq);
            continue;
        }
        ASSERT(outcome->slot == seq->slot);
        if (engine->config.forced_accept >= 0)
            force_accepted(outcome, (uint32_t)engine->config.forced_accept);
        if (outcome->status != OK)
            retire_failed(engine, seq, outcome->status);
        else
            absorb_outcome(engine, work, outcome, now_us);
        outcome++;
        *emitted = true;
    }
}

/* ---- one step ---------------------------------------------------------------------------------- */

static uint64_t clock_us(const struct engine *engine) {
    if (engine->config.clock) return engine->config.clock(engine->config.clock_arg);
    return monotonic_us();
}

/* Prefill rows that fit a step. The clock steers chunk sizes only, which change no result. */
static uint32_t prefill_bound(const struct engine *engine) {
    struct sequence *const *running = scheduler_running(engine->scheduler);
    bool decodes = false;
    for (uint32_t slot = 0; slot < engine->config.max_num_seqs && !decodes; slot++)
        decodes = running[slot] && running[slot]->state == SEQ_DECODE;
    double rows = (decodes ? DECODE_TARGET_US : STEP_TARGET_US) / engine->us_per_row;
    return rows > engine->limits.max_rows ? engine->limits.max_rows : (uint32_t)rows;
}

static void measure_prefill(struct engine *engine, const struct plan *plan, uint64_t took_us) {
    bool device = engine->model->kernels->memory_left;
    uint32_t n_rows = plan->n_base_rows + plan->n_output_rows + plan->n_draft_rows;
    if (plan->n_prefill_rows < (device ? DEVICE_ROWS_MEASURED : PREFILL_ROWS_MEASURED)) return;
    double cost = (double)took_us / n_rows;
    engine->us_per_row += (cost - engine->us_per_row) * 0.25;
    if (engine->us_per_row < 1) engine->us_per_row = 1;
}

static enum forward_kind kind_of(const struct plan *plan) {
    enum forward_kind kind = FORWARD_PREFILL;
    for (uint32_t i = 0; i < plan->n_work; i++) {
        if (plan->work[i].n_draft > 0) return FORWARD_VERIFY;
        if (plan->work[i].seq->state == SEQ_DECODE) kind = FORWARD_DECODE;
    }
    return kind;
}

/* What the two forwards of a cycle took. */
struct cycle_times {
    uint64_t draft_us, main_us;
};

/* Where stages are only queued, the clock says what queueing took. One that was given rules all the same,
 * so that a run can be replayed. */
static bool device_times(const struct engine *engine) {
    return engine->model->kernels->forward_us && !engine->config.clock;
}

static int run_cycle(struct engine *engine, const struct plan *plan, struct cycle_times *took) {
    const struct kernels *kernels = engine->model->kernels;
    struct device *device = engine->model->device;
    const struct model_shape *shape = &engine->model->shape;
    bool drafts = plan->draft.n_segments > 0;
    int rc = OK;
    uint64_t begun_us = clock_us(engine);
    *took = (struct cycle_times){0};
    if (drafts) {
        rc = forward_run(kernels, device, shape, &plan->draft);
        if (rc == OK) rc = kernels->sample(device);
        add(&engine->counters.draft_forwards, 1);
        uint64_t drafted_us = clock_us(engine);
        took->draft_us = drafted_us - begun_us;
        begun_us = drafted_us;
    }
    if (rc == OK) rc = forward_run(kernels, device, shape, &plan->main);
    if (rc == OK) rc = kernels->accept(device);
    if (rc == OK) rc = kernels->end(device, engine->outcomes);
    add(&engine->counters.main_forwards, 1);
    took->main_us = clock_us(engine) - begun_us;
    if (rc == OK && device_times(engine))
        kernels->forward_us(device, &took->draft_us, &took->main_us);
    if (drafts) counters_forward(&engine->counters, FORWARD_DRAFT, took->draft_us);
    counters_forward(&engine->counters, kind_of(plan), took->main_us);
    return rc;
}

/* Prefill rows read no head and attend more or less than others, so a forward that holds some says
 * little about the price of a proposal. */
static void measure_drafts(struct engine *engine, const struct plan *plan,
                           const struct cycle_times *took) {
    if (!engine->drafts || engine->drafts_paused) return;
    if (plan->n_draft_rows)
        drafts_measure_draft(engine->drafts, plan->n_draft_rows, (double)took->draft_us);
    uint32_t n_rows = plan->n_base_rows + plan->n_output_rows;
    if (plan->n_prefill_rows)
        drafts_measure_mixed(engine->drafts, n_rows, (double)took->main_us);
    else
        drafts_measure_main(engine->drafts, n_rows, (double)took->main_us);
}

/* What the step holds: its sequences, and their tokens (a drafted one is none yet). */
static void publish_batch(struct engine *engine, const struct plan *plan) {
    struct counters *c = &engine->counters;
    uint32_t n_decoding = 0, n_proposed = 0;
    for (uint32_t i = 0; i < plan->n_work; i++) {
        n_decoding += plan->work[i].seq->state == SEQ_DECODE;
        n_proposed += plan->work[i].n_draft;
    }
    atomic_store_explicit(&c->draft_length, n_decoding ? (double)n_proposed / n_decoding : 0,
                          memory_order_relaxed);
    if (engine->drafts)
        atomic_store_explicit(&c->draft_acceptance, drafts_outlook(engine->drafts)->acceptance,
                              memory_order_relaxed);
    atomic_store_explicit(&c->batch_sequences, plan->n_work, memory_order_relaxed);
    atomic_store_explicit(&c->batch_tokens, plan->n_base_rows, memory_order_relaxed);
}

static void publish_gauges(struct engine *engine, uint64_t now_us) {
    struct counters *c = &engine->counters;
    uint32_t used = page_pool_n_pages(engine->pool) - page_pool_n_free(engine->pool);
    atomic_store_explicit(&c->running, scheduler_n_running(engine->scheduler),
                          memory_order_relaxed);
    atomic_store_explicit(&c->waiting, scheduler_n_waiting(engine->scheduler),
                          memory_order_relaxed);
    atomic_store_explicit(&c->pages_used, used, memory_order_relaxed);
    atomic_store_explicit(&c->pages_cached, page_pool_n_cached(engine->pool), memory_order_relaxed);
    atomic_store_explicit(&c->page_evictions, page_pool_n_evicted(engine->pool),
                          memory_order_relaxed);
    atomic_store_explicit(&c->last_step_us, now_us, memory_order_relaxed);
}

static void show_sequences(struct engine *engine) {
    for (uint32_t slot = 0; slot < engine->config.max_num_seqs; slot++) {
        struct sequence *seq = scheduler_running(engine->scheduler)[slot];
        if (seq) sequence_show(seq);
    }
}

/* Expected and real: tokens of the decoding sequences, and what the forwards cost. */
static void trace_drafts(FILE *f, const struct drafts *drafts, const struct cycle_times *took) {
    const struct draft_outlook *o = drafts_outlook(drafts);
    fprintf(f,
            ",\"drafts\":{\"sequences\":%u,\"drafting\":%u,\"trials\":%u,\"proposed\":%u,"
            "\"acceptance\":%.3f,\"tokens\":%.2f,\"plain_us\":%.0f,\"draft_us\":%.0f,"
            "\"main_us\":%.0f,\"took_draft_us\":%llu,\"took_main_us\":%llu}",
            o->n_sequences, o->n_drafting, o->n_trials, o->n_proposed, o->acceptance, o->tokens,
            o->plain_us, o->draft_us, o->main_us, (unsigned long long)took->draft_us,
            (unsigned long long)took->main_us);
}

static void trace(const struct engine *engine, const struct plan *plan, uint64_t now_us,
                  uint64_t took_us, const struct cycle_times *took) {
    FILE *f = engine->config.trace;
    if (!f) return;
    const struct counters *c = &engine->counters;
    fprintf(f,
            "{\"step\":%llu,\"t_us\":%llu,\"took_us\":%llu,\"rows\":{\"base\":%u,\"output\":%u,"
            "\"draft\":%u,\"prefill\":%u},\"running\":%u,\"waiting\":%u,\"preempted\":%u,"
            "\"pages_used\":%u,\"pages_cached\":%u,\"pages_total\":%u",
            (unsigned long long)c->steps, (unsigned long long)now_us, (unsigned long long)took_us,
            plan->n_base_rows, plan->n_output_rows, plan->n_draft_rows, plan->n_prefill_rows,
            c->running, c->waiting, plan->n_preempted, c->pages_used, c->pages_cached,
            page_pool_n_pages(engine->pool));
    if (engine->drafts && took && !engine->drafts_paused) trace_drafts(f, engine->drafts, took);
    fputs("}\n", f);
    fflush(f);
}

/* Whether the loop has drained enough for everything this step may emit. */
static bool room_for_events(const struct engine *engine) {
    size_t n_text = engine->config.max_num_seqs;
    size_t n_ended = engine->live_cap; /* what a preempted one withheld goes out with its end */
    return ring_has_room(engine->events,
                         n_text * engine->event_bytes_max + n_ended * engine->ending_bytes_max,
                         n_text + n_ended);
}

/* In a pool that takes longer to walk than a step does, not after every one. */
static void check_step(const struct engine *engine) {
    uint32_t every = 1 + page_pool_n_pages(engine->pool) / CHECKED_PAGES;
    if (scheduler_checks && engine->counters.steps % every == 0) scheduler_check(engine->scheduler);
}

int step_run(struct engine *engine, uint64_t now_us, bool *emitted) {
    atomic_store_explicit(&engine->counters.last_step_us, now_us, memory_order_relaxed);
    if (!room_for_events(engine)) return 1;
    drain_commands(engine, emitted);
    publish_gauges(engine, now_us);
    if (engine->failed) return ERR_DEVICE;
    if (engine->preempt_every && engine->counters.steps % engine->preempt_every == 0)
        add(&engine->counters.preemptions, scheduler_preempt_youngest(engine->scheduler));
    struct plan plan;
    bool any = scheduler_plan(engine->scheduler, prefill_bound(engine), now_us, &plan);
    add(&engine->counters.preemptions, plan.n_preempted);
    add(&engine->counters.prefix_query_tokens, plan.n_looked_up);
    add(&engine->counters.prefix_hit_tokens, plan.n_found);
    publish_batch(engine, &plan);
    if (!any) {
        ASSERT(scheduler_n_running(engine->scheduler) + scheduler_n_waiting(engine->scheduler) ==
               0);
        if (!engine->was_idle) {
            check_step(engine);
            trace(engine, &plan, now_us, 0, NULL);
        }
        engine->was_idle = true;
        return 0;
    }
    engine->was_idle = false;
    show_sequences(engine);
    uint64_t begun_us = clock_us(engine);
    struct cycle_times took;
    int rc = run_cycle(engine, &plan, &took);
    uint64_t took_us = clock_us(engine) - begun_us;
    add(&engine->counters.steps, 1);
    if (rc != OK) return fail_all(engine, emitted);
    measure_drafts(engine, &plan, &took);
    measure_prefill(engine, &plan, took_us);
    absorb(engine, &plan, now_us + took_us, emitted);
    check_step(engine);
    publish_gauges(engine, now_us + took_us);
    show_sequences(engine);
    trace(engine, &plan, now_us, took_us, &took);
    return scheduler_n_running(engine->scheduler) + scheduler_n_waiting(engine->scheduler) > 0;
}
