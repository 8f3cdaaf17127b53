#include "kernels/cpu/memory.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#include "kernels/base.h"

static const size_t HUGE = (size_t)2 << 20;   /* a huge page */
static const size_t CHUNK = (size_t)32 << 20; /* small pieces share maps of this size */

struct memory_map {
    struct memory_map *next;
    void *at; /* as given by mmap */
    size_t bytes;
};

/* Found once, before threads are pinned: then each would only see the node of its own processor. */
static struct nodes found;
static void find_nodes(void) {
    nodes_find("", &found);
}
static const struct nodes *process_nodes(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_nodes);
    return &found;
}

/* A zeroed map that starts at a multiple of the huge page. */
static struct memory_map *map_new(const struct nodes *nodes, size_t bytes) {
    void *at = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    char *start = (char *)align_up((uintptr_t)at, HUGE);
    madvise(start, bytes, MADV_HUGEPAGE); /* wishes: failing costs speed only */
    if (nodes_count(nodes) > 1) nodes_interleave(nodes, start, bytes);
    struct memory_map *map = (struct memory_map *)(void *)start;
    *map = (struct memory_map){.at = at, .bytes = bytes + HUGE};
    return map;
}

void *memory_take(struct memory *memory, size_t bytes) {
    if (bytes > SIZE_MAX / 4) return NULL;
    bytes = align_up(bytes, MEMORY_ALIGN);
    if (!memory->maps || memory->cap - memory->used < bytes) {
        size_t head = align_up(sizeof(struct memory_map), MEMORY_ALIGN);
        size_t cap = align_up(bytes + head > CHUNK ? bytes + head : CHUNK, HUGE);
        struct memory_map *map = map_new(memory->nodes ? memory->nodes : process_nodes(), cap);
        if (!map) return NULL;
        map->next = memory->maps;
        memory->maps = map;
        memory->used = head;
        memory->cap = cap;
    }
    char *p = (char *)memory->maps + memory->used;
    memory->used += bytes;
    return p;
}

void memory_free(struct memory *memory) {
    for (struct memory_map *map = memory->maps, *next; map; map = next) {
        next = map->next;
        munmap(map->at, map->bytes);
    }
    *memory = (struct memory){0};
}

void *carve(struct carve *c, size_t n, size_t size) {
    size_t bytes;
    if (c->used > SIZE_MAX / 4 || mul_size(n, size, &bytes) != OK || bytes > SIZE_MAX / 4) {
        c->used = SIZE_MAX;
        return NULL;
    }
    void *p = c->base ? c->base + c->used : NULL;
    c->used += align_up(bytes, MEMORY_ALIGN);
    return p;
}
