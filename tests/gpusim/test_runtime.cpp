/* test_runtime.cpp: streams, events, graphs and memory of the simulator: work runs only when something
 * waits for it, in every order that CUDA allows, and what CUDA refuses is refused. */
#include "tests/gpusim/gpusim_test.h"

#include <pthread.h>
#include <vector>

enum { N = 40 };

struct fixture {
    cudaStream_t a, b;
    cudaEvent_t event;
    int32_t *device, *pinned;
};
static int setup(void **state) {
    struct fixture *f = (struct fixture *)calloc(1, sizeof *f);
    *state = f;
    gpusim_set_order(GPUSIM_LOWEST, 0);
    check_cuda(cudaStreamCreateWithFlags(&f->a, cudaStreamNonBlocking));
    check_cuda(cudaStreamCreateWithFlags(&f->b, cudaStreamNonBlocking));
    check_cuda(cudaEventCreateWithFlags(&f->event, cudaEventDisableTiming));
    check_cuda(cudaMallocHost(&f->pinned, N * sizeof *f->pinned));
    f->device = device_copy((int32_t *)NULL, N);
    check_cuda(cudaMemset(f->device, 0, N * sizeof *f->device));
    memset(f->pinned, 0, N * sizeof *f->pinned);
    return 0;
}
static int teardown(void **state) {
    struct fixture *f = (struct fixture *)*state;
    check_cuda(cudaStreamDestroy(f->a));
    check_cuda(cudaStreamDestroy(f->b));
    check_cuda(cudaEventDestroy(f->event));
    check_cuda(cudaFreeHost(f->pinned));
    check_cuda(cudaFree(f->device));
    cudaGetLastError();
    free(f);
    return 0;
}
static void read_back(struct fixture *f, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(f->pinned, f->device, N * sizeof *f->pinned, cudaMemcpyDeviceToHost,
                               stream));
}

// ---- streams

static void without_synchronise_old_data_is_read(void **state) {
    struct fixture *f = (struct fixture *)*state;
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 5);
        f->pinned[0] = -1;
        check_cuda(cudaMemsetAsync(f->device, 0, 4, f->a));
        check_cuda(launch_increment(f->device, N, f->a));
        read_back(f, f->a);
        assert_int_equal(f->pinned[0], -1);
        check_cuda(cudaStreamSynchronize(f->b)); /* the wrong stream: it may or may not have run */
        check_cuda(cudaStreamSynchronize(f->a));
        assert_int_equal(f->pinned[0], 1);
    }
}
/* In the order `lowest` only what is waited for runs, so the result without an event is certain. */
static void only_what_is_waited_for_runs(void **state) {
    struct fixture *f = (struct fixture *)*state;
    check_cuda(launch_increment(f->device, N, f->a));
    read_back(f, f->b);
    check_cuda(cudaStreamSynchronize(f->b));
    assert_int_equal(f->pinned[0], 0);
    gpusim_set_order(GPUSIM_HIGHEST, 0);
    check_cuda(launch_double(f->device, N, f->b));
    check_cuda(cudaDeviceSynchronize()); /* b's before a's: 0 * 2 + 1 */
    read_back(f, f->a);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(f->pinned[0], 1);
}
static void missing_event_shows_in_some_order_and_an_event_mends_it(void **state) {
    struct fixture *f = (struct fixture *)*state;
    for (int with_event = 0; with_event < 2; with_event++) {
        int n_right = 0, n_tries = 24;
        for (int seed = 0; seed < n_tries; seed++) {
            gpusim_set_order(GPUSIM_RANDOM, (uint64_t)seed);
            check_cuda(cudaMemset(f->device, 0, N * sizeof *f->device));
            check_cuda(launch_increment(f->device, N, f->a));
            if (with_event) {
                check_cuda(cudaEventRecord(f->event, f->a));
                check_cuda(cudaStreamWaitEvent(f->b, f->event));
            }
            check_cuda(launch_double(f->device, N, f->b));
            check_cuda(cudaDeviceSynchronize());
            read_back(f, f->b);
            check_cuda(cudaStreamSynchronize(f->b));
            n_right += f->pinned[N - 1] == 2;
        }
        if (with_event)
            assert_int_equal(n_right, n_tries);
        else
            assert_in_range(n_right, 1, n_tries - 1);
    }
}
static void legacy_stream_is_ordered_with_blocking_streams_only(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaStream_t blocking;
    check_cuda(cudaStreamCreate(&blocking));
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 17);
        check_cuda(cudaMemset(f->device, 0, N * sizeof *f->device));
        check_cuda(launch_increment(f->device, N, blocking));
        check_cuda(launch_double(f->device, N, NULL));
        check_cuda(launch_increment(f->device, N, blocking));
        read_back(f, blocking);
        check_cuda(cudaStreamSynchronize(blocking));
        assert_int_equal(f->pinned[3], 3);
    }
    gpusim_set_order(GPUSIM_LOWEST, 0);
    check_cuda(launch_increment(f->device, N, f->a)); /* does not block */
    read_back(f, NULL);
    check_cuda(cudaStreamSynchronize(NULL));
    assert_int_equal(f->pinned[3], 3);
    check_cuda(cudaStreamDestroy(blocking));
}
static void polling_a_stream_and_an_event_ends(void **state) {
    struct fixture *f = (struct fixture *)*state;
    int n = 0;
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaEventRecord(f->event, f->a));
    assert_int_equal(cudaEventQuery(f->event), cudaErrorNotReady);
    while (cudaEventQuery(f->event) == cudaErrorNotReady)
        assert_true(++n < 10);
    read_back(f, f->a);
    assert_int_equal(cudaStreamQuery(f->a), cudaErrorNotReady);
    check_cuda(cudaStreamQuery(f->a));
    assert_int_equal(f->pinned[0], 1);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* not ready is no error */
}
static void event_stands_for_what_was_before_it(void **state) {
    struct fixture *f = (struct fixture *)*state;
    check_cuda(cudaEventSynchronize(f->event)); /* never recorded: nothing to wait for */
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaEventRecord(f->event, f->a));
    check_cuda(launch_double(f->device, N, f->a));
    check_cuda(cudaEventSynchronize(f->event));
    read_back(f, f->b);
    check_cuda(cudaStreamSynchronize(f->b));
    assert_int_equal(f->pinned[0], 1);
    check_cuda(cudaStreamSynchronize(f->a));
}
static void elapsed_time_needs_both_events_done(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaEvent_t start, end;
    float ms = -1;
    check_cuda(cudaEventCreate(&start));
    check_cuda(cudaEventCreate(&end));
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle);
    check_cuda(cudaEventRecord(start, f->a));
    check_cuda(cudaEventRecord(end, f->a));
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    check_cuda(cudaEventSynchronize(end));
    check_cuda(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms >= 0);
    check_cuda(cudaEventDestroy(start));
    check_cuda(cudaEventDestroy(end));
}
static void host_function_runs_in_its_place(void **state) {
    struct fixture *f = (struct fixture *)*state;
    static int32_t seen;
    read_back(f, f->a);
    check_cuda(launch_increment(f->device, N, f->a));
    read_back(f, f->a);
    check_cuda(cudaLaunchHostFunc(
        f->a, [](void *p) { seen = *(int32_t *)p; }, f->pinned));
    check_cuda(cudaMemsetAsync(f->device, 0, 4, f->a));
    read_back(f, f->a);
    assert_int_equal(seen, 0);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(seen, 1);
    assert_int_equal(f->pinned[0], 0);
}

/* Device work runs on the thread that waits: an engine's, while another has loaded the model. */
static void *work_on_another_thread(void *state) {
    struct fixture *f = (struct fixture *)state;
    static thread_local int32_t got;
    for (int i = 0; i < 20; i++) {
        launch_increment(f->device, N, f->a);
        cudaStreamSynchronize(f->a);
    }
    cudaMemcpy(&got, f->device, sizeof got, cudaMemcpyDeviceToHost);
    return got == 21 ? state : NULL;
}
static void several_threads_may_wait_for_work(void **state) {
    struct fixture *f = (struct fixture *)*state, *g;
    void *other;
    pthread_t first, second;
    void *result;
    setup(&other);
    g = (struct fixture *)other;
    for (struct fixture *each : {f, g}) {
        check_cuda(launch_increment(each->device, N, each->a));
        check_cuda(cudaStreamSynchronize(each->a));
    }
    assert_int_equal(pthread_create(&first, NULL, work_on_another_thread, f), 0);
    assert_int_equal(pthread_create(&second, NULL, work_on_another_thread, g), 0);
    pthread_join(first, &result);
    assert_ptr_equal(result, f);
    pthread_join(second, &result);
    assert_ptr_equal(result, g);
    read_back(f, f->a);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(f->pinned[N - 1], 21);
    teardown(&other);
}

// ---- host memory of asynchronous copies

#if WITH_ASAN
__attribute__((noinline)) static void queue_from_stack(int32_t *device, cudaStream_t stream) {
    int32_t here[N];
    for (int i = 0; i < N; i++)
        here[i] = 7;
    cudaMemcpyAsync(device, here, sizeof here, cudaMemcpyHostToDevice, stream);
}
static void stack_buffer_to_async_copy(int) {
    int32_t *device = device_copy((int32_t *)NULL, N);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    queue_from_stack(device, stream);
    cudaStreamSynchronize(stream);
}
static void freed_buffer_to_async_copy(int) {
    int32_t *device = device_copy((int32_t *)NULL, N), *here = (int32_t *)malloc(N * sizeof *here);
    cudaMemcpyAsync(device, here, N * sizeof *here, cudaMemcpyHostToDevice, NULL);
    free(here);
    cudaDeviceSynchronize();
}
static void buffers_that_are_gone_are_caught(void **) {
    expect_death(stack_buffer_to_async_copy, 0, "AddressSanitizer: stack-use-after-return");
    expect_death(freed_buffer_to_async_copy, 0, "AddressSanitizer: heap-use-after-free");
}
#endif
/* As pinned memory is: the copy takes what is there when it runs. */
static void host_memory_is_read_when_the_copy_runs(void **state) {
    struct fixture *f = (struct fixture *)*state;
    f->pinned[0] = 1;
    check_cuda(cudaMemcpyAsync(f->device, f->pinned, 4, cudaMemcpyHostToDevice, f->a));
    f->pinned[0] = 2; /* too early */
    read_back(f, f->a);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(f->pinned[0], 2);
}

// ---- graphs

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    check_cuda(cudaGraphInstantiate(&exec, graph));
    check_cuda(cudaGraphDestroy(graph));
    return exec;
}
static void capture_runs_nothing_and_replays_as_often_as_asked(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaGraph_t graph;
    enum cudaStreamCaptureStatus status;
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(launch_double(f->device, N, f->a));
    check_cuda(cudaStreamIsCapturing(f->a, &status));
    assert_int_equal(status, cudaStreamCaptureStatusActive);
    check_cuda(cudaStreamEndCapture(f->a, &graph));
    read_back(f, f->a);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(f->pinned[0], 0);
    cudaGraphExec_t exec = instantiate(graph);
    for (int i = 0; i < 3; i++)
        check_cuda(cudaGraphLaunch(exec, f->a));
    read_back(f, f->a);
    check_cuda(cudaGraphExecDestroy(exec)); /* what is queued keeps it */
    assert_int_equal(f->pinned[0], 0);
    check_cuda(cudaStreamSynchronize(f->a));
    assert_int_equal(f->pinned[0], 14); /* ((0 + 1) * 2 + 1) * 2 ... */
    assert_int_equal(f->pinned[N - 1], 14);
}
/* a: increment, fork; b: double; a joins. Without the fork's event there is nothing to join. */
static void forks_in_a_capture_keep_their_order(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaGraph_t graph;
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaEventRecord(f->event, f->a));
    check_cuda(cudaStreamWaitEvent(f->b, f->event));
    check_cuda(launch_double(f->device, N, f->b));
    check_cuda(cudaEventRecord(f->event, f->b));
    check_cuda(cudaStreamWaitEvent(f->a, f->event));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaStreamEndCapture(f->a, &graph));
    cudaGraphExec_t exec = instantiate(graph);
    for (int order = 0; order < N_ORDERS; order++) {
        use_order(order, 23);
        check_cuda(
            cudaMemsetAsync(f->device, 0, N * sizeof *f->device, f->b)); /* b is free again */
        check_cuda(cudaStreamSynchronize(f->b));
        check_cuda(cudaGraphLaunch(exec, f->b));
        read_back(f, f->b);
        check_cuda(cudaStreamSynchronize(f->b));
        assert_int_equal(f->pinned[1], 3);
    }
    check_cuda(cudaGraphExecDestroy(exec));
}
/* Two branches on the same memory: without an edge between them both orders occur. */
static void independent_nodes_run_in_both_orders(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaGraph_t graph;
    bool seen[4] = {};
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
    check_cuda(cudaEventRecord(f->event, f->a));
    check_cuda(cudaStreamWaitEvent(f->b, f->event));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(launch_double(f->device, N, f->b));
    check_cuda(cudaEventRecord(f->event, f->b));
    check_cuda(cudaStreamWaitEvent(f->a, f->event));
    check_cuda(cudaStreamEndCapture(f->a, &graph));
    cudaGraphExec_t exec = instantiate(graph);
    for (int seed = 0; seed < 24; seed++) {
        gpusim_set_order(GPUSIM_RANDOM, (uint64_t)seed);
        check_cuda(cudaMemset(f->device, 0, N * sizeof *f->device));
        check_cuda(cudaGraphLaunch(exec, f->a));
        read_back(f, f->a);
        check_cuda(cudaStreamSynchronize(f->a));
        assert_in_range(f->pinned[0], 1, 2);
        seen[f->pinned[0]] = true;
    }
    assert_true(seen[1] && seen[2]);
    check_cuda(cudaGraphExecDestroy(exec));
}
static void branch_that_is_not_joined_is_refused(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaGraph_t graph;
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaEventRecord(f->event, f->a));
    check_cuda(cudaStreamWaitEvent(f->b, f->event));
    check_cuda(launch_double(f->device, N, f->b));
    assert_int_equal(cudaStreamEndCapture(f->b, &graph), cudaErrorStreamCaptureUnmatched);
    assert_int_equal(cudaStreamEndCapture(f->a, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
    check_cuda(launch_increment(f->device, N, f->a));
    check_cuda(cudaEventRecord(f->event, f->a));
    check_cuda(cudaStreamWaitEvent(f->b, f->event));
    check_cuda(launch_double(f->device, N, f->b));
    assert_int_equal(cudaStreamEndCapture(f->a, &graph), cudaErrorStreamCaptureUnjoined);
    assert_null(graph);
}

static int call_malloc(struct fixture *) {
    void *p;
    return cudaMalloc(&p, 16);
}
static int call_free(struct fixture *f) {
    return cudaFree(f->device);
}
static int call_synchronise(struct fixture *f) {
    return cudaStreamSynchronize(f->a);
}
static int call_device_synchronise(struct fixture *) {
    return cudaDeviceSynchronize();
}
static int call_query(struct fixture *f) {
    return cudaStreamQuery(f->a);
}
static int call_event_synchronise(struct fixture *f) {
    cudaEventRecord(f->event, f->a);
    return cudaEventSynchronize(f->event);
}
static int call_memcpy(struct fixture *f) {
    return cudaMemcpy(f->pinned, f->device, 4, cudaMemcpyDeviceToHost);
}
static int call_pageable_copy(struct fixture *f) {
    int32_t here = 0;
    return cudaMemcpyAsync(f->device, &here, 4, cudaMemcpyHostToDevice, f->a);
}
static void illegal_calls_in_a_capture_are_refused(void **state) {
    struct fixture *f = (struct fixture *)*state;
    int (*const calls[])(struct fixture *) = {
        call_malloc,      call_free,
        call_synchronise, call_device_synchronise,
        call_query,       call_event_synchronise,
        call_memcpy,      call_pageable_copy,
    };
    for (auto call : calls) {
        cudaGraph_t graph;
        check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeGlobal));
        check_cuda(launch_increment(f->device, N, f->a));
        assert_int_equal(call(f), cudaErrorStreamCaptureUnsupported);
        assert_int_equal(launch_increment(f->device, N, f->a), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaStreamEndCapture(f->a, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
        assert_int_equal(cudaGetLastError(), cudaSuccess);
    }
    read_back(f, f->a); /* and the stream works on */
    check_cuda(cudaStreamSynchronize(f->a));
}
static void legacy_stream_is_refused_beside_a_blocking_capture(void **state) {
    struct fixture *f = (struct fixture *)*state;
    cudaStream_t blocking;
    cudaGraph_t graph;
    check_cuda(cudaStreamCreate(&blocking));
    check_cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    assert_int_equal(launch_increment(f->device, N, NULL), cudaErrorStreamCaptureImplicit);
    assert_int_equal(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    check_cuda(cudaStreamDestroy(blocking));
    check_cuda(cudaStreamBeginCapture(f->a, cudaStreamCaptureModeRelaxed));
    check_cuda(launch_increment(f->device, N, NULL));
    check_cuda(launch_double(f->device, N, f->a));
    check_cuda(cudaStreamEndCapture(f->a, &graph));
    check_cuda(cudaGraphDestroy(graph));
}

// ---- memory

static void memory_is_counted_and_runs_out(void **) {
    size_t before, after, total;
    void *p, *q;
    check_cuda(cudaMemGetInfo(&before, &total));
    check_cuda(cudaMalloc(&p, 1 << 20));
    check_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(before - after, 1 << 20);
    assert_int_equal(cudaMalloc(&q, total), cudaErrorMemoryAllocation);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(launch_increment((int32_t *)p, 1, NULL), cudaErrorMemoryAllocation); /* old */
    check_cuda(launch_increment((int32_t *)p, 1, NULL));
    check_cuda(cudaFree(p));
    assert_int_equal(cudaFree(p), cudaErrorInvalidValue); /* twice */
    assert_int_equal(cudaFree((char *)p + 1), cudaErrorInvalidValue);
    cudaGetLastError();
    check_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
}
static void fresh_memory_is_nan_and_allocations_lie_apart(void **) {
    unsigned char *p, *q, bytes[100];
    check_cuda(cudaMalloc(&p, 100));
    check_cuda(cudaMalloc(&q, 100));
    assert_true((size_t)llabs(q - p) >= 64 << 10);
    assert_int_equal((uintptr_t)p % 256, 0);
    host_copy(bytes, p, sizeof bytes);
    for (unsigned char byte : bytes)
        assert_int_equal(byte, 0xFF);
    check_cuda(cudaFree(p));
    check_cuda(cudaFree(q));
}
static void device_says_what_it_is(void **) {
    struct cudaDeviceProp prop;
    int n, major, shared;
    check_cuda(cudaGetDeviceCount(&n));
    assert_int_equal(n, 1);
    check_cuda(cudaGetDeviceProperties(&prop, 0));
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    check_cuda(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_int_equal(prop.major, 8);
    assert_int_equal(major, 8);
    assert_int_equal(shared, 163 << 10);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
}
static void work_is_counted(void **state) {
    struct fixture *f = (struct fixture *)*state;
    struct gpusim_counts before = gpusim_counts();
    check_cuda(launch_increment(f->device, N, f->a)); /* 2 blocks of 32 */
    check_cuda(cudaStreamSynchronize(f->a));
    struct gpusim_counts after = gpusim_counts();
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.blocks - before.blocks, 2);
    assert_int_equal(after.switches - before.switches, 2 * 33);
}

#define with_fixture(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        with_fixture(without_synchronise_old_data_is_read),
        with_fixture(only_what_is_waited_for_runs),
        with_fixture(missing_event_shows_in_some_order_and_an_event_mends_it),
        with_fixture(legacy_stream_is_ordered_with_blocking_streams_only),
        with_fixture(polling_a_stream_and_an_event_ends),
        with_fixture(event_stands_for_what_was_before_it),
        with_fixture(elapsed_time_needs_both_events_done),
        with_fixture(host_function_runs_in_its_place),
#if WITH_ASAN
        with_fixture(buffers_that_are_gone_are_caught),
#endif
        with_fixture(several_threads_may_wait_for_work),
        with_fixture(host_memory_is_read_when_the_copy_runs),
        with_fixture(capture_runs_nothing_and_replays_as_often_as_asked),
        with_fixture(forks_in_a_capture_keep_their_order),
        with_fixture(independent_nodes_run_in_both_orders),
        with_fixture(branch_that_is_not_joined_is_refused),
        with_fixture(illegal_calls_in_a_capture_are_refused),
        with_fixture(legacy_stream_is_refused_beside_a_blocking_capture),
        with_fixture(memory_is_counted_and_runs_out),
        with_fixture(fresh_memory_is_nan_and_allocations_lie_apart),
        with_fixture(device_says_what_it_is),
        with_fixture(work_is_counted),
    };
    return cmocka_run_group_tests_name("gpusim_runtime", tests, NULL, NULL);
}
