#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ngram.h"
enum {
    LOOK_MAX = 16,     /* sequences without room that one plan looks at */
    OVERTAKE_MAX = 16, /* admissions while one lacks pages, until nobody passes it any more, */
    AGED_MAX = 128,    /* and until nobody of a higher priority goes before it either */
    SPARE_MAX = 4,     /* pages a running sequence that are left free at most, see admit_one */
};

struct scheduler {
    struct scheduler_config config;
    struct reuse reuse;
    struct page_pool *pool;
    const struct kernels *kernels;
    struct device *device;

    struct sequence **running; /* by slot */
    uint32_t n_running, n_waiting;
    uint64_t n_admitted;
    struct sequence *first, *last; /* the waiting line */
    uint32_t rotor;                /* where decode and drafts begin their turn */
    bool drafts_paused;

    struct sequence **order;   /* running, by priority and arrival; scratch of a plan */
    struct sequence **shorter; /* those that prefill, all but the first, by what is left to do */
    struct work *work;
    struct segment *draft_segments, *main_segments;
    int32_t
        *draft_tokens; /* [n_slots][draft_block + 1]: y, mask, mask, ..; or y and what is given */
    struct draft_candidate *candidates; /* [n_slots] */
};

struct scheduler *scheduler_create(const struct scheduler_config *config,
                                   const struct reuse *reuse) {
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    uint32_t n = config->n_slots;
    s->config = *config;
    s->reuse = *reuse;
    s->pool = reuse->pool;
    s->kernels = reuse->kernels;
    s->device = reuse->device;
    s->running = calloc(n, sizeof *s->running);
    s->order = calloc(n, sizeof *s->order);
    s->shorter = calloc(n, sizeof *s->shorter);
    s->work = calloc(n, sizeof *s->work);
    s->draft_segments = calloc(n, sizeof *s->draft_segments);
    s->main_segments = calloc(2 * (size_t)n, sizeof *s->main_segments);
    s->draft_tokens = calloc((size_t)n * (config->draft_block + 1), sizeof *s->draft_tokens);
    s->candidates = calloc(n, sizeof *s->candidates);
    if (!s->running || !s->order || !s->shorter || !s->work || !s->draft_segments ||
        !s->candidates || !s->main_segments || !s->draft_tokens) {
        scheduler_destroy(s);
        return NULL;
    }
    return s;
}

void scheduler_destroy(struct scheduler *s) {
    if (!s) return;
    free(s->running);
    free(s->order);
    free(s->shorter);
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

void scheduler_pause_drafts(struct scheduler *s, bool paused) {
    s->drafts_paused = paused;
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

static void leave_slot(struct scheduler *s, struct sequence *seq, bool keep) {
    ASSERT(s->running[seq->slot] == seq);
    reuse_leave(&s->reuse, seq, keep);
    s->running[seq->slot] = NULL;
    seq->slot = SLOT_NONE;
    s->n_running--;
}

void scheduler_remove(struct scheduler *s, struct sequence *seq, bool keep) {
    if (seq->state == SEQ_WAITING)
        unlink_waiting(s, seq);
    else
        leave_slot(s, seq, keep);
    seq->state = SEQ_DONE;
}

void scheduler_commit(struct scheduler *s, struct sequence *seq) {
    reuse_commit(&s->reuse, seq);
}

/* Pages and slot go back; what was emitted stays, and is computed anew when its turn comes, as far
 * as its pages are not found again. */
static void preempt(struct scheduler *s, struct sequence *seq) {
    leave_slot(s, seq, true);
    seq->state = SEQ_WAITING;
    seq->n_kv = 0;
    seq->stats.preemptions++;
    sequence_show(seq);
    scheduler_add(s, seq);
}

static struct sequence *youngest(const struct scheduler *s) {
    struct sequence *worst = NULL;
    for (uint32_t i = 0; i < s->config.n_slots; i++)
        if (s->running[i] && (!worst || before(worst, s->running[i]))) worst = s->running[i];
    return worst;
}

bool scheduler_preempt_youngest(struct scheduler *s) {
    struct sequence *seq = youngest(s);
    if (seq) preempt(s, seq);
    return seq != NULL;
}

/* ---- admission --------------------------------------------------------------------------------- */

/* A running choice of the same prompt that has all of it computed. *wait: none has yet, but one is
 * at it. */
static struct sequence *choice_to_share(const struct scheduler *s, const struct sequence *seq,
                                        bool *wait) {
    *wait = false;
    if (!seq->request->group) return NULL;
    for (uint32_t slot = 0; slot < s->config.n_slots; slot++) {
        struct sequence *other = s->running[slot];
        if (!other || other->request->group != seq->request->group) continue;
        if (reuse_can_share(&s->reuse, seq, other)) return other;
        *wait = *wait || other->n_kv < other->n_prompt;
    }
    return NULL;
}

enum admission { ADMITTED, NO_PAGES, WAITS_FOR_CHOICE };

static enum admission admit_one(struct scheduler *s, struct sequence *seq, uint64_t now_us,
                                struct plan *plan) {
    bool wait;
    struct sequence *from = choice_to_share(s, seq, &wait);
    if (!from && wait) return WAITS_FOR_CHOICE;
    struct start start = reuse_find(&s->reuse, seq, from);
    /* One spare page for each running sequence, so that an arrival is not paid for by preempting it
     * again at the next page border; more for one that was preempted, which shall not come and go
     * without getting anywhere. */
    uint32_t spare = 1 + seq->stats.preemptions;
    if (spare > SPARE_MAX) spare = SPARE_MAX;
    uint32_t need = reuse_n_needed(&s->reuse, seq, &start);
    if (page_pool_n_free(s->pool) < need + (uint64_t)spare * s->n_running) return NO_PAGES;
    unlink_waiting(s, seq);
    uint32_t slot = 0;
    while (s->running[slot])
        slot++;
    s->running[slot] = seq;
    s->n_running++;
    seq->slot = slot;
    seq->lacks_pages = false;
    s->n_admitted++;
    s->kernels->slot_set(s->device, slot, &seq->rules);
    reuse_take(&s->reuse, seq, &start);
    /* All of a preempted text may be there again. */
    seq->state = seq->n_kv == sequence_prefill_end(seq) ? SEQ_DECODE : SEQ_PREFILL;
    ASSERT(seq->n_kv < seq->n_tokens);
    if (!seq->stats.started_us) seq->stats.started_us = now_us;
    if (!start.looked_up || seq->stats.preemptions) return ADMITTED;
    seq->stats.n_cached = seq->n_kv;
    plan->n_looked_up += seq->n_prompt;
    plan->n_found += seq->n_kv;
    return ADMITTED;
}

/* Admissions that a sequence saw while it lacked pages. */
static uint64_t n_overtaken(const struct scheduler *s, const struct sequence *seq) {
    return seq->lacks_pages ? s->n_admitted - seq->lacks_since : 0;
}

/* Like admit_one; remembers since when it lacks pages. */
static enum admission try_one(struct scheduler *s, struct sequence *seq, uint64_t now_us,
                              struct plan *plan) {
    enum admission got = admit_one(s, seq, now_us, plan);
    if (got == NO_PAGES && !seq->lacks_pages) {
        seq->lacks_pages = true;
        seq->lacks_since = s->n_admitted;
    }
    return got;
}

/* Someone whom others, mostly of higher priority, kept from pages for too long, or NULL. */
static struct sequence *aged(const struct scheduler *s) {
    struct sequence *seq = s->first;
    while (seq && n_overtaken(s, seq) < AGED_MAX)
        seq = seq->next;
    return seq;
}

/* Admit in order of the line while slots are free. Who finds no pages lets others pass, up to a
 * bound; who waits for another choice to compute their prompt needs nothing yet. */
static void admit(struct scheduler *s, uint64_t now_us, struct plan *plan) {
    struct sequence *seq = s->n_running < s->config.n_slots ? aged(s) : NULL, *next;
    if (seq && try_one(s, seq, now_us, plan) != ADMITTED) return;
    uint32_t n_without_room = 0;
    for (seq = s->first; seq && s->n_running < s->config.n_slots; seq = next) {
        next = seq->next;
        if (try_one(s, seq, now_us, plan) != NO_PAGES) continue;
        if (++n_without_room == LOOK_MAX || n_overtaken(s, seq) >= OVERTAKE_MAX) return;
    }
}

/* ---- one plan ---------------------------------------------------------------------------------- */

/* What is left of a forward's limits while planning. */
struct budget {
    uint32_t main_rows, main_logits;   /* the main forward */
    uint32_t draft_rows, draft_logits; /* the draft forward */
    bool turned;                       /* the rotor stands at one that found no room */
};

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
            left->turned = true;
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
            /* First in the next step, but behind those that had no row at all. */
            if (!left->turned) s->rotor = seq->slot;
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

/* A chunk of at most `rows` rows for one sequence; returns how many it takes. */
static uint32_t give_prefill(struct scheduler *s, struct sequence *seq, uint32_t rows,
                             struct budget *left, struct plan *plan) {
    uint32_t end = sequence_prefill_end(seq), chunk = end - seq->n_kv;
    if (s->config.prefill_chunk && chunk > s->config.prefill_chunk) chunk = s->config.prefill_chunk;
    if (chunk > rows) chunk = rows;
    /* The last chunk of a new text also yields its first token: one row with logits, which is a row
     * of its own in an Orthros model. */
    bool samples = chunk > 0 && seq->n_kv + chunk == end && seq->n_output == 0;
    if (samples && (left->main_logits < 1 || chunk + s->config.n_streams - 1 > rows)) {
        samples = false;
        chunk--;
    }
    if (chunk == 0) return 0;
    uint32_t used = chunk + (samples ? s->config.n_streams - 1 : 0);
    left->main_rows -= used;
    left->main_logits -= samples;
    plan->n_prefill_rows += chunk;
    plan->work[plan->n_work++] = (struct work){.seq = seq, .n_rows = chunk, .samples = samples};
    return used;
}

/* Rows that a sequence can use at most: what is left of its prompt, its chunk, a first token. */
static uint32_t prefill_want(const struct scheduler *s, const struct sequence *seq) {
    uint32_t n = sequence_prefill_end(seq) - seq->n_kv;
    if (s->config.prefill_chunk && n > s->config.prefill_chunk) n = s->config.prefill_chunk;
    return n + s->config.n_streams - 1;
}

static uint32_t n_left(const struct sequence *seq) {
    return sequence_prefill_end(seq) - seq->n_kv;
}

/* The first of the line that prefills, and the others into s->shorter by what is left to do. */
static struct sequence *sort_prefills(struct scheduler *s, uint32_t n_running, uint32_t *n_others) {
    struct sequence *first = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_running; i++) {
        struct sequence *seq = s->order[i];
        if (seq->state != SEQ_PREFILL) continue;
        if (!first) {
            first = seq;
            continue;
        }
        uint32_t at = n++;
        for (; at > 0 && n_left(seq) < n_left(s->shorter[at - 1]); at--)
            s->shorter[at] = s->shorter[at - 1];
        s->shorter[at] = seq;
    }
    *n_others = n;
    return first;
}

/* Half of the rows are the first one's, so that it ends; the other half lets short prompts begin
 * beside a long one. What either half leaves goes to the other. */
static void plan_prefill(struct scheduler *s, uint32_t n_running, uint32_t rows,
                         struct budget *left, struct plan *plan) {
    if (rows > left->main_rows) rows = left->main_rows;
    uint32_t n_others;
    struct sequence *first = sort_prefills(s, n_running, &n_others);
    if (!first) return;
    uint32_t share = rows - rows / 2, want = prefill_want(s, first);
    if (share < s->config.n_streams) share = s->config.n_streams;
    if (share > want) share = want;
    if (share > rows) share = rows;
    rows -= share;
    bool has_logits = left->main_logits > 0; /* one is the first one's */
    left->main_logits -= has_logits;
    for (uint32_t i = 0; i < n_others && rows > 0; i++)
        rows -= give_prefill(s, s->shorter[i], rows, left, plan);
    left->main_logits += has_logits;
    give_prefill(s, first, share + rows, left, plan);
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
    admit(s, now_us, plan);
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
    if (s->config.draft_block && !s->drafts_paused) plan_drafts(s, &left, plan);
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

#ifdef GERYON_SLOW_CHECKS
bool scheduler_checks = true;
#else
bool scheduler_checks = false;
#endif

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
        ASSERT(seq->n_kept == (s->reuse.cache ? seq->n_kv / PAGE_TOKENS : 0));
        page_pool_check_count(s->pool, seq->pages, seq->n_pages);
    }
    for (const struct sequence *seq = s->first; seq; seq = seq->next) {
        n_waiting++;
        ASSERT(seq->state == SEQ_WAITING && seq->n_pages == 0 && seq->n_kv == 0);
        ASSERT(seq->n_kept == 0);
        ASSERT(!seq->next || before(seq, seq->next));
    }
    ASSERT(n_running == s->n_running && n_waiting == s->n_waiting);
    page_pool_check_end(s->pool);
    if (s->reuse.cache) prefix_cache_check(s->reuse.cache);
}
