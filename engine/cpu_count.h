/* cpu_count.h: how many processors this process may use. */
#ifndef GERYON_CPU_COUNT_H
#define GERYON_CPU_COUNT_H

#include <stdint.h>

/* The lesser of the affinity mask and the control groups' processor quota (rounded up); at least 1. */
uint32_t cpu_count(void);

/* The quota alone, of the tree below root ("" for this machine; cgroup.h); 0 = none. */
uint32_t cpu_count_quota_in(const char *root);

/* The quota that a "cpu.max" text stands for ("200000 100000": 2), 0 when there is none ("max") or
 * the text is not understood. */
uint32_t cpu_count_quota(const char *cpu_max);

#endif
