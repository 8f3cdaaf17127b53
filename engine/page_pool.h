/* page_pool.h: fixed pool of KV pages, counted references.
 * A page is a number 0 .. n_pages - 1 and stands for PAGE_TOKENS positions of K and V in every
 * layer. A sequence's list of pages is its block table.
 *
 *          acquire                     last release, the page is kept
 *   free ----------->  held (refs > 0)  ----------------------------->  cached
 *        <-----------                   <-----------------------------
 *     last release,                       retain; or acquire, which gives the oldest to another
 *     not kept
 *
 * A kept page holds KV that somebody may want again (prefix_cache.h): it outlives its last
 * reference, until its place is needed. Engine thread only. */
#ifndef GERYON_PAGE_POOL_H
#define GERYON_PAGE_POOL_H

#include <stdbool.h>

#include "kernels/base.h"

struct page_pool; /* opaque: fields live in page_pool.c */

/* All pages free. NULL without memory. */
struct page_pool *page_pool_create(uint32_t n_pages);
void page_pool_destroy(struct page_pool *pool); /* NULL is fine */
/* Called for each cached page whose place is given to another, just before; the page is not kept
 * any more then. */
void page_pool_on_evict(struct page_pool *pool, void (*evicted)(void *arg, uint32_t page),
                        void *arg);

/* Take n pages, one reference each, into out[0..n): free ones first, then cached ones, the least
 * recently released first. All or nothing: ERR_FULL leaves the pool untouched. */
int page_pool_acquire(struct page_pool *pool, uint32_t n, uint32_t *out);
/* One more reference to a held or cached page. */
void page_pool_retain(struct page_pool *pool, uint32_t page);
/* Drop one reference; the last one makes a kept page cached, another one free. */
void page_pool_release(struct page_pool *pool, uint32_t page);
/* Keep a held page beyond its last reference. */
void page_pool_keep(struct page_pool *pool, uint32_t page);
/* Do so no more; a cached page becomes free. No eviction is reported. */
void page_pool_unkeep(struct page_pool *pool, uint32_t page);

uint32_t page_pool_n_pages(const struct page_pool *pool);
/* Pages that acquire can give, cached ones included; how many of them are cached. */
uint32_t page_pool_n_free(const struct page_pool *pool);
uint32_t page_pool_n_cached(const struct page_pool *pool);
/* Cached pages given to others so far. */
uint64_t page_pool_n_evicted(const struct page_pool *pool);
uint32_t page_pool_refs(const struct page_pool *pool, uint32_t page);
bool page_pool_is_kept(const struct page_pool *pool, uint32_t page);

/* The invariant checker: every page is free, cached or held, and held exactly as often as the
 * tables name it. begin zeroes the tally, count names one table's pages, end compares; trips an
 * ASSERT. */
void page_pool_check_begin(struct page_pool *pool);
void page_pool_check_count(struct page_pool *pool, const uint32_t *pages, uint32_t n);
void page_pool_check_end(struct page_pool *pool);

#endif
