/* memory.h: anonymous memory for weights, KV pages and workspace: zeroed, aligned to 64 bytes, in
 * large maps that the system may back with huge pages, on machines with several memory nodes spread
 * over them. Given back all at once. */
#ifndef GERYON_KERNELS_CPU_MEMORY_H
#define GERYON_KERNELS_CPU_MEMORY_H

#include "kernels/cpu/nodes.h"

enum { MEMORY_ALIGN = 64 };

struct memory {                /* begins as zeros */
    const struct nodes *nodes; /* to spread over when there is more than one; NULL: the process's */
    struct memory_map *maps;
    size_t used, cap; /* within the newest map, behind its header */
};

/* bytes of zeroed memory, or NULL. Lives until memory_free. */
void *memory_take(struct memory *memory, size_t bytes);
void memory_free(struct memory *memory);

/* Carving a block that is first measured and then cut: with base NULL, carve only counts. `used`
 * saturates at SIZE_MAX when the sizes overflow. */
struct carve {
    char *base;
    size_t used;
};
void *carve(struct carve *c, size_t n, size_t size);

#endif
