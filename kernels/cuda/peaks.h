/* peaks.h: the two numbers that a roofline is drawn with, measured on the device at hand; peaks.c
 * times the kernels of peaks.cu. Private to kernels/cuda. */
#ifndef GERYON_CUDA_PEAKS_H
#define GERYON_CUDA_PEAKS_H

#include <cuda_runtime.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PEAKS_READ_BYTES =
        4 * 16, /* what a thread asks for at once; buffers are a multiple of 256 of it */
    PEAKS_THREADS = 256,
    PEAKS_SUMS = 16, /* independent multiply-adds of a thread in a round */
};

/* struct kernels, `peaks`, of the current device; n_threads means nothing here. */
int gpu_peaks(enum activations activations, uint32_t n_threads, double *bytes_per_s,
              double *flops_per_s, struct err *err);

/* peaks.cu. Read bytes (a multiple of PEAKS_READ_BYTES * PEAKS_THREADS) once, in n_blocks blocks; *sink
 * may be written. */
cudaError_t gpu_peak_read(const void *buffer, size_t bytes, uint32_t n_blocks, uint32_t *sink,
                          cudaStream_t stream);
/* Random numbers, as n_words bf16 pairs between -2 and 2: what is constant is multiplied with less power
 * and so faster than a model's numbers are. */
cudaError_t gpu_peak_fill(uint32_t *words, size_t n_words, uint32_t n_blocks, cudaStream_t stream);
/* n_blocks * PEAKS_THREADS threads that each make rounds * PEAKS_SUMS float32 multiply-adds. */
cudaError_t gpu_peak_multiply(uint32_t rounds, uint32_t n_blocks, float *sink, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
