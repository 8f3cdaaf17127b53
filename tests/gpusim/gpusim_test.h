/* gpusim_test.h: what the simulator's tests share: device copies, every order, and children that are
 * expected to die with something to say. */
#ifndef GERYON_GPUSIM_TEST_H
#define GERYON_GPUSIM_TEST_H

extern "C" {
#include "tests/harness.h"
}
#include <cuda_runtime.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/gpu.h"
#include "tests/gpusim/control.h"
#include "tests/gpusim/kernels/kernels.h"

#if defined(__has_feature)
#define TEST_HAS(feature) __has_feature(feature)
#else
#define TEST_HAS(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || TEST_HAS(address_sanitizer)
#define WITH_ASAN 1
#else
#define WITH_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || TEST_HAS(thread_sanitizer)
#define WITH_TSAN 1
#else
#define WITH_TSAN 0
#endif

#define check_cuda(call) assert_string_equal(cudaGetErrorName((cudaError_t)(call)), "cudaSuccess")

/* A device copy of n elements; from may be NULL. */
template <class T> static inline T *device_copy(const T *from, size_t n) {
    T *p;
    check_cuda(cudaMalloc(&p, n * sizeof(T)));
    if (from) check_cuda(cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> static inline void host_copy(T *to, const T *device, size_t n) {
    check_cuda(cudaMemcpy(to, device, n * sizeof(T), cudaMemcpyDeviceToHost));
}

/* The orders a test runs in: lowest, highest, and random by four seeds. A device has its own. */
enum { N_ORDERS = 6 };
static inline void use_order(int i, uint64_t seed) {
#ifdef GERYON_GPUSIM
    gpusim_set_order(i < 2 ? (enum gpusim_order)i : GPUSIM_RANDOM, seed + (uint64_t)i);
#else
    (void)i;
    (void)seed;
#endif
}

#ifdef GERYON_GPUSIM
/* Run act(argument) in a child; what it has said to stderr, static storage. dead: it ended with a
 * status other than 0. */
static inline const char *said_by_child(void (*act)(int), int argument, bool *dead) {
    static char said[1 << 16];
    int ends[2], status;
    size_t n = 0;
    ssize_t got;
    fflush(NULL);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
            signal(number, SIG_DFL); /* cmocka would take them for its own */
        gpusim_catch_faults();
        act(argument);
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], said + n, sizeof said - 1 - n)) > 0)
        n += (size_t)got;
    close(ends[0]);
    said[n] = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    *dead = status != 0;
    return said;
}
/* The child dies and says each of the words. */
static inline void expect_death(void (*act)(int), int argument, const char *word,
                                const char *other = "") {
    bool dead;
    const char *said = said_by_child(act, argument, &dead);
    if (!dead || !strstr(said, word) || !strstr(said, other))
        fail_msg("case %d: %s, wanted \"%s\" and \"%s\", said: %.1500s", argument,
                 dead ? "died" : "lived", word, other, said);
}
static inline void expect_life(void (*act)(int), int argument) {
    bool dead;
    const char *said = said_by_child(act, argument, &dead);
    if (dead) fail_msg("case %d died: %.1500s", argument, said);
}
#endif

#endif
