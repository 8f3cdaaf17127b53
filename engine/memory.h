/* memory.h: how much memory this process may still use. */
#ifndef GERYON_MEMORY_H
#define GERYON_MEMORY_H

#include <stdint.h>

/* Bytes that the machine has available, the limits of this process's control groups (v1 and v2)
 * respected; 1 where none is left. 0 when nothing can be read. */
uint64_t memory_available(void);

/* The same of the tree below root ("" for this machine; cgroup.h). */
uint64_t memory_available_in(const char *root);

#endif
