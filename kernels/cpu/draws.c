/* draws.c: stages `sample` and `accept`: one task a segment, each with its thread's own scratch.
 * What a draw is lives in sample.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* A row with NaN or an infinity comes of broken weights; its sequence fails alone. */
static bool row_finite(const float *logits, uint32_t vocab) {
    bool finite = true;
    for (uint32_t i = 0; i < vocab; i++)
        finite &= isfinite(logits[i]) != 0;
    return finite;
}

/* Greedy and seeded texts are matched token by token, so their drafts share the target's noise;
 * the others have their own. */
static void sample_task(void *arg, uint32_t task, uint32_t thread) {
    struct device *dev = arg;
    const struct segment *s = &dev->fwd.segments[task];
    if (s->pick != PICK_PROPOSE) return;
    struct slot *slot = &dev->slots[s->slot];
    uint32_t vocab = dev->shape.vocab_size, n = 0;
    slot->n_asked = s->n_logits;
    slot->draft_logits = dev->segment_logit[task];
    const float *logits = dev->draft_logits + (size_t)slot->draft_logits * vocab;
    while (n < s->n_logits && row_finite(logits + (size_t)n * vocab, vocab))
        n++;
    struct history history = segment_history(s);
    slot->n_proposals = sample_propose(&slot->rules, logits, n, &history,
                                       &dev->thread_sample[thread], slot->proposals);
}

int cpu_sample(struct device *dev) {
    ASSERT(dev->drafting);
    pool_run(dev->pool, sample_task, dev, dev->fwd.n_segments);
    return OK;
}

/* segment_scratch is idle in a main forward: it holds each segment's place among the outcomes. */
static void accept_task(void *arg, uint32_t task, uint32_t thread) {
    struct device *dev = arg;
    const struct segment *s = &dev->fwd.segments[task];
    if (s->pick != PICK_ACCEPT) return;
    const struct slot *slot = &dev->slots[s->slot];
    struct outcome *out = &dev->outcomes[dev->segment_scratch[task]];
    uint32_t vocab = dev->shape.vocab_size, n = s->n_proposed;
    const float *target = dev->logits + (size_t)dev->segment_logit[task] * vocab;
    const float *draft_logits = NULL; /* given proposals are certain */
    const int32_t *draft = slot->proposals;
    if (s->given) {
        draft = s->tokens + s->n_rows - n;
    } else {
        if (n > slot->n_proposals) n = slot->n_proposals;
        if (n > 0) draft_logits = dev->draft_logits + (size_t)slot->draft_logits * vocab;
    }
    struct history history = segment_history(s);
    *out = (struct outcome){.slot = s->slot, .status = OK};
    sample_accept(&slot->rules, draft, n, target, draft_logits, &history,
                  &dev->thread_sample[thread], out);
    /* Only the rows that were read: what follows a refused proposal is nobody's text. */
    for (uint32_t i = 0; i < out->n_tokens + out->exhausted; i++)
        if (!row_finite(target + (size_t)i * vocab, vocab)) out->status = ERR_INVALID;
    if (out->status != OK) {
        *out = (struct outcome){.slot = s->slot, .status = ERR_INVALID};
        return;
    }
    if (s->n_proposed > 0 && !s->given) { /* also those that a token limit left unverified */
        out->n_drafted = slot->n_proposals;
        memcpy(out->proposed, slot->proposals, slot->n_proposals * sizeof *slot->proposals);
    }
}

int cpu_accept(struct device *dev) {
    ASSERT(!dev->drafting);
    uint32_t n = 0;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->pick != PICK_ACCEPT) continue;
        ASSERT(s->n_logits == s->n_proposed + 1);
        ASSERT(n < dev->limits.n_slots);
        dev->segment_scratch[i] = n++;
    }
    pool_run(dev->pool, accept_task, dev, dev->fwd.n_segments);
    dev->accepted = true;
    return OK;
}
