/* sequence.h: one text being generated: its tokens, its pages, where it stands.
 *
 *   tokens:  | prompt ................. | output ........ y |          n_tokens = n_prompt + n_output
 *   KV:      | positions 0 .. n_kv - 1                   |             decoding: n_kv = n_tokens - 1
 *   pages:   | 0 .. 15 | 16 .. 31 | ...                  |             ceil(n_kv / 16) after a step
 *
 * The newest token y is known but not yet in the KV: the next forward computes its row. A sequence
 * is made by the loop thread in engine_submit with all the room it can ever need, belongs to the
 * engine thread while it lives, and is freed by the loop thread after its last event. */
#ifndef GERYON_SEQUENCE_H
#define GERYON_SEQUENCE_H

#include "engine/drafts.h"
#include "engine/engine.h"
#include "engine/ngram.h"
#include "engine/page_pool.h"
#include "engine/text.h"
#include "kernels/kernels.h"

enum seq_state {
    SEQ_WAITING, /* new, or preempted: holds no page and no slot */
    SEQ_PREFILL, /* computing the KV of known tokens */
    SEQ_DECODE,  /* n_kv = n_tokens - 1 */
    SEQ_DONE,    /* its last event is pushed */
};

#define SLOT_NONE UINT32_MAX

struct sequence {
    struct request *request;
    enum seq_state state;
    uint64_t arrival;  /* order of submission: the tie-breaker of priority */
    uint32_t slot;     /* device slot while running, else SLOT_NONE */
    uint32_t live_idx; /* loop thread: its place in the table of live sequences */
    bool cancel_sent, cancel_waiting_sent; /* loop thread */

    uint32_t n_prompt, n_output, n_tokens, tokens_cap;
    uint32_t max_tokens; /* output tokens at most; prompt + output never exceed the context */
    uint32_t n_kv;       /* positions whose KV is computed */
    uint32_t n_released; /* output tokens whose ids went out in an event */
    uint32_t n_counted;  /* prompt tokens that the counters know of: each is counted once */
    int32_t *tokens;     /* [tokens_cap]; append-only, so events may point into it */
    uint32_t n_pages, pages_cap;
    uint32_t *pages;
    uint32_t n_kept; /* pages of it that the prefix cache knows: the first ones */

    uint32_t n_run;       /* since it has its slot: positions below which rows ran, kept or not */
    uint32_t state_lo;    /* first position whose rows the slot's state has served */
    bool prompt_saved;    /* the state at the end of its prompt was saved, or could not be */
    bool lacks_pages;     /* its turn came, but pages were missing */
    uint64_t lacks_since; /* scheduler's count of admissions then */

    struct { /* for onlookers on the loop thread; sequence_show */
        _Atomic uint32_t state, n_cached, n_output, n_pages, n_passes, n_accepted;
    } shown;

    struct rules rules;
    struct draft_state drafts;
    struct ngram *ngram; /* --drafts ngram: the index of its tokens, else NULL */
    struct text_stream *text;
    struct seq_stats stats;
    struct sequence *prev, *next; /* in the waiting line */
};

/* Loop thread. Room for the request's prompt and max_tokens more; copies the prompt. ngram:
 * with an index of its tokens. NULL without memory. */
struct sequence *sequence_create(struct request *request, const struct model *model,
                                 uint32_t max_tokens, uint32_t draft_block, bool ngram);
void sequence_destroy(struct sequence *seq);

/* Make the block table cover positions 0 .. n_positions - 1; fresh pages are cleared on the
 * device. ERR_FULL leaves everything as it was. */
int sequence_grow(struct sequence *seq, uint32_t n_positions, struct page_pool *pool,
                  const struct kernels *kernels, struct device *device);
/* Give back pages beyond n_positions. */
void sequence_cut(struct sequence *seq, uint32_t n_positions, struct page_pool *pool);

/* Engine thread: let the loop thread see where the sequence stands. */
void sequence_show(struct sequence *seq);

/* Positions that prefill has to compute: the whole prompt, or for a text that was preempted all
 * but its newest token. */
static inline uint32_t sequence_prefill_end(const struct sequence *seq) {
    return seq->n_output > 0 ? seq->n_tokens - 1 : seq->n_tokens;
}

/* Take in the tokens that one verification yielded, up to the first ending. Returns how many of
 * them became part of the text; *finish says whether and how it ended, *stop_index and *stop_id
 * what matched (-1: nothing). */
uint32_t sequence_append(struct sequence *seq, const struct model *model, const int32_t *tokens,
                         uint32_t n, enum finish_reason *finish, int32_t *stop_index,
                         int32_t *stop_id);

#endif
