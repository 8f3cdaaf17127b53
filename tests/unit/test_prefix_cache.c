/* The index of pages against a naive one, which keeps whole token histories and compares all of
 * them: random texts that begin alike come, are found, share, fail and go, under every hash. */
#include "tests/harness.h"

#include <string.h>

#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "kernels/kernels.h"

static uint64_t constant_hash(uint64_t seed, const struct prefix_key *key) {
    (void)seed, (void)key;
    return 42;
}

static struct prefix_cache *make_cache(struct page_pool *pool, prefix_hash hash,
                                       uint32_t n_snapshots, bool needs_state) {
    struct prefix_cache_config config = {
        .seed = 7, .hash = hash, .needs_state = needs_state, .n_snapshots = n_snapshots};
    struct prefix_cache *cache = prefix_cache_create(pool, &config);
    assert_non_null(cache);
    return cache;
}

/* n pages of tokens, page i all `kinds[i]`. */
static const int32_t *tokens_of(const char *kinds) {
    static int32_t tokens[8 * PAGE_TOKENS];
    for (uint32_t i = 0; i < strlen(kinds) * PAGE_TOKENS; i++)
        tokens[i] = kinds[i / PAGE_TOKENS];
    return tokens;
}

static uint32_t find(const struct prefix_cache *cache, const char *kinds, const char *salt,
                     uint32_t *pages) {
    uint32_t snapshot;
    return prefix_cache_find(cache, tokens_of(kinds), (uint32_t)strlen(kinds), salt,
                             (uint32_t)strlen(salt), pages, &snapshot);
}

/* A text of whole pages, indexed; its pages into out. */
static void add_text(struct page_pool *pool, struct prefix_cache *cache, const char *kinds,
                     const char *salt, uint32_t *out) {
    uint32_t n = (uint32_t)strlen(kinds);
    assert_int_equal(page_pool_acquire(pool, n, out), OK);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t known =
            prefix_cache_add(cache, i ? out[i - 1] : PAGE_NONE, out[i],
                             tokens_of(kinds) + i * PAGE_TOKENS, salt, (uint32_t)strlen(salt));
        if (known == out[i]) continue;
        page_pool_retain(pool, known);
        page_pool_release(pool, out[i]);
        out[i] = known;
    }
}

static void release_text(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    while (n > 0)
        page_pool_release(pool, pages[--n]);
}

/* ---- the cases by hand ------------------------------------------------------------------------- */

static void test_s8_04_equal_hashes_never_confuse_pages(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(16);
    struct prefix_cache *cache = make_cache(pool, constant_hash, 0, false);
    uint32_t a[2], b[2], got[4];
    add_text(pool, cache, "aa", "", a);
    add_text(pool, cache, "ba", "", b); /* same second page, another first one */
    assert_int_equal(find(cache, "aaa", "", got), 2);
    assert_memory_equal(got, a, sizeof a);
    assert_int_equal(find(cache, "bab", "", got), 2);
    assert_memory_equal(got, b, sizeof b);
    assert_int_not_equal(a[1], b[1]);
    assert_int_equal(find(cache, "ca", "", got), 0);
    prefix_cache_check(cache);
    release_text(pool, a, 2);
    release_text(pool, b, 2);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void test_s8_04_salts_never_share(void **state) {
    (void)state;
    char longest[CACHE_SALT_BYTES_MAX + 1], other[CACHE_SALT_BYTES_MAX + 1];
    memset(longest, 'y', CACHE_SALT_BYTES_MAX);
    longest[CACHE_SALT_BYTES_MAX] = 0;
    memcpy(other, longest, sizeof other);
    other[CACHE_SALT_BYTES_MAX - 1] = 'z';
    const char *salts[] = {"", "x", "xx", longest, other};
    prefix_hash hashes[] = {NULL, constant_hash};
    for (size_t h = 0; h < ARRAY_LEN(hashes); h++) {
        struct page_pool *pool = page_pool_create(16);
        struct prefix_cache *cache = make_cache(pool, hashes[h], 0, false);
        uint32_t pages[ARRAY_LEN(salts)][2], got[2];
        for (size_t i = 0; i < ARRAY_LEN(salts); i++) {
            assert_int_equal(find(cache, "ab", salts[i], got), 0);
            add_text(pool, cache, "ab", salts[i], pages[i]);
            prefix_cache_check(cache);
        }
        for (size_t i = 0; i < ARRAY_LEN(salts); i++) {
            assert_int_equal(find(cache, "ab", salts[i], got), 2);
            assert_memory_equal(got, pages[i], sizeof got);
            release_text(pool, pages[i], 2);
        }
        assert_int_equal(page_pool_n_cached(pool), 2 * ARRAY_LEN(salts));
        prefix_cache_destroy(cache);
        page_pool_destroy(pool);
    }
}

static void second_text_takes_the_known_page(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(8);
    struct prefix_cache *cache = make_cache(pool, NULL, 0, false);
    uint32_t a[3], b[3];
    add_text(pool, cache, "abc", "", a);
    add_text(pool, cache, "abd", "", b); /* both were computing when neither was known */
    assert_memory_equal(a, b, 2 * sizeof *a);
    assert_int_not_equal(a[2], b[2]);
    assert_int_equal(page_pool_n_free(pool), 4);
    release_text(pool, a, 3);
    prefix_cache_check(cache);
    release_text(pool, b, 3);
    prefix_cache_check(cache);
    assert_int_equal(page_pool_n_cached(pool), 4);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void reused_page_is_a_new_parent(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(3);
    struct prefix_cache *cache = make_cache(pool, constant_hash, 0, false);
    uint32_t a[3], b[3], got[3];
    add_text(pool, cache, "abc", "", a);
    release_text(pool, a, 3);
    add_text(pool, cache, "x", "", b); /* evicts the leaf, c */
    assert_int_equal(b[0], a[2]);
    assert_int_equal(find(cache, "abc", "", got), 2);
    release_text(pool, b, 1);
    /* All three pages go to a text with other beginnings; the old chain must be dead. */
    add_text(pool, cache, "bbc", "", b);
    prefix_cache_check(cache);
    assert_int_equal(find(cache, "abc", "", got), 0);
    assert_int_equal(find(cache, "bbc", "", got), 3);
    release_text(pool, b, 3);
    assert_int_equal(page_pool_n_evicted(pool), 4);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void failed_text_forgets_its_own_pages_only(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(8);
    struct prefix_cache *cache = make_cache(pool, NULL, 0, false);
    uint32_t a[3], b[3], got[3];
    add_text(pool, cache, "abc", "", a);
    add_text(pool, cache, "abd", "", b);
    assert_true(prefix_cache_drop(cache, b[2]));
    page_pool_release(pool, b[2]);
    assert_false(prefix_cache_drop(cache, b[1])); /* shared with a, and c follows it */
    release_text(pool, b, 2);
    assert_int_equal(find(cache, "abd", "", got), 2);
    assert_int_equal(find(cache, "abc", "", got), 3);
    release_text(pool, a, 3);
    prefix_cache_check(cache);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void hit_ends_at_a_snapshot_where_there_is_state(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(8);
    struct prefix_cache *cache = make_cache(pool, NULL, 2, true);
    uint32_t a[4], got[4], snapshot;
    add_text(pool, cache, "abcd", "", a);
    assert_int_equal(find(cache, "abcd", "", got), 0);
    uint32_t first = prefix_cache_snapshot(cache, a[0]), third = prefix_cache_snapshot(cache, a[2]);
    assert_int_not_equal(first, third);
    assert_int_equal(prefix_cache_snapshot(cache, a[0]), first); /* it has one */
    assert_int_equal(prefix_cache_find(cache, tokens_of("abcd"), 4, "", 0, got, &snapshot), 3);
    assert_int_equal(snapshot, third);
    assert_int_equal(prefix_cache_find(cache, tokens_of("abcd"), 2, "", 0, got, &snapshot), 1);
    assert_int_equal(snapshot, first);
    /* The third one was used before the first; now touched, it survives. */
    prefix_cache_touch(cache, third);
    assert_int_equal(prefix_cache_snapshot(cache, a[3]), first);
    assert_int_equal(prefix_cache_snapshot_of(cache, a[0]), SNAPSHOT_NONE);
    assert_int_equal(find(cache, "abcd", "", got), 4);
    assert_int_equal(find(cache, "abc", "", got), 3);
    assert_int_equal(find(cache, "ab", "", got), 0);
    prefix_cache_check(cache);
    /* A page takes its snapshot along. */
    release_text(pool, a, 4);
    uint32_t fresh[5];
    assert_int_equal(page_pool_acquire(pool, 5, fresh), OK); /* 4 free ones, and d */
    prefix_cache_check(cache);
    assert_int_equal(find(cache, "abcd", "", got), 3);
    release_text(pool, fresh, 5);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void without_snapshots_nothing_with_state_is_found(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(4);
    struct prefix_cache *cache = make_cache(pool, NULL, 0, true);
    uint32_t a[2], got[2];
    add_text(pool, cache, "ab", "", a);
    assert_int_equal(prefix_cache_snapshot(cache, a[1]), SNAPSHOT_NONE);
    assert_int_equal(find(cache, "ab", "", got), 0);
    prefix_cache_check(cache);
    release_text(pool, a, 2);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void misuse_asserts(void **state) {
    (void)state;
    struct page_pool *pool = page_pool_create(4);
    struct prefix_cache *cache = make_cache(pool, NULL, 0, false);
    uint32_t pages[2];
    assert_int_equal(page_pool_acquire(pool, 2, pages), OK);
    assert_trips(
        prefix_cache_add(cache, pages[0], pages[1], tokens_of("a"), "", 0)); /* no parent */
    assert_trips(prefix_cache_drop(cache, pages[0]));
    assert_trips(prefix_cache_snapshot(cache, pages[0]));
    assert_int_equal(prefix_cache_add(cache, PAGE_NONE, pages[0], tokens_of("a"), "", 0), pages[0]);
    assert_trips(prefix_cache_add(cache, PAGE_NONE, pages[0], tokens_of("b"), "", 0)); /* twice */
    page_pool_unkeep(pool, pages[0]); /* behind its back */
    assert_trips(prefix_cache_check(cache));
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

/* ---- random texts against a naive index ---------------------------------------------------------- */

enum { N_PAGES = 23, N_TEXTS = 5, PAGES_MAX = 5, N_SALTS = 3, N_SNAPSHOTS = 4 };

/* What page p holds: the whole history up to its end, as one letter a page. */
struct naive_page {
    bool indexed, has_snapshot;
    uint32_t salt;
    char history[PAGES_MAX + 1];
    uint64_t released; /* when its last holder left; 0 while held */
};

struct naive {
    struct naive_page pages[N_PAGES];
    uint64_t now;
    bool needs_state;
};

struct live_text {
    bool lives;
    uint32_t salt, n_pages;
    char kinds[PAGES_MAX + 1];
    uint32_t pages[PAGES_MAX];
};

static const char *salt_text(uint32_t salt) {
    static char longest[CACHE_SALT_BYTES_MAX + 1];
    memset(longest, 'y', CACHE_SALT_BYTES_MAX);
    return salt == 0 ? "" : salt == 1 ? "x" : longest;
}

static uint32_t naive_page(const struct naive *naive, const struct live_text *text, uint32_t n) {
    for (uint32_t p = 0; p < N_PAGES; p++) {
        const struct naive_page *page = &naive->pages[p];
        if (page->indexed && page->salt == text->salt && strlen(page->history) == n &&
            memcmp(page->history, text->kinds, n) == 0)
            return p;
    }
    return PAGE_NONE;
}

static uint32_t naive_find(const struct naive *naive, const struct live_text *text,
                           uint32_t *pages) {
    uint32_t n = 0;
    for (uint32_t i = 1; i <= text->n_pages; i++) {
        pages[i - 1] = naive_page(naive, text, i);
        if (pages[i - 1] == PAGE_NONE) break;
        if (!naive->needs_state || naive->pages[pages[i - 1]].has_snapshot) n = i;
    }
    return n;
}

/* Pages that acquire gave: an indexed one among them must be the longest unused. */
static void naive_acquired(struct naive *naive, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct naive_page *page = &naive->pages[pages[i]];
        if (page->indexed) {
            assert_true(page->released > 0);
            for (uint32_t p = 0; p < N_PAGES; p++)
                if (naive->pages[p].indexed && naive->pages[p].released)
                    assert_true(naive->pages[p].released >= page->released);
        }
        *page = (struct naive_page){0};
    }
}

static void start_text(struct rng *rng, struct page_pool *pool, struct prefix_cache *cache,
                       struct naive *naive, struct live_text *text) {
    *text = (struct live_text){.lives = true};
    text->salt = rng_below(rng, N_SALTS);
    text->n_pages = 1 + rng_below(rng, PAGES_MAX);
    for (uint32_t i = 0; i < text->n_pages; i++)
        text->kinds[i] = (char)('a' + rng_below(rng, 2));
    const char *salt = salt_text(text->salt);
    uint32_t salt_len = (uint32_t)strlen(salt), snapshot, want[PAGES_MAX];
    uint32_t n = prefix_cache_find(cache, tokens_of(text->kinds), text->n_pages, salt, salt_len,
                                   text->pages, &snapshot);
    assert_int_equal(n, naive_find(naive, text, want));
    assert_memory_equal(text->pages, want, n * sizeof *want);
    for (uint32_t i = 0; i < n; i++) {
        page_pool_retain(pool, text->pages[i]);
        naive->pages[text->pages[i]].released = 0;
    }
    if (n && naive->needs_state) {
        assert_int_equal(snapshot, prefix_cache_snapshot_of(cache, text->pages[n - 1]));
        prefix_cache_touch(cache, snapshot);
    }
    uint32_t rest = text->n_pages - n;
    if (page_pool_acquire(pool, rest, text->pages + n) != OK) {
        text->n_pages = n;
        return;
    }
    naive_acquired(naive, text->pages + n, rest);
    for (uint32_t i = n; i < text->n_pages; i++) {
        uint32_t own = text->pages[i], expected = naive_page(naive, text, i + 1);
        uint32_t known = prefix_cache_add(cache, i ? text->pages[i - 1] : PAGE_NONE, own,
                                          tokens_of(text->kinds) + i * PAGE_TOKENS, salt, salt_len);
        assert_int_equal(known, expected == PAGE_NONE ? own : expected);
        struct naive_page *page = &naive->pages[known];
        page->released = 0;
        if (known == own) {
            page->indexed = true;
            page->salt = text->salt;
            memcpy(page->history, text->kinds, i + 1);
            continue;
        }
        page_pool_retain(pool, known);
        page_pool_release(pool, own);
        text->pages[i] = known;
    }
}

static void end_text(struct page_pool *pool, struct prefix_cache *cache, struct naive *naive,
                     struct live_text *text, bool failed) {
    while (text->n_pages > 0) {
        uint32_t p = text->pages[--text->n_pages];
        if (failed) failed = prefix_cache_drop(cache, p);
        page_pool_release(pool, p);
        if (failed)
            naive->pages[p] = (struct naive_page){0};
        else if (page_pool_refs(pool, p) == 0)
            naive->pages[p].released = ++naive->now;
    }
    text->lives = false;
}

static void take_snapshot(struct prefix_cache *cache, struct naive *naive, uint32_t page) {
    uint32_t s = prefix_cache_snapshot(cache, page);
    assert_int_not_equal(s, SNAPSHOT_NONE);
    for (uint32_t p = 0; p < N_PAGES; p++) /* whose it was is for the index to say */
        if (naive->pages[p].indexed)
            naive->pages[p].has_snapshot = prefix_cache_snapshot_of(cache, p) != SNAPSHOT_NONE;
    assert_true(naive->pages[page].has_snapshot);
}

static void run_random(prefix_hash hash, bool needs_state) {
    struct rng rng;
    rng_seed(&rng, test_seed() + needs_state);
    struct page_pool *pool = page_pool_create(N_PAGES);
    struct prefix_cache *cache = make_cache(pool, hash, needs_state ? N_SNAPSHOTS : 0, needs_state);
    struct naive naive = {.needs_state = needs_state};
    struct live_text texts[N_TEXTS] = {0};
    for (int op = 0; op < 8000; op++) {
        struct live_text *text = &texts[rng_below(&rng, N_TEXTS)];
        if (!text->lives)
            start_text(&rng, pool, cache, &naive, text);
        else if (needs_state && text->n_pages && rng_below(&rng, 2))
            take_snapshot(cache, &naive, text->pages[rng_below(&rng, text->n_pages)]);
        else
            end_text(pool, cache, &naive, text, rng_below(&rng, 6) == 0);
        page_pool_check_begin(pool);
        for (uint32_t i = 0; i < N_TEXTS; i++)
            page_pool_check_count(pool, texts[i].pages, texts[i].lives ? texts[i].n_pages : 0);
        page_pool_check_end(pool);
        prefix_cache_check(cache);
    }
    assert_true(page_pool_n_evicted(pool) > 100); /* the pool really was too small */
    for (uint32_t i = 0; i < N_TEXTS; i++)
        if (texts[i].lives) end_text(pool, cache, &naive, &texts[i], false);
    assert_int_equal(page_pool_n_free(pool), N_PAGES);
    prefix_cache_destroy(cache);
    page_pool_destroy(pool);
}

static void random_texts_are_found_as_a_naive_index_finds_them(void **state) {
    (void)state;
    run_random(NULL, false);
    run_random(NULL, true);
}

static void test_s8_04_random_texts_under_a_constant_hash(void **state) {
    (void)state;
    run_random(constant_hash, false);
    run_random(constant_hash, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_s8_04_equal_hashes_never_confuse_pages),
        cmocka_unit_test(test_s8_04_salts_never_share),
        cmocka_unit_test(second_text_takes_the_known_page),
        cmocka_unit_test(reused_page_is_a_new_parent),
        cmocka_unit_test(failed_text_forgets_its_own_pages_only),
        cmocka_unit_test(hit_ends_at_a_snapshot_where_there_is_state),
        cmocka_unit_test(without_snapshots_nothing_with_state_is_found),
        cmocka_unit_test(misuse_asserts),
        cmocka_unit_test(random_texts_are_found_as_a_naive_index_finds_them),
        cmocka_unit_test(test_s8_04_random_texts_under_a_constant_hash),
    };
    return cmocka_run_group_tests_name("prefix_cache", tests, NULL, NULL);
}
