/* weights.c: taking weights in, in the table's layout. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/weights.h"

/* A matrix on its way in. Its groups are tasks of the pool, whose threads so touch its pages first. */
struct packing {
    const struct cpu_ops *ops;
    const struct matrix *m;
    const struct tensor *src;
    char *scratch;        /* of tables that round to bf16 at load, else NULL: for each thread */
    size_t scratch_bytes; /* a group's rows in bf16 and one of them in float32 */
};

static size_t scratch_bytes(uint32_t cols) {
    return align_up(cols * (sizeof(float) + GROUP * sizeof(uint16_t)), MEMORY_ALIGN);
}

/* The rows of a group rounded to bf16, in scratch. */
static const void *narrowed(const struct packing *p, const char *rows, uint32_t n_rows,
                            char *scratch) {
    size_t n = p->src->cols, row_bytes = dtype_row_bytes(p->src->dtype, n);
    float *wide = (float *)(void *)scratch;
    uint16_t *out = (uint16_t *)(void *)(wide + n);
    for (uint32_t i = 0; i < n_rows; i++) {
        dtype_to_f32(p->src->dtype, rows + i * row_bytes, n, wide);
        dtype_from_f32(DTYPE_BF16, wide, n, out + i * n);
    }
    return out;
}

static void pack_task(void *arg, uint32_t group, uint32_t thread) {
    const struct packing *p = arg;
    uint32_t row = group * GROUP, left = p->m->rows - row;
    const void *rows =
        (const char *)p->src->data + row * dtype_row_bytes(p->src->dtype, p->src->cols);
    if (p->scratch)
        rows =
            narrowed(p, rows, left < GROUP ? left : GROUP, p->scratch + thread * p->scratch_bytes);
    p->ops->pack_group(p->m, group, rows);
}

int cpu_load(struct device *dev, enum weight which, uint32_t layer, const struct tensor *src,
             struct err *err) {
    ASSERT(!dev->reserved);
    int rc = weight_check(&dev->shape, which, layer, src, err);
    if (rc != OK) return rc;
    if (which >= WEIGHT_COUNT) return cpu_msar_load(dev, which, layer, src, err);
    struct matrix *m = &dev->weights[(size_t)layer * WEIGHT_COUNT + which];
    if (m->data) return weight_loaded_twice(which, layer, err);

    bool vector = weight_is_vector(which);
    struct matrix packed = {.dtype = src->dtype, .rows = src->rows, .cols = src->cols};
    packed.int8 = dev->shape.activations == ACTIVATIONS_INT8 && dtype_block(src->dtype) > 1;
    packed.bf16 = dev->shape.activations == ACTIVATIONS_BF16 && !vector;
    struct packing p = {.ops = dev->ops, .m = &packed, .src = src};
    bool narrow = packed.bf16 && !dev->ops->tiles && src->dtype != DTYPE_BF16;
    if (narrow) {
        packed.dtype = DTYPE_BF16;
        p.scratch_bytes = scratch_bytes(src->cols);
        p.scratch = malloc(pool_threads(dev->pool) * p.scratch_bytes);
    }
    size_t bytes =
        vector ? align_up(src->cols, GROUP) * sizeof(float) : dev->ops->matrix_bytes(&packed);
    packed.data = narrow && !p.scratch ? NULL : memory_take(&dev->memory, bytes);
    if (!packed.data) {
        free(p.scratch);
        char name[WEIGHT_NAME];
        return err_set(err, ERR_NOMEM, "weights: %s: no memory for %zu bytes",
                       weight_name(which, layer, name), bytes);
    }
    if (vector)
        memcpy(packed.data, src->data, src->cols * sizeof(float));
    else
        pool_run_unlike(dev->pool, pack_task, &p, (uint32_t)div_ceil(src->rows, GROUP));
    free(p.scratch);
    *m = packed;
    return OK;
}

static bool has(const void *arg, enum weight which, uint32_t index) {
    const struct device *dev = arg;
    if (which >= WEIGHT_COUNT) return msar_weight(dev, which, index) != NULL;
    return cpu_weight(dev, which, index)->data != NULL;
}

int cpu_check_weights(const struct device *dev, struct err *err) {
    return weights_check(&dev->shape, has, dev, err);
}
