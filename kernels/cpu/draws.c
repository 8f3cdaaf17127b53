/* draws.c: stages `sample` and `accept`: one task a segment, each with its thread's own scratch.
 * What a draw is lives in sample.c. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* Its argmax, by the maxima that the lm_head noted; false where a logit is not finite. Such a row
 * comes of broken weights: its sequence fails alone. */
static bool row_best(const struct device *dev, uint32_t row, int32_t *best) {
    const struct maxima *p = &dev->maxima;
    const float *most = p->most + (size_t)row * p->n_groups;
    float largest;
    uint32_t group = dev->ops->maximum(most, p->n_groups, &largest);
    *best = (int32_t)(group * GROUP + p->at[(size_t)row * p->n_groups + group]);
    return isfinite(largest) != 0;
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
    int32_t best[DRAFT_MAX];
    while (n < s->n_logits && row_best(dev, slot->draft_logits + n, &best[n]))
        n++;
    if (sample_is_argmax(&slot->rules, s->out_pos)) {
        memcpy(slot->proposals, best, n * sizeof *best);
        slot->n_proposals = n;
        return;
    }
    const float *logits = dev->draft_logits + (size_t)slot->draft_logits * vocab;
    struct history history = segment_history(s);
    slot->n_proposals = sample_propose(&slot->rules, logits, n, &history,
                                       &dev->thread_sample[thread], slot->proposals);
}

int cpu_sample(struct device *dev) {
    ASSERT(dev->drafting);
    pool_run_unlike(dev->pool, sample_task, dev, dev->fwd.n_segments);
    cpu_note_work(dev, WORK_SAMPLING);
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
    int32_t best[DRAFT_MAX];
    bool finite[DRAFT_MAX];
    for (uint32_t i = 0; i <= n; i++)
        finite[i] = row_best(dev, dev->segment_logit[task] + i, &best[i]);
    struct history history = segment_history(s);
    *out = (struct outcome){.slot = s->slot, .status = OK};
    if (sample_is_argmax(&slot->rules, s->out_pos))
        sample_accept_argmax(&slot->rules, draft, n, best, out);
    else
        sample_accept(&slot->rules, draft, n, target, draft_logits, &history,
                      &dev->thread_sample[thread], out);
    /* Only the rows that were read: what follows a refused proposal is nobody's text. */
    for (uint32_t i = 0; i < out->n_tokens + out->exhausted; i++)
        if (!finite[i]) out->status = ERR_INVALID;
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
    pool_run_unlike(dev->pool, accept_task, dev, dev->fwd.n_segments);
    cpu_note_work(dev, WORK_SAMPLING);
    dev->accepted = true;
    return OK;
}
