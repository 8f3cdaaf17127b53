/* affinity.h: the processors that threads run on. Failing costs speed only, so nothing here reports
 * it: a processor may have been taken away meanwhile. */
#ifndef GERYON_KERNELS_CPU_AFFINITY_H
#define GERYON_KERNELS_CPU_AFFINITY_H

#include <pthread.h>
#include <stdint.h>

/* Keep a thread on processor number i (modulo how many) of those the process may use. They are looked
 * up at the first call, in the mask of the calling thread. */
void affinity_pin(pthread_t thread, uint32_t i);

/* A thread begins with its maker's mask, which may be one that was pinned: give it all processors of
 * the process again. Without affinity_pin before, nothing. */
void affinity_widen(pthread_t thread);

#endif
