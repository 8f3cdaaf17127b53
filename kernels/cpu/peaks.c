/* peaks.c: the two numbers a roofline is drawn with, measured on the machine at hand: bytes read
 * from memory and multiply-adds (float32, int8, or what the tile unit takes), both a second and on
 * all threads.
 *
 * A pass is cut into many more tasks than threads, so that a thread that loses its core for a while
 * costs little. The best pass counts: whatever else runs can only make one slower. */
#include "kernels/cpu/peaks.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

enum {
    PASSES = 16,
    TASK_BYTES = 2 << 20,
    TASKS_A_THREAD = 16,   /* of multiply-adds */
    TASK_ROUNDS = 1 << 15, /* about a tenth of a millisecond */
    CACHES = 4,            /* the buffer in last-level caches */
    BUFFER_MIB_MIN = 128,  /* where the cache's size is unknown */
    BUFFER_MIB_MAX = 512,
};

/* Plain C for tables without an instruction set of their own. Sixteen sums, which a compiler may
 * keep in vector registers. */
static uint64_t plain_read(const char *p, size_t n) {
    uint64_t sum[4] = {0};
    for (size_t i = 0; i < n; i += 32) {
        uint64_t words[4];
        memcpy(words, p + i, sizeof words);
        for (int k = 0; k < 4; k++)
            sum[k] ^= words[k];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

static float plain_multiply_add(uint32_t rounds) {
    float acc[16], sum = 0;
    for (int i = 0; i < 16; i++)
        acc[i] = (float)i;
    for (uint32_t r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++)
            acc[i] = acc[i] * 0.999f + 0.001f;
    for (int i = 0; i < 16; i++)
        sum += acc[i];
    return sum;
}

const struct peaks_ops peaks_ops_plain = {
    .read = plain_read, .multiply_add = plain_multiply_add, .round_flops = 16 * 2};

struct job {
    const struct peaks_ops *ops;
    char *buffer;
    _Atomic uint64_t sink; /* keeps the results alive */
};

static void fill_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct job *job = arg; /* pages that were never written would all be the one zero page */
    memset(job->buffer + (size_t)task * TASK_BYTES, (int)task + 1, TASK_BYTES);
}

static void read_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct job *job = arg;
    atomic_fetch_xor(&job->sink,
                     job->ops->read(job->buffer + (size_t)task * TASK_BYTES, TASK_BYTES));
}

static void multiply_add_task(void *arg, uint32_t task, uint32_t thread) {
    (void)task;
    (void)thread;
    struct job *job = arg;
    float sum = job->ops->multiply_add(TASK_ROUNDS);
    atomic_fetch_xor(&job->sink, (uint64_t)(sum * 1024));
}

static double seconds(void) {
    return (double)pool_clock_ns() * 1e-9;
}

/* Seconds of the fastest pass; the first one only wakes the threads. */
static double best_pass(struct pool *pool, pool_fn fn, struct job *job, uint32_t n_tasks) {
    double best = 0;
    for (int pass = 0; pass <= PASSES; pass++) {
        double begun = seconds();
        pool_run(pool, fn, job, n_tasks);
        double took = seconds() - begun;
        if (pass > 0 && (best == 0 || took < best)) best = took;
    }
    return best;
}

static size_t buffer_bytes(void) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? (size_t)cache * CACHES : 0;
    const size_t least = (size_t)BUFFER_MIB_MIN << 20, most = (size_t)BUFFER_MIB_MAX << 20;
    bytes = bytes < least ? least : bytes > most ? most : bytes;
    return align_up(bytes, TASK_BYTES);
}

static int peaks(const struct peaks_ops *ops, uint32_t n_threads, double *bytes_per_s,
                 double *flops_per_s, struct err *err) {
    struct pool *pool;
    int rc = pool_create(n_threads, &pool, err);
    if (rc) return rc;
    struct memory memory = {0};
    struct job job = {.ops = ops};
    size_t bytes = buffer_bytes();
    job.buffer = memory_take(&memory, bytes);
    if (job.buffer) {
        uint32_t n_tasks = (uint32_t)(bytes / TASK_BYTES);
        pool_run(pool, fill_task, &job, n_tasks);
        *bytes_per_s = (double)bytes / best_pass(pool, read_task, &job, n_tasks);
        n_tasks = n_threads * TASKS_A_THREAD;
        *flops_per_s = (double)job.ops->round_flops * TASK_ROUNDS * n_tasks /
                       best_pass(pool, multiply_add_task, &job, n_tasks);
    } else {
        rc = err_set(err, ERR_NOMEM, "peaks: no memory for a buffer of %zu bytes", bytes);
    }
    memory_free(&memory);
    pool_destroy(pool);
    return rc;
}

int cpu_peaks_plain(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                    double *flops_per_s, struct err *err) {
    (void)activations;
    return peaks(&peaks_ops_plain, n_threads, bytes_per_s, flops_per_s, err);
}

#if defined(__x86_64__)
/* ---- which loops ------------------------------------------------------------------------------- */

static struct peaks_ops with_read_of(const struct peaks_ops *products,
                                     const struct peaks_ops *reads) {
    struct peaks_ops ops = *products;
    ops.read = reads->read;
    return ops;
}

struct peaks_ops peaks_choose_avx2(enum activations activations) {
    return with_read_of(activations == ACTIVATIONS_INT8 ? &peaks_ops_avx2_int8 : &peaks_ops_avx2,
                        &peaks_ops_avx2);
}

struct peaks_ops peaks_choose_avx512(enum activations activations, bool vnni) {
    const struct peaks_ops *products = activations != ACTIVATIONS_INT8 ? &peaks_ops_avx512
                                       : vnni                          ? &peaks_ops_avx512_vnni_int8
                                                                       : &peaks_ops_avx2_int8;
    return with_read_of(products, &peaks_ops_avx512);
}

struct peaks_ops peaks_choose_amx(enum activations activations) {
    const struct peaks_ops *products = activations == ACTIVATIONS_BF16   ? &peaks_ops_amx_bf16
                                       : activations == ACTIVATIONS_INT8 ? &peaks_ops_amx_int8
                                                                         : &peaks_ops_avx512;
    return with_read_of(products, &peaks_ops_avx512);
}

int cpu_peaks_avx2(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                   double *flops_per_s, struct err *err) {
    struct peaks_ops ops = peaks_choose_avx2(activations);
    return peaks(&ops, n_threads, bytes_per_s, flops_per_s, err);
}

int cpu_peaks_avx512(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                     double *flops_per_s, struct err *err) {
    struct peaks_ops ops = peaks_choose_avx512(activations, __builtin_cpu_supports("avx512vnni"));
    return peaks(&ops, n_threads, bytes_per_s, flops_per_s, err);
}

int cpu_peaks_amx(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                  double *flops_per_s, struct err *err) {
    struct peaks_ops ops = peaks_choose_amx(activations);
    return peaks(&ops, n_threads, bytes_per_s, flops_per_s, err);
}
#endif
