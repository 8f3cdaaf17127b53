#include "server/ids.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "kernels/base.h"

static void random_bytes(void *out, size_t n) {
    size_t done = 0;
    while (done < n) {
        ssize_t got = getrandom((char *)out + done, n - done, 0);
        ASSERT(got >= 0 || errno == EINTR); /* fewer than 256 bytes cannot fail otherwise */
        if (got > 0) done += (size_t)got;
    }
}

void ids_request(char out[IDS_REQUEST_BYTES]) {
    uint64_t r[2];
    random_bytes(r, sizeof r);
    snprintf(out, IDS_REQUEST_BYTES, "req_%016llx%016llx", (unsigned long long)r[0],
             (unsigned long long)r[1]);
}

void ids_completion(const char *prefix, char *out, size_t cap) {
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    enum { N = 29, LETTERS = sizeof ALPHABET - 1 };
    size_t at = strlen(prefix);
    ASSERT(at + N + 1 <= cap);
    memcpy(out, prefix, at);
    for (size_t n = 0; n < N;) {
        uint8_t bytes[64];
        random_bytes(bytes, sizeof bytes);
        for (size_t i = 0; i < sizeof bytes && n < N; i++) {
            if (bytes[i] >= 256 / LETTERS * LETTERS) continue; /* keep the letters equally likely */
            out[at + n++] = ALPHABET[bytes[i] % LETTERS];
        }
    }
    out[at + N] = 0;
}

uint64_t ids_seed(void) {
    uint64_t seed;
    random_bytes(&seed, sizeof seed);
    return seed;
}
