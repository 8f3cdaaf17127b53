/* page_pool.h: fixed pool of KV pages, counted references.
 * A page is a number 0 .. n_pages - 1 and stands for PAGE_TOKENS positions of K and V in every
 * layer. A sequence's list of pages is its block table. Engine thread only. */
#ifndef GERYON_PAGE_POOL_H
#define GERYON_PAGE_POOL_H

#include "kernels/base.h"

struct page_pool; /* opaque: fields live in page_pool.c */

/* All pages free. NULL without memory. */
struct page_pool *page_pool_create(uint32_t n_pages);
void page_pool_destroy(struct page_pool *pool); /* NULL is fine */

/* Take n pages, one reference each, into out[0..n). All or nothing: ERR_FULL leaves the pool
 * untouched. */
int page_pool_acquire(struct page_pool *pool, uint32_t n, uint32_t *out);
/* One more reference to a held page. */
void page_pool_retain(struct page_pool *pool, uint32_t page);
/* Drop one reference; the last one puts the page back on the free list. */
void page_pool_release(struct page_pool *pool, uint32_t page);

uint32_t page_pool_n_pages(const struct page_pool *pool);
uint32_t page_pool_n_free(const struct page_pool *pool);

/* The invariant checker: every page is free or held, and held exactly as often as the tables name
 * it. begin zeroes the tally, count names one table's pages, end compares; trips an ASSERT. */
void page_pool_check_begin(struct page_pool *pool);
void page_pool_check_count(struct page_pool *pool, const uint32_t *pages, uint32_t n);
void page_pool_check_end(struct page_pool *pool);

#endif
