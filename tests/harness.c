#include "tests/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base.h"

jmp_buf harness_assert_jump;
static bool assert_seen;

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void rng_seed(struct rng *rng, uint64_t seed) {
    rng->s[0] = splitmix(&seed);
    rng->s[1] = splitmix(&seed);
}

uint64_t rng_u64(struct rng *rng) {
    uint64_t a = rng->s[0], b = rng->s[1];
    uint64_t r = a + b;
    b ^= a;
    rng->s[0] = ((a << 24) | (a >> 40)) ^ b ^ (b << 16);
    rng->s[1] = (b << 37) | (b >> 27);
    return r;
}

uint32_t rng_below(struct rng *rng, uint32_t n) {
    return (uint32_t)(((rng_u64(rng) >> 32) * (uint64_t)n) >> 32);
}

double rng_unit(struct rng *rng) {
    return (double)(rng_u64(rng) >> 11) * 0x1p-53;
}

float rng_normal(struct rng *rng) {
    double u = 1.0 - rng_unit(rng), v = rng_unit(rng);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

uint64_t test_seed(void) {
    static uint64_t seed;
    static bool known;
    if (!known) {
        const char *text = getenv("GERYON_TEST_SEED");
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        seed = text ? strtoull(text, NULL, 0) : (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20;
        printf("# GERYON_TEST_SEED=%llu\n", (unsigned long long)seed);
        known = true;
    }
    return seed;
}

void assert_close(const float *a, const float *b, size_t n, double atol, double rtol,
                  const char *what) {
    double worst = 0;
    size_t bad = n;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]);
        if (!(e <= worst)) worst = e;
        if (!(e <= atol + rtol * fabs((double)b[i])) && bad == n) bad = i;
    }
    if (bad < n)
        fail_msg("%s: [%zu] is %.9g, expected %.9g; largest error %.3g", what, bad, (double)a[bad],
                 (double)b[bad], worst);
}

void assert_same_bits(const float *a, const float *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s: [%zu] is %.9g, expected %.9g bit for bit", what, i, (double)a[i],
                     (double)b[i]);
}

static void assert_hook(const char *expr, const char *file, int line) {
    (void)expr, (void)file, (void)line;
    assert_seen = true;
    longjmp(harness_assert_jump, 1);
}

void harness_expect_assert(void) {
    assert_seen = false;
    assert_fail_hook = assert_hook;
}

bool harness_end_assert(void) {
    assert_fail_hook = NULL;
    return assert_seen;
}

char *guard_copy(const void *data, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = align_up(n + 1, page);
    char *map = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + room, page, PROT_NONE), 0);
    char *at = map + room - n;
    if (n) memcpy(at, data, n);
    return at;
}

void guard_free(char *data, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = align_up(n + 1, page);
    munmap(data + n - room, room + page);
}

char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)n, f), (size_t)n);
    data[n] = '\0';
    fclose(f);
    if (len) *len = (size_t)n;
    return data;
}

const char *scratch_dir(void) {
    static char path[256];
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/geryon-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(path));
    return path;
}

void write_file(const char *path, const void *data, size_t len) {
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("cannot create %s", path);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

const char *golden_path(const char *relative) {
    static char path[512];
    const char *root = getenv("GERYON_GOLDEN");
    snprintf(path, sizeof path, "%s/%s", root ? root : "tests/golden", relative);
    return path;
}
