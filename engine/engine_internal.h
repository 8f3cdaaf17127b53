/* engine_internal.h: the engine's state, shared by engine.c (life, the loop thread's side), step.c
 * (one step) and logits.c. Nobody else includes it but the engine's own tests. */
#ifndef GERYON_ENGINE_INTERNAL_H
#define GERYON_ENGINE_INTERNAL_H

#include <pthread.h>
#include <time.h>

#include "engine/counters.h"
#include "engine/drafts.h"
#include "engine/engine.h"
#include "engine/forward.h"
#include "engine/model.h"
#include "engine/page_pool.h"
#include "engine/ring.h"
#include "engine/scheduler.h"

/* loop -> engine */
enum command_kind { COMMAND_SUBMIT, COMMAND_CANCEL, COMMAND_CANCEL_WAITING };
struct command {
    enum command_kind kind;
    struct sequence *seq; /* SUBMIT */
    uint64_t id;          /* CANCEL: by id, since the sequence may have ended and be gone */
};

/* engine -> loop: followed by text_len bytes of text in the record. */
struct event_record {
    struct sequence *seq;
    enum event_kind kind;
    enum finish_reason finish;
    int32_t stop_index, stop_id;
    int error;
    uint32_t first_token, n_tokens; /* output tokens whose ids this event releases */
    uint32_t text_len;
    struct seq_stats stats;
    char text[];
};

struct engine {
    struct model *model;
    struct engine_config config;
    struct engine_info info;
    char notice[256];
    struct device_limits limits;

    /* loop thread */
    struct sequence **live; /* [live_cap]: submitted, last event not popped */
    uint32_t n_live, live_cap;
    uint64_t next_arrival;
    struct sequence *ended; /* freed at the next call of engine_next_event */
    bool event_held;        /* the front event is in the caller's hands */

    struct ring *commands, *events;
    int wake_fd; /* eventfd: something for the engine thread */

    /* engine thread */
    struct page_pool *pool;
    struct prefix_cache *cache; /* NULL: off */
    struct scheduler *scheduler;
    struct outcome *outcomes; /* [max_num_seqs] */
    size_t event_bytes_max;   /* one event's record at most */
    size_t ending_bytes_max;  /* that of a sequence that ends without having run in the step */
    struct drafts *drafts;    /* --drafts auto and ngram, else NULL */
    bool drafts_paused;       /* bench */
    double us_per_row;        /* running estimate of what a prefill row costs */
    bool failed;
    char fault[256]; /* why; written before counters.failed is set, read by others after */
    bool was_idle;
    uint32_t
        preempt_every; /* tests: every so many steps somebody is preempted; 0 = as pages need */
    struct counters counters;
    struct cycle *cycles;
    uint32_t n_cycles, cycles_cap;

    pthread_t thread;
    bool running;
    _Atomic bool stop;
    void (*notify)(void *arg);
    void *notify_arg;
};

static inline uint64_t monotonic_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* step.c: like engine_step; *emitted is set when events were pushed. */
int step_run(struct engine *engine, uint64_t now_us, bool *emitted);

#endif
