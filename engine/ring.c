/* Layout: records of a size word (8 bytes) and their body, rounded up to 8. A record never wraps:
 * where it would, a size word of WRAP fills the rest and the record starts at offset 0.
 *
 *   | 24 body... | 16 body | ...free... | 40 body......... | WRAP      |
 *   0                       tail & mask  head & mask
 *
 * head and tail count bytes for ever; each is written by one side only. */
#include "engine/ring.h"

#include <stdatomic.h>
#include <stdlib.h>

#define WRAP UINT64_MAX
#define WORD sizeof(uint64_t)

struct ring {
    char *data;
    size_t capacity, mask;
    size_t reserved_at;                /* producer: where the reserved record's size word goes */
    _Alignas(128) _Atomic size_t head; /* consumer's position */
    _Alignas(128) _Atomic size_t tail; /* producer's position */
};

struct ring *ring_create(size_t capacity) {
    size_t size = 1024;
    while (size < capacity)
        size *= 2;
    struct ring *ring = aligned_alloc(128, align_up(sizeof *ring, 128));
    if (!ring) return NULL;
    *ring = (struct ring){.capacity = size, .mask = size - 1};
    ring->data = aligned_alloc(64, size);
    if (!ring->data) {
        free(ring);
        return NULL;
    }
    return ring;
}

void ring_destroy(struct ring *ring) {
    if (!ring) return;
    free(ring->data);
    free(ring);
}

static size_t free_bytes(const struct ring *ring) {
    size_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    return ring->capacity - (tail - head);
}

void *ring_reserve(struct ring *ring, size_t bytes) {
    size_t need = WORD + align_up(bytes, WORD);
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    size_t at = tail & ring->mask, to_end = ring->capacity - at;
    size_t room = free_bytes(ring);
    if (need > to_end) {
        if (room < to_end + need) return NULL;
        *(uint64_t *)(void *)(ring->data + at) = WRAP;
        tail += to_end;
        at = 0;
    } else if (room < need) {
        return NULL;
    }
    ring->reserved_at = tail;
    return ring->data + at + WORD;
}

void ring_publish(struct ring *ring, size_t bytes) {
    size_t at = ring->reserved_at & ring->mask;
    *(uint64_t *)(void *)(ring->data + at) = bytes;
    size_t tail = ring->reserved_at + WORD + align_up(bytes, WORD);
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
}

bool ring_has_room(const struct ring *ring, size_t total, size_t n) {
    /* Rounding costs up to 7 bytes and a size word a record; wrapping up to one largest record. */
    size_t need = total + n * 2 * WORD;
    return free_bytes(ring) >= 2 * need + WORD;
}

const void *ring_front(struct ring *ring) {
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == tail) return NULL;
    size_t at = head & ring->mask;
    if (*(uint64_t *)(void *)(ring->data + at) == WRAP) {
        head += ring->capacity - at;
        atomic_store_explicit(&ring->head, head, memory_order_release);
        ASSERT(head != tail);
        at = 0;
    }
    return ring->data + at + WORD;
}

void ring_pop(struct ring *ring) {
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    size_t at = head & ring->mask;
    uint64_t bytes = *(uint64_t *)(void *)(ring->data + at);
    ASSERT(bytes != WRAP);
    atomic_store_explicit(&ring->head, head + WORD + align_up(bytes, WORD), memory_order_release);
}
