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
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/adjust.h"
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

/* Largest value, ties to the smallest id; NaN never wins. -1 when nothing is above -inf. Eight
 * running maxima a block break the chain of compares; only the best block is searched for the id. */
static int32_t argmax(const float *z, uint32_t n) {
    enum { LANES = 8, BLOCK = 512 };
    float best = -INFINITY;
    uint32_t best_lo = 0, best_hi = 0;
    for (uint32_t lo = 0; lo < n; lo += BLOCK) {
        uint32_t hi = n - lo < BLOCK ? n : lo + BLOCK, i = lo;
        float lane[LANES];
        for (int j = 0; j < LANES; j++)
            lane[j] = -INFINITY;
        for (; i + LANES <= hi; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] = z[i + (uint32_t)j] > lane[j] ? z[i + (uint32_t)j] : lane[j];
        for (; i < hi; i++)
            lane[0] = z[i] > lane[0] ? z[i] : lane[0];
        for (int j = 1; j < LANES; j++)
            lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
        if (lane[0] > best) best = lane[0], best_lo = lo, best_hi = hi;
    }
    for (uint32_t i = best_lo; i < best_hi; i++)
        if (z[i] == best) return (int32_t)i;
    return -1;
}

/* Logits into z [vocab], with the steps that change single ones: NaN counts as masked, an infinity
 * stays comparable. */
static void adjusted_copy(const struct rules *rules, const float *logits, uint32_t out_pos,
                          const struct sample_scratch *scratch, float *z) {
    for (uint32_t t = 0; t < scratch->vocab; t++) {
        float logit = logits[t];
        z[t] = logit > FLT_MAX ? FLT_MAX : logit == logit ? logit : -INFINITY;
    }
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
static uint32_t nucleus_digit(struct nucleus *nucleus, const double *sum) {
    uint32_t border = 0;
    double above = nucleus->above;
    for (uint32_t value = DIGIT_VALUES; value-- > 0;) {
        if (sum[value] == 0) continue;
        border = value;
        above = nucleus->above;
        if (nucleus_reached(nucleus, sum[value])) break;
        nucleus->above += sum[value];
    }
    nucleus->above = above;
    return border;
}

static void row_top_p(struct row *row, float top_p) {
    struct nucleus nucleus = {.total = 0, .above = 0, .top_p = top_p};
    uint32_t border = 0, known = 0, count = 0;
    double weight = 0; /* of each token on the border in the end */
    for (uint32_t shift = 32; shift > 0;) {
        shift -= DIGIT_BITS;
        double sum[DIGIT_VALUES] = {0};
        for (uint32_t i = 0; i < row->n_ids; i++) {
            float score = row->scores[row->ids[i]];
            uint32_t key = score_key(score);
            if ((key & known) == border) sum[key_digit(key, shift)] += (double)expf(score);
        }
        if (known == 0)
            for (uint32_t value = DIGIT_VALUES; value-- > 0;)
                nucleus.total += sum[value];
        border |= nucleus_digit(&nucleus, sum) << shift;
        known |= (uint32_t)(DIGIT_VALUES - 1) << shift;
        if (shift > 0) row_cut(row, border, UINT32_MAX);
    }
    for (uint32_t i = 0; i < row->n_ids; i++) {
        float score = row->scores[row->ids[i]];
        if (score_key(score) == border) count++, weight = (double)expf(score);
    }
    row_cut(row, border, nucleus_ties(&nucleus, weight, count));
}

/* min_p while the list of survivors is made: p / max p = exp(score). */
static void row_list(struct row *row, float min_p) {
    float least = min_p > 0 ? fminf(logf(min_p), 0) : -INFINITY; /* never above the best */
    row->n_ids = 0;
    row->listed = true;
    for (uint32_t t = 0; t < row->vocab; t++) {
        if (row->scores[t] < least) row->scores[t] = -INFINITY;
        row->ids[row->n_ids] = t;
        row->n_ids += row->scores[t] > -INFINITY;
    }
}

/* Everything between logits and the draw (steps 2 to 10), into scores [vocab]. Not for greedy
 * rules. Uses scratch->ids, so a row's list lives until the next call. */
static void row_process(const struct rules *rules, const float *logits, uint32_t out_pos,
                        struct sample_scratch *scratch, float *scores, struct row *row) {
    uint32_t vocab = scratch->vocab;
    *row = (struct row){.vocab = vocab, .scores = scores, .ids = scratch->ids, .best = -1};
    adjusted_copy(rules, logits, out_pos, scratch, scores);
    row->best = argmax(scores, vocab);
    if (row->best < 0) return;
    float max = scores[row->best], temperature = rules->temperature;
    for (uint32_t t = 0; t < vocab; t++)
        scores[t] = (scores[t] - max) / temperature;

    bool top_k = rules->top_k > 0 && rules->top_k < vocab, top_p = rules->top_p < 1;
    if (rules->min_p > 0 || top_k || top_p) row_list(row, rules->min_p);
    if (top_k) row_top_k(row, rules->top_k);
    if (top_p) row_top_p(row, rules->top_p);
}

/* Sum of exp(score): what turns scores into probabilities. */
static double row_total(const struct row *row) {
    double total = 0;
    if (row->listed)
        for (uint32_t i = 0; i < row->n_ids; i++)
            total += (double)expf(row->scores[row->ids[i]]);
    else
        for (uint32_t t = 0; t < row->vocab; t++)
            if (row->scores[t] > -INFINITY) total += (double)expf(row->scores[t]);
    return total;
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

    if (row->listed) {
        for (uint32_t i = 0; i < row->n_ids; i++) {
            uint32_t id = row->ids[i];
            if (row->scores[id] + noise_max < leader.total) continue;
            if (id / 4 != group) draw_words(rules, out_pos, purpose, group = id / 4, words);
            leader_try(&leader, id, row->scores[id], words[id % 4]);
        }
        return (int32_t)leader.id;
    }
    for (uint32_t lo = 0; lo < row->vocab; lo += 4) {
        uint32_t n = row->vocab - lo < 4 ? row->vocab - lo : 4;
        float top = -INFINITY;
        for (uint32_t j = 0; j < n; j++)
            top = row->scores[lo + j] > top ? row->scores[lo + j] : top;
        if (top + noise_max < leader.total) continue;
        draw_words(rules, out_pos, purpose, lo / 4, words);
        for (uint32_t j = 0; j < n; j++)
            leader_try(&leader, lo + j, row->scores[lo + j], words[j]);
    }
    return (int32_t)leader.id;
}

static int32_t greedy_token(const struct rules *rules, const float *logits, uint32_t out_pos,
                            struct sample_scratch *scratch) {
    if (!adjust_wanted(rules, out_pos, scratch)) return argmax(logits, scratch->vocab);
    adjusted_copy(rules, logits, out_pos, scratch, scratch->probs);
    return argmax(scratch->probs, scratch->vocab);
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
    double p_total = row_total(&p), q_total = 1, p_at = 0, q_at = in_vocab;
    if (in_vocab) p_at = (double)expf(p.scores[proposal]) / p_total;
    if (draft_logits) {
        row_process(rules, draft_logits, out_pos, scratch, scratch->draft, &q);
        if (q.best >= 0) q_total = row_total(&q);
        q_at = in_vocab && q.best >= 0 ? (double)expf(q.scores[proposal]) / q_total : 0;
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
    struct row rest = {.vocab = p.vocab, .scores = scratch->draft, .best = -1};
    float most = -INFINITY;
    for (uint32_t t = 0; t < p.vocab; t++) {
        double p_t = p.scores[t] > -INFINITY ? (double)expf(p.scores[t]) / p_total : 0, q_t = 0;
        if (!draft_logits)
            q_t = in_vocab && t == (uint32_t)proposal;
        else if (q.best >= 0 && q.scores[t] > -INFINITY)
            q_t = (double)expf(q.scores[t]) / q_total;
        rest.scores[t] = p_t > q_t ? logf((float)(p_t - q_t)) : -INFINITY;
        if (rest.scores[t] > most) most = rest.scores[t], rest.best = (int32_t)t;
    }
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
