/* ring.h: bounded single-producer single-consumer queues between the loop and the engine thread.
 * Messages travel by value as records of any size up to the capacity; a record is contiguous in
 * memory, so the consumer reads it in place. No locks: two positions, published with
 * release/acquire. */
#ifndef GERYON_RING_H
#define GERYON_RING_H

#include <stdbool.h>

#include "kernels/base.h"

struct ring; /* opaque */

/* capacity in bytes, rounded up to a power of two. NULL without memory. */
struct ring *ring_create(size_t capacity);
void ring_destroy(struct ring *ring); /* NULL is fine */

/* Producer: room for one record of `bytes` (8-byte aligned), or NULL when the ring is too full.
 * Fill it, then publish with the bytes really used (<= bytes). */
void *ring_reserve(struct ring *ring, size_t bytes);
void ring_publish(struct ring *ring, size_t bytes);
/* Producer: true when records of `total` bytes in all, in at most n records, surely fit. */
bool ring_has_room(const struct ring *ring, size_t total, size_t n);

/* Consumer: the oldest record, or NULL; it stays valid until ring_pop drops it. */
const void *ring_front(struct ring *ring);
void ring_pop(struct ring *ring);

#endif
