/* emulated.h: for tests that also run, as programs under tests/amx, with the tile unit in software. */
#ifndef GERYON_EMULATED_H
#define GERYON_EMULATED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/amx/tiles.h"

/* True in those programs. */
static inline bool tiles_are_emulated(void) {
    return tiles_in_use != NULL;
}

/* Ends such a program as skipped on a processor without the table that it needs. */
static inline void tiles_or_skip(const struct kernels *needed) {
    if (!tiles_are_emulated() || needed) return;
    printf("1..1\nnot ok 1 - # SKIP this processor lacks AVX-512 F, BW, DQ, VL or VNNI\n");
    exit(0);
}

#endif
