/* absent.c: what stands in for kernels/cuda in a build without CUDA. */
#include "kernels/kernels.h"

const struct kernels *kernels_cuda(struct err *err) {
    err_set(err, ERR_INVALID, "cuda: this build has no CUDA backend (make cuda builds one)");
    return NULL;
}
