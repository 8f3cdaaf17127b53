/* products.h: a product with a matrix, by our own kernels or by cuBLAS. Private to kernels/cuda.
 *
 * Our kernels (gemm.cu) give a row the same bits in any batch. The library is faster for long prefills
 * but promises no order, so it serves only where the model is not `deterministic`, rows and weights
 * are bf16 and there are more than PRODUCTS_OWN_ROWS rows; a captured graph never has so many. */
#ifndef GERYON_CUDA_PRODUCTS_H
#define GERYON_CUDA_PRODUCTS_H

#include <cublas_v2.h>

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PRODUCTS_OWN_ROWS = 512,  /* up to so many rows our kernels compute all products */
    PRODUCTS_WIDE_ROWS = 512, /* rows of dev->wide, each of gate_up.rows floats */
};

/* Queue call for n_rows rows, what *call->n_rows holds on the device, and n_tail_rows likewise (not read
 * without call->n_tail_rows). handle is bound to `stream`; NULL: never the library. A failure of the
 * library is cudaErrorUnknown. */
cudaError_t gpu_product(const struct device *dev, const struct gemm_call *call, uint32_t n_rows,
                        uint32_t n_tail_rows, cublasHandle_t handle, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
