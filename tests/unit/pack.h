/* pack.h: a whole matrix into a table's layout, as loading does it group by group. */
#ifndef GERYON_PACK_H
#define GERYON_PACK_H

#include "kernels/cpu/cpu.h"

/* m->data was zeros, or holds a matrix of the same size. */
static inline void pack_matrix(const struct cpu_ops *ops, const struct matrix *m, const void *src) {
    size_t group_bytes = dtype_row_bytes(m->dtype, (size_t)GROUP * m->cols);
    for (uint32_t g = 0; g * GROUP < m->rows; g++)
        ops->pack_group(m, g, (const char *)src + g * group_bytes);
}

#endif
