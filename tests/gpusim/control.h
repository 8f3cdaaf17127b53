/* control.h: how a test (C or C++) steers the GPU simulator. Everything here is for the host. */
#ifndef GERYON_GPUSIM_CONTROL_H
#define GERYON_GPUSIM_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Who runs next where CUDA promises nothing: lanes, warps, blocks, streams, nodes of a graph.
 * Lowest: the first that can go on, and of streams only what is waited for. Highest: the last that
 * can go on, and the other streams before the one waited for. Random: by the seed. */
enum gpusim_order { GPUSIM_LOWEST, GPUSIM_HIGHEST, GPUSIM_RANDOM, GPUSIM_ORDERS };

/* Also taken from the environment at the start: GPUSIM_ORDER=lowest|highest|random, GPUSIM_SEED=N. */
void gpusim_set_order(enum gpusim_order order, uint64_t seed);

/* The device that is played: its compute capability (80, 86, 90, 100; 80 at first), which bounds dynamic
 * shared memory, and its memory (8 GiB at first). */
void gpusim_set_device(int sm, size_t memory_bytes);

/* Distance between allocations; at least 64 KiB, to be raised to the largest stride of a kernel. */
void gpusim_set_red_zone(size_t bytes);

/* What has run since the start. */
struct gpusim_counts {
    uint64_t launches, blocks, switches, barriers, exchanges;
};
struct gpusim_counts gpusim_counts(void);

/* What was made and not yet given back: allocations, pinned buffers, streams, events, graphs. */
size_t gpusim_in_use(void);

/* Walk all allocations: ends the process when a red zone was written to. */
void gpusim_check(void);

/* Call number `nth` from now (1: the next) of the runtime's function `call`, or of "launch",
 * returns `error` (a cudaError) and does nothing else. NULL: none does. From the environment:
 * GPUSIM_FAIL=call:nth:error. */
void gpusim_fail_call(const char *call, unsigned nth, int error);

/* A failed check prints one line (`gpusim: kernel k, block (0,0,0), thread (1,0,0): ...: file:line`),
 * calls the hook if there is one, and ends the process with this status. */
#define GPUSIM_EXIT_STATUS 86
extern void (*gpusim_fail_hook)(const char *message);

/* Name the kernel, block and thread of a SIGSEGV or SIGBUS. Done at the first use of the device, except
 * under AddressSanitizer; to be called again where a test library has put its own handlers. */
void gpusim_catch_faults(void);

#ifdef __cplusplus
}
#endif
#endif
