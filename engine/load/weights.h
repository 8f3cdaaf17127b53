/* weights.h: which tensor of a checkpoint is which weight of the model: names, shapes, and what to
 * do about tensors that are missing or too many, and numbers too large. Reads no files. */
#ifndef GERYON_WEIGHTS_H
#define GERYON_WEIGHTS_H

#include "engine/load/checkpoint.h"

struct weight_item {
    enum weight which;
    uint32_t layer; /* MSAR weights: as kernels.h counts them */
    size_t tensor;  /* index into the checkpoint */
    uint32_t rows, cols;
    bool matrix; /* false: a vector, or one of MSAR's weights: always loaded as f32 */
};

struct weight_plan {
    struct weight_item *items; /* in order of loading: by layer, embedding first, head last */
    size_t n_items;
};

/* Every weight that the configuration wants, each with the shape it wants; every tensor of the
 * checkpoint is used, or known to be without effect (rotary tables, a head beside tied embeddings),
 * or refused by name. ck NULL: what a configuration alone wants, no optional weights (a model that is
 * made, not read). On failure nothing needs freeing. */
int weights_plan(const struct checkpoint *ck, const struct config *config, struct weight_plan *out,
                 struct err *err);
void weights_plan_free(struct weight_plan *plan);

/* The type in which item is loaded when `wanted` (enum dtype, or -1: as in the file) is asked for;
 * ERR_INVALID naming the tensor when its rows are no multiple of the type's block. */
int weights_dtype(const struct checkpoint *ck, const struct weight_item *item, int wanted,
                  enum dtype *out, struct err *err);

/* Tensors without effect: tables that old versions stored though they follow from the configuration,
 * rope factors that are applied elsewhere, a head beside tied embeddings (as in Hugging Face). */
bool weights_inert(const struct config *config, const char *name);

/* n numbers of a tensor rounded to dtype (dtype_from_f32). What it cannot hold is ERR_INVALID naming
 * the tensor: a number beyond its range, and in blocks an infinity or NaN too. */
int weights_round(const char *name, enum dtype dtype, const float *x, size_t n, void *out,
                  struct err *err);

/* What an item takes on the device in that type. */
uint64_t weights_bytes(const struct weight_item *item, enum dtype dtype);

#endif
