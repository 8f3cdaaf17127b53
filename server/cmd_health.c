/* cmd_health.c: GET /health of a running server, for container probes. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "server/cmd.h"

enum { TIMEOUT_SECONDS = 5 };

static int connect_to(const struct options *options, int *out, struct err *err) {
    char port[16];
    snprintf(port, sizeof port, "%u", options->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(options->host, port, &hints, &found);
    if (rc) return err_set(err, ERR_IO, "--host %s: %s", options->host, gai_strerror(rc));
    int fd = -1;
    struct timeval timeout = {.tv_sec = TIMEOUT_SECONDS};
    for (struct addrinfo *ai = found; ai; ai = ai->ai_next) {
        fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        if (!connect(fd, ai->ai_addr, ai->ai_addrlen)) break;
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return err_set(err, ERR_IO, "no server answers at %s port %u: %s", options->host,
                       options->port, strerror(errno));
    *out = fd;
    return OK;
}

int cmd_health(const struct options *options) {
    static const char REQUEST[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close"
                                  "\r\n\r\n";
    struct err err = {0};
    int fd = -1, rc = connect_to(options, &fd, &err);
    if (rc) return cmd_fail(&err);
    char answer[4096];
    size_t len = 0;
    if (send(fd, REQUEST, sizeof REQUEST - 1, MSG_NOSIGNAL) == (ssize_t)sizeof REQUEST - 1) {
        ssize_t n;
        while (len + 1 < sizeof answer &&
               (n = recv(fd, answer + len, sizeof answer - 1 - len, 0)) > 0)
            len += (size_t)n;
    }
    close(fd);
    answer[len] = 0;
    int status = 0;
    const char *body = strstr(answer, "\r\n\r\n");
    if (sscanf(answer, "HTTP/1.%*d %d", &status) != 1 || !body) {
        err_set(&err, ERR_IO, "the server at %s port %u gave no HTTP answer within %d s",
                options->host, options->port, TIMEOUT_SECONDS);
        return cmd_fail(&err);
    }
    printf("%s\n", body + 4);
    return status == 200 ? 0 : 1;
}
