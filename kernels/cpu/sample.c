/* sample.c: from a row of logits to a token, and the verification of drafted tokens.
 *
 *   logits z --clean--> adjust.c: mask, bias, penalties --> max --> greedy: argmax, done
 *                   \-> scores s = (z - max z) / T, so that p = exp(s) / sum exp(s)
 *                       --> min_p --> top_k --> top_p --> draw argmax(s + g)
 *
 * `row_process` is everything up to the draw. Scores stand for log-probabilities up to a constant, which no
 * argmax sees, so a plain draw needs no exponential. The noise g is a function of (seed, output
 * position, choice, purpose, token) alone: nothing else that runs can change a draw.
 *
 * What a rule drops gets score -inf. top_k and top_p find their border by counting (or weighing)
 * the 32-bit keys of the scores digit by digit, from the top: linear whatever the logits are, and
 * the ties at the border are settled in order of id, as in a stable sort. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/passes.h"
#include "kernels/kernels.h"

/* ---- random numbers ---------------------------------------------------------------------------- */

static inline uint32_t mul_hi_lo(uint32_t a, uint32_t b, uint32_t *lo) {
    uint64_t product = (uint64_t)a * b;
    *lo = (uint32_t)product;
    return (uint32_t)(product >> 32);
}

void philox4x32(const uint32_t counter[4], uint64_t key, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint32_t lo0, lo1;
        uint32_t hi0 = mul_hi_lo(0xD2511F53u, c0, &lo0);
        uint32_t hi1 = mul_hi_lo(0xCD9E8D57u, c2, &lo1);
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u; /* the golden ratio and sqrt(3) - 1, as 32-bit fractions */
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

float gumbel_noise(uint32_t word) {
    /* (float)word may round up to 2^32; the bound keeps v below 1 and the inner logarithm finite. */
    float v = ((float)word + 0.5f) * 0x1p-32f;
    if (v > 1.0f - 0x1p-24f) v = 1.0f - 0x1p-24f;
    return -logf(-log1pf(-v));
}

/* The four words that tokens 4 * group .. 4 * group + 3 own at this place. */
static void draw_words(const struct rules *rules, uint32_t out_pos, enum draw_purpose purpose,
                       uint32_t group, uint32_t words[4]) {
    uint32_t counter[4] = {out_pos, rules->choice, (uint32_t)purpose, group};
    philox4x32(counter, rules->seed, words);
}

/* ---- one row's distribution -------------------------------------------------------------------- */

struct row {
    uint32_t vocab;
    float *scores; /* [vocab], <= 0, the best 0; -inf: dropped */
    uint32_t *ids; /* the survivors, rising; meaningful when `listed` */
    uint32_t n_ids;
    bool listed;  /* false: survivors are wherever scores > -inf */
    int32_t best; /* id of the largest score (the smallest such), -1 when all are masked */
};

static bool is_greedy(const struct rules *rules) {
    return rules->temperature < 1e-4f;
}

/* Logits into z [vocab], with the steps that change single ones: NaN counts as masked, an infinity
 * stays comparable. */
static void adjusted_copy(const struct rules *rules, const float *logits, uint32_t out_pos,
                          const struct sample_scratch *scratch, float *z) {
    passes_find()->clean(logits, scratch->vocab, z);
    adjust_logits(rules, out_pos, scratch, z);
}

/* A 32-bit key in the order of the floats. */
static uint32_t score_key(float score) {
    union {
        float f;
        uint32_t u;
    } v = {score + 0.0f}; /* -0 and +0 are one value */
    return v.u >> 31 ? ~v.u : v.u | 0x80000000u;
}

/* A key has four digits of eight bits. The first holds most of the exponent. */
enum { DIGIT_BITS = 8, DIGIT_VALUES = 1 << DIGIT_BITS };

static uint32_t key_digit(uint32_t key, uint32_t shift) {
    return key >> shift & (DIGIT_VALUES - 1);
}

/* Keep what lies above the key and the first n_ties of those on it. Without a branch: which tokens
 * stay is noise to the processor. */
static void row_cut(struct row *row, uint32_t key, uint32_t n_ties) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < row->n_ids; i++) {
        uint32_t id = row->ids[i], k = score_key(row->scores[id]);
        bool tie = (k == key) & (n_ties > 0), keep = (k > key) | tie;
        n_ties -= tie;
        row->scores[id] = keep ? row->scores[id] : -INFINITY;
        row->ids[kept] = id;
        kept += keep;
    }
    row->n_ids = kept;
}

/* After each digit the list holds only what is on or above the border so far, so that the next
 * round reads less; `known` covers the digits that are settled. */
static void row_top_k(struct row *row, uint32_t top_k) {
    if (row->n_ids <= top_k) return;
    uint32_t border = 0, known = 0, need = top_k;
    for (uint32_t shift = 32; shift > 0;) {
        shift -= DIGIT_BITS;
        uint32_t count[DIGIT_VALUES] = {0};
        for (uint32_t i = 0; i < row->n_ids; i++) {
            uint32_t key = score_key(row->scores[row->ids[i]]);
            if ((key & known) == border) count[key_digit(key, shift)]++;
        }
        uint32_t value = DIGIT_VALUES - 1;
        while (count[value] < need)
            need -= count[value--]; /* ends: more than top_k survivors are counted */
        border |= value << shift;
        known |= (uint32_t)(DIGIT_VALUES - 1) << shift;
        if (shift > 0) row_cut(row, border, UINT32_MAX);
    }
    row_cut(row, border, need);
}

/* The border of top_p: sums are compared as float32, so that decimal fractions mean what they say
 * (three of ten equal tokens reach 0.3). */
struct nucleus {
    double total, above; /* weight of all survivors, and of those above the border */
    float top_p;
};

static bool nucleus_reached(const struct nucleus *nucleus, double extra) {
    return (float)((nucleus->above + extra) / nucleus->total) >= nucleus->top_p;
}

/* How many of `count` tokens of one weight are needed: 1 .. count. */
static uint32_t nucleus_ties(const struct nucleus *nucleus, double weight, uint32_t count) {
    uint32_t lo = 1, hi = count;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (nucleus_reached(nucleus, weight * mid))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* The digit of the border: from the top, the first value whose weight makes the sum reach top_p. By
 * rounding none may: then the last that has weight. */
static uint32_t nucleus_digit(struct nucleus *nucleus, const double *sum, uint32_t n_values) {
    uint32_t border = 0;
    double above = nucleus->above;
    for (uint32_t value = n_values; value-- > 0;) {
        if (sum[value] == 0) continue;
        border = value;
        above = nucleus->above;
        if (nucleus_reached(nucleus, sum[value])) break;
        nucleus->above += sum[value];
    }
    nucleus->above = above;
    return border;
}

/* Cut a row, or the part of one that holds the border: nucleus->above weighs what is left of the rest. */
static void row_top_p(struct row *row, struct nucleus *nucleus) {
    uint32_t border = 0, known = 0, count = 0;
    double weight = 0; /* of each token on the border in the end */
    for (uint32_t shift = 32; shift > 0;) {
        shift -= DIGIT_BITS;
        double sum[DIGIT_VALUES] = {0};
        for (uint32_t i = 0; i < row->n_ids; i++) {
            float score = row->scores[row->ids[i]];
            uint32_t key = score_key(score);
            if ((key & known) == border) sum[key_digit(key, shift)] += score_weight(score);
        }
        border |= nucleus_digit(nucleus, sum, DIGIT_VALUES) << shift;
        known |= (uint32_t)(DIGIT_VALUES - 1) << shift;
        if (shift > 0) row_cut(row, border, UINT32_MAX);
    }
    for (uint32_t i = 0; i < row->n_ids; i++) {
        float score = row->scores[row->ids[i]];
        if (score_key(score) == border) count++, weight = score_weight(score);
    }
    row_cut(row, border, nucleus_ties(nucleus, weight, count));
}

/* Sum of the survivors' weights, in the order of passes.h. */
static double row_total(const struct row *row) {
    if (!row->listed) return passes_find()->total(row->scores, row->vocab, -INFINITY);
    double lane[WEIGHT_LANES] = {0};
    for (uint32_t i = 0; i < row->n_ids; i++)
        lane[row->ids[i] % WEIGHT_LANES] += score_weight(row->scores[row->ids[i]]);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* A score that top_k scores at least reach: the k-th of the maxima of disjoint sets. What lies below
 * need not be listed. -inf where there are too many of them for this to be worth it. */
static float top_k_bound(const struct row *row, uint32_t top_k) {
    enum { SETS = 1024, EACH_MIN = 4 }; /* 8 sets for each of top_k leave few others above */
    uint32_t most = 8 * (top_k < SETS ? top_k : SETS), n_sets = most < SETS / 2 ? SETS / 2 : most;
    uint32_t len = row->vocab / n_sets + 1; /* 16 sets a strip, so no more than n_sets + 16 */
    if (n_sets > SETS || len < EACH_MIN) return -INFINITY;
    float most_of[SETS + 16];
    uint32_t ids[SETS + 16];
    struct row sets = {.scores = most_of, .ids = ids, .listed = true};
    sets.vocab = passes_find()->maxima(row->scores, row->vocab, len, most_of);
    sets.n_ids = passes_find()->list(most_of, sets.vocab, -INFINITY, ids);
    if (sets.n_ids < top_k) return -INFINITY;
    row_top_k(&sets, top_k);
    float bound = INFINITY;
    for (uint32_t i = 0; i < sets.n_ids; i++)
        bound = fminf(bound, most_of[ids[i]]);
    return bound;
}

/* A score such that all scores below it together weigh less than half of what top_p leaves out: the
 * border lies above. Not so near to 1 that float32 could not tell. */
static float top_p_bound(const struct row *row, const struct nucleus *nucleus) {
    double rest = 1 - (double)nucleus->top_p;
    if (rest < 1e-4) return -INFINITY;
    return logf((float)(rest * nucleus->total / (2.0 * row->vocab)));
}

/* The lowest score of a bin; scores are ordered as their bits are, which for those below 0 fall. */
static float bin_floor(uint32_t bin, float scale) {
    union {
        uint32_t u;
        float f;
    } lo = {0x80000000u}, hi = {0xff800000u}, mid; /* -0 lies in it or above, -inf below */
    if (bin == 0) return -INFINITY;
    while (hi.u - lo.u > 1) {
        mid.u = lo.u + (hi.u - lo.u) / 2;
        if (score_bin(mid.f, scale) >= bin)
            lo = mid;
        else
            hi = mid;
    }
    return lo.f;
}

/* top_p of a whole row, scores >= least: bins of one width find the neighbourhood of the border, and
 * only that is looked at token by token. */
static void row_top_p_whole(struct row *row, float top_p, float least) {
    const struct passes *passes = passes_find();
    struct nucleus nucleus = {.total = passes->total(row->scores, row->vocab, least)};
    nucleus.top_p = top_p;
    float bound = top_p_bound(row, &nucleus), scale = (SCORE_BINS - 1) / fminf(-bound, 40);
    double sum[SCORE_BINS] = {0};
    least = fmaxf(least, bound);
    passes->bins(row->scores, row->vocab, least, scale, sum);
    uint32_t bin = nucleus_digit(&nucleus, sum, SCORE_BINS);
    float lo = fmaxf(least, bin_floor(bin, scale));
    float hi = bin == SCORE_BINS - 1 ? INFINITY : bin_floor(bin + 1, scale);
    struct row border = *row;
    border.n_ids = passes->between(row->scores, row->vocab, lo, hi, row->ids);
    row_top_p(&border, &nucleus);
    row->n_ids = passes->list(row->scores, row->vocab, lo, row->ids);
}

/* The rules that drop tokens, with the list of survivors. */
static void row_drop(struct row *row, const struct rules *rules) {
    bool top_k = rules->top_k > 0 && rules->top_k < row->vocab, top_p = rules->top_p < 1;
    /* min_p: p / max p = exp(score); never above the best */
    float least = rules->min_p > 0 ? fminf(logf(rules->min_p), 0) : -INFINITY;
    row->listed = true;
    if (top_p && !top_k) {
        row_top_p_whole(row, rules->top_p, least);
        return;
    }
    if (top_k) least = fmaxf(least, top_k_bound(row, rules->top_k));
    row->n_ids = passes_find()->list(row->scores, row->vocab, least, row->ids);
    if (top_k) row_top_k(row, rules->top_k);
    struct nucleus nucleus = {.total = row_total(row), .top_p = rules->top_p};
    if (top_p) row_top_p(row, &nucleus);
}

/* Everything between logits and the draw (steps 2 to 10), into scores [vocab]. Not for greedy
 * rules. Uses scratch->ids, so a row's list lives until the next call. */
static void row_process(const struct rules *rules, const float *logits, uint32_t out_pos,
                        struct sample_scratch *scratch, float *scores, struct row *row) {
    uint32_t vocab = scratch->vocab;
    *row = (struct row){.vocab = vocab, .scores = scores, .ids = scratch->ids, .best = -1};
    adjusted_copy(rules, logits, out_pos, scratch, scores);
    row->best = passes_find()->argmax(scores, vocab);
    if (row->best < 0) return;
    passes_find()->scores(scores, vocab, scores[row->best], rules->temperature);
    if (rules->min_p > 0 || (rules->top_k > 0 && rules->top_k < vocab) || rules->top_p < 1)
        row_drop(row, rules);
}

/* ---- the draw ---------------------------------------------------------------------------------- */

/* The best total so far of a Gumbel draw. */
struct leader {
    float total;
    uint32_t id;
};

/* Let a token run with its noise word. -log1p(-v) >= v, so g <= -log v, and v >= 2^-(zeros + 1)
 * where the word begins with `zeros` zero bits: most tokens lose without a logarithm. */
static void leader_try(struct leader *leader, uint32_t id, float score, uint32_t word) {
    int zeros = word ? __builtin_clz(word) : 32;
    if (score + (float)(zeros + 1) * 0.6931472f + 0.01f < leader->total) return;
    float total = score + gumbel_noise(word);
    if (total > leader->total || (total == leader->total && id < leader->id))
        *leader = (struct leader){.total = total, .id = id};
}

/* All tokens of a row, in runs: the leader grows, and fewer of the next run have to be tried. */
static void leader_try_all(struct leader *leader, const struct row *row,
                           const struct noise_place *place) {
    enum { RUN = 512 };
    uint32_t ids[RUN], words[RUN];
    for (uint32_t lo = 0; lo < row->vocab; lo += RUN) {
        uint32_t hi = row->vocab - lo < RUN ? row->vocab : lo + RUN;
        uint32_t n = passes_find()->noisy(row->scores, lo, hi, place, leader->total, ids, words);
        for (uint32_t i = 0; i < n; i++)
            leader_try(leader, ids[i], row->scores[ids[i]], words[i]);
    }
}

static const float noise_max = 23; /* gumbel_noise stays below */

/* argmax over survivors of score + noise. The best score runs first, so that the bound bites from
 * the start; the order changes nothing, since ties go to the smallest id. */
static int32_t row_draw(const struct row *row, const struct rules *rules, uint32_t out_pos,
                        enum draw_purpose purpose) {
    if (row->best < 0) return -1;
    uint32_t words[4], group = (uint32_t)row->best / 4;
    draw_words(rules, out_pos, purpose, group, words);
    struct leader leader = {.id = (uint32_t)row->best};
    leader.total = row->scores[leader.id] + gumbel_noise(words[leader.id % 4]);

    if (row->listed &&
        row->n_ids < row->vocab / 64) { /* else vectors that skip the rest are faster */
        for (uint32_t i = 0; i < row->n_ids; i++) {
            uint32_t id = row->ids[i];
            if (row->scores[id] + noise_max < leader.total) continue;
            if (id / 4 != group) draw_words(rules, out_pos, purpose, group = id / 4, words);
            leader_try(&leader, id, row->scores[id], words[id % 4]);
        }
        return (int32_t)leader.id;
    }
    struct noise_place place = {{out_pos, rules->choice, (uint32_t)purpose}, rules->seed};
    leader_try_all(&leader, row, &place);
    return (int32_t)leader.id;
}

static int32_t greedy_token(const struct rules *rules, const float *logits, uint32_t out_pos,
                            struct sample_scratch *scratch) {
    if (!adjust_wanted(rules, out_pos, scratch))
        return passes_find()->argmax(logits, scratch->vocab);
    adjusted_copy(rules, logits, out_pos, scratch, scratch->probs);
    return passes_find()->argmax(scratch->probs, scratch->vocab);
}

/* One row by its own distribution, with the counts as they stand. */
static int32_t row_token(const struct rules *rules, const float *logits, uint32_t out_pos,
                         enum draw_purpose purpose, struct sample_scratch *scratch) {
    if (is_greedy(rules)) return greedy_token(rules, logits, out_pos, scratch);
    if (rules->seeded) purpose = DRAW_GUMBEL;
    struct row row;
    row_process(rules, logits, out_pos, scratch, scratch->probs, &row);
    return row_draw(&row, rules, out_pos, purpose);
}

static uint32_t out_pos_of(const struct history *history) {
    return history->n_tokens - history->n_prompt + history->n_drafted;
}

int32_t sample_token(const struct rules *rules, const float *logits, const struct history *history,
                     enum draw_purpose purpose, struct sample_scratch *scratch) {
    adjust_begin(rules, history, scratch);
    int32_t token = row_token(rules, logits, out_pos_of(history), purpose, scratch);
    adjust_end(scratch);
    return token;
}

uint32_t sample_propose(const struct rules *rules, const float *logits, uint32_t n_rows,
                        const struct history *history, struct sample_scratch *scratch,
                        int32_t *proposals) {
    uint32_t n = 0, out_pos = out_pos_of(history);
    adjust_begin(rules, history, scratch);
    for (; n < n_rows; n++, logits += scratch->vocab) {
        int32_t token = row_token(rules, logits, out_pos + n, DRAW_DRAFT, scratch);
        if (token < 0) break;
        proposals[n] = token;
        adjust_count(rules, token, scratch);
    }
    adjust_end(scratch);
    return n;
}

/* ---- verification ------------------------------------------------------------------------------ */

/* One place by rejection sampling: the proposal where it is kept, else a draw from the residual
 * normalise(max(p - q, 0)); -1 when every token is masked. A proposal that q cannot have drawn (an
 * id outside the vocabulary, or a draft row that was all masked) is refused, and with q = 0
 * everywhere the residual is p. */
static int32_t judge(const struct rules *rules, const float *target, const float *draft_logits,
                     int32_t proposal, uint32_t out_pos, struct sample_scratch *scratch) {
    struct row p, q = {.best = -1};
    row_process(rules, target, out_pos, scratch, scratch->probs, &p);
    if (p.best < 0) return -1;
    bool in_vocab = proposal >= 0 && (uint32_t)proposal < scratch->vocab;
    double p_share = 1 / row_total(&p), q_share = 0, p_at = 0, q_at = in_vocab;
    if (in_vocab) p_at = score_weight(p.scores[proposal]) * p_share;
    if (draft_logits) {
        row_process(rules, draft_logits, out_pos, scratch, scratch->draft, &q);
        if (q.best >= 0) q_share = 1 / row_total(&q);
        q_at = in_vocab && q.best >= 0 ? score_weight(q.scores[proposal]) * q_share : 0;
    }
    if (q_at > 0) {
        uint32_t words[4];
        draw_words(rules, out_pos, DRAW_ACCEPT, (uint32_t)proposal / 4, words);
        double u = ((double)words[proposal % 4] + 0.5) * 0x1p-32;
        if (u < p_at / q_at) return proposal;
    }

    /* The residual's logarithm stands in for the scores. Where nothing is left (rounding) p stays
     * as it is, in q's place. */
    p.listed = false; /* the list was q's, and the residual is not one of p's rules */
    struct row rest = {.vocab = p.vocab, .scores = scratch->draft};
    passes_find()->residual(p.scores, p_share, q.best >= 0 ? q.scores : NULL, q_share, p.vocab,
                            rest.scores);
    if (!draft_logits && in_vocab) rest.scores[proposal] = -INFINITY; /* q = 1 there */
    rest.best = passes_find()->argmax(rest.scores, rest.vocab);
    return row_draw(rest.best >= 0 ? &rest : &p, rules, out_pos, DRAW_RESIDUAL);
}

static bool is_end(const struct rules *rules, int32_t token) {
    for (uint32_t i = 0; i < rules->n_end_ids; i++)
        if (rules->end_ids[i] == token) return true;
    return false;
}

/* Where a verification takes its tokens from. */
struct verdict {
    const struct rules *rules;
    const float *target, *draft_logits; /* [n_draft + 1][vocab], [n_draft][vocab] or NULL */
    const int32_t *best;                /* the target's own tokens where they are known, or NULL */
    uint32_t out_pos;
    struct sample_scratch *scratch; /* NULL beside `best` */
};

/* The token of place i: with a proposal, or the last one without. */
static int32_t place_token(const struct verdict *v, uint32_t i, const int32_t *proposal) {
    if (v->best) return v->best[i];
    size_t at = (size_t)i * v->scratch->vocab;
    if (!proposal || is_greedy(v->rules) || v->rules->seeded)
        return row_token(v->rules, v->target + at, v->out_pos + i, DRAW_GUMBEL, v->scratch);
    return judge(v->rules, v->target + at, v->draft_logits ? v->draft_logits + at : NULL, *proposal,
                 v->out_pos + i, v->scratch);
}

/* The walk of sample_accept: each place yields one token; it goes on while that is the proposal. */
static void accept_walk(const struct verdict *v, const int32_t *draft, uint32_t n_draft,
                        struct outcome *out) {
    ASSERT(n_draft < DRAFT_MAX);
    out->n_drafted = out->n_proposed = n_draft;
    out->n_accepted = 0;
    out->n_tokens = 0;
    out->exhausted = false;
    if (n_draft > 0) memcpy(out->proposed, draft, n_draft * sizeof *draft);
    for (uint32_t i = 0; i <= n_draft; i++) {
        int32_t token = place_token(v, i, i < n_draft ? &draft[i] : NULL);
        if (token < 0) {
            out->exhausted = true;
            return;
        }
        out->tokens[out->n_tokens++] = token;
        if (i == n_draft || token != draft[i]) return;
        out->n_accepted++;
        if (is_end(v->rules, token)) { /* the text is over; below min_tokens it was masked */
            out->n_proposed = out->n_accepted;
            return;
        }
        if (v->scratch) adjust_count(v->rules, token, v->scratch);
    }
}

void sample_accept(const struct rules *rules, const int32_t *draft, uint32_t n_draft,
                   const float *target_logits, const float *draft_logits,
                   const struct history *history, struct sample_scratch *scratch,
                   struct outcome *out) {
    struct verdict v = {rules, target_logits, draft_logits, NULL, out_pos_of(history), scratch};
    adjust_begin(rules, history, scratch);
    accept_walk(&v, draft, n_draft, out);
    adjust_end(scratch);
}

bool sample_is_argmax(const struct rules *rules, uint32_t out_pos) {
    return is_greedy(rules) && adjust_never(rules, out_pos);
}

void sample_accept_argmax(const struct rules *rules, const int32_t *draft, uint32_t n_draft,
                          const int32_t *best, struct outcome *out) {
    struct verdict v = {.rules = rules, .best = best};
    accept_walk(&v, draft, n_draft, out);
}
