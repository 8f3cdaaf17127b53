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
    struct buf body; /* until parsed */
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
        if (!rc) memcpy(out->ids, prompt->ids, prompt->n_ids * sizeof *out->ids);
        if (!rc) out->n = out->cap = prompt->n_ids;
    }
    if (rc) return say_why(&job->error, &err, param);
    return check_length(job, out->n, param, &job->error);
}

static int parse(struct job *job) {
    int rc = proto_parse_request(job->kind, job->body.data, job->body.len, &job->server->limits,
                                 &job->request, &job->error);
    job->has_request = rc == OK;
    buf_free(&job->body);
    return rc;
}

static int prepare(struct job *job) {
    if (!job->has_request && parse(job)) return ERR_INVALID;
    job->n_prompts = job->kind == ROUTE_CHAT ? 1 : job->request.n_prompts;
    job->prompts = calloc(job->n_prompts, sizeof *job->prompts);
    if (!job->prompts)
        return api_error_set(&job->error, API_INTERNAL_ERROR, NULL, "no memory for the prompt");
    if (job->kind == ROUTE_CHAT) return render_chat(job);
    for (uint32_t i = 0; i < job->n_prompts; i++) {
        int rc = job->dropped ? ERR_CANCELLED : read_prompt(job, i);
        if (rc) return rc;
    }
    return OK;
}

static void on_pool(uv_work_t *work) {
    struct job *job = work->data;
    job->failed = job->dropped || prepare(job) != OK;
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

void front_submit(struct exchange *ex, enum route_kind kind) {
    struct server *server = ex->server;
    struct api_error error;
    if (server_unavailable(server, &error)) {
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
    enqueue(server->front, job);
    int rc = uv_queue_work(&server->loop, &job->work, on_pool, after_pool);
    ASSERT(rc == 0); /* fails only without a callback */
}
