/* peaks.cu: what a device reaches at best, for the shares that `geryon bench` reports.
 *
 *   read       every word of a buffer that no cache holds, once. Bound by memory: a thread has four
 *              loads of 16 bytes in flight, 2048 threads an SM 128 KiB of them.
 *
 *                buffer  |<- block 0: 256 x 16 B ->|<- the same, 4 times ->|<- block 1 ...
 *
 *   multiply   chains of multiply-adds in registers. Bound by the float32 units: 16 independent chains
 *              hide the latency of 4 cycles even in one warp.
 *
 * Sums are of no use; a store that hardly ever happens keeps the compiler from leaving the work out. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/peaks.h"

static __global__ void fill_all(uint32_t *words, size_t n_words) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n_words; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = ((uint32_t)i ^ (uint32_t)i >> 16) * 0x7FEB352Du;
        x = (x ^ x >> 15) * 0x846CA68Bu;
        words[i] = (x ^ x >> 16) & 0xBFFFBFFFu; /* the exponent's high bit off, in both */
    }
}

static __global__ void read_all(const uint4 *buffer, uint32_t n_tiles, uint32_t *sink) {
    const uint32_t lane = threadIdx.x;
    uint32_t sum = 0;
    for (uint32_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const uint4 *at = buffer + (size_t)tile * 4 * PEAKS_THREADS + lane;
        uint4 v[4];
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            v[i] = load16(at + i * PEAKS_THREADS);
        GPU_UNROLL
        for (int i = 0; i < 4; i++)
            sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x9E3779B9u) *sink = sum; /* once in 2^32 threads */
}

static __global__ void multiply_all(uint32_t rounds, float factor, float *sink) {
    float sums[PEAKS_SUMS], total = 0;
    GPU_UNROLL
    for (int i = 0; i < PEAKS_SUMS; i++)
        sums[i] = (float)(i + (int)threadIdx.x);
    for (uint32_t r = 0; r < rounds; r++) {
        GPU_UNROLL
        for (int i = 0; i < PEAKS_SUMS; i++)
            sums[i] = fmaf(sums[i], factor, 0.001f);
    }
    GPU_UNROLL
    for (int i = 0; i < PEAKS_SUMS; i++)
        total += sums[i];
    if (total == -1.0f) *sink = total; /* they are all positive */
}

extern "C" cudaError_t gpu_peak_fill(uint32_t *words, size_t n_words, uint32_t n_blocks,
                                     cudaStream_t stream) {
    if (n_blocks == 0) return cudaErrorInvalidValue;
    return GPU_LAUNCH(fill_all, dim3(n_blocks), dim3(PEAKS_THREADS), 0, stream, words, n_words);
}

extern "C" cudaError_t gpu_peak_read(const void *buffer, size_t bytes, uint32_t n_blocks,
                                     uint32_t *sink, cudaStream_t stream) {
    const size_t tile = (size_t)PEAKS_READ_BYTES * PEAKS_THREADS;
    if (bytes == 0 || bytes % tile != 0 || n_blocks == 0) return cudaErrorInvalidValue;
    return GPU_LAUNCH(read_all, dim3(n_blocks), dim3(PEAKS_THREADS), 0, stream,
                      (const uint4 *)buffer, (uint32_t)(bytes / tile), sink);
}

extern "C" cudaError_t gpu_peak_multiply(uint32_t rounds, uint32_t n_blocks, float *sink,
                                         cudaStream_t stream) {
    if (n_blocks == 0) return cudaErrorInvalidValue;
    return GPU_LAUNCH(multiply_all, dim3(n_blocks), dim3(PEAKS_THREADS), 0, stream, rounds, 0.999f,
                      sink);
}
