/* prefix_cache.h: which pages hold which tokens, so that a prompt that begins like an earlier text
 * takes its pages instead of computing them.
 *
 *   salt "x" -> [t0 .. t15] page 7 -> [t16 .. t31] page 2 -> [t32 .. t47] page 9
 *                                  -> [u16 .. u31] page 5
 *
 * An indexed page is known by its parent page and its own 16 tokens, one that has no parent by its
 * salt and tokens: found through a hash, confirmed by comparing all of it, so that a collision costs
 * time and nothing else. A parent is named by page and generation, which changes when the page
 * leaves the index. Sequences hold their pages from the first one on and give them back from the last
 * one on, so a parent is never evicted before its children.
 *
 * Where a model has state beyond its KV, a page may end a hit only when it has a snapshot of that
 * state at its end. Snapshots are numbers 0 .. n_snapshots - 1 of the device; one leaves with its
 * page, or for a newer one, the least recently used first.
 *
 * Engine thread only. All memory comes with create. */
#ifndef GERYON_PREFIX_CACHE_H
#define GERYON_PREFIX_CACHE_H

#include "engine/page_pool.h"

#define PAGE_NONE     UINT32_MAX
#define SNAPSHOT_NONE UINT32_MAX

/* What an indexed page is known by. */
struct prefix_key {
    uint32_t parent; /* page before it, or PAGE_NONE */
    uint64_t parent_generation;
    const int32_t *tokens; /* [PAGE_TOKENS] */
    const char *salt;      /* of pages without a parent; theirs tell the rest apart */
    uint32_t salt_len;
};
typedef uint64_t (*prefix_hash)(uint64_t seed, const struct prefix_key *key);

struct prefix_cache_config {
    uint64_t seed;    /* of the hash; nothing else depends on it */
    prefix_hash hash; /* NULL: the cache's own */
    bool needs_state; /* a hit ends at a snapshot */
    uint32_t n_snapshots;
};

struct prefix_cache; /* opaque */

/* An empty index over the pages of this pool, which tells it of evictions. NULL without memory. */
struct prefix_cache *prefix_cache_create(struct page_pool *pool,
                                         const struct prefix_cache_config *config);
void prefix_cache_destroy(struct prefix_cache *cache); /* NULL is fine */

/* The longest known beginning of the tokens, at most n_pages pages of it, into pages. Returns how
 * many; *snapshot is that of the last one (SNAPSHOT_NONE where there is none). Takes no reference. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, const int32_t *tokens,
                           uint32_t n_pages, const char *salt, uint32_t salt_len, uint32_t *pages,
                           uint32_t *snapshot);

/* `page`, held by the caller alone and full, holds these tokens after `parent` (PAGE_NONE: the first
 * page, then the salt counts). The parent must be indexed. Returns the page that is known by that
 * key from now on: page itself, or one that holds the same already. */
uint32_t prefix_cache_add(struct prefix_cache *cache, uint32_t parent, uint32_t page,
                          const int32_t *tokens, const char *salt, uint32_t salt_len);

/* Forget an indexed page unless others hold it or follow it. Returns whether it is gone. */
bool prefix_cache_drop(struct prefix_cache *cache, uint32_t page);

/* A snapshot to be filled with the state at the end of this indexed page; the page's own one when it
 * has one. SNAPSHOT_NONE where there are no snapshots at all. */
uint32_t prefix_cache_snapshot(struct prefix_cache *cache, uint32_t page);
uint32_t prefix_cache_snapshot_of(const struct prefix_cache *cache, uint32_t page);
/* It was used: others are older now. */
void prefix_cache_touch(struct prefix_cache *cache, uint32_t snapshot);

/* Every entry is kept by the pool and found by its key, its parent is indexed, children and
 * snapshots are as counted. Trips an ASSERT. */
void prefix_cache_check(const struct prefix_cache *cache);

#endif
