#include "server/exchange.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/clock.h"
#include "server/cors.h"
#include "server/front.h"
#include "server/generation.h"
#include "server/ids.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/routes.h"

enum {
    BODY_BYTES_PER_SECOND = 1024,
    SLOW_READER_BYTES = 1 << 20,
    OUT_BYTES_MAX = 16 << 20,   /* never hold more for one client */
    OUT_BYTES_SMALL = 64 << 10, /* what each may hold however much all hold */
    OUT_TOTAL_MAX = 256 << 20,  /* all clients together: beyond, those that lag are given up */
    AHEAD_BYTES_MAX = 64 << 10, /* sent ahead of a running request: its FIN cannot be seen */
    STALLED_TICKS_MAX = 2,
    IDLE_LOOKS = 3, /* ticks after an answer in which a lost end of input is looked for */
    SSE_BLOCK_BYTES = 1024,
};

uint64_t exchange_bodies_max(const struct server *server) {
    uint64_t one = server->options->max_body_bytes, floor = 256u << 20;
    return 2 * one > floor ? 2 * one : floor;
}

const char *exchange_request_id(const struct conn *conn, char scratch[REQUEST_ID_MAX + 1]) {
    if (conn && conn->exchange && conn->exchange->request_id[0]) return conn->exchange->request_id;
    ids_request(scratch);
    return scratch;
}

uint64_t exchange_out_max(void) {
    return OUT_TOTAL_MAX;
}

static bool longer_than(uint64_t since_us, uint64_t now_us, double seconds) {
    return now_us > since_us && (double)(now_us - since_us) > seconds * 1e6;
}

/* ---- beginning ------------------------------------------------------------------------------- */

void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *mhd) {
    struct conn *conn = http_conn_of(mhd);
    struct exchange *ex = conn ? calloc(1, sizeof *ex) : NULL;
    if (!ex) return NULL;
    ex->server = cls;
    ex->conn = conn;
    ex->mhd = mhd;
    ex->method = "?";
    ex->arrived_us = ex->last_in_us = clock_us();
    if (strnlen(uri, URI_BYTES_MAX + 1) <= URI_BYTES_MAX) ex->target = strdup(uri);
    ids_request(ex->request_id);
    ex->cors = cors_allowed(&ex->server->options->cors_origins, NULL);
    conn->exchange = ex;
    return ex;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void suspend(struct exchange *ex) {
    ASSERT(!ex->suspended);
    ex->suspended = true;
    MHD_suspend_connection(ex->mhd);
}

void exchange_wake(struct exchange *ex) {
    if (!ex->suspended) return;
    ex->suspended = false;
    MHD_resume_connection(ex->mhd);
    http_resumed(ex->server->http);
}

void exchange_answer(struct exchange *ex, int status, struct buf *body) {
    ASSERT(!ex->has_answer && !ex->is_sse);
    ex->has_answer = true;
    ex->status = status;
    ex->answer = *body;
    ex->content_type = "application/json";
    ex->state = ex->state >= EXCHANGE_FRONT ? EXCHANGE_DONE : ex->state;
    *body = (struct buf){0};
    exchange_wake(ex);
}

/* An answer begins: it has its status. */
static void set_answered(struct exchange *ex, int status) {
    ex->answered = true;
    ex->status = status;
    metrics_http(ex->server->metrics, ex->route ? ex->route->path : NULL, status);
}

void exchange_refuse(struct exchange *ex, const struct api_error *error) {
    struct buf body = {0};
    metrics_rejected(ex->server->metrics, error);
    proto_error_body(&body, error);
    ex->retry_ms = server_retry_ms(ex->server, error);
    ex->code = error->code;
    exchange_answer(ex, error->status, &body);
}

void exchange_answer_empty(struct exchange *ex, int status) {
    struct buf none = {0};
    exchange_answer(ex, status, &none);
    ex->content_type = NULL;
}

static void add_number(struct MHD_Response *response, const char *name, uint32_t n) {
    char text[16];
    snprintf(text, sizeof text, "%u", n);
    MHD_add_response_header(response, name, text);
}

static void add_header(void *response, const char *name, const char *value) {
    MHD_add_response_header(response, name, value);
}

static void add_common(const struct exchange *ex, struct MHD_Response *response) {
    MHD_add_response_header(response, "X-Request-Id", ex->request_id);
    cors_headers(&ex->server->options->cors_origins, ex->cors, add_header, response);
}

static enum MHD_Result queue_answer(struct exchange *ex) {
    struct MHD_Response *response;
    if (ex->answer.failed) return MHD_NO; /* no memory for a body: close */
    if (ex->answer.len)
        response =
            MHD_create_response_from_buffer(ex->answer.len, ex->answer.data, MHD_RESPMEM_MUST_FREE);
    else
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response) return MHD_NO;
    if (ex->answer.len) ex->answer = (struct buf){0}; /* the response's now */
    add_common(ex, response);
    if (ex->content_type) MHD_add_response_header(response, "Content-Type", ex->content_type);
    if (ex->allow) MHD_add_response_header(response, "Allow", ex->allow);
    if (ex->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (ex->status == 500 || ex->status == 504)
        MHD_add_response_header(response, "x-should-retry", "false");
    if (ex->retry_ms) {
        add_number(response, "Retry-After", (ex->retry_ms + 999) / 1000);
        add_number(response, "retry-after-ms", ex->retry_ms);
    }
    set_answered(ex, ex->status);
    enum MHD_Result result = http_queue(ex->mhd, (unsigned)ex->status, response);
    MHD_destroy_response(response);
    return result;
}

/* What the stream holds has changed. */
static void count_out(struct exchange *ex) {
    size_t held = ex->out.len - ex->out_at;
    ex->server->out_bytes += held;
    ex->server->out_bytes -= ex->out_counted;
    ex->out_counted = held;
}

/* The library asks for more of an event stream. Returning 0 without suspending would spin. */
static ssize_t read_out(void *cls, uint64_t pos, char *to, size_t max) {
    (void)pos;
    struct exchange *ex = cls;
    ex->last_read_us = clock_us();
    if (ex->gone || ex->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = ex->out.len - ex->out_at;
    if (n) {
        if (n > max) n = max;
        memcpy(to, ex->out.data + ex->out_at, n);
        ex->out_at += n;
        ex->n_handed += n;
        if (ex->out_at == ex->out.len) {
            ex->out.len = ex->out_at = 0;
            if (ex->out.cap > OUT_BYTES_SMALL) buf_free(&ex->out);
        }
        count_out(ex);
        generation_handed_over(ex);
        return (ssize_t)n;
    }
    if (ex->out_failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (ex->out_ended) return MHD_CONTENT_READER_END_OF_STREAM;
    suspend(ex);
    return 0;
}

static enum MHD_Result queue_sse(struct exchange *ex) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, SSE_BLOCK_BYTES, read_out, ex, NULL);
    if (!response) return MHD_NO;
    add_common(ex, response);
    MHD_add_response_header(response, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Accel-Buffering", "no");
    set_answered(ex, 200);
    ex->last_read_us = clock_us();
    enum MHD_Result result = http_queue(ex->mhd, 200, response);
    MHD_destroy_response(response);
    return result;
}

void exchange_begin_sse(struct exchange *ex) {
    ASSERT(!ex->has_answer && !ex->is_sse);
    ex->is_sse = true;
    ex->last_out_us = clock_us();
    exchange_wake(ex);
}

void exchange_out(struct exchange *ex) {
    ex->last_out_us = clock_us();
    /* The part already sent is dropped once it is the larger one. */
    if (ex->out_at > ex->out.len / 2 && ex->out_at > SLOW_READER_BYTES / 16) {
        memmove(ex->out.data, ex->out.data + ex->out_at, ex->out.len - ex->out_at);
        ex->out.len -= ex->out_at;
        ex->out_at = 0;
    }
    count_out(ex);
    bool lags = ex->out_counted > OUT_BYTES_SMALL && ex->server->out_bytes > OUT_TOTAL_MAX;
    if (ex->out.failed || lags || ex->out_counted > OUT_BYTES_MAX)
        exchange_gone(ex);
    else
        exchange_wake(ex);
}

/* Answer past the library, where it lets nothing be queued. Returns MHD_NO, for the caller. */
static enum MHD_Result answer_by_hand(struct exchange *ex, const struct api_error *error) {
    http_answer_by_hand(ex->conn, error, ex->request_id);
    set_answered(ex, error->status);
    ex->code = error->code;
    return MHD_NO;
}

/* ---- the head -------------------------------------------------------------------------------- */

static enum MHD_Result read_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                   size_t key_len, const char *value, size_t value_len) {
    (void)kind;
    http_headers_add(cls, key, key_len, value ? value : "", value ? value_len : 0);
    return MHD_YES;
}

/* 0.9.75 hides some framing faults; its buffer still shows them (http_headers_raw_fault). */
static const char *raw_fault(struct exchange *ex, const char *method, const char *version,
                             uint32_t n_headers) {
    static int scans = -1;
    if (scans < 0) scans = !strcmp(MHD_get_version(), "0.9.75");
    if (!scans) return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(ex->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (!info || version < method || (size_t)(version - method) > info->header_size)
        return "the request line is malformed";
    /* One space each; a NUL would have cut the target short. */
    if ((size_t)(version - method) != strlen(method) + 1 + strlen(ex->target) + 1)
        return "the request line is not method, target and version with single spaces";
    return http_headers_raw_fault(method, info->header_size, (size_t)(version - method), n_headers);
}

static int check_framing(struct exchange *ex, const struct http_headers *headers,
                         const char *method, const char *version, struct api_error *error) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(ex->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (!ex->target)
        return api_error_set(error, API_URI_TOO_LONG, NULL,
                             "the request target is longer than %d bytes", URI_BYTES_MAX);
    if (info && info->header_size > HEADERS_BYTES_MAX)
        return api_error_set(error, API_HEADERS_TOO_LARGE, NULL,
                             "the header block has %zu bytes, at most %d are accepted",
                             info->header_size, HEADERS_BYTES_MAX);
    const char *fault = http_headers_fault(headers, !strcmp(version, "HTTP/1.1"));
    if (!fault) fault = http_headers_line_fault(method, ex->target);
    if (!fault) fault = raw_fault(ex, method, version, headers->n_headers);
    if (fault)
        return api_error_set(error, API_MALFORMED_REQUEST, NULL, "malformed HTTP request: %s",
                             fault);
    return OK;
}

static int check_size(const struct exchange *ex, const struct http_headers *headers,
                      struct api_error *error) {
    uint64_t max = ex->server->options->max_body_bytes;
    if (headers->content_length <= max) return OK;
    return api_error_set(error, API_REQUEST_TOO_LARGE, NULL,
                         "the body has %llu bytes, at most %llu are accepted",
                         (unsigned long long)headers->content_length, (unsigned long long)max);
}

static unsigned method_bit(const char **method) {
    static const struct {
        const char *name;
        unsigned bit;
    } KNOWN[] = {{"GET", METHOD_GET}, {"HEAD", METHOD_GET}, {"POST", METHOD_POST}, {"OPTIONS", 0}};
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        if (strcmp(*method, KNOWN[i].name)) continue;
        *method = KNOWN[i].name;
        return KNOWN[i].bit;
    }
    *method = "other";
    return 0;
}

/* Route, then key. */
static int check_route(struct exchange *ex, const char *method, const struct http_headers *headers,
                       struct api_error *error) {
    const char *path = "*";
    size_t len = 1;
    unsigned bit = method_bit(&method);
    ex->method = method;
    bool has_path = http_headers_path(ex->target, &path, &len);
    bool is_options = !strcmp(method, "OPTIONS");
    if (is_options && !strcmp(ex->target, "*")) {
        ex->allow = "GET, HEAD, POST, OPTIONS";
        return OK;
    }
    ex->route = has_path ? routes_find(path, len) : NULL;
    if (!ex->route)
        return api_error_set(error, API_UNKNOWN_URL, NULL, "there is no route %s %.*s", method,
                             (int)(len < 200 ? len : 200), path);
    if (is_options) {
        ex->allow = ex->route->allow;
        return OK;
    }
    if (!(ex->route->methods & bit)) {
        ex->allow = ex->route->allow;
        return api_error_set(error, API_METHOD_NOT_ALLOWED, NULL, "%.*s takes %s, not this method",
                             (int)(len < 200 ? len : 200), path, ex->route->allow);
    }
    bool needs_key =
        ex->route->needs_key && !keys_path_is_open(&ex->server->options->open_paths, path, len);
    if (needs_key && !keys_accept(ex->server->keys, headers->authorization))
        return api_error_set(error, API_INVALID_API_KEY, NULL,
                             headers->authorization ? "the API key is not known to this server"
                                                    : "an API key is needed: Authorization: "
                                                      "Bearer KEY");
    return OK;
}

static int check_media(const struct exchange *ex, const struct http_headers *headers,
                       struct api_error *error) {
    if (!ex->route || !(ex->route->methods & METHOD_POST)) return OK;
    if (headers->multipart)
        return api_error_set(error, API_UNSUPPORTED_MEDIA_TYPE, NULL,
                             "multipart bodies are not supported; send JSON");
    if (headers->encoded)
        return api_error_set(error, API_UNSUPPORTED_MEDIA_TYPE, NULL,
                             "encoded bodies are not supported; send JSON as it is");
    return OK;
}

static enum MHD_Result answer_early(struct exchange *ex) {
    http_linger(ex->conn);
    return queue_answer(ex);
}

/* The library's first call: the head is complete. An answer queued here closes the connection, so
 * it is for faults that end it anyway; other refusals wait until the body was swallowed. */
static enum MHD_Result on_head(struct exchange *ex, const char *method, const char *version) {
    struct http_headers headers = {0};
    struct api_error error;
    MHD_get_connection_values_n(ex->mhd, MHD_HEADER_KIND, read_header, &headers);
    ex->state = EXCHANGE_BODY;
    ex->last_in_us = clock_us();
    ex->pace = (struct pace){.marked_us = ex->last_in_us, .n_marks = 1};
    ex->cors = cors_allowed(&ex->server->options->cors_origins, headers.origin);
    ex->has_body = headers.chunked || headers.content_length > 0;
    if (check_framing(ex, &headers, method, version, &error)) {
        exchange_refuse(ex, &error);
        return answer_early(ex);
    }
    if (headers.request_id) {
        memcpy(ex->request_id, headers.request_id, headers.request_id_len);
        ex->request_id[headers.request_id_len] = 0;
    }
    int rc = check_route(ex, method, &headers, &error);
    bool early = rc && error.status == 401 && ex->has_body;
    if (!rc || !early) {
        struct api_error too_large;
        if (check_size(ex, &headers, &too_large)) {
            if (!rc) error = too_large;
            rc = early = true;
        }
    }
    if (!rc) rc = check_media(ex, &headers, &error);
    if (!rc && ex->route && ex->route->generates && strcmp(ex->method, "OPTIONS") &&
        server_unavailable(ex->server, &error))
        rc = ERR_FULL;
    if (rc) {
        exchange_refuse(ex, &error);
        if (early || (ex->has_body && headers.expect_continue)) return answer_early(ex);
    } else if (!strcmp(ex->method, "OPTIONS")) {
        exchange_answer_empty(ex, 204);
    }
    ex->discard = ex->has_answer;
    return MHD_YES;
}

/* ---- the body -------------------------------------------------------------------------------- */

/* Whoever finds still no room suspends again. */
static void wake_waiting(struct server *server) {
    if (!server->n_body_waiting) return;
    for (struct conn *conn = http_conns(server->http); conn; conn = conn->next)
        if (conn->exchange && conn->exchange->waits_for_memory) exchange_wake(conn->exchange);
}

void exchange_give_back(struct server *server, uint64_t n_bytes) {
    ASSERT(n_bytes <= server->body_bytes);
    server->body_bytes -= n_bytes;
    if (n_bytes) wake_waiting(server);
}

static void release_body(struct exchange *ex) {
    uint64_t n = ex->body.len;
    buf_free(&ex->body);
    exchange_give_back(ex->server, n);
}

/* Room for n more bytes. Half-received bodies could wait for each other for ever, so one exchange
 * at a time may go beyond the limit, until its body is complete. */
static bool has_room(struct exchange *ex, size_t n) {
    struct server *server = ex->server;
    if (server->body_bytes + n <= exchange_bodies_max(server)) return true;
    if (!server->body_first) server->body_first = ex;
    return server->body_first == ex;
}

static void body_ended(struct exchange *ex) {
    if (ex->server->body_first != ex) return;
    ex->server->body_first = NULL;
    wake_waiting(ex->server);
}

static void stop_waiting(struct exchange *ex) {
    if (!ex->waits_for_memory) return;
    ex->waits_for_memory = false;
    ex->server->n_body_waiting--;
}

static enum MHD_Result on_body(struct exchange *ex, const char *data, size_t *size) {
    struct server *server = ex->server;
    struct api_error error;
    uint64_t max = server->options->max_body_bytes;
    if (ex->waits_for_memory) /* that time was ours, not the client's */
        ex->pace = (struct pace){.marked_us = clock_us(), .n_marks = 1, .marks = {ex->n_in}};
    stop_waiting(ex);
    if (ex->n_in + *size > max) {
        api_error_set(&error, API_REQUEST_TOO_LARGE, NULL,
                      "the body has more than %llu bytes, which is the limit",
                      (unsigned long long)max);
        return answer_by_hand(ex, &error);
    }
    if (!ex->discard && !has_room(ex, *size)) {
        ex->waits_for_memory = true;
        server->n_body_waiting++;
        http_watch(ex->conn);
        suspend(ex);
        return MHD_YES;
    }
    ex->n_in += *size;
    ex->last_in_us = clock_us();
    if (!ex->discard) {
        size_t before = ex->body.len;
        buf_add(&ex->body, data, *size);
        server->body_bytes += ex->body.len - before;
        if (ex->body.failed) {
            api_error_set(&error, API_INTERNAL_ERROR, NULL, "no memory for the request body");
            return answer_by_hand(ex, &error);
        }
    }
    *size = 0;
    return MHD_YES;
}

/* The library's last call, and again after each resume until something is queued. */
static enum MHD_Result on_complete(struct exchange *ex) {
    body_ended(ex);
    if (ex->state == EXCHANGE_BODY && !ex->has_answer) {
        ex->route->handle(ex);
        if (ex->state >= EXCHANGE_FRONT && ex->state < EXCHANGE_DONE) http_watch(ex->conn);
    }
    if (ex->gone) return MHD_NO;
    if (ex->has_answer) return queue_answer(ex);
    if (ex->is_sse) return queue_sse(ex);
    suspend(ex);
    return MHD_YES;
}

enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_size, void **context) {
    (void)cls, (void)mhd, (void)url;
    struct exchange *ex = *context;
    if (!ex || ex->gone) return MHD_NO;
    if (ex->state == EXCHANGE_HEADERS) return on_head(ex, method, version);
    if (*upload_size) return on_body(ex, upload, upload_size);
    return on_complete(ex);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void exchange_gone(struct exchange *ex) {
    if (ex->gone) return;
    ex->gone = true;
    front_forget(ex);
    generation_abandon(ex);
    if (ex->suspended)
        exchange_wake(ex);
    else
        http_shut(ex->conn);
}

static void log_request(const struct exchange *ex) {
    enum log_level level = ex->route && ex->route->is_probe ? LOG_DEBUG : LOG_INFO;
    if (!log_enabled(level)) return;
    struct log_field fields[24];
    size_t n = 0;
    fields[n++] = log_str("request_id", ex->request_id);
    fields[n++] = log_str("route", ex->route ? ex->route->path : "none");
    fields[n++] = log_str("method", ex->method);
    fields[n++] = log_int("status", ex->answered ? ex->status : 499); /* 499: left before any */
    fields[n++] = log_str("code", ex->code);
    fields[n++] = log_real("ms", clock_ms(ex->arrived_us, clock_us()));
    n += generation_log_fields(ex, fields + n, ARRAY_LEN(fields) - n);
    log_write(level, "request", fields, n);
}

void exchange_on_completed(void *cls, struct MHD_Connection *mhd, void **context,
                           enum MHD_RequestTerminationCode code) {
    (void)cls, (void)mhd, (void)code;
    struct exchange *ex = *context;
    if (!ex) return;
    *context = NULL;
    http_unwatch(ex->conn); /* before the library closes the socket and its number is reused */
    front_forget(ex);
    generation_abandon(ex);
    log_request(ex);
    if (!ex->answered) metrics_http(ex->server->metrics, ex->route ? ex->route->path : NULL, 499);
    stop_waiting(ex);
    body_ended(ex);
    release_body(ex);
    if (ex->counted) ex->server->n_generating--;
    generation_free(ex);
    ex->conn->exchange = NULL;
    ex->conn->idle_since_us = clock_us();
    ex->conn->n_looks = 0;
    buf_free(&ex->answer);
    buf_free(&ex->out);
    ex->out_at = 0;
    count_out(ex);
    free(ex->target);
    free(ex);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Set a mark when its time has come. True when fewer bytes came than BODY_BYTES_PER_SECOND asks for
 * since the mark that lies a whole body timeout back. */
static bool is_too_slow(struct exchange *ex, uint64_t now_us) {
    double seconds = ex->server->options->body_timeout;
    struct pace *pace = &ex->pace;
    if (!longer_than(pace->marked_us, now_us, seconds / PACE_MARKS)) return false;
    uint64_t *mark = &pace->marks[pace->n_marks % PACE_MARKS];
    bool is_old = pace->n_marks >= PACE_MARKS;
    bool too_slow = is_old && (double)(ex->n_in - *mark) < seconds * BODY_BYTES_PER_SECOND;
    *mark = ex->n_in;
    pace->marked_us = now_us;
    pace->n_marks++;
    return too_slow;
}

/* The head or the body takes too long: says so in error. */
static bool is_late(struct exchange *ex, uint64_t now_us, struct api_error *error) {
    const struct options *options = ex->server->options;
    if (ex->state == EXCHANGE_HEADERS) {
        if (!longer_than(ex->arrived_us, now_us, options->header_timeout)) return false;
        api_error_set(error, API_REQUEST_TIMEOUT, NULL,
                      "the header block did not arrive within %g s", options->header_timeout);
        return true;
    }
    if (longer_than(ex->last_in_us, now_us, options->body_timeout)) {
        api_error_set(error, API_REQUEST_TIMEOUT, NULL, "no byte of the body arrived for %g s",
                      options->body_timeout);
        return true;
    }
    if (!is_too_slow(ex, now_us)) return false;
    api_error_set(error, API_REQUEST_TIMEOUT, NULL,
                  "the body came in slower than %d bytes a second over %g s", BODY_BYTES_PER_SECOND,
                  options->body_timeout);
    return true;
}

/* A request that is still coming in. */
static void tick_reading(struct exchange *ex, uint64_t now_us) {
    struct conn *conn = ex->conn;
    struct api_error error;
    if (ex->waits_for_memory) return; /* ours is the delay */
    if (http_peer_closed(conn)) {
        exchange_gone(ex);
        return;
    }
    if (is_late(ex, now_us, &error)) {
        if (!ex->answered) answer_by_hand(ex, &error);
        exchange_gone(ex);
        http_shut(conn);
        return;
    }
    /* 0.9.75 turns for ever over a chunk line longer than its buffer; nothing moves but the CPU. */
    if (conn->stall_seen != ex->n_in || ex->suspended || !http_unread(conn)) {
        conn->stall_seen = ex->n_in;
        conn->n_stalled_ticks = 0;
    } else if (++conn->n_stalled_ticks > STALLED_TICKS_MAX) {
        exchange_gone(ex);
    }
}

static void tick_running(struct exchange *ex, uint64_t now_us, bool each_second) {
    if (each_second && http_unread(ex->conn) > AHEAD_BYTES_MAX) {
        exchange_gone(ex);
        return;
    }
    generation_tick(ex, now_us);
    if (ex->gone || !ex->is_sse || ex->out_ended || ex->out_failed) return;
    size_t held = ex->out.len - ex->out_at;
    double keepalive = ex->server->options->sse_keepalive;
    if (held > SLOW_READER_BYTES &&
        longer_than(ex->last_read_us, now_us, ex->server->options->reader_timeout)) {
        exchange_gone(ex);
    } else if (keepalive > 0 && !held && clock_ms(ex->last_out_us, now_us) >= keepalive * 1000) {
        proto_sse_keepalive(&ex->out);
        exchange_out(ex);
    }
}

void exchange_tick(struct conn *conn, uint64_t now_us, bool each_second) {
    struct exchange *ex = conn->exchange;
    if (!ex) {
        bool looks = conn->n_looks < IDLE_LOOKS && ++conn->n_looks;
        if (longer_than(conn->idle_since_us, now_us, conn->server->options->idle_timeout) ||
            (looks && http_peer_closed(conn)))
            http_shut(conn);
        return;
    }
    if (ex->gone) return;
    if (ex->state <= EXCHANGE_BODY && !ex->answered)
        tick_reading(ex, now_us);
    else if (ex->state == EXCHANGE_FRONT || ex->state == EXCHANGE_RUNNING)
        tick_running(ex, now_us, each_second);
}
