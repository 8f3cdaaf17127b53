/* What the device reaches at best: figures that can be, whole sizes only, and failures by name. */
#include "kernels/cuda/peaks.h"
#include "tests/gpusim/gpusim_test.h"

static void both_figures_are_measured(void **state) {
    (void)state;
    for (enum activations a : {ACTIVATIONS_F32, ACTIVATIONS_BF16}) {
        double bytes = 0, flops = 0;
        struct err err = {};
        if (gpu_peaks(a, 1, &bytes, &flops, &err)) fail_msg("%s", err.msg);
        assert_true(bytes > 1e6 && bytes < 1e14);
        assert_true(flops > 1e5 && flops < 1e17);
    }
}

static void a_read_takes_whole_tiles(void **state) {
    (void)state;
    const size_t tile = (size_t)PEAKS_READ_BYTES * PEAKS_THREADS;
    char *buffer = device_copy<char>(NULL, 5 * tile);
    uint32_t before = 7, after = 0, *sink = device_copy(&before, 1);
    check_cuda(cudaMemset(buffer, 0x3C, 5 * tile));
    for (uint32_t n_blocks : {1u, 2u, 5u, 9u}) /* fewer, as many and more than there are tiles */
        check_cuda(gpu_peak_read(buffer, 5 * tile, n_blocks, sink, 0));
    assert_int_equal(gpu_peak_read(buffer, tile - 16, 1, sink, 0), cudaErrorInvalidValue);
    assert_int_equal(gpu_peak_read(buffer, 0, 1, sink, 0), cudaErrorInvalidValue);
    assert_int_equal(gpu_peak_read(buffer, tile, 0, sink, 0), cudaErrorInvalidValue);
    check_cuda(gpu_peak_multiply(3, 2, (float *)sink, 0));
    assert_int_equal(gpu_peak_multiply(3, 0, (float *)sink, 0), cudaErrorInvalidValue);
    check_cuda(cudaDeviceSynchronize());
    host_copy(&after, sink, 1);
    assert_int_equal(after, before); /* the stores that never happen */
    check_cuda(cudaFree(buffer));
    check_cuda(cudaFree(sink));
}

#ifdef GERYON_GPUSIM
static void what_fails_is_named_and_nothing_is_left(void **state) {
    (void)state;
    size_t before, after, total;
    double bytes = 1, flops = 2;
    struct err err = {};
    check_cuda(cudaMemGetInfo(&before, &total));
    gpusim_fail_call("cudaMalloc", 1, cudaErrorMemoryAllocation);
    assert_int_equal(gpu_peaks(ACTIVATIONS_F32, 1, &bytes, &flops, &err), ERR_NOMEM);
    assert_non_null(strstr(err.msg, "buffer"));
    gpusim_fail_call("launch", 1, cudaErrorLaunchFailure);
    assert_int_equal(gpu_peaks(ACTIVATIONS_F32, 1, &bytes, &flops, &err), ERR_DEVICE);
    assert_non_null(strstr(err.msg, "filling"));
    assert_true(bytes == 1 && flops == 2);
    check_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
    gpusim_fail_call(NULL, 0, 0);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_figures_are_measured),
        cmocka_unit_test(a_read_takes_whole_tiles),
#ifdef GERYON_GPUSIM
        cmocka_unit_test(what_fails_is_named_and_nothing_is_left),
#endif
    };
    return cmocka_run_group_tests_name("peaks", tests, NULL, NULL);
}
