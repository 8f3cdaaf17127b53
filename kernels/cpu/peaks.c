/* peaks.c: the two numbers a roofline is drawn with, measured on the machine at hand: bytes read
 * from memory and multiply-adds (float32, int8, or what the tile unit takes), both a second and on
 * all threads.
 *
 * A pass is cut into many more tasks than threads, so that a thread that loses its core for a while
 * costs little. The best pass counts: whatever else runs can only make one slower. */
#include "kernels/cpu/peaks.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
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

const struct peaks_ops peaks_ops_plain = {.multiply_add = plain_multiply_add,
                                          .round_flops = 16 * 2};

/* ---- reading ----------------------------------------------------------------------------------- */

struct meter {
    struct pool *pool;
    struct memory memory;
    char *buffer;
    uint32_t n_tasks;
    peaks_read_fn read;
    _Atomic uint64_t sink; /* keeps the results alive */
};

static void fill_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct meter *m = arg; /* pages that were never written would all be the one zero page */
    memset(m->buffer + (size_t)task * TASK_BYTES, (int)task + 1, TASK_BYTES);
}

static void read_task(void *arg, uint32_t task, uint32_t thread) {
    (void)thread;
    struct meter *m = arg;
    atomic_fetch_xor(&m->sink, m->read(m->buffer + (size_t)task * TASK_BYTES, TASK_BYTES));
}

static size_t buffer_bytes(void) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? (size_t)cache * CACHES : 0;
    const size_t least = (size_t)BUFFER_MIB_MIN << 20, most = (size_t)BUFFER_MIB_MAX << 20;
    bytes = bytes < least ? least : bytes > most ? most : bytes;
    return align_up(bytes, TASK_BYTES);
}

/* The widest loads that this processor has, whatever table asks. */
static peaks_read_fn best_read(void) {
#if defined(__x86_64__)
    if (kernels_avx512()) return peaks_read_avx512;
    if (kernels_avx2()) return peaks_read_avx2;
#endif
    return plain_read;
}

int cpu_meter_open(uint32_t n_threads, struct meter **out, struct err *err) {
    size_t bytes = buffer_bytes();
    struct meter *m = calloc(1, sizeof *m);
    int rc = m ? OK : err_set(err, ERR_NOMEM, "peaks: no memory");
    if (!rc) rc = pool_create(n_threads, &m->pool, err);
    if (!rc && !(m->buffer = memory_take(&m->memory, bytes)))
        rc = err_set(err, ERR_NOMEM, "peaks: no memory for a buffer of %zu bytes", bytes);
    if (rc) {
        cpu_meter_close(m);
        return rc;
    }
    m->n_tasks = (uint32_t)(bytes / TASK_BYTES);
    m->read = best_read();
    pool_run(m->pool, fill_task, m, m->n_tasks);
    *out = m;
    return OK;
}

void cpu_meter_close(struct meter *m) {
    if (!m) return;
    memory_free(&m->memory);
    pool_destroy(m->pool);
    free(m);
}

static double seconds_of(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks) {
    uint64_t begun = pool_clock_ns();
    pool_run(pool, fn, arg, n_tasks);
    return (double)(pool_clock_ns() - begun) * 1e-9;
}

double cpu_meter_rate(struct meter *m) {
    return (double)m->n_tasks * TASK_BYTES / seconds_of(m->pool, read_task, m, m->n_tasks);
}

/* ---- peaks ------------------------------------------------------------------------------------- */

struct multiply_job {
    const struct peaks_ops *ops;
    _Atomic uint64_t sink;
};

static void multiply_add_task(void *arg, uint32_t task, uint32_t thread) {
    (void)task;
    (void)thread;
    struct multiply_job *job = arg;
    float sum = job->ops->multiply_add(TASK_ROUNDS);
    atomic_fetch_xor(&job->sink, (uint64_t)(sum * 1024));
}

static int peaks(const struct peaks_ops *ops, uint32_t n_threads, double *bytes_per_s,
                 double *flops_per_s, struct err *err) {
    struct meter *meter;
    int rc = cpu_meter_open(n_threads, &meter, err);
    if (rc) return rc;
    struct multiply_job job = {.ops = ops};
    uint32_t n_tasks = n_threads * TASKS_A_THREAD;
    double flops = (double)ops->round_flops * TASK_ROUNDS * n_tasks;
    *bytes_per_s = *flops_per_s = 0;
    for (int pass = 0; pass < PASSES; pass++)
        *bytes_per_s = fmax(*bytes_per_s, cpu_meter_rate(meter));
    for (int pass = 0; pass < PASSES; pass++) {
        double s = seconds_of(meter->pool, multiply_add_task, &job, n_tasks);
        *flops_per_s = fmax(*flops_per_s, flops / s);
    }
    cpu_meter_close(meter);
    return OK;
}

int cpu_peaks_plain(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                    double *flops_per_s, struct err *err) {
    (void)activations;
    return peaks(&peaks_ops_plain, n_threads, bytes_per_s, flops_per_s, err);
}

#if defined(__x86_64__)
/* ---- which loops ------------------------------------------------------------------------------- */

const struct peaks_ops *peaks_choose_avx2(enum activations activations) {
    return activations == ACTIVATIONS_INT8 ? &peaks_ops_avx2_int8 : &peaks_ops_avx2;
}

const struct peaks_ops *peaks_choose_avx512(enum activations activations, bool vnni) {
    if (activations != ACTIVATIONS_INT8) return &peaks_ops_avx512;
    return vnni ? &peaks_ops_avx512_vnni_int8 : &peaks_ops_avx2_int8;
}

const struct peaks_ops *peaks_choose_amx(enum activations activations) {
    return activations == ACTIVATIONS_BF16   ? &peaks_ops_amx_bf16
           : activations == ACTIVATIONS_INT8 ? &peaks_ops_amx_int8
                                             : &peaks_ops_avx512;
}

int cpu_peaks_avx2(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                   double *flops_per_s, struct err *err) {
    return peaks(peaks_choose_avx2(activations), n_threads, bytes_per_s, flops_per_s, err);
}

int cpu_peaks_avx512(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                     double *flops_per_s, struct err *err) {
    return peaks(peaks_choose_avx512(activations, __builtin_cpu_supports("avx512vnni")), n_threads,
                 bytes_per_s, flops_per_s, err);
}

int cpu_peaks_amx(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                  double *flops_per_s, struct err *err) {
    return peaks(peaks_choose_amx(activations), n_threads, bytes_per_s, flops_per_s, err);
}
#endif
