/* exchange.h: one HTTP request and its answer, from the request line to the last byte. Created in
 * the library's URI callback, ended in its completed callback. Loop thread only.
 *
 *   HEADERS ──first call──▶ BODY ──last call──▶ route ──▶ answer at once
 *                                                 └─────▶ FRONT ──▶ RUNNING ──▶ answer or SSE
 */
#ifndef GERYON_EXCHANGE_H
#define GERYON_EXCHANGE_H

#include "server/http.h"
#include "server/http_headers.h"

enum exchange_state {
    EXCHANGE_HEADERS, /* request line seen, head not complete */
    EXCHANGE_BODY,    /* head accepted, body coming in */
    EXCHANGE_FRONT,   /* being parsed and tokenised, or waiting for its turn to be admitted */
    EXCHANGE_RUNNING, /* sequences in the engine */
    EXCHANGE_DONE,    /* the answer is complete, though perhaps not yet sent */
};

/* How fast a body comes in: what had arrived at each of the last moments, a fixed time apart, so
 * that "over any stretch of so many seconds" can be asked. */
enum { PACE_MARKS = 10 };
struct pace {
    uint64_t marked_us; /* when the newest mark was set */
    uint32_t n_marks;   /* set so far */
    uint64_t marks[PACE_MARKS];
};

struct route;
struct job;
struct generation;

struct exchange {
    struct server *server;
    struct conn *conn;
    struct MHD_Connection *mhd;
    enum exchange_state state;
    char request_id[REQUEST_ID_MAX + 1];
    char *target; /* as sent; NULL when longer than we accept */
    const char *method;
    const struct route *route; /* NULL: none matches */
    uint64_t arrived_us, last_in_us;
    const char *cors; /* what Access-Control-Allow-Origin says, or NULL */

    /* request */
    struct buf body;
    uint64_t n_in; /* body bytes received */
    struct pace pace;
    bool has_body, discard; /* discard: the answer is known, the body is only swallowed */
    bool waits_for_memory;  /* suspended until other bodies are given back */

    bool suspended;
    bool gone;     /* the client left, or is to be treated so */
    bool counted;  /* in server.n_generating */
    bool answered; /* a response was queued or written by hand */

    /* answer to queue as soon as the library asks */
    bool has_answer;
    int status;
    const char *content_type, *allow;
    uint32_t retry_ms;
    const char *code; /* error code for the log, or NULL */
    struct buf answer;

    /* server-sent events: bytes [out_at, out.len) are still to be handed out */
    bool is_sse;
    struct buf out;
    size_t out_at;
    size_t out_counted;         /* of them, in server.out_bytes */
    uint64_t n_handed;          /* bytes handed out so far */
    bool out_ended, out_failed; /* after the last byte: end well, or break the connection */
    uint64_t last_out_us, last_read_us;

    struct job *job;               /* while FRONT */
    struct generation *generation; /* from RUNNING on */
};

/* At most what all request bodies, and all unsent events, may hold together. A body may go beyond
 * by one body, a stream of events by OUT_BYTES_SMALL. */
uint64_t exchange_bodies_max(const struct server *server);
uint64_t exchange_out_max(void);

/* The library's callbacks (http.c registers them). */
void *exchange_on_uri(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                    const char *method, const char *version, const char *upload,
                                    size_t *upload_size, void **exchange);
void exchange_on_completed(void *cls, struct MHD_Connection *mhd, void **exchange,
                           enum MHD_RequestTerminationCode code);

/* Set the answer: body (JSON) is taken. The library gets it at once or after the next drive. */
void exchange_answer(struct exchange *ex, int status, struct buf *body);
void exchange_refuse(struct exchange *ex, const struct api_error *error);
/* An answer without a body. */
void exchange_answer_empty(struct exchange *ex, int status);
/* Begin a stream of events: 200 and its headers leave on the next drive. */
void exchange_begin_sse(struct exchange *ex);
/* Events were appended to ex->out: note the time and wake the reader. */
void exchange_out(struct exchange *ex);
/* Body bytes that somebody held are free again: exchanges that wait for room may go on. */
void exchange_give_back(struct server *server, uint64_t n_bytes);
/* Resume if suspended; the event callback we are in drives when it is done. */
void exchange_wake(struct exchange *ex);
/* The client left, or must be treated so: cancel all work and let the connection go. */
void exchange_gone(struct exchange *ex);
/* Timeouts, keep-alive comments and slow readers; call about every 200 ms. */
void exchange_tick(struct conn *conn, uint64_t now_us, bool each_second);
/* The request id of a connection's current request, or a new one into scratch. */
const char *exchange_request_id(const struct conn *conn, char scratch[REQUEST_ID_MAX + 1]);

#endif
