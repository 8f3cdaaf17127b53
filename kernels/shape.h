/* shape.h: what any backend refuses in a model's shape and in its limits, and the numbers that follow
 * from the shape alone. */
#ifndef GERYON_KERNELS_SHAPE_H
#define GERYON_KERNELS_SHAPE_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ERR_INVALID with err set where no table could run it. `activations` is the table's to judge. */
int shape_check(const struct model_shape *shape, struct err *err);
int limits_check(const struct device_limits *limits, struct err *err);

/* ASSERTs what a backend expects of a segment, whatever else is in the forward: view_before: that of the
 * segment before it; n_asked: proposals that this cycle's draft forward was to make for its slot. */
void segment_check(const struct segment *s, const struct model_shape *shape,
                   const struct device_limits *limits, int view_before, uint32_t n_asked);

/* Cosines and sines of rotate-half pairs (m, m + head_dim / 2): [max_position][head_dim / 2] each,
 * angles in double. */
void rope_tables(const struct model_shape *shape, float *cosines, float *sines);

/* Bytes of K (or V) of one kv head in a page, its rows of `head_pad` numbers; and of the scales that
 * 8-bit KV keeps with both. */
size_t kv_value_bytes(enum dtype kv_dtype, uint32_t head_pad);
size_t kv_scale_bytes(enum dtype kv_dtype);

#ifdef __cplusplus
}
#endif
#endif
