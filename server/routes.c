#include "server/routes.h"

#include <string.h>

#include "server/clock.h"
#include "server/front.h"
#include "server/generation.h"
#include "server/metrics.h"

static void handle_completions(struct exchange *ex) {
    front_submit(ex, ROUTE_COMPLETION, FRONT_GENERATE);
}

static void handle_chat(struct exchange *ex) {
    front_submit(ex, ROUTE_CHAT, FRONT_GENERATE);
}

static void handle_render_completions(struct exchange *ex) {
    front_submit(ex, ROUTE_COMPLETION, FRONT_RENDER);
}

static void handle_render_chat(struct exchange *ex) {
    front_submit(ex, ROUTE_CHAT, FRONT_RENDER);
}

static void handle_tokenize(struct exchange *ex) {
    front_submit(ex, ROUTE_TOKENIZE, FRONT_TOKENS);
}

static void handle_detokenize(struct exchange *ex) {
    front_submit(ex, ROUTE_DETOKENIZE, FRONT_TOKENS);
}

/* ---- probes ---------------------------------------------------------------------------------- */

static void answer_status(struct exchange *ex, int http, const char *status, const char *phase,
                          double progress, const char *reason) {
    struct buf body = {0};
    proto_status(&body, status, phase, progress, reason);
    exchange_answer(ex, http, &body);
}

static void handle_live(struct exchange *ex) {
    answer_status(ex, 200, "ok", NULL, -1, NULL);
}

static const char *phase_name(int phase) {
    static const char *const NAMES[] = {"open", "weights", "cache", "warmup", "warmup"};
    return phase >= 0 && phase < (int)ARRAY_LEN(NAMES) ? NAMES[phase] : NAMES[0];
}

/* Loading or failed: answered, true. */
static bool answer_unwell(struct exchange *ex) {
    struct server *server = ex->server;
    if (!server->live) { /* set once the model is loaded */
        answer_status(ex, 503, "loading", phase_name(server->progress.phase),
                      (double)server->progress.permille / 1000.0, NULL);
        return true;
    }
    if (server->phase == PHASE_FAILED) {
        answer_status(ex, 503, "failed", NULL, -1, "the compute device failed");
        return true;
    }
    if (server_engine_silence(server) > server->options->watchdog) {
        answer_status(ex, 503, "failed", NULL, -1, "the engine makes no progress");
        return true;
    }
    return false;
}

static void handle_health(struct exchange *ex) {
    if (!answer_unwell(ex)) answer_status(ex, 200, "ok", NULL, -1, NULL);
}

static void handle_ready(struct exchange *ex) {
    if (ex->server->phase == PHASE_DRAINING || ex->server->phase == PHASE_STOPPING)
        answer_status(ex, 503, "draining", NULL, -1, NULL);
    else
        handle_health(ex);
}

/* While the model is loading nobody may ask it yet: what was asked for, if that says it. */
static const char *backend_of(const struct server *server) {
    if (server->live) return model_info(server->model)->backend;
    return strcmp(server->options->backend, "cuda") == 0 ? "cuda" : "cpu";
}

static void handle_version(struct exchange *ex) {
    struct buf body = {0};
    proto_version(&body, GERYON_VERSION, GERYON_COMMIT, backend_of(ex->server));
    exchange_answer(ex, 200, &body);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static uint64_t free_bytes(struct server *server) {
    enum { FRESH_US = 1000000 };
    uint64_t now_us = clock_us();
    if (!server->free_bytes_at_us || now_us - server->free_bytes_at_us > FRESH_US) {
        server->free_bytes = engine_memory_free(server->live ? server->engine : NULL);
        server->free_bytes_at_us = now_us;
    }
    return server->free_bytes;
}

static void handle_metrics(struct exchange *ex) {
    struct server *server = ex->server;
    bool loaded = server->live != NULL; /* before, the loading thread may still be writing */
    const struct option_list *asked = &server->options->served_model_names;
    const char *early_name = asked->n ? asked->items[0] : NULL;
    struct engine_gauges gauges;
    engine_gauges(loaded ? server->engine : NULL, &gauges);
    struct metrics_source source = {
        .gauges = &gauges,
        .engine = loaded ? engine_info(server->engine) : NULL,
        .model = loaded ? model_info(server->model) : NULL,
        .model_name = loaded ? server->names[0] : early_name,
        .version = GERYON_VERSION,
        .commit = GERYON_COMMIT,
        .backend = backend_of(server),
        .load_progress = server->progress.permille / 1000.0,
        .free_bytes = free_bytes(server),
    };
    struct buf body = {0};
    metrics_write(server->metrics, &source, &body);
    exchange_answer(ex, 200, &body);
    ex->content_type = METRICS_CONTENT_TYPE;
}

/* ---- models ---------------------------------------------------------------------------------- */

static struct model_card card_of(const struct server *server, size_t i) {
    return (struct model_card){
        .id = server->names[i],
        .root = model_info(server->model)->path,
        .created = server->started_unix,
        .max_model_len = engine_info(server->engine)->max_model_len,
    };
}

/* What is served is known once the model is loaded, and stays known while draining. */
static bool refuse_while_loading(struct exchange *ex) {
    if (ex->server->live) return false;
    struct api_error error;
    api_error_set(&error, API_MODEL_LOADING, NULL, "the model is still loading");
    exchange_refuse(ex, &error);
    return true;
}

static void handle_props(struct exchange *ex) {
    if (refuse_while_loading(ex)) return;
    const struct server *server = ex->server;
    const struct model_info *model = model_info(server->model);
    const struct engine_info *engine = engine_info(server->engine);
    struct props props = {
        .names = server->names,
        .n_names = server->n_names,
        .path = model->path,
        .architecture = model->architecture,
        .fingerprint = server->fingerprint,
        .defaults = server->defaults,
        .max_model_len = engine->max_model_len,
        .vocab_size = model->vocab_size,
        .page_size = engine->page_tokens,
        .n_pages = engine->n_pages,
        .draft_block = engine->draft_block,
        .window = model->window,
        .weight_dtype = model->weight_dtype,
        .kv_dtype = engine->kv_dtype,
        .kernels = model->kernel_table,
        .activations = model->activations,
        .max_n = server->limits.max_n,
        .max_choices = server->limits.max_choices,
        .max_num_seqs = engine->max_num_seqs,
        .max_queued = server->options->max_queued_requests,
        .max_body_bytes = server->options->max_body_bytes,
        .scheduling = server->options->scheduling,
        .chat_template = model->chat_template,
    };
    struct buf body = {0};
    proto_props(&body, &props);
    exchange_answer(ex, 200, &body);
}

static void handle_slots(struct exchange *ex) {
    if (!ex->server->options->slots) {
        struct api_error error;
        api_error_set(&error, API_UNKNOWN_URL, NULL,
                      "there is no route GET /slots: the server was started without --slots");
        exchange_refuse(ex, &error);
        return;
    }
    if (refuse_while_loading(ex)) return;
    struct buf body = {0};
    generation_write_slots(ex->server, &body);
    exchange_answer(ex, 200, &body);
}

static void handle_models(struct exchange *ex) {
    if (refuse_while_loading(ex)) return;
    struct model_card cards[OPTION_LIST_MAX];
    for (size_t i = 0; i < ex->server->n_names; i++)
        cards[i] = card_of(ex->server, i);
    struct buf body = {0};
    proto_models(&body, cards, ex->server->n_names);
    exchange_answer(ex, 200, &body);
}

static void handle_model(struct exchange *ex) {
    if (refuse_while_loading(ex)) return;
    const char *path = NULL;
    size_t len = 0, skip = strlen("/v1/models/");
    char id[512];
    bool ok = http_headers_path(ex->target, &path, &len) && len > skip &&
              http_headers_unescape(path + skip, len - skip, id, sizeof id);
    struct buf body = {0};
    for (size_t i = 0; ok && i < ex->server->n_names; i++) {
        if (strcmp(id, ex->server->names[i])) continue;
        struct model_card card = card_of(ex->server, i);
        proto_model(&body, &card);
        exchange_answer(ex, 200, &body);
        return;
    }
    struct api_error error;
    api_error_set(&error, API_MODEL_NOT_FOUND, "model", "the model \"%.200s\" is not served here",
                  ok ? id : "?");
    exchange_refuse(ex, &error);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define PROBE(path, handler) \
    { path, METHOD_GET, false, false, true, handler, "GET, HEAD, OPTIONS" }

#define ON_FRONT(path, handler) \
    { path, METHOD_POST, true, false, false, handler, "POST, OPTIONS" }

static const struct route ROUTES[] = {
    {"/v1/completions", METHOD_POST, true, true, false, handle_completions, "POST, OPTIONS"},
    {"/v1/chat/completions", METHOD_POST, true, true, false, handle_chat, "POST, OPTIONS"},
    ON_FRONT("/v1/completions/render", handle_render_completions),
    ON_FRONT("/v1/chat/completions/render", handle_render_chat),
    ON_FRONT("/tokenize", handle_tokenize),
    ON_FRONT("/v1/tokenize", handle_tokenize),
    ON_FRONT("/detokenize", handle_detokenize),
    ON_FRONT("/v1/detokenize", handle_detokenize),
    {"/v1/models", METHOD_GET, true, false, false, handle_models, "GET, HEAD, OPTIONS"},
    {"/v1/models/*", METHOD_GET, true, false, false, handle_model, "GET, HEAD, OPTIONS"},
    {"/props", METHOD_GET, true, false, false, handle_props, "GET, HEAD, OPTIONS"},
    {"/slots", METHOD_GET, true, false, false, handle_slots, "GET, HEAD, OPTIONS"},
    {"/version", METHOD_GET, false, false, false, handle_version, "GET, HEAD, OPTIONS"},
    PROBE(METRICS_PATH, handle_metrics),
    PROBE("/live", handle_live),
    PROBE("/livez", handle_live),
    PROBE("/health", handle_health),
    PROBE("/healthz", handle_health),
    PROBE("/ready", handle_ready),
    PROBE("/readyz", handle_ready),
};

const struct route *routes_find(const char *path, size_t len) {
    for (size_t i = 0; i < ARRAY_LEN(ROUTES); i++) {
        const char *pattern = ROUTES[i].path;
        size_t n = strlen(pattern);
        bool prefix = pattern[n - 1] == '*';
        if (prefix ? len >= n && !memcmp(path, pattern, n - 1)
                   : len == n && !memcmp(path, pattern, n))
            return &ROUTES[i];
    }
    return NULL;
}
