/* server.c: the life of the process: listen, load on a thread of its own, serve, drain, stop. */
#include "server/server.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/clock.h"
#include "server/cmd.h"
#include "server/exchange.h"
#include "server/front.h"
#include "server/generation.h"
#include "server/live.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/sink.h"

enum {
    TICK_MS = 200,
    STOP_TICK_MS = 20,
    FLUSH_US = 1000000,         /* for the last error events */
    FAILED_LINGER_US = 2000000, /* after a device failure: late callers still get their 503 */
    FAILED_MAX_US = 10000000,
    DRAIN_ENGINE_US = 2000000,
};

/* ---- what others ask ------------------------------------------------------------------------- */

static void set_phase(struct server *server, enum server_phase phase) {
    server->phase = phase;
    server->phase_since_us = clock_us();
}

bool server_unavailable(const struct server *server, struct api_error *err) {
    switch (server->phase) {
    case PHASE_READY:
        return false;
    case PHASE_LOADING:
        api_error_set(err, API_MODEL_LOADING, NULL, "the model is still loading");
        return true;
    case PHASE_DRAINING:
    case PHASE_STOPPING:
        if (server->exit_code)
            api_error_set(err, API_ENGINE_FAILED, NULL, "the engine has failed");
        else
            api_error_set(err, API_SHUTTING_DOWN, NULL, "the server is shutting down");
        return true;
    case PHASE_FAILED:
        api_error_set(err, API_ENGINE_FAILED, NULL, "the engine has failed");
        return true;
    }
    return true;
}

uint32_t server_retry_ms(const struct server *server, const struct api_error *err) {
    enum { LEAST_MS = 100, MOST_MS = 60000, UNKNOWN_MS = 1000, SOON_MS = 2000, LATER_MS = 5000 };
    if (err->status != 429 && err->status != 503) return 0;
    if (server->phase == PHASE_LOADING) return SOON_MS;
    if (server->phase != PHASE_READY) return LATER_MS; /* another process must take over */
    double ms = server->live ? live_ms_per_sequence(server->live, clock_us()) : 0;
    if (ms <= 0) return UNKNOWN_MS;
    return ms < LEAST_MS ? LEAST_MS : ms > MOST_MS ? MOST_MS : (uint32_t)ms;
}

double server_engine_silence(const struct server *server) {
    struct engine_gauges gauges;
    engine_gauges(server->engine, &gauges); /* its clock is ours: CLOCK_MONOTONIC */
    return clock_ms(gauges.last_step_us, clock_us()) / 1000;
}

void server_engine_failed(struct server *server) {
    if (server->exit_code) return;
    server->exit_code = 1;
    log_event(LOG_ERROR, "engine_failed", log_str("error", "the compute device failed"),
              log_str("fault", engine_fault(server->engine)),
              log_int("live", live_n(server->live)));
    if (server->phase < PHASE_FAILED) set_phase(server, PHASE_FAILED);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* On the loading thread. */
static void load(void *arg) {
    struct server *server = arg;
    const struct options *options = server->options;
    struct model_options model_options = cmd_model_options(options);
    struct engine_config config = cmd_engine_config(options);
    model_options.progress = &server->progress;
    config.max_queued = options->max_queued_requests;
    config.trace = server->trace;
    int rc = model_load(&model_options, &server->model, &server->load_err);
    if (!rc) {
        atomic_store(&server->progress.phase, LOAD_CACHE);
        rc = engine_create(server->model, &config, &server->engine, &server->load_err);
    }
    if (!rc) {
        atomic_store(&server->progress.phase, LOAD_WARMUP);
        atomic_store(&server->progress.permille, 1000);
    }
    server->load_rc = rc;
    uv_async_send(&server->load_done);
}

/* From the engine's thread. */
static void on_engine_notify(void *arg) {
    uv_async_send(arg);
}

/* Same fingerprint, seed and body: same output. */
static void make_fingerprint(struct server *server) {
    uint64_t h = model_info(server->model)->fingerprint ^ 0xcbf29ce484222325u;
    const char *parts[] = {GERYON_VERSION, engine_info(server->engine)->kv_dtype,
                           model_info(server->model)->backend,
                           model_info(server->model)->kernel_table};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        for (const char *c = parts[i]; *c; c++)
            h = (h ^ (unsigned char)*c) * 0x100000001b3u;
    snprintf(server->fingerprint, sizeof server->fingerprint, "fp_%012llx",
             (unsigned long long)(h ^ h >> 48) & 0xffffffffffffu);
}

/* Ranges are those of the API's fields. */
static int take_hint(const struct sampling_hint *hint, const char *name, double lo, double hi,
                     double *out, struct err *err) {
    if (!hint->given) return OK;
    if (!(hint->value >= lo && hint->value <= hi))
        return err_set(err, ERR_INVALID,
                       "--sampling-defaults model: generation_config.json: %s is %g, a number from "
                       "%g to %g is expected",
                       name, hint->value, lo, hi);
    *out = hint->value;
    return OK;
}

/* What requests begin with: the API's values, or where it has some, the model's. */
static int make_defaults(struct server *server, struct err *err) {
    struct sampling *defaults = &server->defaults;
    const struct sampling_hints *hints = &model_info(server->model)->hints;
    const double vocab_size = model_info(server->model)->vocab_size;
    double top_k = 0;
    sampling_defaults(defaults);
    if (!strcmp(server->options->sampling_defaults, "request")) return OK;
    int rc = take_hint(&hints->temperature, "temperature", 0, 2, &defaults->temperature, err);
    if (!rc) rc = take_hint(&hints->top_p, "top_p", 0, 1, &defaults->top_p, err);
    if (!rc) rc = take_hint(&hints->min_p, "min_p", 0, 1, &defaults->min_p, err);
    if (!rc) rc = take_hint(&hints->top_k, "top_k", -1, INT32_MAX, &top_k, err);
    if (!rc)
        rc = take_hint(&hints->repetition_penalty, "repetition_penalty", REPETITION_LEAST, 10,
                       &defaults->repetition_penalty, err);
    if (top_k >= 1) defaults->top_k = (int32_t)(top_k < vocab_size ? top_k : vocab_size);
    return rc;
}

static int publish_model(struct server *server, struct err *err) {
    const struct model_info *info = model_info(server->model);
    const struct option_list *names = &server->options->served_model_names;
    server->n_names = names->n;
    memcpy(server->names, names->items, names->n * sizeof names->items[0]);
    if (!names->n) server->names[server->n_names++] = info->name;
    server->limits = (struct proto_limits){
        .vocab_size = info->vocab_size,
        .max_n = server->options->max_n,
        .max_choices = server->options->max_choices,
        .tokenizer_adds_bos = info->adds_bos,
        .strict_params = server->options->strict_params,
        .has_priorities = !strcmp(server->options->scheduling, "priority"),
        .has_chat_template = info->has_chat_template,
        .chat_template_error = info->chat_template_error,
        .model_names = server->names,
        .n_model_names = server->n_names,
        .defaults = &server->defaults,
    };
    make_fingerprint(server);
    return make_defaults(server, err);
}

static void log_ready(const struct server *server) {
    const struct model_info *model = model_info(server->model);
    const struct engine_info *engine = engine_info(server->engine);
    uint64_t each = http_connection_bytes(server);
    uint64_t connections = server->max_connections * each;
    uint64_t bodies = exchange_bodies_max(server), unsent = exchange_out_max();
    if (model->notice) log_event(LOG_WARN, "backend", log_str("notice", model->notice));
    if (engine->notice) log_event(LOG_WARN, "lowered", log_str("notice", engine->notice));
    if (model->chat_template_error)
        log_event(LOG_WARN, "no_chat", log_str("reason", model->chat_template_error));
    log_event(
        LOG_INFO, "memory", log_int("weights_bytes", (int64_t)model->weight_bytes),
        log_int("kv_bytes", (int64_t)engine->kv_bytes),
        log_int("workspace_bytes", (int64_t)engine->workspace_bytes),
        log_int("connection_bytes", (int64_t)each),
        log_int("connections_bytes_at_most", (int64_t)connections),
        log_int("bodies_bytes_at_most", (int64_t)bodies),
        log_int("unsent_bytes_at_most", (int64_t)unsent),
        log_int("sum_bytes", (int64_t)(model->weight_bytes + engine->kv_bytes +
                                       engine->workspace_bytes + connections + bodies + unsent)));
    log_event(LOG_INFO, "ready", log_str("model", server->names[0]),
              log_str("architecture", model->architecture), log_str("dtype", model->weight_dtype),
              log_str("backend", model->backend), log_str("hardware", model->hardware),
              log_str("kernels", model->kernel_table), log_str("activations", model->activations),
              log_str("kv_dtype", engine->kv_dtype),
              log_int("max_model_len", engine->max_model_len),
              log_int("max_num_seqs", engine->max_num_seqs), log_int("pages", engine->n_pages),
              log_int("draft_block", engine->draft_block), log_int("window", model->window),
              log_str("fingerprint", server->fingerprint));
}

static int create_live(struct server *server, struct err *err) {
    uint32_t cap = engine_info(server->engine)->max_num_seqs + server->options->max_queued_requests;
    server->live = live_create(cap);
    return server->live ? OK : err_set(err, ERR_NOMEM, "no memory for %u live sequences", cap);
}

static void begin_stop(struct server *server);

static void on_loaded(uv_async_t *async) {
    struct server *server = async->data;
    struct err *err = &server->load_err;
    if (server->phase != PHASE_LOADING) return; /* stopped meanwhile: the loader is joined later */
    int rc = server->load_rc;
    if (!rc) rc = publish_model(server, err);
    if (!rc) rc = create_live(server, err);
    if (!rc) {
        rc = engine_start(server->engine, on_engine_notify, &server->engine_news, err);
    }
    if (rc) {
        log_event(LOG_ERROR, "load_failed", log_str("error", err->msg));
        server->exit_code = 1;
        begin_stop(server);
        return;
    }
    atomic_store(&server->progress.phase, LOAD_DONE);
    set_phase(server, PHASE_READY);
    log_ready(server);
}

/* ---- running --------------------------------------------------------------------------------- */

static void on_engine_news(uv_async_t *async) {
    struct server *server = async->data;
    if (!server->live) return;
    bool more = generation_deliver(server);
    http_drive(server->http);
    if (more) uv_async_send(async); /* let the loop turn in between */
}

static void fail_all(struct server *server, enum api_code code, const char *message) {
    struct api_error error;
    api_error_set(&error, code, NULL, "%s", message);
    for (struct conn *conn = http_conns(server->http); conn; conn = conn->next) {
        struct exchange *ex = conn->exchange;
        if (ex && (ex->state == EXCHANGE_FRONT || ex->state == EXCHANGE_RUNNING))
            generation_fail(ex, &error);
    }
}

/* Nobody may be suspended when the daemon is stopped. */
static void finish_stop(struct server *server) {
    for (struct conn *conn = http_conns(server->http); conn; conn = conn->next)
        if (conn->exchange) exchange_gone(conn->exchange);
    http_drive(server->http);
    http_close(server->http);
    uv_stop(&server->loop);
}

static void begin_stop(struct server *server) {
    if (server->phase == PHASE_STOPPING) return;
    http_stop_listening(server->http);
    if (server->exit_code)
        fail_all(server, API_INTERNAL_ERROR, "the compute device failed");
    else
        fail_all(server, API_SHUTTING_DOWN, "the server was shut down before this was finished");
    set_phase(server, PHASE_STOPPING);
    http_drive(server->http);
    uv_timer_set_repeat(&server->tick, STOP_TICK_MS);
    uv_timer_again(&server->tick);
}

static void tick_phase(struct server *server, uint64_t now_us) {
    uint64_t in_phase = now_us - server->phase_since_us;
    double seconds = (double)in_phase / 1e6;
    switch (server->phase) {
    case PHASE_LOADING:
        break;
    case PHASE_READY:
        break;
    case PHASE_DRAINING:
        if (!server->n_generating || seconds >= server->options->shutdown_timeout)
            begin_stop(server);
        break;
    case PHASE_FAILED:
        if ((!server->n_generating && in_phase > FAILED_LINGER_US) || in_phase > FAILED_MAX_US)
            begin_stop(server);
        break;
    case PHASE_STOPPING:
        if (!server->n_generating || in_phase > FLUSH_US) finish_stop(server);
        break;
    }
}

static void tick_engine(struct server *server) {
    if (!server->live) return; /* the loading thread may still be writing */
    struct engine_gauges gauges;
    engine_gauges(server->engine, &gauges);
    if (gauges.failed) server_engine_failed(server);
}

static void on_tick(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now_us = clock_us();
    static uint64_t last_second;
    bool each_second = now_us / 1000000 != last_second;
    last_second = now_us / 1000000;
    for (struct conn *conn = http_conns(server->http); conn; conn = conn->next)
        exchange_tick(conn, now_us, each_second);
    sink_tick(server->sink, now_us);
    tick_engine(server);
    http_drive(server->http);
    tick_phase(server, now_us);
}

static void on_signal(uv_signal_t *handle, int number) {
    struct server *server = handle->data;
    if (server->n_signals++) _exit(128 + number);
    log_event(LOG_INFO, "shutting_down", log_int("signal", number),
              log_int("running", server->n_generating));
    if (server->phase == PHASE_FAILED) return; /* on its way out already */
    if (server->phase == PHASE_LOADING) {
        atomic_store(&server->progress.cancel, true);
        begin_stop(server);
        return;
    }
    set_phase(server, PHASE_DRAINING);
    tick_phase(server, clock_us());
}

/* ---- starting and ending --------------------------------------------------------------------- */

static int start(struct server *server, struct err *err) {
    const struct options *options = server->options;
    uv_loop_init(&server->loop);
    uv_timer_init(&server->loop, &server->tick);
    uv_async_init(&server->loop, &server->engine_news, on_engine_news);
    uv_async_init(&server->loop, &server->load_done, on_loaded);
    uv_signal_init(&server->loop, &server->sigterm);
    uv_signal_init(&server->loop, &server->sigint);
    server->tick.data = server->engine_news.data = server->load_done.data = server;
    server->sigterm.data = server->sigint.data = server;
    server->started_unix = clock_unix();
    set_phase(server, PHASE_LOADING);
    if (options->trace && !(server->trace = fopen(options->trace, "we")))
        return err_set(err, ERR_IO, "--trace %s: %s", options->trace, strerror(errno));
    server->sink = sink_create(&server->loop);
    server->metrics = metrics_create();
    if (!server->sink || !server->metrics) return err_set(err, ERR_NOMEM, "out of memory");
    int rc = front_create(server, err);
    if (!rc) rc = keys_load(options, &server->keys, err);
    if (!rc) rc = http_create(server, err);
    uint32_t port = 0;
    if (!rc) rc = http_listen(server, &port, err);
    if (rc) return rc;
    bool is_ipv6 = strchr(options->host, ':') != NULL;
    printf("listening on http%s://%s%s%s:%u\n", options->tls_cert ? "s" : "", is_ipv6 ? "[" : "",
           options->host, is_ipv6 ? "]" : "", port);
    fflush(stdout);
    uv_signal_start(&server->sigterm, on_signal, SIGTERM);
    uv_signal_start(&server->sigint, on_signal, SIGINT);
    uv_timer_start(&server->tick, on_tick, TICK_MS, TICK_MS);
    if (uv_thread_create(&server->loader, load, server))
        return err_set(err, ERR_IO, "cannot start the loading thread");
    return OK;
}

/* What was cancelled comes back before the engine may be destroyed. */
static void drain_engine(struct server *server) {
    uint64_t deadline = clock_us() + DRAIN_ENGINE_US;
    while (live_n(server->live) && clock_us() < deadline)
        if (!generation_deliver(server)) usleep(1000);
    engine_stop(server->engine);
}

static void close_any(uv_handle_t *handle, void *arg) {
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void end(struct server *server, bool has_loader) {
    if (has_loader) uv_thread_join(&server->loader);
    if (server->live) drain_engine(server);
    if (server->http) http_close(server->http);
    if (server->sink) sink_close_all(server->sink);
    uv_walk(&server->loop, close_any, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT); /* closes handles, takes back jobs of the front pool */
    uv_loop_close(&server->loop);
    http_destroy(server->http);
    sink_destroy(server->sink);
    front_destroy(server->front);
    keys_destroy(server->keys);
    live_destroy(server->live);
    metrics_destroy(server->metrics);
    engine_destroy(server->engine);
    model_destroy(server->model);
    if (server->trace) fclose(server->trace);
}

int server_run(const struct options *options) {
    struct server *server = calloc(1, sizeof *server);
    struct err err = {0};
    if (!server) return 1;
    server->options = options;
    signal(SIGPIPE, SIG_IGN);
    /* In a container all orphans fall to process 1, which must not keep them as zombies. */
    if (getpid() == 1) signal(SIGCHLD, SIG_IGN);
    int rc = start(server, &err);
    if (rc) {
        log_event(LOG_ERROR, "start_failed", log_str("error", err.msg));
        server->exit_code = 1;
    } else {
        uv_run(&server->loop, UV_RUN_DEFAULT);
        log_event(LOG_INFO, "stopped", log_int("exit", server->exit_code));
    }
    int exit_code = server->exit_code;
    end(server, !rc);
    free(server);
    return exit_code;
}
