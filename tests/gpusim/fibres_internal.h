/* fibres_internal.h: a thread of a block, for fibres.cpp and warp.cpp. */
#ifndef GERYON_GPUSIM_FIBRES_INTERNAL_H
#define GERYON_GPUSIM_FIBRES_INTERNAL_H

#include <gpusim.h>
#include <ucontext.h>

#include "tests/gpusim/gpusim_internal.h"

enum fibre_state { READY, AT_BARRIER, AT_EXCHANGE, DONE };
enum { COPIES_MAX = 256 }; /* cp.async of one thread in flight */

/* A copy that is issued and not yet waited for. */
struct pending_copy {
    void *shared;
    const void *global;
    bool ok;
    int group;
};

struct fibre : gs_thread {
    enum fibre_state state;
    const char *op; /* what it waits at, with its line and mask */
    gs_site at;
    unsigned mask;
    int stage_bytes;
    alignas(16) unsigned char stage[GS_VALUE_BYTES];
    gs_record *record; /* of its last exchange */
    struct pending_copy copies[COPIES_MAX];
    int n_copies, n_groups; /* groups committed */
    int n_warp_syncs;

    char *stack;
    size_t stack_bytes;
    void *sp, *fake_stack, *tsan;
    ucontext_t *context;
};
struct fibre *gs_current(void);

#endif
