/* server.h: the running server as its own modules see it: one loop, one daemon, one engine.
 * Everything here belongs to the loop thread but `progress`, which the loading thread writes. */
#ifndef GERYON_SERVER_H
#define GERYON_SERVER_H

#include <uv.h>

#include "engine/engine.h"
#include "proto/proto.h"
#include "server/keys.h"
#include "server/options.h"

struct http;
struct sink;
struct front;
struct live;
struct metrics;
struct exchange;

enum server_phase {
    PHASE_LOADING,
    PHASE_READY,
    PHASE_DRAINING, /* a signal came: running requests may finish */
    PHASE_FAILED,   /* the device failed: answer, then exit non-zero */
    PHASE_STOPPING, /* last answers are being flushed */
};

struct server {
    const struct options *options;
    uv_loop_t loop;
    uv_timer_t tick;
    uv_async_t engine_news; /* events wait in the engine's ring */
    uv_async_t load_done;
    uv_signal_t sigterm, sigint;

    struct http *http;   /* daemon, connections */
    struct sink *sink;   /* sockets that linger */
    struct keys *keys;   /* NULL: open to all */
    struct front *front; /* jobs before admission */
    struct live *live;   /* sequences in the engine */
    struct metrics *metrics;

    /* model: NULL until loaded */
    uv_thread_t loader;
    struct load_progress progress;
    struct model *model;
    struct engine *engine;
    int load_rc;
    struct err load_err;
    struct proto_limits limits;
    struct sampling defaults; /* where a request says nothing */
    const char *names[OPTION_LIST_MAX];
    size_t n_names;
    char fingerprint[24];
    FILE *trace;

    enum server_phase phase;
    uint32_t max_connections;
    int64_t started_unix;
    uint64_t phase_since_us;
    uint64_t free_bytes, free_bytes_at_us; /* memory, asked once a second at most */
    uint32_t n_generating;                 /* exchanges between dispatch and completion */
    uint64_t body_bytes;                   /* held by request bodies, all connections */
    uint64_t out_bytes;                    /* events no client has taken yet, all streams */
    uint32_t n_body_waiting;               /* exchanges suspended until some are given back */
    struct exchange *body_first; /* the one that may go beyond the limit on bodies, or NULL */
    uint32_t n_signals;
    int exit_code;
};

/* Run until a signal or a failure; returns the exit code. */
int server_run(const struct options *options);

/* Seconds since the engine's loop last turned; it turns once a second even when idle. */
double server_engine_silence(const struct server *server);

/* The device failed: stop admitting; the process exits non-zero once all are answered. */
void server_engine_failed(struct server *server);

/* Why generation cannot be served now, into err; false when it can. */
bool server_unavailable(const struct server *server, struct api_error *err);

/* After how many milliseconds a refused client should come back: 1 for each code of 429 and 503. */
uint32_t server_retry_ms(const struct server *server, const struct api_error *err);

#endif
