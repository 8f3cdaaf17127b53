/* pool.h: the worker threads of a CPU device. One thread at a time (the owner: that which loads, later
 * that which computes) hands out a phase of tasks and takes part in it. Each thread has a share of tasks
 * that are neighbours, and when it is through, takes half of what another has left; then it spins for
 * some microseconds and parks in the kernel, so that an idle server costs nothing. */
#ifndef GERYON_KERNELS_CPU_POOL_H
#define GERYON_KERNELS_CPU_POOL_H

#include <stdint.h>

#include "kernels/base.h"

enum { POOL_THREADS_MAX = 256 };

struct pool; /* opaque: fields live in pool.c */

/* A task: its number, and the number of the thread that runs it (0 = the owner), which names the
 * scratch memory it may use. */
typedef void (*pool_fn)(void *arg, uint32_t task, uint32_t thread);

/* n_threads includes the caller: 1 makes no thread. ERR_INVALID, ERR_NOMEM, or ERR_IO when the
 * system gives no more threads. */
int pool_create(uint32_t n_threads, struct pool **out, struct err *err);
/* Stops and joins the workers; NULL is fine. */
void pool_destroy(struct pool *pool);

/* Keep worker i on processor i of those the process may use, and each thread that calls pool_run from
 * then on, processor 0. Not before loading is done: threads that read weights are made by the one that
 * loads, and a thread begins where its maker was put. Threads that are not pinned can be moved by the
 * system, which is the better choice wherever something else runs. */
void pool_pin(struct pool *pool);

uint32_t pool_threads(const struct pool *pool);

/* Of a clock that never goes back. */
uint64_t pool_clock_ns(void);

/* Call fn(arg, t, thread) once for each t in 0 .. n_tasks - 1 and return when all have returned. What the
 * tasks wrote is then visible to the caller. A thread goes through its share, and what it takes over, in
 * ascending order: tasks that read memory one after the other should be numbered so. Owner only; not from
 * a task. */
void pool_run(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks);
/* The same for tasks that may differ much in size. Elsewhere a worker that keeps the owner waiting for
 * milliseconds, and many times longer than the owner itself computed, has lost its core to somebody, and
 * one worker less takes part in what follows, for 10 to 160 ms. */
void pool_run_unlike(struct pool *pool, pool_fn fn, void *arg, uint32_t n_tasks);

#endif
