/* weights.c: taking weights in, in the table's layout. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/weights.h"

/* For tables that round to bf16 at load: src's numbers as DTYPE_BF16 in new memory, or NULL. */
static uint16_t *narrowed(const struct tensor *src) {
    size_t row_bytes = dtype_row_bytes(src->dtype, src->cols), n = src->cols;
    uint16_t *all = calloc(src->rows * n, sizeof *all);
    float *row = malloc(n * sizeof *row);
    for (uint32_t i = 0; all && row && i < src->rows; i++) {
        dtype_to_f32(src->dtype, (const char *)src->data + i * row_bytes, n, row);
        dtype_from_f32(DTYPE_BF16, row, n, all + i * n);
    }
    if (!row) {
        free(all);
        all = NULL;
    }
    free(row);
    return all;
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
    struct tensor kept = *src;
    void *made = NULL;
    if (packed.bf16 && !dev->ops->tiles && src->dtype != DTYPE_BF16) {
        kept.data = made = narrowed(src);
        kept.dtype = packed.dtype = DTYPE_BF16;
    }
    size_t bytes =
        vector ? align_up(src->cols, GROUP) * sizeof(float) : dev->ops->matrix_bytes(&packed);
    packed.data = kept.data ? memory_take(&dev->memory, bytes) : NULL;
    if (!packed.data) {
        free(made);
        char name[WEIGHT_NAME];
        return err_set(err, ERR_NOMEM, "weights: %s: no memory for %zu bytes",
                       weight_name(which, layer, name), bytes);
    }
    if (vector)
        memcpy(packed.data, src->data, src->cols * sizeof(float));
    else
        dev->ops->matrix_pack(&packed, &kept);
    free(made);
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
