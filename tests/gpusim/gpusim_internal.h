/* gpusim_internal.h: what the simulator's own files share.
 *
 *   fibres.cpp   one fibre a thread, barriers, exchanges, who runs next, reports
 *   warp.cpp     what the exchanges compute: sums, ballots, matrix fragments; asynchronous copies
 *   memory.cpp   device memory: one arena, unreadable for the host except while device work runs
 *   runtime.cpp  streams, events, graphs, the rest of the CUDA runtime
 *   blas.cpp     cuBLAS: plain loops
 *
 * None of them is compiled with a sanitizer, so that they may touch poisoned and shared memory; they
 * tell the sanitizers themselves, through functions that are there only in a program built with one. */
#ifndef GERYON_GPUSIM_INTERNAL_H
#define GERYON_GPUSIM_INTERNAL_H

#include <cuda_runtime.h>
#include <functional>
#include <mutex>
#include <stddef.h>
#include <stdint.h>

#include "tests/gpusim/control.h"

extern "C" {
void __asan_poison_memory_region(const volatile void *p, size_t n) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void *p, size_t n) __attribute__((weak));
void __asan_loadN(void *p, size_t n) __attribute__((weak));
void __asan_storeN(void *p, size_t n) __attribute__((weak));
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t n)
    __attribute__((weak));
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *n)
    __attribute__((weak));
void *__tsan_get_current_fiber(void) __attribute__((weak));
void *__tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_switch_to_fiber(void *fibre, unsigned flags) __attribute__((weak));
void __tsan_acquire(void *p) __attribute__((weak));
void __tsan_release(void *p) __attribute__((weak));
void __tsan_read4(void *p) __attribute__((weak));
void __tsan_write16(void *p) __attribute__((weak));
}

/* gpusim.h has these too; that header is for files with device code. */
#ifndef GERYON_GPUSIM_H
struct gs_site {
    const char *file;
    int line;
};
[[noreturn]] void gs_fail(gs_site at, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#endif
#define GS_NOWHERE \
    gs_site {      \
        NULL, 0    \
    }

// ---- options and counts (fibres.cpp)

struct gs_options {
    enum gpusim_order order;
    int sm;
    size_t memory_bytes, red_zone;
};
extern struct gs_options gs_options;
extern struct gpusim_counts gs_counts;
/* One lock round every call of the runtime; device work runs under it, on the thread that waits. */
extern std::recursive_mutex gs_lock;
/* 0 .. n - 1 by the order: the first, the last, or one by the seed. */
uint32_t gs_choose(uint32_t n);
uint32_t gs_random(void);
int gs_max_shared(void); /* of one block, opted in */

// ---- running (fibres.cpp)

struct gs_grid {
    const char *kernel;
    unsigned grid[3], block[3];
    size_t smem;
    std::function<void()> body;
};
void gs_run_grid(const gs_grid &grid);
bool gs_in_kernel(void);
/* The dynamic shared memory of a block; gs_is_shared: p[0..n) lies in it or in a `__shared__` array. */
bool gs_is_shared(const void *p, size_t n);

// ---- memory (memory.cpp)

/* Device memory can be touched between the two; they nest. */
void gs_memory_open(void);
void gs_memory_close(void);
/* True when p[0..n) lies in one living allocation. */
bool gs_is_device(const void *p, size_t n);
bool gs_is_pinned(const void *p, size_t n);
/* In the arena at all, living or not. */
bool gs_in_arena(const void *p);

cudaError_t gs_device_alloc(void **out, size_t bytes);
cudaError_t gs_device_free(void *p);
size_t gs_device_free_bytes(void);
size_t gs_memory_in_use(void); /* allocations and pinned buffers */
cudaError_t gs_pinned_alloc(void **out, size_t bytes);
cudaError_t gs_pinned_free(void *p);

/* Bytes moved without a sanitizer's eyes, and the look that it would have taken. */
void gs_move(void *dst, const void *src, size_t n);
void gs_fill(void *dst, int value, size_t n);
void gs_look(const void *p, size_t n, bool writes);

// ---- streams (runtime.cpp)

/* Queue device work, or add it to the graph that the stream captures. */
cudaError_t gs_enqueue(cudaStream_t stream, std::function<void()> work);
cudaError_t gs_enqueue_grid(const char *kernel, const void *func, dim3 grid, dim3 block,
                            size_t smem, cudaStream_t stream, std::function<void()> body);
void gs_check_argument(const char *kernel, int position, const void *p);
void gs_check_struct(const char *kernel, int position, const void *argument, size_t bytes);

#endif
