/* msar.h: where an MSAR device keeps its vectors (layouts: struct gpu_msar). Pointers are device memory,
 * computed on the host. */
#ifndef GERYON_CUDA_MSAR_H
#define GERYON_CUDA_MSAR_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* View r of source s of row 0; rows follow each other. */
static inline float *gpu_msar_view(const struct device *dev, uint32_t s, uint32_t r) {
    size_t at = (size_t)s * dev->shape.n_msar_streams + r;
    return dev->msar.views + at * dev->limits.max_rows * dev->ld_model;
}

/* What a branch adds to: the running sum of its block. (`embed` fills source 0.) */
static inline float *gpu_msar_residual(const struct device *dev, uint32_t branch) {
    return gpu_msar_view(dev, branch / dev->shape.msar_branches + 1, 0);
}

/* All vectors of a position in a slot's ring: [n_pushes][ld_model]. */
static inline float *gpu_msar_ring(const struct device *dev, uint32_t slot, uint32_t pos) {
    const struct gpu_msar *m = &dev->msar;
    size_t place = (size_t)slot * m->ring_len + pos % m->ring_len;
    return m->rings + place * m->n_pushes * dev->ld_model;
}

/* A weight, by its index; rows padded. */
static inline const float *gpu_msar_weight(const struct device *dev, enum weight which,
                                           uint32_t index) {
    return dev->msar.weights[which - WEIGHT_MSAR_CONV][index];
}

#ifdef __cplusplus
}
#endif

#endif
