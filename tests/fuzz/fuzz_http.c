/* fuzz_http: bytes on a connection to the real server, which runs on a thread of this process over
 * a tiny model. The first byte of an input chooses how the rest is sent: bit 0 half-closes after
 * it, bit 1 sends it in two pieces. Whatever came, the server's own bytes are an HTTP answer, and
 * another client is served. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/cmd.h"
#include "server/options.h"
#include "tests/harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { QUIET_MS = 3, ANSWER_MS = 20000, CHECK_EVERY = 32 };

static int port;

static const char *no_env(const char *name) {
    (void)name;
    return NULL;
}

#define REQUIRE(e) ((e) ? (void)0 : (fprintf(stderr, "fuzz_http: %s failed\n", #e), abort()))

static void *serve(void *arg) {
    (void)arg;
    char model[512];
    snprintf(model, sizeof model, "%s", golden_path("qwen3-single-standard-orthrus"));
    char *argv[] = {
        (char[]){"geryon"},           (char[]){"serve"}, (char[]){"--model"},     model,
        (char[]){"--port"},           (char[]){"0"},     (char[]){"--threads"},   (char[]){"1"},
        (char[]){"--kv-memory"},      (char[]){"1M"},    (char[]){"--log-level"}, (char[]){"error"},
        (char[]){"--max-body-bytes"}, (char[]){"65536"}};
    static struct options options;
    struct err err = {0};
    if (options_parse(&options, (int)ARRAY_LEN(argv), argv, no_env, &err)) {
        fprintf(stderr, "fuzz_http: %s\n", err.msg);
        abort();
    }
    cmd_serve(&options);
    REQUIRE(!"the server went on");
    return NULL;
}

static int dial(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    /* Other programs of this machine may hold all local ports for a while. */
    for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof at) != 0; i++) {
        REQUIRE(errno == EADDRNOTAVAIL && i < 1200);
        usleep(50000);
    }
    struct linger hard = {.l_onoff = 1}; /* reset at close: thousands of TIME_WAITs else */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    return fd;
}

/* The server may close while we write; that is its right. */
static void send_all(int fd, const uint8_t *data, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return;
        data += sent;
        n -= (size_t)sent;
    }
}

/* Bytes into out until the end, or until nothing came for a while. */
static size_t receive(int fd, char *out, size_t cap, int quiet_ms) {
    size_t n = 0;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (n < cap && poll(&wait, 1, quiet_ms) > 0) {
        ssize_t got = recv(fd, out + n, cap - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
    }
    return n;
}

static bool answers(const char *path) {
    char request[64], answer[512] = "";
    int fd = dial();
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path);
    send_all(fd, (const uint8_t *)request, (size_t)n);
    receive(fd, answer, sizeof answer - 1, ANSWER_MS);
    close(fd);
    return strncmp(answer, "HTTP/1.1 200", 12) == 0;
}

/* The server says on stdout where it listens. */
static void start(void) {
    int pipe_fd[2], out = dup(STDOUT_FILENO);
    REQUIRE(out >= 0 && pipe(pipe_fd) == 0);
    fflush(stdout);
    dup2(pipe_fd[1], STDOUT_FILENO);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, serve, NULL) == 0);
    char line[128] = "";
    REQUIRE(read(pipe_fd[0], line, sizeof line - 1) > 0);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    char *colon = strrchr(line, ':');
    REQUIRE(colon != NULL);
    port = (int)strtol(colon + 1, NULL, 10);
    for (int i = 0; i < 600 && !answers("/ready"); i++)
        usleep(50000);
    REQUIRE(answers("/ready"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned n_inputs;
    if (!port) start();
    if (size == 0) return 0;
    uint8_t how = data[0];
    data++, size--;
    int fd = dial();
    size_t first = how & 2 ? size / 2 : size;
    send_all(fd, data, first);
    if (first < size) usleep(200);
    send_all(fd, data + first, size - first);
    if (how & 1) shutdown(fd, SHUT_WR);
    char answer[4096];
    size_t n = receive(fd, answer, sizeof answer, QUIET_MS);
    close(fd);
    if (n >= 5) REQUIRE(memcmp(answer, "HTTP/", 5) == 0);
    if (++n_inputs % CHECK_EVERY == 0) REQUIRE(answers("/live"));
    return 0;
}
