#include "tests/scripted/state.h"

#include <stdlib.h>
#include <string.h>

struct cell {
    int64_t pos; /* -1: nothing */
    int32_t token;
};

struct saved {
    int64_t pos; /* -1: never saved */
    int32_t tokens[STATE_TOKENS];
};

struct state {
    uint32_t n_slots, n_snapshots, n_ring;
    struct cell *rings; /* [n_slots][n_ring] */
    struct saved *saved;
};

struct state *state_create(uint32_t n_slots, uint32_t n_snapshots, uint32_t max_proposed) {
    struct state *state = calloc(1, sizeof *state);
    if (!state) return NULL;
    state->n_slots = n_slots;
    state->n_snapshots = n_snapshots;
    state->n_ring = STATE_TOKENS + PAGE_TOKENS + max_proposed;
    state->rings = calloc((size_t)n_slots * state->n_ring, sizeof *state->rings);
    state->saved = calloc(n_snapshots + (size_t)1, sizeof *state->saved);
    if (!state->rings || !state->saved) {
        state_destroy(state);
        return NULL;
    }
    for (uint32_t slot = 0; slot < n_slots; slot++)
        state_reset(state, slot);
    for (uint32_t i = 0; i < n_snapshots; i++)
        state->saved[i].pos = -1;
    return state;
}

void state_destroy(struct state *state) {
    if (!state) return;
    free(state->rings);
    free(state->saved);
    free(state);
}

static struct cell *cell_of(const struct state *state, uint32_t slot, uint32_t pos) {
    ASSERT(slot < state->n_slots);
    return &state->rings[(size_t)slot * state->n_ring + pos % state->n_ring];
}

void state_reset(struct state *state, uint32_t slot) {
    for (uint32_t i = 0; i < state->n_ring; i++)
        cell_of(state, slot, i)->pos = -1;
}

void state_expect(const struct state *state, uint32_t slot, uint32_t pos,
                  int32_t (*history)(void *arg, uint32_t pos), void *arg) {
    for (uint32_t delta = 1; delta <= STATE_TOKENS && delta <= pos; delta++) {
        const struct cell *cell = cell_of(state, slot, pos - delta);
        ASSERT(cell->pos == pos - delta);
        ASSERT(cell->token == history(arg, pos - delta));
    }
}

void state_push(struct state *state, uint32_t slot, uint32_t pos, int32_t token) {
    *cell_of(state, slot, pos) = (struct cell){pos, token};
}

void state_save(struct state *state, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    ASSERT(snapshot < state->n_snapshots);
    struct saved *saved = &state->saved[snapshot];
    saved->pos = pos;
    for (uint32_t delta = 1; delta <= STATE_TOKENS && delta <= pos; delta++) {
        const struct cell *cell = cell_of(state, slot, pos - delta);
        ASSERT(cell->pos == pos - delta);
        saved->tokens[delta - 1] = cell->token;
    }
}

void state_load(struct state *state, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    ASSERT(snapshot < state->n_snapshots);
    const struct saved *saved = &state->saved[snapshot];
    ASSERT(saved->pos == pos);
    state_reset(state, slot);
    for (uint32_t delta = 1; delta <= STATE_TOKENS && delta <= pos; delta++)
        *cell_of(state, slot, pos - delta) = (struct cell){pos - delta, saved->tokens[delta - 1]};
}

void state_copy(struct state *state, uint32_t from_slot, uint32_t to_slot) {
    ASSERT(from_slot != to_slot);
    memcpy(cell_of(state, to_slot, 0), cell_of(state, from_slot, 0),
           state->n_ring * sizeof *state->rings);
}
