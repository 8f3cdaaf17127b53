#include <stdlib.h>
#include <string.h>

#include "engine/request.h"

/* An arena is a list of chunks, newest first; allocations bump through the newest.
 *
 *   arena -> chunk [head | used ... | free ]  ->  chunk [head | used ... full]  -> NULL
 *
 * An allocation that does not fit starts a chunk; the old chunk's rest is lost (chunks double, so
 * at most half). Chunks come from calloc, so memory is zero without touching it twice. */
enum {
    ARENA_ALIGN = 16,
    ARENA_CHUNK_MIN = 4096,
    ARENA_CHUNK_MAX = 1 << 20, /* larger requests get a chunk of their own size */
};

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    size_t pad; /* data starts 16-byte aligned */
};

_Static_assert(sizeof(struct arena_chunk) % ARENA_ALIGN == 0, "chunk data must stay aligned");

struct arena {
    struct arena_chunk *chunks;
    size_t limit, used; /* used: bytes handed out, rounding included; never above limit */
    size_t next_cap;
};

struct arena *arena_create(size_t limit) {
    struct arena *arena = calloc(1, sizeof *arena);
    if (!arena) return NULL;
    arena->limit = limit;
    arena->next_cap = ARENA_CHUNK_MIN;
    return arena;
}

void arena_destroy(struct arena *arena) {
    if (!arena) return;
    struct arena_chunk *chunk = arena->chunks;
    while (chunk) {
        struct arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    free(arena);
}

static struct arena_chunk *add_chunk(struct arena *arena, size_t bytes) {
    size_t cap = bytes > arena->next_cap ? bytes : arena->next_cap;
    if (cap > SIZE_MAX - sizeof(struct arena_chunk)) return NULL;
    struct arena_chunk *chunk = calloc(1, sizeof *chunk + cap);
    if (!chunk) return NULL;
    chunk->cap = cap;
    /* A large request must not hide the room left in a young chunk. */
    struct arena_chunk *top = arena->chunks;
    if (top && bytes > arena->next_cap / 2 && top->cap - top->used > ARENA_CHUNK_MIN) {
        chunk->next = top->next;
        top->next = chunk;
    } else {
        chunk->next = top;
        arena->chunks = chunk;
        if (arena->next_cap < ARENA_CHUNK_MAX) arena->next_cap *= 2;
    }
    return chunk;
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - ARENA_ALIGN) return NULL;
    size_t room = align_up(bytes ? bytes : 1, ARENA_ALIGN);
    if (room > arena->limit - arena->used) return NULL;
    struct arena_chunk *chunk = arena->chunks;
    if (!chunk || chunk->cap - chunk->used < room) {
        chunk = add_chunk(arena, room);
        if (!chunk) return NULL;
    }
    void *p = (char *)(chunk + 1) + chunk->used;
    chunk->used += room;
    arena->used += room;
    return p;
}

char *arena_strndup(struct arena *arena, const char *text, size_t len) {
    if (len == SIZE_MAX) return NULL;
    char *copy = arena_alloc(arena, len + 1);
    if (copy && len) memcpy(copy, text, len);
    return copy; /* zeroed, so the NUL is there */
}

size_t arena_used(const struct arena *arena) {
    return arena->used;
}

const struct value *value_get(const struct value *v, const char *key) {
    if (!v || v->kind != VALUE_OBJECT) return NULL;
    size_t len = strlen(key);
    for (size_t i = 0; i < v->n_items; i++)
        if (v->keys[i].len == len && memcmp(v->keys[i].text, key, len) == 0) return &v->items[i];
    return NULL;
}

void sampling_defaults(struct sampling *sampling) {
    memset(sampling, 0, sizeof *sampling);
    sampling->temperature = 1;
    sampling->top_p = 1;
    sampling->repetition_penalty = 1;
    sampling->skip_special_tokens = true;
}
