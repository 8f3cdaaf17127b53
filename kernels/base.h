/* base.h: the ground floor that every room may include: status codes, error values, assertions
 * and a little integer arithmetic. Nothing else is shared by all. */
#ifndef GERYON_BASE_H
#define GERYON_BASE_H

#include <stddef.h>
#include <stdint.h>

#define GERYON_VERSION "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/* What a function that can fail returns: 0, or one of these. */
enum status {
    OK = 0,
    ERR_INVALID = -1,   /* the input is wrong: a file, a request, a flag */
    ERR_TOO_LONG = -2,  /* the input is right but over a stated limit */
    ERR_FULL = -3,      /* a bounded thing has no room just now; try again later */
    ERR_CANCELLED = -4, /* nobody wants the result any more */
    ERR_IO = -5,        /* the operating system said no */
    ERR_NOMEM = -6,     /* no memory */
    ERR_DEVICE = -7,    /* the compute device failed; not survivable within a batch */
};

/* An error for a person. Lives in the caller's storage and is never allocated. The message says
 * where, what was found and what was expected; no capital at the start, no full stop. */
struct err {
    int code;
    char msg[256];
};

/* Fill err (which may be NULL) and return code, so that failing is one line. Longer messages are
 * cut at a whole UTF-8 character. */
int err_set(struct err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Called by a failed ASSERT; prints one line and aborts. Tests may set a hook that does not return
 * (longjmp) so that an assertion can be expected. */
__attribute__((noreturn)) void assert_fail(const char *expr, const char *file, int line);
extern void (*assert_fail_hook)(const char *expr, const char *file, int line);

/* Our own invariants only; stays on in release builds. */
#define ASSERT(e) ((e) ? (void)0 : assert_fail(#e, __FILE__, __LINE__))

/* Walks whole structures; on in debug and test builds only. */
#ifdef GERYON_SLOW_CHECKS
#define ASSERT_SLOW(e) ASSERT(e)
#else
#define ASSERT_SLOW(e) ((void)0)
#endif

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline size_t div_ceil(size_t n, size_t by) {
    return (n + by - 1) / by;
}

/* to: a power of two. */
static inline size_t align_up(size_t n, size_t to) {
    return (n + to - 1) & ~(to - 1);
}

/* a * b into *out, or ERR_TOO_LONG without touching it when the product does not fit. */
static inline int mul_size(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return ERR_TOO_LONG;
    *out = r;
    return OK;
}

#ifdef __cplusplus
}
#endif

#endif
