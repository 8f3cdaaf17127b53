/* products.c: see products.h. The library sees row-major arrays as column-major ones:
 *
 *   y [rows, out] = x [rows, k] w [out, k]^T     is     y' [out, rows] = (w')^T [out, k] x' [k, rows] */
#include "kernels/cuda/products.h"

static bool by_library(const struct device *dev, const struct gemm_call *call, uint32_t n_rows,
                       cublasHandle_t handle) {
    return handle && n_rows > PRODUCTS_OWN_ROWS && !dev->shape.deterministic &&
           dev->act == DTYPE_BF16 && call->w->dtype == DTYPE_BF16 &&
           (call->out != GEMM_SILU || dev->wide);
}

/* y [n_rows][ldy] = beta y + x [n_rows][ldx] w^T, weight rows [out0, out0 + n_out). */
static cudaError_t multiply(cublasHandle_t handle, const struct gemm_call *call, float *y,
                            uint32_t ldy, uint32_t row0, uint32_t n_rows, uint32_t out0,
                            uint32_t n_out) {
    const struct matrix *w = call->w;
    const float alpha = 1, beta = call->out == GEMM_ADD ? 1 : 0;
    if (n_rows == 0 || n_out == 0) return cudaSuccess;
    cublasStatus_t status = cublasGemmEx(
        handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)n_out, (int)n_rows, (int)w->ld, &alpha,
        (const uint16_t *)w->data + (size_t)out0 * w->ld, CUDA_R_16BF, (int)w->ld,
        (const uint16_t *)call->x + (size_t)row0 * call->ldx, CUDA_R_16BF, (int)call->ldx, &beta, y,
        CUDA_R_32F, (int)ldy, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

cudaError_t gpu_product(const struct device *dev, const struct gemm_call *call, uint32_t n_rows,
                        uint32_t n_tail_rows, cublasHandle_t handle, cudaStream_t stream) {
    if (!by_library(dev, call, n_rows, handle)) return gpu_gemm(dev, call, stream);
    cudaError_t error = cudaSuccess;
    if (call->out == GEMM_SILU) {
        const uint32_t width = call->w->rows;
        for (uint32_t row = 0; row < n_rows && !error; row += PRODUCTS_WIDE_ROWS) {
            uint32_t n = n_rows - row < PRODUCTS_WIDE_ROWS ? n_rows - row : PRODUCTS_WIDE_ROWS;
            error = multiply(handle, call, dev->wide, width, row, n, 0, width);
            if (!error) error = gpu_silu(dev, call, dev->wide, row, n, stream);
        }
        return error;
    }
    uint32_t body = call->n_out, tail_rows = n_tail_rows < n_rows ? n_tail_rows : n_rows;
    if (call->n_tail_rows && call->tail < body) body = call->tail;
    error = multiply(handle, call, call->y, call->ldy, 0, n_rows, 0, body);
    if (!error)
        error = multiply(handle, call, (float *)call->y + body, call->ldy, 0, tail_rows, body,
                         call->n_out - body);
    if (!error && call->bias) error = gpu_bias(call, n_rows, stream);
    return error;
}
