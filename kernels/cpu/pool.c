/* pool.c: see pool.h.
 *
 *   state: [ generation : 32 | tasks left : 32 ]   one word, so that a claim proves its generation
 *
 * A phase is published by storing a new generation with its number of tasks. A thread claims by
 * compare-and-swap of (g, left) to (g, left - 1) and then owns task left - 1. While left > 0 the
 * owner is still inside the phase, so fn and arg, read before the swap, belonged to generation g. A
 * worker that sleeps, or wakes late, is never waited for: the phase ends when every task is done.
 * (A barrier in which each worker arrives would wait for one that has lost its core.)
 *
 * Parking: a worker raises `sleepers`, looks at `state` once more and sleeps on `epoch`; the owner
 * stores `state`, raises `epoch` and looks at `sleepers`. Both orders are sequentially consistent,
 * so one of the two sees the other. The owner waits for `done` in the same way, and no longer: a
 * worker that lost its core in the middle of a task gets another as soon as one is idle, the owner's
 * for instance. */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/affinity.h"

enum {
    LINE = 128,      /* two cache lines: the hardware fetches them in pairs */
    SPIN_NS = 50000, /* about what a thread waits before it parks: some times what parking costs */
    PAUSES_TIMED = 64, /* one takes 3 to 60 ns, by processor */
    TIMINGS = 5,

    /* A worker whose core was taken keeps a phase waiting for as long as the system leaves it there,
     * some milliseconds. Then one worker less computes for a while: */
    LAG_NS = 1000000, /* waits from here on, if they are LAG_SHARE times what the owner computed */
    LAG_SHARE = 4,
    HOLD_NS_MIN = 10000000, /* doubled while the next try lags again */
    HOLD_NS_MAX = 160000000,
};

struct pool {
    alignas(LINE) _Atomic uint64_t state;
    alignas(LINE) _Atomic uint32_t done;
    _Atomic uint32_t owner_sleeps;
    alignas(LINE) _Atomic uint32_t epoch;
    alignas(LINE) _Atomic uint32_t sleepers;
    _Atomic bool stop;
    alignas(LINE) _Atomic(pool_fn) fn;
    _Atomic(void *) arg;
    alignas(LINE) _Atomic uint32_t limit; /* threads that compute: 0 .. limit - 1 */
    uint64_t held_until, raised_at,
        hold_ns;         /* the owner's: when to raise the limit, and its past */
    uint32_t generation; /* owner's */
    uint32_t n_threads;
    uint32_t spins; /* pauses that take SPIN_NS */
    bool pin;
    pthread_t pinned_owner; /* meant with has_owner */
    bool has_owner;
    struct worker {
        struct pool *pool;
        uint32_t thread;
        pthread_t id;
    } workers[POOL_THREADS_MAX];
};

static void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Claim and run tasks of the current phase until none is left; returns how many. */
static uint32_t work(struct pool *pool, uint32_t thread) {
    uint32_t n = 0;
    uint64_t s = atomic_load(&pool->state);
    while ((uint32_t)s > 0) {
        pool_fn fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
        if (!atomic_compare_exchange_weak(&pool->state, &s, s - 1)) continue;
        fn(arg, (uint32_t)s - 1, thread);
        n++;
        s = atomic_load(&pool->state);
    }
    if (n == 0) return 0;
    atomic_fetch_add(&pool->done, n);
    if (thread != 0 && atomic_load(&pool->owner_sleeps)) futex_wake(&pool->done, 1);
    return n;
}

static void wait_for_phase(struct pool *pool) {
    for (uint32_t i = 0; i < pool->spins; i++) {
        if ((uint32_t)atomic_load_explicit(&pool->state, memory_order_relaxed) > 0) return;
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return;
        cpu_pause();
    }
    uint32_t epoch = atomic_load(&pool->epoch);
    atomic_fetch_add(&pool->sleepers, 1);
    if ((uint32_t)atomic_load(&pool->state) == 0 && !atomic_load(&pool->stop))
        futex_wait(&pool->epoch, epoch);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    while (!atomic_load(&pool->stop)) {
        uint32_t limit = atomic_load(&pool->limit);
        if (worker->thread >= limit) {
            futex_wait(&pool->limit, limit);
            continue;
        }
        work(pool, worker->thread);
        wait_for_phase(pool);
    }
    return NULL;
}

uint64_t pool_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void set_limit(struct pool *pool, uint32_t limit) {
    atomic_store(&pool->limit, limit);
    futex_wake(&pool->limit, POOL_THREADS_MAX);
}

/* Threads that this phase may have. */
static uint32_t phase_threads(struct pool *pool, uint64_t now) {
    uint32_t limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    if (limit < pool->n_threads && now >= pool->held_until) {
        uint64_t more = 1 + (now - pool->held_until) / pool->hold_ns; /* also while nothing ran */
        limit = more < pool->n_threads - limit ? limit + (uint32_t)more : pool->n_threads;
        set_limit(pool, limit);
        pool->raised_at = now;
        pool->held_until = now + pool->hold_ns;
    }
    return limit;
}

/* The owner was done at `computed`, and everybody now. Which worker it was is not known, so pinned ones
 * stay. */
static void note_lag(struct pool *pool, uint64_t begun, uint64_t computed) {
    uint64_t now = pool_clock_ns(), waited = now - computed;
    if (pool->pin || waited < LAG_NS || waited < LAG_SHARE * (computed - begun)) return;
    bool again = pool->hold_ns && now - pool->raised_at < pool->hold_ns;
    uint64_t hold = again ? 2 * pool->hold_ns : HOLD_NS_MIN;
    pool->hold_ns = hold < HOLD_NS_MAX ? hold : HOLD_NS_MAX;
    pool->held_until = now + pool->hold_ns;
    uint32_t limit = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    if (limit > 1) set_limit(pool, limit - 1);
}

/* The fastest of some tries: whatever else runs can only make one slower. */
static uint32_t spins_of_this_processor(const struct pool *pool) {
    uint64_t best = UINT64_MAX;
    for (int try = 0; try < TIMINGS; try++) {
        uint64_t begun = pool_clock_ns();
        for (int i = 0; i < PAUSES_TIMED; i++) {
            (void)atomic_load_explicit(&pool->state, memory_order_relaxed);
            cpu_pause();
        }
        uint64_t took = pool_clock_ns() - begun;
        if (took < best) best = took;
    }
    uint64_t spins = (uint64_t)SPIN_NS * PAUSES_TIMED / (best ? best : 1);
    return spins < SPIN_NS ? (uint32_t)spins : SPIN_NS; /* a coarse clock: a nanosecond each */
}

int pool_create(uint32_t n_threads, struct pool **out, struct err *err) {
    if (n_threads < 1 || n_threads > POOL_THREADS_MAX)
        return err_set(err, ERR_INVALID, "threads: %u, expected 1 .. %d", n_threads,
                       POOL_THREADS_MAX);
    struct pool *pool = aligned_alloc(LINE, align_up(sizeof *pool, LINE));
    if (!pool)
        return err_set(err, ERR_NOMEM, "threads: no memory for the pool (%zu bytes)", sizeof *pool);
    memset((void *)pool, 0, sizeof *pool);
    pool->n_threads = 1;
    atomic_store(&pool->limit, n_threads);
    pool->spins = spins_of_this_processor(pool);
    for (uint32_t i = 1; i < n_threads; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .thread = i};
        int rc = pthread_create(&worker->id, NULL, worker_main, worker);
        if (rc != 0) {
            pool_destroy(pool);
            return err_set(err, ERR_IO, "threads: cannot start thread %u of %u: %s", i + 1,
                           n_threads, strerror(rc));
        }
        affinity_widen(worker->id);
        pool->n_threads = i + 1;
    }
    *out = pool;
    return OK;
}

void pool_destroy(struct pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->epoch, 1);
    futex_wake(&pool->epoch, POOL_THREADS_MAX);
    set_limit(pool, UINT32_MAX); /* never a limit that was: nobody sleeps on it any more */
    for (uint32_t i = 1; i < pool->n_threads; i++)
        pthread_join(pool->workers[i].id, NULL);
    free(pool);
}

void pool_pin(struct pool *pool) {
    pool->pin = true;
    for (uint32_t i = 1; i < pool->n_threads; i++)
        affinity_pin(pool->workers[i].id, i);
}

/* Loading and computing may be two threads'. */
static void pin_owner(struct pool *pool) {
    if (pool->has_owner && pthread_equal(pool->pinned_owner, pthread_self())) return;
    pool->pinned_owner = pthread_self();
    pool->has_owner = true;
    affinity_pin(pool->pinned_owner, 0);
}

uint32_t pool_threads(const struct pool *pool) {
    return pool->n_threads;
}

/* Returns when the owner began to sleep, 0 if it never did. */
static uint64_t wait_done(struct pool *pool, uint32_t n_tasks) {
    uint32_t spins = 0;
    uint64_t slept_at = 0;
    for (uint32_t done; (done = atomic_load(&pool->done)) < n_tasks;) {
        if (spins++ < pool->spins) {
            cpu_pause();
            continue;
        }
        if (!slept_at) slept_at = pool_clock_ns();
        atomic_store(&pool->owner_sleeps, 1);
        if (atomic_load(&pool->done) == done) futex_wait(&pool->done, done);
        atomic_store(&pool->owner_sleeps, 0);
    }
    return slept_at;
}

static void run(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks, bool alike) {
    if (pool->pin) pin_owner(pool);
    uint64_t begun = pool->n_threads == 1 || n_tasks <= 1 ? 0 : pool_clock_ns();
    uint32_t n_threads = begun ? phase_threads(pool, begun) : 1;
    if (n_threads == 1) {
        for (uint32_t t = 0; t < n_tasks; t++)
            fn(arg, t, 0);
        return;
    }
    ASSERT((uint32_t)atomic_load(&pool->state) == 0);
    atomic_store(&pool->done, 0);
    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
    atomic_store(&pool->state, (uint64_t)++pool->generation << 32 | n_tasks);
    atomic_fetch_add(&pool->epoch, 1);
    uint32_t left_out = pool->n_threads - n_threads; /* some may sleep there still */
    if (atomic_load(&pool->sleepers) > 0) futex_wake(&pool->epoch, (int)(n_tasks - 1 + left_out));
    uint32_t n_own = work(pool, 0);
    uint64_t slept_at = wait_done(pool, n_tasks);
    if (slept_at && n_own > 0 && alike) note_lag(pool, begun, slept_at);
}

void pool_run(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks) {
    run(pool, fn, arg, n_tasks, true);
}

void pool_run_unlike(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks) {
    run(pool, fn, arg, n_tasks, false);
}
