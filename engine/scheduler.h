/* scheduler.h: which rows run in the next cycle. Pure policy over sequences, pages and budgets: no
 * clock, no device arithmetic, no events. Every step is planned anew.
 *
 * Order: (1) waiting sequences are admitted while a slot and all pages of their known tokens are
 * there, which may be pages that exist already (reuse.h); (2) every decoding sequence gets the rows
 * of one token, (3) then draft blocks, (4) then prefill chunks: at least half of their rows for the
 * oldest of the highest priority, the rest for the prompts that have the least left. A share of the
 * rows is kept for prefill, and whoever found no room stands first next time, so that neither
 * starves. One that waits for pages lets those behind it pass, but only so many. When pages run out:
 * draft blocks are shortened first (before their proposals are drawn), cached pages are evicted,
 * then the youngest sequence of the lowest priority is preempted; nobody is preempted for a draft.
 * How long blocks are is chosen by drafts.h, or fixed. Engine thread only. */
#ifndef GERYON_SCHEDULER_H
#define GERYON_SCHEDULER_H

#include "engine/drafts.h"
#include "engine/reuse.h"

struct scheduler_config {
    uint32_t n_slots;
    uint32_t max_rows;       /* rows of one forward */
    uint32_t max_logit_rows; /* rows with logits of one forward */
    uint32_t prefill_chunk;  /* 0 = no own limit */
    uint32_t n_streams;      /* rows a decoded position takes: 2 in an Orthros model */
    uint32_t draft_block;    /* rows of a draft block (at most), 0 = no drafts */
    struct drafts *drafts;   /* chooses how many rows; NULL: always draft_block */
    bool given;            /* proposals come from the text itself (ngram.h), not from draft rows */
    uint32_t max_position; /* no row stands at or beyond it */
    int32_t mask_token;
    bool prefill_first; /* nothing decodes while a prompt is being computed */
};

struct scheduler; /* opaque */

struct scheduler *scheduler_create(const struct scheduler_config *config,
                                   const struct reuse *reuse);
void scheduler_destroy(struct scheduler *scheduler);

/* No drafts in the plans to come, whatever the config says. */
void scheduler_pause_drafts(struct scheduler *scheduler, bool paused);
/* Put a sequence into the waiting line, by priority and arrival. */
void scheduler_add(struct scheduler *scheduler, struct sequence *seq);
/* Take a sequence out for good, wherever it is; its pages and slot are given back. keep: what it
 * computed may be found by others from now on (false: it failed). */
void scheduler_remove(struct scheduler *scheduler, struct sequence *seq, bool keep);
/* seq->n_kv moved on over positions that are committed: to be called before the next plan. */
void scheduler_commit(struct scheduler *scheduler, struct sequence *seq);
/* Send the youngest sequence of the lowest priority back to the line; false when none runs. */
bool scheduler_preempt_youngest(struct scheduler *scheduler);

/* One sequence's part of a cycle. */
struct work {
    struct sequence *seq;
    uint32_t n_rows;  /* main positions: a prefill chunk, or 1 + n_draft */
    uint32_t n_block; /* rows of the draft block, 0 = none */
    uint32_t n_draft; /* proposals to verify; a fixed block may have more before the token limit */
    enum draft_source source; /* of the proposals */
    bool samples;             /* its last rows pick tokens (a PICK_ACCEPT segment) */
};

struct plan {
    struct work *work; /* decode first, then prefill */
    uint32_t n_work;
    struct forward draft, main; /* n_segments 0: no such forward */
    uint32_t n_base_rows, n_output_rows, n_draft_rows, n_prefill_rows;
    uint32_t n_preempted;          /* sequences sent back to the line while planning */
    uint64_t n_looked_up, n_found; /* prompt tokens of new sequences, in the prefix cache */
};

/* Plan the next cycle. max_prefill_rows bounds the prefill rows of this step (a step must stay
 * short); at least one page's worth is planned when anything waits for prefill. The plan lives
 * until the next call. Returns false when nothing can run. now_us stamps sequences that start. */
bool scheduler_plan(struct scheduler *scheduler, uint32_t max_prefill_rows, uint64_t now_us,
                    struct plan *plan);

/* Running sequences by slot, NULL where free; and the waiting line's head. */
struct sequence *const *scheduler_running(const struct scheduler *scheduler);
struct sequence *scheduler_waiting(const struct scheduler *scheduler);
uint32_t scheduler_n_running(const struct scheduler *scheduler);
uint32_t scheduler_n_waiting(const struct scheduler *scheduler);

/* Every page is free, cached or held exactly as often as counted; block tables cover the KV, and not
 * more once a step is over; committed full pages are indexed, and the index agrees. Trips an
 * ASSERT. */
void scheduler_check(const struct scheduler *scheduler);
/* The engine does so after every step: in debug and sanitizer builds, and with the scripted model in
 * every build. Set before an engine runs. */
extern bool scheduler_checks;

#endif
