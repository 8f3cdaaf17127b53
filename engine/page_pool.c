/* free_list is a stack: free_list[0 .. n_free) are the free pages, the next one taken on top.
 * The cached pages form a list through older/newer, oldest first:
 *
 *   oldest -> [p] newer-> [q] newer-> [r] <- newest        [r] older-> [q] older-> [p]
 *
 * refs[p] counts the references of page p; 0 exactly for the pages on the stack and in the list. */
#include "engine/page_pool.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct page_pool {
    uint32_t n_pages, n_free, n_cached;
    uint64_t n_evicted;
    uint32_t *free_list;
    uint32_t *refs;
    bool *kept;
    uint32_t *older, *newer; /* cached pages' neighbours, NONE at the ends */
    uint32_t oldest, newest;
    void (*evicted)(void *arg, uint32_t page);
    void *evicted_arg;
    uint32_t *tally; /* page_pool_check: references found in block tables */
};

struct page_pool *page_pool_create(uint32_t n_pages) {
    struct page_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pool->n_pages = pool->n_free = n_pages;
    pool->oldest = pool->newest = NONE;
    pool->free_list = calloc(n_pages, sizeof *pool->free_list);
    pool->refs = calloc(n_pages, sizeof *pool->refs);
    pool->kept = calloc(n_pages, sizeof *pool->kept);
    pool->older = calloc(n_pages, sizeof *pool->older);
    pool->newer = calloc(n_pages, sizeof *pool->newer);
    pool->tally = calloc(n_pages, sizeof *pool->tally);
    if (!pool->free_list || !pool->refs || !pool->kept || !pool->older || !pool->newer ||
        !pool->tally) {
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
    free(pool->kept);
    free(pool->older);
    free(pool->newer);
    free(pool->tally);
    free(pool);
}

void page_pool_on_evict(struct page_pool *pool, void (*evicted)(void *arg, uint32_t page),
                        void *arg) {
    pool->evicted = evicted;
    pool->evicted_arg = arg;
}

/* ---- the list of cached pages ------------------------------------------------------------------ */

static void link_newest(struct page_pool *pool, uint32_t page) {
    pool->older[page] = pool->newest;
    pool->newer[page] = NONE;
    *(pool->newest == NONE ? &pool->oldest : &pool->newer[pool->newest]) = page;
    pool->newest = page;
    pool->n_cached++;
}

static void unlink_cached(struct page_pool *pool, uint32_t page) {
    uint32_t older = pool->older[page], newer = pool->newer[page];
    *(older == NONE ? &pool->oldest : &pool->newer[older]) = newer;
    *(newer == NONE ? &pool->newest : &pool->older[newer]) = older;
    pool->n_cached--;
}

static void push_free(struct page_pool *pool, uint32_t page) {
    ASSERT(pool->n_free < pool->n_pages);
    pool->free_list[pool->n_free++] = page;
}

static uint32_t evict(struct page_pool *pool) {
    uint32_t page = pool->oldest;
    ASSERT(page != NONE && pool->kept[page]);
    unlink_cached(pool, page);
    pool->kept[page] = false;
    pool->n_evicted++;
    if (pool->evicted) pool->evicted(pool->evicted_arg, page);
    return page;
}

/* ---- references -------------------------------------------------------------------------------- */

int page_pool_acquire(struct page_pool *pool, uint32_t n, uint32_t *out) {
    if (n > pool->n_free + pool->n_cached) return ERR_FULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = pool->n_free ? pool->free_list[--pool->n_free] : evict(pool);
        ASSERT(pool->refs[page] == 0);
        pool->refs[page] = 1;
        out[i] = page;
    }
    return OK;
}

void page_pool_retain(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && (pool->refs[page] > 0 || pool->kept[page]));
    if (pool->refs[page]++ == 0) unlink_cached(pool, page);
}

void page_pool_release(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && pool->refs[page] > 0);
    if (--pool->refs[page] > 0) return;
    if (pool->kept[page])
        link_newest(pool, page);
    else
        push_free(pool, page);
}

void page_pool_keep(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && pool->refs[page] > 0);
    ASSERT(!pool->kept[page]);
    pool->kept[page] = true;
}

void page_pool_unkeep(struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages && pool->kept[page]);
    pool->kept[page] = false;
    if (pool->refs[page] > 0) return;
    unlink_cached(pool, page);
    push_free(pool, page);
}

/* ---- looking ----------------------------------------------------------------------------------- */

uint32_t page_pool_n_pages(const struct page_pool *pool) {
    return pool->n_pages;
}

uint32_t page_pool_n_free(const struct page_pool *pool) {
    return pool->n_free + pool->n_cached;
}

uint32_t page_pool_n_cached(const struct page_pool *pool) {
    return pool->n_cached;
}

uint64_t page_pool_n_evicted(const struct page_pool *pool) {
    return pool->n_evicted;
}

uint32_t page_pool_refs(const struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages);
    return pool->refs[page];
}

bool page_pool_is_kept(const struct page_pool *pool, uint32_t page) {
    ASSERT(page < pool->n_pages);
    return pool->kept[page];
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
    uint32_t n_held = 0, n_cached = 0;
    for (uint32_t p = 0; p < pool->n_pages; p++) {
        ASSERT(pool->tally[p] == pool->refs[p]);
        n_held += pool->refs[p] > 0;
    }
    ASSERT(n_held + pool->n_cached + pool->n_free == pool->n_pages);
    for (uint32_t i = 0; i < pool->n_free; i++) {
        ASSERT(pool->refs[pool->free_list[i]] == 0);
        ASSERT(!pool->kept[pool->free_list[i]]);
    }
    for (uint32_t p = pool->oldest, before = NONE; p != NONE; before = p, p = pool->newer[p]) {
        n_cached++;
        ASSERT(n_cached <= pool->n_cached); /* no ring */
        ASSERT(pool->refs[p] == 0);
        ASSERT(pool->kept[p]);
        ASSERT(pool->older[p] == before);
        ASSERT(pool->newer[p] != NONE || pool->newest == p);
    }
    ASSERT(n_cached == pool->n_cached);
}
