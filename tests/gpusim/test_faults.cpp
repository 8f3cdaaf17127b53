/* test_faults.cpp: the simulator finds each kind of bug that it promises to find, names the place, and
 * has nothing to say about the same kernels without the bug. Run plain, under AddressSanitizer and
 * under ThreadSanitizer: who finds a bug differs. */
#include "tests/gpusim/gpusim_test.h"

#include <fcntl.h>
#include <math.h>
#include <vector>

enum { N = 512 };

extern "C" const char *__tsan_default_options(void);
extern "C" const char *__tsan_default_options(void) {
    return "halt_on_error=1:atexit_sleep_ms=0"; /* else each child sleeps for a second */
}

static std::vector<float> numbers(void) {
    std::vector<float> v(N);
    for (int i = 0; i < N; i++)
        v[(size_t)i] = (float)(i + 1);
    return v;
}
static int the_order;

/* Each launches one kernel of faults.cu and waits; the result is in `result`. */
static float result[256];
static void run(int fault, int (*launch)(enum fault, float *, const float *, int, void *)) {
    use_order(the_order, 11);
    std::vector<float> v = numbers();
    float *in = device_copy(v.data(), N), *out = device_copy((float *)NULL, 256);
    check_cuda(launch((enum fault)fault, out, in, N, NULL));
    host_copy(result, out, 256);
    cudaFree(in);
    cudaFree(out);
}
static void barriers(int fault) {
    run(fault, launch_barriers);
}
static void copies(int fault) {
    run(fault, launch_copies);
}
static void masks(int fault) {
    run(fault, launch_masks);
}
static void alignment(int fault) {
    run(fault, launch_alignment);
}
static void bounds(int fault) {
    use_order(the_order, 11);
    std::vector<float> v = numbers();
    const uint32_t pages[3] = {5, 1, 0x7FFFFFFF};
    float *in = device_copy(v.data(), N), *out = device_copy((float *)NULL, 256);
    uint32_t *table = device_copy(pages, 3);
    check_cuda(launch_bounds((enum fault)fault, out, in, table, N, NULL));
    host_copy(result, out, 256);
}

/* How the result of a kernel differs from the right one: fails the child with a word. */
static void compare(void (*act)(int), int fault, int n) {
    act(FAULT_NONE);
    std::vector<float> right(result, result + n);
    act(fault);
    for (int i = 0; i < n; i++)
        if (isnan(result[i])) {
            fprintf(stderr, "the result has a NaN\n");
            _exit(1);
        }
    for (int i = 0; i < n; i++)
        if (result[i] != right[(size_t)i]) {
            fprintf(stderr, "the result is wrong\n");
            _exit(1);
        }
}
static void compare_barriers(int fault) {
    compare(barriers, fault, 128);
}
static void compare_copies(int fault) {
    compare(copies, fault, 256);
}
static void compare_bounds(int fault) {
    compare(bounds, fault, 32);
}

/* In every order. ThreadSanitizer sees the race itself, also where the result is right. */
static void expect_race(void (*act)(int), int fault, const char *otherwise) {
    for (the_order = 0; the_order < N_ORDERS; the_order++)
        expect_death(act, fault, WITH_TSAN ? "ThreadSanitizer: data race" : otherwise,
                     WITH_TSAN ? "faults.cu" : "");
    the_order = 0;
}

static void kernels_without_a_fault_live_in_every_order(void **) {
    void (*const acts[])(int) = {barriers, copies, masks, alignment, bounds};
    for (the_order = 0; the_order < N_ORDERS; the_order++)
        for (auto act : acts)
            expect_life(act, FAULT_NONE);
    the_order = 0;
}
static void missing_barrier_is_found_in_every_order(void **) {
    expect_race(compare_barriers, FAULT_NO_BARRIER, "the result has a NaN");
}
/* One thread writes, all read: right where the writer comes first, and then ThreadSanitizer's to find. */
static void missing_barrier_after_the_first_thread_depends_on_the_order(void **) {
    if (WITH_TSAN) {
        expect_race(compare_barriers, FAULT_NO_BARRIER_AFTER_FIRST, "");
        return;
    }
    the_order = GPUSIM_LOWEST;
    expect_life(compare_barriers, FAULT_NO_BARRIER_AFTER_FIRST);
    the_order = GPUSIM_HIGHEST;
    expect_death(compare_barriers, FAULT_NO_BARRIER_AFTER_FIRST, "the result has a NaN");
    the_order = GPUSIM_LOWEST;
}
static void missing_syncwarp_is_found_in_every_order(void **) {
    expect_race(compare_barriers, FAULT_NO_SYNCWARP, "the result has a NaN");
}
static void missing_barrier_before_reuse_is_found_in_every_order(void **) {
    expect_race(compare_barriers, FAULT_NO_BARRIER_BEFORE_REUSE, "the result is wrong");
}
static void wait_for_one_group_too_few_is_found_in_every_order(void **) {
    for (the_order = 0; the_order < N_ORDERS;
         the_order++) /* no race: what is read is not there yet */
        expect_death(compare_copies, FAULT_WAIT_TOO_WEAK, "the result has a NaN");
    the_order = 0;
}
static void copies_in_flight_at_the_end_are_named(void **) {
    expect_death(copies, FAULT_NO_WAIT, "copies, block (0,0,0)", "returns with cp.async in flight");
    expect_death(copies, FAULT_TWO_IN_FLIGHT, "an earlier copy to", "is still in flight");
}
static void wrong_masks_are_named_with_their_line(void **) {
    for (the_order = 0; the_order < N_ORDERS; the_order++) {
        expect_death(masks, FAULT_LANE_OUTSIDE_MASK, "which is outside the mask 0x0000ffff",
                     "faults.cu:");
        expect_death(masks, FAULT_NOT_IN_OWN_MASK, "is not in its own mask 0x0000ffff",
                     "faults.cu:");
        expect_death(masks, FAULT_LANE_ELSEWHERE, "__shfl_sync, though lane", "faults.cu:");
        expect_death(masks, FAULT_LANE_RETURNED, "return", "lane");
        expect_death(masks, FAULT_OTHER_MASK, "though lane", "faults.cu:");
    }
    the_order = 0;
}
static void barriers_in_divergent_code_are_named_with_both_lines(void **) {
    bool dead;
    for (the_order = 0; the_order < N_ORDERS; the_order++) {
        const char *said = said_by_child(barriers, FAULT_DIVERGENT_BARRIER, &dead);
        const char *first = strstr(said, "faults.cu:");
        assert_true(dead && first);
        const char *second = strstr(first + 1, "faults.cu:");
        assert_true(second &&
                    labs(strtol(first + 10, NULL, 10) - strtol(second + 10, NULL, 10)) == 2);
    }
    the_order = 0;
}
static void threads_that_wait_for_each_other_are_listed(void **) {
    expect_death(barriers, FAULT_PARTIAL_BARRIER, "no thread can go on", "at __syncthreads");
    expect_death(barriers, FAULT_PARTIAL_BARRIER, "at warp_sum with mask 0xffffffff in warp 1",
                 "faults.cu:");
}

/* Under AddressSanitizer exactly; plain, a wild page faults and the rest changes the result. */
static void reads_past_the_end_are_found(void **) {
    const char *global = "AddressSanitizer: use-after-poison",
               *array = "AddressSanitizer: global-buffer-overflow";
    if (WITH_ASAN) {
        expect_death(bounds, FAULT_PAST_ROW, global, "faults.cu");
        expect_death(bounds, FAULT_PAST_PAGES, global, "faults.cu");
        expect_death(bounds, FAULT_PAST_SHARED, array, "faults.cu");
        expect_death(bounds, FAULT_PAST_TEMPLATE_SHARED, array, "faults.cu");
        expect_death(bounds, FAULT_PAST_DYNAMIC, global, "faults.cu");
        expect_death(bounds, FAULT_PAST_TABLE, "AddressSanitizer", "faults.cu");
    } else if (!WITH_TSAN) {
        expect_death(bounds, FAULT_PAST_TABLE,
                     "(bounds<WARP>), block (0,0,0), thread (0,0,0): fault at", "not mapped");
        expect_death(compare_bounds, FAULT_PAST_PAGES, "the result is wrong");
    }
}
static void wrong_page_within_the_pool_changes_the_result(void **) {
    expect_death(compare_bounds, FAULT_OTHER_PAGE, "the result is wrong");
}
static void misaligned_addresses_are_named(void **) {
    expect_death(alignment, FAULT_MISALIGNED_LOAD, "is not a multiple of 16", "faults.cu:");
    expect_death(alignment, FAULT_MISALIGNED_LDMATRIX, "ldmatrix: row address", "faults.cu:");
    expect_death(alignment, FAULT_MISALIGNED_CP_ASYNC, "cp.async: source", "faults.cu:");
    expect_death(alignment, FAULT_LDMATRIX_OF_GLOBAL, "is not shared memory", "faults.cu:");
    if (WITH_ASAN)
        expect_death(alignment, FAULT_MISALIGNED_CAST, "misaligned address", "faults.cu");
}

// ---- pointers of the wrong side

static void host_pointer_to_kernel(int) {
    int32_t here[4] = {};
    launch_increment(here, 4, NULL);
}
static void struct_to_kernel(int which) {
    static float data, here_result;
    float stack = 1, *heap = (float *)malloc(64), *pinned = NULL;
    check_cuda(cudaMallocHost(&pinned, 64));
    float *device = device_copy(&stack, 1), *out = device_copy((float *)NULL, 1);
    const float *const all[] = {device, &stack, heap, pinned, &data};
    check_cuda(launch_two_pointers({out, 32000, 32512, all[which]}, NULL));
    host_copy(&here_result, out, 1);
    if (here_result != 1) _exit(1);
}
static void freed_pointer_to_kernel(int) {
    int32_t *p = device_copy((int32_t *)NULL, 4);
    cudaFree(p);
    launch_increment(p, 4, NULL);
}
static void host_reads_device_memory(int) {
    volatile int32_t *p = device_copy((int32_t *)NULL, 4);
    fprintf(stderr, "read %d\n", p[0]);
}
static void host_function_reads_device_memory(int) {
    static volatile int32_t *p = device_copy((int32_t *)NULL, 4);
    check_cuda(cudaLaunchHostFunc(
        NULL, [](void *) { fprintf(stderr, "read %d\n", p[0]); }, NULL));
    cudaDeviceSynchronize();
}
static void copy_past_the_end(int) {
    int32_t here[5];
    int32_t *p = device_copy((int32_t *)NULL, 4);
    cudaMemcpy(here, p, sizeof here, cudaMemcpyDeviceToHost);
}
static void copy_the_wrong_way(int) {
    int32_t here[4];
    int32_t *p = device_copy((int32_t *)NULL, 4);
    cudaMemcpy(here, p, sizeof here, cudaMemcpyHostToDevice);
}
static void write_past_the_end(int) {
    int32_t *p = device_copy((int32_t *)NULL, 4);
    launch_increment(p, 5, NULL);
    cudaDeviceSynchronize();
    gpusim_check();
}
static void pointers_of_the_wrong_side_are_found(void **) {
    expect_death(host_pointer_to_kernel, 0, "increment: argument 1", "is not device memory");
    expect_life(struct_to_kernel, 0);
    for (int which = 1; which < 5; which++)
        expect_death(struct_to_kernel, which, "copy_one: argument 1 has a pointer at byte 16",
                     "not device memory");
    expect_death(freed_pointer_to_kernel, 0, "increment: argument 1", "is not device memory");
    const char *fault = WITH_ASAN   ? "AddressSanitizer: SEGV"
                        : WITH_TSAN ? ""
                                    : "read or written by the host";
    expect_death(host_reads_device_memory, 0, fault);
    expect_death(host_function_reads_device_memory, 0, fault);
    expect_death(copy_past_the_end, 0, "cudaMemcpy: 20 bytes", "are not within one allocation");
    expect_death(copy_the_wrong_way, 0, "cudaMemcpy: destination");
    expect_death(write_past_the_end, 0,
                 WITH_ASAN ? "use-after-poison" : "written behind an allocation of 16 bytes");
}

/* Refused launches say so on stderr: not in the test's output. */
static int quiet(void) {
    int kept = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    close(null);
    return kept;
}
static void loud(int kept) {
    dup2(kept, 2);
    close(kept);
}
static void launches_of_impossible_shape_are_refused(void **) {
    float got = 0, *out = device_copy((float *)NULL, 1);
    int kept = quiet();
    assert_int_equal(launch_shape(out, 0, 32, 1024, false, NULL), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_shape(out, 1, 0, 1024, false, NULL), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_shape(out, 1, 1025, 1024, false, NULL), cudaErrorInvalidConfiguration);
    assert_int_equal(launch_shape(out, 1, 32, (48 << 10) + 16, false, NULL), cudaErrorInvalidValue);
    loud(kept);
    assert_int_equal(launch_shape(out, 1, 32, 164 << 10, true, NULL), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    check_cuda(launch_shape(out, 1, 1024, 163 << 10, true, NULL));
    host_copy(&got, out, 1);
    assert_true(got == 1.0f);
    gpusim_set_device(90, (size_t)1 << 30);
    check_cuda(launch_shape(out, 1, 32, 227 << 10, true, NULL));
    check_cuda(cudaDeviceSynchronize());
    gpusim_set_device(80, (size_t)8 << 30);
    cudaFree(out);
}

static void on_failure(const char *message) {
    if (strstr(message, "is not in its own mask")) _exit(0);
}
static void fail_into_the_hook(int) {
    gpusim_fail_hook = on_failure;
    masks(FAULT_NOT_IN_OWN_MASK);
    _exit(1);
}
static void hook_sees_the_message(void **) {
    expect_life(fail_into_the_hook, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_without_a_fault_live_in_every_order),
        cmocka_unit_test(missing_barrier_is_found_in_every_order),
        cmocka_unit_test(missing_barrier_after_the_first_thread_depends_on_the_order),
        cmocka_unit_test(missing_syncwarp_is_found_in_every_order),
        cmocka_unit_test(missing_barrier_before_reuse_is_found_in_every_order),
        cmocka_unit_test(wait_for_one_group_too_few_is_found_in_every_order),
        cmocka_unit_test(copies_in_flight_at_the_end_are_named),
        cmocka_unit_test(wrong_masks_are_named_with_their_line),
        cmocka_unit_test(barriers_in_divergent_code_are_named_with_both_lines),
        cmocka_unit_test(threads_that_wait_for_each_other_are_listed),
        cmocka_unit_test(reads_past_the_end_are_found),
        cmocka_unit_test(wrong_page_within_the_pool_changes_the_result),
        cmocka_unit_test(misaligned_addresses_are_named),
        cmocka_unit_test(pointers_of_the_wrong_side_are_found),
        cmocka_unit_test(launches_of_impossible_shape_are_refused),
        cmocka_unit_test(hook_sees_the_message),
    };
    return cmocka_run_group_tests_name("gpusim_faults", tests, NULL, NULL);
}
