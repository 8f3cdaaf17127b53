/* sample.cu: stages `sample` (draft rows to proposals) and `accept` (verification, and one more draw).
 *
 *   sample_first   grid (row + segment, slice): the text's counts where rules count; and of rows that are
 *                  greedy without any adjustment each slice's best (texts and rows are split so that
 *                  few of them still fill the device)
 *   sample_rows    grid (row, at most SAMPLE_BLOCKS): all other rows, one block each, with scratch of the
 *                  block for what is adjusted: sample_rules.h
 *   sample_walk    grid (segment): goes along a segment's rows as kernels/cpu/draws.c does
 *
 * Every row of a verification can be decided at once: its text is the segment's and the proposals before
 * it, which are known. A draft row's predecessors are not, so where rules count one block goes through a
 * segment's draft rows. The walk then keeps what belongs to the text; rows behind the first refusal were
 * for nothing.
 *
 * Bound by the bytes of logits: greedy rows are read once, others two to four times, mostly from L2. No
 * result depends on the grids: maxima have no order, sums are a block's own. */
#include "kernels/cuda/gpu.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/sample_rules.h"

enum {
    SLICES = 32,         /* parts of a greedy row at most */
    SLICE_TOKENS = 4096, /* of a part at least */
    FIRST_THREADS = 256,
    WALK_THREADS = 256,
};

struct part {
    wide best;
    uint32_t finite;
};
/* What a row with logits decided. Of a plain row the parts say it. */
struct draw {
    int32_t token;   /* -1: every token is masked */
    uint32_t finite; /* 0: the row has NaN or an infinity, and decides nothing */
    struct part parts[SLICES];
};

extern "C" size_t gpu_draw_bytes(void) {
    return sizeof(struct draw);
}

/* What the kernels see of the device. */
struct sampling {
    struct batch batch;
    struct gpu_slot *slots;
    struct outcome *outcomes;
    const float *logits, *draft_logits; /* logits: of the forward at hand */
    float *scores;
    uint32_t *seen;
    struct draw *draws;
    uint32_t vocab, pick;
    uint32_t n_rows, n_slices; /* sample_first's grid */
};

/* ---- rows and segments ------------------------------------------------------------------------ */

/* Rows of a segment that are decided: draft rows all; main rows one for each proposal that was made,
 * and one more. */
GPU_INLINE uint32_t rows_wanted(const struct seg *s, const struct gpu_slot *slot) {
    uint32_t n = s->n_proposed;
    if (s->pick == PICK_PROPOSE) return s->n_logits;
    if (!s->given && n > slot->n_proposals) n = slot->n_proposals;
    return n + 1;
}
GPU_INLINE const int32_t *proposals_of(const struct sampling *in, const struct seg *s,
                                       const struct gpu_slot *slot) {
    return s->given ? in->batch.tokens + s->tokens : slot->proposals;
}
/* Greedy, and no logit is touched: the largest of the row as it is. */
GPU_INLINE bool row_is_plain(const struct gpu_slot *rules, uint32_t out_pos) {
    return is_greedy(rules) && !rules_adjust(rules, out_pos);
}

/* ---- the first pass --------------------------------------------------------------------------- */

/* This block's share of a segment's text: any order gives the same numbers. */
GPU_INLINE void count_text(const struct sampling *in, const struct seg *s,
                           const struct gpu_slot *rules, uint32_t share) {
    uint32_t *seen = in->seen + (size_t)s->slot * in->vocab;
    const int32_t *text = in->batch.tokens + s->history;
    const uint32_t n = s->prompt_len + s->out_pos, step = in->n_slices * blockDim.x;
    const uint32_t first = share * blockDim.x + threadIdx.x;
    if (repeats(rules))
        for (uint32_t i = first; i < s->prompt_len; i += step)
            atomicOr(&seen[text[i]], SEEN_PROMPT);
    for (uint32_t i = s->prompt_len + first; i < n; i += step)
        atomicAdd(&seen[text[i]], 1u);
}

GPU_INLINE void slice_row(const struct sampling *in, uint32_t row, uint32_t slice, wide *warp) {
    const uint32_t tokens = (in->vocab + 4 * in->n_slices - 1) / (4 * in->n_slices) * 4;
    const uint32_t lo = slice * tokens < in->vocab ? slice * tokens : in->vocab;
    const uint32_t n = in->vocab - lo < tokens ? in->vocab - lo : tokens;
    const struct glance g = glance_row(in->logits + (size_t)row * in->vocab + lo, n);
    const int broken = __syncthreads_or(!g.finite);
    const wide best = block_best(ranked(score_key(g.value), lo + g.id), warp);
    if (threadIdx.x > 0) return;
    struct part *part = &in->draws[row].parts[slice];
    part->best = best;
    part->finite = !broken;
}

static __global__ void __launch_bounds__(FIRST_THREADS) sample_first(struct sampling in) {
    __shared__ wide warp[WARP];
    const struct batch *batch = &in.batch;
    if (blockIdx.x >= in.n_rows) {
        const uint32_t i = blockIdx.x - in.n_rows;
        if (i >= batch->counts->n_segments) return;
        const struct seg *s = &batch->segments[i];
        const struct gpu_slot *rules = &in.slots[s->slot];
        if (s->pick == in.pick && rules_count(rules)) count_text(&in, s, rules, blockIdx.y);
        return;
    }
    const uint32_t row = blockIdx.x;
    if (row >= batch->counts->n_logit_rows) return;
    const struct seg *s = &batch->segments[batch->logit_segments[row]];
    const struct gpu_slot *slot = &in.slots[s->slot];
    const uint32_t place = row - s->first_logit;
    if (s->pick != in.pick || place >= rows_wanted(s, slot)) return;
    if (row_is_plain(slot, s->out_pos + place)) slice_row(&in, row, blockIdx.y, warp);
}

/* ---- rows ------------------------------------------------------------------------------------- */

/* One place by rejection sampling: the proposal where it is kept, else a draw from the residual, which
 * is p where q cannot have drawn the proposal; -1 when every token is masked. */
GPU_INLINE int32_t judge(const struct dist *p, const struct dist *q, const struct gpu_slot *rules,
                         int32_t proposal, uint32_t out_pos, struct board *board) {
    if (p->best < 0) return -1;
    if (proposal >= 0 && (uint32_t)proposal < p->vocab) {
        const uint32_t id = (uint32_t)proposal;
        const float score = dist_kept_score(p, p->z[id], id);
        const double p_at = (double)expf(score) / p->total, q_at = draft_share(q, proposal, id);
        const struct noise noise = noise_of(rules, out_pos, DRAW_ACCEPT);
        uint32_t words[4];
        draw_words(&noise, id / 4, words);
        const double u = ((double)word_of(words, id % 4) + 0.5) * 0x1p-32;
        if (q_at > 0 && u < p_at / q_at) return proposal;
    }
    const struct noise noise = noise_of(rules, out_pos, DRAW_RESIDUAL);
    const int32_t token = residual_draw(p, q, proposal, &noise, board);
    return token >= 0 ? token : dist_draw(p, &noise, board); /* nothing is left, by rounding */
}

/* Decides a row after the first n_drafted proposals on the board, into *draw. The row is judged against
 * proposal n_drafted where `judged`. */
GPU_INLINE int32_t decide(const struct sampling *in, const struct seg *s,
                          const struct gpu_slot *slot, uint32_t place, bool judged,
                          struct board *board) {
    const uint32_t vocab = in->vocab, out_pos = s->out_pos + place, row = s->first_logit + place;
    const uint32_t *seen = in->seen + (size_t)s->slot * vocab;
    const bool drafted = judged && !s->given;
    struct dist p, q = {};
    bool finite = true;
    /* q first: what the board lists is then p's. */
    for (uint32_t i = drafted ? 2 : 1; i-- > 0 && finite;) {
        const float *logits = i == 1
                                  ? in->draft_logits + (size_t)(slot->draft_logits + place) * vocab
                                  : in->logits + (size_t)row * vocab;
        float *scratch = in->scores + ((size_t)blockIdx.x * 2 + i) * vocab;
        finite = dist_open(&p, slot, logits, scratch, vocab, seen, out_pos, place, board);
        if (finite && p.best >= 0 && !is_greedy(slot)) {
            dist_filter(&p, slot, board);
            if (judged) p.total = dist_total(&p, board);
        }
        if (i == 1) q = p;
    }
    int32_t token = -1;
    if (finite && judged)
        token = judge(&p, drafted ? &q : NULL, slot, board->drafted[place], out_pos, board);
    else if (finite && is_greedy(slot))
        token = p.best;
    else if (finite) {
        const bool own_noise = s->pick == PICK_PROPOSE && !slot->seeded;
        const struct noise noise = noise_of(slot, out_pos, own_noise ? DRAW_DRAFT : DRAW_GUMBEL);
        token = dist_draw(&p, &noise, board);
    }
    if (threadIdx.x == 0) {
        in->draws[row].token = token;
        in->draws[row].finite = finite;
    }
    return token;
}

static __global__ void __launch_bounds__(SAMPLE_THREADS, 1) sample_rows(struct sampling in) {
    __shared__ struct board board;
    const struct batch *batch = &in.batch;
    for (uint32_t row = blockIdx.x; row < batch->counts->n_logit_rows; row += gridDim.x) {
        const struct seg *s = &batch->segments[batch->logit_segments[row]];
        const struct gpu_slot *slot = &in.slots[s->slot];
        const uint32_t n = rows_wanted(s, slot), place = row - s->first_logit;
        if (s->pick != in.pick || place >= n) continue;
        if (row_is_plain(slot, s->out_pos + place)) continue;
        const bool in_turn = s->pick == PICK_PROPOSE && rules_count(slot);
        if (in_turn && place > 0) continue;
        __syncthreads(); /* the board is free */
        const bool judged =
            s->pick == PICK_ACCEPT && place + 1 < n && !is_greedy(slot) && !slot->seeded;
        if (s->pick == PICK_ACCEPT)
            for (uint32_t i = threadIdx.x; i + 1 < n && i <= place; i += blockDim.x)
                board.drafted[i] = proposals_of(&in, s, slot)[i];
        __syncthreads();
        for (uint32_t i = place; i < (in_turn ? n : place + 1); i++) {
            const int32_t token = decide(&in, s, slot, i, judged, &board);
            if (token < 0) break; /* in turn: the walk stops here too */
            if (in_turn && threadIdx.x == 0) board.drafted[i] = token;
            __syncthreads();
        }
    }
}

/* ---- the walk --------------------------------------------------------------------------------- */

/* What the rows of a segment came to. */
struct walk {
    int32_t tokens[DRAFT_MAX];
    bool finite[DRAFT_MAX], ends[DRAFT_MAX];
    uint32_t n_tokens, n_accepted, n_proposed;
    bool exhausted, failed;
};

GPU_INLINE void walk_row(const struct sampling *in, const struct seg *s,
                         const struct gpu_slot *slot, uint32_t place, struct walk *walk) {
    const struct draw *draw = &in->draws[s->first_logit + place];
    int32_t token;
    bool finite = true, ends = false;
    if (row_is_plain(slot, s->out_pos + place)) {
        wide best = 0;
        for (uint32_t i = 0; i < in->n_slices; i++) {
            best = draw->parts[i].best > best ? draw->parts[i].best : best;
            finite = finite && draw->parts[i].finite;
        }
        token = ranked_key(best) > KEY_NONE ? (int32_t)ranked_id(best) : -1;
    } else {
        token = draw->token;
        finite = draw->finite;
    }
    for (uint32_t i = 0; i < slot->n_end_ids; i++)
        ends = ends || slot->end_ids[i] == token;
    walk->tokens[place] = token;
    walk->finite[place] = finite;
    walk->ends[place] = ends;
}

/* The proposals before the first row that has none. One thread. */
GPU_INLINE uint32_t walk_proposals(const struct walk *walk, uint32_t n_rows) {
    uint32_t n = 0;
    while (n < n_rows && walk->finite[n] && walk->tokens[n] >= 0)
        n++;
    return n;
}
/* As accept_walk of kernels/cpu/sample.c; a row that is not finite fails the sequence where it is
 * read. One thread. */
GPU_INLINE void walk_accept(struct walk *walk, const int32_t *draft, uint32_t n_draft) {
    walk->n_tokens = walk->n_accepted = 0;
    walk->n_proposed = n_draft;
    walk->exhausted = walk->failed = false;
    for (uint32_t i = 0; i <= n_draft; i++) {
        const int32_t token = walk->tokens[i];
        walk->failed = !walk->finite[i];
        walk->exhausted = !walk->failed && token < 0;
        if (walk->failed || walk->exhausted) return;
        walk->n_tokens++;
        if (i == n_draft || token != draft[i]) return;
        walk->n_accepted++;
        if (walk->ends[i]) {
            walk->n_proposed = walk->n_accepted;
            return;
        }
    }
}

GPU_INLINE void fill_outcome(const struct sampling *in, const struct seg *s,
                             const struct gpu_slot *slot, const struct walk *walk) {
    struct outcome *out = &in->outcomes[s->outcome];
    const int32_t *draft = proposals_of(in, s, slot);
    uint32_t n_drafted = rows_wanted(s, slot) - 1;
    if (s->n_proposed > 0 && !s->given) n_drafted = slot->n_proposals; /* also beyond a limit */
    if (walk->failed) n_drafted = 0;
    const uint32_t n_tokens = walk->failed ? 0 : walk->n_tokens;
    for (uint32_t i = threadIdx.x; i < DRAFT_MAX; i += blockDim.x) {
        out->proposed[i] = i < n_drafted ? draft[i] : 0;
        out->tokens[i] = i < n_tokens ? walk->tokens[i] : 0;
    }
    if (threadIdx.x > 0) return;
    out->slot = s->slot;
    out->status = walk->failed ? ERR_INVALID : OK;
    out->n_drafted = n_drafted;
    out->n_proposed = walk->failed ? 0 : walk->n_proposed;
    out->n_accepted = walk->failed ? 0 : walk->n_accepted;
    out->n_tokens = n_tokens;
    out->exhausted = walk->exhausted;
}

static __global__ void __launch_bounds__(WALK_THREADS) sample_walk(struct sampling in) {
    __shared__ struct walk walk;
    __shared__ uint32_t n_proposals;
    if (blockIdx.x >= in.batch.counts->n_segments) return;
    const struct seg *s = &in.batch.segments[blockIdx.x];
    struct gpu_slot *slot = &in.slots[s->slot];
    if (s->pick != in.pick) return;
    const uint32_t n = rows_wanted(s, slot);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        walk_row(&in, s, slot, i, &walk);
    __syncthreads();
    if (threadIdx.x == 0 && s->pick == PICK_PROPOSE) n_proposals = walk_proposals(&walk, n);
    if (threadIdx.x == 0 && s->pick == PICK_ACCEPT)
        walk_accept(&walk, proposals_of(&in, s, slot), n - 1);
    __syncthreads();
    if (s->pick == PICK_PROPOSE)
        for (uint32_t i = threadIdx.x; i < n_proposals; i += blockDim.x)
            slot->proposals[i] = walk.tokens[i];
    else
        fill_outcome(&in, s, slot, &walk);
    __syncthreads(); /* the slot has been read */
    if (threadIdx.x == 0) {
        slot->n_asked = s->pick == PICK_PROPOSE ? s->n_logits : 0;
        slot->n_proposals = s->pick == PICK_PROPOSE ? n_proposals : 0;
        if (s->pick == PICK_PROPOSE) slot->draft_logits = s->first_logit;
    }
    if (rules_count(slot)) { /* the counts are zero between stages */
        const int32_t *text = in.batch.tokens + s->history;
        for (uint32_t i = threadIdx.x; i < s->prompt_len + s->out_pos; i += blockDim.x)
            atomicExch(&in.seen[(size_t)s->slot * in.vocab + (uint32_t)text[i]], 0u);
    }
}

/* ---- launchers -------------------------------------------------------------------------------- */

static uint32_t at_most(uint32_t n, uint32_t most) {
    return n < most ? n : most;
}
static cudaError_t decide_rows(const struct device *dev, enum pick pick, cudaStream_t stream) {
    const uint32_t vocab = dev->shape.vocab_size, rows = dev->grid.logit_rows;
    const uint32_t segments = dev->grid.segments;
    if (rows == 0 || segments == 0) return cudaSuccess;
    struct sampling in = {};
    in.batch = dev->batch;
    in.slots = dev->slots;
    in.outcomes = dev->outcomes;
    in.logits = pick == PICK_PROPOSE ? dev->draft_logits : dev->logits;
    in.draft_logits = dev->draft_logits;
    in.scores = dev->scores;
    in.seen = dev->seen;
    in.draws = dev->draws;
    in.vocab = vocab;
    in.pick = pick;
    in.n_rows = rows;
    const uint32_t most = at_most((uint32_t)div_ceil(vocab, SLICE_TOKENS), SLICES);
    in.n_slices = at_most((uint32_t)div_ceil(2 * dev->n_sms, rows), most);

    /* A thread for eight tokens, so that small vocabularies cost little; by vocab alone: see the
     * order of sums. */
    const uint32_t threads = at_most((uint32_t)align_up(div_ceil(vocab, 8), WARP), SAMPLE_THREADS);
    cudaError_t error = GPU_LAUNCH(sample_first, dim3(rows + segments, in.n_slices),
                                   dim3(at_most(threads, FIRST_THREADS)), 0, stream, in);
    if (error) return error;
    error =
        GPU_LAUNCH(sample_rows, dim3(at_most(rows, SAMPLE_BLOCKS)), dim3(threads), 0, stream, in);
    if (error) return error;
    return GPU_LAUNCH(sample_walk, dim3(segments), dim3(WALK_THREADS), 0, stream, in);
}

extern "C" cudaError_t gpu_sample(const struct device *dev, cudaStream_t stream) {
    return dev->grid.propose > 0 ? decide_rows(dev, PICK_PROPOSE, stream) : cudaSuccess;
}
extern "C" cudaError_t gpu_accept(const struct device *dev, cudaStream_t stream) {
    return dev->grid.accept > 0 ? decide_rows(dev, PICK_ACCEPT, stream) : cudaSuccess;
}
