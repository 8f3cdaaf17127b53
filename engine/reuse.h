/* reuse.h: what a sequence takes over in place of computing it, and what it leaves for others: pages
 * through the prefix cache, the prompt of another choice of its group, and the state beyond the KV
 * that goes with either. Engine thread only. */
#ifndef GERYON_REUSE_H
#define GERYON_REUSE_H

#include "engine/prefix_cache.h"
#include "engine/sequence.h"

struct reuse {
    struct page_pool *pool;
    struct prefix_cache *cache; /* NULL: nothing is kept */
    const struct kernels *kernels;
    struct device *device;
    bool has_state; /* the model has state beyond its KV */
    uint32_t
        state_reach; /* a slot's state can be had at positions >= (last one ever run) + 1 - this */
};

/* Where a sequence can start: at position n_kv, with n_pages pages that exist already. */
struct start {
    uint32_t n_kv, n_pages;
    struct sequence *from; /* the choice whose prompt it shares, or NULL: pages of the index, which
                              stand in the sequence's own table, not yet held */
    uint32_t snapshot;     /* of the index; SNAPSHOT_NONE: no state is needed there */
    bool looked_up;
};

/* The best start for a waiting sequence. `from`: a running choice of its group that
 * reuse_can_share, or NULL. */
struct start reuse_find(const struct reuse *reuse, struct sequence *seq, struct sequence *from);
/* Whether `from` has the whole prompt of seq computed, and the state at its end at hand. */
bool reuse_can_share(const struct reuse *reuse, const struct sequence *seq,
                     const struct sequence *from);
/* Pages that must come from the pool for seq to start there with all its known tokens covered. */
uint32_t reuse_n_needed(const struct reuse *reuse, const struct sequence *seq,
                        const struct start *start);
/* Take the start: seq has its slot, nothing else; afterwards its block table covers its known
 * tokens. The pool must hold reuse_n_needed pages. */
void reuse_take(const struct reuse *reuse, struct sequence *seq, const struct start *start);

/* seq->n_kv positions are committed: full pages among them become findable. A page that another
 * sequence computed before is taken in place of the own one (equal bits: row invariance). */
void reuse_commit(const struct reuse *reuse, struct sequence *seq);
/* seq leaves its slot: every page goes back, the last one first. keep: what is committed stays
 * findable; else what only this sequence has is forgotten (it failed, so its pages may hold
 * anything). */
void reuse_leave(const struct reuse *reuse, struct sequence *seq, bool keep);

#endif
