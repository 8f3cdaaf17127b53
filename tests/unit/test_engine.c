/* The engine's bounds on the scripted model, each at its worst: turns under a small row budget, and the
 * two rings between the threads; and both threads at once. */
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "tests/harness.h"
#include "tests/scripted/scripted.h"

enum { REQUESTS_MAX = 256, PROMPT = 4 };

static struct model *make_model(const char *json) {
    struct model *model = NULL;
    struct err err;
    if (scripted_model_from_json(json, strlen(json), &model, &err) != OK) fail_msg("%s", err.msg);
    return model;
}

static struct engine *make_engine(struct model *model, const struct engine_config *config) {
    struct engine *engine = NULL;
    struct err err;
    if (engine_create(model, config, &engine, &err) != OK) fail_msg("%s", err.msg);
    return engine;
}

static void submit(struct engine *engine, struct request *request) {
    static int32_t prompt[PROMPT];
    struct err err;
    request->prompt = prompt;
    request->n_prompt = PROMPT;
    if (engine_submit(engine, request, &err) != OK) fail_msg("%s", err.msg);
}

static struct request make_request(uint64_t id, uint32_t max_tokens) {
    struct request r = {.id = id, .max_tokens = max_tokens};
    sampling_defaults(&r.sampling);
    r.sampling.temperature = 0;
    return r;
}

/* ---- turns ------------------------------------------------------------------------------------- */

/* Rows for half of the running texts, and fixed draft blocks that never find room beside them: every
 * text gets on all the same. */
static void texts_without_a_row_come_next_where_drafts_find_no_room(void **state) {
    (void)state;
    enum { N = 16, ROWS = 8, STEPS = 64 };
    struct model *model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1],"
                                     "\"context\":1024,\"block_size\":8}");
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = N;
    config.max_batched_rows = ROWS;
    config.drafts = 4;
    struct engine *engine = make_engine(model, &config);
    struct request requests[N];
    for (uint32_t i = 0; i < N; i++) {
        requests[i] = make_request(i, 900);
        submit(engine, &requests[i]);
    }
    uint64_t t = 0;
    uint32_t before[N], n_decoding = 0;
    struct event event;
    while (n_decoding < N) {
        assert_true(engine_step(engine, t++) > 0);
        assert_true(t < 1000);
        while (engine_next_event(engine, &event))
            continue;
        n_decoding = 0;
        for (uint32_t i = 0; i < N; i++) {
            const struct sequence *seq = scheduler_running(engine->scheduler)[i];
            n_decoding += seq && seq->state == SEQ_DECODE;
        }
    }
    for (uint32_t i = 0; i < N; i++)
        before[i] = scheduler_running(engine->scheduler)[i]->n_output;
    for (uint32_t step = 0; step < STEPS; step++) {
        assert_true(engine_step(engine, t++) > 0);
        while (engine_next_event(engine, &event))
            continue;
    }
    for (uint32_t i = 0; i < N; i++) {
        uint32_t got = scheduler_running(engine->scheduler)[i]->n_output - before[i];
        if (got < STEPS / 4) fail_msg("text %u got %u tokens in %d steps", i, got, STEPS);
    }
    engine_destroy(engine);
    model_destroy(model);
}

/* ---- rings ------------------------------------------------------------------------------------- */

/* Between two steps every place may see both cancels of a text that has ended, and three commands of
 * the one that takes its place. */
static void commands_for_ended_texts_and_their_successors_fit(void **state) {
    (void)state;
    enum { N = 64 };
    struct model *model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1]}");
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = N;
    config.max_queued = 0;
    struct engine *engine = make_engine(model, &config);
    static struct request requests[2 * N];
    for (uint32_t i = 0; i < N; i++) {
        requests[i] = make_request(i, 1);
        submit(engine, &requests[i]);
    }
    struct event event;
    while (engine_step(engine, 1) > 0)
        continue;
    for (uint32_t i = 0; i < N; i++) {
        engine_cancel(engine, i);
        engine_cancel_waiting(engine, i);
    }
    uint32_t n_ended = 0;
    while (engine_next_event(engine, &event))
        n_ended += event.kind == EVENT_FINISHED;
    assert_int_equal(n_ended, N);
    for (uint32_t i = N; i < 2 * N; i++) {
        requests[i] = make_request(i, 1);
        submit(engine, &requests[i]);
        engine_cancel(engine, i);
        engine_cancel_waiting(engine, i);
    }
    while (engine_step(engine, 2) > 0)
        continue;
    for (n_ended = 0; engine_next_event(engine, &event);)
        n_ended += event.finish == FINISH_CANCELLED;
    assert_int_equal(n_ended, N);
    engine_destroy(engine);
    model_destroy(model);
}

/* A text that was preempted waits with text that a stop string withholds, which its end releases. All
 * who wait are cancelled in one step, which has just the room that a step asks for. */
static void preempted_texts_that_withhold_text_can_all_be_cancelled(void **state) {
    (void)state;
    enum { N = 200, OUTPUT = STOP_STRING_BYTES_MAX - 1 };
    struct model *model =
        make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0],\"context\":65536}");
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = 1;
    config.max_queued = N - 1;
    struct engine *engine = make_engine(model, &config);
    static struct request requests[N];
    struct event event;
    uint64_t t = 0;
    for (uint32_t i = 0; i < N; i++) { /* each served before all others */
        requests[i] = make_request(i, 60000);
        requests[i].priority = -(int32_t)i;
        struct sampling *s = &requests[i].sampling;
        s->n_stop = i + 1 < N;
        s->stop[0].len = STOP_STRING_BYTES_MAX;
        memset(s->stop[0].text, 'a', STOP_STRING_BYTES_MAX);
        submit(engine, &requests[i]);
        scheduler_preempt_youngest(engine->scheduler);
        for (uint32_t step = 0; i + 1 < N && step < OUTPUT; step++)
            assert_true(engine_step(engine, t++) > 0);
        assert_false(engine_next_event(engine, &event));
    }
    for (uint64_t steps = UINT64_MAX; steps != engine->counters.steps;) { /* until no more fits */
        steps = engine->counters.steps;
        assert_true(engine_step(engine, t++) > 0);
    }
    for (uint32_t i = 0; i < N; i++)
        engine_cancel(engine, i);
    uint32_t n_ended = 0, n_text = 0;
    do {
        assert_true(engine_next_event(engine, &event));
        n_text += event.text_len;
    } while (engine_step(engine, t++) > 0);
    while (engine_next_event(engine, &event)) {
        n_ended += event.finish == FINISH_CANCELLED;
        n_text += event.text_len;
    }
    assert_int_equal(n_ended, N);
    assert_true(n_text > N * OUTPUT);
    engine_destroy(engine);
    model_destroy(model);
}

/* ---- two threads ------------------------------------------------------------------------------- */

static void post(void *sem) {
    sem_post(sem);
}

/* The loop thread submits, cancels and looks on while the engine thread runs: for ThreadSanitizer, and
 * every text that is not cancelled is whole. */
static void the_loop_thread_looks_on_while_texts_run(void **state) {
    (void)state;
    enum { N = 150, LIVE = 12, OUTPUT = 20 };
    struct model *model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1],"
                                     "\"context\":64,\"block_size\":4,\"state\":true}");
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = 4;
    config.max_queued = LIVE - 4;
    config.kv_bytes = 8 * model->kernels->page_bytes(model->device, DTYPE_F32);
    struct engine *engine = make_engine(model, &config);
    static struct request requests[N];
    struct err err;
    sem_t woken;
    assert_int_equal(sem_init(&woken, 0, 0), 0);
    assert_int_equal(engine_start(engine, post, &woken, &err), OK);
    uint32_t n_submitted = 0, n_ended = 0, n_cancelled = 0, n_tokens[N] = {0};
    while (n_ended < N) {
        for (; n_submitted < N && n_submitted - n_ended < LIVE; n_submitted++) {
            requests[n_submitted] = make_request(n_submitted, OUTPUT);
            submit(engine, &requests[n_submitted]);
            if (n_submitted % 5 == 1) engine_cancel(engine, n_submitted - 1);
            if (n_submitted % 7 == 1) engine_cancel_waiting(engine, n_submitted);
        }
        sem_wait(&woken);
        struct event event;
        while (engine_next_event(engine, &event)) {
            assert_true(event.kind != EVENT_FAILED);
            for (uint32_t i = 0; i < event.n_tokens; i++)
                assert_int_equal(event.tokens[i], n_tokens[event.id]++ % 2);
            if (event.kind != EVENT_FINISHED) continue;
            bool cancelled = event.finish == FINISH_CANCELLED;
            assert_true(cancelled || n_tokens[event.id] == OUTPUT);
            n_cancelled += cancelled;
            n_ended++;
        }
        struct engine_gauges gauges;
        struct engine_slot slots[LIVE];
        engine_gauges(engine, &gauges);
        assert_true(gauges.running <= 4);
        uint32_t n = engine_slots(engine, slots, LIVE);
        for (uint32_t i = 0; i < n; i++)
            assert_true(slots[i].n_output <= OUTPUT && slots[i].n_pages <= 8);
    }
    engine_stop(engine);
    assert_true(n_cancelled < N / 2);
    sem_destroy(&woken);
    engine_destroy(engine);
    model_destroy(model);
}

/* ---- a device with memory of its own ----------------------------------------------------------- */

enum { WORKSPACE = 1000 };
static uint64_t memory_left; /* of the device that is played */

static uint64_t played_memory_left(const struct device *dev) {
    (void)dev;
    return memory_left;
}

static size_t played_workspace_bytes(const struct device *dev, const struct device_limits *limits) {
    (void)dev;
    return WORKSPACE + limits->n_pages; /* a page costs a byte there */
}

/* The engine on a device that has so much left, or why there is none. */
static int make_on_device(uint64_t left, uint64_t kv_bytes, struct model **model,
                          struct engine **engine, struct err *err) {
    static struct kernels table;
    *model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1],\"context\":4096}");
    table = *(*model)->kernels;
    table.memory_left = played_memory_left;
    table.workspace_bytes = played_workspace_bytes;
    (*model)->kernels = &table;
    memory_left = left;
    struct engine_config config;
    engine_config_defaults(&config);
    config.max_num_seqs = 4;
    config.kv_bytes = kv_bytes;
    return engine_create(*model, &config, engine, err);
}

static void pages_take_what_a_device_has_left(void **state) {
    (void)state;
    struct model *model;
    struct engine *engine = NULL;
    struct err err = {0};
    model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1]}");
    const size_t page = model->kernels->page_bytes(model->device, DTYPE_F32);
    model_destroy(model);
    const struct {
        uint64_t left, kv_bytes;
        uint32_t n_pages; /* 0: refused */
    } cases[] = {
        {100 * page + 100 + WORKSPACE, 0, 90},             /* nine tenths beside the workspace */
        {100 * page + 100 + WORKSPACE, 100 * page, 100},   /* or all of it where it was asked for */
        {100 * page + 100 + WORKSPACE, 100 * page + 1, 0}, /* but not more */
        {100000 * page, 0, 4 * 4096 / PAGE_TOKENS},        /* all sequences at full length */
        {WORKSPACE + page, 0, 0},
        {WORKSPACE - 1, 0, 0},
        {0, 0, 0},
        {0, 4 * page, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int rc = make_on_device(cases[i].left, cases[i].kv_bytes, &model, &engine, &err);
        if (cases[i].n_pages) {
            assert_int_equal(rc, OK);
            /* The workspace that is kept free is that of all pages that there could be. */
            uint32_t least = cases[i].n_pages - 100 / (uint32_t)page - 1;
            assert_in_range(engine_info(engine)->n_pages, least, cases[i].n_pages);
            assert_int_equal(engine_info(engine)->device_free_bytes, cases[i].left);
            assert_int_equal(engine_memory_free(engine), cases[i].left);
            engine_destroy(engine);
        } else {
            assert_int_equal(rc, ERR_NOMEM);
            assert_non_null(strstr(err.msg, "kv-memory"));
            assert_non_null(strstr(err.msg, "the device has"));
        }
        model_destroy(model);
    }
}

/* ---- a device that runs on while the host goes ahead ------------------------------------------- */

static void stated_forward_us(const struct device *dev, uint64_t *draft_us, uint64_t *main_us) {
    (void)dev;
    *draft_us = 3000;
    *main_us = 5000;
}

static uint64_t no_time(void *arg) {
    (void)arg;
    return 1;
}

/* Steps of one text with drafts; what the last line of their trace says of times. */
static void run_traced(struct engine_config *config, const struct kernels *table, char *line,
                       struct engine_gauges *gauges) {
    struct model *model = make_model("{\"vocab\":[\"a\",\"b\"],\"sequence\":[0,1],"
                                     "\"context\":1024,\"block_size\":4}");
    if (table) model->kernels = table;
    config->trace = tmpfile();
    assert_non_null(config->trace);
    struct engine *engine = make_engine(model, config);
    struct request request = make_request(1, 40);
    submit(engine, &request);
    struct event event;
    for (uint64_t t = 0; engine_step(engine, t) > 0; t++)
        while (engine_next_event(engine, &event))
            continue;
    engine_gauges(engine, gauges);
    rewind(config->trace);
    char read[2048];
    line[0] = 0;
    while (fgets(read, sizeof read, config->trace))
        if (strstr(read, "\"drafting\":1")) snprintf(line, sizeof read, "%s", read);
    fclose(config->trace);
    engine_destroy(engine);
    model_destroy(model);
}

/* Where a table measures forwards itself, prices are what it says, and so are the histograms. */
static void a_device_tells_what_its_forwards_took(void **state) {
    (void)state;
    struct kernels table = *kernels_scripted();
    table.forward_us = stated_forward_us;
    struct engine_config config;
    struct engine_gauges gauges;
    char line[2048];
    engine_config_defaults(&config);
    config.drafts = DRAFTS_AUTO;
    run_traced(&config, &table, line, &gauges);
    if (!strstr(line, "\"took_draft_us\":3000,\"took_main_us\":5000") ||
        !strstr(line, "\"main_us\":5000,"))
        fail_msg("trace: %s", line);
    const struct histogram *draft = &gauges.step_seconds[FORWARD_DRAFT];
    uint64_t n = gauges.forwards[FORWARD_DRAFT];
    assert_true(n > 4);
    assert_float_equal(draft->sum, 0.003 * (double)n, 1e-9);

    config.clock = no_time; /* a clock that was given rules */
    run_traced(&config, &table, line, &gauges);
    assert_true(gauges.step_seconds[FORWARD_DRAFT].sum == 0);
    assert_true(gauges.forwards[FORWARD_DRAFT] > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_without_a_row_come_next_where_drafts_find_no_room),
        cmocka_unit_test(commands_for_ended_texts_and_their_successors_fit),
        cmocka_unit_test(preempted_texts_that_withhold_text_can_all_be_cancelled),
        cmocka_unit_test(the_loop_thread_looks_on_while_texts_run),
        cmocka_unit_test(pages_take_what_a_device_has_left),
        cmocka_unit_test(a_device_tells_what_its_forwards_took),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
