/* engine.c: the engine's life, and the loop thread's side of it: submitting, cancelling, events. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/engine_internal.h"
#include "engine/memory.h"

enum {
    DEFAULT_MAX_NUM_SEQS = 64,
    DEFAULT_MAX_QUEUED = 1024,
    DEFAULT_MAX_ROWS = 512,
    MIN_PAGES = 2,
    /* Of one place between two steps: both cancels of a sequence that has ended, and all three commands
     * of the one that takes its place. One more covers the ring's wrap. */
    COMMANDS_MAX = 5 + 1,
    LOGITS_BYTES_MAX = 64 << 20,       /* of one forward; a planner with less room drafts less */
    DEVICE_LOGITS_BYTES_MAX = 1 << 30, /* on a device with memory of its own */
    FIRST_US_PER_ROW = 500,            /* until prefill has been measured */
    DEVICE_FIRST_US_PER_ROW = 25,
    IDLE_WAIT_MS = 1000, /* an idle engine still turns, so that a watchdog sees it alive */
    FULL_WAIT_MS = 1,
};

void engine_config_defaults(struct engine_config *config) {
    *config = (struct engine_config){
        .kv_dtype = "auto",
        .max_num_seqs = DEFAULT_MAX_NUM_SEQS,
        .max_batched_rows = DEFAULT_MAX_ROWS,
        .max_queued = DEFAULT_MAX_QUEUED,
        .drafts = DRAFTS_AUTO,
        .prefix_cache = true,
        .forced_accept = -1,
    };
}

/* ---- sizes ------------------------------------------------------------------------------------- */

static int resolve_drafts(struct engine *engine, struct err *err) {
    uint32_t block = engine->model->shape.block_size;
    int32_t want = engine->config.drafts;
    if (want < DRAFTS_NGRAM)
        return err_set(err, ERR_INVALID, "drafts: %d rows, expected auto, off, ngram or 2 to %u",
                       want, block);
    if (want > 0 && block == 0)
        return err_set(err, ERR_INVALID, "drafts: %d rows, but the model has no draft view", want);
    if (want > 0 && (want < 2 || (uint32_t)want > block))
        return err_set(err, ERR_INVALID, "drafts: %d rows, expected auto, off, ngram or 2 to %u",
                       want, block);
    engine->info.draft_block = want == DRAFTS_AUTO    ? block
                               : want == DRAFTS_NGRAM ? NGRAM_ROWS
                                                      : (uint32_t)want;
    return OK;
}

static int resolve_kv_dtype(struct engine *engine, enum dtype *out, struct err *err) {
    const char *want = engine->config.kv_dtype ? engine->config.kv_dtype : "auto";
    int dtype = dtype_parse(want);
    if (strcmp(want, "auto") == 0)
        dtype = engine->model->weight_dtype == DTYPE_F32 ? DTYPE_F32 : DTYPE_BF16;
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16 && dtype != DTYPE_Q8_0)
        return err_set(err, ERR_INVALID, "kv-dtype: %s, expected auto, f32, bf16 or q8_0", want);
    *out = (enum dtype)dtype;
    engine->info.kv_dtype = dtype_name(*out);
    return OK;
}

/* Snapshots of the state beyond the KV, out of the memory for KV pages: at most an eighth of it, and
 * not more than there are pages. Returns the bytes that are left for pages. */
static uint64_t resolve_snapshots(struct engine *engine, uint64_t bytes, size_t page_bytes) {
    size_t one = engine->model->kernels->snapshot_bytes(engine->model->device);
    if (!one || !engine->config.prefix_cache) return bytes;
    uint64_t n = bytes / 8 / one;
    if (n > bytes / page_bytes) n = bytes / page_bytes;
    if (n > UINT32_MAX / 2) n = UINT32_MAX / 2;
    if ((bytes - n * one) / page_bytes < MIN_PAGES) n = 0; /* a pool so small is for pages alone */
    engine->limits.n_snapshots = (uint32_t)n;
    return bytes - n * one;
}

/* Bytes for KV pages on a device with memory of its own, whose weights are there: what was asked for,
 * else nine tenths of what the workspace leaves (the rest is for what drivers take as they go). */
static int device_room(const struct engine *engine, size_t page_bytes, uint64_t *out,
                       struct err *err) {
    const struct kernels *kernels = engine->model->kernels;
    struct device *device = engine->model->device;
    struct device_limits limits = engine->limits;
    uint64_t left = kernels->memory_left(device), most = left / page_bytes;
    limits.n_pages = (uint32_t)(most > UINT32_MAX / 2 ? UINT32_MAX / 2 : most);
    uint64_t workspace = kernels->workspace_bytes(device, &limits);
    uint64_t room = left > workspace ? left - workspace : 0, asked = engine->config.kv_bytes;
    if (room < MIN_PAGES * page_bytes || asked > room)
        return err_set(err, ERR_NOMEM,
                       "kv-memory: %llu bytes, at least %llu are needed, but the device has %llu "
                       "left, %llu of them for the workspace",
                       (unsigned long long)(asked ? asked : room),
                       (unsigned long long)(MIN_PAGES * page_bytes), (unsigned long long)left,
                       (unsigned long long)workspace);
    *out = asked ? asked : room - room / 10;
    return OK;
}

/* KV pages: what was asked for (but without a prefix cache not more than all sequences at full length
 * would take), else min(a quarter of the host's available memory or what a device has for it, what
 * these would take). */
static int resolve_pages(struct engine *engine, struct err *err) {
    const struct kernels *kernels = engine->model->kernels;
    struct device *device = engine->model->device;
    struct engine_config *config = &engine->config;
    uint32_t context = engine->model->info.context_length;
    uint32_t max_len = config->max_model_len ? config->max_model_len : context;
    if (max_len > context)
        return err_set(err, ERR_INVALID, "max-model-len: %u, the model's context is %u", max_len,
                       context);
    size_t page_bytes = kernels->page_bytes(device, engine->limits.kv_dtype);
    uint64_t wanted = div_ceil(max_len, PAGE_TOKENS) * config->max_num_seqs * page_bytes;
    if (wanted < MIN_PAGES * page_bytes) wanted = MIN_PAGES * page_bytes;
    uint64_t room = config->kv_bytes;
    if (kernels->memory_left) {
        int rc = device_room(engine, page_bytes, &room, err);
        if (rc) return rc;
    } else if (!room) {
        room = div_ceil(memory_available(), 4);
    }
    if (!room || (room > wanted && !(config->kv_bytes && config->prefix_cache))) room = wanted;
    uint64_t n_pages = resolve_snapshots(engine, room, page_bytes) / page_bytes;
    if (n_pages > UINT32_MAX / 2) n_pages = UINT32_MAX / 2;
    if (n_pages < MIN_PAGES)
        return err_set(err, ERR_INVALID,
                       "kv-memory: %llu bytes hold %llu pages of %zu bytes, at "
                       "least %d are needed",
                       (unsigned long long)room, (unsigned long long)n_pages, page_bytes,
                       MIN_PAGES);
    if (n_pages * PAGE_TOKENS < max_len) {
        snprintf(engine->notice, sizeof engine->notice,
                 "max_model_len lowered from %u to %llu: the KV pool holds no more", max_len,
                 (unsigned long long)n_pages * PAGE_TOKENS);
        engine->info.notice = engine->notice;
        max_len = (uint32_t)n_pages * PAGE_TOKENS;
    }
    engine->info.max_model_len = max_len;
    engine->info.n_pages = engine->limits.n_pages = (uint32_t)n_pages;
    engine->info.kv_bytes =
        n_pages * page_bytes + engine->limits.n_snapshots * kernels->snapshot_bytes(device);
    return OK;
}

static int resolve_rows(struct engine *engine, struct err *err) {
    struct engine_config *config = &engine->config;
    uint32_t rows = config->max_batched_rows, vocab = engine->model->shape.vocab_size;
    if (rows < 8 || rows > 65536)
        return err_set(err, ERR_INVALID, "max-num-batched-tokens: %u, expected 8 to 65536", rows);
    if (config->max_num_seqs < 1 || config->max_num_seqs > 4096)
        return err_set(err, ERR_INVALID, "max-num-seqs: %u, expected 1 to 4096",
                       config->max_num_seqs);
    uint64_t logits =
        (uint64_t)config->max_num_seqs * (engine->info.draft_block ? engine->info.draft_block : 1);
    uint64_t budget =
        engine->model->kernels->memory_left ? DEVICE_LOGITS_BYTES_MAX : LOGITS_BYTES_MAX;
    uint64_t affordable = budget / (sizeof(float) * vocab);
    if (affordable < config->max_num_seqs) affordable = config->max_num_seqs;
    if (logits > affordable) logits = affordable;
    if (logits < 16) logits = 16;
    if (logits < engine->info.draft_block) logits = engine->info.draft_block;
    /* engine_logits shows a whole block, with drafts off too. */
    if (logits < engine->model->shape.block_size) logits = engine->model->shape.block_size;
    engine->limits.max_proposed = engine->info.draft_block ? engine->info.draft_block - 1 : 0;
    engine->limits.n_slots = config->max_num_seqs;
    engine->limits.max_rows = rows;
    engine->limits.max_logit_rows = logits > rows ? rows : (uint32_t)logits;
    return OK;
}

/* ---- life -------------------------------------------------------------------------------------- */

static int allocate(struct engine *engine) {
    const struct model *model = engine->model;
    struct engine_config *config = &engine->config;
    uint32_t step_tokens = engine->info.draft_block ? engine->info.draft_block : 1;
    engine->event_bytes_max =
        sizeof(struct event_record) + text_chunk_max(model->tokenizer, step_tokens);
    engine->ending_bytes_max = sizeof(struct event_record) + text_chunk_max(model->tokenizer, 0);
    engine->live_cap = config->max_num_seqs + config->max_queued;
    engine->live = calloc(engine->live_cap, sizeof *engine->live);
    /* Room for two whole steps, so that one can run while the loop reads the other. */
    size_t events = config->max_num_seqs * (engine->event_bytes_max + 16) +
                    engine->live_cap * (engine->ending_bytes_max + 16);
    engine->events = ring_create(4 * events + 64);
    engine->commands = ring_create(COMMANDS_MAX * engine->live_cap * (sizeof(struct command) + 8));
    engine->outcomes = calloc(config->max_num_seqs, sizeof *engine->outcomes);
    engine->pool = page_pool_create(engine->limits.n_pages);
    if (!engine->live || !engine->events || !engine->commands || !engine->outcomes || !engine->pool)
        return ERR_NOMEM;
    bool has_state = model->kernels->snapshot_bytes(model->device) > 0;
    if (config->prefix_cache) {
        struct prefix_cache_config cache = {
            .needs_state = has_state,
            .n_snapshots = engine->limits.n_snapshots,
        };
        ssize_t n = getrandom(&cache.seed, sizeof cache.seed, GRND_NONBLOCK);
        (void)n; /* a known seed is as right, if less well guarded */
        engine->cache = prefix_cache_create(engine->pool, &cache);
        if (!engine->cache) return ERR_NOMEM;
    }
    struct reuse reuse = {
        .pool = engine->pool,
        .cache = engine->cache,
        .kernels = model->kernels,
        .device = model->device,
        .has_state = has_state,
        .state_reach =
            PAGE_TOKENS + engine->limits.max_proposed, /* what kernels.h promises of the ring */
    };
    bool given = config->drafts == DRAFTS_NGRAM;
    if (config->drafts < 0 && engine->info.draft_block) {
        engine->drafts = drafts_create(config->max_num_seqs, engine->limits.max_rows, !given);
        if (!engine->drafts) return ERR_NOMEM;
    }
    struct scheduler_config scheduler = {
        .n_slots = config->max_num_seqs,
        .max_rows = engine->limits.max_rows,
        .max_logit_rows = engine->limits.max_logit_rows,
        .prefill_chunk = config->prefill_chunk,
        .n_streams = model->shape.orthros ? 2 : 1,
        .draft_block = engine->info.draft_block,
        .drafts = engine->drafts,
        .given = given,
        .max_position = model->shape.max_position,
        .mask_token = model->shape.mask_token,
        .prefill_first = config->prefill_first,
    };
    engine->scheduler = scheduler_create(&scheduler, &reuse);
    return engine->scheduler ? OK : ERR_NOMEM;
}

int engine_create(struct model *model, const struct engine_config *config, struct engine **out,
                  struct err *err) {
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) return err_set(err, ERR_NOMEM, "engine: no memory");
    engine->model = model;
    engine->config = *config;
    engine->wake_fd = -1;
    engine->us_per_row = model->kernels->memory_left ? DEVICE_FIRST_US_PER_ROW : FIRST_US_PER_ROW;
    engine->was_idle = true;
    engine->info.max_num_seqs = config->max_num_seqs;
    engine->info.page_tokens = PAGE_TOKENS;
    int rc = resolve_drafts(engine, err);
    if (rc == OK) rc = resolve_kv_dtype(engine, &engine->limits.kv_dtype, err);
    if (rc == OK) rc = resolve_rows(engine, err);
    if (rc == OK) rc = resolve_pages(engine, err);
    if (rc != OK) goto fail;
    engine->info.workspace_bytes = model->kernels->workspace_bytes(model->device, &engine->limits);
    rc = model->kernels->reserve(model->device, &engine->limits, err);
    if (rc != OK) goto fail;
    if (model->kernels->memory_left)
        engine->info.device_free_bytes = model->kernels->memory_left(model->device);
    rc = allocate(engine);
    if (rc != OK) {
        err_set(err, rc, "engine: no memory for %u sequences", engine->live_cap);
        goto fail;
    }
    engine->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (engine->wake_fd < 0) {
        rc = err_set(err, ERR_IO, "eventfd: %s", strerror(errno));
        goto fail;
    }
    *out = engine;
    return OK;
fail:
    engine_destroy(engine);
    return rc;
}

void engine_destroy(struct engine *engine) {
    if (!engine) return;
    ASSERT(!engine->running);
    for (uint32_t i = 0; i < engine->n_live; i++)
        sequence_destroy(engine->live[i]);
    sequence_destroy(engine->ended);
    if (engine->wake_fd >= 0) close(engine->wake_fd);
    scheduler_destroy(engine->scheduler);
    drafts_destroy(engine->drafts);
    prefix_cache_destroy(engine->cache);
    page_pool_destroy(engine->pool);
    ring_destroy(engine->commands);
    ring_destroy(engine->events);
    free(engine->outcomes);
    free(engine->cycles);
    free(engine->live);
    free(engine);
}

const struct engine_info *engine_info(const struct engine *engine) {
    return &engine->info;
}

/* ---- the loop thread's side -------------------------------------------------------------------- */

static void wake(struct engine *engine) {
    uint64_t one = 1;
    ssize_t n = write(engine->wake_fd, &one, sizeof one);
    (void)n; /* EAGAIN: the counter is full, so it is awake already */
}

/* Room is there: see COMMANDS_MAX. */
static void push_command(struct engine *engine, const struct command *command) {
    struct command *slot = ring_reserve(engine->commands, sizeof *slot);
    ASSERT(slot);
    *slot = *command;
    ring_publish(engine->commands, sizeof *slot);
    wake(engine);
}

int engine_submit(struct engine *engine, struct request *request, struct err *err) {
    uint32_t max_len = engine->info.max_model_len;
    ASSERT(request->n_prompt > 0 && request->max_tokens > 0);
    if (atomic_load_explicit(&engine->counters.failed, memory_order_acquire))
        return err_set(err, ERR_DEVICE, "the engine has failed");
    if (request->n_prompt >= max_len)
        return err_set(err, ERR_TOO_LONG, "prompt of %u tokens, max_model_len is %u",
                       request->n_prompt, max_len);
    if (engine->n_live == engine->live_cap)
        return err_set(err, ERR_FULL, "%u sequences are running or waiting, the limit",
                       engine->n_live);
    if (request->max_tokens > max_len - request->n_prompt)
        request->max_tokens = max_len - request->n_prompt;
    struct sequence *seq =
        sequence_create(request, engine->model, request->max_tokens, engine->info.draft_block,
                        engine->config.drafts == DRAFTS_NGRAM);
    if (!seq)
        return err_set(err, ERR_NOMEM, "no memory for a sequence of %u tokens",
                       request->n_prompt + request->max_tokens);
    seq->arrival = engine->next_arrival++;
    seq->live_idx = engine->n_live;
    engine->live[engine->n_live++] = seq;
    seq->stats.submitted_us = monotonic_us();
    atomic_fetch_add_explicit(&engine->counters.submitted, 1, memory_order_relaxed);
    push_command(engine, &(struct command){.kind = COMMAND_SUBMIT, .seq = seq});
    return OK;
}

void engine_cancel(struct engine *engine, uint64_t id) {
    for (uint32_t i = 0; i < engine->n_live; i++) {
        struct sequence *seq = engine->live[i];
        if (seq->request->id != id || seq->cancel_sent) continue;
        seq->cancel_sent = true;
        push_command(engine, &(struct command){.kind = COMMAND_CANCEL, .id = id});
    }
}

void engine_cancel_waiting(struct engine *engine, uint64_t id) {
    for (uint32_t i = 0; i < engine->n_live; i++) {
        struct sequence *seq = engine->live[i];
        if (seq->request->id != id || seq->cancel_waiting_sent) continue;
        seq->cancel_waiting_sent = true;
        push_command(engine, &(struct command){.kind = COMMAND_CANCEL_WAITING, .id = id});
    }
}

/* The last event of a sequence was handed out: it is live no more. */
static void forget(struct engine *engine, struct sequence *seq) {
    struct sequence *moved = engine->live[--engine->n_live];
    engine->live[seq->live_idx] = moved;
    moved->live_idx = seq->live_idx;
    engine->ended = seq; /* the event points into its tokens until the next call */
}

bool engine_next_event(struct engine *engine, struct event *out) {
    if (engine->event_held) ring_pop(engine->events);
    engine->event_held = false;
    sequence_destroy(engine->ended);
    engine->ended = NULL;
    const struct event_record *record = ring_front(engine->events);
    if (!record) return false;
    engine->event_held = true;
    struct sequence *seq = record->seq;
    *out = (struct event){
        .kind = record->kind,
        .id = seq->request->id,
        .text = record->text,
        .text_len = record->text_len,
        .tokens = seq->tokens + seq->n_prompt + record->first_token,
        .n_tokens = record->n_tokens,
        .finish = record->finish,
        .stop_index = record->stop_index,
        .stop_id = record->stop_id,
        .error = record->error,
        .stats = record->stats,
    };
    if (record->kind != EVENT_TOKENS) {
        out->request = seq->request;
        forget(engine, seq);
    }
    return true;
}

void engine_gauges(const struct engine *engine, struct engine_gauges *out) {
    counters_read(engine ? &engine->counters : NULL, out);
    if (!engine) return;
    out->pages_total = engine->info.n_pages;
    out->n_draft_positions = engine->info.draft_block ? engine->info.draft_block - 1 : 0;
}

bool engine_work_ns(const struct engine *engine, uint64_t ns[ENGINE_WORKS]) {
    _Static_assert(ENGINE_PRODUCTS == (int)WORK_PRODUCTS && ENGINE_WORKS == (int)WORK_KINDS &&
                       ENGINE_ATTENTION == (int)WORK_ATTENTION && ENGINE_ROWS == (int)WORK_ROWS,
                   "one order");
    const struct model *model = engine->model;
    if (!model->kernels->work_ns) return false;
    model->kernels->work_ns(model->device, ns);
    return true;
}

uint32_t engine_slots(const struct engine *engine, struct engine_slot *out, uint32_t cap) {
    uint32_t n = engine->n_live < cap ? engine->n_live : cap;
    for (uint32_t i = 0; i < n; i++) {
        const struct sequence *seq = engine->live[i];
        out[i] = (struct engine_slot){
            .id = seq->request->id,
            .state = (enum slot_state)seq->shown.state,
            .n_prompt = seq->n_prompt,
            .n_cached = seq->shown.n_cached,
            .n_output = seq->shown.n_output,
            .n_pages = seq->shown.n_pages,
            .n_passes = seq->shown.n_passes,
            .n_accepted = seq->shown.n_accepted,
            .submitted_us = seq->stats.submitted_us, /* set before the engine had it */
        };
    }
    return n;
}

uint64_t engine_memory_free(const struct engine *engine) {
    bool own = engine && engine->model->kernels->memory_left;
    return own ? engine->info.device_free_bytes : memory_available();
}

const char *engine_fault(const struct engine *engine) {
    bool failed = atomic_load_explicit(&engine->counters.failed, memory_order_acquire);
    return failed ? engine->fault : NULL;
}

uint32_t engine_cycles(const struct engine *engine, const struct cycle **out) {
    *out = engine->cycles;
    return engine->n_cycles;
}

/* ---- the engine thread ------------------------------------------------------------------------- */

int engine_step(struct engine *engine, uint64_t now_us) {
    ASSERT(!engine->running);
    bool emitted = false;
    return step_run(engine, now_us, &emitted);
}

static void sleep_until_woken(struct engine *engine, int timeout_ms) {
    struct pollfd fd = {.fd = engine->wake_fd, .events = POLLIN};
    uint64_t count;
    if (poll(&fd, 1, timeout_ms) > 0) {
        ssize_t n = read(engine->wake_fd, &count, sizeof count);
        (void)n;
    }
}

static void *thread_main(void *arg) {
    struct engine *engine = arg;
    while (!atomic_load_explicit(&engine->stop, memory_order_acquire)) {
        bool emitted = false;
        uint64_t steps = engine->counters.steps;
        int rc = step_run(engine, monotonic_us(), &emitted);
        if (emitted) engine->notify(engine->notify_arg);
        if (rc <= 0)
            sleep_until_woken(engine, IDLE_WAIT_MS);
        else if (engine->counters.steps == steps)
            sleep_until_woken(engine, FULL_WAIT_MS);
    }
    return NULL;
}

void engine_pause_drafts(struct engine *engine, bool paused) {
    engine->drafts_paused = paused;
    scheduler_pause_drafts(engine->scheduler, paused);
}

int engine_start(struct engine *engine, void (*notify)(void *arg), void *arg, struct err *err) {
    ASSERT(!engine->running);
    engine->notify = notify;
    engine->notify_arg = arg;
    atomic_store(&engine->stop, false);
    atomic_store(&engine->counters.last_step_us, monotonic_us());
    int rc = pthread_create(&engine->thread, NULL, thread_main, engine);
    if (rc) return err_set(err, ERR_IO, "cannot start the engine thread: %s", strerror(rc));
    engine->running = true;
    return OK;
}

void engine_stop(struct engine *engine) {
    if (!engine || !engine->running) return;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    wake(engine);
    pthread_join(engine->thread, NULL);
    engine->running = false;
}
