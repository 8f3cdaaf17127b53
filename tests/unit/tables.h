/* tables.h: the kernel tables that a test walks over. Programs under tests/sim are the same tests
 * linked with the CUDA backend; they run that table alone, since the CPU's have their turn elsewhere.
 * Those under tests/amx have the tile unit in software, and run the amx table beside ref: of the tests
 * those alone that reach the unit. */
#ifndef GERYON_TABLES_H
#define GERYON_TABLES_H

#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/amx/emulated.h"
#include "tests/unit/cuda_peek.h"

enum { TABLES_MAX = 4 };
static const struct kernels *tables[TABLES_MAX]; /* ref, then the fast ones; or cuda */
static uint32_t n_tables;

/* True in programs that test the CUDA table. */
static inline bool tables_are_cuda(void) {
    return cuda_peek_bytes != NULL;
}

static inline void tables_find(void) {
    struct err err = {0};
    n_tables = 0;
    tiles_or_skip(kernels_amx());
    if (tables_are_cuda()) {
        tables[n_tables++] = kernels_cuda(&err);
        if (tables[0]) return;
        fprintf(stderr, "%s\n", err.msg);
        exit(1); /* in place of a run without a test */
    }
    tables[n_tables++] = kernels_ref();
    if (kernels_avx2() && !tiles_are_emulated()) tables[n_tables++] = kernels_avx2();
    if (kernels_avx512() && !tiles_are_emulated()) tables[n_tables++] = kernels_avx512();
    if (kernels_amx()) tables[n_tables++] = kernels_amx();
}

#endif
