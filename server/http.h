/* http.h: the transport: libmicrohttpd driven by the libuv loop, our own accept, the registry of
 * connections, the hang-up watch, and answers written by hand. Loop thread only.
 *
 *   listen socket ──uv_poll──▶ accept4 ──▶ MHD_add_connection ─┐
 *   MHD's epoll   ──uv_poll──▶ http_drive ◀── timer, idle ─────┤ every callback that may have
 *   our epoll     ──uv_poll──▶ hang-ups ──▶ exchange_gone ─────┘ changed something drives once
 */
#ifndef GERYON_HTTP_H
#define GERYON_HTTP_H

#include <microhttpd.h>

#include "server/server.h"

/* One accepted socket, alive between the library's two notifications. */
struct conn {
    struct conn *next, *prev;
    struct server *server;
    struct MHD_Connection *mhd;
    struct exchange *exchange; /* the request being read or answered, or NULL */
    int fd;                    /* the library's; ours only to look at and shut down */
    uint64_t idle_since_us;    /* opened, or last answer complete */
    uint32_t watch;            /* generation of the hang-up watch, 0 = none */
    uint64_t stall_seen;       /* bytes received at the last tick, to find stuck uploads */
    uint32_t n_stalled_ticks;
    uint32_t n_looks; /* for an end of input the library has missed, since it became idle */
};

/* Start the daemon; does not listen yet. */
int http_create(struct server *server, struct err *err);
/* Listen on options->host and port; *port_out is the port really bound. */
int http_listen(struct server *server, uint32_t *port_out, struct err *err);
void http_stop_listening(struct http *http);

/* Let the library do what it can, then arm timer or idle for what is left. Call it after every
 * resume and shutdown; calls from inside the library's callbacks are remembered and done later. */
void http_drive(struct http *http);

/* A connection was resumed: nothing happens to it before a run. The callback that resumed it drives
 * when it has resumed all; within a run, the run goes on. */
void http_resumed(struct http *http);

/* All connections, linked by next. */
struct conn *http_conns(const struct http *http);
uint32_t http_n_conns(const struct http *http);
struct conn *http_conn_of(struct MHD_Connection *mhd);

/* Tell us when the peer closes or half-closes, even while the connection is suspended. */
void http_watch(struct conn *conn);
void http_unwatch(struct conn *conn);
/* The only way to close a connection from outside the library's callbacks. */
void http_shut(struct conn *conn);
/* Keep reading (and dropping) what the peer still sends after the library closes its end. */
void http_linger(struct conn *conn);
/* The peer has closed or half-closed and all it sent was taken. The library misses an end of input
 * that arrives together with the last bytes: its epoll set is edge-triggered. */
bool http_peer_closed(const struct conn *conn);
/* Bytes the peer has sent that the library has not taken. */
size_t http_unread(const struct conn *conn);
/* MHD_queue_response for our own answers; the library's own pages take another road (http.c). */
enum MHD_Result http_queue(struct MHD_Connection *mhd, unsigned status,
                           struct MHD_Response *response);

/* Write a whole error answer on the socket, past the library, and linger. Only while nothing of an
 * answer has left; the caller then returns MHD_NO or calls http_shut. */
void http_answer_by_hand(struct conn *conn, const struct api_error *error, const char *request_id);

/* The most one open connection can cost in memory: the library's pool for it, our own records, and
 * with TLS its session. Bodies and event streams are bounded apart (exchange.h). */
size_t http_connection_bytes(const struct server *server);

/* Shut the daemon down; no connection may be suspended. Then run the loop once more and destroy. */
void http_close(struct http *http);
void http_destroy(struct http *http); /* NULL is fine */

#endif
