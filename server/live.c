#include "server/live.h"

#include <stdbool.h>
#include <stdlib.h>

#include "kernels/base.h"
#include "server/clock.h"

enum { DRAIN_SAMPLES = 32, NO_PLACE = -1 };

struct slot {
    struct live_place place;
    uint32_t generation;
    int32_t next_free;
    bool used;
};

struct live {
    uint32_t n, cap;
    int32_t free_head;
    uint64_t busy_since_us;           /* when the table was empty for the last time */
    uint64_t ended_us[DRAIN_SAMPLES]; /* when sequences ended lately, */
    uint32_t n_ended;                 /* how many since then */
    struct slot slots[];
};

struct live *live_create(uint32_t cap) {
    ASSERT(cap <= INT32_MAX);
    struct live *live = calloc(1, sizeof *live + (size_t)cap * sizeof live->slots[0]);
    if (!live) return NULL;
    live->cap = cap;
    live->free_head = cap ? 0 : NO_PLACE;
    for (uint32_t i = 0; i < cap; i++)
        live->slots[i].next_free = i + 1 < cap ? (int32_t)(i + 1) : NO_PLACE;
    return live;
}

void live_destroy(struct live *live) {
    free(live);
}

uint32_t live_n(const struct live *live) {
    return live ? live->n : 0;
}

uint32_t live_cap(const struct live *live) {
    return live->cap;
}

uint64_t live_take(struct live *live, struct exchange *exchange, uint32_t choice, uint64_t now_us) {
    ASSERT(live->free_head != NO_PLACE);
    if (!live->n) { /* what was idle time says nothing of the pace */
        live->busy_since_us = now_us;
        live->n_ended = 0;
    }
    uint32_t i = (uint32_t)live->free_head;
    struct slot *slot = &live->slots[i];
    ASSERT(!slot->used);
    live->free_head = slot->next_free;
    live->n++;
    slot->place = (struct live_place){.exchange = exchange, .choice = choice};
    slot->used = true;
    if (!++slot->generation) slot->generation = 1;
    return (uint64_t)slot->generation << 32 | i;
}

static struct slot *find(struct live *live, uint64_t id) {
    uint32_t i = (uint32_t)id;
    if (i >= live->cap) return NULL;
    struct slot *slot = &live->slots[i];
    return slot->used && slot->generation == id >> 32 ? slot : NULL;
}

struct live_place *live_find(struct live *live, uint64_t id) {
    struct slot *slot = find(live, id);
    return slot ? &slot->place : NULL;
}

void live_free(struct live *live, uint64_t id) {
    struct slot *slot = find(live, id);
    ASSERT(slot);
    slot->used = false;
    slot->place.exchange = NULL;
    slot->next_free = live->free_head;
    live->free_head = (int32_t)(slot - live->slots);
    live->n--;
}

void live_note_ended(struct live *live, uint64_t now_us) {
    live->ended_us[live->n_ended++ % DRAIN_SAMPLES] = now_us;
}

double live_ms_per_sequence(const struct live *live, uint64_t now_us) {
    if (!live->n_ended) return 0;
    if (live->n_ended < DRAIN_SAMPLES) return clock_ms(live->busy_since_us, now_us) / live->n_ended;
    return clock_ms(live->ended_us[live->n_ended % DRAIN_SAMPLES], now_us) / DRAIN_SAMPLES;
}
