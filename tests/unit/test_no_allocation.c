/* The step loop never allocates: a thousand steps of the engine thread and its workers under a mixed
 * load, with preemptions, cancels and prompts that come again, and not one call into the heap or for a
 * map from any thread but the test's own. On every kernel table, over checkpoints with both streams,
 * drafts and MSAR, all kinds of products and KV, and texts whose attention is dealt out among threads.
 *
 * This program's own malloc and friends stand before the C library's, count, and pass on. Under a
 * sanitizer the heap belongs to the sanitizer, and the test is skipped. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/model.h"
#include "kernels/cpu/cpu.h"
#include "tests/harness.h"
#include "tests/unit/tables.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTING 0
#else
#define COUNTING 1
#endif

/* ---- counting ---------------------------------------------------------------------------------- */

static _Thread_local bool loop_thread; /* may allocate: it submits and reads events */
static _Atomic bool armed;
static _Atomic uint64_t n_calls;
static _Atomic(const char *) last_call;

#if COUNTING
static void count_call(const char *name) {
    if (!atomic_load_explicit(&armed, memory_order_relaxed) || loop_thread) return;
    atomic_fetch_add(&n_calls, 1);
    atomic_store(&last_call, name);
}

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *p);

void *malloc(size_t bytes) {
    count_call("malloc");
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    count_call("calloc");
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes) {
    count_call("realloc");
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    count_call("aligned_alloc");
    return __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    count_call("memalign");
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    count_call("posix_memalign");
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

void free(void *p) {
    if (p) count_call("free");
    __libc_free(p);
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
    count_call("mmap");
    return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

int munmap(void *at, size_t bytes) {
    count_call("munmap");
    return (int)syscall(SYS_munmap, at, bytes);
}
#endif

static void *allocate_here(void *arg) {
    void *volatile p = malloc(*(size_t *)arg);
    free(p);
    return NULL;
}

/* The test of the test: another thread's malloc and free are two calls, one's own none. */
static void allocation_on_another_thread_is_counted(void **state) {
    (void)state;
    if (!COUNTING) skip();
    size_t bytes = 100;
    pthread_t thread;
    loop_thread = true;
    atomic_store(&n_calls, 0);
    atomic_store(&armed, true);
    allocate_here(&bytes);
    assert_int_equal(atomic_load(&n_calls), 0);
    assert_int_equal(pthread_create(&thread, NULL, allocate_here, &bytes), 0);
    pthread_join(thread, NULL);
    atomic_store(&armed, false);
    assert_true(atomic_load(&n_calls) >= 2);
    assert_string_equal(atomic_load(&last_call), "free");
}

/* ---- load -------------------------------------------------------------------------------------- */

enum { LIVE = 24, MAX_PROMPT = 500, WARM_STEPS = 200, STEPS = 1000, REF_STEPS = 50 };

/* Whose steps. Pages are few, so that sequences are preempted. */
struct scene {
    const char *checkpoint, *dtype, *activations, *kv;
    int32_t drafts;
    uint32_t min_prompt, max_prompt, n_seqs, n_pages;
    bool splits; /* attention is dealt out among threads, blocks of 128 positions at a time */
};

#define SHORT_TEXTS 1, 80, 12, 24, false
/* An eighth of the pages' memory is to hold some snapshots of MSAR's state. */
#define MSAR_TEXTS 1, 80, 20, 48, false
/* Three or four blocks each, of at most two sequences: with more there are tasks enough as it is. */
#define LONG_TEXTS 300, 500, 2, 50, true
static const struct scene scenes[] = {
    {"qwen3-orthros-standard-orthrus", "f32", "f32", "f32", 8, SHORT_TEXTS},
    {"qwen3-orthros-standard-orthrus", "f32", "f32", "f32", DRAFTS_AUTO, SHORT_TEXTS},
    {"qwen3-orthros-standard-orthrus", "f32", "f32", "f32", DRAFTS_NGRAM, SHORT_TEXTS},
    {"qwen3-orthros-standard-orthrus", "q4_0", "int8", "bf16", DRAFTS_AUTO, SHORT_TEXTS},
    {"qwen3-single-standard-orthrus", "q8_0", "int8", "q8_0", DRAFTS_NGRAM, SHORT_TEXTS},
    {"qwen3-orthros-msar-orthrus", "f32", "f32", "f32", 8, MSAR_TEXTS},
    {"qwen3-orthros-msar-orthrus", "q8_0", "int8", "bf16", DRAFTS_AUTO, MSAR_TEXTS},
    {"qwen3-single-msar-orthrus-bf16", "bf16", "bf16", "bf16", 8, MSAR_TEXTS},
    {"qwen3-single-standard-orthrus", "f32", "f32", "f32", DRAFTS_AUTO, LONG_TEXTS},
    {"qwen3-orthros-standard-orthrus", "bf16", "bf16", "bf16", 8, LONG_TEXTS},
    {"qwen3-single-standard-orthrus", "q4_0", "int8", "q8_0", DRAFTS_AUTO, LONG_TEXTS},
};

struct load {
    const struct scene *scene;
    struct engine *engine;
    struct rng rng;
    struct request requests[LIVE];
    int32_t prompts[LIVE][MAX_PROMPT];
    struct token_bias bias[LIVE];
    bool live[LIVE];
    uint64_t n_accepted, n_cancelled, n_ended, n_prompt_cached;
};

/* A new request in place i; often with the prompt of another one, or that place's own once more. */
static void submit(struct load *load, uint32_t i) {
    struct rng *rng = &load->rng;
    struct request *r = &load->requests[i];
    uint32_t other = rng_below(rng, LIVE);
    bool again = load->requests[other].n_prompt > 0 && rng_below(rng, 2);
    uint32_t least = load->scene->min_prompt, most = load->scene->max_prompt;
    uint32_t n = again ? load->requests[other].n_prompt : least + rng_below(rng, most - least + 1);
    uint32_t period = rng_below(rng, 2) ? 5 : MAX_PROMPT; /* some repeat themselves */
    for (uint32_t t = 0; !again && t < n; t++)
        load->prompts[i][t] =
            t < period ? (int32_t)rng_below(rng, 312) : load->prompts[i][t - period];
    if (again) memmove(load->prompts[i], load->prompts[other], n * sizeof load->prompts[i][0]);
    *r = (struct request){.id = i, .n_prompt = n, .prompt = load->prompts[i]};
    r->max_tokens = 1 + rng_below(rng, 100);
    r->priority = (int32_t)rng_below(rng, 3);
    sampling_defaults(&r->sampling);
    struct sampling *s = &r->sampling;
    s->seed = rng_u64(rng);
    s->has_seed = rng_below(rng, 2);
    s->temperature = rng_below(rng, 2) ? 0 : 0.8;
    if (rng_below(rng, 2)) s->top_k = 40, s->top_p = 0.9;
    if (rng_below(rng, 3) == 0) s->frequency_penalty = 0.5, s->repetition_penalty = 1.1;
    if (rng_below(rng, 3) == 0) {
        load->bias[i] = (struct token_bias){(int32_t)rng_below(rng, 312), -100};
        s->n_bias = 1, s->bias = &load->bias[i];
    }
    s->n_stop = rng_below(rng, 2);
    s->stop[0].len = 2, memcpy(s->stop[0].text, "q!", 2);
    struct err err;
    if (engine_submit(load->engine, r, &err) != OK) fail_msg("%s", err.msg);
    load->live[i] = true;
}

static void drain(struct load *load) {
    struct event event;
    while (engine_next_event(load->engine, &event)) {
        if (event.kind == EVENT_TOKENS) continue;
        assert_int_equal(event.kind, EVENT_FINISHED);
        load->live[event.id] = false;
        load->n_ended++;
        load->n_accepted += event.stats.n_accepted;
        load->n_cancelled += event.finish == FINISH_CANCELLED;
        load->n_prompt_cached += event.stats.n_cached;
    }
}

/* Every forward takes the same time, so drafts pay whatever else this machine is doing. */
static uint64_t even_clock(void *arg) {
    _Atomic uint64_t *now_us = arg;
    return atomic_fetch_add(now_us, 500);
}

static void ignore_wake(void *arg) {
    (void)arg;
}

/* Keep the engine busy until it has made n more steps. */
static void keep_busy(struct load *load, uint64_t n) {
    struct engine_gauges gauges;
    engine_gauges(load->engine, &gauges);
    for (uint64_t seen = gauges.steps, end = seen + n; gauges.steps < end;) {
        for (uint32_t i = 0; i < LIVE; i++)
            if (!load->live[i]) submit(load, i);
        for (; seen < gauges.steps; seen++)
            if (rng_below(&load->rng, 30) == 0)
                engine_cancel(load->engine, rng_below(&load->rng, LIVE));
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        drain(load);
        engine_gauges(load->engine, &gauges);
    }
}

/* The model's table with a count in attend: layers whose attention was dealt out. */
static const struct kernels *real;
static _Atomic uint64_t n_split;

static int counting_attend(struct device *dev, uint32_t layer) {
    if (dev->n_splits > 0) atomic_fetch_add(&n_split, 1);
    return real->attend(dev, layer);
}

static struct model *load_model(const struct scene *scene, const struct kernels *table) {
    static struct kernels counting;
    struct model_options options = {.path = golden_path(scene->checkpoint),
                                    .dtype = scene->dtype,
                                    .activations = scene->activations,
                                    .backend = "cpu",
                                    .cpu_table = table->name,
                                    .n_threads = 2};
    struct model *model = NULL;
    struct err err;
    if (model_load(&options, &model, &err) != OK) fail_msg("%s", err.msg);
    assert_ptr_equal(model->kernels, table);
    assert_string_equal(model->info.activations, scene->activations);
    real = table;
    counting = *table;
    counting.attend = counting_attend;
    model->kernels = &counting;
    return model;
}

static void start(struct load *load, struct model *model) {
    static _Atomic uint64_t now_us;
    const struct scene *scene = load->scene;
    struct engine_config config;
    struct err err;
    engine_config_defaults(&config);
    config.max_num_seqs = scene->n_seqs;
    config.max_queued = LIVE;
    config.max_batched_rows = 128;
    config.drafts = scene->drafts;
    config.kv_dtype = scene->kv;
    config.clock = even_clock;
    config.clock_arg = &now_us;
    enum dtype kv = DTYPE_F32;
    while (strcmp(dtype_name(kv), scene->kv) != 0)
        kv++;
    config.kv_bytes = scene->n_pages * model->kernels->page_bytes(model->device, kv);
    if (engine_create(model, &config, &load->engine, &err) != OK) fail_msg("%s", err.msg);
    assert_string_equal(engine_info(load->engine)->kv_dtype, scene->kv);
    if (engine_start(load->engine, ignore_wake, NULL, &err) != OK) fail_msg("%s", err.msg);
}

static void run_scene(const struct scene *scene, const struct kernels *table) {
    static struct load load;
    struct engine_gauges warm, end;
    struct model *model = load_model(scene, table);
    memset(&load, 0, sizeof load);
    load.scene = scene;
    rng_seed(&load.rng, test_seed());
    start(&load, model);
    bool ref = table == kernels_ref(); /* slow, and has most code in common with the others */
    keep_busy(&load, ref ? REF_STEPS : WARM_STEPS);
    engine_gauges(load.engine, &warm);
    atomic_store(&n_split, 0);
    atomic_store(&n_calls, 0);
    atomic_store(&armed, true);
    keep_busy(&load, ref ? REF_STEPS : STEPS);
    atomic_store(&armed, false);
    engine_gauges(load.engine, &end);
    engine_stop(load.engine);
    drain(&load);
    printf("# %s: %s %s %s KV %s, drafts %d: %llu steps, %llu texts ended, %llu cancelled, %llu "
           "preempted, %llu of %llu drafts kept, %llu prompt tokens cached, %llu splits\n",
           table->name, scene->checkpoint, scene->dtype, scene->activations, scene->kv,
           scene->drafts, (unsigned long long)(end.steps - warm.steps),
           (unsigned long long)load.n_ended, (unsigned long long)load.n_cancelled,
           (unsigned long long)(end.preemptions - warm.preemptions),
           (unsigned long long)load.n_accepted, (unsigned long long)end.proposed_tokens,
           (unsigned long long)load.n_prompt_cached, (unsigned long long)atomic_load(&n_split));
    uint64_t n = atomic_load(&n_calls);
    if (n > 0) fail_msg("%llu calls, the last: %s", (unsigned long long)n, atomic_load(&last_call));
    assert_true(load.n_ended > 0);
    if (!ref) {
        assert_true(load.n_cancelled > 0 && load.n_prompt_cached > 0);
        assert_true(end.proposed_tokens > warm.proposed_tokens);
        assert_true(end.preemptions > warm.preemptions);
        assert_true(!scene->splits || atomic_load(&n_split) > 100); /* ref has none */
    }
    engine_destroy(load.engine);
    model_destroy(model);
}

static void a_thousand_steps_allocate_nothing(void **state) {
    (void)state;
    if (!COUNTING) skip();
    loop_thread = true;
    for (uint32_t t = 0; t < n_tables; t++) {
        if (tiles_are_emulated() && tables[t] != kernels_amx()) continue;
        for (size_t i = 0; i < ARRAY_LEN(scenes); i++) {
            uint64_t before = tiles_are_emulated() ? tiles_products() : 0;
            if (tiles_are_emulated() && !strcmp(scenes[i].activations, "f32")) continue;
            run_scene(&scenes[i], tables[t]);
            assert_true(!tiles_are_emulated() || tiles_products() > before);
        }
    }
}

int main(void) {
    tables_find();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocation_on_another_thread_is_counted),
        cmocka_unit_test(a_thousand_steps_allocate_nothing),
    };
    return cmocka_run_group_tests_name("no_allocation", tests, NULL, NULL);
}
