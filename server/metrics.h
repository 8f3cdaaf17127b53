/* metrics.h: GET /metrics, Prometheus text format 0.0.4.
 *
 *   engine (atomics) ──┐
 *   loop thread counts ┼──▶ metrics_write ──▶ text      families and their order: metrics.c's table
 *   sizes, progress  ──┘
 *
 * Loop thread only; nothing waits for the engine. What is not known yet (no model, no engine) has no
 * series, or zero where a counter starts. */
#ifndef GERYON_METRICS_H
#define GERYON_METRICS_H

#include "engine/engine.h"
#include "proto/proto.h"

/* Stands before every name that is not fixed by routers. */
#define METRICS_PREFIX       "geryon_"
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4"
#define METRICS_PATH         "/metrics"

struct metrics; /* opaque: metrics.c */

struct metrics *metrics_create(void);          /* NULL: no memory */
void metrics_destroy(struct metrics *metrics); /* NULL is fine */

/* An answer was begun, or (status 499) a client left before any. route: a static pattern of the
 * route table, NULL where none matched. */
void metrics_http(struct metrics *metrics, const char *route, int status);
/* A refusal with 429 or 503; code: the API's static string. Others are ignored. */
void metrics_rejected(struct metrics *metrics, const struct api_error *error);

enum metrics_reason {
    REASON_STOP,
    REASON_LENGTH,
    REASON_TOOL_CALLS,
    REASON_ABORT,
    REASON_ERROR,
    REASON_COUNT
};
const char *metrics_reason_name(enum metrics_reason reason);

/* An admitted request ended; so many tokens of its prompts came from stored pages. */
void metrics_finished(struct metrics *metrics, enum metrics_reason reason, uint64_t cached_tokens);
/* The first token of a request: handed to the socket, or known where the answer goes out whole. */
void metrics_first_token(struct metrics *metrics, double seconds);

/* A request that ended by itself; seconds of its stages. */
struct metrics_request {
    double queue, prefill, decode, whole;
    uint64_t prompt_tokens, generation_tokens;
};
void metrics_request(struct metrics *metrics, const struct metrics_request *request);

/* What is not counted here. */
struct metrics_source {
    const struct engine_gauges *gauges;
    const struct engine_info *engine; /* NULL: not there yet */
    const struct model_info *model;   /* likewise */
    const char *model_name;           /* NULL: not known yet */
    const char *version, *commit, *backend;
    double load_progress;
    uint64_t free_bytes; /* 0: not known */
};
void metrics_write(const struct metrics *metrics, const struct metrics_source *source,
                   struct buf *out);

#endif
