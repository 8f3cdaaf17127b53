/* drafts.h: how many tokens to propose for each sequence, cycle by cycle (--drafts auto and ngram).
 *
 * Proposals are kept up to the first refusal, so what counts is the *hazard* of each place of a block:
 * how often it is refused when all before it were kept. With hazards h(0), h(1), .. a pass over k
 * proposals yields
 *
 *   E(k) = 1 + (1-h(0)) + (1-h(0))(1-h(1)) + ..  + product over k     tokens, its own one included
 *
 * Estimate. The engine keeps g(i) for every place, from decayed counts; a place with few trials leans
 * on the one before it, so a depth never tried looks like the last one that was (Orthrus: acceptance
 * falls with depth, how fast is for the counts to say). A sequence keeps one factor over them,
 * h(i) = level * g(i): level = (misses + w g(0)) / (sum of g over its trials + w g(0)), decayed too,
 * with g as it is now, so that what moved g is not counted twice. A new sequence has level 1. A run of misses, or of proposals kept, that the estimate calls unlikely
 * (less than one in a thousand) makes it begin anew from that run: texts change their mind quickly.
 *
 * Choice. All decoding sequences of a step draft together, since a forward reads the weights once:
 *
 *   maximise   sum of E(k of each)  /  ( main(rows of all) + draft(rows of all) )
 *
 * with both costs as measured (draft_cost.h). E rises ever more slowly, so proposals are given out one
 * by one, each to the sequence where it is likeliest to be kept, and the best point on that way wins;
 * no drafts is its first point. Row limits end the way, which shortens blocks and drops none.
 *
 * Where drafting does not pay, a sequence gets no rows, and a short block now and then to see whether
 * that is still so: after 16 passes, then 32, 64, .. 256. All sequences' passes together count alike,
 * from 1 on, and then a few try, those first that never did: texts of some tokens never wait for 16
 * passes of their own. All such blocks together take under 2 % of the time (so useless drafts cost at
 * most 1.05 times no drafts, learning included).
 *
 * Where it does pay, one step in 256 goes without, so that what that costs stays known.
 *
 * Nothing here knows a token that is not yet drawn: a place is proposed or not by what was known before,
 * and a text never depends on it. Engine thread only; no clock, no allocation after create. */
#ifndef GERYON_DRAFTS_H
#define GERYON_DRAFTS_H

#include "engine/draft_cost.h"
#include "kernels/kernels.h"

/* Where proposals come from: each kind has its own g. A match of the text with itself is better the
 * longer it is. */
enum draft_source { DRAFT_VIEW, DRAFT_MATCH_SHORT, DRAFT_MATCH, DRAFT_MATCH_LONG, DRAFT_SOURCES };

/* A sequence's part; starts as zeros. */
struct draft_state {
    double misses;                /* decayed: refusals */
    double trials[DRAFT_SOURCES]; /* and trials, each counted as g of its place / g of the first */
    double surprise;              /* log-likelihood of the run that is going on */
    uint32_t run_misses, run_kept;
    double run_trials[DRAFT_SOURCES];
    bool restarted;    /* the engine's g is no guide here: it weighs less */
    uint32_t idle;     /* passes since anything was proposed */
    uint32_t distance; /* passes until the next trial block, 0 = the first distance */
    bool trial;        /* what was proposed last was a trial block */
    bool tried;        /* something was proposed once */
};

/* One decoding sequence of a step. */
struct draft_candidate {
    struct draft_state *state;
    enum draft_source source;
    uint32_t n_max;   /* proposals at most, < DRAFT_MAX; 0: none are possible */
    uint32_t n_draft; /* out: proposals to make */
};

/* Rows that the step has left besides one position for each candidate. */
struct draft_budget {
    uint32_t main_rows, main_logits, draft_rows, draft_logits;
    uint32_t n_streams; /* main rows of a position */
};

/* What the last choice expected; for traces and gauges. */
struct draft_outlook {
    uint32_t n_sequences, n_drafting, n_trials, n_proposed;
    double tokens;                      /* expected of the step */
    double acceptance;                  /* the engine's estimate for a block's first place */
    double plain_us, main_us, draft_us; /* costs: without drafts, and as chosen */
};

struct drafts; /* opaque */

/* For n_candidates at most and max_rows of a forward. has_view: proposals come from draft forwards (a
 * block of k proposals takes k + 1 rows there), else they are given and cost nothing to make. */
struct drafts *drafts_create(uint32_t n_candidates, uint32_t max_rows, bool has_view);
void drafts_destroy(struct drafts *drafts); /* NULL is fine */

/* A forward without prefill rows took this long. */
void drafts_measure_draft(struct drafts *drafts, uint32_t n_rows, double us);
void drafts_measure_main(struct drafts *drafts, uint32_t n_rows, double us);
/* A main forward that held prefill rows as well: says less, and counts while the others are few. */
void drafts_measure_mixed(struct drafts *drafts, uint32_t n_rows, double us);

/* Fill n_draft of all candidates of a step. */
void drafts_choose(struct drafts *drafts, struct draft_candidate *candidates, uint32_t n,
                   const struct draft_budget *budget);

/* A pass judged n_proposed > 0 proposals and kept n_accepted. ended: the text is over, and what was
 * not kept was not refused. */
void drafts_learn(struct drafts *drafts, struct draft_state *state, enum draft_source source,
                  uint32_t n_proposed, uint32_t n_accepted, bool ended);

/* Probability that place `place` of a block is kept when all before it were. */
double drafts_acceptance(const struct drafts *drafts, const struct draft_state *state,
                         enum draft_source source, uint32_t place);
const struct draft_outlook *drafts_outlook(const struct drafts *drafts);

#endif
