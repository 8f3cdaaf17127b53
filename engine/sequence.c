#include "engine/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"

/* One block of memory: the struct, its text stream, tokens, block table, logit bias, index. Pages of it that
 * are never reached are never touched, so room for the whole context costs address space only. */
struct sequence *sequence_create(struct request *request, const struct model *model,
                                 uint32_t max_tokens, uint32_t draft_block, bool ngram) {
    uint32_t step_tokens = draft_block ? draft_block : 1;
    uint32_t tokens_cap = request->n_prompt + max_tokens;
    uint32_t pages_cap = (uint32_t)div_ceil(tokens_cap, PAGE_TOKENS);
    size_t text_at = align_up(sizeof(struct sequence), 64);
    size_t tokens_at = align_up(text_at + text_bytes_needed(model->tokenizer, step_tokens), 64);
    size_t pages_at = align_up(tokens_at + tokens_cap * sizeof(int32_t), 64);
    size_t bias_at = align_up(pages_at + pages_cap * sizeof(uint32_t), 64);
    size_t ngram_at = align_up(bias_at + request->sampling.n_bias * sizeof(struct bias), 64);
    size_t total = align_up(ngram_at + (ngram ? ngram_bytes(tokens_cap) : 0), 64);
    char *block = aligned_alloc(64, total);
    if (!block) return NULL;
    struct sequence *seq = (struct sequence *)(void *)block;
    *seq = (struct sequence){
        .request = request,
        .state = SEQ_WAITING,
        .slot = SLOT_NONE,
        .n_prompt = request->n_prompt,
        .n_tokens = request->n_prompt,
        .tokens_cap = tokens_cap,
        .max_tokens = max_tokens,
        .tokens = (int32_t *)(void *)(block + tokens_at),
        .pages_cap = pages_cap,
        .pages = (uint32_t *)(void *)(block + pages_at),
    };
    memcpy(seq->tokens, request->prompt, request->n_prompt * sizeof(int32_t));
    if (ngram) {
        seq->ngram = ngram_init(block + ngram_at, tokens_cap);
        ngram_extend(seq->ngram, seq->tokens, seq->n_tokens);
    }
    const struct sampling *wants = &request->sampling;
    seq->text = text_init(block + text_at, model->tokenizer, wants, step_tokens);
    seq->rules = (struct rules){
        .n_bias = wants->n_bias,
        .bias = (struct bias *)(void *)(block + bias_at),
        .repetition = (float)wants->repetition_penalty,
        .frequency = (float)wants->frequency_penalty,
        .presence = (float)wants->presence_penalty,
        .temperature = (float)wants->temperature,
        .top_p = (float)wants->top_p,
        .min_p = (float)wants->min_p,
        .top_k = wants->top_k > 0 ? (uint32_t)wants->top_k : 0,
        .seeded = wants->has_seed,
        .seed = wants->seed,
        .choice = request->choice,
        .min_tokens = wants->min_tokens,
    };
    struct bias *bias = (struct bias *)(void *)(block + bias_at);
    for (uint32_t i = 0; i < wants->n_bias; i++) {
        double value = wants->bias[i].value;
        bias[i] = (struct bias){wants->bias[i].id, value <= -100 ? -INFINITY : (float)value};
    }
    if (!wants->ignore_eos)
        for (uint32_t i = 0; i < model->info.n_eos_ids; i++)
            seq->rules.end_ids[seq->rules.n_end_ids++] = model->info.eos_ids[i];
    for (uint32_t i = 0; i < wants->n_stop_ids; i++)
        seq->rules.end_ids[seq->rules.n_end_ids++] = wants->stop_ids[i];
    ASSERT(seq->rules.n_end_ids <= MAX_END_IDS);
    seq->stats.n_prompt = request->n_prompt;
    return seq;
}

void sequence_destroy(struct sequence *seq) {
    free(seq);
}

int sequence_grow(struct sequence *seq, uint32_t n_positions, struct page_pool *pool,
                  const struct kernels *kernels, struct device *device) {
    uint32_t want = (uint32_t)div_ceil(n_positions, PAGE_TOKENS);
    if (want <= seq->n_pages) return OK;
    ASSERT(want <= seq->pages_cap);
    uint32_t n = want - seq->n_pages, *fresh = seq->pages + seq->n_pages;
    if (page_pool_acquire(pool, n, fresh) != OK) return ERR_FULL;
    kernels->pages_clear(device, fresh, n);
    seq->n_pages = want;
    return OK;
}

void sequence_cut(struct sequence *seq, uint32_t n_positions, struct page_pool *pool) {
    uint32_t keep = (uint32_t)div_ceil(n_positions, PAGE_TOKENS);
    while (seq->n_pages > keep)
        page_pool_release(pool, seq->pages[--seq->n_pages]);
}

void sequence_show(struct sequence *seq) {
    uint32_t state = seq->state == SEQ_PREFILL  ? SLOT_PREFILL
                     : seq->state == SEQ_DECODE ? SLOT_DECODE
                     : seq->stats.preemptions   ? SLOT_PREEMPTED
                                                : SLOT_WAITING;
    atomic_store_explicit(&seq->shown.state, state, memory_order_relaxed);
    atomic_store_explicit(&seq->shown.n_cached, seq->stats.n_cached, memory_order_relaxed);
    atomic_store_explicit(&seq->shown.n_output, seq->n_output, memory_order_relaxed);
    atomic_store_explicit(&seq->shown.n_pages, seq->n_pages, memory_order_relaxed);
    atomic_store_explicit(&seq->shown.n_passes, seq->stats.verify_passes, memory_order_relaxed);
    atomic_store_explicit(&seq->shown.n_accepted, seq->stats.n_accepted, memory_order_relaxed);
}

static bool is_eos(const struct model *model, int32_t id) {
    for (uint32_t i = 0; i < model->info.n_eos_ids; i++)
        if (model->info.eos_ids[i] == id) return true;
    return false;
}

static bool is_stop_id(const struct sampling *wants, int32_t id) {
    for (uint32_t i = 0; i < wants->n_stop_ids; i++)
        if (wants->stop_ids[i] == id) return true;
    return false;
}

uint32_t sequence_append(struct sequence *seq, const struct model *model, const int32_t *tokens,
                         uint32_t n, enum finish_reason *finish, int32_t *stop_index,
                         int32_t *stop_id) {
    const struct sampling *wants = &seq->request->sampling;
    *finish = FINISH_NONE;
    *stop_index = *stop_id = -1;
    uint32_t taken = 0;
    while (taken < n && *finish == FINISH_NONE) {
        int32_t id = tokens[taken++];
        ASSERT(seq->n_tokens < seq->tokens_cap && seq->n_output < seq->max_tokens);
        seq->tokens[seq->n_tokens++] = id;
        seq->n_output++;
        bool eos = is_eos(model, id), stop = is_stop_id(wants, id);
        if (stop || (eos && !wants->ignore_eos)) {
            /* The ending token leaves no text, unless the caller wants to see what stopped it. */
            if (stop && wants->include_stop_str_in_output)
                text_push(seq->text, id);
            else
                text_push_silent(seq->text);
            *finish = FINISH_STOP;
            if (stop && !(eos && !wants->ignore_eos)) *stop_id = id;
        } else if (eos) {
            text_push_silent(seq->text);
        } else if ((*stop_index = text_push(seq->text, id)) >= 0) {
            *finish = FINISH_STOP;
        }
        if (*finish == FINISH_NONE && seq->n_output == seq->max_tokens) *finish = FINISH_LENGTH;
    }
    return taken;
}
