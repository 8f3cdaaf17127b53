#include "engine/forward.h"

/* What stands before a branch: in an MSAR model the newest source is expanded and the branch's input
 * is read from all of them (2 n_layers: the readout, with nothing left to expand). */
static int read_sources(const struct kernels *kernels, struct device *device,
                        const struct model_shape *shape, uint32_t branch) {
    if (shape->n_msar_streams == 0) return OK;
    int rc = branch < 2 * shape->n_layers ? kernels->msar_push(device, branch) : OK;
    return rc == OK ? kernels->msar_read(device, branch) : rc;
}

int forward_run(const struct kernels *kernels, struct device *device,
                const struct model_shape *shape, const struct forward *fwd) {
    int rc = kernels->begin(device, fwd);
    if (rc == OK) rc = kernels->embed(device);
    for (uint32_t layer = 0; rc == OK && layer < shape->n_layers; layer++) {
        rc = read_sources(kernels, device, shape, 2 * layer);
        if (rc == OK) rc = kernels->qkv(device, layer);
        if (rc == OK) rc = kernels->attend(device, layer);
        if (rc == OK) rc = kernels->out_residual(device, layer);
        if (rc == OK) rc = read_sources(kernels, device, shape, 2 * layer + 1);
        if (rc == OK) rc = kernels->mlp(device, layer);
    }
    if (rc == OK) rc = read_sources(kernels, device, shape, 2 * shape->n_layers);
    if (rc == OK) rc = kernels->lm_head(device);
    return rc;
}
