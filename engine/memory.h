/* memory.h: how much memory this process may still use. */
#ifndef GERYON_MEMORY_H
#define GERYON_MEMORY_H

#include <stdint.h>

/* Bytes that the machine has available, the limits of this process's control groups (v1 and v2)
 * respected. 0 when nothing can be read. */
uint64_t memory_available(void);

#endif
