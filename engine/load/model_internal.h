/* model_internal.h: parts of model.c for its own unit test and for synthetic.c. */
#ifndef GERYON_MODEL_INTERNAL_H
#define GERYON_MODEL_INTERNAL_H

#include "engine/load/config.h"
#include "engine/model.h"

/* The kernel table that the options ask for. notice[cap]: what was not followed and why, or "". NULL
 * with err set: a backend that was asked for is not there. */
const struct kernels *model_choose_kernels(const struct model_options *options, char *notice,
                                           size_t cap, struct err *err);
/* "cpu" or "cuda". */
const char *model_backend_name(const struct kernels *kernels);
/* Fill what model_info says of the table: backend, kernels, hardware. */
void model_set_table_info(struct model *m);

/* model_load with a kernel table of the caller's choice. */
int model_load_on(const struct model_options *options, const struct kernels *kernels,
                  struct model **out, struct err *err);

/* model_options.activations by name, for matrices that take so many bytes in each type. "auto" (or
 * NULL): of what the table has, int8 where some matrix is of blocks, else bf16 where some is not f32,
 * else f32. */
int model_choose_activations(const char *name, const struct kernels *kernels,
                             const uint64_t bytes_by_dtype[DTYPE_COUNT], enum activations *out,
                             struct err *err);
/* What products are then made in: int8 concerns quantised matrices alone. */
enum activations model_products(enum activations activations,
                                const uint64_t bytes_by_dtype[DTYPE_COUNT]);
/* Give the configuration the window that the options ask for. */
int model_set_window(struct config *config, const struct model_options *options, struct err *err);

#endif
