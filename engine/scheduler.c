#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ngram.h"

struct scheduler {
    struct scheduler_config config;
    struct page_pool *pool;
    const struct kernels *kernels;
    struct device *device;

    struct sequence **running; /* by slot */
    uint32_t n_running, n_waiting;
    struct sequence *first, *last; /* the waiting line */
    uint32_t rotor;                /* where decode and drafts begin their turn */

    struct sequence **order; /* running, by priority and arrival; scratch of a plan */
    struct work *work;
    struct segment *draft_segments, *main_segments;
    int32_t
        *draft_tokens; /* [n_slots][draft_block + 1]: y, mask, mask, ..; or y and what is given */
    struct draft_candidate *candidates; /* [n_slots] */
};

struct scheduler *scheduler_create(const struct scheduler_config *config, struct page_pool *pool,
                                   const struct kernels *kernels, struct device *device) {
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    uint32_t n = config->n_slots;
    s->config = *config;
    s->pool = pool;
    s->kernels = kernels;
    s->device = device;
    s->running = calloc(n, sizeof *s->running);
    s->order = calloc(n, sizeof *s->order);
    s->work = calloc(n, sizeof *s->work);
    s->draft_segments = calloc(n, sizeof *s->draft_segments);
    s->main_segments = calloc(2 * (size_t)n, sizeof *s->main_segments);
    s->draft_tokens = calloc((size_t)n * (config->draft_block + 1), sizeof *s->draft_tokens);
    s->candidates = calloc(n, sizeof *s->candidates);
    if (!s->candidates || !s->running || !s->order || !s->work || !s->draft_segments ||
        !s->main_segments || !s->draft_tokens) {
        scheduler_destroy(s);
        return NULL;
    }
    return s;
}

void scheduler_destroy(struct scheduler *s) {
    if (!s) return;
    free(s->running);
    free(s->order);
    free(s->work);
    free(s->draft_segments);
    free(s->main_segments);
    free(s->draft_tokens);
    free(s->candidates);
    free(s);
}

/* ---- the waiting line and the slots ------------------------------------------------------------ */

/* True when a is to be served before b. */
static bool before(const struct sequence *a, const struct sequence *b) {
    if (a->request->priority != b->request->priority)
        return a->request->priority < b->request->priority;
    return a->arrival < b->arrival;
}

void scheduler_add(struct scheduler *s, struct sequence *seq) {
    ASSERT(seq->state == SEQ_WAITING && seq->n_pages == 0 && seq->slot == SLOT_NONE);
    struct sequence *at = s->last; /* the new one goes behind `at` */
    while (at && before(seq, at))
        at = at->prev;
    seq->prev = at;
    seq->next = at ? at->next : s->first;
    *(seq->prev ? &seq->prev->next : &s->first) = seq;
    *(seq->next ? &seq->next->prev : &s->last) = seq;
    s->n_waiting++;
}

static void unlink_waiting(struct scheduler *s, struct sequence *seq) {
    *(seq->prev ? &seq->prev->next : &s->first) = seq->next;
    *(seq->next ? &seq->next->prev : &s->last) = seq->prev;
    seq->prev = seq->next = NULL;
    s->n_waiting--;
}

static void leave_slot(struct scheduler *s, struct sequence *seq) {
    ASSERT(s->running[seq->slot] == seq);
    sequence_cut(seq, 0, s->pool);
    s->running[seq->slot] = NULL;
    seq->slot = SLOT_NONE;
    s->n_running--;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq) {
    if (seq->state == SEQ_WAITING)
        unlink_waiting(s, seq);
    else
        leave_slot(s, seq);
    seq->state = SEQ_DONE;
}

/* Pages and slot go back; what was emitted stays, and is computed anew when its turn comes. */
static void preempt(struct scheduler *s, struct sequence *seq) {
    leave_slot(s, seq);
    seq->state = SEQ_WAITING;
    seq->n_kv = 0;
    seq->stats.preemptions++;
    sequence_show(seq);
    scheduler_add(s, seq);
}

/* Admit from the head of the line while a slot and all pages of the known tokens are there. */
static void admit(struct scheduler *s, uint64_t now_us) {
    while (s->first && s->n_running < s->config.n_slots) {
        struct sequence *seq = s->first;
        /* One spare page for each running sequence, so that an arrival is not paid for by
         * preempting it again at the next page border. */
        uint32_t need = (uint32_t)div_ceil(seq->n_tokens, PAGE_TOKENS);
        if (page_pool_n_free(s->pool) < need + s->n_running) break;
        if (sequence_grow(seq, seq->n_tokens, s->pool, s->kernels, s->device) != OK) break;
        unlink_waiting(s, seq);
        uint32_t slot = 0;
        while (s->running[slot])
            slot++;
        s->running[slot] = seq;
        s->n_running++;
        seq->slot = slot;
        seq->state = SEQ_PREFILL;
        if (!seq->stats.started_us) seq->stats.started_us = now_us;
        s->kernels->slot_set(s->device, slot, &seq->rules);
    }
}

/* ---- one plan ---------------------------------------------------------------------------------- */

/* What is left of a forward's limits while planning. */
struct budget {
    uint32_t main_rows, main_logits;   /* the main forward */
    uint32_t draft_rows, draft_logits; /* the draft forward */
};

static struct sequence *youngest(const struct scheduler *s) {
    struct sequence *worst = NULL;
    for (uint32_t i = 0; i < s->config.n_slots; i++)
        if (s->running[i] && (!worst || before(worst, s->running[i]))) worst = s->running[i];
    return worst;
}

/* Room for the next token's KV, at the price of younger sequences. False: seq itself went. */
static bool make_room(struct scheduler *s, struct sequence *seq, uint32_t *n_preempted) {
    while (sequence_grow(seq, seq->n_tokens, s->pool, s->kernels, s->device) != OK) {
        struct sequence *victim = youngest(s);
        preempt(s, victim);
        ++*n_preempted;
        if (victim == seq) return false;
    }
    return true;
}

/* Running sequences into s->order by priority and arrival (insertion sort: at most n_slots). */
static uint32_t sort_running(struct scheduler *s) {
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < s->config.n_slots; slot++) {
        struct sequence *seq = s->running[slot];
        if (!seq) continue;
        uint32_t at = n++;
        for (; at > 0 && before(seq, s->order[at - 1]); at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = seq;
    }
    return n;
}

/* Every decoding sequence gets the rows of one token, beginning at the rotor. */
static void plan_decode(struct scheduler *s, struct budget *left, struct plan *plan) {
    for (uint32_t slot = 0; slot < s->config.n_slots; slot++) { /* pages first: this may preempt */
        struct sequence *seq = s->running[slot];
        if (seq && seq->state == SEQ_DECODE) make_room(s, seq, &plan->n_preempted);
    }
    uint32_t n = s->config.n_slots;
    for (uint32_t i = 0; i < n; i++) {
        struct sequence *seq = s->running[(s->rotor + i) % n];
        if (!seq || seq->state != SEQ_DECODE) continue;
        if (left->main_rows < s->config.n_streams || left->main_logits < 1) {
            s->rotor = (s->rotor + i) % n; /* first in the next step */
            break;
        }
        left->main_rows -= s->config.n_streams;
        left->main_logits--;
        plan->work[plan->n_work++] = (struct work){.seq = seq, .n_rows = 1, .samples = true};
    }
}

/* Pages for the KV of n_draft proposals behind the newest token, or of as many as there are pages
 * for: free ones or cached ones, never those of another sequence. Returns how many. */
static uint32_t draft_room(struct scheduler *s, struct sequence *seq, uint32_t n_draft) {
    uint64_t n_pages = (uint64_t)seq->n_pages + page_pool_n_free(s->pool);
    uint64_t room = n_pages * PAGE_TOKENS - seq->n_tokens; /* the token's own place is there */
    if (n_draft > room) n_draft = (uint32_t)room;
    int rc = sequence_grow(seq, seq->n_tokens + n_draft, s->pool, s->kernels, s->device);
    ASSERT(rc == OK);
    return n_draft;
}

/* Rows of the longest block that fits below the context's end. */
static uint32_t block_room(const struct scheduler *s, const struct sequence *seq) {
    uint32_t room = s->config.max_position - seq->n_kv;
    return room < s->config.draft_block ? room : s->config.draft_block;
}

/* Where the tokens of a sequence's draft rows are, or its newest token and what is given. */
static int32_t *draft_tokens(const struct scheduler *s, const struct sequence *seq) {
    return s->draft_tokens + (size_t)seq->slot * (s->config.draft_block + 1);
}

/* Draft blocks of one length where rows allow a whole one. */
static void plan_fixed_drafts(struct scheduler *s, struct budget *left, struct plan *plan) {
    for (uint32_t i = 0; i < plan->n_work; i++) {
        struct work *w = &plan->work[i];
        struct sequence *seq = w->seq;
        /* The block keeps its length, which proposals depend on, but near the token limit no more
         * rows are verified than tokens may come. */
        uint32_t block = block_room(s, seq), to_come = seq->max_tokens - seq->n_output;
        uint32_t n_draft = (block < to_come ? block : to_come) - 1;
        if (n_draft == 0) continue;
        if (left->draft_rows < block || left->draft_logits < block - 1 ||
            left->main_rows < n_draft * s->config.n_streams || left->main_logits < n_draft) {
            s->rotor = seq->slot; /* first in the next step */
            break;
        }
        n_draft = draft_room(s, seq, n_draft);
        if (n_draft == 0) continue;
        left->draft_rows -= block;
        left->draft_logits -= block - 1;
        left->main_rows -= n_draft * s->config.n_streams;
        left->main_logits -= n_draft;
        w->n_block = block;
        w->n_draft = n_draft;
        w->n_rows = 1 + n_draft;
    }
}

/* What stood earlier in the text, up to the first token that would end it. Returns how many. */
static uint32_t look_up(struct scheduler *s, struct sequence *seq, uint32_t n_max,
                        enum draft_source *source) {
    uint32_t n_matched, n = 0;
    int32_t *tokens = draft_tokens(s, seq);
    ngram_extend(seq->ngram, seq->tokens, seq->n_tokens);
    uint32_t n_found =
        ngram_propose(seq->ngram, seq->tokens, seq->n_tokens, n_max, tokens + 1, &n_matched);
    tokens[0] = seq->tokens[seq->n_kv];
    *source = n_matched <= 2 ? DRAFT_MATCH_SHORT : n_matched <= 4 ? DRAFT_MATCH : DRAFT_MATCH_LONG;
    for (bool ends = false; n < n_found && !ends;) {
        int32_t id = tokens[++n];
        for (uint32_t e = 0; e < seq->rules.n_end_ids; e++)
            ends = ends || id == seq->rules.end_ids[e];
    }
    return n;
}

/* As many proposals as pay, of all sequences together. */
static void plan_chosen_drafts(struct scheduler *s, struct budget *left, struct plan *plan) {
    for (uint32_t i = 0; i < plan->n_work; i++) {
        struct sequence *seq = plan->work[i].seq;
        struct draft_candidate *c = &s->candidates[i];
        uint32_t block = block_room(s, seq), to_come = seq->max_tokens - seq->n_output;
        *c = (struct draft_candidate){.state = &seq->drafts, .source = DRAFT_VIEW};
        c->n_max = (block < to_come ? block : to_come) - 1;
        if (s->config.given) c->n_max = look_up(s, seq, c->n_max, &c->source);
    }
    drafts_choose(s->config.drafts, s->candidates, plan->n_work,
                  &(struct draft_budget){.main_rows = left->main_rows,
                                         .main_logits = left->main_logits,
                                         .draft_rows = left->draft_rows,
                                         .draft_logits = left->draft_logits,
                                         .n_streams = s->config.n_streams});
    for (uint32_t i = 0; i < plan->n_work; i++) {
        struct work *w = &plan->work[i];
        uint32_t n = s->candidates[i].n_draft;
        if (n > 0) n = draft_room(s, w->seq, n);
        if (n == 0) continue;
        left->main_rows -= n * s->config.n_streams;
        left->main_logits -= n;
        w->n_block = s->config.given ? 0 : n + 1;
        w->n_draft = n;
        w->n_rows = 1 + n;
        w->source = s->candidates[i].source;
    }
}

static void plan_drafts(struct scheduler *s, struct budget *left, struct plan *plan) {
    if (s->config.drafts)
        plan_chosen_drafts(s, left, plan);
    else
        plan_fixed_drafts(s, left, plan);
}

static void plan_prefill(struct scheduler *s, uint32_t n_running, uint32_t rows,
                         struct budget *left, struct plan *plan) {
    if (rows > left->main_rows) rows = left->main_rows;
    for (uint32_t i = 0; i < n_running; i++) {
        struct sequence *seq = s->order[i];
        if (seq->state != SEQ_PREFILL) continue;
        uint32_t end = sequence_prefill_end(seq), chunk = end - seq->n_kv;
        if (s->config.prefill_chunk && chunk > s->config.prefill_chunk)
            chunk = s->config.prefill_chunk;
        if (chunk > rows) chunk = rows;
        /* The last chunk of a new text also yields its first token: one row with logits, which
         * is a row of its own in an Orthros model. */
        bool samples = seq->n_kv + chunk == end && seq->n_output == 0;
        if (samples && (left->main_logits < 1 || chunk + s->config.n_streams - 1 > rows)) {
            samples = false;
            chunk--;
        }
        if (chunk == 0) break;
        uint32_t used = chunk + (samples ? s->config.n_streams - 1 : 0);
        rows -= used;
        left->main_rows -= used;
        left->main_logits -= samples;
        plan->n_prefill_rows += chunk;
        plan->work[plan->n_work++] = (struct work){.seq = seq, .n_rows = chunk, .samples = samples};
    }
}

/* The main rows of one piece of work in one view. */
static struct segment main_segment(const struct scheduler *s, const struct work *w,
                                   enum view view) {
    struct sequence *seq = w->seq;
    bool has_logits = w->samples && (s->config.n_streams == 1 || view == VIEW_OUTPUT);
    bool prefill = seq->state == SEQ_PREFILL, given = s->config.given && w->n_draft > 0;
    uint32_t skip = prefill && view == VIEW_OUTPUT ? w->n_rows - 1 : 0; /* only the last position */
    return (struct segment){
        .slot = seq->slot,
        .view = (uint8_t)view,
        .pick = has_logits ? PICK_ACCEPT : PICK_NONE,
        .pos = seq->n_kv + skip,
        .n_rows = w->n_rows - skip,
        .n_proposed = w->n_draft,
        .given = given,
        .n_logits = has_logits ? 1 + w->n_draft : 0,
        .out_pos = seq->n_output,
        .prompt_len = seq->n_prompt,
        .tokens = given ? draft_tokens(s, seq) : seq->tokens + seq->n_kv + skip,
        .history = seq->tokens,
        .pages = seq->pages,
    };
}

static void build_forwards(struct scheduler *s, struct plan *plan) {
    uint32_t n_draft = 0, n_main = 0;
    for (uint32_t i = 0; i < plan->n_work; i++) {
        const struct work *w = &plan->work[i];
        if (!w->n_block) continue;
        struct sequence *seq = w->seq;
        int32_t *tokens = draft_tokens(s, seq);
        tokens[0] = seq->tokens[seq->n_kv];
        for (uint32_t r = 1; r < w->n_block; r++)
            tokens[r] = s->config.mask_token;
        s->draft_segments[n_draft++] = (struct segment){
            .slot = seq->slot,
            .view = VIEW_DRAFT,
            .pick = PICK_PROPOSE,
            .pos = seq->n_kv,
            /* The last row would only predict what verification yields anyway, but it takes part
             * in the block's attention as in training. */
            .n_rows = w->n_block,
            .n_logits = w->n_block - 1,
            .out_pos = seq->n_output,
            .prompt_len = seq->n_prompt,
            .tokens = tokens,
            .history = seq->tokens,
            .pages = seq->pages,
        };
        plan->n_draft_rows += w->n_block;
    }
    for (uint32_t i = 0; i < plan->n_work; i++) {
        s->main_segments[n_main++] = main_segment(s, &plan->work[i], VIEW_BASE);
        plan->n_base_rows += plan->work[i].n_rows;
    }
    for (uint32_t i = 0; s->config.n_streams == 2 && i < plan->n_work; i++) {
        if (!plan->work[i].samples) continue;
        s->main_segments[n_main] = main_segment(s, &plan->work[i], VIEW_OUTPUT);
        plan->n_output_rows += s->main_segments[n_main++].n_rows;
    }
    plan->draft = (struct forward){.n_segments = n_draft, .segments = s->draft_segments};
    plan->main = (struct forward){.n_segments = n_main, .segments = s->main_segments};
}

bool scheduler_plan(struct scheduler *s, uint32_t max_prefill_rows, uint64_t now_us,
                    struct plan *plan) {
    *plan = (struct plan){.work = s->work};
    admit(s, now_us);
    uint32_t n_prefilling = 0;
    for (uint32_t i = 0; i < s->config.n_slots; i++)
        n_prefilling += s->running[i] && s->running[i]->state == SEQ_PREFILL;
    uint32_t max_rows = s->config.max_rows;
    bool decodes = !(s->config.prefill_first && n_prefilling);
    uint32_t kept = 0; /* prefill's share of the rows */
    if (n_prefilling)
        kept = max_rows / 4 > s->config.n_streams ? max_rows / 4 : s->config.n_streams;
    struct budget left = {
        .main_rows = max_rows - kept,
        .main_logits = s->config.max_logit_rows - (n_prefilling ? 1 : 0),
        .draft_rows = max_rows,
        .draft_logits = s->config.max_logit_rows,
    };
    if (decodes) plan_decode(s, &left, plan);
    if (s->config.draft_block) plan_drafts(s, &left, plan);
    left.main_rows += kept;
    left.main_logits += n_prefilling ? 1 : 0;
    uint32_t n_running = sort_running(s);
    if (max_prefill_rows < PAGE_TOKENS) max_prefill_rows = PAGE_TOKENS;
    plan_prefill(s, n_running, max_prefill_rows, &left, plan);
    build_forwards(s, plan);
    return plan->n_work > 0;
}

/* ---- looking ----------------------------------------------------------------------------------- */

struct sequence *const *scheduler_running(const struct scheduler *s) {
    return s->running;
}

struct sequence *scheduler_waiting(const struct scheduler *s) {
    return s->first;
}

uint32_t scheduler_n_running(const struct scheduler *s) {
    return s->n_running;
}

uint32_t scheduler_n_waiting(const struct scheduler *s) {
    return s->n_waiting;
}

void scheduler_check(const struct scheduler *s) {
    uint32_t n_running = 0, n_waiting = 0;
    page_pool_check_begin(s->pool);
    for (uint32_t slot = 0; slot < s->config.n_slots; slot++) {
        const struct sequence *seq = s->running[slot];
        if (!seq) continue;
        n_running++;
        ASSERT(seq->slot == slot);
        ASSERT(seq->state == SEQ_PREFILL || seq->state == SEQ_DECODE);
        ASSERT(seq->state != SEQ_DECODE || seq->n_kv + 1 == seq->n_tokens);
        ASSERT(seq->n_kv <= seq->n_pages * PAGE_TOKENS);
        ASSERT(seq->n_pages <= div_ceil(seq->n_tokens, PAGE_TOKENS)); /* drafts' pages are back */
        page_pool_check_count(s->pool, seq->pages, seq->n_pages);
    }
    for (const struct sequence *seq = s->first; seq; seq = seq->next) {
        n_waiting++;
        ASSERT(seq->state == SEQ_WAITING && seq->n_pages == 0 && seq->n_kv == 0);
        ASSERT(!seq->next || before(seq, seq->next));
    }
    ASSERT(n_running == s->n_running && n_waiting == s->n_waiting);
    page_pool_check_end(s->pool);
}
