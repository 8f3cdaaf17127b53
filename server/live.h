/* live.h: the table of live sequences: those in the engine whose last event was not popped yet.
 *
 * A sequence is known to the engine by a number: generation << 32 | place in the table. Its place is
 * free again once its last event was popped; whoever waits for it may be gone long before. Sized once;
 * loop thread only. */
#ifndef GERYON_LIVE_H
#define GERYON_LIVE_H

#include <stdint.h>

struct exchange;

struct live_place {
    struct exchange *exchange; /* NULL: nobody waits for its events */
    uint32_t choice;           /* index among the choices of the exchange */
};

struct live; /* opaque: live.c */

struct live *live_create(uint32_t cap);   /* NULL: no memory */
void live_destroy(struct live *live);     /* NULL is fine */
uint32_t live_n(const struct live *live); /* NULL: 0 */
uint32_t live_cap(const struct live *live);

/* A new number, never 0, not given again while 2^32 others had its place. One must be free. */
uint64_t live_take(struct live *live, struct exchange *exchange, uint32_t choice, uint64_t now_us);
/* The place of a number that was taken and not freed; NULL when it is none. */
struct live_place *live_find(struct live *live, uint64_t id);
/* The number is not live any more. */
void live_free(struct live *live, uint64_t id);

/* A sequence ended; for live_ms_per_sequence: the time from one end to the next lately, without that
 * before the table was last empty. 0 = none ended since then. */
void live_note_ended(struct live *live, uint64_t now_us);
double live_ms_per_sequence(const struct live *live, uint64_t now_us);

#endif
