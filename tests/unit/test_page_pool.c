#include "tests/harness.h"

#include "engine/page_pool.h"

static void acquire_is_all_or_nothing(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(4);
    uint32_t pages[5] = {99, 99, 99, 99, 99};
    assert_int_equal(page_pool_acquire(pool, 5, pages), ERR_FULL);
    assert_int_equal(pages[0], 99);
    assert_int_equal(page_pool_n_free(pool), 4);
    assert_int_equal(page_pool_acquire(pool, 4, pages), OK);
    assert_int_equal(page_pool_n_free(pool), 0);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(pages[i], pages[j]);
    page_pool_destroy(pool);
}

static void shared_page_is_freed_by_its_last_reference(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(2);
    uint32_t page;
    assert_int_equal(page_pool_acquire(pool, 1, &page), OK);
    page_pool_retain(pool, page);
    page_pool_release(pool, page);
    assert_int_equal(page_pool_n_free(pool), 1);
    page_pool_release(pool, page);
    assert_int_equal(page_pool_n_free(pool), 2);
    page_pool_destroy(pool);
}

static void release_of_free_page_asserts(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(2);
    assert_trips(page_pool_release(pool, 0));
    assert_trips(page_pool_release(pool, 2));
    assert_trips(page_pool_retain(pool, 1));
    page_pool_destroy(pool);
}

static void check_finds_lost_and_double_pages(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(3);
    uint32_t pages[2];
    assert_int_equal(page_pool_acquire(pool, 2, pages), OK);
    page_pool_check_begin(pool);
    page_pool_check_count(pool, pages, 2);
    page_pool_check_end(pool);
    page_pool_check_begin(pool); /* a table lost one */
    page_pool_check_count(pool, pages, 1);
    assert_trips(page_pool_check_end(pool));
    page_pool_check_begin(pool); /* two tables name one page that is counted once */
    page_pool_check_count(pool, pages, 2);
    page_pool_check_count(pool, pages, 1);
    assert_trips(page_pool_check_end(pool));
    page_pool_destroy(pool);
}

struct evictions {
    uint32_t pages[64], n;
};

static void note_eviction(void *arg, uint32_t page) {
    struct evictions *seen = arg;
    seen->pages[seen->n++] = page;
}

static void kept_page_outlives_its_last_reference(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(3);
    struct evictions seen = {0};
    page_pool_on_evict(pool, note_eviction, &seen);
    uint32_t pages[3];
    assert_int_equal(page_pool_acquire(pool, 2, pages), OK);
    page_pool_keep(pool, pages[0]);
    page_pool_release(pool, pages[0]);
    page_pool_release(pool, pages[1]);
    assert_int_equal(page_pool_n_free(pool), 3); /* what acquire can give */
    assert_int_equal(page_pool_n_cached(pool), 1);
    page_pool_retain(pool, pages[0]); /* somebody wants it again */
    assert_int_equal(page_pool_n_cached(pool), 0);
    assert_int_equal(page_pool_refs(pool, pages[0]), 1);
    page_pool_release(pool, pages[0]);
    uint32_t fresh[3];
    assert_int_equal(page_pool_acquire(pool, 2, fresh), OK); /* free ones first */
    assert_int_equal(seen.n, 0);
    assert_int_equal(page_pool_acquire(pool, 1, fresh + 2), OK);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.pages[0], pages[0]);
    assert_int_equal(fresh[2], pages[0]);
    assert_false(page_pool_is_kept(pool, fresh[2]));
    assert_int_equal(page_pool_n_evicted(pool), 1);
    page_pool_destroy(pool);
}

static void least_recently_released_goes_first(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(4);
    struct evictions seen = {0};
    page_pool_on_evict(pool, note_eviction, &seen);
    uint32_t p[4], out[4];
    assert_int_equal(page_pool_acquire(pool, 4, p), OK);
    for (int i = 0; i < 4; i++)
        page_pool_keep(pool, p[i]);
    for (int i = 3; i >= 0; i--)
        page_pool_release(pool, p[i]);
    page_pool_retain(pool, p[3]); /* used again: the newest after its release */
    page_pool_release(pool, p[3]);
    page_pool_unkeep(pool, p[1]); /* free at once, from the middle */
    assert_int_equal(page_pool_n_cached(pool), 3);
    assert_int_equal(page_pool_acquire(pool, 5, out), ERR_FULL);
    assert_int_equal(seen.n, 0);
    assert_int_equal(page_pool_acquire(pool, 4, out), OK);
    assert_int_equal(seen.n, 3);
    assert_int_equal(seen.pages[0], p[2]);
    assert_int_equal(seen.pages[1], p[0]);
    assert_int_equal(seen.pages[2], p[3]);
    page_pool_destroy(pool);
}

static void keeping_what_nobody_holds_asserts(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(2);
    uint32_t page;
    assert_trips(page_pool_keep(pool, 0));
    assert_int_equal(page_pool_acquire(pool, 1, &page), OK);
    assert_trips(page_pool_unkeep(pool, page));
    page_pool_keep(pool, page);
    assert_trips(page_pool_keep(pool, page));
    page_pool_release(pool, page);
    assert_trips(page_pool_release(pool, page)); /* cached: nobody's to give back */
    page_pool_destroy(pool);
}

static void random_operations_keep_the_counts(void **state) {
    (void)state;
    enum { N_PAGES = 17, N_TABLES = 6, TABLE_MAX = 32 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    struct page_pool *pool = page_pool_create(N_PAGES);
    uint32_t tables[N_TABLES][TABLE_MAX], n[N_TABLES] = {0};
    for (int op = 0; op < 5000; op++) {
        uint32_t t = rng_below(&rng, N_TABLES), want = 1 + rng_below(&rng, 4);
        switch (rng_below(&rng, 4)) {
        case 0:
            if (n[t] + want <= TABLE_MAX && page_pool_acquire(pool, want, tables[t] + n[t]) == OK)
                n[t] += want;
            break;
        case 1:
            if (n[t]) page_pool_release(pool, tables[t][--n[t]]);
            break;
        case 2: { /* keep a page, or let it go */
            if (!n[t]) break;
            uint32_t page = tables[t][rng_below(&rng, n[t])];
            if (page_pool_is_kept(pool, page))
                page_pool_unkeep(pool, page);
            else
                page_pool_keep(pool, page);
            break;
        }
        default: { /* share a page with another table */
            uint32_t other = rng_below(&rng, N_TABLES);
            if (!n[t] || n[other] == TABLE_MAX) break;
            uint32_t page = tables[t][rng_below(&rng, n[t])];
            page_pool_retain(pool, page);
            tables[other][n[other]++] = page;
        }
        }
        page_pool_check_begin(pool);
        for (uint32_t i = 0; i < N_TABLES; i++)
            page_pool_check_count(pool, tables[i], n[i]);
        page_pool_check_end(pool);
    }
    page_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acquire_is_all_or_nothing),
        cmocka_unit_test(shared_page_is_freed_by_its_last_reference),
        cmocka_unit_test(release_of_free_page_asserts),
        cmocka_unit_test(check_finds_lost_and_double_pages),
        cmocka_unit_test(kept_page_outlives_its_last_reference),
        cmocka_unit_test(least_recently_released_goes_first),
        cmocka_unit_test(keeping_what_nobody_holds_asserts),
        cmocka_unit_test(random_operations_keep_the_counts),
    };
    return cmocka_run_group_tests_name("page_pool", tests, NULL, NULL);
}
