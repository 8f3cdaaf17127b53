/* model_internal.h: parts of model.c that its own unit test drives. */
#ifndef GERYON_MODEL_INTERNAL_H
#define GERYON_MODEL_INTERNAL_H

#include "engine/model.h"

/* model_load with a kernel table of the caller's choice. */
int model_load_on(const struct model_options *options, const struct kernels *kernels,
                  struct model **out, struct err *err);

#endif
