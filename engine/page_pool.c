/* free_list is a stack: free_list[0 .. n_free) are the free pages, the next one taken on top.
 * refs[p] counts the references of page p; 0 exactly for the pages on the stack. */
#include "engine/page_pool.h"

#include <stdlib.h>
#include <string.h>

struct page_pool {
    uint32_t n_pages, n_free;
    uint32_t *free_list;
    uint32_t *refs;
    uint32_t *tally; /* page_pool_check: references found in block tables */
};

struct page_pool *page_pool_create(uint32_t n_pages) {
    struct page_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->n_pages = pool->n_free = n_pages;
    pool->free_list = calloc(n_pages, sizeof *pool->free_list);
    pool->refs = calloc(n_pages, sizeof *pool->refs);
    pool->tally = calloc(n_pages, sizeof *pool->tally);
    if (!pool->free_list || !pool->refs || !pool->tally) {
        page_pool_destroy(pool);
        return NULL;
    }
    for (uint32_t i = 0; i < n_pages; i++)
        pool->free_list[i] = n_pages - 1 - i;
    return pool;
}

void page_pool_destroy(struct page_pool *pool) {
    if (!pool) return;
    free(pool->free_list);
    free(pool->refs);
    free(pool->tally);
    free(pool);
}

int page_pool_acquire(struct page_pool *pool, uint32_t n, uint32_t *out) {
    if (n > pool->n_free) return ERR_FULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = pool->free_list[--pool->n_free];
        ASSERT(pool->refs[page] == 0);
        pool->refs[page] = 1;
        out[i] = page;
    }
    return OK;
}

void page_pool_retain(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && pool->refs[page] > 0);
    pool->refs[page]++;
}

void page_pool_release(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && pool->refs[page] > 0);
    if (--pool->refs[page] == 0) {
        ASSERT(pool->n_free < pool->n_pages);
        pool->free_list[pool->n_free++] = page;
    }
}

uint32_t page_pool_n_pages(const struct page_pool *pool) {
    return pool->n_pages;
}

uint32_t page_pool_n_free(const struct page_pool *pool) {
    return pool->n_free;
}

void page_pool_check_begin(struct page_pool *pool) {
    memset(pool->tally, 0, pool->n_pages * sizeof *pool->tally);
}

void page_pool_check_count(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(pages[i] < pool->n_pages);
        pool->tally[pages[i]]++;
    }
}

void page_pool_check_end(struct page_pool *pool) {
    uint32_t n_held = 0;
    for (uint32_t p = 0; p < pool->n_pages; p++) {
        ASSERT(pool->tally[p] == pool->refs[p]);
        n_held += pool->refs[p] > 0;
    }
    ASSERT(n_held + pool->n_free == pool->n_pages);
    for (uint32_t i = 0; i < pool->n_free; i++)
        ASSERT(pool->refs[pool->free_list[i]] == 0);
}
