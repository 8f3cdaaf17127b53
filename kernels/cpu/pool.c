/* pool.c: see pool.h.
 *
 *   state         [ phase : 32 | threads : 16 | pieces : 16 ]   what is to be done, in one word
 *   range of t    [ phase : 32 | begin : 16 | end : 16 ]        pieces that thread t has left
 *
 * A phase is published by storing `state`; a piece is one task, or several where there are very many. A
 * range whose word is of an earlier phase stands for t's share of the pieces, untouched: nobody need
 * write all ranges first. A thread claims the first piece of its own range by compare-and-swap; when that
 * is empty, the later half of another's, whose first piece it runs while the rest becomes its own range.
 * So each thread walks through neighbouring tasks, and what they read is nearly one stream: tasks dealt
 * out one by one to two threads in turns were read at half the rate (an EPYC, pieces of 23 KB).
 *
 * As long as a piece is unclaimed its phase goes on and the owner is inside it, so fn and arg, read
 * before the swap, belonged to that phase; and once a phase is over, every range that had pieces in it
 * bears its number or a later one, so that a thread that comes late claims nothing. A worker that
 * sleeps, or wakes late, is never waited for: the phase ends when every task is done. (A barrier in which
 * each worker arrives would wait for one that has lost its core.)
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
    PATIENCE = 8, /* pauses before another's range is looked at */
    OWNER_SLEEP_NS = 1000000,
    PIECES_MAX = 0xffff,
    REFRESH = 1 << 16, /* phases */

    /* A worker whose core was taken keeps a phase waiting for as long as the system leaves it there,
     * some milliseconds. Then one worker less computes for a while: */
    LAG_NS = 1000000, /* waits from here on, if they are LAG_SHARE times what the owner computed */
    LAG_SHARE = 4,
    HOLD_NS_MIN = 10000000, /* doubled while the next try lags again */
    HOLD_NS_MAX = 160000000,
};

struct pool {
    /* Written once a phase, with all that a worker needs then: */
    alignas(LINE) _Atomic uint64_t state;
    _Atomic(pool_fn) fn;
    _Atomic(void *) arg;
    _Atomic uint32_t n_tasks, grain;     /* grain: tasks of a piece */
    alignas(LINE) _Atomic uint32_t done; /* tasks that workers have run, in all phases */
    _Atomic uint32_t owner_sleeps;
    alignas(LINE) _Atomic uint32_t epoch;
    alignas(LINE) _Atomic uint32_t sleepers;
    _Atomic bool stop;
    alignas(LINE) _Atomic uint32_t limit; /* threads that compute: 0 .. limit - 1 */
    uint64_t held_until, raised_at,
        hold_ns;    /* the owner's: when to raise the limit, and its past */
    uint32_t phase; /* owner's */
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
    struct {
        alignas(LINE) _Atomic uint64_t range;
    } shares[POOL_THREADS_MAX];
};

static void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* ns: for how long at most, below a second; 0: without end. */
static void futex_wait(_Atomic uint32_t *word, uint32_t seen, long ns) {
    struct timespec most = {.tv_nsec = ns};
    syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, seen, ns ? &most : NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n) {
    syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* ---- pieces ------------------------------------------------------------------------------------ */

struct phase {
    uint32_t number, n_threads, n_pieces;
};

struct range {
    uint32_t begin, end;
};

static uint64_t pack_word(uint32_t phase, uint32_t high, uint32_t low) {
    return (uint64_t)phase << 32 | high << 16 | low;
}

static struct phase phase_of(uint64_t state) {
    return (struct phase){(uint32_t)(state >> 32), (uint32_t)state >> 16, (uint32_t)state & 0xffff};
}

/* What the word of thread t's range says in this phase. */
static struct range range_of(const struct phase *phase, uint32_t t, uint64_t word) {
    int32_t age = (int32_t)(phase->number - (uint32_t)(word >> 32));
    if (age == 0) return (struct range){(uint32_t)word >> 16, (uint32_t)word & 0xffff};
    if (age < 0 || t >= phase->n_threads) return (struct range){0, 0}; /* < 0: this phase is over */
    return (struct range){(uint32_t)div_ceil(phase->n_pieces * t, phase->n_threads),
                          (uint32_t)div_ceil(phase->n_pieces * (t + 1), phase->n_threads)};
}

/* Leave thread t this; false: *word is what it has now. */
static bool swap_range(struct pool *pool, const struct phase *phase, uint32_t t, uint64_t *word,
                       struct range left) {
    return atomic_compare_exchange_weak(&pool->shares[t].range, word,
                                        pack_word(phase->number, left.begin, left.end));
}

static bool claim_own(struct pool *pool, const struct phase *phase, uint32_t t, uint32_t *piece) {
    uint64_t word = atomic_load(&pool->shares[t].range);
    for (;;) {
        struct range r = range_of(phase, t, word);
        if (r.begin >= r.end) return false;
        *piece = r.begin++;
        if (swap_range(pool, phase, t, &word, r)) return true;
    }
}

static bool steal(struct pool *pool, const struct phase *phase, uint32_t t, uint32_t *piece) {
    bool left_out = t >= phase->n_threads; /* it has no range, and may have lost its core again */
    for (uint32_t i = 1; i < phase->n_threads + left_out; i++) {
        uint32_t victim = (t + i) % phase->n_threads;
        uint64_t word = atomic_load(&pool->shares[victim].range);
        for (;;) {
            struct range r = range_of(phase, victim, word);
            if (r.begin >= r.end) break;
            uint32_t middle = left_out ? r.end - 1 : r.begin + (r.end - r.begin) / 2;
            if (!swap_range(pool, phase, victim, &word, (struct range){r.begin, middle})) continue;
            *piece = middle; /* nobody claims from an empty range: this one may be stored */
            if (!left_out)
                atomic_store(&pool->shares[t].range, pack_word(phase->number, middle + 1, r.end));
            return true;
        }
    }
    return false;
}

/* Run the tasks of one piece, the thread's own or another's; 0: there was none. */
static uint32_t run_piece(struct pool *pool, const struct phase *phase, uint32_t thread, bool own) {
    pool_fn fn = atomic_load_explicit(&pool->fn, memory_order_relaxed);
    void *arg = atomic_load_explicit(&pool->arg, memory_order_relaxed);
    uint32_t n_tasks = atomic_load_explicit(&pool->n_tasks, memory_order_relaxed);
    uint32_t grain = atomic_load_explicit(&pool->grain, memory_order_relaxed), piece;
    if (!(own ? claim_own : steal)(pool, phase, thread, &piece)) return 0;
    uint32_t task = piece * grain, n = n_tasks - task < grain ? n_tasks - task : grain;
    for (uint32_t i = 0; i < n; i++)
        fn(arg, task + i, thread);
    return n;
}

static uint32_t run_own(struct pool *pool, const struct phase *phase, uint32_t thread) {
    uint32_t n = 0;
    for (uint32_t k; (k = run_piece(pool, phase, thread, true)) > 0;)
        n += k;
    return n;
}

/* A worker's part. It tells of what it did before it looks at the others' ranges, and does not look at
 * once: most often they are done as well, and a line taken from a thread's cache costs it as much as a
 * small piece. */
static void work(struct pool *pool, const struct phase *phase, uint64_t state, uint32_t thread) {
    for (uint32_t n = run_own(pool, phase, thread);; n += run_own(pool, phase, thread)) {
        if (n > 0) atomic_fetch_add(&pool->done, n);
        if (n > 0 && atomic_load(&pool->owner_sleeps)) futex_wake(&pool->done, 1);
        for (int i = 0; n > 0 && i < PATIENCE; i++) {
            if (atomic_load_explicit(&pool->state, memory_order_relaxed) != state) return;
            cpu_pause();
        }
        n = run_piece(pool, phase, thread, false);
        if (n == 0) return;
    }
}

/* ---- workers ----------------------------------------------------------------------------------- */

static void wait_for_phase(struct pool *pool, uint64_t seen) {
    for (uint32_t i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->state, memory_order_relaxed) != seen) return;
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return;
        cpu_pause();
    }
    uint32_t epoch = atomic_load(&pool->epoch);
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&pool->state) == seen && !atomic_load(&pool->stop))
        futex_wait(&pool->epoch, epoch, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    while (!atomic_load(&pool->stop)) {
        uint32_t limit = atomic_load(&pool->limit);
        if (worker->thread >= limit) {
            futex_wait(&pool->limit, limit, 0);
            continue;
        }
        uint64_t state = atomic_load(&pool->state);
        struct phase phase = phase_of(state);
        work(pool, &phase, state, worker->thread);
        wait_for_phase(pool, state);
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

/* Until workers have run more tasks than `done`, or for a while: what a thread takes over is in nobody's
 * range for some nanoseconds, and in those it may lose its core, and the owner see nothing to do. */
static void sleep_as_owner(struct pool *pool, uint32_t done) {
    atomic_store(&pool->owner_sleeps, 1);
    if (atomic_load(&pool->done) == done) futex_wait(&pool->done, done, OWNER_SLEEP_NS);
    atomic_store(&pool->owner_sleeps, 0);
}

/* The owner's part of a phase of which the workers had run `before` when it began: its own tasks, then
 * others' as long as there are some, then to wait. *slept_at: when it last began to sleep after it had
 * computed, 0 if it never did. Returns how many tasks it ran. */
static uint32_t work_as_owner(struct pool *pool, const struct phase *phase, uint32_t before,
                              uint32_t n_tasks, uint64_t *slept_at) {
    uint32_t n = run_own(pool, phase, 0), spins = 0, look = PATIENCE;
    *slept_at = 0;
    for (uint32_t done; (done = atomic_load(&pool->done)) - before != n_tasks - n;) {
        if (spins < look && spins < pool->spins) {
            cpu_pause();
            spins++;
            continue;
        }
        uint32_t taken_over = run_piece(pool, phase, 0, false);
        if (taken_over > 0) {
            n += taken_over + run_own(pool, phase, 0);
            spins = 0, look = PATIENCE;
            *slept_at = 0;
            continue;
        }
        look *= 2;
        if (spins < pool->spins) continue;
        if (!*slept_at) *slept_at = pool_clock_ns();
        sleep_as_owner(pool, done);
    }
    return n;
}

/* The numbers of phases go round: no range's word may seem to be of a later one. */
static void refresh_ranges(struct pool *pool) {
    for (uint32_t t = 0; t < pool->n_threads; t++)
        atomic_store(&pool->shares[t].range, pack_word(pool->phase - 1, 0, 0));
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
    uint32_t grain = (uint32_t)div_ceil(n_tasks, PIECES_MAX);
    struct phase phase = {++pool->phase, n_threads, (uint32_t)div_ceil(n_tasks, grain)};
    if (phase.number % REFRESH == 0) refresh_ranges(pool);
    uint32_t before = atomic_load(&pool->done);
    atomic_store_explicit(&pool->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&pool->arg, arg, memory_order_relaxed);
    atomic_store_explicit(&pool->n_tasks, n_tasks, memory_order_relaxed);
    atomic_store_explicit(&pool->grain, grain, memory_order_relaxed);
    atomic_store(&pool->state, pack_word(phase.number, phase.n_threads, phase.n_pieces));
    atomic_fetch_add(&pool->epoch, 1);
    uint32_t left_out = pool->n_threads - n_threads; /* some may sleep there still */
    if (atomic_load(&pool->sleepers) > 0) futex_wake(&pool->epoch, (int)(n_tasks - 1 + left_out));
    uint64_t slept_at;
    uint32_t n_own = work_as_owner(pool, &phase, before, n_tasks, &slept_at);
    if (slept_at && n_own > 0 && alike) note_lag(pool, begun, slept_at);
}

void pool_run(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks) {
    run(pool, fn, arg, n_tasks, true);
}

void pool_run_unlike(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks) {
    run(pool, fn, arg, n_tasks, false);
}
