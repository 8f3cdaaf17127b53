/* state.h: what a scripted model with `"state": true` keeps beyond its KV, as an MSAR model keeps its
 * source vectors: the last STATE_TOKENS tokens of a slot, in a ring indexed by position, and
 * snapshots of them. Every base row asserts that it finds exactly the tokens before it. */
#ifndef GERYON_SCRIPTED_STATE_H
#define GERYON_SCRIPTED_STATE_H

#include "kernels/kernels.h"

enum { STATE_TOKENS = 11, SNAPSHOT_BYTES = 4096 };

struct state; /* opaque */

/* NULL without memory. */
struct state *state_create(uint32_t n_slots, uint32_t n_snapshots, uint32_t max_proposed);
void state_destroy(struct state *state); /* NULL is fine */

/* A new sequence in the slot: nothing is known. */
void state_reset(struct state *state, uint32_t slot);
/* The row at pos runs, or is about to be run by a draft block: history(arg, p) is the token at p. */
void state_expect(const struct state *state, uint32_t slot, uint32_t pos,
                  int32_t (*history)(void *arg, uint32_t pos), void *arg);
/* The row at pos ran. */
void state_push(struct state *state, uint32_t slot, uint32_t pos, int32_t token);

void state_save(struct state *state, uint32_t slot, uint32_t pos, uint32_t snapshot);
void state_load(struct state *state, uint32_t slot, uint32_t pos, uint32_t snapshot);
void state_copy(struct state *state, uint32_t from_slot, uint32_t to_slot);

#endif
