/* harness.h: what every C test shares: cmocka, seeded random numbers, tensor comparison, scratch
 * files, and asserts that are expected to fail. A failure prints the seed that replays it
 * (GERYON_TEST_SEED). */
#ifndef GERYON_HARNESS_H
#define GERYON_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* xoshiro-style generator; the same seed gives the same numbers everywhere. */
struct rng {
    uint64_t s[2];
};
void rng_seed(struct rng *rng, uint64_t seed);
uint64_t rng_u64(struct rng *rng);
uint32_t rng_below(struct rng *rng, uint32_t n); /* 0 .. n - 1 */
double rng_unit(struct rng *rng);                /* [0, 1) */
float rng_normal(struct rng *rng);
/* The seed of this run: GERYON_TEST_SEED, or a new one, printed once. */
uint64_t test_seed(void);

/* Fail naming the first index where |a - b| > atol + rtol * |b|, and the largest error. */
void assert_close(const float *a, const float *b, size_t n, double atol, double rtol,
                  const char *what);
/* Fail naming the first index whose bits differ. */
void assert_same_bits(const float *a, const float *b, size_t n, const char *what);

/* True when statement trips an ASSERT (which then does not abort). */
extern jmp_buf harness_assert_jump;
void harness_expect_assert(void);
bool harness_end_assert(void);
#define assert_trips(statement)             \
    do {                                    \
        harness_expect_assert();            \
        if (!setjmp(harness_assert_jump)) { \
            statement;                      \
        }                                   \
        assert_true(harness_end_assert());  \
    } while (0)

/* n bytes copied so that the byte after them lies in an unreadable page; guard_free. */
char *guard_copy(const void *data, size_t n);
void guard_free(char *data, size_t n);

/* Whole file, malloc'd and NUL-terminated; fails the test when it cannot be read. */
char *read_file(const char *path, size_t *len);
/* A fresh directory under TMPDIR, removed by the runner; static storage. */
const char *scratch_dir(void);
void write_file(const char *path, const void *data, size_t len);

/* Path of the frozen data: tests/golden (GERYON_GOLDEN overrides). */
const char *golden_path(const char *relative);

#endif
