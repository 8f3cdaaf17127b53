/* The table of live sequences: numbers, places, and how fast sequences end. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

#include "server/live.h"

static struct exchange *ex(int n) {
    return (struct exchange *)(uintptr_t)(0x1000 + n * 16);
}

static void a_number_leads_to_its_place_until_freed(void **state) {
    (void)state;
    struct live *live = live_create(2);
    uint64_t a = live_take(live, ex(1), 0, 0), b = live_take(live, ex(1), 1, 0);
    assert_true(a && b && a != b);
    assert_int_equal(live_n(live), 2);
    assert_int_equal(live_cap(live), 2);
    assert_ptr_equal(live_find(live, a)->exchange, ex(1));
    assert_int_equal(live_find(live, b)->choice, 1);
    live_free(live, a);
    assert_null(live_find(live, a));
    assert_ptr_equal(live_find(live, b)->exchange, ex(1));
    uint64_t c = live_take(live, ex(2), 5, 0);
    assert_true(c != a); /* the place again, but not the number */
    assert_null(live_find(live, a));
    assert_int_equal(live_find(live, c)->choice, 5);
    assert_null(live_find(live, 0));
    assert_null(live_find(live, UINT64_MAX));
    live_destroy(live);
    assert_int_equal(live_n(NULL), 0);
    live_destroy(NULL);
}

static void a_full_table_and_a_freed_number_assert(void **state) {
    (void)state;
    struct live *live = live_create(1);
    uint64_t a = live_take(live, ex(1), 0, 0);
    assert_trips(live_take(live, ex(1), 1, 0));
    live_free(live, a);
    assert_trips(live_free(live, a));
    live_destroy(live);
}

static void numbers_never_repeat_under_random_use(void **state) {
    (void)state;
    enum { CAP = 17, ROUNDS = 20000 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct live *live = live_create(CAP);
    uint64_t ids[CAP], newest = 0;
    uint32_t n = 0, choices[CAP], most_of_place[CAP] = {0};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (n < CAP && (!n || rng_below(&rng, 2))) {
            choices[n] = round;
            newest = ids[n++] = live_take(live, ex((int)round), round, 0);
            uint32_t place = (uint32_t)newest, generation = (uint32_t)(newest >> 32);
            assert_true(place < CAP && generation > most_of_place[place]);
            most_of_place[place] = generation;
        } else {
            uint32_t i = rng_below(&rng, n);
            live_free(live, ids[i]);
            assert_null(live_find(live, ids[i]));
            ids[i] = ids[--n];
            choices[i] = choices[n];
        }
        assert_int_equal(live_n(live), n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(live_find(live, ids[i])->choice, choices[i]);
    }
    live_destroy(live);
}

static void the_pace_is_that_of_the_last_32(void **state) {
    (void)state;
    struct live *live = live_create(1);
    live_take(live, ex(1), 0, 1000);
    assert_true(live_ms_per_sequence(live, 5000) == 0);
    live_note_ended(live, 2000);
    assert_true(live_ms_per_sequence(live, 5000) == 4);
    live_note_ended(live, 3000);
    assert_true(live_ms_per_sequence(live, 5000) == 2);
    for (uint64_t i = 0; i < 40; i++)
        live_note_ended(live, 1000000 + i * 1000);
    /* The first eight of them are forgotten, and all before. */
    assert_true(live_ms_per_sequence(live, 1040000) == 1);
    live_destroy(live);
}

static void idle_time_is_no_part_of_the_pace(void **state) {
    (void)state;
    struct live *live = live_create(2);
    uint64_t now_us = 0;
    for (int i = 0; i < 100; i++) { /* one a minute */
        uint64_t id = live_take(live, ex(1), 0, now_us += 60000000);
        live_free(live, id);
        live_note_ended(live, now_us + 5000);
    }
    uint64_t first = live_take(live, ex(1), 0, now_us += 60000000);
    live_take(live, ex(1), 1, now_us + 1000);
    assert_true(live_ms_per_sequence(live, now_us + 2000) == 0);
    live_free(live, first);
    live_note_ended(live, now_us + 7000);
    assert_true(live_ms_per_sequence(live, now_us + 8000) == 8);
    live_destroy(live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_leads_to_its_place_until_freed),
        cmocka_unit_test(a_full_table_and_a_freed_number_assert),
        cmocka_unit_test(numbers_never_repeat_under_random_use),
        cmocka_unit_test(the_pace_is_that_of_the_last_32),
        cmocka_unit_test(idle_time_is_no_part_of_the_pace),
    };
    return cmocka_run_group_tests_name("live", tests, NULL, NULL);
}
