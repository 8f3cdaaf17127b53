#include "server/sink.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    LINGER_SOCKETS_MAX = 256,
    LINGER_US = 2000000,
    LINGER_BYTES_MAX = 128 << 20,
    LINGER_READ_BYTES = 64 * 1024,
};

struct entry {
    uv_poll_t poll; /* first: closing gives the entry back */
    struct sink *sink;
    struct entry *next, *prev;
    int fd;
    uint64_t deadline_us, n_bytes;
};

struct sink {
    uv_loop_t *loop;
    struct entry *entries;
    uint32_t n;
    char scratch[LINGER_READ_BYTES];
};

struct sink *sink_create(uv_loop_t *loop) {
    struct sink *sink = calloc(1, sizeof *sink);
    if (sink) sink->loop = loop;
    return sink;
}

static void on_closed(uv_handle_t *handle) {
    free(handle);
}

static void finish(struct entry *entry) {
    struct sink *sink = entry->sink;
    if (entry->prev)
        entry->prev->next = entry->next;
    else
        sink->entries = entry->next;
    if (entry->next) entry->next->prev = entry->prev;
    sink->n--;
    uv_poll_stop(&entry->poll);
    close(entry->fd);
    uv_close((uv_handle_t *)&entry->poll, on_closed);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
    (void)events;
    struct entry *entry = (struct entry *)poll;
    if (status < 0) {
        finish(entry);
        return;
    }
    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(entry->fd, entry->sink->scratch, LINGER_READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n > 0) entry->n_bytes += (uint64_t)n;
        if (n <= 0 || entry->n_bytes > LINGER_BYTES_MAX) {
            finish(entry);
            return;
        }
    }
}

void sink_add(struct sink *sink, int fd, uint64_t now_us) {
    struct entry *entry = sink->n < LINGER_SOCKETS_MAX ? calloc(1, sizeof *entry) : NULL;
    if (!entry || uv_poll_init(sink->loop, &entry->poll, fd)) {
        free(entry);
        close(fd);
        return;
    }
    entry->sink = sink;
    entry->fd = fd;
    entry->deadline_us = now_us + LINGER_US;
    entry->next = sink->entries;
    if (entry->next) entry->next->prev = entry;
    sink->entries = entry;
    sink->n++;
    if (uv_poll_start(&entry->poll, UV_READABLE, on_readable)) finish(entry);
}

void sink_tick(struct sink *sink, uint64_t now_us) {
    for (struct entry *entry = sink->entries, *next; entry; entry = next) {
        next = entry->next;
        if (now_us >= entry->deadline_us) finish(entry);
    }
}

void sink_close_all(struct sink *sink) {
    while (sink->entries)
        finish(sink->entries);
}

void sink_destroy(struct sink *sink) {
    free(sink);
}
