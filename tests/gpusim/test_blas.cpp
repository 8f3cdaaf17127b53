/* test_blas.cpp: the simulator's cuBLAS against plain C, in the forms that a forward uses. */
#include "tests/gpusim/gpusim_test.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <math.h>
#include <vector>

static const cudaDataType TYPES[] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};

static size_t type_bytes(cudaDataType type) {
    return type == CUDA_R_32F ? 4 : 2;
}
static float get(const std::vector<char> &v, cudaDataType type, size_t i) {
    if (type == CUDA_R_32F) return ((const float *)v.data())[i];
    unsigned short bits = ((const unsigned short *)v.data())[i];
    return type == CUDA_R_16BF ? __bfloat162float(__ushort_as_bfloat16(bits))
                               : __half2float(__ushort_as_half(bits));
}
static std::vector<char> random_matrix(struct rng *rng, cudaDataType type, size_t n) {
    std::vector<char> v(n * type_bytes(type));
    for (size_t i = 0; i < n; i++) {
        float f = rng_normal(rng);
        unsigned short bits = type == CUDA_R_16BF ? __bfloat16_as_ushort(__float2bfloat16_rn(f))
                                                  : __half_as_ushort(__float2half_rn(f));
        memcpy(v.data() + i * type_bytes(type), type == CUDA_R_32F ? (void *)&f : (void *)&bits,
               type_bytes(type));
    }
    return v;
}

struct call {
    cudaDataType in, out;
    bool ta, tb;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    char *a, *b, *c;
    cudaStream_t stream;
};
static void by_cublas(const struct call *s) {
    cublasHandle_t handle;
    assert_int_equal(cublasCreate(&handle), 0);
    assert_int_equal(cublasSetStream(handle, s->stream), 0);
    assert_int_equal(cublasGemmEx(handle, s->ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                                  s->tb ? CUBLAS_OP_T : CUBLAS_OP_N, s->m, s->n, s->k, &s->alpha,
                                  s->a, s->in, s->lda, s->b, s->in, s->ldb, &s->beta, s->c, s->out,
                                  s->ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     0);
    assert_int_equal(cublasDestroy(handle), 0);
}
static void by_cublaslt(const struct call *s) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    const int32_t ta = s->ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb = s->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, k = (uint64_t)s->k, workspace = 0;
    int n_found;
    assert_int_equal(cublasLtCreate(&handle), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta), 0);
    assert_int_equal(
        cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&a, s->in, ta ? k : m, ta ? m : k, s->lda), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&b, s->in, tb ? n : k, tb ? k : n, s->ldb), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&c, s->out, m, n, s->ldc), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&pref), 0);
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(pref,
                                                          CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                          &workspace, sizeof workspace),
                     0);
    assert_int_equal(
        cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, pref, 1, &found, &n_found), 0);
    assert_int_equal(n_found, 1);
    assert_int_equal(cublasLtMatmul(handle, desc, &s->alpha, s->a, a, s->b, b, &s->beta, s->c, c,
                                    s->c, c, &found.algo, NULL, 0, s->stream),
                     0);
    assert_int_equal(cublasLtMatmul(handle, desc, &s->alpha, s->a, b, s->b, a, &s->beta, s->c, c,
                                    s->c, c, &found.algo, NULL, 0, s->stream),
                     CUBLAS_STATUS_INVALID_VALUE);
    cublasLtMatmulPreferenceDestroy(pref);
    cublasLtMatrixLayoutDestroy(a);
    cublasLtMatrixLayoutDestroy(b);
    cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
}

/* Every transposition and type, with leading dimensions over the rows; K ascending makes f32 exact. */
static void check_products(void (*multiply)(const struct call *)) {
    struct rng rng;
    rng_seed(&rng, test_seed());
    for (int i = 0; i < 72; i++) {
        struct call s = {};
        s.in = TYPES[i % 3];
        s.out = TYPES[i / 3 % 3];
        s.ta = i / 9 & 1;
        s.tb = i / 18 & 1;
        s.m = 5;
        s.n = 4;
        s.k = 7;
        s.lda = (s.ta ? s.k : s.m) + 1;
        s.ldb = (s.tb ? s.n : s.k) + 2;
        s.ldc = s.m + 3;
        s.alpha = i & 1 ? 1.0f : 0.5f;
        s.beta = i / 36 ? 2.0f : 0.0f;
        std::vector<char> a = random_matrix(&rng, s.in, 100), b = random_matrix(&rng, s.in, 100);
        std::vector<char> c = random_matrix(&rng, s.out, (size_t)(s.ldc * s.n)), got(c.size());
        check_cuda(cudaStreamCreate(&s.stream));
        s.a = device_copy(a.data(), a.size());
        s.b = device_copy(b.data(), b.size());
        s.c = device_copy(s.beta != 0 ? c.data() : NULL, c.size()); /* else NaN, not to be read */
        multiply(&s);
        check_cuda(cudaStreamSynchronize(s.stream));
        host_copy(got.data(), s.c, got.size());
        for (int row = 0; row < s.m; row++)
            for (int column = 0; column < s.n; column++) {
                float sum = 0;
                for (int j = 0; j < s.k; j++)
                    sum += get(a, s.in, (size_t)(s.ta ? j + row * s.lda : row + j * s.lda)) *
                           get(b, s.in, (size_t)(s.tb ? column + j * s.ldb : j + column * s.ldb));
                sum *= s.alpha;
                if (s.beta != 0) sum += s.beta * get(c, s.out, (size_t)(row + column * s.ldc));
                float is = get(got, s.out, (size_t)(row + column * s.ldc));
                float rounded = s.out == CUDA_R_32F    ? sum
                                : s.out == CUDA_R_16BF ? to_f32(from_f32<bf16>(sum))
                                                       : to_f32(from_f32<f16>(sum));
                assert_true(is == rounded);
            }
        check_cuda(cudaStreamDestroy(s.stream));
        for (char *p : {s.a, s.b, s.c})
            check_cuda(cudaFree(p));
    }
}
static void cublas_gemm_equals_plain_c(void **) {
    check_products(by_cublas);
}
static void cublaslt_matmul_equals_plain_c(void **) {
    check_products(by_cublaslt);
}

/* As a forward calls it: y[rows, n] = x[rows, k] w[n, k]^T in row-major is the column-major
 * y^T = (w^T)^T x^T; the same bits whatever the number of rows, and in a graph. */
static void row_major_product_in_a_graph_does_not_depend_on_the_rows(void **) {
    enum { ROWS = 6, COLS = 10, K = 24 };
    struct rng rng;
    rng_seed(&rng, test_seed());
    std::vector<char> x = random_matrix(&rng, CUDA_R_16BF, ROWS * K),
                      w = random_matrix(&rng, CUDA_R_16BF, COLS * K);
    float all[ROWS * COLS], one[COLS], *y = device_copy((float *)NULL, ROWS * COLS);
    char *dx = device_copy(x.data(), x.size()), *dw = device_copy(w.data(), w.size());
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check_cuda(cudaStreamCreate(&stream));
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    struct call s = {CUDA_R_16BF, CUDA_R_32F, true, false, COLS, ROWS, K,         K,
                     K,           COLS,       1,    0,     dw,   dx,   (char *)y, stream};
    by_cublas(&s);
    check_cuda(cudaStreamEndCapture(stream, &graph));
    check_cuda(cudaGraphInstantiate(&exec, graph));
    check_cuda(cudaGraphLaunch(exec, stream));
    check_cuda(cudaStreamSynchronize(stream));
    host_copy(all, y, ROWS * COLS);
    for (int row = 0; row < ROWS; row++) {
        s.n = 1;
        s.b = dx + row * K * 2;
        by_cublas(&s);
        check_cuda(cudaStreamSynchronize(stream));
        host_copy(one, y, COLS);
        assert_same_bits(one, all + row * COLS, COLS, "a row alone");
    }
    check_cuda(cudaGraphExecDestroy(exec));
    check_cuda(cudaGraphDestroy(graph));
    check_cuda(cudaStreamDestroy(stream));
    cudaFree(dx);
    cudaFree(dw);
    cudaFree(y);
}

static void matrix_past_the_end(int) {
    char *p = device_copy((char *)NULL, 37); /* D has 3 * 5 + 4 elements */
    struct call s = {CUDA_R_16BF, CUDA_R_16BF, false, false, 4, 4, 4, 4, 4, 5, 1, 0, p, p, p, NULL};
    by_cublas(&s);
}
static void wrong_calls_are_refused(void **) {
    cublasHandle_t handle;
    const float one = 1, zero = 0;
    char *p = device_copy((char *)NULL, 64);
    assert_int_equal(cublasCreate(&handle), 0);
    assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, p, CUDA_R_16BF,
                                  3, p, CUDA_R_16BF, 4, &zero, p, CUDA_R_16BF, 4,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, p, CUDA_R_8I, 4,
                                  p, CUDA_R_8I, 4, &zero, p, CUDA_R_32I, 4, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    cublasDestroy(handle);
    cudaFree(p);
    expect_death(matrix_past_the_end, 0, "cublasGemmEx: the 38 bytes of D",
                 "are not within one allocation");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cublas_gemm_equals_plain_c),
        cmocka_unit_test(cublaslt_matmul_equals_plain_c),
        cmocka_unit_test(row_major_product_in_a_graph_does_not_depend_on_the_rows),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests_name("gpusim_blas", tests, NULL, NULL);
}
