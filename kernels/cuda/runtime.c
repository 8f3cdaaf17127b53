/* runtime.c: see runtime.h: the stream, memory in slabs, pinned buffers, and failures. */
#include "kernels/cuda/runtime.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/pool.h"
#include "kernels/weights.h"

enum {
    SLAB_BYTES = 32 << 20, /* small weights are cut from pieces of this size: few allocations */
    OWN_BYTES = 4 << 20, /* from here on one has an allocation of its own: no slab's end is lost */
    STAGING_BYTES = 16 << 20, /* a buffer: filling it takes longer than handing it out */
    STAGING_SHARE = 16,       /* but no more than this part of a small model */
    LOADERS_MAX = 8,          /* threads: so many fill faster than a bus takes */
};

/* ---- failures --------------------------------------------------------------------------------- */

int gpu_check(struct device *dev, cudaError_t error, const char *where) {
    struct runtime *rt = dev->runtime;
    if (error == cudaSuccess) return rt->failed ? ERR_DEVICE : OK;
    if (!rt->failed)
        snprintf(rt->fault, sizeof rt->fault, "cuda: %s: %s: %s", where, cudaGetErrorName(error),
                 cudaGetErrorString(error));
    rt->failed = true;
    cudaGetLastError(); /* it is noted: a launch on another device shall not report it again */
    return ERR_DEVICE;
}

int gpu_check_err(struct device *dev, cudaError_t error, const char *where, struct err *err) {
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* or the next launch would report it */
        return err_set(err, ERR_NOMEM, "cuda: %s: out of memory", where);
    }
    int rc = gpu_check(dev, error, where);
    return rc == OK ? OK : err_set(err, rc, "%s", dev->runtime->fault);
}

const char *gpu_fault(const struct device *dev) {
    return dev->runtime->failed ? dev->runtime->fault : "cuda: nothing has failed";
}

int gpu_wait(struct device *dev) {
    dev->runtime->counts.waits++;
    return gpu_check(dev, cudaStreamSynchronize(dev->runtime->cu_stream), "waiting for the device");
}

/* ---- pinned memory ---------------------------------------------------------------------------- */

int gpu_pinned_alloc(struct device *dev, struct pinned *p, size_t bytes, struct err *err) {
    void *data = NULL;
    cudaError_t error = cudaMallocHost(&data, bytes ? bytes : 1);
    p->data = data;
    if (!error) error = cudaEventCreateWithFlags(&p->copied, cudaEventDisableTiming);
    return gpu_check_err(dev, error, "pinned memory", err);
}

void gpu_pinned_free(struct pinned *p) {
    if (p->copied) cudaEventDestroy(p->copied);
    if (p->data) cudaFreeHost(p->data);
    *p = (struct pinned){0};
}

int gpu_pinned_take(struct device *dev, struct pinned *p) {
    if (!p->busy) return OK;
    p->busy = false;
    return gpu_check(dev, cudaEventSynchronize(p->copied), "waiting for a copy");
}

int gpu_pinned_sent(struct device *dev, struct pinned *p) {
    p->busy = true;
    return gpu_check(dev, cudaEventRecord(p->copied, dev->runtime->cu_stream), "a copy's event");
}

/* ---- loading ---------------------------------------------------------------------------------- */

/* The newest slab is what small weights are cut from, unless `own`: then it stays the one it was. */
static int add_slab(struct device *dev, size_t bytes, bool own, struct err *err) {
    struct runtime *rt = dev->runtime;
    if (rt->n_slabs == rt->slabs_cap) {
        uint32_t cap = rt->slabs_cap ? 2 * rt->slabs_cap : 16;
        void **slabs = realloc(rt->slabs, cap * sizeof *slabs);
        if (!slabs) return err_set(err, ERR_NOMEM, "device: no memory for %u slabs", cap);
        rt->slabs = slabs;
        rt->slabs_cap = cap;
    }
    void *data = NULL;
    int rc = gpu_check_err(dev, cudaMalloc(&data, bytes), "memory for weights", err);
    if (rc != OK) return rc;
    rt->slabs[rt->n_slabs++] = data;
    if (!own) {
        rt->slab_at = data;
        rt->slab_left = bytes;
    }
    return gpu_check_err(dev, cudaMemsetAsync(data, 0, bytes, rt->cu_stream), "clearing weights",
                         err);
}

void *gpu_weight_memory(struct device *dev, size_t bytes, struct err *err) {
    struct runtime *rt = dev->runtime;
    bytes = align_up(bytes, GPU_ALIGN);
    if (bytes > rt->slab_left) {
        bool own = bytes >= OWN_BYTES || bytes > rt->slab_bytes;
        if (add_slab(dev, own ? bytes : rt->slab_bytes, own, err) != OK) return NULL;
        if (own) return rt->slabs[rt->n_slabs - 1];
    }
    char *p = rt->slab_at;
    rt->slab_at += bytes;
    rt->slab_left -= bytes;
    return p;
}

char *gpu_staging(struct device *dev, struct err *err) {
    struct runtime *rt = dev->runtime;
    struct pinned *p = &rt->staging[rt->next_staging];
    if (gpu_pinned_take(dev, p) == OK) return p->data;
    err_set(err, ERR_DEVICE, "%s", rt->fault);
    return NULL;
}

int gpu_staged(struct device *dev, struct err *err) {
    struct runtime *rt = dev->runtime;
    int rc = gpu_pinned_sent(dev, &rt->staging[rt->next_staging]);
    rt->next_staging ^= 1;
    return rc == OK ? OK : err_set(err, rc, "%s", rt->fault);
}

/* ---- life ------------------------------------------------------------------------------------- */

/* The longest row of any weight, in elements. */
static size_t widest(const struct device *dev) {
    size_t most = dev->ld_model > dev->ld_q ? dev->ld_model : dev->ld_q;
    return most > dev->ld_ff ? most : dev->ld_ff;
}

static int open_blas(struct device *dev, struct err *err) {
    struct runtime *rt = dev->runtime;
    if (dev->act != DTYPE_BF16 || dev->shape.deterministic) return OK;
    cublasStatus_t status = cublasCreate(&rt->blas);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetStream(rt->blas, rt->cu_stream);
    if (status == CUBLAS_STATUS_SUCCESS) return OK;
    return err_set(err, ERR_DEVICE, "cuda: cuBLAS: %s", cublasGetStatusString(status));
}

/* Rows of gate and up go by eights, so that many fit; of q8_0 no row takes more than float32 does. */
static size_t staging_bytes(size_t weights, size_t row) {
    size_t bytes = weights / STAGING_SHARE;
    if (bytes > STAGING_BYTES) bytes = STAGING_BYTES;
    return align_up(bytes > 16 * row ? bytes : 16 * row, GPU_ALIGN);
}

int gpu_open_runtime(struct device *dev, uint32_t n_threads, struct err *err) {
    struct runtime *rt = calloc(1, sizeof *rt);
    dev->runtime = rt;
    if (!rt) return err_set(err, ERR_NOMEM, "device: no memory for %zu bytes", sizeof *rt);
    size_t weights = align_up(gpu_weights_estimate(&dev->shape, dev->act), 1 << 16);
    rt->staging_bytes = staging_bytes(weights, widest(dev) * sizeof(float));
    rt->slab_bytes = weights < SLAB_BYTES ? weights : SLAB_BYTES;
    for (int which = 0; which < WEIGHT_END; which++) {
        uint32_t n = weight_count(&dev->shape, (enum weight)which);
        if (n > rt->loaded_stride) rt->loaded_stride = n;
    }
    rt->loaded = calloc((size_t)rt->loaded_stride * WEIGHT_END, sizeof *rt->loaded);
    if (!rt->loaded) return err_set(err, ERR_NOMEM, "device: no memory for the list of weights");
    int rc = pool_create(n_threads < LOADERS_MAX ? n_threads : LOADERS_MAX, &rt->loaders, err);
    if (rc == OK)
        rc = gpu_check_err(dev, cudaStreamCreateWithFlags(&rt->cu_stream, cudaStreamNonBlocking),
                           "a stream", err);
    for (int i = 0; i < 2 && rc == OK; i++)
        rc = gpu_pinned_alloc(dev, &rt->staging[i], rt->staging_bytes, err);
    for (int i = 0; i < MARKS && rc == OK; i++)
        rc = gpu_check_err(dev, cudaEventCreate(&rt->marks[i]), "an event", err);
    return rc == OK ? open_blas(dev, err) : rc;
}

void gpu_close_loading(struct device *dev) {
    struct runtime *rt = dev->runtime;
    pool_destroy(rt->loaders);
    rt->loaders = NULL;
    for (int i = 0; i < 2; i++)
        gpu_pinned_free(&rt->staging[i]);
}

void gpu_close_runtime(struct device *dev) {
    struct runtime *rt = dev->runtime;
    if (!rt) return;
    if (rt->cu_stream) cudaStreamSynchronize(rt->cu_stream);
    gpu_drop_graphs(dev);
    if (rt->blas) cublasDestroy(rt->blas);
    gpu_close_loading(dev);
    for (int i = 0; i < 2; i++)
        gpu_pinned_free(&rt->inboxes[i]);
    for (int i = 0; i < MARKS; i++)
        if (rt->marks[i]) cudaEventDestroy(rt->marks[i]);
    if (rt->slots) cudaFreeHost(rt->slots);
    if (rt->outcomes) cudaFreeHost(rt->outcomes);
    if (rt->logits) cudaFreeHost(rt->logits);
    cudaFree(rt->workspace);
    cudaFree(dev->kv);
    for (uint32_t i = 0; i < rt->n_slabs; i++)
        cudaFree(rt->slabs[i]);
    if (rt->cu_stream) cudaStreamDestroy(rt->cu_stream);
    plan_fini(&rt->plan);
    free(rt->slabs);
    free(rt->loaded);
    free(rt->stages);
    free(rt->slot_waits);
    free(rt);
    dev->runtime = NULL;
}

/* ---- for tests -------------------------------------------------------------------------------- */

void gpu_use_graphs(struct device *dev, bool on) {
    dev->runtime->no_graphs = !on;
}

struct runtime_counts gpu_counts(const struct device *dev) {
    return dev->runtime->counts;
}
