/* costs.h: what a forward of a model costs, in bytes read and operations done: struct model_costs,
 * added up weight by weight while loading. */
#ifndef GERYON_COSTS_H
#define GERYON_COSTS_H

#include "engine/engine.h"
#include "engine/load/weights.h"

/* What a table keeps of a matrix that it is given as `stored` (kernels.h, enum activations). */
enum dtype costs_kept(const struct kernels *kernels, enum activations activations,
                      enum dtype stored);

/* Add one weight, kept on the device in `dtype`. */
void costs_add(struct model_costs *costs, const struct model_shape *shape,
               const struct weight_item *item, enum dtype dtype);

#endif
