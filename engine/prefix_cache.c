/* entries[p] describes page p while it is indexed. Entries of one hash bucket form a chain:
 *
 *   buckets[hash & mask] -> page 7 -next-> page 2 -next-> PAGE_NONE
 *
 * Snapshots form a list from the least to the most recently used one; unused ones come first. */
#include "engine/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "engine/request.h"
#include "kernels/kernels.h"

struct entry {
    bool indexed;
    uint8_t salt_len; /* parent PAGE_NONE only */
    uint32_t next;    /* in its bucket */
    uint32_t parent;
    uint32_t n_children; /* indexed pages that name this one as their parent */
    uint32_t snapshot;
    uint64_t parent_generation;
    uint64_t generation; /* grows whenever the page leaves the index */
    int32_t tokens[PAGE_TOKENS];
    char salt[CACHE_SALT_BYTES_MAX];
};

struct snapshot {
    uint32_t page; /* PAGE_NONE: unused */
    uint32_t older, newer;
};

struct prefix_cache {
    struct page_pool *pool;
    struct prefix_cache_config config;
    uint32_t n_pages;
    struct entry *entries;
    uint32_t *buckets, mask;
    struct snapshot *snapshots;
    uint32_t oldest, newest; /* snapshots */
};

/* ---- hash -------------------------------------------------------------------------------------- */

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Chained over the words of the key; the seed keeps clients from aiming at one bucket. */
static uint64_t hash_key(uint64_t seed, const struct prefix_key *key) {
    uint64_t h = mix(seed ^ key->parent ^ ((uint64_t)key->salt_len << 32));
    h = mix(h ^ key->parent_generation);
    for (uint32_t i = 0; i < PAGE_TOKENS; i += 2)
        h = mix(h ^ (uint32_t)key->tokens[i] ^ ((uint64_t)(uint32_t)key->tokens[i + 1] << 32));
    for (uint32_t i = 0; i < key->salt_len; i++)
        h = mix(h ^ (unsigned char)key->salt[i]);
    return h;
}

static uint32_t *bucket_of(const struct prefix_cache *cache, const struct prefix_key *key) {
    return &cache->buckets[cache->config.hash(cache->config.seed, key) & cache->mask];
}

static bool has_key(const struct entry *entry, const struct prefix_key *key) {
    return entry->parent == key->parent && entry->parent_generation == key->parent_generation &&
           memcmp(entry->tokens, key->tokens, sizeof entry->tokens) == 0 &&
           entry->salt_len == key->salt_len && memcmp(entry->salt, key->salt, key->salt_len) == 0;
}

/* The key of the page after `parent`. */
static struct prefix_key key_after(const struct prefix_cache *cache, uint32_t parent,
                                   const int32_t *tokens, const char *salt, uint32_t salt_len) {
    struct prefix_key key = {.parent = parent, .tokens = tokens, .salt = ""};
    if (parent == PAGE_NONE) {
        key.salt = salt;
        key.salt_len = salt_len;
    } else {
        key.parent_generation = cache->entries[parent].generation;
    }
    return key;
}

static struct prefix_key key_of(const struct entry *entry) {
    return (struct prefix_key){
        .parent = entry->parent,
        .parent_generation = entry->parent_generation,
        .tokens = entry->tokens,
        .salt = entry->salt,
        .salt_len = entry->salt_len,
    };
}

/* ---- snapshots --------------------------------------------------------------------------------- */

static void unlink_snapshot(struct prefix_cache *cache, uint32_t s) {
    struct snapshot *at = &cache->snapshots[s];
    *(at->older == SNAPSHOT_NONE ? &cache->oldest : &cache->snapshots[at->older].newer) = at->newer;
    *(at->newer == SNAPSHOT_NONE ? &cache->newest : &cache->snapshots[at->newer].older) = at->older;
}

static void link_newest(struct prefix_cache *cache, uint32_t s) {
    cache->snapshots[s].older = cache->newest;
    cache->snapshots[s].newer = SNAPSHOT_NONE;
    *(cache->newest == SNAPSHOT_NONE ? &cache->oldest : &cache->snapshots[cache->newest].newer) = s;
    cache->newest = s;
}

static void link_oldest(struct prefix_cache *cache, uint32_t s) {
    cache->snapshots[s].newer = cache->oldest;
    cache->snapshots[s].older = SNAPSHOT_NONE;
    *(cache->oldest == SNAPSHOT_NONE ? &cache->newest : &cache->snapshots[cache->oldest].older) = s;
    cache->oldest = s;
}

void prefix_cache_touch(struct prefix_cache *cache, uint32_t snapshot) {
    ASSERT(snapshot < cache->config.n_snapshots);
    unlink_snapshot(cache, snapshot);
    link_newest(cache, snapshot);
}

static void forget_snapshot(struct prefix_cache *cache, struct entry *entry) {
    uint32_t s = entry->snapshot;
    if (s == SNAPSHOT_NONE) return;
    cache->snapshots[s].page = PAGE_NONE;
    entry->snapshot = SNAPSHOT_NONE;
    unlink_snapshot(cache, s);
    link_oldest(cache, s);
}

uint32_t prefix_cache_snapshot_of(const struct prefix_cache *cache, uint32_t page) {
    ASSERT(page < cache->n_pages && cache->entries[page].indexed);
    return cache->entries[page].snapshot;
}

uint32_t prefix_cache_snapshot(struct prefix_cache *cache, uint32_t page) {
    uint32_t s = prefix_cache_snapshot_of(cache, page);
    if (s == SNAPSHOT_NONE) {
        s = cache->oldest;
        if (s == SNAPSHOT_NONE) return s;
        uint32_t loser = cache->snapshots[s].page;
        if (loser != PAGE_NONE) cache->entries[loser].snapshot = SNAPSHOT_NONE;
        cache->snapshots[s].page = page;
        cache->entries[page].snapshot = s;
    }
    prefix_cache_touch(cache, s);
    return s;
}

/* ---- life -------------------------------------------------------------------------------------- */

/* Take the entry out of the index; the pool is told by the caller, or told us. */
static void forget(struct prefix_cache *cache, uint32_t page) {
    struct entry *entry = &cache->entries[page];
    ASSERT(entry->indexed);
    ASSERT(entry->n_children == 0);
    struct prefix_key key = key_of(entry);
    uint32_t *link = bucket_of(cache, &key);
    while (*link != page) {
        ASSERT(*link != PAGE_NONE);
        link = &cache->entries[*link].next;
    }
    *link = entry->next;
    if (entry->parent != PAGE_NONE) cache->entries[entry->parent].n_children--;
    forget_snapshot(cache, entry);
    entry->indexed = false;
    entry->generation++;
}

static void evicted(void *arg, uint32_t page) {
    forget(arg, page);
}

struct prefix_cache *prefix_cache_create(struct page_pool *pool,
                                         const struct prefix_cache_config *config) {
    struct prefix_cache *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    cache->pool = pool;
    cache->config = *config;
    if (!config->hash) cache->config.hash = hash_key;
    cache->n_pages = page_pool_n_pages(pool);
    cache->mask = 1;
    while (cache->mask < cache->n_pages)
        cache->mask *= 2;
    cache->entries = calloc(cache->n_pages, sizeof *cache->entries);
    cache->buckets = malloc(cache->mask * sizeof *cache->buckets);
    cache->snapshots = calloc(config->n_snapshots + (size_t)1, sizeof *cache->snapshots);
    if (!cache->entries || !cache->buckets || !cache->snapshots) {
        prefix_cache_destroy(cache);
        return NULL;
    }
    for (uint32_t i = 0; i < cache->mask; i++)
        cache->buckets[i] = PAGE_NONE;
    cache->mask--;
    cache->oldest = cache->newest = SNAPSHOT_NONE;
    for (uint32_t s = 0; s < config->n_snapshots; s++) {
        cache->snapshots[s].page = PAGE_NONE;
        link_newest(cache, s);
    }
    page_pool_on_evict(pool, evicted, cache);
    return cache;
}

void prefix_cache_destroy(struct prefix_cache *cache) {
    if (!cache) return;
    page_pool_on_evict(cache->pool, NULL, NULL);
    free(cache->entries);
    free(cache->buckets);
    free(cache->snapshots);
    free(cache);
}

/* ---- finding and adding ------------------------------------------------------------------------ */

static uint32_t find_one(const struct prefix_cache *cache, const struct prefix_key *key) {
    uint32_t page = *bucket_of(cache, key);
    while (page != PAGE_NONE && !has_key(&cache->entries[page], key))
        page = cache->entries[page].next;
    return page;
}

uint32_t prefix_cache_find(const struct prefix_cache *cache, const int32_t *tokens,
                           uint32_t n_pages, const char *salt, uint32_t salt_len, uint32_t *pages,
                           uint32_t *snapshot) {
    uint32_t n = 0, parent = PAGE_NONE;
    *snapshot = SNAPSHOT_NONE;
    for (uint32_t i = 0; i < n_pages; i++) {
        struct prefix_key key = key_after(cache, parent, tokens + i * PAGE_TOKENS, salt, salt_len);
        parent = find_one(cache, &key);
        if (parent == PAGE_NONE) break;
        pages[i] = parent;
        if (cache->config.needs_state && cache->entries[parent].snapshot == SNAPSHOT_NONE) continue;
        n = i + 1;
        *snapshot = cache->entries[parent].snapshot;
    }
    return n;
}

uint32_t prefix_cache_add(struct prefix_cache *cache, uint32_t parent, uint32_t page,
                          const int32_t *tokens, const char *salt, uint32_t salt_len) {
    ASSERT(page < cache->n_pages && !cache->entries[page].indexed);
    ASSERT(parent == PAGE_NONE || cache->entries[parent].indexed);
    ASSERT(salt_len <= CACHE_SALT_BYTES_MAX);
    struct prefix_key key = key_after(cache, parent, tokens, salt, salt_len);
    uint32_t known = find_one(cache, &key);
    if (known != PAGE_NONE) return known;
    struct entry *entry = &cache->entries[page];
    uint32_t *bucket = bucket_of(cache, &key);
    entry->indexed = true;
    entry->parent = parent;
    entry->parent_generation = key.parent_generation;
    entry->n_children = 0;
    entry->snapshot = SNAPSHOT_NONE;
    memcpy(entry->tokens, tokens, sizeof entry->tokens);
    entry->salt_len = (uint8_t)key.salt_len;
    memcpy(entry->salt, key.salt, key.salt_len);
    entry->next = *bucket;
    *bucket = page;
    if (parent != PAGE_NONE) cache->entries[parent].n_children++;
    page_pool_keep(cache->pool, page);
    return page;
}

bool prefix_cache_drop(struct prefix_cache *cache, uint32_t page) {
    ASSERT(page < cache->n_pages && cache->entries[page].indexed);
    if (cache->entries[page].n_children > 0 || page_pool_refs(cache->pool, page) > 1) return false;
    forget(cache, page);
    page_pool_unkeep(cache->pool, page);
    return true;
}

/* ---- the checker ------------------------------------------------------------------------------- */

static void check_entry(const struct prefix_cache *cache, uint32_t page) {
    const struct entry *entry = &cache->entries[page];
    ASSERT(page_pool_is_kept(cache->pool, page) == entry->indexed);
    if (!entry->indexed) return;
    struct prefix_key key = key_of(entry);
    ASSERT(find_one(cache, &key) == page);
    if (entry->parent != PAGE_NONE) {
        ASSERT(cache->entries[entry->parent].indexed);
        ASSERT(cache->entries[entry->parent].generation == entry->parent_generation);
        ASSERT(page_pool_refs(cache->pool, entry->parent) >= page_pool_refs(cache->pool, page));
        ASSERT(entry->salt_len == 0);
    }
    if (entry->snapshot == SNAPSHOT_NONE) return;
    ASSERT(entry->snapshot < cache->config.n_snapshots);
    ASSERT(cache->snapshots[entry->snapshot].page == page);
}

void prefix_cache_check(const struct prefix_cache *cache) {
    uint64_t n_children = 0, n_with_parent = 0, n_indexed = 0, n_chained = 0;
    for (uint32_t page = 0; page < cache->n_pages; page++) {
        const struct entry *entry = &cache->entries[page];
        check_entry(cache, page);
        if (!entry->indexed) continue;
        n_indexed++;
        n_with_parent += entry->parent != PAGE_NONE;
        n_children += entry->n_children;
    }
    ASSERT(n_children == n_with_parent);
    for (uint32_t i = 0; i <= cache->mask; i++)
        for (uint32_t p = cache->buckets[i]; p != PAGE_NONE; p = cache->entries[p].next)
            n_chained++;
    ASSERT(n_chained == n_indexed);
    uint32_t n_listed = 0;
    for (uint32_t s = cache->oldest; s != SNAPSHOT_NONE; s = cache->snapshots[s].newer) {
        n_listed++;
        ASSERT(n_listed <= cache->config.n_snapshots);
        uint32_t page = cache->snapshots[s].page;
        if (page == PAGE_NONE) continue;
        ASSERT(cache->entries[page].indexed);
        ASSERT(cache->entries[page].snapshot == s);
    }
    ASSERT(n_listed == cache->config.n_snapshots);
}
