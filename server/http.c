/* http.c: libmicrohttpd 0.9.75 in external epoll mode on the libuv loop.
 *
 * What this library does not tell or does wrong, and what is done here instead:
 *  - it stops accepting silently at its limit and misses wake-ups: we accept ourselves;
 *  - a resumed connection wakes nobody: whoever resumes drives;
 *  - a suspended connection's hang-up is invisible: a second epoll set watches the sockets;
 *  - its own error pages are HTML without a request id: it calls its exported MHD_queue_response
 *    through the dynamic symbol table, so the one defined here sees them. */
#include "server/http.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/clock.h"
#include "server/cors.h"
#include "server/exchange.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/sink.h"
#include "server/tls.h"

enum {
    ACCEPTS_PER_TURN = 64,
    RUNS_PER_DRIVE = 16,
    HANGUPS_PER_TURN = 64,
    LISTEN_BACKLOG = 4096,
    POOL_BYTES = 64 * 1024,        /* per connection; 32 KiB of head and an 8 KiB target fit */
    SEND_BUFFER_BYTES = 128 << 10, /* the default grows to megabytes and hides a slow reader */
    QUIET_SECONDS = 75,            /* the library's own bound on a blocked write */
    TLS_SESSION_BYTES = 48 << 10,  /* GnuTLS, with a record buffered in each direction */
    LIBRARY_LINES_PER_SECOND = 5,
};

struct http {
    struct server *server;
    struct MHD_Daemon *daemon;
    uv_poll_t poll; /* the library's epoll descriptor */
    uv_timer_t timer;
    uv_idle_t idle;
    bool driving, again, closed;

    int listen_fd;
    uv_poll_t listen_poll;
    int spare_fd; /* given up for a moment to refuse a client when descriptors run out */

    int watch_fd; /* epoll set of sockets whose hang-up we want to know */
    uv_poll_t watch_poll;
    uint32_t next_watch;

    struct conn *conns;
    uint32_t n_conns;
    struct conn **by_fd;
    size_t by_fd_cap;
    struct log_limit library_lines, accept_lines;
    struct tls *tls; /* NULL: plain HTTP */
};

static char TLS_PRIORITIES[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/* Set while we call the library's MHD_queue_response for an answer of ours. */
static bool queueing_ours;

/* ---- driving --------------------------------------------------------------------------------- */

static void on_idle(uv_idle_t *idle) {
    http_drive(idle->data);
}

static void on_timer(uv_timer_t *timer) {
    http_drive(timer->data);
}

/* A 0 ms timer restarted from its own callback would never let the loop turn (libuv 1.44): work
 * left over is an idle handle. */
static void arm(struct http *http) {
    MHD_UNSIGNED_LONG_LONG wait_ms;
    bool has_timeout = MHD_get_timeout(http->daemon, &wait_ms) == MHD_YES;
    if (http->again || (has_timeout && wait_ms == 0)) {
        uv_idle_start(&http->idle, on_idle);
        return;
    }
    uv_idle_stop(&http->idle);
    if (has_timeout)
        uv_timer_start(&http->timer, on_timer, wait_ms, 0);
    else
        uv_timer_stop(&http->timer);
}

void http_drive(struct http *http) {
    if (!http->daemon) return;
    if (http->driving) {
        http->again = true;
        return;
    }
    http->driving = true;
    MHD_UNSIGNED_LONG_LONG wait_ms;
    int n_runs = 0;
    do {
        http->again = false;
        MHD_run(http->daemon);
    } while (++n_runs < RUNS_PER_DRIVE &&
             (http->again || (MHD_get_timeout(http->daemon, &wait_ms) == MHD_YES && wait_ms == 0)));
    http->driving = false;
    arm(http);
}

void http_resumed(struct http *http) {
    http->again = true;
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    http_drive(poll->data);
}

/* ---- connections ----------------------------------------------------------------------------- */

struct conn *http_conns(const struct http *http) {
    return http->conns;
}

uint32_t http_n_conns(const struct http *http) {
    return http->n_conns;
}

struct conn *http_conn_of(struct MHD_Connection *mhd) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static bool remember_fd(struct http *http, int fd, struct conn *conn) {
    if ((size_t)fd >= http->by_fd_cap) {
        size_t cap = http->by_fd_cap ? http->by_fd_cap : 256;
        while (cap <= (size_t)fd)
            cap *= 2;
        struct conn **grown = realloc(http->by_fd, cap * sizeof *grown);
        if (!grown) return false;
        memset(grown + http->by_fd_cap, 0, (cap - http->by_fd_cap) * sizeof *grown);
        http->by_fd = grown;
        http->by_fd_cap = cap;
    }
    http->by_fd[fd] = conn;
    return true;
}

static void conn_opened(struct http *http, struct MHD_Connection *mhd, void **socket_context) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct conn *conn = info ? calloc(1, sizeof *conn) : NULL;
    if (!conn) return; /* its requests find no context and are closed */
    conn->server = http->server;
    conn->mhd = mhd;
    conn->fd = info->connect_fd;
    conn->idle_since_us = clock_us();
    if (!remember_fd(http, conn->fd, conn)) {
        free(conn);
        return;
    }
    conn->next = http->conns;
    if (conn->next) conn->next->prev = conn;
    http->conns = conn;
    http->n_conns++;
    *socket_context = conn;
}

static void conn_closed(struct http *http, struct conn *conn) {
    /* 0.9.75 always completes a request before it closes; 1.0 may not where it never began. */
    if (conn->exchange) {
        void *left = conn->exchange;
        exchange_on_completed(http->server, conn->mhd, &left, MHD_REQUEST_TERMINATED_CLIENT_ABORT);
    }
    http_unwatch(conn);
    http->by_fd[conn->fd] = NULL;
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        http->conns = conn->next;
    if (conn->next) conn->next->prev = conn->prev;
    http->n_conns--;
    free(conn);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code) {
    struct http *http = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        conn_opened(http, mhd, socket_context);
    else if (*socket_context)
        conn_closed(http, *socket_context);
}

bool http_peer_closed(const struct conn *conn) {
    char byte;
    return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

size_t http_unread(const struct conn *conn) {
    int n = 0;
    if (ioctl(conn->fd, FIONREAD, &n) || n < 0) n = 0;
    size_t decrypted = conn->server->http->tls ? tls_unread(conn->mhd) : 0;
    return (size_t)n + decrypted;
}

size_t http_connection_bytes(const struct server *server) {
    size_t plain = POOL_BYTES + sizeof(struct conn) + sizeof(struct exchange) + URI_BYTES_MAX;
    return plain + (server->options->tls_cert ? TLS_SESSION_BYTES : 0);
}

/* ---- hang-ups -------------------------------------------------------------------------------- */

void http_watch(struct conn *conn) {
    struct http *http = conn->server->http;
    if (conn->watch) return;
    if (!++http->next_watch) http->next_watch = 1;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT};
    event.data.u64 = (uint64_t)http->next_watch << 32 | (uint32_t)conn->fd;
    if (epoll_ctl(http->watch_fd, EPOLL_CTL_ADD, conn->fd, &event)) {
        log_event(LOG_WARN, "watch", log_str("error", strerror(errno)));
        return;
    }
    conn->watch = http->next_watch;
}

void http_unwatch(struct conn *conn) {
    if (!conn->watch) return;
    struct epoll_event ignored = {0};
    epoll_ctl(conn->server->http->watch_fd, EPOLL_CTL_DEL, conn->fd, &ignored);
    conn->watch = 0;
}

void http_shut(struct conn *conn) {
    shutdown(conn->fd, SHUT_RDWR);
}

static void on_hangup(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    struct http *http = poll->data;
    struct epoll_event ready[HANGUPS_PER_TURN];
    int n = epoll_wait(http->watch_fd, ready, HANGUPS_PER_TURN, 0);
    for (int i = 0; i < n; i++) {
        uint32_t fd = (uint32_t)ready[i].data.u64, watch = (uint32_t)(ready[i].data.u64 >> 32);
        struct conn *conn = fd < http->by_fd_cap ? http->by_fd[fd] : NULL;
        if (conn && conn->watch == watch && conn->exchange) exchange_gone(conn->exchange);
    }
    http_drive(http);
}

/* ---- answers past the library ---------------------------------------------------------------- */

void http_linger(struct conn *conn) {
    int fd = fcntl(conn->fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) sink_add(conn->server->sink, fd, clock_us());
}

static void put_line(void *to, const char *name, const char *value) {
    buf_fmt(to, "%s: %s\r\n", name, value);
}

/* A whole error answer into out. cors: what the origin may see (cors_allowed). */
static void compose_error(const struct server *server, const struct api_error *error,
                          const char *request_id, const char *cors, struct buf *out) {
    struct buf body = {0};
    proto_error_body(&body, error);
    buf_fmt(out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
            error->status, MHD_get_reason_phrase_for((unsigned)error->status), body.len);
    buf_fmt(out, "X-Request-Id: %s\r\nConnection: close\r\n", request_id);
    uint32_t retry_ms = server_retry_ms(server, error);
    if (retry_ms)
        buf_fmt(out, "Retry-After: %u\r\nretry-after-ms: %u\r\n", (retry_ms + 999) / 1000,
                retry_ms);
    cors_headers(&server->options->cors_origins, cors, put_line, out);
    buf_str(out, "\r\n");
    buf_add(out, body.data, body.len);
    out->failed = out->failed || body.failed;
    buf_free(&body);
}

/* One send: an error answer is far smaller than any socket buffer. */
static void send_plain(int fd, const struct buf *out) {
    ssize_t ignored = out->failed ? 0 : send(fd, out->data, out->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)ignored;
}

void http_answer_by_hand(struct conn *conn, const struct api_error *error, const char *request_id) {
    const struct option_list *origins = &conn->server->options->cors_origins;
    const char *cors = conn->exchange ? conn->exchange->cors : cors_allowed(origins, NULL);
    struct buf out = {0};
    compose_error(conn->server, error, request_id, cors, &out);
    if (!conn->server->http->tls)
        send_plain(conn->fd, &out);
    else if (!out.failed)
        tls_send(conn->mhd, out.data, out.len);
    buf_free(&out);
    http_linger(conn);
}

typedef enum MHD_Result queue_fn(struct MHD_Connection *, unsigned, struct MHD_Response *);

static queue_fn *library_queue(void) {
    static queue_fn *real;
    if (!real) {
        void *symbol = dlsym(RTLD_NEXT, "MHD_queue_response");
        ASSERT(symbol);
        memcpy(&real, &symbol, sizeof real); /* ISO C has no such cast */
    }
    return real;
}

enum MHD_Result http_queue(struct MHD_Connection *mhd, unsigned status,
                           struct MHD_Response *response) {
    bool outer = queueing_ours;
    queueing_ours = true;
    enum MHD_Result result = library_queue()(mhd, status, response);
    queueing_ours = outer;
    return result;
}

static void describe_page(unsigned status, struct api_error *error) {
    switch (status) {
    case 413:
        api_error_set(error, API_REQUEST_TOO_LARGE, NULL, "the request is too large");
        break;
    case 414:
        api_error_set(error, API_URI_TOO_LONG, NULL, "the request target is longer than %d bytes",
                      URI_BYTES_MAX);
        break;
    case 431:
        api_error_set(error, API_HEADERS_TOO_LARGE, NULL,
                      "the header block is larger than %d bytes", HEADERS_BYTES_MAX);
        break;
    case 505:
        api_error_set(error, API_HTTP_VERSION_NOT_SUPPORTED, NULL,
                      "the HTTP version is not supported; use HTTP/1.1");
        break;
    case 400:
        api_error_set(error, API_MALFORMED_REQUEST, NULL, "the HTTP request is malformed");
        break;
    default:
        api_error_set(error, API_INTERNAL_ERROR, NULL, "the request could not be read");
        break;
    }
}

/* The library's own pages come here (it calls its exported function through the dynamic symbol
 * table): our JSON goes out by hand, and MHD_NO makes the library close the connection. */
enum MHD_Result MHD_queue_response(struct MHD_Connection *mhd, unsigned int status,
                                   struct MHD_Response *response) {
    if (queueing_ours) return library_queue()(mhd, status, response);
    struct conn *conn = http_conn_of(mhd);
    if (!conn || (conn->exchange && conn->exchange->answered)) return MHD_NO;
    struct api_error error;
    char scratch[REQUEST_ID_MAX + 1];
    const char *request_id = exchange_request_id(conn, scratch);
    describe_page(status, &error);
    http_answer_by_hand(conn, &error, request_id);
    metrics_http(conn->server->metrics, NULL, (int)status);
    if (conn->exchange) {
        conn->exchange->answered = true;
        conn->exchange->status = (int)status;
    }
    log_event(LOG_DEBUG, "refused", log_str("request_id", request_id),
              log_int("status", (int64_t)status));
    return MHD_NO;
}

/* ---- accepting ------------------------------------------------------------------------------- */

static void send_too_many(struct http *http, int fd) {
    const struct server *server = http->server;
    struct api_error error;
    struct buf out = {0};
    char request_id[REQUEST_ID_MAX + 1];
    exchange_request_id(NULL, request_id);
    api_error_set(&error, API_TOO_MANY_CONNECTIONS, NULL,
                  "the server has its limit of %u open connections", server->max_connections);
    compose_error(server, &error, request_id, cors_allowed(&server->options->cors_origins, NULL),
                  &out);
    send_plain(fd, &out);
    buf_free(&out);
    metrics_http(server->metrics, NULL, error.status);
    metrics_rejected(server->metrics, &error);
}

/* With TLS an answer would cost a handshake: closed without one. */
static void refuse(struct http *http, int fd, bool may_linger) {
    uint32_t dropped;
    if (log_limit_pass(&http->accept_lines, 1, clock_us(), &dropped))
        log_event(LOG_WARN, "too_many_connections", log_int("open", http->n_conns),
                  log_int("not_logged", dropped));
    if (http->tls) {
        close(fd);
        return;
    }
    send_too_many(http, fd);
    shutdown(fd, SHUT_WR);
    if (may_linger)
        sink_add(http->server->sink, fd, clock_us());
    else
        close(fd);
}

/* No descriptor left: give up the spare one for the time of a refusal, so that the client learns
 * of it and the listen socket does not stay readable for ever. */
static void refuse_without_descriptors(struct http *http) {
    if (http->spare_fd >= 0) close(http->spare_fd);
    int fd = accept4(http->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) refuse(http, fd, false);
    http->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_listen(uv_poll_t *poll, int status, int events) {
    (void)status, (void)events;
    struct http *http = poll->data;
    bool reaped = false;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof peer;
        int fd =
            accept4(http->listen_fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE) {
                refuse_without_descriptors(http);
                continue;
            }
            if (errno == EINTR || errno == ECONNABORTED) continue;
            break;
        }
        if (http->n_conns >= http->server->max_connections && !reaped) {
            http_drive(http); /* those that closed make room first */
            reaped = true;
        }
        if (http->n_conns >= http->server->max_connections) {
            refuse(http, fd, true);
            continue;
        }
        int bytes = SEND_BUFFER_BYTES;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        /* On failure the library has closed the socket. */
        if (MHD_add_connection(http->daemon, fd, (struct sockaddr *)&peer, len) != MHD_YES)
            log_event(LOG_WARN, "accept", log_str("error", "the HTTP library refused a socket"));
    }
    http_drive(http);
}

static int bind_one(const struct addrinfo *ai, int *out) {
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return ERR_IO;
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, LISTEN_BACKLOG)) {
        int saved = errno;
        close(fd);
        errno = saved;
        return ERR_IO;
    }
    *out = fd;
    return OK;
}

int http_listen(struct server *server, uint32_t *port_out, struct err *err) {
    struct http *http = server->http;
    const char *host = server->options->host;
    char service[16];
    snprintf(service, sizeof service, "%u", server->options->port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc) return err_set(err, ERR_IO, "--host %s: %s", host, gai_strerror(rc));
    rc = ERR_IO;
    for (struct addrinfo *ai = found; ai && rc; ai = ai->ai_next)
        rc = bind_one(ai, &http->listen_fd);
    freeaddrinfo(found);
    if (rc)
        return err_set(err, ERR_IO, "cannot listen on %s port %u: %s", host, server->options->port,
                       strerror(errno));
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char port[16];
    if (getsockname(http->listen_fd, (struct sockaddr *)&bound, &len) ||
        getnameinfo((struct sockaddr *)&bound, len, NULL, 0, port, sizeof port, NI_NUMERICSERV))
        return err_set(err, ERR_IO, "cannot tell the port of the listen socket");
    *port_out = (uint32_t)strtoul(port, NULL, 10);
    if (uv_poll_init(&server->loop, &http->listen_poll, http->listen_fd))
        return err_set(err, ERR_IO, "cannot watch the listen socket");
    http->listen_poll.data = http;
    uv_poll_start(&http->listen_poll, UV_READABLE, on_listen);
    return OK;
}

void http_stop_listening(struct http *http) {
    if (http->listen_fd < 0) return;
    if (http->listen_poll.data) {
        uv_poll_stop(&http->listen_poll);
        uv_close((uv_handle_t *)&http->listen_poll, NULL);
    }
    close(http->listen_fd);
    http->listen_fd = -1;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static void on_library_message(void *cls, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
static void on_library_message(void *cls, const char *fmt, va_list ap) {
    struct http *http = cls;
    uint32_t dropped;
    if (!log_limit_pass(&http->library_lines, LIBRARY_LINES_PER_SECOND, clock_us(), &dropped))
        return;
    char text[256];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = 0;
    log_event(LOG_DEBUG, "microhttpd", log_str("message", text), log_int("not_logged", dropped));
}

/* Paths are matched as sent; what needs decoding is decoded by its route. */
static size_t keep_escaped(void *cls, struct MHD_Connection *mhd, char *text) {
    (void)cls, (void)mhd;
    return strlen(text);
}

/* The raw scan of header lines (exchange.c) reads the library's insides, which we know for one
 * version; later ones are strict by themselves. */
static int choose_strictness(int *level, struct err *err) {
    const char *version = MHD_get_version();
    if (!strcmp(version, "0.9.75"))
        *level = 0;
    else if (!strncmp(version, "1.0.", 4))
        *level = 1;
    else
        return err_set(err, ERR_INVALID, "libmicrohttpd %s is not supported: 0.9.75 or 1.0.x",
                       version);
    return OK;
}

/* Raise the limit on descriptors; where it still falls short, have fewer connections. */
static int fit_descriptors(struct server *server, struct err *err) {
    enum { OTHERS = 64 };
    struct rlimit limit;
    server->max_connections = server->options->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return OK;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    if (limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= (rlim_t)server->max_connections + OTHERS)
        return OK;
    if (server->options->max_connections_set)
        return err_set(err, ERR_INVALID,
                       "--max-connections %u needs %u file descriptors, the limit is %llu",
                       server->max_connections, server->max_connections + OTHERS,
                       (unsigned long long)limit.rlim_cur);
    server->max_connections =
        limit.rlim_cur > 2 * OTHERS ? (uint32_t)limit.rlim_cur - OTHERS : OTHERS;
    log_event(LOG_WARN, "max_connections_lowered", log_int("to", server->max_connections),
              log_int("descriptors", (int64_t)limit.rlim_cur));
    return OK;
}

/* The library closes without a word after this much quiet of any kind: our own limits, which answer,
 * must come first. */
static unsigned quiet_seconds(const struct options *options) {
    const double limits[] = {options->header_timeout, options->body_timeout, options->idle_timeout,
                             options->reader_timeout};
    double longest = QUIET_SECONDS;
    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        if (limits[i] + 1 > longest) longest = limits[i] + 1;
    return (unsigned)longest;
}

static struct MHD_Daemon *start_daemon(struct http *http, int level) {
    struct server *server = http->server;
    unsigned flags =
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, NULL},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, NULL},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, TLS_PRIORITIES},
        {MHD_OPTION_END, 0, NULL},
    };
    if (http->tls) {
        flags |= MHD_USE_TLS;
        tls[0].ptr_value = (void *)tls_cert(http->tls);
        tls[1].ptr_value = (void *)tls_key(http->tls);
    } else {
        tls[0].option = MHD_OPTION_END;
    }
    return MHD_start_daemon(
        flags, 0, NULL, NULL, exchange_on_request, server, MHD_OPTION_EXTERNAL_LOGGER,
        on_library_message, http, MHD_OPTION_ARRAY, tls, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)server->max_connections + 64, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, quiet_seconds(server->options),
        MHD_OPTION_NOTIFY_COMPLETED, exchange_on_completed, server, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, http, MHD_OPTION_URI_LOG_CALLBACK, exchange_on_uri, server,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_escaped, NULL, MHD_OPTION_STRICT_FOR_CLIENT, level,
        MHD_OPTION_END);
}

int http_create(struct server *server, struct err *err) {
    int level = 0;
    int rc = choose_strictness(&level, err);
    if (!rc) rc = fit_descriptors(server, err);
    if (rc) return rc;
    struct http *http = calloc(1, sizeof *http);
    if (!http) return err_set(err, ERR_NOMEM, "http: out of memory");
    server->http = http;
    http->server = server;
    http->listen_fd = http->spare_fd = http->watch_fd = -1;
    rc = tls_load(server->options, &http->tls, err);
    if (rc) return rc;
    http->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    http->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    http->daemon = start_daemon(http, level);
    const union MHD_DaemonInfo *info =
        http->daemon ? MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (http->watch_fd < 0 || !info)
        return err_set(err, ERR_IO, "the HTTP library cannot start: %s", strerror(errno));
    uv_idle_init(&server->loop, &http->idle);
    uv_timer_init(&server->loop, &http->timer);
    http->idle.data = http->timer.data = http;
    if (uv_poll_init(&server->loop, &http->poll, info->epoll_fd) ||
        uv_poll_init(&server->loop, &http->watch_poll, http->watch_fd))
        return err_set(err, ERR_IO, "the loop cannot watch the HTTP library");
    http->poll.data = http->watch_poll.data = http;
    uv_poll_start(&http->poll, UV_READABLE, on_poll);
    uv_poll_start(&http->watch_poll, UV_READABLE, on_hangup);
    return OK;
}

static void close_handle(uv_handle_t *handle) {
    if (handle->data && !uv_is_closing(handle)) uv_close(handle, NULL);
}

void http_close(struct http *http) {
    if (!http || http->closed) return;
    http->closed = true;
    http_stop_listening(http);
    if (http->poll.data) uv_poll_stop(&http->poll); /* before the library closes its descriptor */
    if (http->watch_poll.data) uv_poll_stop(&http->watch_poll);
    if (http->daemon) MHD_stop_daemon(http->daemon);
    http->daemon = NULL;
    close_handle((uv_handle_t *)&http->poll);
    close_handle((uv_handle_t *)&http->watch_poll);
    close_handle((uv_handle_t *)&http->idle);
    close_handle((uv_handle_t *)&http->timer);
    if (http->watch_fd >= 0) close(http->watch_fd);
    if (http->spare_fd >= 0) close(http->spare_fd);
    http->watch_fd = http->spare_fd = -1;
}

void http_destroy(struct http *http) {
    if (!http) return;
    ASSERT(!http->n_conns);
    tls_destroy(http->tls);
    free(http->by_fd);
    free(http);
}
