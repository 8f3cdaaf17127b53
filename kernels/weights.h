/* weights.h: what weights a model has: their names, shapes and types, and whether one may be missing.
 * Shared by the tables, whose `load` asks here before it takes a weight in. */
#ifndef GERYON_KERNELS_WEIGHTS_H
#define GERYON_KERNELS_WEIGHTS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIGHT_NAME = 48 };

/* "layers.3.q_proj", "msar.conv 7" into name [WEIGHT_NAME]; returns it. */
const char *weight_name(enum weight which, uint32_t index, char *name);
/* How many there may be of this kind: 1, one a layer, or MSAR's own counts (0 in other models). */
uint32_t weight_count(const struct model_shape *shape, enum weight which);
void weight_size(const struct model_shape *shape, enum weight which, uint32_t index, uint32_t *rows,
                 uint32_t *cols);
/* Of one row, and f32 in every source. */
bool weight_is_vector(enum weight which);
/* The model cannot run without it. */
bool weight_is_needed(const struct model_shape *shape, enum weight which);

/* Is src what weight number `index` (a layer's, or MSAR's own) looks like? ERR_INVALID with err set. */
int weight_check(const struct model_shape *shape, enum weight which, uint32_t index,
                 const struct tensor *src, struct err *err);
int weight_loaded_twice(enum weight which, uint32_t index, struct err *err);

/* The first weight that the model needs and has(arg, which, index) says no to: ERR_INVALID. */
int weights_check(const struct model_shape *shape,
                  bool (*has)(const void *arg, enum weight which, uint32_t index), const void *arg,
                  struct err *err);

#ifdef __cplusplus
}
#endif
#endif
