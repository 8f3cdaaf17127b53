/* blas.cpp: cuBLAS as plain loops, in float with K ascending.
 *
 *   C[m, n] = alpha op(A)[m, k] op(B)[k, n] + beta C[m, n]       all of them column-major, as cuBLAS is
 *
 * A and B of one type (bf16, f16 or f32), C of any of the three, computed in f32. */
#include "tests/gpusim/gpusim_internal.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string.h>

struct matrix {
    char *data;
    cudaDataType type;
    size_t ld;
    bool transposed;
};

static size_t element_bytes(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}
static float load(const struct matrix &m, size_t row, size_t column) {
    size_t i = m.transposed ? column + row * m.ld : row + column * m.ld;
    const char *p = m.data + i * element_bytes(m.type);
    unsigned short half;
    float f;
    if (m.type == CUDA_R_32F) {
        memcpy(&f, p, sizeof f);
        return f;
    }
    memcpy(&half, p, sizeof half);
    return m.type == CUDA_R_16BF ? __bfloat162float(__ushort_as_bfloat16(half))
                                 : __half2float(__ushort_as_half(half));
}
static void store(const struct matrix &m, size_t row, size_t column, float f) {
    char *p = m.data + (row + column * m.ld) * element_bytes(m.type);
    unsigned short half;
    if (m.type == CUDA_R_32F) {
        memcpy(p, &f, sizeof f);
        return;
    }
    half = m.type == CUDA_R_16BF ? __bfloat16_as_ushort(__float2bfloat16_rn(f))
                                 : __half_as_ushort(__float2half_rn(f));
    memcpy(p, &half, sizeof half);
}

static cublasStatus_t check_matrix(const char *call, const char *name, const struct matrix &m,
                                   size_t rows, size_t columns) {
    if (m.transposed) {
        size_t swap = rows;
        rows = columns;
        columns = swap;
    }
    if (!element_bytes(m.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m.ld < rows) return CUBLAS_STATUS_INVALID_VALUE;
    size_t bytes = ((columns - 1) * m.ld + rows) * element_bytes(m.type);
    if (!gs_is_device(m.data, bytes))
        gs_fail(GS_NOWHERE, "%s: the %zu bytes of %s at %p are not within one allocation", call,
                bytes, name, (void *)m.data);
    return CUBLAS_STATUS_SUCCESS;
}

/* d = alpha a b + beta c. */
static cublasStatus_t product(const char *call, size_t m, size_t n, size_t k, float alpha,
                              struct matrix a, struct matrix b, float beta, struct matrix c,
                              struct matrix d, cudaStream_t stream) {
    if (!m || !n) return CUBLAS_STATUS_SUCCESS;
    if (!k || a.type != b.type || c.type != d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasStatus_t status = check_matrix(call, "A", a, m, k);
    if (!status) status = check_matrix(call, "B", b, k, n);
    if (!status && beta != 0) status = check_matrix(call, "C", c, m, n);
    if (!status) status = check_matrix(call, "D", d, m, n);
    if (status) return status;
    cudaError_t error = gs_enqueue(stream, [=] {
        for (size_t column = 0; column < n; column++)
            for (size_t row = 0; row < m; row++) {
                float sum = 0;
                for (size_t i = 0; i < k; i++)
                    sum += load(a, row, i) * load(b, i, column);
                sum *= alpha;
                if (beta != 0)
                    sum += beta * load(c, row, column); /* else C is not read: it may be NaN */
                store(d, row, column, sum);
            }
    });
    return error ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

// ---- cuBLAS

struct cublasContext {
    cudaStream_t stream;
};
extern "C" cublasStatus_t cublasCreate_v2(cublasHandle_t *out) {
    *out = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace,
                                                size_t bytes) {
    (void)handle;
    if (bytes && !gs_is_device(workspace, bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "the operation completed successfully"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "an unsupported value or parameter was passed"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "the simulator has no such form"
                                                   : "unknown status";
}
extern "C" cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                                       cublasOperation_t transb, int m, int n, int k,
                                       const void *alpha, const void *A, cudaDataType Atype,
                                       int lda, const void *B, cudaDataType Btype, int ldb,
                                       const void *beta, void *C, cudaDataType Ctype, int ldc,
                                       cublasComputeType_t compute, cublasGemmAlgo_t algo) {
    (void)algo;
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || k < 0 || lda < 1 || ldb < 1 || ldc < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    struct matrix a = {(char *)A, Atype, (size_t)lda, transa == CUBLAS_OP_T};
    struct matrix b = {(char *)B, Btype, (size_t)ldb, transb == CUBLAS_OP_T};
    struct matrix c = {(char *)C, Ctype, (size_t)ldc, false};
    return product("cublasGemmEx", (size_t)m, (size_t)n, (size_t)k, *(const float *)alpha, a, b,
                   *(const float *)beta, c, c, handle->stream);
}

// ---- cuBLASLt: what the opaque words hold

enum { DESC_TRANSA, DESC_TRANSB };
enum { LAYOUT_TYPE, LAYOUT_ROWS, LAYOUT_COLS, LAYOUT_LD };

struct cublasLtContext {
    int unused;
};
extern "C" cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    *out = new cublasLtContext();
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
                                                   cublasComputeType_t compute,
                                                   cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = new cublasLtMatmulDescOpaque_t();
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                         cublasLtMatmulDescAttributes_t attr,
                                                         const void *value, size_t bytes) {
    int32_t op;
    if (bytes != sizeof op) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&op, value, sizeof op);
    if (op != CUBLAS_OP_N && op != CUBLAS_OP_T) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (attr == CUBLASLT_MATMUL_DESC_TRANSA)
        desc->data[DESC_TRANSA] = op == CUBLAS_OP_T;
    else if (attr == CUBLASLT_MATMUL_DESC_TRANSB)
        desc->data[DESC_TRANSB] = op == CUBLAS_OP_T;
    else
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                                     uint64_t rows, uint64_t cols, int64_t ld) {
    if (ld < 1) return CUBLAS_STATUS_INVALID_VALUE;
    *out = new cublasLtMatrixLayoutOpaque_t();
    (*out)->data[LAYOUT_TYPE] = (uint64_t)type;
    (*out)->data[LAYOUT_ROWS] = rows;
    (*out)->data[LAYOUT_COLS] = cols;
    (*out)->data[LAYOUT_LD] = (uint64_t)ld;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    *out = new cublasLtMatmulPreferenceOpaque_t();
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
    delete pref;
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t attr, const void *value,
                                     size_t bytes) {
    if (attr != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (bytes != sizeof(uint64_t)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&pref->data[0], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
/* One algorithm, which needs no workspace. */
extern "C" cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t pref, int n_wanted,
                               cublasLtMatmulHeuristicResult_t results[], int *n_found) {
    if (!handle || !desc || !a || !b || !c || !d || !pref || n_wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(&results[0], 0, sizeof results[0]);
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *n_found = 1;
    return CUBLAS_STATUS_SUCCESS;
}
static struct matrix matrix_of(const void *data, cublasLtMatrixLayout_t layout, bool transposed) {
    return {(char *)data, (cudaDataType)layout->data[LAYOUT_TYPE], (size_t)layout->data[LAYOUT_LD],
            transposed};
}
extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                         const void *alpha, const void *A, cublasLtMatrixLayout_t a,
                                         const void *B, cublasLtMatrixLayout_t b, const void *beta,
                                         const void *C, cublasLtMatrixLayout_t c, void *D,
                                         cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                         void *workspace, size_t bytes, cudaStream_t stream) {
    (void)algo;
    if (!handle || (bytes && !gs_is_device(workspace, bytes))) return CUBLAS_STATUS_INVALID_VALUE;
    const bool ta = desc->data[DESC_TRANSA], tb = desc->data[DESC_TRANSB];
    const uint64_t m = d->data[LAYOUT_ROWS], n = d->data[LAYOUT_COLS];
    const uint64_t k = a->data[ta ? LAYOUT_ROWS : LAYOUT_COLS];
    if (a->data[ta ? LAYOUT_COLS : LAYOUT_ROWS] != m ||
        b->data[tb ? LAYOUT_COLS : LAYOUT_ROWS] != k ||
        b->data[tb ? LAYOUT_ROWS : LAYOUT_COLS] != n || c->data[LAYOUT_ROWS] != m ||
        c->data[LAYOUT_COLS] != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    return product("cublasLtMatmul", m, n, k, *(const float *)alpha, matrix_of(A, a, ta),
                   matrix_of(B, b, tb), *(const float *)beta, matrix_of(C, c, false),
                   matrix_of(D, d, false), stream);
}
