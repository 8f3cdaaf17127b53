/* sample_rules.h: one block and one row of logits: rules, distribution, draw. Private to sample.cu.
 *
 *   logits z --> mask, bias, penalties (a copy in scratch, only where a rule asks) --> max
 *            --> scores s = (z - max) / T --> min_p, top_k, top_p --> argmax(s + g)
 *
 * The definition is kernels/cpu/sample.c and adjust.c; here a row is never rewritten. Sort its tokens by
 * (score falling, id rising): each of min_p, top_k and top_p keeps a front part of that order, so what
 * is left is told by the last token kept, `border` and `last`, and every pass computes its scores
 * from z again.
 *
 * Where that front part ends: most rows keep few tokens. The want-th largest of the threads' own maxima
 * bounds the want-th largest of all from below, so one pass gathers some hundred candidates into shared
 * memory (and sums the weights of all), where they are sorted and cut. A row that keeps more than the list
 * holds, or a nucleus that reaches beyond it, is searched digit by digit over the row itself.
 *
 *   bytes   4 vocab a pass, the first from memory, the others mostly from L2: max, gather, and
 *           without filters the draw in the gather's place; the search: eleven passes
 *   order   maxima and counts have none; sums are double: a thread's own tokens rising (its quads of four
 *           tokens, 4 blockDim apart), butterflies over a warp, warps rising. blockDim depends on vocab
 *           alone. A listed row's weights are summed in the order of the list, which is sorted. */
#ifndef GERYON_CUDA_SAMPLE_RULES_H
#define GERYON_CUDA_SAMPLE_RULES_H

#include <float.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu.h"

enum {
    SAMPLE_THREADS = 512, /* of a block at most */
    IN_FLIGHT = 4,        /* 16-byte loads that a thread has under way, */
    IN_HAND = 2,          /* and where it has more to do with each */
    LIST = 1024,          /* candidates that a block sorts */
    DIGIT_BITS = 3,       /* of a key, that a pass of the search settles */
    DIGITS = 1 << DIGIT_BITS,
};
#define KEY_NONE 0x007FFFFFu /* of -inf */
/* A word of `seen`: whether the prompt has the token; the other bits: times in the output. */
#define SEEN_PROMPT 0x80000000u
#define NOISE_MAX   23.0f /* gumbel_noise stays below */

typedef unsigned long long wide; /* what atomics and shuffles call 64 bits */

/* Shared memory of a block. */
struct board {
    wide list[LIST];     /* key of the score, then ~id: larger is earlier */
    float weights[LIST]; /* exp(score), once the list is sorted */
    uint32_t maxima[SAMPLE_THREADS];
    wide best[WARP];
    double sums[DIGITS][WARP], totals[DIGITS];
    uint32_t n_list, n_kept, bar;
    int32_t drafted[DRAFT_MAX]; /* proposals before the row, which rules may count */
    float held[DRAFT_MAX];
};

/* ---- numbers ---------------------------------------------------------------------------------- */

/* A 32-bit key in the order of the floats, and back. */
GPU_INLINE uint32_t score_key(float score) {
    const uint32_t u = __float_as_uint(score + 0.0f); /* -0 and +0 are one value */
    return u >> 31 ? ~u : u | 0x80000000u;
}
GPU_INLINE float key_score(uint32_t key) {
    return __uint_as_float(key >> 31 ? key & 0x7FFFFFFFu : ~key);
}
/* Larger value first, then the smaller id. */
GPU_INLINE wide ranked(uint32_t key, uint32_t id) {
    return (wide)key << 32 | (uint32_t)~id;
}
GPU_INLINE uint32_t ranked_key(wide v) {
    return (uint32_t)(v >> 32);
}
GPU_INLINE uint32_t ranked_id(wide v) {
    return ~(uint32_t)v;
}
GPU_INLINE bool is_finite(float v) {
    return fabsf(v) <= FLT_MAX;
}

/* The largest, in every thread. */
GPU_INLINE wide block_best(wide v, wide *warp) {
    const uint32_t n_warps = blockDim.x / WARP;
    GPU_UNROLL
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const wide other = __shfl_xor_sync(FULL_MASK, v, offset);
        v = other > v ? other : v;
    }
    if (threadIdx.x % WARP == 0) warp[threadIdx.x / WARP] = v;
    __syncthreads();
    for (uint32_t i = 0; i < n_warps; i++)
        v = warp[i] > v ? warp[i] : v;
    __syncthreads();
    return v;
}
/* Sums of n <= DIGITS numbers each, in every thread. */
template <int N> GPU_INLINE void block_sums(double *v, struct board *board) {
    GPU_UNROLL
    for (int i = 0; i < N; i++) {
        GPU_UNROLL
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            v[i] += __shfl_xor_sync(FULL_MASK, v[i], offset);
        if (threadIdx.x % WARP == 0) board->sums[i][threadIdx.x / WARP] = v[i];
    }
    __syncthreads();
    if (threadIdx.x < N) {
        double sum = 0;
        for (uint32_t i = 0; i < blockDim.x / WARP; i++)
            sum += board->sums[threadIdx.x][i];
        board->totals[threadIdx.x] = sum;
    }
    __syncthreads();
    GPU_UNROLL
    for (int i = 0; i < N; i++)
        v[i] = board->totals[i];
    __syncthreads();
}

/* ---- a row in memory -------------------------------------------------------------------------- */

/* Four numbers, tokens at .. at + 3; -inf beyond the row. Rows have no padding, so that one of a
 * vocabulary that is no multiple of 4 may begin anywhere. */
struct quad {
    float v[4];
};
GPU_INLINE struct quad quad_load(const float *z, uint32_t at, uint32_t vocab) {
    struct quad q;
    if (at + 4 <= vocab && (uintptr_t)(z + at) % 16 == 0) {
        const uint4 bits = load16(z + at);
        q.v[0] = __uint_as_float(bits.x), q.v[1] = __uint_as_float(bits.y);
        q.v[2] = __uint_as_float(bits.z), q.v[3] = __uint_as_float(bits.w);
        return q;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        q.v[j] = at + j < vocab ? z[at + j] : -INFINITY;
    return q;
}
GPU_INLINE void quad_store(float *z, uint32_t at, uint32_t vocab, struct quad q) {
    if (at + 4 <= vocab && (uintptr_t)(z + at) % 16 == 0) {
        store16(z + at, make_uint4(__float_as_uint(q.v[0]), __float_as_uint(q.v[1]),
                                   __float_as_uint(q.v[2]), __float_as_uint(q.v[3])));
        return;
    }
    GPU_UNROLL
    for (uint32_t j = 0; j < 4; j++)
        if (at + j < vocab) z[at + j] = q.v[j];
}
/* visit(first token, quad) for this thread's share of a row, N quads after N loads. */
template <int N, class Visit>
GPU_INLINE void each_quad(const float *z, uint32_t vocab, const Visit &visit) {
    const uint32_t step = 4 * blockDim.x;
    for (uint32_t at = 4 * threadIdx.x; at < vocab; at += N * step) {
        struct quad quads[N];
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            quads[i] = quad_load(z, at + i * step, vocab);
        GPU_UNROLL
        for (uint32_t i = 0; i < N; i++)
            visit(at + i * step, quads[i]);
    }
}

/* This thread's best and whether all that it saw are numbers: a row with NaN or an infinity decides
 * nothing, so nothing here need clean it. */
struct glance {
    float value;
    uint32_t id;
    bool finite;
};
GPU_INLINE struct glance glance_row(const float *z, uint32_t vocab) {
    struct glance g = {-INFINITY, 0, true};
    each_quad<IN_FLIGHT>(z, vocab, [&](uint32_t at, const struct quad &q) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            g.finite = g.finite && (is_finite(q.v[j]) || at + j >= vocab);
            if (q.v[j] > g.value) g.value = q.v[j], g.id = at + j;
        }
    });
    return g;
}

/* ---- random numbers --------------------------------------------------------------------------- */

/* What a place's random words depend on, but for the token. */
struct noise {
    uint64_t seed;
    uint32_t out_pos, choice, purpose;
};
GPU_INLINE struct noise noise_of(const struct gpu_slot *rules, uint32_t out_pos, uint32_t purpose) {
    const struct noise noise = {rules->seed, out_pos, rules->choice, purpose};
    return noise;
}
/* Philox4x32-10: the words of tokens 4 group .. 4 group + 3, as philox4x32 of kernels.h. */
GPU_INLINE void draw_words(const struct noise *noise, uint32_t group, uint32_t words[4]) {
    uint32_t c0 = noise->out_pos, c1 = noise->choice, c2 = noise->purpose, c3 = group;
    uint32_t k0 = (uint32_t)noise->seed, k1 = (uint32_t)(noise->seed >> 32);
    GPU_UNROLL
    for (int round = 0; round < 10; round++) {
        const uint32_t lo0 = 0xD2511F53u * c0, hi0 = __umulhi(0xD2511F53u, c0);
        const uint32_t lo1 = 0xCD9E8D57u * c2, hi1 = __umulhi(0xCD9E8D57u, c2);
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}
/* words[i], without an array that is indexed: those live in memory. */
GPU_INLINE uint32_t word_of(const uint32_t words[4], uint32_t i) {
    return i < 2 ? (i < 1 ? words[0] : words[1]) : (i < 3 ? words[2] : words[3]);
}
GPU_INLINE float gumbel(uint32_t word) {
    float v = ((float)word + 0.5f) * 0x1p-32f;
    if (v > 1.0f - 0x1p-24f) v = 1.0f - 0x1p-24f;
    return -logf(-log1pf(-v));
}

/* The best total so far of a Gumbel draw. */
struct leader {
    float total;
    uint32_t id;
};
/* As in kernels/cpu/sample.c: most tokens lose by the zero bits that their word begins with. */
GPU_INLINE void leader_try(struct leader *leader, uint32_t id, float score, uint32_t word) {
    const int zeros = __clz((int)word);
    if (score == -INFINITY) return;
    if (score + (float)(zeros + 1) * 0.6931472f + 0.01f < leader->total) return;
    const float total = score + gumbel(word);
    if (total > leader->total || (total == leader->total && id < leader->id))
        leader->total = total, leader->id = id;
}
/* -1: no token ran. */
GPU_INLINE int32_t block_winner(const struct leader *leader, struct board *board) {
    const wide best = block_best(ranked(score_key(leader->total), leader->id), board->best);
    return ranked_key(best) > KEY_NONE ? (int32_t)ranked_id(best) : -1;
}

/* ---- rules that change single logits ---------------------------------------------------------- */

GPU_INLINE bool is_greedy(const struct gpu_slot *rules) {
    return rules->temperature < 1e-4f;
}
GPU_INLINE bool repeats(const struct gpu_slot *rules) {
    return rules->repetition > 0 && rules->repetition != 1;
}
GPU_INLINE bool counts_output(const struct gpu_slot *rules) {
    return rules->frequency != 0 || rules->presence != 0;
}
GPU_INLINE bool rules_count(const struct gpu_slot *rules) {
    return repeats(rules) || counts_output(rules);
}
GPU_INLINE bool masks_ends(const struct gpu_slot *rules, uint32_t out_pos) {
    return out_pos < rules->min_tokens && rules->n_end_ids > 0;
}
GPU_INLINE bool rules_adjust(const struct gpu_slot *rules, uint32_t out_pos) {
    return masks_ends(rules, out_pos) || rules->n_bias > 0 || rules_count(rules);
}

/* Only a mask or a bias of -inf forbids a token. */
GPU_INLINE float held(float z) {
    return z > FLT_MAX ? FLT_MAX : z < -FLT_MAX ? -FLT_MAX : z;
}
/* z of a token that the text holds, n_output times in the output. No fused multiply-add: a host has none
 * here. */
GPU_INLINE float penalised(const struct gpu_slot *rules, float z, uint32_t n_output) {
    if (z == -INFINITY) return z;
    if (repeats(rules)) z = held(z > 0 ? z / rules->repetition : z * rules->repetition);
    if (counts_output(rules) && n_output > 0)
        z = held(z - __fadd_rn(__fmul_rn(rules->frequency, (float)n_output), rules->presence));
    return z;
}

/* Penalties on z: the text's counts lie in `seen`, the first n_drafted proposals on the board count on
 * top. A proposal's own z is put aside until the text's pass is over. */
GPU_INLINE void penalise(const struct gpu_slot *rules, float *z, uint32_t vocab,
                         const uint32_t *seen, uint32_t n_drafted, struct board *board) {
    for (uint32_t i = threadIdx.x; i < n_drafted; i += blockDim.x) {
        const uint32_t id = (uint32_t)board->drafted[i];
        board->held[i] = id < vocab ? z[id] : 0;
    }
    __syncthreads();
    /* Counts as the bits of floats: the same loads. */
    each_quad<IN_FLIGHT>((const float *)seen, vocab, [&](uint32_t at, const struct quad &q) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            if (__float_as_uint(q.v[j]) != 0 && at + j < vocab)
                z[at + j] = penalised(rules, z[at + j], __float_as_uint(q.v[j]) & ~SEEN_PROMPT);
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_drafted; i += blockDim.x) {
        const uint32_t id = (uint32_t)board->drafted[i];
        uint32_t earlier = 0, times = 0;
        for (uint32_t j = 0; j < n_drafted; j++) {
            const uint32_t same = (uint32_t)board->drafted[j] == id;
            times += same;
            earlier += j < i ? same : 0;
        }
        if (earlier > 0 || id >= vocab) continue;
        z[id] = penalised(rules, board->held[i], (seen[id] & ~SEEN_PROMPT) + times);
    }
    __syncthreads();
}

/* Logits into z with the steps that change single ones; whether this thread saw numbers only. */
GPU_INLINE bool adjusted_copy(const struct gpu_slot *rules, const float *logits, float *z,
                              uint32_t vocab, const uint32_t *seen, uint32_t out_pos,
                              uint32_t n_drafted, struct board *board) {
    bool finite = true;
    each_quad<IN_FLIGHT>(logits, vocab, [&](uint32_t at, const struct quad &q) {
        GPU_UNROLL
        for (uint32_t j = 0; j < 4; j++)
            finite = finite && (is_finite(q.v[j]) || at + j >= vocab);
        quad_store(z, at, vocab, q);
    });
    __syncthreads();
    if (masks_ends(rules, out_pos)) {
        for (uint32_t i = threadIdx.x; i < rules->n_end_ids; i += blockDim.x)
            if ((uint32_t)rules->end_ids[i] < vocab) z[rules->end_ids[i]] = -INFINITY;
        __syncthreads();
    }
    if (rules->n_bias > 0) {
        for (uint32_t i = threadIdx.x; i < rules->n_bias; i += blockDim.x) {
            const struct bias bias = rules->bias[i];
            const float at = z[bias.id];
            if (at > -INFINITY)
                z[bias.id] = bias.value > -INFINITY ? held(at + bias.value) : -INFINITY;
        }
        __syncthreads();
    }
    if (rules_count(rules)) penalise(rules, z, vocab, seen, n_drafted, board);
    return finite;
}

/* ---- one row's distribution ------------------------------------------------------------------- */

/* The same in every thread. */
struct dist {
    const float *z;
    uint32_t vocab;
    int32_t best; /* id of the largest, -1 when all are masked */
    float max, temperature;
    uint32_t border, last; /* kept: keys above border, and those on it with ids up to last */
    bool listed;           /* what is kept is board->list[0 .. n_list), sorted */
    uint32_t n_list;
    double total; /* sum of exp(score) of what is kept; only where asked for */
};

GPU_INLINE float dist_score(const struct dist *d, float z) {
    return (z - d->max) / d->temperature;
}
GPU_INLINE bool dist_keeps(const struct dist *d, uint32_t key, uint32_t id) {
    return key > d->border || (key == d->border && id <= d->last);
}
/* -inf where a rule dropped the token. */
GPU_INLINE float dist_kept_score(const struct dist *d, float z, uint32_t id) {
    const float score = dist_score(d, z);
    return dist_keeps(d, score_key(score), id) ? score : -INFINITY;
}

/* Up to the best logit; false: the row has NaN or an infinity. */
GPU_INLINE bool dist_open(struct dist *d, const struct gpu_slot *rules, const float *logits,
                          float *scratch, uint32_t vocab, const uint32_t *seen, uint32_t out_pos,
                          uint32_t n_drafted, struct board *board) {
    bool finite = true;
    *d = {};
    d->z = logits;
    d->vocab = vocab;
    d->temperature = rules->temperature;
    if (rules_adjust(rules, out_pos)) {
        finite = adjusted_copy(rules, logits, scratch, vocab, seen, out_pos, n_drafted, board);
        d->z = scratch;
    }
    const struct glance g = glance_row(d->z, vocab);
    if (d->z == logits) finite = g.finite;
    board->maxima[threadIdx.x] = score_key(g.value);
    if (__syncthreads_or(!finite)) return false;
    const wide best = block_best(ranked(score_key(g.value), g.id), board->best);
    d->best = ranked_key(best) > KEY_NONE ? (int32_t)ranked_id(best) : -1;
    d->max = key_score(ranked_key(best));
    return true;
}

enum measure { MEASURE_COUNT, MEASURE_WEIGHT, MEASURE_TIES };
/* What a search found: its key, what lies above it and what lies on it. */
struct find {
    uint32_t key;
    double above, at;
};
/* The largest key such that what is kept on or above it is enough: `need` tokens, or the share `need`
 * of `total`, compared as float32; by rounding it may never be: then the last key that has weight.
 * Ties: among tokens on the border, keys are ~id. */
GPU_NOINLINE struct find dist_search(struct dist dist, enum measure measure, double need,
                                     double total, struct board *board) {
    const struct dist *d = &dist;
    struct find find = {0, 0, 0};
    for (int shift = 30; shift >= 0; shift -= DIGIT_BITS) { /* the first digit has two bits */
        double sums[DIGITS] = {};
        each_quad<IN_HAND>(d->z, d->vocab, [&](uint32_t at, const struct quad &q) {
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const float score = dist_score(d, q.v[j]);
                uint32_t key = score_key(score);
                if (!dist_keeps(d, key, at + j)) continue;
                if (measure == MEASURE_TIES) {
                    if (key != d->border) continue;
                    key = ~(at + j);
                }
                if ((key ^ find.key) >> shift >> DIGIT_BITS) continue;
                const uint32_t digit = key >> shift & (DIGITS - 1);
                const double weight = measure == MEASURE_WEIGHT ? (double)expf(score) : 1;
                GPU_UNROLL
                for (uint32_t value = 0; value < DIGITS; value++)
                    if (value == digit) sums[value] += weight;
            }
        });
        block_sums<DIGITS>(sums, board);
        uint32_t digit = 0;
        double above = find.above;
        bool enough = false;
        GPU_UNROLL
        for (int value = DIGITS - 1; value >= 0; value--) {
            if (enough || sums[value] == 0) continue;
            digit = (uint32_t)value;
            find.above = above;
            find.at = sums[value];
            above += sums[value];
            enough =
                measure == MEASURE_WEIGHT ? (float)(above / total) >= (float)need : above >= need;
        }
        find.key |= digit << shift;
    }
    return find;
}

GPU_INLINE double dist_total(const struct dist *d, struct board *board) {
    double sum = 0;
    if (d->listed)
        for (uint32_t i = threadIdx.x; i < d->n_list; i += blockDim.x)
            sum += (double)board->weights[i];
    else
        each_quad<IN_FLIGHT>(d->z, d->vocab, [&](uint32_t at, const struct quad &q) {
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const float score = dist_kept_score(d, q.v[j], at + j);
                if (score > -INFINITY) sum += (double)expf(score);
            }
        });
    block_sums<1>(&sum, board);
    return sum;
}

/* Of the tokens on the border keep the first n_ties of `count`. */
GPU_INLINE void dist_cut(struct dist *d, uint32_t border, double n_ties, double count,
                         struct board *board) {
    if (border != d->border) d->last = UINT32_MAX;
    d->border = border;
    if (n_ties >= count) return;
    d->last = ~dist_search(*d, MEASURE_TIES, n_ties, 0, board).key;
}

/* top_k and top_p over the row itself. */
GPU_INLINE void dist_cut_searched(struct dist *d, const struct gpu_slot *rules, bool top_k,
                                  bool top_p, struct board *board) {
    if (top_k) {
        const struct find find = dist_search(*d, MEASURE_COUNT, (double)rules->top_k, 0, board);
        dist_cut(d, find.key, (double)rules->top_k - find.above, find.at, board);
    }
    if (!top_p) return;
    const double total = dist_total(d, board);
    const struct find find = dist_search(*d, MEASURE_WEIGHT, (double)rules->top_p, total, board);
    const double weight = (double)expf(key_score(find.key)), count = rint(find.at / weight);
    double lo = 1, hi = count;
    while (lo < hi) {
        const double mid = floor((lo + hi) / 2);
        if ((float)((find.above + weight * mid) / total) >= rules->top_p)
            hi = mid;
        else
            lo = mid + 1;
    }
    dist_cut(d, find.key, lo, count, board);
}

/* The first n of the list, falling: a bitonic sort of the next power of two, zeros behind. */
GPU_INLINE void list_sort(uint32_t n, struct board *board) {
    uint32_t padded = 1;
    while (padded < n)
        padded *= 2;
    for (uint32_t i = n + threadIdx.x; i < padded; i += blockDim.x)
        board->list[i] = 0;
    __syncthreads();
    for (uint32_t run = 2; run <= padded; run *= 2)
        for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
            for (uint32_t i = threadIdx.x; i < padded / 2; i += blockDim.x) {
                const uint32_t lo = 2 * i - (i & (apart - 1)), hi = lo + apart;
                const wide a = board->list[lo], b = board->list[hi];
                if ((a < b) == ((lo & run) == 0)) board->list[lo] = b, board->list[hi] = a;
            }
            __syncthreads();
        }
}

/* How many of the n sorted candidates are kept; 0: the nucleus goes on beyond them. One thread. */
GPU_INLINE uint32_t list_cut(const struct gpu_slot *rules, const float *weights, uint32_t n,
                             bool top_k, bool top_p, bool whole, double total) {
    if (top_k && n > rules->top_k) n = rules->top_k;
    if (!top_p) return n;
    if (top_k) {
        total = 0;
        for (uint32_t i = 0; i < n; i++)
            total += (double)weights[i];
    }
    /* Divisions are slow: none before the sum is near. */
    const double near = (double)rules->top_p * total * (1 - 1e-6);
    double sum = 0;
    uint32_t weighty = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (weights[i] > 0) weighty = i + 1;
        sum += (double)weights[i];
        if (sum >= near && (float)(sum / total) >= rules->top_p) return i + 1;
    }
    return top_k || whole ? weighty : 0;
}

/* The want-th largest of the threads' maxima, as the key of its score. */
GPU_INLINE uint32_t maxima_bar(const struct dist *d, uint32_t want, struct board *board) {
    const uint32_t mine = board->maxima[threadIdx.x];
    uint32_t before = 0;
    for (uint32_t i = 0; i < blockDim.x; i++) {
        const uint32_t other = board->maxima[i];
        before += other > mine || (other == mine && i < threadIdx.x);
    }
    if (before == want - 1) board->bar = score_key(dist_score(d, key_score(mine)));
    __syncthreads();
    return board->bar;
}

/* min_p, top_k and top_p. */
GPU_INLINE void dist_filter(struct dist *d, const struct gpu_slot *rules, struct board *board) {
    const bool top_k = rules->top_k > 0 && rules->top_k < d->vocab, top_p = rules->top_p < 1;
    const uint32_t least = rules->min_p > 0 ? score_key(fminf(logf(rules->min_p), 0)) : 0;
    d->border = least > KEY_NONE ? least : KEY_NONE + 1;
    d->last = UINT32_MAX;
    if (!top_k && !top_p) return;

    /* blockDim * 25 / 32 maxima are beaten by about 1.5 blockDim tokens. */
    const uint32_t most = blockDim.x * 25 / 32, want = top_k ? rules->top_k : most;
    uint32_t bar = d->border;
    bool listed = true;
    if (d->vocab > LIST) {
        listed = want <= most;
        if (listed) bar = maxima_bar(d, want, board);
        if (bar < d->border) bar = d->border;
    }
    if (listed) {
        double total = 0;
        if (threadIdx.x == 0) board->n_list = 0;
        __syncthreads();
        each_quad<IN_FLIGHT>(d->z, d->vocab, [&](uint32_t at, const struct quad &q) {
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const float score = dist_score(d, q.v[j]);
                const uint32_t key = score_key(score);
                if (key < d->border) continue;
                if (!top_k) total += (double)expf(score);
                if (key < bar) continue;
                const uint32_t place = atomicAdd(&board->n_list, 1u);
                if (place < LIST) board->list[place] = ranked(key, at + j);
            }
        });
        block_sums<1>(&total, board);
        const uint32_t n = board->n_list;
        if (n <= LIST) {
            list_sort(n, board);
            for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
                board->weights[i] = expf(key_score(ranked_key(board->list[i])));
            __syncthreads();
            if (threadIdx.x == 0)
                board->n_kept =
                    list_cut(rules, board->weights, n, top_k, top_p, bar == d->border, total);
            __syncthreads();
            d->n_list = board->n_kept;
            if (d->n_list > 0) {
                d->listed = true;
                d->border = ranked_key(board->list[d->n_list - 1]);
                d->last = ranked_id(board->list[d->n_list - 1]);
                return;
            }
        }
    }
    dist_cut_searched(d, rules, top_k, top_p, board);
}

/* ---- draws ------------------------------------------------------------------------------------ */

/* argmax over what is kept of score + noise; ties to the lowest id. The best score runs first, in every
 * thread, so that bounds bite from the start. */
GPU_INLINE int32_t dist_draw(const struct dist *d, const struct noise *noise, struct board *board) {
    if (d->best < 0) return -1;
    uint32_t words[4], id = (uint32_t)d->best;
    draw_words(noise, id / 4, words);
    struct leader leader = {gumbel(word_of(words, id % 4)), id};
    if (d->listed)
        for (uint32_t i = threadIdx.x; i < d->n_list; i += blockDim.x) {
            const float score = key_score(ranked_key(board->list[i]));
            id = ranked_id(board->list[i]);
            if (score + NOISE_MAX < leader.total) continue;
            draw_words(noise, id / 4, words);
            leader_try(&leader, id, score, word_of(words, id % 4));
        }
    else
        each_quad<IN_HAND>(d->z, d->vocab, [&](uint32_t at, const struct quad &q) {
            float scores[4], top = -INFINITY;
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                scores[j] = dist_kept_score(d, q.v[j], at + j);
                top = fmaxf(top, scores[j]);
            }
            if (top + NOISE_MAX < leader.total) return;
            draw_words(noise, at / 4, words);
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++)
                leader_try(&leader, at + j, scores[j], words[j]);
        });
    return block_winner(&leader, board);
}

/* What proposals were drawn from: a draft row, or NULL: certain, q = 1 at the proposal. */
GPU_INLINE double draft_share(const struct dist *q, int32_t proposal, uint32_t id) {
    if (q == NULL) return (int32_t)id == proposal ? 1 : 0;
    if (q->best < 0) return 0;
    const float score = dist_kept_score(q, q->z[id], id);
    return score > -INFINITY ? (double)expf(score) / q->total : 0;
}

/* A draw from the residual normalise(max(p - q, 0)); -1: nothing is left. A token's total is at most its
 * score in p less log(total) plus noise, so that most lose without a division. */
GPU_INLINE int32_t residual_draw(const struct dist *p, const struct dist *q, int32_t proposal,
                                 const struct noise *noise, struct board *board) {
    const float log_total = logf((float)p->total);
    struct leader leader = {-INFINITY, UINT32_MAX};
    const auto run = [&](uint32_t id, float score, uint32_t word) {
        const float bound = score - log_total + (float)(__clz((int)word) + 1) * 0.6931472f + 0.02f;
        if (score == -INFINITY || bound < leader.total) return;
        const double p_at = (double)expf(score) / p->total, q_at = draft_share(q, proposal, id);
        if (p_at > q_at) leader_try(&leader, id, logf((float)(p_at - q_at)), word);
    };
    uint32_t words[4];
    if (p->listed)
        for (uint32_t i = threadIdx.x; i < p->n_list; i += blockDim.x) {
            const uint32_t id = ranked_id(board->list[i]);
            draw_words(noise, id / 4, words);
            run(id, key_score(ranked_key(board->list[i])), word_of(words, id % 4));
        }
    else
        each_quad<1>(p->z, p->vocab, [&](uint32_t at, const struct quad &v) {
            float scores[4], top = -INFINITY;
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                scores[j] = dist_kept_score(p, v.v[j], at + j);
                top = fmaxf(top, scores[j]);
            }
            if (top == -INFINITY || top - log_total + NOISE_MAX + 0.02f < leader.total) return;
            draw_words(noise, at / 4, words);
            GPU_UNROLL
            for (uint32_t j = 0; j < 4; j++)
                run(at + j, scores[j], words[j]);
        });
    return block_winner(&leader, board);
}

#endif
