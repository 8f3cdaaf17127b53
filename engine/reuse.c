#include "engine/reuse.h"

#include <string.h>

/* ---- state beyond the KV ----------------------------------------------------------------------- */

/* Whether the slot's state serves rows at pos and beyond. */
static bool has_state_at(const struct reuse *reuse, const struct sequence *seq, uint32_t pos) {
    return pos >= seq->state_lo && pos + reuse->state_reach >= seq->n_run;
}

/* A snapshot at this page border, where there is something to snapshot and it is not there yet. */
static void save_state(const struct reuse *reuse, const struct sequence *seq, uint32_t border) {
    ASSERT(border % PAGE_TOKENS == 0);
    uint32_t n_pages = border / PAGE_TOKENS;
    if (!reuse->has_state || n_pages == 0 || n_pages > seq->n_kept) return;
    uint32_t page = seq->pages[n_pages - 1];
    bool is_there = prefix_cache_snapshot_of(reuse->cache, page) != SNAPSHOT_NONE;
    if (!is_there && !has_state_at(reuse, seq, border)) return;
    uint32_t snapshot = prefix_cache_snapshot(reuse->cache, page);
    if (is_there || snapshot == SNAPSHOT_NONE) return;
    reuse->kernels->state_save(reuse->device, seq->slot, border, snapshot);
}

/* The prompt is computed: its last page border serves the same prompt again (which computes at least
 * its last position), and a prompt that fills its pages serves longer ones. */
static void save_prompt_state(const struct reuse *reuse, struct sequence *seq) {
    if (seq->prompt_saved || seq->n_kv < seq->n_prompt) return;
    seq->prompt_saved = true;
    save_state(reuse, seq, (seq->n_prompt - 1) / PAGE_TOKENS * PAGE_TOKENS);
    if (seq->n_prompt % PAGE_TOKENS == 0) save_state(reuse, seq, seq->n_prompt);
}

/* ---- a start ----------------------------------------------------------------------------------- */

bool reuse_can_share(const struct reuse *reuse, const struct sequence *seq,
                     const struct sequence *from) {
    return from->n_kv >= from->n_prompt && from->n_prompt == seq->n_prompt &&
           memcmp(from->tokens, seq->tokens, seq->n_prompt * sizeof *seq->tokens) == 0 &&
           (!reuse->has_state || has_state_at(reuse, from, from->n_prompt - 1));
}

struct start reuse_find(const struct reuse *reuse, struct sequence *seq, struct sequence *from) {
    struct start start = {.snapshot = SNAPSHOT_NONE};
    if (from) { /* its last position is computed again, for a first token of its own */
        start.from = from;
        start.n_kv = seq->n_prompt - 1;
        start.n_pages = start.n_kv / PAGE_TOKENS;
        if (seq->n_output == 0) return start;
    }
    if (!reuse->cache) return start;
    /* A page is taken only where a position is left to compute, which yields the logits. */
    uint32_t snapshot, most = (seq->n_tokens - 1) / PAGE_TOKENS;
    const struct request *request = seq->request;
    uint32_t n = prefix_cache_find(reuse->cache, seq->tokens, most, request->salt,
                                   request->salt_len, seq->pages, &snapshot);
    start.looked_up = true;
    if (n * PAGE_TOKENS <= start.n_kv) return start;
    start.from = NULL;
    start.n_kv = n * PAGE_TOKENS;
    start.n_pages = n;
    start.snapshot = snapshot;
    return start;
}

uint32_t reuse_n_needed(const struct reuse *reuse, const struct sequence *seq,
                        const struct start *start) {
    uint32_t n = (uint32_t)div_ceil(seq->n_tokens, PAGE_TOKENS) - start->n_pages;
    if (start->from) return n;
    for (uint32_t i = 0; i < start->n_pages; i++) /* a cached page counts as free until taken */
        n += page_pool_refs(reuse->pool, seq->pages[i]) == 0;
    return n;
}

void reuse_take(const struct reuse *reuse, struct sequence *seq, const struct start *start) {
    const struct kernels *kernels = reuse->kernels;
    ASSERT(seq->n_pages == 0 && seq->n_kept == 0);
    const struct sequence *from = start->from;
    if (from) memcpy(seq->pages, from->pages, start->n_pages * sizeof *seq->pages);
    for (uint32_t i = 0; i < start->n_pages; i++)
        page_pool_retain(reuse->pool, seq->pages[i]);
    seq->n_pages = start->n_pages;
    seq->n_kept = reuse->cache ? start->n_pages : 0;
    seq->n_kv = seq->n_run = seq->state_lo = start->n_kv;
    seq->prompt_saved = false;
    int rc = sequence_grow(seq, seq->n_tokens, reuse->pool, kernels, reuse->device);
    ASSERT(rc == OK);
    if (!from) {
        if (start->snapshot == SNAPSHOT_NONE) return;
        prefix_cache_touch(reuse->cache, start->snapshot);
        kernels->state_load(reuse->device, seq->slot, start->n_kv, start->snapshot);
        return;
    }
    if (start->n_kv % PAGE_TOKENS)
        kernels->page_copy(reuse->device, from->pages[start->n_pages], seq->pages[start->n_pages]);
    if (!reuse->has_state) return;
    kernels->state_copy(reuse->device, from->slot, seq->slot);
    seq->n_run = from->n_run;
    seq->state_lo = from->state_lo;
}

/* ---- what it leaves ---------------------------------------------------------------------------- */

void reuse_commit(const struct reuse *reuse, struct sequence *seq) {
    if (!reuse->cache) return;
    const struct request *request = seq->request;
    for (; (seq->n_kept + 1) * PAGE_TOKENS <= seq->n_kv; seq->n_kept++) {
        uint32_t i = seq->n_kept, page = seq->pages[i];
        uint32_t known =
            prefix_cache_add(reuse->cache, i ? seq->pages[i - 1] : PAGE_NONE, page,
                             seq->tokens + i * PAGE_TOKENS, request->salt, request->salt_len);
        if (known == page) continue;
        page_pool_retain(reuse->pool, known);
        page_pool_release(reuse->pool, page);
        seq->pages[i] = known;
    }
    save_prompt_state(reuse, seq);
}

void reuse_leave(const struct reuse *reuse, struct sequence *seq, bool keep) {
    if (keep && reuse->cache) save_state(reuse, seq, seq->n_kv / PAGE_TOKENS * PAGE_TOKENS);
    bool drops = !keep;
    while (seq->n_pages > 0) {
        uint32_t page = seq->pages[--seq->n_pages];
        if (drops && seq->n_pages < seq->n_kept) drops = prefix_cache_drop(reuse->cache, page);
        page_pool_release(reuse->pool, page);
    }
    seq->n_kept = 0;
}
