/* peaks.c: see peaks.h. Everything is queued in a stream of its own and timed by events; the best pass
 * counts, since whatever else runs can only make one slower. Work grows until a pass takes long enough
 * to be measured, so that a small device (or a simulated one) is not kept busy for minutes. */
#include "kernels/cuda/peaks.h"

#include <cublas_v2.h>

enum {
    PASSES = 10,
    BLOCKS_A_SM = 8, /* of 256 threads: all that an SM holds */
    CACHES = 16,     /* the buffer in second-level caches */
    BUFFER_BYTES_MAX = 1 << 30,
    ROUNDS_MIN = 16,
    ROUNDS_MAX = 1 << 16,
    GEMM_MIN = 128, /* rows, columns and depth of a product */
    GEMM_MAX = 8192,
};

static const double LONG_ENOUGH_MS = 1; /* events tick in half a microsecond */
static const double ALL_PASSES_MS = 100;

struct meter {
    cudaStream_t stream;
    cudaEvent_t begun, ended;
    cublasHandle_t blas;
    char *buffer;
    size_t buffer_bytes;
    uint32_t *sink;
    uint32_t n_blocks;
    const char *what; /* the call at hand, for messages */
};

/* One piece of work, of a size of its own. */
typedef cudaError_t (*work_fn)(struct meter *m, uint32_t size);

static cudaError_t read_once(struct meter *m, uint32_t size) {
    (void)size;
    return gpu_peak_read(m->buffer, m->buffer_bytes, m->n_blocks, m->sink, m->stream);
}

static cudaError_t multiply_once(struct meter *m, uint32_t rounds) {
    return gpu_peak_multiply(rounds, m->n_blocks, (float *)(void *)m->sink, m->stream);
}

/* c [n, n] float32 = a [n, n] b [n, n] bf16, as the library's products of a model are. */
static cudaError_t product_once(struct meter *m, uint32_t n) {
    const float alpha = 1, beta = 0;
    const size_t bytes = (size_t)n * n * sizeof(uint16_t);
    cublasStatus_t status = cublasGemmEx(
        m->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)n, (int)n, &alpha, m->buffer, CUDA_R_16BF,
        (int)n, m->buffer + bytes, CUDA_R_16BF, (int)n, &beta, m->buffer + 2 * bytes, CUDA_R_32F,
        (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

static cudaError_t pass_ms(struct meter *m, work_fn work, uint32_t size, double *out) {
    float ms = 0;
    cudaError_t error = cudaEventRecord(m->begun, m->stream);
    if (!error) error = work(m, size);
    if (!error) error = cudaEventRecord(m->ended, m->stream);
    if (!error) error = cudaStreamSynchronize(m->stream);
    if (!error) error = cudaEventElapsedTime(&ms, m->begun, m->ended);
    *out = ms;
    return error;
}

/* The fastest of some passes, in seconds; the first one only warms up. */
static cudaError_t best_s(struct meter *m, work_fn work, uint32_t size, double *out) {
    double best = 0, sum = 0, ms;
    cudaError_t error = pass_ms(m, work, size, &ms);
    for (int pass = 0; !error && pass < PASSES && (pass == 0 || sum < ALL_PASSES_MS); pass++) {
        error = pass_ms(m, work, size, &ms);
        if (best == 0 || ms < best) best = ms;
        sum += ms;
    }
    *out = best / 1000 > 1e-9 ? best / 1000 : 1e-9;
    return error;
}

/* The size, from lo by doubling to hi, from which on a pass is long enough. */
static cudaError_t grow(struct meter *m, work_fn work, uint32_t lo, uint32_t hi, uint32_t *out) {
    cudaError_t error = cudaSuccess;
    double ms = 0;
    for (*out = lo; *out < hi; *out *= 2) {
        error = pass_ms(m, work, *out, &ms);
        if (error || ms >= LONG_ENOUGH_MS) break;
    }
    return error;
}

static cudaError_t open_meter(struct meter *m, bool products) {
    int device = 0, n_sms = 0, cache_bytes = 0;
    m->what = "device attributes";
    cudaError_t error = cudaGetDevice(&device);
    if (!error) error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device);
    if (!error) error = cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
    if (error) return error;
    m->n_blocks = (uint32_t)n_sms * BLOCKS_A_SM;
    m->buffer_bytes = align_up((size_t)cache_bytes * CACHES + 1,
                               (size_t)PEAKS_READ_BYTES * PEAKS_THREADS * m->n_blocks);
    if (m->buffer_bytes > BUFFER_BYTES_MAX) m->buffer_bytes = BUFFER_BYTES_MAX;
    m->what = "stream and events";
    error = cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking);
    if (!error) error = cudaEventCreate(&m->begun);
    if (!error) error = cudaEventCreate(&m->ended);
    if (error) return error;
    m->what = "buffer";
    error = cudaMalloc((void **)&m->buffer, m->buffer_bytes);
    if (!error) error = cudaMalloc((void **)&m->sink, sizeof *m->sink);
    if (!error) m->what = "filling";
    if (!error)
        error = gpu_peak_fill((uint32_t *)(void *)m->buffer, m->buffer_bytes / sizeof(uint32_t),
                              m->n_blocks, m->stream);
    if (error || !products) return error;
    m->what = "cublasCreate";
    if (cublasCreate(&m->blas) != CUBLAS_STATUS_SUCCESS) return cudaErrorUnknown;
    return cublasSetStream(m->blas, m->stream) == CUBLAS_STATUS_SUCCESS ? cudaSuccess
                                                                        : cudaErrorUnknown;
}

static void close_meter(struct meter *m) {
    if (m->blas) cublasDestroy(m->blas);
    if (m->buffer) cudaFree(m->buffer);
    if (m->sink) cudaFree(m->sink);
    if (m->begun) cudaEventDestroy(m->begun);
    if (m->ended) cudaEventDestroy(m->ended);
    if (m->stream) cudaStreamDestroy(m->stream);
}

static cudaError_t measure(struct meter *m, bool products, double *bytes_per_s,
                           double *flops_per_s) {
    double s;
    m->what = "reading";
    cudaError_t error = best_s(m, read_once, 0, &s);
    if (error) return error;
    *bytes_per_s = (double)m->buffer_bytes / s;
    if (products) {
        uint32_t n, most = GEMM_MIN; /* two bf16 matrices and one of float32 lie in the buffer */
        while (most < GEMM_MAX && (size_t)most * most * 4 * 8 <= m->buffer_bytes)
            most *= 2;
        m->what = "cublasGemmEx";
        error = grow(m, product_once, GEMM_MIN, most, &n);
        if (!error) error = best_s(m, product_once, n, &s);
        *flops_per_s = 2.0 * n * n * n / s;
        return error;
    }
    uint32_t rounds;
    m->what = "multiply-adds";
    error = grow(m, multiply_once, ROUNDS_MIN, ROUNDS_MAX, &rounds);
    if (!error) error = best_s(m, multiply_once, rounds, &s);
    *flops_per_s = 2.0 * PEAKS_SUMS * rounds * m->n_blocks * PEAKS_THREADS / s;
    return error;
}

int gpu_peaks(enum activations activations, uint32_t n_threads, double *bytes_per_s,
              double *flops_per_s, struct err *err) {
    (void)n_threads;
    struct meter meter = {0};
    bool products = activations == ACTIVATIONS_BF16;
    double bytes = 0, flops = 0;
    cudaError_t error = open_meter(&meter, products);
    if (!error) error = measure(&meter, products, &bytes, &flops);
    close_meter(&meter);
    if (error) {
        cudaGetLastError(); /* a refused allocation is no failure of the device: forget it */
        return err_set(err, error == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_DEVICE,
                       "peaks: %s: %s", meter.what, cudaGetErrorString(error));
    }
    *bytes_per_s = bytes;
    *flops_per_s = flops;
    return OK;
}
