#include "engine/drafts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIAL_PROPOSALS = 7, /* of a trial block at most */
    FIRST_DISTANCE = 16, /* passes without drafts before a trial block */
    MAX_DISTANCE = 256,
    FIRST_ROWS = 4,       /* for each sequence before more is measured; then twice what was */
    PLAIN_DISTANCE = 256, /* steps with drafts before one without, to see what that costs now */
    FIRST_MEASURED = 4,   /* draft forwards until their cost is believed */
    ALLOWED_TRIALS = 8,   /* trial blocks' worth of time that may be saved up */
    TRIAL_SEQUENCES = 4,  /* that try together when the engine's turn has come */
};

#define FIRST_HAZARD   0.2   /* of a place before anything was seen: worth a try */
#define FIRST_WEIGHT   8     /* trials that this counts for at the first place */
#define PLACE_WEIGHT   24    /* and the place before at each other one */
#define PLACE_DECAY    0.995 /* of a place's counts, each trial */
#define FORGET         0.999 /* of every place's counts, each pass: what is not tried is forgotten */
#define HAZARD_MIN     0.005
#define HAZARD_MAX     0.98
#define SEQ_WEIGHT     10   /* trials that the engine's estimate counts for in a sequence */
#define RESTART_WEIGHT 1    /* and in one that it does not fit */
#define SEQ_DECAY      0.98 /* of a sequence's counts, each trial */
#define UNLIKELY       -6.9 /* log of one in a thousand */
#define GAIN_MIN       0.01 /* a proposal less likely to be kept than this is not made */
#define WORTH          1.03 /* drafting must promise this much: noise should not switch it on */
#define TRIAL_SHARE    0.02 /* of the time without drafts, which trial blocks may add */
#define TRIAL_GROWTH   1.5  /* times the cost of one proposal, which a trial block may reach */

struct place {
    double trials, misses;
};

/* A candidate's next proposal. */
struct offer {
    double kept; /* probability that it is judged and kept */
    uint32_t candidate;
};

struct drafts {
    bool has_view;
    struct draft_cost main, draft, mixed; /* mixed: main forwards with prefill rows too */
    struct place places[DRAFT_SOURCES][DRAFT_MAX];
    double hazard[DRAFT_SOURCES][DRAFT_MAX]; /* g, smoothed */
    double allowance_us;                     /* for trial blocks */
    uint32_t idle, distance; /* as a sequence's, of all sequences' passes together */
    uint32_t since_plain;    /* steps since one without drafts */
    uint32_t plain_rows;     /* of the last step, had it no drafts */
    struct draft_outlook outlook;
    uint32_t n_candidates, max_rows;
    struct offer *heap; /* [n_candidates] */
    uint32_t *taken;    /* [max_rows]: whose offer was taken, in order */
};

/* ---- the estimate ------------------------------------------------------------------------------ */

static void smooth(struct drafts *d, enum draft_source source) {
    double before = FIRST_HAZARD;
    for (uint32_t i = 0; i < DRAFT_MAX; i++) {
        const struct place *p = &d->places[source][i];
        double weight = i == 0 ? FIRST_WEIGHT : PLACE_WEIGHT;
        before = (p->misses + weight * before) / (p->trials + weight);
        d->hazard[source][i] = fmin(fmax(before, HAZARD_MIN), HAZARD_MAX);
    }
}

static double level_of(const struct drafts *d, const struct draft_state *state,
                       enum draft_source source) {
    double prior = (state->restarted ? RESTART_WEIGHT : SEQ_WEIGHT) * d->hazard[source][0];
    double expected = 0;
    for (int s = 0; s < DRAFT_SOURCES; s++)
        expected += state->trials[s] * d->hazard[s][0];
    return (state->misses + prior) / (expected + prior);
}

double drafts_acceptance(const struct drafts *d, const struct draft_state *state,
                         enum draft_source source, uint32_t place) {
    ASSERT(place < DRAFT_MAX);
    double h = level_of(d, state, source) * d->hazard[source][place];
    return 1 - fmin(h, 1);
}

/* A trial of this place, as so many of the first. */
static double relative(const struct drafts *d, enum draft_source source, uint32_t place) {
    return d->hazard[source][place] / d->hazard[source][0];
}

/* Count the run that the pass goes on with. True: it is so unlikely that the estimate began anew. */
static bool notice_run(struct drafts *d, struct draft_state *state, enum draft_source source,
                       uint32_t n_kept, bool missed) {
    bool misses = missed && n_kept == 0, kept = !missed;
    bool goes_on = (misses && !state->run_kept) || (kept && !state->run_misses);
    if (!goes_on) {
        state->surprise = 0;
        memset(state->run_trials, 0, sizeof state->run_trials);
        state->run_misses = state->run_kept = 0;
    }
    if (!misses && !kept) return false;
    for (uint32_t i = 0; i < n_kept + missed; i++) {
        double p = drafts_acceptance(d, state, source, i);
        state->surprise += log(fmax(missed ? 1 - p : p, 1e-6));
        state->run_trials[source] += relative(d, source, i);
    }
    state->run_misses += missed;
    state->run_kept += n_kept;
    if (state->surprise > UNLIKELY) return false;
    state->misses = state->run_misses;
    memcpy(state->trials, state->run_trials, sizeof state->trials);
    state->restarted = true;
    state->surprise = 0;
    return true;
}

void drafts_learn(struct drafts *d, struct draft_state *state, enum draft_source source,
                  uint32_t n_proposed, uint32_t n_accepted, bool ended) {
    ASSERT(n_proposed > 0 && n_proposed < DRAFT_MAX);
    ASSERT(n_accepted <= n_proposed);
    bool missed = n_accepted < n_proposed && !ended;
    uint32_t n_trials = n_accepted + missed;
    if (n_trials == 0) return;
    bool anew = notice_run(d, state, source, n_accepted, missed);
    for (uint32_t i = 0; i < n_trials && !anew; i++) {
        state->misses = state->misses * SEQ_DECAY + (i == n_accepted);
        for (int s = 0; s < DRAFT_SOURCES; s++)
            state->trials[s] *= SEQ_DECAY;
        state->trials[source] += relative(d, source, i);
    }
    for (uint32_t i = 0; i < DRAFT_MAX; i++) {
        struct place *p = &d->places[source][i];
        double decay = i < n_trials ? PLACE_DECAY : FORGET;
        p->trials = p->trials * decay + (i < n_trials);
        p->misses = p->misses * decay + (missed && i == n_accepted);
    }
    smooth(d, source);
    if (n_accepted == 0) return;
    /* The next trial block comes the sooner the more this one kept. */
    state->distance = d->distance = n_accepted < 4 ? FIRST_DISTANCE >> n_accepted : 1;
    if (state->trial && d->outlook.n_sequences) /* what it gave for its time */
        d->allowance_us += n_accepted * d->outlook.plain_us / d->outlook.n_sequences;
}

/* ---- life, and what forwards cost -------------------------------------------------------------- */

struct drafts *drafts_create(uint32_t n_candidates, uint32_t max_rows, bool has_view) {
    struct drafts *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->has_view = has_view;
    d->n_candidates = n_candidates;
    d->max_rows = max_rows;
    d->distance = 1; /* nothing is known yet: try at once */
    d->heap = calloc(n_candidates, sizeof *d->heap);
    d->taken = calloc(max_rows, sizeof *d->taken);
    if (!d->heap || !d->taken) {
        drafts_destroy(d);
        return NULL;
    }
    for (int source = 0; source < DRAFT_SOURCES; source++)
        smooth(d, (enum draft_source)source);
    return d;
}

void drafts_destroy(struct drafts *d) {
    if (!d) return;
    free(d->heap);
    free(d->taken);
    free(d);
}

/* As long as one of the two forwards was never measured it is taken for the other; without both,
 * every one costs the same. Where texts are short some prompt is in nearly every main forward: those
 * with prompts tell then what the others, fewer rows or more of them, would have cost. */
static double main_us(const struct drafts *d, uint32_t n_rows) {
    bool known = d->main.n_measured >= FIRST_MEASURED && n_rows <= 2 * draft_cost_known(&d->main);
    if (!known && d->mixed.n_measured) {
        double us = draft_cost_on_line(&d->mixed, n_rows);
        return d->main.n_measured ? fmax(us, draft_cost_of(&d->main, n_rows)) : us;
    }
    if (d->main.n_measured) return draft_cost_of(&d->main, n_rows);
    return d->draft.n_measured ? draft_cost_of(&d->draft, n_rows) : n_rows > 0;
}

/* The first draft forwards may be slow for once; as many rows are no dearer than in the main one. */
static double draft_us(const struct drafts *d, uint32_t n_rows) {
    if (!d->has_view || n_rows == 0) return 0;
    if (!d->draft.n_measured) return main_us(d, n_rows);
    double us = draft_cost_of(&d->draft, n_rows);
    if (d->draft.n_measured >= FIRST_MEASURED) return us;
    return fmin(us, main_us(d, n_rows > d->plain_rows ? n_rows : d->plain_rows));
}

void drafts_measure_draft(struct drafts *d, uint32_t n_rows, double us) {
    draft_cost_measure(&d->draft, n_rows, us);
    const struct draft_outlook *o = &d->outlook;
    if (o->n_trials == 0 || o->n_trials < o->n_drafting) return;
    double more = draft_us(d, n_rows) - o->draft_us; /* trial blocks were dearer than expected */
    if (more > 0) d->allowance_us -= more;
}

void drafts_measure_main(struct drafts *d, uint32_t n_rows, double us) {
    draft_cost_measure(&d->main, n_rows, us);
}

void drafts_measure_mixed(struct drafts *d, uint32_t n_rows, double us) {
    draft_cost_measure(&d->mixed, n_rows, us);
}

/* ---- the choice -------------------------------------------------------------------------------- */

/* Likelier first; of equals the one that stands first. */
static bool better(const struct offer *a, const struct offer *b) {
    return a->kept > b->kept || (a->kept == b->kept && a->candidate < b->candidate);
}

static void sift_down(struct offer *heap, uint32_t n, uint32_t at) {
    for (;;) {
        uint32_t best = at, left = 2 * at + 1;
        for (uint32_t child = left; child < n && child < left + 2; child++)
            if (better(&heap[child], &heap[best])) best = child;
        if (best == at) return;
        struct offer swap = heap[at];
        heap[at] = heap[best];
        heap[best] = swap;
        at = best;
    }
}

/* Rows of a step while proposals are given out. */
struct way {
    struct draft_budget left;
    uint32_t main_rows, draft_rows;
    uint32_t main_cap, draft_cap; /* not much beyond what was ever measured */
};

/* Take the rows of one more proposal for a candidate that has n. False: there are none. */
static bool take_rows(const struct drafts *d, struct way *way, uint32_t n) {
    struct draft_budget *left = &way->left;
    uint32_t draft_rows = !d->has_view ? 0 : n == 0 ? 2 : 1, draft_logits = d->has_view;
    if (left->main_rows < left->n_streams || left->main_logits < 1 ||
        left->draft_rows < draft_rows || left->draft_logits < draft_logits ||
        way->draft_rows + draft_rows > way->draft_cap ||
        way->main_rows + left->n_streams > way->main_cap)
        return false;
    left->main_rows -= left->n_streams;
    left->main_logits--;
    left->draft_rows -= draft_rows;
    left->draft_logits -= draft_logits;
    way->main_rows += left->n_streams;
    way->draft_rows += draft_rows;
    return true;
}

static double price(const struct drafts *d, const struct way *way) {
    return main_us(d, way->main_rows) + draft_us(d, way->draft_rows);
}

static uint32_t twice_known(const struct draft_cost *cost, uint32_t at_least) {
    uint32_t known = 2 * draft_cost_known(cost);
    return known > at_least ? known : at_least;
}

/* Give out proposals as long as that pays; *way is left where it does best. */
static void give_out(struct drafts *d, struct draft_candidate *candidates, uint32_t n,
                     struct way *way) {
    struct way best = *way;
    uint32_t n_heap = 0, n_taken = 0, n_best = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_candidate *c = &candidates[i];
        if (c->n_max == 0) continue;
        d->heap[n_heap++] = (struct offer){drafts_acceptance(d, c->state, c->source, 0), i};
    }
    for (uint32_t at = n_heap / 2; at-- > 0;)
        sift_down(d->heap, n_heap, at);
    double tokens = n, best_tokens = n, best_rate = WORTH * n / price(d, way);
    while (n_heap > 0 && d->heap[0].kept >= GAIN_MIN && n_taken < d->max_rows) {
        struct offer *offer = &d->heap[0];
        struct draft_candidate *c = &candidates[offer->candidate];
        bool room = take_rows(d, way, c->n_draft);
        if (room) {
            tokens += offer->kept;
            d->taken[n_taken++] = offer->candidate;
            if (++c->n_draft < c->n_max)
                offer->kept *= drafts_acceptance(d, c->state, c->source, c->n_draft);
            double rate = tokens / price(d, way);
            if (rate > best_rate) {
                best_rate = rate;
                best_tokens = tokens;
                best = *way;
                n_best = n_taken;
            }
        }
        if (!room || c->n_draft == c->n_max) *offer = d->heap[--n_heap];
        sift_down(d->heap, n_heap, 0);
    }
    while (n_taken > n_best)
        candidates[d->taken[--n_taken]].n_draft--;
    *way = best;
    d->outlook.tokens = best_tokens;
}

/* Proposals of a trial block: as many as add little to the cost of the first. */
static uint32_t trial_block(const struct drafts *d, struct way *way, uint32_t n_max,
                            double *extra) {
    double before = price(d, way);
    uint32_t k = 0;
    *extra = 0;
    while (k < TRIAL_PROPOSALS && k < n_max) {
        struct way longer = *way;
        if (!take_rows(d, &longer, k)) break;
        double more = price(d, &longer) - before;
        if (k > 0 && more > TRIAL_GROWTH * *extra) break;
        *way = longer;
        if (k++ == 0) *extra = more;
    }
    *extra = price(d, way) - before;
    return k;
}

/* A trial block where the allowance has the time. The first ones of all may overdraw it: without them
 * nobody knows what a draft forward costs. *cap: the dearest that was looked at. */
static bool give_trial(struct drafts *d, struct draft_candidate *c, struct way *way, double *cap) {
    struct way with = *way;
    double extra;
    uint32_t k = trial_block(d, &with, c->n_max, &extra);
    if (extra > *cap) *cap = extra;
    bool unknown = d->has_view && d->draft.n_measured < FIRST_MEASURED;
    if (k == 0 || (extra > d->allowance_us && !unknown)) return false;
    d->allowance_us -= extra;
    *way = with;
    c->n_draft = k;
    c->state->idle = 0;
    c->state->trial = c->state->tried = true;
    d->outlook.n_trials++;
    return true;
}

/* One more pass of each. */
static void count_idle(struct drafts *d, struct draft_candidate *candidates, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct draft_state *state = candidates[i].state;
        if (candidates[i].n_draft > 0) {
            state->idle = d->idle = 0;
            state->trial = false;
            state->tried = true;
            continue;
        }
        if (state->trial || state->distance == 0) { /* it did not switch drafts on: wait longer */
            uint32_t longer = 2 * state->distance;
            state->distance = longer == 0             ? FIRST_DISTANCE
                              : longer > MAX_DISTANCE ? MAX_DISTANCE
                                                      : longer;
            state->trial = false;
        }
        state->idle++;
        d->idle += candidates[i].n_max > 0;
    }
}

/* Who tells most about the texts to come: one that never tried, with the most proposals; else the one
 * that waited longest. NULL: nobody is left. */
static struct draft_candidate *best_to_try(struct draft_candidate *candidates, uint32_t n) {
    struct draft_candidate *best = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct draft_candidate *c = &candidates[i];
        if (c->n_max == 0 || c->n_draft > 0) continue;
        bool first = !best || (best->state->tried && !c->state->tried);
        if (best && best->state->tried == c->state->tried)
            first = c->state->tried ? c->state->idle > best->state->idle : c->n_max > best->n_max;
        if (first) best = c;
    }
    return best;
}

/* A short block for whoever had none for long, and for a few when all together had none for long:
 * texts may be too short to wait for their own turn. */
static void give_trials(struct drafts *d, struct draft_candidate *candidates, uint32_t n,
                        struct way *way, double plain_us) {
    double cap = 0;
    count_idle(d, candidates, n);
    for (uint32_t i = 0; i < n; i++) {
        struct draft_candidate *c = &candidates[i];
        bool due = c->n_draft == 0 && c->n_max > 0 && c->state->idle >= c->state->distance;
        if (due) give_trial(d, c, way, &cap);
    }
    if (d->idle >= d->distance && d->outlook.n_trials < TRIAL_SEQUENCES) {
        struct draft_candidate *c = best_to_try(candidates, n);
        while (c && give_trial(d, c, way, &cap) && d->outlook.n_trials < TRIAL_SEQUENCES)
            c = best_to_try(candidates, n);
    }
    if (d->outlook.n_trials > 0) {
        d->idle = 0;
        d->distance = 2 * d->distance > MAX_DISTANCE ? MAX_DISTANCE : 2 * d->distance;
    }
    d->allowance_us += TRIAL_SHARE * plain_us;
    if (cap == 0) cap = plain_us;
    if (d->allowance_us > ALLOWED_TRIALS * cap) d->allowance_us = ALLOWED_TRIALS * cap;
}

void drafts_choose(struct drafts *d, struct draft_candidate *candidates, uint32_t n,
                   const struct draft_budget *budget) {
    ASSERT(n <= d->n_candidates);
    d->outlook = (struct draft_outlook){
        .n_sequences = n,
        .tokens = n,
        .acceptance = 1 - d->hazard[d->has_view ? DRAFT_VIEW : DRAFT_MATCH][0],
    };
    if (n == 0) return;
    uint32_t plain_rows = d->plain_rows = n * budget->n_streams;
    struct way way = {
        .left = *budget,
        .main_rows = plain_rows,
        .main_cap = twice_known(&d->main, FIRST_ROWS * plain_rows),
        .draft_cap = twice_known(&d->draft, FIRST_ROWS * n),
    };
    for (uint32_t i = 0; i < n; i++)
        candidates[i].n_draft = 0;
    double plain_us = main_us(d, plain_rows);
    if (d->since_plain++ < PLAIN_DISTANCE) {
        give_out(d, candidates, n, &way);
        give_trials(d, candidates, n, &way, plain_us);
    }
    if (way.main_rows == plain_rows) d->since_plain = 0;
    d->outlook.plain_us = plain_us;
    d->outlook.main_us = main_us(d, way.main_rows);
    d->outlook.draft_us = draft_us(d, way.draft_rows);
    for (uint32_t i = 0; i < n; i++) {
        d->outlook.n_drafting += candidates[i].n_draft > 0;
        d->outlook.n_proposed += candidates[i].n_draft;
    }
}

const struct draft_outlook *drafts_outlook(const struct drafts *d) {
    return &d->outlook;
}
