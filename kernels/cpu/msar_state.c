/* msar_state.c: what an MSAR device holds: its weights, its workspace, and the vectors of former
 * positions that a sequence keeps beyond its KV.
 *
 *   ring of a slot     [place][push][ld_model]     place = position mod ring_len
 *   snapshot           [0 .. history - 1][push][ld_model]     the positions before its own, in order
 *
 * A ring is written by base rows alone (msar.c) and holds positions ring_lo .. ring_hi - 1. Running
 * a position again (rejected drafts) overwrites its place; whatever lies at or behind it is out of
 * date from then on, and ring_lo has moved with the farthest position ever run. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/weights.h"

/* ---- weights ----------------------------------------------------------------------------------- */

enum { KINDS = WEIGHT_END - WEIGHT_MSAR_CONV };

int cpu_msar_open(struct device *dev, struct err *err) {
    const struct model_shape *s = &dev->shape;
    struct msar *m = &dev->msar;
    if (s->n_msar_streams == 0) return OK;
    m->n_pushes = 2 * s->n_layers;
    m->n_sources = msar_source(s, m->n_pushes) + 1;
    m->history = msar_history(s);
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        uint32_t n = weight_count(s, (enum weight)(WEIGHT_MSAR_CONV + kind));
        m->n_weights[kind] = n;
        m->weights[kind] = memory_take(&dev->memory, n * sizeof *m->weights[kind]);
        if (!m->weights[kind])
            return err_set(err, ERR_NOMEM, "device: no memory for %u MSAR weights", n);
    }
    return OK;
}

int cpu_msar_load(struct device *dev, enum weight which, uint32_t index, const struct tensor *src,
                  struct err *err) {
    struct msar *m = &dev->msar;
    uint32_t kind = which - WEIGHT_MSAR_CONV, rows = src->rows, cols = src->cols;
    if (m->weights[kind][index]) return weight_loaded_twice(which, index, err);
    /* Each run of d_model columns gets the padding of an activation row. */
    bool wide = which != WEIGHT_MSAR_MIX_BIAS && which != WEIGHT_MSAR_MIX_SCALE;
    uint32_t run = wide ? dev->shape.d_model : cols;
    size_t n_runs = (size_t)rows * (cols / run), ld = wide ? dev->ld_model : cols;
    float *data = memory_take(&dev->memory, n_runs * ld * sizeof *data);
    if (!data) {
        char name[WEIGHT_NAME];
        return err_set(err, ERR_NOMEM, "weights: %s: no memory for %zu floats",
                       weight_name(which, index, name), n_runs * ld);
    }
    for (size_t i = 0; i < n_runs; i++)
        memcpy(data + i * ld, (const float *)src->data + i * run, run * sizeof *data);
    m->weights[kind][index] = data;
    return OK;
}

/* ---- workspace --------------------------------------------------------------------------------- */

void cpu_msar_cut(struct device *dev, const struct device_limits *l, struct carve *c) {
    struct msar *m = &dev->msar;
    size_t streams = dev->shape.n_msar_streams, rows = l->max_rows, f = sizeof(float);
    if (streams == 0) return;
    m->ring_len = msar_ring_len(&dev->shape, l->max_proposed);
    size_t n_views = streams * m->n_sources, position = m->n_pushes * dev->ld_model * f;
    m->views = carve(c, n_views * rows, dev->ld_model * f);
    m->inverse = carve(c, n_views * rows, f);
    m->z = carve(c, streams * rows, dev->ld_model * f);
    m->rings = carve(c, (size_t)l->n_slots * m->ring_len, position);
    m->snapshots = carve(c, (size_t)l->n_snapshots * m->history, position);
    m->ring_lo = carve(c, l->n_slots, sizeof *m->ring_lo);
    m->ring_hi = carve(c, l->n_slots, sizeof *m->ring_hi);
    uint32_t n_threads = pool_threads(dev->pool);
    size_t most = m->n_sources > m->history ? m->n_sources : m->history + 1;
    m->scratch = carve(c, n_threads, sizeof *m->scratch);
    for (uint32_t t = 0; t < n_threads; t++) {
        struct msar_scratch s;
        s.v = carve(c, most, sizeof *s.v);
        s.weights = carve(c, most, sizeof *s.weights);
        if (c->base) m->scratch[t] = s;
    }
}

/* ---- the rings --------------------------------------------------------------------------------- */

void cpu_msar_forget(struct device *dev, uint32_t slot) {
    if (dev->msar.ring_len == 0) return;
    dev->msar.ring_lo[slot] = dev->msar.ring_hi[slot] = 0;
}

/* Positions before `pos` that a row there looks at. */
static uint32_t reach(const struct device *dev, uint32_t pos) {
    return pos < dev->msar.history ? pos : dev->msar.history;
}

void cpu_msar_check_rows(const struct device *dev) {
    const struct msar *m = &dev->msar;
    for (uint32_t i = 0; m->ring_len && i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        uint32_t lo = s->pos - reach(dev, s->pos), hi = s->pos + s->n_rows - 1;
        int32_t own = s->view == VIEW_OUTPUT ? dev->slot_segment[VIEW_BASE][s->slot] : (int32_t)i;
        if (own != NONE) {
            const struct segment *b = &dev->fwd.segments[own];
            ASSERT(s->pos + s->n_rows <= b->pos + b->n_rows);
            if (b->pos < hi) hi = b->pos;
        }
        if (lo >= hi) continue;
        ASSERT(m->ring_lo[s->slot] <= lo);
        ASSERT(hi <= m->ring_hi[s->slot]);
    }
}

void cpu_msar_enter(struct device *dev, uint32_t push) {
    struct msar *m = &dev->msar;
    uint32_t source = msar_source(&dev->shape, push);
    for (uint32_t i = 0; m->ring_len && i < dev->fwd.n_segments; i++) {
        const struct segment *s = &dev->fwd.segments[i];
        if (s->view != VIEW_BASE) continue;
        uint32_t r = s->n_rows > m->ring_len ? s->n_rows - m->ring_len : 0;
        for (; r < s->n_rows; r++)
            memcpy(msar_ring(dev, s->slot, s->pos + r, push),
                   msar_view(dev, source, 0, dev->segment_row[i] + r),
                   dev->ld_model * sizeof(float));
        if (push + 1 < m->n_pushes) continue;
        uint32_t end = s->pos + s->n_rows, oldest = end > m->ring_len ? end - m->ring_len : 0;
        if (s->pos < m->ring_lo[s->slot]) m->ring_lo[s->slot] = s->pos;
        if (oldest > m->ring_lo[s->slot]) m->ring_lo[s->slot] = oldest;
        m->ring_hi[s->slot] = end;
    }
}

/* Bytes of all vectors of one position. */
static size_t position_bytes(const struct device *dev) {
    return dev->msar.n_pushes * dev->ld_model * sizeof(float);
}

size_t cpu_snapshot_bytes(const struct device *dev) {
    return dev->msar.history * position_bytes(dev);
}

static char *snapshot_at(const struct device *dev, uint32_t snapshot) {
    ASSERT(snapshot < dev->limits.n_snapshots);
    return (char *)dev->msar.snapshots + snapshot * cpu_snapshot_bytes(dev);
}

void cpu_state_save(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    const struct msar *m = &dev->msar;
    if (m->ring_len == 0) return;
    ASSERT(slot < dev->limits.n_slots);
    uint32_t n = reach(dev, pos);
    ASSERT(m->ring_lo[slot] <= pos - n);
    ASSERT(pos <= m->ring_hi[slot]);
    char *to = snapshot_at(dev, snapshot);
    for (uint32_t t = pos - n; t < pos; t++, to += position_bytes(dev))
        memcpy(to, msar_ring(dev, slot, t, 0), position_bytes(dev));
}

void cpu_state_load(struct device *dev, uint32_t slot, uint32_t pos, uint32_t snapshot) {
    struct msar *m = &dev->msar;
    if (m->ring_len == 0) return;
    ASSERT(slot < dev->limits.n_slots);
    uint32_t n = reach(dev, pos);
    const char *from = snapshot_at(dev, snapshot);
    for (uint32_t t = pos - n; t < pos; t++, from += position_bytes(dev))
        memcpy(msar_ring(dev, slot, t, 0), from, position_bytes(dev));
    m->ring_lo[slot] = pos - n;
    m->ring_hi[slot] = pos;
}

void cpu_state_copy(struct device *dev, uint32_t from_slot, uint32_t to_slot) {
    struct msar *m = &dev->msar;
    if (m->ring_len == 0) return;
    ASSERT(from_slot < dev->limits.n_slots);
    ASSERT(to_slot < dev->limits.n_slots);
    ASSERT(from_slot != to_slot);
    memcpy(msar_ring(dev, to_slot, 0, 0), msar_ring(dev, from_slot, 0, 0),
           m->ring_len * position_bytes(dev));
    m->ring_lo[to_slot] = m->ring_lo[from_slot];
    m->ring_hi[to_slot] = m->ring_hi[from_slot];
}
