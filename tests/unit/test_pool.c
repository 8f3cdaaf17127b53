/* The worker pool: every task once, nothing lost between spinning and parking, idle costs nothing. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/pool.h"
#include "tests/harness.h"

enum { TASKS = 1000 };

struct count {
    _Atomic uint32_t runs[TASKS];
    uint32_t plain[TASKS]; /* written by tasks, read by the owner without atomics */
    uint32_t n_threads, round;
    _Atomic uint32_t bad_thread;
    unsigned slow_us;
};

static void count_task(void *arg, uint32_t task, uint32_t thread) {
    struct count *c = arg;
    atomic_fetch_add(&c->runs[task], 1);
    c->plain[task] = c->round;
    if (thread >= c->n_threads) atomic_fetch_add(&c->bad_thread, 1);
    if (c->slow_us && task % 7 == 0) usleep(c->slow_us);
}

static struct pool *pool_of(uint32_t n_threads) {
    struct pool *pool = NULL;
    struct err err = {0};
    if (pool_create(n_threads, &pool, &err) != OK) fail_msg("%s", err.msg);
    return pool;
}

static void each_task_runs_exactly_once(void **state) {
    (void)state;
    static struct count c;
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct pool *pool = pool_of(n_threads);
        assert_int_equal(pool_threads(pool), n_threads);
        memset((void *)&c, 0, sizeof c);
        c.n_threads = n_threads;
        uint32_t expected[TASKS] = {0};
        for (uint32_t round = 0; round < 3000; round++) {
            uint32_t n = round * 37 % 23;
            if (round % 500 == 0) n = TASKS;
            c.round = round;
            pool_run(pool, count_task, &c, n);
            for (uint32_t t = 0; t < n; t++) {
                expected[t]++;
                assert_int_equal(c.plain[t], round);
            }
        }
        for (uint32_t t = 0; t < TASKS; t++)
            assert_int_equal(atomic_load(&c.runs[t]), expected[t]);
        assert_int_equal(atomic_load(&c.bad_thread), 0);
        pool_destroy(pool);
    }
}

/* Pauses around the length of the spin catch workers at every point of going to sleep. */
static void workers_wake_from_their_park(void **state) {
    (void)state;
    static struct count c;
    memset((void *)&c, 0, sizeof c);
    c.n_threads = 3;
    struct pool *pool = pool_of(3);
    for (uint32_t round = 1; round <= 300; round++) {
        c.round = round;
        c.slow_us = round % 50 == 0 ? 300 : 0; /* also lets the owner park */
        pool_run(pool, count_task, &c, 8);
        for (uint32_t t = 0; t < 8; t++)
            assert_int_equal(atomic_load(&c.runs[t]), round);
        usleep(round % 3 * 40);
    }
    pool_destroy(pool);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void idle_workers_take_no_processor_time(void **state) {
    (void)state;
    static struct count c;
    c.n_threads = 4;
    struct pool *pool = pool_of(4);
    pool_run(pool, count_task, &c, 8);
    usleep(20000);
    double before = cpu_seconds();
    usleep(100000);
    assert_true(cpu_seconds() - before < 0.02); /* three spinning workers would take up to 0.3 */
    pool_destroy(pool);
}

/* ---- processors -------------------------------------------------------------------------------- */

enum { THREADS_SEEN = 64 };

/* Masks of all threads of this process, in the order of their making. */
static uint32_t masks_of_threads(cpu_set_t out[THREADS_SEEN]) {
    int ids[THREADS_SEEN];
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) && n < THREADS_SEEN;)
        if (entry->d_name[0] != '.') ids[n++] = (int)strtol(entry->d_name, NULL, 10);
    closedir(dir);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = i; k > 0 && ids[k] < ids[k - 1]; k--) {
            int id = ids[k];
            ids[k] = ids[k - 1], ids[k - 1] = id;
        }
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(sched_getaffinity(ids[i], sizeof out[i], &out[i]), 0);
    return n;
}

static bool is_only(const cpu_set_t *set, int cpu) {
    return CPU_COUNT(set) == 1 && CPU_ISSET((size_t)cpu, set);
}

static int nth_cpu(const cpu_set_t *set, uint32_t n) {
    n %= (uint32_t)CPU_COUNT(set);
    for (int cpu = 0;; cpu++)
        if (CPU_ISSET((size_t)cpu, set) && n-- == 0) return cpu;
}

static void unpinned_threads_may_run_anywhere(void **state) {
    (void)state;
    static struct count c;
    c.n_threads = 3;
    cpu_set_t own, masks[THREADS_SEEN];
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    struct pool *pool = pool_of(3);
    pool_run(pool, count_task, &c, 8);
    uint32_t n = masks_of_threads(masks);
    assert_true(n >= 3);
    for (uint32_t i = 0; i < n; i++)
        assert_true(CPU_EQUAL(&masks[i], &own));
    pool_destroy(pool);
}

/* The owner is a thread of this test, since it stays where it was put. */
static void *run_pinned(void *arg) {
    const cpu_set_t *own = arg;
    static struct count c;
    cpu_set_t masks[THREADS_SEEN];
    c.n_threads = 3;
    struct pool *pool = pool_of(3);
    pool_pin(pool);
    for (uint32_t round = 0; round < 20; round++)
        pool_run(pool, count_task, &c, 8);
    for (uint32_t t = 0; t < 8; t++)
        assert_int_equal(atomic_load(&c.runs[t]), 20);
    uint32_t n = masks_of_threads(masks); /* the main thread, this one, two workers */
    assert_true(n >= 4);
    assert_true(CPU_EQUAL(&masks[0], own));
    for (uint32_t i = 0; i < 3; i++)
        assert_true(is_only(&masks[n - 3 + i], nth_cpu(own, i)));

    /* What a pinned thread makes is not pinned with it. */
    struct pool *other = pool_of(2);
    n = masks_of_threads(masks);
    assert_true(CPU_EQUAL(&masks[n - 1], own));
    pool_destroy(other);
    pool_destroy(pool);
    return NULL;
}

static void pinned_threads_have_a_processor_each(void **state) {
    (void)state;
    pthread_t owner;
    cpu_set_t own;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    assert_int_equal(pthread_create(&owner, NULL, run_pinned, &own), 0);
    pthread_join(owner, NULL);
}

/* Tasks of a phase in which a worker is away for a while, once it has a task. */
struct away {
    atomic_bool entered;     /* by a worker */
    atomic_uint worker_runs; /* tasks that workers took */
    useconds_t us;
};

static void away_task(void *arg, uint32_t task, uint32_t thread) {
    (void)task;
    struct away *a = arg;
    if (thread > 0) {
        atomic_fetch_add(&a->worker_runs, 1);
        if (!atomic_exchange(&a->entered, true)) usleep(a->us);
    }
    while (!atomic_load(&a->entered))
        sched_yield();
}

static void a_worker_that_loses_its_processor_is_left_out_for_a_while(void **state) {
    (void)state;
    struct pool *pool = pool_of(2);
    struct away a = {.us = 300000};
    pool_run(pool, away_task, &a, 8);
    assert_int_equal(atomic_load(&a.worker_runs) > 0, 1);
    /* The owner was done long before: what follows at once is its own alone. */
    struct away after = {.us = 0};
    atomic_store(&after.entered, true);
    pool_run(pool, away_task, &after, 8);
    assert_int_equal(atomic_load(&after.worker_runs), 0);
    usleep(200000); /* longer than it is held back */
    struct away later = {.us = 0};
    pool_run(pool, away_task, &later, 8); /* ends when a worker has taken a task */
    assert_true(atomic_load(&later.worker_runs) > 0);
    pool_destroy(pool);
}

struct many {
    uint8_t *runs;
};

static void many_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct many *m = arg;
    m->runs[task]++;
}

struct order {
    uint32_t n[2], tasks[2][64];
};

static void order_task(void *arg, uint32_t task, uint32_t thread) {
    struct order *o = arg;
    o->tasks[thread][o->n[thread]++] = task;
}

/* The first task that a worker runs ends when all others have: its share must not wait for it. */
struct held {
    _Atomic uint32_t n_done, n_held;
    uint32_t n_tasks, max_held;
};

static void held_task(void *arg, uint32_t task, uint32_t thread) {
    (void)task;
    struct held *h = arg;
    if (thread > 0 && atomic_fetch_add(&h->n_held, 1) < h->max_held)
        while (atomic_load(&h->n_done) < h->n_tasks - h->max_held)
            sched_yield();
    if (thread == 0) /* until a worker is there, so that one is held at all */
        while (atomic_load(&h->n_held) == 0)
            sched_yield();
    atomic_fetch_add(&h->n_done, 1);
}

static void a_share_does_not_wait_for_its_thread(void **state) {
    (void)state;
    for (uint32_t n_threads = 2; n_threads <= 4; n_threads++) {
        struct pool *pool = pool_of(n_threads);
        for (uint32_t n_tasks = n_threads; n_tasks < 90; n_tasks++) {
            struct held h = {.n_tasks = n_tasks, .max_held = n_threads - 1};
            pool_run_unlike(pool, held_task, &h, n_tasks);
            assert_int_equal(atomic_load(&h.n_done), n_tasks);
        }
        pool_destroy(pool);
    }
}

/* More tasks than a range has numbers for. */
static void very_many_tasks_run_once_each(void **state) {
    (void)state;
    static const uint32_t counts[] = {65535, 65536, 131070, 131071, 200003};
    struct pool *pool = pool_of(3);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct many m = {.runs = calloc(counts[i], 1)};
        assert_non_null(m.runs);
        pool_run(pool, many_task, &m, counts[i]);
        for (uint32_t t = 0; t < counts[i]; t++)
            assert_int_equal(m.runs[t], 1);
        free(m.runs);
    }
    pool_destroy(pool);
}

/* Enough of them that ranges are written anew (pool.c, REFRESH), with threads that never have a share. */
static void very_many_phases_lose_nothing(void **state) {
    (void)state;
    enum { PHASES = 150000 };
    static struct count c;
    memset((void *)&c, 0, sizeof c);
    c.n_threads = 4;
    struct pool *pool = pool_of(4);
    for (uint32_t round = 1; round <= PHASES; round++) {
        c.round = round;
        pool_run(pool, count_task, &c, 3);
        assert_true(c.plain[0] == round && c.plain[1] == round && c.plain[2] == round);
    }
    for (uint32_t t = 0; t < 3; t++)
        assert_int_equal(atomic_load(&c.runs[t]), PHASES);
    pool_destroy(pool);
}

/* Neighbouring tasks are one thread's, in ascending order: read as one stream. */
static void a_thread_runs_neighbours_in_order(void **state) {
    (void)state;
    enum { N = 64 };
    struct pool *pool = pool_of(2);
    for (uint32_t round = 0; round < 200; round++) {
        struct order o = {0};
        pool_run(pool, order_task, &o, N);
        uint32_t n_breaks = 0;
        for (uint32_t thread = 0; thread < 2; thread++)
            for (uint32_t i = 1; i < o.n[thread]; i++)
                n_breaks += o.tasks[thread][i] != o.tasks[thread][i - 1] + 1;
        /* A takeover halves what is left: no more than log2 of it in a row, by each. */
        assert_true(n_breaks <= 2 * 6);
        assert_int_equal(o.n[0] + o.n[1], N);
    }
    pool_destroy(pool);
}

static void thread_counts_out_of_range_are_refused(void **state) {
    (void)state;
    struct pool *pool = NULL;
    struct err err = {0};
    assert_int_equal(pool_create(0, &pool, &err), ERR_INVALID);
    assert_non_null(strstr(err.msg, "expected 1 .. 256"));
    assert_int_equal(pool_create(POOL_THREADS_MAX + 1, &pool, &err), ERR_INVALID);
    assert_null(pool);
    pool_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_exactly_once),
        cmocka_unit_test(workers_wake_from_their_park),
        cmocka_unit_test(idle_workers_take_no_processor_time),
        cmocka_unit_test(unpinned_threads_may_run_anywhere),
        cmocka_unit_test(pinned_threads_have_a_processor_each),
        cmocka_unit_test(a_worker_that_loses_its_processor_is_left_out_for_a_while),
        cmocka_unit_test(a_share_does_not_wait_for_its_thread),
        cmocka_unit_test(very_many_tasks_run_once_each),
        cmocka_unit_test(very_many_phases_lose_nothing),
        cmocka_unit_test(a_thread_runs_neighbours_in_order),
        cmocka_unit_test(thread_counts_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
