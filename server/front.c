/* front.c: the front pool.
 *
 *   submit ──▶ [ parse on the loop if small ] ──▶ uv_queue_work ──▶ parse, template, tokenise
 *                                                      │
 *   order:  job ◀── job ◀── job      head done? ◀──────┘   admitted strictly in order of arrival
 */
#include "server/front.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "server/clock.h"
#include "server/generation.h"
#include "server/log.h"

enum { PARSE_ON_LOOP_BYTES = 16 * 1024 };

struct job {
    uv_work_t work; /* data = job */
    struct job *next;
    struct server *server;
    struct exchange *exchange; /* loop thread; NULL: dropped */
    _Atomic bool dropped;      /* the pool need not bother */
    enum route_kind kind;
    enum front_purpose purpose;
    char request_id[REQUEST_ID_MAX + 1]; /* of the exchange, which may go before the job does */
    struct buf answer;                   /* of a render or token route */
    struct buf body;                     /* until parsed */
    uint64_t body_bytes;
    bool has_request, failed, done;
    struct api_request request;
    struct tokens *prompts;
    uint32_t n_prompts;
    struct api_error error;
};

struct front {
    struct job *head, *tail; /* in order of arrival */
};

int front_create(struct server *server, struct err *err) {
    setenv("UV_THREADPOOL_SIZE", "2", 1); /* read by libuv at the first use of its pool */
    server->front = calloc(1, sizeof *server->front);
    return server->front ? OK : err_set(err, ERR_NOMEM, "front pool: out of memory");
}

void front_destroy(struct front *front) {
    if (!front) return;
    ASSERT(!front->head);
    free(front);
}

static void free_prompts(struct job *job) {
    for (uint32_t i = 0; job->prompts && i < job->n_prompts; i++)
        tokens_free(&job->prompts[i]);
    free(job->prompts);
    job->prompts = NULL;
}

static void job_free(struct job *job) {
    free_prompts(job);
    if (job->has_request) api_request_free(&job->request);
    buf_free(&job->body);
    buf_free(&job->answer);
    free(job);
}

/* ---- on the pool ----------------------------------------------------------------------------- */

/* A failure of the tokenizer or the template, as the client should see it. */
static int say_why(struct api_error *error, const struct err *err, const char *param) {
    if (err->code == ERR_NOMEM)
        return api_error_set(error, API_INTERNAL_ERROR, NULL, "no memory to read the prompt");
    return api_error_set(error, API_INVALID_VALUE, param, "%s", err->msg);
}

static int check_length(const struct job *job, uint32_t n_tokens, const char *param,
                        struct api_error *error) {
    uint32_t max = engine_info(job->server->engine)->max_model_len;
    if (job->purpose == FRONT_TOKENS) return OK;
    if (!n_tokens)
        return api_error_set(error, API_INVALID_VALUE, param, "%s holds no token", param);
    if (n_tokens < max) return OK;
    return api_error_set(error, API_CONTEXT_LENGTH_EXCEEDED, param,
                         "%s has %u tokens, but the context holds %u, at least one generated token "
                         "included",
                         param, n_tokens, max);
}

static int render_chat(struct job *job) {
    struct err err = {0};
    struct chat chat = {
        .messages = job->request.messages,
        .arguments = job->request.call_arguments,
        .kwargs = job->request.template_kwargs,
        .add_generation_prompt = job->request.add_generation_prompt,
        .parse_specials = job->server->options->parse_specials,
        .now = clock_unix(),
    };
    if (model_render_chat(job->server->model, &chat, &job->prompts[0], NULL, NULL, &err))
        return say_why(&job->error, &err, "messages");
    return check_length(job, job->prompts[0].n, "messages", &job->error);
}

static int read_prompt(struct job *job, uint32_t i) {
    const struct prompt *prompt = &job->request.prompts[i];
    struct tokens *out = &job->prompts[i];
    struct err err = {0};
    char param[32] = "prompt";
    if (job->n_prompts > 1) snprintf(param, sizeof param, "prompt[%u]", i);
    int rc = OK;
    if (prompt->text) {
        unsigned flags = TOKENIZE_PARSE_SPECIAL;
        if (job->request.add_special_tokens) flags |= TOKENIZE_ADD_SPECIAL;
        rc = model_tokenize(job->server->model, prompt->text, prompt->text_len, flags, out, &err);
    } else {
        out->ids = malloc((prompt->n_ids + 1) * sizeof *out->ids);
        if (!out->ids) rc = err_set(&err, ERR_NOMEM, "out of memory");
        if (!rc && prompt->n_ids) memcpy(out->ids, prompt->ids, prompt->n_ids * sizeof *out->ids);
        if (!rc) out->n = out->cap = prompt->n_ids;
    }
    if (rc) return say_why(&job->error, &err, param);
    return check_length(job, out->n, param, &job->error);
}

static int parse(struct job *job) {
    bool is_tokens = job->purpose == FRONT_TOKENS;
    int rc = (is_tokens ? proto_parse_tokens : proto_parse_request)(
        job->kind, job->body.data, job->body.len, &job->server->limits, &job->request, &job->error);
    job->has_request = rc == OK;
    buf_free(&job->body);
    return rc;
}

static int prepare(struct job *job) {
    if (!job->has_request && parse(job)) return ERR_INVALID;
    bool is_chat = job->request.messages != NULL;
    job->n_prompts = is_chat ? 1 : job->request.n_prompts;
    job->prompts = calloc(job->n_prompts, sizeof *job->prompts);
    if (!job->prompts)
        return api_error_set(&job->error, API_INTERNAL_ERROR, NULL, "no memory for the prompt");
    if (is_chat) return render_chat(job);
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        int rc = job->dropped ? ERR_CANCELLED : read_prompt(job, i);
        if (rc) return rc;
    }
    return OK;
}

static int write_rendered(struct job *job) {
    bool is_list = job->kind == ROUTE_COMPLETION; /* an array also for one prompt */
    if (is_list) buf_str(&job->answer, "[");
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        if (i) buf_str(&job->answer, ",");
        proto_rendered(&job->answer, job->request_id, job->prompts[i].ids, job->prompts[i].n);
    }
    if (is_list) buf_str(&job->answer, "]");
    return OK;
}

/* The text of each token by itself. */
static int write_tokenized_strs(struct job *job, uint32_t max_model_len) {
    const struct tokens *tokens = &job->prompts[0];
    struct err err = {0};
    int rc = OK;
    struct token_str *strs = calloc(tokens->n + 1, sizeof *strs);
    char **texts = calloc(tokens->n + 1, sizeof *texts);
    if (!strs || !texts) rc = err_set(&err, ERR_NOMEM, "out of memory");
    for (uint32_t i = 0; !rc && i < tokens->n; i++) {
        rc = model_detokenize(job->server->model, &tokens->ids[i], 1, false, &texts[i],
                              &strs[i].len, &err);
        strs[i].text = texts[i];
    }
    if (!rc) proto_tokenized(&job->answer, tokens->ids, tokens->n, max_model_len, strs);
    for (uint32_t i = 0; texts && i < tokens->n; i++)
        free(texts[i]);
    free(texts);
    free(strs);
    return rc ? say_why(&job->error, &err, "prompt") : OK;
}

static int write_tokens(struct job *job) {
    const struct tokens *tokens = &job->prompts[0];
    uint32_t max_model_len = engine_info(job->server->engine)->max_model_len;
    if (job->kind == ROUTE_TOKENIZE) {
        if (job->request.return_token_strs) return write_tokenized_strs(job, max_model_len);
        proto_tokenized(&job->answer, tokens->ids, tokens->n, max_model_len, NULL);
        return OK;
    }
    struct err err = {0};
    char *text;
    size_t len;
    if (model_detokenize(job->server->model, tokens->ids, tokens->n, false, &text, &len, &err))
        return say_why(&job->error, &err, "tokens");
    proto_detokenized(&job->answer, text, len);
    free(text);
    return OK;
}

static int answer(struct job *job) {
    if (job->purpose == FRONT_GENERATE) return OK;
    int rc = job->purpose == FRONT_RENDER ? write_rendered(job) : write_tokens(job);
    if (!rc && job->answer.failed)
        return api_error_set(&job->error, API_INTERNAL_ERROR, NULL, "no memory for the answer");
    return rc;
}

static void on_pool(uv_work_t *work) {
    struct job *job = work->data;
    job->failed = job->dropped || prepare(job) != OK || answer(job) != OK;
}

/* One debug line: a misspelt field would otherwise leave no trace. */
static void log_ignored(const struct exchange *ex, const struct api_request *request) {
    if (!request->n_ignored || !log_enabled(LOG_DEBUG)) return;
    char names[IGNORED_FIELDS_MAX * 66 + 1];
    size_t n = 0;
    for (uint32_t i = 0; i < request->n_ignored && i < IGNORED_FIELDS_MAX; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? "," : "",
                              request->ignored[i]);
    log_event(LOG_DEBUG, "ignored_fields", log_str("request_id", ex->request_id),
              log_int("count", request->n_ignored), log_str("names", names));
}

/* ---- on the loop ----------------------------------------------------------------------------- */

static void admit(struct job *job) {
    struct exchange *ex = job->exchange;
    if (!ex) return;
    ex->job = NULL;
    job->exchange = NULL;
    if (job->failed) {
        exchange_refuse(ex, &job->error);
        return;
    }
    log_ignored(ex, &job->request);
    if (job->purpose != FRONT_GENERATE) {
        exchange_answer(ex, 200, &job->answer);
        return;
    }
    generation_begin(ex, &job->request, job->prompts, job->n_prompts);
    job->has_request = false; /* taken */
}

static void after_pool(uv_work_t *work, int status) {
    struct job *job = work->data;
    struct server *server = job->server;
    struct front *front = server->front;
    job->done = true;
    if (status == UV_ECANCELED) job->failed = true;
    exchange_give_back(server, job->body_bytes);
    job->body_bytes = 0;
    if (job->purpose != FRONT_GENERATE) { /* waits for nobody */
        admit(job);
        job_free(job);
    }
    while (front->head && front->head->done) {
        struct job *first = front->head;
        front->head = first->next;
        if (!front->head) front->tail = NULL;
        admit(first);
        job_free(first);
    }
    http_drive(server->http);
}

void front_forget(struct exchange *ex) {
    struct job *job = ex->job;
    if (!job) return;
    ex->job = NULL;
    job->exchange = NULL;
    job->dropped = true;
    uv_cancel((uv_req_t *)&job->work); /* only where the pool has not begun */
}

static void enqueue(struct front *front, struct job *job) {
    if (front->tail)
        front->tail->next = job;
    else
        front->head = job;
    front->tail = job;
}

/* Without generation the model is all that is needed, and that stays while draining. */
static bool unavailable(const struct server *server, enum front_purpose purpose,
                        struct api_error *error) {
    if (purpose == FRONT_GENERATE) return server_unavailable(server, error);
    if (server->live) return false;
    api_error_set(error, API_MODEL_LOADING, NULL, "the model is still loading");
    return true;
}

void front_submit(struct exchange *ex, enum route_kind kind, enum front_purpose purpose) {
    struct server *server = ex->server;
    struct api_error error;
    if (unavailable(server, purpose, &error)) {
        exchange_refuse(ex, &error);
        return;
    }
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        api_error_set(&error, API_INTERNAL_ERROR, NULL, "no memory for the request");
        exchange_refuse(ex, &error);
        return;
    }
    job->work.data = job;
    job->server = server;
    job->kind = kind;
    job->purpose = purpose;
    memcpy(job->request_id, ex->request_id, sizeof job->request_id);
    job->body = ex->body;
    job->body_bytes = ex->body.len;
    ex->body = (struct buf){0};
    if (job->body.len <= PARSE_ON_LOOP_BYTES) {
        int rc = parse(job);
        exchange_give_back(server, job->body_bytes);
        job->body_bytes = 0;
        if (rc) {
            exchange_refuse(ex, &job->error);
            job_free(job);
            return;
        }
    }
    job->exchange = ex;
    ex->job = job;
    ex->state = EXCHANGE_FRONT;
    ex->counted = true;
    server->n_generating++;
    if (purpose == FRONT_GENERATE) enqueue(server->front, job);
    int rc = uv_queue_work(&server->loop, &job->work, on_pool, after_pool);
    ASSERT(rc == 0); /* fails only without a callback */
}
