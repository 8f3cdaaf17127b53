#include "tests/unit/cuda_peek.h"

#include "kernels/cuda/cuda.h"
#include "tests/gpusim/control.h"

struct span {
    char *at; /* device memory */
    size_t bytes;
};

static struct span span_of(const struct device *dev, enum cuda_region region) {
    const struct gpu_msar *m = &dev->msar;
    const struct device_limits *limits = &dev->limits;
    size_t row = dev->ld_model * sizeof(float), streams = dev->shape.n_msar_streams;
    size_t push = m->n_pushes * row;
    switch (region) {
    case CUDA_KV:
        return (struct span){dev->kv, limits->n_pages * dev->page_bytes};
    case CUDA_LOGITS:
        return (struct span){(char *)dev->last_logits, (size_t)limits->max_logit_rows *
                                                           dev->shape.vocab_size * sizeof(float)};
    case CUDA_VIEWS:
        return (struct span){(char *)m->views, m->n_sources * streams * limits->max_rows * row};
    case CUDA_Z:
        return (struct span){(char *)m->z, limits->max_rows * streams * row};
    case CUDA_RINGS:
        return (struct span){(char *)m->rings, (size_t)limits->n_slots * m->ring_len * push};
    case CUDA_SNAPSHOTS:
        return (struct span){(char *)m->snapshots, (size_t)limits->n_snapshots * m->history * push};
    case CUDA_REGIONS:
        break;
    }
    ASSERT(false);
    return (struct span){NULL, 0};
}

/* Where the bytes lie, once nothing is at work any more. */
static char *reach(const struct device *dev, enum cuda_region region, size_t at, size_t n) {
    struct span span = span_of(dev, region);
    ASSERT(at <= span.bytes && n <= span.bytes - at);
    ASSERT(cudaDeviceSynchronize() == cudaSuccess);
    return span.at + at;
}

size_t cuda_peek_bytes(const struct device *dev, enum cuda_region region) {
    struct span span = span_of(dev, region);
    return span.at && dev->shape.n_msar_streams + (region < CUDA_VIEWS) > 0 ? span.bytes : 0;
}

void cuda_peek_poison(struct device *dev, enum cuda_region region, size_t at, size_t n) {
    ASSERT(cudaMemset(reach(dev, region, at, n), 0xff, n) == cudaSuccess);
    ASSERT(cudaDeviceSynchronize() == cudaSuccess);
}

void cuda_peek_read(const struct device *dev, enum cuda_region region, size_t at, size_t n,
                    void *out) {
    ASSERT(cudaMemcpy(out, reach(dev, region, at, n), n, cudaMemcpyDeviceToHost) == cudaSuccess);
}

void cuda_peek_write(struct device *dev, enum cuda_region region, size_t at, size_t n,
                     const void *bytes) {
    ASSERT(cudaMemcpy(reach(dev, region, at, n), bytes, n, cudaMemcpyHostToDevice) == cudaSuccess);
}

size_t cuda_peek_in_use(void) {
    return gpusim_in_use();
}
