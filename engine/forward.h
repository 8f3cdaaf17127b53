/* forward.h: one forward is one sequence of stage calls, the same for every backend. */
#ifndef GERYON_FORWARD_H
#define GERYON_FORWARD_H

#include "kernels/kernels.h"

/* Rows through all layers to the logits. Returns 0 or ERR_DEVICE. */
int forward_run(const struct kernels *kernels, struct device *device,
                const struct model_shape *shape, const struct forward *fwd);

#endif
