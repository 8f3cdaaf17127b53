/* Runs a fuzz target without libFuzzer: every file of a corpus as it is, cut at several places, and
 * with small random changes, for a few seconds. Speaks TAP, one test a corpus file. The input in
 * flight lies in $TMPDIR/fuzz-input, a shared map, so that a crash leaves it behind.
 *
 *     fuzz_NAME CORPUS [SECONDS]      GERYON_TEST_SEED=N repeats the changes of a run */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness.h"

enum { INPUT_MAX = 1 << 20, FILES_MAX = 4096, CUTS = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input in flight: its length, then its bytes. */
struct flight {
    uint64_t len;
    uint8_t bytes[INPUT_MAX];
};

static struct flight *open_flight(void) {
    char path[512];
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/fuzz-input", tmp ? tmp : ".");
    FILE *f = fopen(path, "w+b");
    if (!f || ftruncate(fileno(f), sizeof(struct flight)) != 0) {
        printf("Bail out! cannot create %s\n", path);
        exit(1);
    }
    struct flight *map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    fclose(f);
    if (map == MAP_FAILED) {
        printf("Bail out! cannot map %s\n", path);
        exit(1);
    }
    return map;
}

/* The target sees the input flush against an unreadable page. */
static void feed(struct flight *flight, const uint8_t *data, size_t len) {
    flight->len = len;
    memcpy(flight->bytes, data, len);
    char *copy = guard_copy(data, len);
    LLVMFuzzerTestOneInput((const uint8_t *)copy, len);
    guard_free(copy, len);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One to four small changes; returns the new length. */
static size_t mutate(struct rng *rng, uint8_t *data, size_t len) {
    static const uint8_t telling[] = {0,   1,   0x7f, 0x80, 0xff, '{', '}',
                                      '[', ']', '"',  '\\', ',',  '%'};
    for (uint32_t n = 1 + rng_below(rng, 4); n > 0; n--) {
        uint32_t at = len ? rng_below(rng, (uint32_t)len) : 0;
        uint32_t span = 1 + rng_below(rng, 16);
        switch (rng_below(rng, 6)) {
        case 0:
            if (len) data[at] ^= (uint8_t)(1u << rng_below(rng, 8));
            break;
        case 1:
            if (len) data[at] = telling[rng_below(rng, sizeof telling)];
            break;
        case 2: /* cut a piece out */
            if (at + span <= len) {
                memmove(data + at, data + at + span, len - at - span);
                len -= span;
            }
            break;
        case 3: /* say a piece twice */
            if (at + span <= len && len + span <= INPUT_MAX) {
                memmove(data + at + span, data + at, len - at);
                len += span;
            }
            break;
        case 4: /* a 64-bit number of extreme size */
            if (at + 8 <= len) {
                uint64_t number =
                    rng_below(rng, 2) ? ~0ull << rng_below(rng, 64) : 1ull << rng_below(rng, 64);
                memcpy(data + at, &number, sizeof number);
            }
            break;
        default: /* cut the end off */
            len = at;
        }
    }
    return len;
}

static void run_file(struct flight *flight, struct rng *rng, const char *path, double until) {
    static uint8_t work[INPUT_MAX];
    size_t len;
    char *data = read_file(path, &len);
    if (len > INPUT_MAX) len = INPUT_MAX;
    feed(flight, (const uint8_t *)data, len);
    size_t stride = len / CUTS + 1;
    for (size_t cut = 0; cut < len; cut += stride)
        feed(flight, (const uint8_t *)data, cut);
    while (now_s() < until) {
        memcpy(work, data, len);
        feed(flight, work, mutate(rng, work, len));
    }
    free(data);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(int argc, char **argv) {
    static char *names[FILES_MAX];
    size_t n = 0;
    double seconds = argc > 2 ? strtod(argv[2], NULL) : 4;
    DIR *dir = argc > 1 ? opendir(argv[1]) : NULL;
    if (!dir) {
        printf("Bail out! no corpus %s\n", argc > 1 ? argv[1] : "given");
        return 1;
    }
    for (struct dirent *entry; (entry = readdir(dir)) && n < FILES_MAX;)
        if (entry->d_name[0] != '.') names[n++] = strdup(entry->d_name);
    closedir(dir);
    qsort(names, n, sizeof names[0], by_name);

    struct flight *flight = open_flight();
    struct rng rng;
    rng_seed(&rng, test_seed());
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("1..%zu\n", n);
    for (size_t i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", argv[1], names[i]);
        run_file(flight, &rng, path, now_s() + seconds / (double)n);
        printf("ok %zu - %s\n", i + 1, names[i]);
        free(names[i]);
    }
    munmap(flight, sizeof *flight);
    return n == 0;
}
