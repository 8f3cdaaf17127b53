/* clock.h: the server's only clock, so that a simulation can replace it in one place. */
#ifndef GERYON_CLOCK_H
#define GERYON_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Microseconds of a clock that never goes back. */
static inline uint64_t clock_us(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

/* Unix seconds, for `created` fields. */
static inline int64_t clock_unix(void) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec;
}

static inline double clock_ms(uint64_t from_us, uint64_t to_us) {
    return to_us > from_us ? (double)(to_us - from_us) / 1000.0 : 0.0;
}

#endif
