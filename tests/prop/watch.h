/* watch.h: a kernel table around another one, for tests of the whole engine on real arithmetic. It
 * reports the bits of every logit row that decided a token, and it can plant a bug, so that a test
 * shows what it would catch. One watch is at work at a time; the thread that runs steps calls it. */
#ifndef GERYON_WATCH_H
#define GERYON_WATCH_H

#include "engine/engine_internal.h"
#include "engine/load/model_internal.h"

enum plant {
    PLANT_NONE,
    PLANT_COMPANY, /* one logit moves by one unit in the last place when two texts share a step */
    PLANT_CHUNK,   /* so does one activation of a prompt's later chunk */
    PLANT_UNCUT,   /* after a refusal the refused token's KV stays: rows stand one late */
    PLANT_KEEPS_REFUSED, /* the refused proposal is emitted */
    PLANT_SEED_OF_SLOT,  /* draws depend on the slot a text happens to get */
    PLANT_PAGE_COPY,     /* a page that two texts part at is not copied */
    PLANT_STATE_LOAD,    /* what a text keeps beyond its KV is restored from another's snapshot */
    N_PLANTS
};
extern const char *const plant_names[N_PLANTS];

/* Called when a step has decided output position out_pos of the sequence in `slot`: a hash over the
 * bits of the target logits there. */
typedef void (*watch_seen)(void *arg, uint32_t slot, uint32_t out_pos, uint64_t hash);

/* The table, always the same one: models loaded with it follow the latest call, so `real` must stay
 * while any of them lives. seen may be NULL. */
const struct kernels *watch_kernels(const struct kernels *real, enum plant plant, watch_seen seen,
                                    void *arg);
/* How often the planted bug bit since watch_kernels. */
uint64_t watch_bites(void);

uint64_t watch_hash(const float *logits, uint32_t n);

#endif
