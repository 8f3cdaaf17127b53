/* device.c: the scripted kernel table. Weights are nothing, a KV page is the tokens of its
 * positions, and logits come from the script for the history that a row finds in its pages:
 *
 *   slot 3   block table  [ 7 | 2 ]        page 7: t0 t1 .. t15     page 2: t16 t17 -1 ..
 *            wrote        lo .. hi  ------------- the same tokens, kept apart -----------
 *
 * The slot's own copy of what it wrote is what the walk is checked against: a wrong block table, a
 * page given away too early or a row at a wrong position is an assertion here, and not a text that
 * looks odd. */
#include "tests/scripted/device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/scripted/scripted.h"
#include "tests/scripted/state.h"

enum {
    POISON = -1,           /* a position that nobody wrote since the page was cleared */
    PAGE_BYTES = 16 << 10, /* what a page claims to take: a round share of any --kv-memory */
};

struct slot {
    struct rules rules;
    int32_t *wrote;  /* [max_position] tokens of positions lo .. hi - 1 */
    uint32_t lo, hi; /* positions before lo came with shared pages; lo = hi: all so far */
    int32_t proposals[DRAFT_MAX];
    uint32_t n_asked;     /* proposals the last draft forward was to make */
    uint32_t n_proposals; /* and made: fewer where a row was all masked */
    uint32_t draft_row;   /* their first row in draft_logits */
    uint64_t seen[3];     /* by view: the last forward that had a segment */
};

struct device {
    struct model_shape shape;
    struct script *script;
    struct scripted_time *time; /* NULL: costs are slept */
    struct device_limits limits;
    bool reserved;
    int32_t *pages; /* [n_pages][PAGE_TOKENS] */
    struct slot *slots;
    int32_t *wrote;      /* the slots' copies */
    int32_t *history;    /* [max_position + DRAFT_MAX] of the segment at hand */
    float *logits;       /* [max_logit_rows][vocab] of the last main forward */
    float *draft_logits; /* the same of the last draft forward */
    float *last_logits;  /* which of the two the last forward filled */
    float *spare;        /* [vocab]: a draft row that nobody wants the logits of */
    struct sample_scratch scratch;
    struct state *state;      /* NULL: the script has none */
    struct outcome *outcomes; /* [n_slots] */
    uint32_t *logit_row;      /* [2 * n_slots]: first logit row of each segment */
    /* the forward at hand */
    struct forward fwd;
    uint64_t forward_no;
    bool drafting, accepted;
    uint32_t n_rows, n_logit_rows, n_outcomes;
};

/* ---- life -------------------------------------------------------------------------------------- */

static int scripted_open(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                         struct err *err) {
    (void)n_threads;
    struct device *dev = calloc(1, sizeof *dev);
    if (!dev) return err_set(err, ERR_NOMEM, "scripted: no memory");
    dev->shape = *shape;
    *out = dev;
    return OK;
}

void device_set_script(struct device *dev, struct script *script) {
    ASSERT(!dev->script);
    ASSERT(script->n_vocab == dev->shape.vocab_size);
    dev->script = script;
}

void device_set_time(struct device *dev, struct scripted_time *time) {
    dev->time = time;
}

const struct script *device_script(const struct device *dev) {
    return dev->script;
}

static void free_memory(struct device *dev) {
    free(dev->pages);
    free(dev->slots);
    free(dev->wrote);
    free(dev->history);
    free(dev->logits);
    free(dev->draft_logits);
    free(dev->spare);
    free(dev->scratch.probs);
    free(dev->scratch.draft);
    free(dev->scratch.ids);
    state_destroy(dev->state);
    free(dev->scratch.counts);
    free(dev->scratch.counted);
    free(dev->outcomes);
    free(dev->logit_row);
}

static void scripted_close(struct device *dev) {
    if (!dev) return;
    free_memory(dev);
    script_destroy(dev->script);
    free(dev);
}

static int scripted_load(struct device *dev, enum weight which, uint32_t layer,
                         const struct tensor *src, struct err *err) {
    (void)dev, (void)which, (void)layer, (void)src, (void)err; /* nothing here has weights */
    return OK;
}

static size_t scripted_page_bytes(const struct device *dev, enum dtype kv_dtype) {
    (void)dev, (void)kv_dtype;
    return PAGE_BYTES;
}

static size_t scripted_workspace_bytes(const struct device *dev,
                                       const struct device_limits *limits) {
    size_t rows = 2 * (size_t)limits->max_logit_rows + 6;
    size_t positions = (size_t)dev->shape.max_position * (limits->n_slots + 1);
    return rows * dev->shape.vocab_size * sizeof(float) + positions * sizeof(int32_t) +
           limits->n_slots * (sizeof(struct slot) + sizeof(struct outcome));
}

/* calloc(a * b, size), or NULL where the product does not fit. */
static void *make(size_t a, size_t b, size_t size) {
    size_t n;
    return mul_size(a, b, &n) == OK ? calloc(n, size) : NULL;
}

/* Tests make several engines from one model, so a second call starts afresh. */
static int scripted_reserve(struct device *dev, const struct device_limits *limits,
                            struct err *err) {
    struct device fresh = {
        .shape = dev->shape, .script = dev->script, .time = dev->time, .limits = *limits};
    size_t vocab = dev->shape.vocab_size, n_slots = limits->n_slots;
    size_t max_position = dev->shape.max_position;
    fresh.pages = make(limits->n_pages, PAGE_TOKENS, sizeof *fresh.pages);
    fresh.slots = make(n_slots, 1, sizeof *fresh.slots);
    fresh.wrote = make(n_slots, max_position, sizeof *fresh.wrote);
    fresh.history = make(max_position + DRAFT_MAX, 1, sizeof *fresh.history);
    fresh.logits = make(limits->max_logit_rows, vocab, sizeof *fresh.logits);
    fresh.draft_logits = make(limits->max_logit_rows, vocab, sizeof *fresh.draft_logits);
    fresh.spare = make(vocab, 1, sizeof *fresh.spare);
    fresh.scratch.vocab = (uint32_t)vocab;
    fresh.scratch.probs = make(vocab, 1, sizeof *fresh.scratch.probs);
    fresh.scratch.draft = make(vocab, 1, sizeof *fresh.scratch.draft);
    fresh.scratch.ids = make(vocab, 1, sizeof *fresh.scratch.ids);
    bool has_state = dev->script->state;
    if (has_state)
        fresh.state = state_create(limits->n_slots, limits->n_snapshots, limits->max_proposed);
    fresh.scratch.counts = make(vocab, 1, sizeof *fresh.scratch.counts);
    fresh.scratch.counted = make(vocab, 1, sizeof *fresh.scratch.counted);
    fresh.outcomes = make(n_slots, 1, sizeof *fresh.outcomes);
    fresh.logit_row = make(n_slots, 2, sizeof *fresh.logit_row);
    if (!fresh.pages || !fresh.slots || !fresh.wrote || !fresh.history || !fresh.logits ||
        !fresh.draft_logits || !fresh.spare || !fresh.scratch.probs || !fresh.scratch.draft ||
        !fresh.scratch.ids || !fresh.scratch.counts || !fresh.scratch.counted || !fresh.outcomes ||
        !fresh.logit_row || (has_state && !fresh.state)) {
        free_memory(&fresh);
        return err_set(err, ERR_NOMEM, "scripted: no memory for %u pages and %zu sequences",
                       limits->n_pages, n_slots);
    }
    for (size_t i = 0; i < (size_t)limits->n_pages * PAGE_TOKENS; i++)
        fresh.pages[i] = POISON;
    for (size_t i = 0; i < n_slots; i++)
        fresh.slots[i].wrote = fresh.wrote + i * max_position;
    fresh.last_logits = fresh.logits;
    fresh.reserved = true;
    free_memory(dev);
    *dev = fresh;
    return OK;
}

/* ---- slots and pages --------------------------------------------------------------------------- */

static void scripted_slot_set(struct device *dev, uint32_t slot, const struct rules *rules) {
    ASSERT(slot < dev->limits.n_slots);
    for (uint32_t i = 0; i < rules->n_bias; i++) {
        ASSERT(rules->bias[i].id >= 0);
        ASSERT((uint32_t)rules->bias[i].id < dev->shape.vocab_size);
    }
    struct slot *s = &dev->slots[slot];
    s->rules = *rules;
    s->lo = s->hi = 0;
    s->n_asked = s->n_proposals = 0;
    if (dev->state) state_reset(dev->state, slot);
}

static void scripted_pages_clear(struct device *dev, const uint32_t *pages, uint32_t n_pages) {
    for (uint32_t i = 0; i < n_pages; i++) {
        ASSERT(pages[i] < dev->limits.n_pages);
        for (uint32_t at = 0; at < PAGE_TOKENS; at++)
            dev->pages[(size_t)pages[i] * PAGE_TOKENS + at] = POISON;
    }
}

static void scripted_page_copy(struct device *dev, uint32_t from, uint32_t to) {
    ASSERT(from < dev->limits.n_pages);
    ASSERT(to < dev->limits.n_pages);
    ASSERT(from != to);
    memcpy(dev->pages + (size_t)to * PAGE_TOKENS, dev->pages + (size_t)from * PAGE_TOKENS,
           PAGE_TOKENS * sizeof *dev->pages);
}

static size_t scripted_snapshot_bytes(const struct device *dev) {
    return dev->script->state ? SNAPSHOT_BYTES : 0;
}

static void scripted_state_save(struct device *dev, uint32_t slot, uint32_t pos,
                                uint32_t snapshot) {
    if (dev->state) state_save(dev->state, slot, pos, snapshot);
}

static void scripted_state_load(struct device *dev, uint32_t slot, uint32_t pos,
                                uint32_t snapshot) {
    if (dev->state) state_load(dev->state, slot, pos, snapshot);
}

static void scripted_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot) {
    if (dev->state) state_copy(dev->state, from_slot, to_slot);
}

static int32_t *cell(const struct device *dev, const struct segment *s, uint32_t pos) {
    uint32_t page = s->pages[pos / PAGE_TOKENS];
    ASSERT(page < dev->limits.n_pages);
    return &dev->pages[(size_t)page * PAGE_TOKENS + pos % PAGE_TOKENS];
}

/* ---- rows -------------------------------------------------------------------------------------- */

/* The first row with logits. In a draft block the last rows may be there for the others' sake, so
 * the output position says which it is; elsewhere that must agree with n_logits. */
static uint32_t first_logit_row(const struct segment *s) {
    uint32_t last_ones = s->n_rows - s->n_logits;
    if (s->pick == PICK_NONE) return last_ones;
    ASSERT((uint64_t)s->prompt_len + s->out_pos > s->pos);
    uint32_t first = s->prompt_len + s->out_pos - s->pos - 1;
    ASSERT(s->n_logits > 0);
    ASSERT(first <= last_ones);
    ASSERT(s->view == VIEW_DRAFT || first == last_ones);
    return first;
}

static int32_t row_token(const struct device *dev, const struct segment *s, uint32_t i) {
    uint32_t n_known = s->given ? s->n_rows : s->n_rows - s->n_proposed;
    const struct slot *slot = &dev->slots[s->slot];
    int32_t token = i < n_known                       ? s->tokens[i]
                    : i - n_known < slot->n_proposals ? slot->proposals[i - n_known]
                                                      : 0; /* not drawn, so it will not be judged */
    ASSERT(token >= 0);
    ASSERT((uint32_t)token < dev->shape.vocab_size);
    return token;
}

static void check_segment(struct device *dev, const struct segment *s, uint32_t view_before) {
    ASSERT(s->slot < dev->limits.n_slots);
    struct slot *slot = &dev->slots[s->slot];
    ASSERT(s->view <= VIEW_DRAFT);
    ASSERT(s->view >= view_before); /* grouped by view */
    ASSERT(slot->seen[s->view] != dev->forward_no);
    slot->seen[s->view] = dev->forward_no;
    ASSERT(s->n_rows > 0);
    ASSERT(s->pos < dev->shape.max_position);
    ASSERT(s->n_rows <= dev->shape.max_position - s->pos);
    ASSERT(s->n_proposed <= s->n_rows);
    ASSERT(s->n_logits <= s->n_rows);
    first_logit_row(s);
    if (s->view == VIEW_DRAFT) {
        ASSERT(dev->shape.block_size > 0);
        ASSERT(s->n_rows <= dev->shape.block_size);
        ASSERT(s->n_proposed == 0);
        ASSERT(s->pick != PICK_ACCEPT);
        return;
    }
    ASSERT(s->pick != PICK_PROPOSE);
    ASSERT(s->given ? slot->n_asked == 0 : s->n_proposed <= slot->n_asked); /* one source a cycle */
    ASSERT(s->n_proposed <= dev->limits.max_proposed);
    ASSERT(s->pick == PICK_NONE || s->n_logits == s->n_proposed + 1);
    /* Whose rows have logits: base rows of a single stream, else output rows. */
    ASSERT(dev->shape.orthros ? s->view == VIEW_OUTPUT || s->n_logits == 0 : s->view == VIEW_BASE);
}

static int scripted_begin(struct device *dev, const struct forward *fwd) {
    ASSERT(dev->reserved);
    ASSERT(dev->script);
    ASSERT(fwd->n_segments <= 2 * (size_t)dev->limits.n_slots);
    dev->fwd = *fwd;
    dev->forward_no++;
    dev->drafting = fwd->n_segments > 0 && fwd->segments[0].view == VIEW_DRAFT;
    dev->last_logits = dev->drafting ? dev->draft_logits : dev->logits;
    dev->n_rows = dev->n_logit_rows = dev->n_outcomes = 0;
    dev->accepted = false;
    uint32_t view = VIEW_BASE;
    for (uint32_t i = 0; i < fwd->n_segments; i++) {
        const struct segment *s = &fwd->segments[i];
        check_segment(dev, s, view);
        view = s->view;
        ASSERT((view == VIEW_DRAFT) == dev->drafting); /* all draft, or none */
        dev->logit_row[i] = dev->n_logit_rows;
        ASSERT(s->n_rows <= dev->limits.max_rows - dev->n_rows);
        dev->n_rows += s->n_rows;
        ASSERT(s->n_logits <= dev->limits.max_logit_rows - dev->n_logit_rows);
        dev->n_logit_rows += s->n_logits;
    }
    return OK;
}

static int scripted_embed(struct device *dev) {
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        for (uint32_t r = 0; r < s->n_rows; r++)
            row_token(dev, s, r); /* checked */
    }
    return OK;
}

/* The token at pos, as the pages of a segment hold it. */
struct pages_of {
    const struct device *dev;
    const struct segment *segment;
};
static int32_t token_at(void *arg, uint32_t pos) {
    const struct pages_of *pages = arg;
    return *cell(pages->dev, pages->segment, pos);
}

static void expect_state(const struct device *dev, const struct segment *s, uint32_t pos) {
    if (dev->state) state_expect(dev->state, s->slot, pos, token_at, &(struct pages_of){dev, s});
}

/* Base rows leave their token in the page, and in the slot's own copy. */
static int scripted_qkv(struct device *dev, uint32_t layer) {
    ASSERT(layer < dev->shape.n_layers);
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->view == VIEW_DRAFT) expect_state(dev, s, s->pos);
        if (s->view != VIEW_BASE) continue;
        struct slot *slot = &dev->slots[s->slot];
        if (slot->lo == slot->hi) slot->lo = slot->hi = s->pos; /* what lies before was shared */
        ASSERT(s->pos <= slot->hi);                             /* no position is left out */
        if (s->pos < slot->lo) slot->lo = s->pos;
        for (uint32_t r = 0; r < s->n_rows; r++) {
            int32_t token = row_token(dev, s, r);
            expect_state(dev, s, s->pos + r);
            *cell(dev, s, s->pos + r) = slot->wrote[s->pos + r] = token;
            if (dev->state) state_push(dev->state, s->slot, s->pos + r, token);
        }
        slot->hi = s->pos + s->n_rows;
    }
    return OK;
}

static void sleep_ms(double ms) {
    if (!(ms > 0)) return;
    struct timespec left = {.tv_sec = (time_t)(ms / 1000)};
    left.tv_nsec = (long)((ms - 1000.0 * (double)left.tv_sec) * 1e6);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* The forward's simulated cost. */
static int scripted_attend(struct device *dev, uint32_t layer) {
    if (layer > 0) return OK;
    if (dev->time) {
        double us = dev->time->cost_us(dev->time->arg, dev->drafting, dev->n_rows);
        dev->time->now_us += (uint64_t)us;
        return OK;
    }
    const struct script *script = dev->script;
    double ms = script->row_ms * dev->n_rows + (dev->drafting ? 0 : script->step_ms);
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->view != VIEW_BASE || s->pos >= s->prompt_len) continue;
        uint32_t n = s->prompt_len - s->pos;
        ms += script->prefill_ms_per_token * (n < s->n_rows ? n : s->n_rows);
    }
    sleep_ms(ms);
    return OK;
}

static int scripted_nothing(struct device *dev, uint32_t layer) {
    (void)dev, (void)layer;
    return OK;
}

/* ---- logits ------------------------------------------------------------------------------------ */

/* The tokens of positions 0 .. n - 1 as the pages hold them. */
static void walk(struct device *dev, const struct segment *s, uint32_t n) {
    const struct slot *slot = &dev->slots[s->slot];
    for (uint32_t pos = 0; pos < n; pos++) {
        int32_t token = *cell(dev, s, pos);
        ASSERT(token != POISON);
        bool shared = pos < slot->lo || slot->lo == slot->hi;
        ASSERT(shared || pos < slot->hi);
        ASSERT(shared || token == slot->wrote[pos]);
        ASSERT(!s->history || pos >= s->prompt_len + s->out_pos || token == s->history[pos]);
        dev->history[pos] = token;
    }
}

static void main_logits(struct device *dev, const struct segment *s, float *logits) {
    walk(dev, s, s->pos + s->n_rows);
    for (uint32_t i = 0; i < s->n_rows; i++)
        ASSERT(dev->history[s->pos + i] == row_token(dev, s, i)); /* output rows wrote nothing */
    for (uint32_t i = s->n_rows - s->n_logits; i < s->n_rows; i++) {
        script_logits(dev->script, false, dev->history, s->pos + i + 1, s->prompt_len, logits);
        logits += dev->shape.vocab_size;
    }
}

/* Row i sees the known text and the drafter's own greedy choices of the rows before it. */
static void draft_logits(struct device *dev, const struct segment *s, float *logits) {
    static const struct rules greedy;
    static const struct history start;
    uint32_t first = first_logit_row(s);
    walk(dev, s, s->pos);
    dev->history[s->pos] = row_token(dev, s, 0);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        bool wanted = i >= first && i < first + s->n_logits;
        float *row = wanted ? logits + (size_t)(i - first) * dev->shape.vocab_size : dev->spare;
        script_logits(dev->script, true, dev->history, s->pos + i + 1, s->prompt_len, row);
        int32_t choice = sample_token(&greedy, row, &start, DRAW_GUMBEL, &dev->scratch);
        dev->history[s->pos + i + 1] = choice < 0 ? 0 : choice;
    }
}

static int scripted_lm_head(struct device *dev) {
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->n_logits == 0) continue;
        float *logits = dev->last_logits + (size_t)dev->logit_row[i] * dev->shape.vocab_size;
        if (dev->drafting)
            draft_logits(dev, s, logits);
        else
            main_logits(dev, s, logits);
    }
    return OK;
}

static int scripted_read_logits(struct device *dev, uint32_t logit_row, float *out) {
    ASSERT(logit_row < dev->n_logit_rows);
    size_t vocab = dev->shape.vocab_size;
    memcpy(out, dev->last_logits + logit_row * vocab, vocab * sizeof *out);
    return OK;
}

/* ---- tokens ------------------------------------------------------------------------------------ */

static int scripted_sample(struct device *dev) {
    ASSERT(dev->drafting);
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->pick != PICK_PROPOSE) continue;
        struct slot *slot = &dev->slots[s->slot];
        slot->n_asked = s->n_logits;
        slot->draft_row = dev->logit_row[i];
        struct history history = segment_history(s);
        slot->n_proposals = sample_propose(
            &slot->rules, dev->draft_logits + (size_t)slot->draft_row * dev->shape.vocab_size,
            s->n_logits, &history, &dev->scratch, slot->proposals);
    }
    return OK;
}

/* Whether the outcome holds the output position at which the script fails. Nothing after an ending
 * counts: the text is over there. */
static bool fails(const struct device *dev, const struct segment *s, const struct outcome *out) {
    const struct rules *rules = &dev->slots[s->slot].rules;
    if (dev->script->fail == FAIL_NEVER) return false;
    for (uint32_t i = 0; i < out->n_tokens; i++) {
        uint32_t out_pos = s->out_pos + i;
        if (out_pos == dev->script->fail_at) return true;
        for (uint32_t e = 0; e < rules->n_end_ids; e++)
            if (out_pos >= rules->min_tokens && out->tokens[i] == rules->end_ids[e]) return false;
    }
    return false;
}

static int scripted_accept(struct device *dev) {
    ASSERT(!dev->drafting);
    size_t vocab = dev->shape.vocab_size;
    dev->accepted = true;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->pick != PICK_ACCEPT) continue;
        struct slot *slot = &dev->slots[s->slot];
        struct outcome *out = &dev->outcomes[dev->n_outcomes++];
        const int32_t *draft = slot->proposals;
        const float *draft_logits = dev->draft_logits + slot->draft_row * vocab;
        uint32_t n = s->n_proposed;
        if (s->given)
            draft = s->tokens + s->n_rows - n, draft_logits = NULL;
        else if (n > slot->n_proposals)
            n = slot->n_proposals;
        struct history history = segment_history(s);
        *out = (struct outcome){.slot = s->slot, .status = OK};
        sample_accept(&slot->rules, draft, n, dev->logits + dev->logit_row[i] * vocab, draft_logits,
                      &history, &dev->scratch, out);
        if (!fails(dev, s, out)) continue;
        if (dev->script->fail == FAIL_DEVICE) return ERR_DEVICE;
        out->status = ERR_INVALID;
    }
    return OK;
}

static int scripted_end(struct device *dev, struct outcome *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < dev->fwd.n_segments; i++)
        n += dev->fwd.segments[i].pick == PICK_ACCEPT;
    ASSERT(n == 0 || dev->accepted);
    if (n > 0) memcpy(out, dev->outcomes, n * sizeof *out);
    for (uint32_t i = 0; i < dev->limits.n_slots; i++) /* proposals live for one cycle */
        dev->slots[i].n_asked = dev->slots[i].n_proposals = 0;
    dev->fwd.n_segments = 0;
    return OK;
}

static const char *scripted_fault(const struct device *dev) {
    (void)dev;
    return "the script says so";
}

static int scripted_peaks(enum activations activations, uint32_t n_threads, double *bytes_per_s,
                          double *flops_per_s, struct err *err) {
    return kernels_ref()->peaks(activations, n_threads, bytes_per_s, flops_per_s, err);
}

const struct kernels *kernels_scripted(void) {
    static const struct kernels table = {
        .name = "scripted",
        .activations = 1 << ACTIVATIONS_F32 | 1 << ACTIVATIONS_INT8,
        .open = scripted_open,
        .close = scripted_close,
        .load = scripted_load,
        .page_bytes = scripted_page_bytes,
        .workspace_bytes = scripted_workspace_bytes,
        .reserve = scripted_reserve,
        .slot_set = scripted_slot_set,
        .pages_clear = scripted_pages_clear,
        .page_copy = scripted_page_copy,
        .snapshot_bytes = scripted_snapshot_bytes,
        .state_save = scripted_state_save,
        .state_load = scripted_state_load,
        .state_copy = scripted_state_copy,
        .begin = scripted_begin,
        .embed = scripted_embed,
        .qkv = scripted_qkv,
        .attend = scripted_attend,
        .out_residual = scripted_nothing,
        .mlp = scripted_nothing,
        .lm_head = scripted_lm_head,
        .sample = scripted_sample,
        .accept = scripted_accept,
        .end = scripted_end,
        .read_logits = scripted_read_logits,
        .fault = scripted_fault,
        .peaks = scripted_peaks,
    };
    return &table;
}
