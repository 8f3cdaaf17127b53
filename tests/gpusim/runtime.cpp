/* runtime.cpp: streams, events, graphs and the rest of the CUDA runtime.
 *
 *   stream   work ◀ work ◀ event ◀ work      queued; runs only when something waits for it
 *
 * So a missing synchronise reads old data every time. Every queued thing carries a number that counts
 * up over all streams, which orders the legacy stream with the blocking ones. A stream that captures
 * puts the same closures into a graph. */
#include "tests/gpusim/gpusim_internal.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vector>

#define LOCKED std::lock_guard<std::recursive_mutex> guard(gs_lock)

struct event {
    uint64_t recorded, completed; /* how often */
    CUstream_st *stream;          /* of the last record */
    double ms;                    /* when that was completed */
    struct capture *captured_in;  /* or NULL */
    std::vector<size_t> nodes;    /* what it stands for in that capture */
};
struct CUevent_st {
    std::shared_ptr<event> e;
};

struct item {
    uint64_t number;
    std::function<void()> run;
    std::shared_ptr<event> waits; /* until this has been completed `times` times */
    uint64_t times;
    CUstream_st *there; /* the stream that records it */
};
struct CUstream_st {
    bool blocking; /* ordered with the legacy stream */
    std::deque<item> queue;
    struct capture *capturing;
    std::vector<size_t> nodes; /* after which the next captured thing comes */
};

struct node {
    std::function<void()> run;
    std::vector<size_t> after;
};
typedef std::vector<node> graph;
struct capture {
    std::shared_ptr<graph> nodes;
    CUstream_st *origin;
    std::vector<CUstream_st *> joined;
    enum cudaStreamCaptureMode mode;
    bool invalid;
};
struct CUgraph_st {
    std::shared_ptr<graph> nodes;
};
struct CUgraphExec_st {
    std::shared_ptr<graph> nodes;
};

static CUstream_st legacy = {true, {}, NULL, {}};
static std::vector<CUstream_st *> streams = {&legacy};
static std::vector<capture *> captures;
static std::map<const void *, int> shared_limits; /* by kernel: cudaFuncSetAttribute */
static uint64_t next_number = 1;
static thread_local cudaError_t last_error;

/* The call that is to fail. */
static struct {
    const char *call;
    unsigned left;
    cudaError_t error;
} planned;
extern "C" void gpusim_fail_call(const char *call, unsigned nth, int error) {
    planned.call = call;
    planned.left = nth;
    planned.error = (cudaError_t)error;
}
__attribute__((constructor)) static void plan_from_environment() {
    static char call[64];
    unsigned nth;
    int error;
    const char *text = getenv("GPUSIM_FAIL");
    if (text && sscanf(text, "%63[^:]:%u:%d", call, &nth, &error) == 3)
        gpusim_fail_call(call, nth, error);
}

static cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}
static bool fails_now(const char *call) {
    if (!planned.call || strcmp(planned.call, call) != 0 || --planned.left > 0) return false;
    planned.call = NULL;
    return true;
}
#define MAY_FAIL                                               \
    do {                                                       \
        if (fails_now(__func__)) return result(planned.error); \
    } while (0)
static size_t n_handles; /* streams, events, graphs and their instances */
template <class T> static T *made(T *handle) {
    n_handles++;
    return handle;
}
template <class T> static void unmake(T *handle) {
    if (handle) n_handles--;
    delete handle;
}
extern "C" size_t gpusim_in_use(void) {
    LOCKED;
    return n_handles + gs_memory_in_use();
}

static CUstream_st *stream_of(cudaStream_t stream) {
    return stream ? stream : &legacy;
}
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// ---- running what is queued

static bool comes_before(const CUstream_st *s, uint64_t number) {
    return !s->queue.empty() && s->queue.front().number < number;
}
/* A stream whose front must run before the front of s may; NULL. */
static CUstream_st *blocker_of(CUstream_st *s) {
    const item &front = s->queue.front();
    if (front.waits && front.waits->completed < front.times) return front.there;
    if (s != &legacy) return s->blocking && comes_before(&legacy, front.number) ? &legacy : NULL;
    for (CUstream_st *other : streams)
        if (other->blocking && comes_before(other, front.number)) return other;
    return NULL;
}
/* One step towards running the front of s. */
static void run_front(CUstream_st *s) {
    while (CUstream_st *blocker = blocker_of(s))
        s = blocker;
    item front = std::move(s->queue.front());
    s->queue.pop_front();
    if (front.run) front.run();
}
static std::vector<CUstream_st *> busy_streams(void) {
    std::vector<CUstream_st *> busy;
    for (CUstream_st *s : streams)
        if (!s->queue.empty()) busy.push_back(s);
    return busy;
}
static void run_all(void) {
    gs_memory_open();
    for (auto busy = busy_streams(); !busy.empty(); busy = busy_streams())
        run_front(busy[gs_choose((uint32_t)busy.size())]);
    gs_memory_close();
}
/* Everything in s up to a number; of the other streams what s waits for, and by the order more. */
static void run_until(CUstream_st *s, uint64_t number) {
    gs_memory_open();
    while (comes_before(s, number + 1)) {
        auto busy = busy_streams();
        CUstream_st *other = busy[gs_choose((uint32_t)busy.size())];
        run_front(gs_options.order == GPUSIM_LOWEST ? s : other);
    }
    gs_memory_close();
}

// ---- capture

static cudaError_t spoil(capture *c, cudaError_t error) {
    c->invalid = true;
    return result(error);
}
/* For calls that may not be made while anything captures (but for relaxed captures). */
static cudaError_t unsafe_in_capture(void) {
    for (capture *c : captures)
        if (c->mode != cudaStreamCaptureModeRelaxed)
            return spoil(c, cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}
#define NOT_IN_CAPTURE                                                 \
    do {                                                               \
        if (cudaError_t unsafe_ = unsafe_in_capture()) return unsafe_; \
    } while (0)

static cudaError_t add_node(CUstream_st *s, std::function<void()> work) {
    capture *c = s->capturing;
    if (c->invalid) return result(cudaErrorStreamCaptureInvalidated);
    c->nodes->push_back({std::move(work), s->nodes});
    s->nodes = {c->nodes->size() - 1};
    return cudaSuccess;
}
static cudaError_t use_of_legacy(CUstream_st *s) {
    for (capture *c : captures)
        if (s == &legacy && c->origin->blocking) return spoil(c, cudaErrorStreamCaptureImplicit);
    return cudaSuccess;
}
cudaError_t gs_enqueue(cudaStream_t stream, std::function<void()> work) {
    LOCKED;
    CUstream_st *s = stream_of(stream);
    if (s->capturing) return add_node(s, std::move(work));
    if (cudaError_t error = use_of_legacy(s)) return error;
    s->queue.push_back({next_number++, std::move(work), NULL, 0, NULL});
    return cudaSuccess;
}

/* In any order that keeps every node behind those it comes after. */
static void run_graph(const graph &nodes) {
    std::vector<char> done(nodes.size());
    for (size_t n_done = 0; n_done < nodes.size(); n_done++) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool waits = done[i];
            for (size_t before : nodes[i].after)
                waits = waits || !done[before];
            if (!waits) ready.push_back(i);
        }
        size_t i = ready[gs_choose((uint32_t)ready.size())];
        nodes[i].run();
        done[i] = 1;
    }
}
static bool reaches(const graph &nodes, const std::vector<size_t> &from, size_t to) {
    for (size_t i : from)
        if (i == to || reaches(nodes, nodes[i].after, to)) return true;
    return false;
}

extern "C" cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                              enum cudaStreamCaptureMode mode) {
    LOCKED;
    MAY_FAIL;
    CUstream_st *s = stream_of(stream);
    if (s == &legacy) return result(cudaErrorStreamCaptureUnsupported);
    if (s->capturing) return result(cudaErrorIllegalState);
    s->capturing = new capture{std::make_shared<graph>(), s, {s}, mode, false};
    s->nodes.clear();
    captures.push_back(s->capturing);
    return cudaSuccess;
}
extern "C" cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    LOCKED;
    CUstream_st *s = stream_of(stream);
    capture *c = s->capturing;
    *out = NULL;
    if (!c) return result(cudaErrorIllegalState);
    if (c->origin != s) return spoil(c, cudaErrorStreamCaptureUnmatched);
    cudaError_t error = c->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    if (fails_now(__func__)) error = planned.error; /* and the capture ends */
    for (CUstream_st *other : c->joined) {
        for (size_t i : other->nodes)
            if (!error && !reaches(*c->nodes, s->nodes, i)) error = cudaErrorStreamCaptureUnjoined;
        other->capturing = NULL;
        if (other != s) other->nodes.clear();
    }
    s->nodes.clear();
    captures.erase(std::find(captures.begin(), captures.end(), c));
    if (!error) *out = made(new CUgraph_st{c->nodes});
    delete c;
    return result(error);
}
extern "C" cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                             enum cudaStreamCaptureStatus *out) {
    LOCKED;
    const capture *c = stream_of(stream)->capturing;
    *out = !c           ? cudaStreamCaptureStatusNone
           : c->invalid ? cudaStreamCaptureStatusInvalidated
                        : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t from,
                                            unsigned long long flags) {
    LOCKED;
    MAY_FAIL;
    if (!from || flags) return result(cudaErrorInvalidValue);
    NOT_IN_CAPTURE;
    *out = made(new CUgraphExec_st{from->nodes});
    return cudaSuccess;
}
extern "C" cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    LOCKED;
    MAY_FAIL;
    std::shared_ptr<graph> nodes = exec->nodes;
    return gs_enqueue(stream, [nodes] { run_graph(*nodes); });
}
extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t g) {
    LOCKED;
    unmake(g);
    return cudaSuccess;
}
extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    LOCKED;
    unmake(exec);
    return cudaSuccess;
}

// ---- streams

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    LOCKED;
    MAY_FAIL;
    *out = made(new CUstream_st{!(flags & cudaStreamNonBlocking), {}, NULL, {}});
    streams.push_back(*out);
    return cudaSuccess;
}
extern "C" cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}
extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    LOCKED;
    if (!stream || stream->capturing) return result(cudaErrorInvalidResourceHandle);
    run_until(stream, next_number);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    unmake(stream);
    return cudaSuccess;
}
extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCKED;
    MAY_FAIL;
    NOT_IN_CAPTURE;
    run_until(stream_of(stream), next_number);
    return cudaSuccess;
}
/* Work does not run by itself, so each question takes it one step further: polling ends. */
extern "C" cudaError_t cudaStreamQuery(cudaStream_t stream) {
    LOCKED;
    NOT_IN_CAPTURE;
    CUstream_st *s = stream_of(stream);
    if (s->queue.empty()) return cudaSuccess;
    gs_memory_open();
    run_front(s);
    gs_memory_close();
    return cudaErrorNotReady;
}
extern "C" cudaError_t cudaDeviceSynchronize(void) {
    LOCKED;
    NOT_IN_CAPTURE;
    run_all();
    return cudaSuccess;
}
extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user) {
    return gs_enqueue(stream, [fn, user] {
        gs_memory_close(); /* the host may not look at device memory here either */
        fn(user);
        gs_memory_open();
    });
}

// ---- events

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    LOCKED;
    MAY_FAIL;
    (void)flags;
    *out = made(new CUevent_st{std::make_shared<event>()});
    return cudaSuccess;
}
extern "C" cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}
extern "C" cudaError_t cudaEventDestroy(cudaEvent_t e) {
    LOCKED;
    unmake(e);
    return cudaSuccess;
}
extern "C" cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
    LOCKED;
    MAY_FAIL;
    CUstream_st *s = stream_of(stream);
    std::shared_ptr<event> e = handle->e;
    e->captured_in = s->capturing;
    if (s->capturing) {
        e->nodes = s->nodes;
        return s->capturing->invalid ? result(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
    }
    if (cudaError_t error = use_of_legacy(s)) return error;
    e->stream = s;
    uint64_t times = ++e->recorded;
    return gs_enqueue(stream, [e, times] {
        e->completed = times;
        e->ms = now_ms();
    });
}
static cudaError_t wait_in_capture(CUstream_st *s, const event &e) {
    if (!s->capturing) {
        s->capturing = e.captured_in;
        s->nodes.clear();
        e.captured_in->joined.push_back(s);
    }
    if (s->capturing != e.captured_in) return spoil(s->capturing, cudaErrorStreamCaptureIsolation);
    for (size_t i : e.nodes)
        if (std::find(s->nodes.begin(), s->nodes.end(), i) == s->nodes.end()) s->nodes.push_back(i);
    return cudaSuccess;
}
extern "C" cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle,
                                           unsigned flags) {
    LOCKED;
    (void)flags;
    CUstream_st *s = stream_of(stream);
    std::shared_ptr<event> e = handle->e;
    bool living = std::find(captures.begin(), captures.end(), e->captured_in) != captures.end();
    if (e->captured_in && living) return wait_in_capture(s, *e);
    if (s->capturing) return spoil(s->capturing, cudaErrorStreamCaptureIsolation);
    if (e->completed < e->recorded)
        s->queue.push_back({next_number++, NULL, e, e->recorded, e->stream});
    return cudaSuccess;
}
static cudaError_t refuse_captured(const event &e) {
    if (std::find(captures.begin(), captures.end(), e.captured_in) == captures.end())
        return cudaSuccess;
    return spoil(e.captured_in, cudaErrorStreamCaptureUnsupported);
}
extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
    LOCKED;
    MAY_FAIL;
    if (cudaError_t error = refuse_captured(*handle->e)) return error;
    NOT_IN_CAPTURE;
    event &e = *handle->e;
    uint64_t times = e.recorded;
    gs_memory_open();
    while (e.completed < times) {
        auto busy = busy_streams();
        CUstream_st *other = busy[gs_choose((uint32_t)busy.size())];
        run_front(gs_options.order == GPUSIM_LOWEST ? e.stream : other);
    }
    gs_memory_close();
    return cudaSuccess;
}
extern "C" cudaError_t cudaEventQuery(cudaEvent_t handle) {
    LOCKED;
    if (cudaError_t error = refuse_captured(*handle->e)) return error;
    NOT_IN_CAPTURE;
    event &e = *handle->e;
    if (e.completed >= e.recorded) return cudaSuccess;
    gs_memory_open();
    run_front(e.stream);
    gs_memory_close();
    return cudaErrorNotReady;
}
extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    LOCKED;
    MAY_FAIL;
    const event &a = *start->e, &b = *end->e;
    if (!a.recorded || !b.recorded) return result(cudaErrorInvalidResourceHandle);
    if (a.completed < a.recorded || b.completed < b.recorded) return cudaErrorNotReady;
    *ms = (float)(b.ms - a.ms);
    return cudaSuccess;
}

// ---- copies

/* Which side is the device's. Wrong sides end the process: a device would corrupt or fault. */
static void check_copy(const char *call, void *dst, const void *src, size_t n,
                       enum cudaMemcpyKind kind) {
    const bool to = gs_in_arena(dst), from = gs_in_arena(src);
    if (to && !gs_is_device(dst, n))
        gs_fail(GS_NOWHERE, "%s: %zu bytes at %p are not within one allocation", call, n, dst);
    if (from && !gs_is_device(src, n))
        gs_fail(GS_NOWHERE, "%s: %zu bytes at %p are not within one allocation", call, n, src);
    if (kind == cudaMemcpyDefault) return;
    const bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to != want_to)
        gs_fail(GS_NOWHERE, "%s: destination %p is %sdevice memory", call, dst, to ? "" : "no ");
    if (from != want_from)
        gs_fail(GS_NOWHERE, "%s: source %p is %sdevice memory", call, src, from ? "" : "no ");
}
/* Host memory is read when the copy runs, as a device reads pinned memory. */
extern "C" cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n,
                                       enum cudaMemcpyKind kind, cudaStream_t stream) {
    LOCKED;
    MAY_FAIL;
    check_copy("cudaMemcpyAsync", dst, src, n, kind);
    CUstream_st *s = stream_of(stream);
    const bool pageable = (!gs_in_arena(dst) && !gs_is_pinned(dst, n)) ||
                          (!gs_in_arena(src) && !gs_is_pinned(src, n));
    if (s->capturing && pageable) return spoil(s->capturing, cudaErrorStreamCaptureUnsupported);
    return gs_enqueue(stream, [=] {
        gs_look(src, n, false);
        gs_look(dst, n, true);
        gs_move(dst, src, n);
    });
}
extern "C" cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                                         size_t width, size_t height, enum cudaMemcpyKind kind,
                                         cudaStream_t stream) {
    LOCKED;
    if (width > dpitch || width > spitch) return result(cudaErrorInvalidValue);
    for (size_t i = 0; i < height; i++) {
        cudaError_t error = cudaMemcpyAsync((char *)dst + i * dpitch,
                                            (const char *)src + i * spitch, width, kind, stream);
        if (error) return error;
    }
    return cudaSuccess;
}
extern "C" cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind) {
    LOCKED;
    NOT_IN_CAPTURE;
    check_copy("cudaMemcpy", dst, src, n, kind);
    cudaError_t error = cudaMemcpyAsync(dst, src, n, kind, 0);
    return error ? error : cudaStreamSynchronize(0);
}
extern "C" cudaError_t cudaMemsetAsync(void *device, int value, size_t n, cudaStream_t stream) {
    LOCKED;
    MAY_FAIL;
    if (!gs_is_device(device, n))
        gs_fail(GS_NOWHERE, "cudaMemsetAsync: %zu bytes at %p are not within one allocation", n,
                device);
    return gs_enqueue(stream, [=] { gs_fill(device, value, n); });
}
extern "C" cudaError_t cudaMemset(void *device, int value, size_t n) {
    LOCKED;
    NOT_IN_CAPTURE;
    cudaError_t error = cudaMemsetAsync(device, value, n, 0);
    return error ? error : cudaStreamSynchronize(0);
}

// ---- memory

extern "C" cudaError_t cudaMalloc(void **out, size_t n) {
    LOCKED;
    MAY_FAIL;
    NOT_IN_CAPTURE;
    return result(gs_device_alloc(out, n));
}
/* Waits for all work, as the real one does. */
extern "C" cudaError_t cudaFree(void *device) {
    LOCKED;
    NOT_IN_CAPTURE;
    run_all();
    return result(gs_device_free(device));
}
extern "C" cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags) {
    LOCKED;
    MAY_FAIL;
    if (flags != cudaHostAllocDefault) return result(cudaErrorInvalidValue);
    NOT_IN_CAPTURE;
    return result(gs_pinned_alloc(out, n));
}
extern "C" cudaError_t cudaMallocHost(void **out, size_t n) {
    return cudaHostAlloc(out, n, cudaHostAllocDefault);
}
extern "C" cudaError_t cudaFreeHost(void *host) {
    LOCKED;
    NOT_IN_CAPTURE;
    run_all();
    return result(gs_pinned_free(host));
}
extern "C" cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    LOCKED;
    MAY_FAIL;
    *free_bytes = gs_device_free_bytes();
    *total_bytes = gs_options.memory_bytes;
    return cudaSuccess;
}

// ---- launches

extern "C" cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr,
                                            int value) {
    LOCKED;
    if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > gs_max_shared())
        return result(cudaErrorInvalidValue);
    shared_limits[func] = value;
    return cudaSuccess;
}
static cudaError_t check_shape(const void *func, dim3 grid, dim3 block, size_t smem) {
    const size_t n_threads = (size_t)block.x * block.y * block.z;
    const auto limit = shared_limits.find(func);
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || !n_threads ||
        n_threads > 1024 || block.z > 64)
        return cudaErrorInvalidConfiguration;
    const size_t allowed = limit == shared_limits.end() ? 48 << 10 : (size_t)limit->second;
    return smem > std::max(allowed, (size_t)48 << 10) ? cudaErrorInvalidValue : cudaSuccess;
}
/* Returns what cudaGetLastError would, as a launch on a device does: an older error as well. */
cudaError_t gs_enqueue_grid(const char *kernel, const void *func, dim3 grid, dim3 block,
                            size_t smem, cudaStream_t stream, std::function<void()> body) {
    LOCKED;
    gs_grid shape = {
        kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, smem, std::move(body)};
    if (fails_now("launch")) return planned.error;
    cudaError_t error = check_shape(func, grid, block, smem);
    if (error)
        fprintf(stderr,
                "gpusim: %s: launch refused: grid (%u,%u,%u), block (%u,%u,%u), %zu bytes\n",
                kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, smem);
    else
        error = gs_enqueue(stream, [shape] { gs_run_grid(shape); });
    result(error);
    return cudaGetLastError();
}

// ---- the device

extern "C" cudaError_t cudaGetDeviceCount(int *count) {
    MAY_FAIL;
    *count = 1;
    return cudaSuccess;
}
extern "C" cudaError_t cudaSetDevice(int device) {
    return result(device ? cudaErrorInvalidDevice : cudaSuccess);
}
extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
extern "C" cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    if (device) return result(cudaErrorInvalidDevice);
    switch ((int)attr) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = gs_max_shared();
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 4 << 20;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = gs_options.sm / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = gs_options.sm % 10;
        break;
    default:
        return result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
extern "C" cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    if (device) return result(cudaErrorInvalidDevice);
    memset((void *)prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "GPU simulator");
    prop->totalGlobalMem = gs_options.memory_bytes;
    prop->sharedMemPerBlock = 48 << 10;
    prop->sharedMemPerBlockOptin = (size_t)gs_max_shared();
    prop->major = gs_options.sm / 10;
    prop->minor = gs_options.sm % 10;
    prop->multiProcessorCount = 4;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->l2CacheSize = 4 << 20;
    return cudaSuccess;
}
extern "C" cudaError_t cudaDriverGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}
extern "C" cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 13000;
    return cudaSuccess;
}

// ---- errors

extern "C" cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}
extern "C" cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not initiated in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
};
extern "C" const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &row : error_texts)
        if (row.error == error) return row.text;
    return "unknown error";
}
extern "C" const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &row : error_texts)
        if (row.error == error) return row.name;
    return "unrecognized error code";
}
