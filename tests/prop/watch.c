#include "tests/prop/watch.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/cuda_peek.h"

enum { SLOTS = 64, LOGIT_ROWS = 8192, MAX_VOCAB = 1 << 16 };

const char *const plant_names[N_PLANTS] = {"none",         "company",       "chunk",
                                           "uncut",        "keeps refused", "seed of slot",
                                           "no page copy", "other state"};

static struct {
    const struct kernels *real;
    enum plant plant;
    watch_seen seen;
    void *arg;
    struct kernels table;
    bool cuda;
    struct forward fwd; /* as the engine gave it */
    struct segment segments[2 * SLOTS];
    bool refused[SLOTS]; /* the slot's last verification refused something */
    uint64_t hashes[LOGIT_ROWS];
    uint64_t n_bites;
} watch;
/* Of the device made last; all devices of a scenario have one vocabulary. */
static uint32_t vocab_size;
static struct device_limits limits_of_last;

uint64_t watch_hash(const float *logits, uint32_t n) {
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a, by words */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001B3u;
    }
    return hash;
}

static bool is_draft(const struct forward *fwd) {
    return fwd->n_segments > 0 && fwd->segments[0].view == VIEW_DRAFT;
}

/* ---- planted bugs ------------------------------------------------------------------------------ */

static float next_up(float x) {
    watch.n_bites++;
    return nextafterf(x, INFINITY);
}

/* Rows of a text that was refused something stand one position late, where the pages allow it. */
static struct forward shifted(const struct forward *fwd) {
    for (uint32_t i = 0; i < fwd->n_segments; i++) {
        struct segment *s = &watch.segments[i];
        *s = fwd->segments[i];
        if (s->pick == PICK_PROPOSE || s->pos < s->prompt_len || !watch.refused[s->slot]) continue;
        if ((s->pos + s->n_rows) % PAGE_TOKENS == 0) continue;
        s->pos++;
        watch.n_bites++;
    }
    return (struct forward){fwd->n_segments, watch.segments};
}

static int watch_open(const struct model_shape *shape, uint32_t n_threads, struct device **out,
                      struct err *err) {
    vocab_size = shape->vocab_size;
    return watch.real->open(shape, n_threads, out, err);
}

static int watch_reserve(struct device *dev, const struct device_limits *limits, struct err *err) {
    limits_of_last = *limits;
    return watch.real->reserve(dev, limits, err);
}

static int watch_begin(struct device *dev, const struct forward *fwd) {
    ASSERT(fwd->n_segments <= ARRAY_LEN(watch.segments));
    watch.fwd = *fwd;
    if (watch.plant != PLANT_UNCUT) return watch.real->begin(dev, fwd);
    struct forward planted = shifted(fwd);
    return watch.real->begin(dev, &planted);
}

static bool later_chunk(const struct segment *s) {
    return watch.plant == PLANT_CHUNK && s->view == VIEW_BASE && s->pos > 0 &&
           s->pos < s->prompt_len;
}

static int watch_embed(struct device *dev) {
    int rc = watch.real->embed(dev);
    for (uint32_t i = 0; i < watch.fwd.n_segments && !watch.cuda; i++) {
        if (!later_chunk(&watch.fwd.segments[i])) continue;
        float *x = dev->x + dev->segment_row[i] * dev->ld_model;
        *x = next_up(*x);
    }
    return rc;
}

/* On a CUDA device x is out of reach between stages: a bit of K is, where the chunk's first page begins. */
static void disturb_pages(struct device *dev) {
    size_t page_bytes = watch.real->page_bytes(dev, limits_of_last.kv_dtype);
    for (uint32_t i = 0; i < watch.fwd.n_segments && watch.cuda; i++) {
        const struct segment *s = &watch.fwd.segments[i];
        if (!later_chunk(s)) continue;
        char bits;
        size_t at = s->pages[s->pos / PAGE_TOKENS] * page_bytes;
        cuda_peek_read(dev, CUDA_KV, at, 1, &bits);
        bits ^= 1;
        cuda_peek_write(dev, CUDA_KV, at, 1, &bits);
        watch.n_bites++;
    }
}

static void disturb_logit(struct device *dev) {
    static float logits[MAX_VOCAB];
    if (!watch.cuda) {
        dev->last_logits[7] = next_up(dev->last_logits[7]);
        return;
    }
    watch.real->read_logits(dev, 0, logits); /* stages that were put off are run */
    float moved = next_up(logits[7]);
    cuda_peek_write(dev, CUDA_LOGITS, 7 * sizeof moved, sizeof moved, &moved);
}

static int watch_lm_head(struct device *dev) {
    int rc = watch.real->lm_head(dev);
    const struct forward *fwd = &watch.fwd;
    uint32_t n_logits = 0;
    for (uint32_t i = 0; i < fwd->n_segments; i++)
        n_logits += fwd->segments[i].n_logits;
    bool shared = !is_draft(fwd) && fwd->n_segments > 1 &&
                  fwd->segments[0].slot != fwd->segments[1].slot && n_logits > 0;
    if (watch.plant == PLANT_COMPANY && shared) disturb_logit(dev);
    return rc;
}

static void watch_slot_set(struct device *dev, uint32_t slot, const struct rules *rules) {
    struct rules planted = *rules;
    if (watch.plant == PLANT_SEED_OF_SLOT) {
        planted.seed += slot;
        watch.n_bites += slot > 0;
    }
    watch.refused[slot] = false;
    watch.real->slot_set(dev, slot, &planted);
}

static void keep_refused(struct outcome *out) {
    if (watch.plant != PLANT_KEEPS_REFUSED || out->n_accepted >= out->n_proposed) return;
    if (out->n_tokens != out->n_accepted + 1) return;
    out->tokens[out->n_accepted] = out->proposed[out->n_accepted];
    watch.n_bites++;
}

static void watch_page_copy(struct device *dev, uint32_t from, uint32_t to) {
    if (watch.plant != PLANT_PAGE_COPY) watch.real->page_copy(dev, from, to);
    watch.n_bites += watch.plant == PLANT_PAGE_COPY;
}

static void watch_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    if (watch.plant == PLANT_STATE_LOAD && limits_of_last.n_snapshots > 1) {
        snapshot = (snapshot + 1) % limits_of_last.n_snapshots;
        watch.n_bites++;
    }
    watch.real->state_load(dev, slot, pos, snapshot);
}

/* ---- what is seen ------------------------------------------------------------------------------ */

static void hash_rows(struct device *dev) {
    static float logits[MAX_VOCAB];
    uint32_t n_rows = 0;
    ASSERT(vocab_size <= MAX_VOCAB);
    for (uint32_t i = 0; i < watch.fwd.n_segments; i++)
        for (uint32_t r = 0; r < watch.fwd.segments[i].n_logits; r++, n_rows++) {
            ASSERT(n_rows < LOGIT_ROWS);
            watch.real->read_logits(dev, n_rows, logits);
            watch.hashes[n_rows] = watch_hash(logits, vocab_size);
        }
}

static int watch_end(struct device *dev, struct outcome *out) {
    struct forward fwd = watch.fwd;
    hash_rows(dev);
    int rc = watch.real->end(dev, out);
    disturb_pages(dev);
    uint32_t row = 0;
    for (uint32_t i = 0; rc == OK && i < fwd.n_segments; i++) {
        const struct segment *s = &fwd.segments[i];
        if (s->pick == PICK_ACCEPT) {
            keep_refused(out);
            watch.refused[s->slot] = out->n_accepted < out->n_proposed;
            for (uint32_t t = 0; watch.seen && t < out->n_tokens; t++)
                watch.seen(watch.arg, s->slot, s->out_pos + t, watch.hashes[row + t]);
            out++;
        }
        row += s->n_logits;
    }
    return rc;
}

const struct kernels *watch_kernels(const struct kernels *real, enum plant plant, watch_seen seen,
                                    void *arg) {
    memset(&watch, 0, sizeof watch);
    watch.real = real;
    watch.plant = plant;
    watch.seen = seen;
    watch.arg = arg;
    watch.table = *real;
    watch.cuda = cuda_peek_bytes && !strcmp(real->name, "cuda");
    watch.table.open = watch_open;
    watch.table.reserve = watch_reserve;
    watch.table.begin = watch_begin;
    watch.table.embed = watch_embed;
    watch.table.lm_head = watch_lm_head;
    watch.table.slot_set = watch_slot_set;
    watch.table.page_copy = watch_page_copy;
    watch.table.state_load = watch_state_load;
    watch.table.end = watch_end;
    return &watch.table;
}

uint64_t watch_bites(void) {
    return watch.n_bites;
}
