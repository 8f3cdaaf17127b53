/* model_internal.h: parts of model.c for its own unit test and for synthetic.c. */
#ifndef GERYON_MODEL_INTERNAL_H
#define GERYON_MODEL_INTERNAL_H

#include "engine/load/config.h"
#include "engine/model.h"

/* model_load with a kernel table of the caller's choice. */
int model_load_on(const struct model_options *options, const struct kernels *kernels,
                  struct model **out, struct err *err);

/* What model_options.activations says of 8- and 4-bit weights. */
int model_parse_activations(const char *name, bool *int8, struct err *err);
/* Give the configuration the window that the options ask for. */
int model_set_window(struct config *config, const struct model_options *options, struct err *err);

#endif
