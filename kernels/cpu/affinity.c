#include "kernels/cpu/affinity.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

/* Sets that hold every processor of the largest machines: one cpu_set_t has room for 1024. */
enum { SETS = 64, CPUS_MAX = SETS * CPU_SETSIZE };

static struct {
    cpu_set_t set[SETS]; /* those of the process */
    uint32_t n;          /* 0: they could not be had */
} whole;
static pthread_once_t looked_up = PTHREAD_ONCE_INIT;
static _Atomic bool any_pinned;

static void look_up(void) {
    if (sched_getaffinity(0, sizeof whole.set, whole.set) == 0)
        whole.n = (uint32_t)CPU_COUNT_S(sizeof whole.set, whole.set);
}

/* Processor i of the set. */
static int cpu_at(uint32_t i) {
    for (int cpu = 0; cpu < CPUS_MAX; cpu++)
        if (CPU_ISSET_S((size_t)cpu, sizeof whole.set, whole.set) && i-- == 0) return cpu;
    return 0;
}

/* Called from a forward as well: no allocation. */
void affinity_pin(pthread_t thread, uint32_t i) {
    pthread_once(&looked_up, look_up);
    if (whole.n == 0) return;
    cpu_set_t one[SETS];
    memset(one, 0, sizeof one);
    CPU_SET_S((size_t)cpu_at(i % whole.n), sizeof one, one);
    pthread_setaffinity_np(thread, sizeof one, one);
    atomic_store(&any_pinned, true);
}

void affinity_widen(pthread_t thread) {
    if (atomic_load(&any_pinned)) pthread_setaffinity_np(thread, sizeof whole.set, whole.set);
}
