#include "engine/forward.h"

int forward_run(const struct kernels *kernels, struct device *device,
                const struct model_shape *shape, const struct forward *fwd) {
    int rc = kernels->begin(device, fwd);
    if (rc == OK) rc = kernels->embed(device);
    for (uint32_t layer = 0; rc == OK && layer < shape->n_layers; layer++) {
        rc = kernels->qkv(device, layer);
        if (rc == OK) rc = kernels->attend(device, layer);
        if (rc == OK) rc = kernels->out_residual(device, layer);
        if (rc == OK) rc = kernels->mlp(device, layer);
    }
    if (rc == OK) rc = kernels->lm_head(device);
    return rc;
}
