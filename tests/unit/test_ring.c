#include "tests/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ring.h"

/* Record number i: its length and bytes follow from i. */
static size_t fill(char *record, uint32_t i) {
    size_t len = 4 + (i * 2654435761u >> 7) % 120;
    memset(record, (int)(i & 0xFF), len);
    memcpy(record, &i, sizeof i);
    return len;
}

static bool is_record(const char *record, uint32_t i) {
    char want[128];
    size_t len = fill(want, i);
    return memcmp(record, want, len) == 0;
}

static void records_come_out_in_order_across_the_wrap(void **state) {
    (void)state;
    struct ring *ring = ring_create(1024);
    uint32_t in = 0, out = 0;
    struct rng rng;
    rng_seed(&rng, test_seed());
    while (out < 20000) {
        char *record;
        if (rng_below(&rng, 2) && (record = ring_reserve(ring, 128))) {
            ring_publish(ring, fill(record, in));
            in++;
        }
        const char *front = rng_below(&rng, 2) ? ring_front(ring) : NULL;
        if (front) {
            assert_true(is_record(front, out));
            out++;
            ring_pop(ring);
        }
    }
    ring_destroy(ring);
}

static void full_ring_refuses_and_recovers(void **state) {
    (void)state;
    struct ring *ring = ring_create(1024);
    int n = 0;
    while (ring_reserve(ring, 100)) {
        ring_publish(ring, 100);
        n++;
    }
    assert_in_range(n, 8, 10);
    assert_false(ring_has_room(ring, 100, 1));
    while (ring_front(ring))
        ring_pop(ring);
    assert_true(ring_has_room(ring, 100, 1));
    assert_non_null(ring_reserve(ring, 100));
    ring_destroy(ring);
}

static void room_promised_is_room_found(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int round = 0; round < 2000; round++) {
        struct ring *ring = ring_create(1024);
        for (uint32_t i = rng_below(&rng, 12); i > 0; i--) { /* move head and tail somewhere */
            char *record = ring_reserve(ring, 100);
            if (record) ring_publish(ring, 1 + rng_below(&rng, 100));
            if (ring_front(ring) && rng_below(&rng, 4)) ring_pop(ring);
        }
        size_t n = 1 + rng_below(&rng, 5), each = 1 + rng_below(&rng, 100);
        if (ring_has_room(ring, n * each, n))
            for (size_t i = 0; i < n; i++) {
                assert_non_null(ring_reserve(ring, each));
                ring_publish(ring, each);
            }
        ring_destroy(ring);
    }
}

enum { N_THREADED = 200000 };

static void *produce(void *arg) {
    struct ring *ring = arg;
    for (uint32_t i = 0; i < N_THREADED;) {
        char *record = ring_reserve(ring, 128);
        if (!record) {
            sched_yield();
            continue;
        }
        ring_publish(ring, fill(record, i));
        i++;
    }
    return NULL;
}

static void two_threads_see_every_record(void **state) {
    (void)state;
    struct ring *ring = ring_create(4096);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, ring), 0);
    for (uint32_t i = 0; i < N_THREADED;) {
        const char *front = ring_front(ring);
        if (!front) {
            sched_yield();
            continue;
        }
        assert_true(is_record(front, i));
        i++;
        ring_pop(ring);
    }
    pthread_join(thread, NULL);
    assert_null(ring_front(ring));
    ring_destroy(ring);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_in_order_across_the_wrap),
        cmocka_unit_test(full_ring_refuses_and_recovers),
        cmocka_unit_test(room_promised_is_room_found),
        cmocka_unit_test(two_threads_see_every_record),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
