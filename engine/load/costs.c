#include "engine/load/costs.h"

#include "engine/cpu_count.h"
#include "engine/model.h"

/* Which rows a matrix serves. */
static void serves(enum weight which, bool *base, bool *output, bool *draft) {
    *base = *output = *draft = false;
    switch (which) {
    case WEIGHT_K:
    case WEIGHT_V:
        *base = true;
        return;
    case WEIGHT_Q:
    case WEIGHT_O:
        *base = *output = true;
        return;
    case WEIGHT_GATE:
    case WEIGHT_UP:
    case WEIGHT_DOWN:
        *base = *output = *draft = true;
        return;
    case WEIGHT_Q_DIFF:
    case WEIGHT_K_DIFF:
    case WEIGHT_V_DIFF:
    case WEIGHT_O_DIFF:
        *draft = true;
        return;
    default:
        return;
    }
}

static bool is_head(enum weight which, bool tied_head) {
    return which == (tied_head ? WEIGHT_EMBED : WEIGHT_LM_HEAD);
}

/* Operations of one row with one of MSAR's weights: as many as the loops of msar.c do. */
static uint64_t msar_flops(const struct model_shape *s, const struct weight_item *item) {
    uint64_t d = s->d_model, numbers = (uint64_t)item->rows * item->cols;
    uint32_t n = s->n_msar_streams, n_pushes = 2 * s->n_layers, n_read = 0;
    switch ((int)item->which) {
    case WEIGHT_MSAR_CONV: /* at each push of the source */
        for (uint32_t push = 0; push < n_pushes; push++)
            n_read += msar_source(s, push) == item->layer / (n - 1);
        return 2 * numbers * n_read;
    case WEIGHT_MSAR_QUERY: /* of each view: its norm once, then scores and sums over the sources */
        n_read = msar_source(s, item->layer) + 1;
        return 2 * numbers + 4 * numbers * n_read;
    case WEIGHT_MSAR_MIX: /* with the norm of the streams and their sum */
        return 2 * numbers + 4 * n * d;
    case WEIGHT_MSAR_READOUT:
        return 4 * d * (msar_source(s, n_pushes) + 1) + 2 * d;
    default:
        return 0;
    }
}

static void add_msar(struct model_costs *costs, const struct model_shape *shape,
                     const struct weight_item *item) {
    uint64_t flops = msar_flops(shape, item), bytes = weights_bytes(item, DTYPE_F32);
    costs->main_bytes += bytes;
    costs->draft_bytes += bytes;
    if (item->which == WEIGHT_MSAR_READOUT) {
        costs->head_flops += flops;
        return;
    }
    costs->base_flops += flops;
    costs->output_flops += flops;
    costs->draft_flops += flops;
}

enum dtype costs_kept(const struct kernels *kernels, enum activations activations,
                      enum dtype stored) {
    if (!kernels->memory_left) return stored; /* in the host's memory */
    if (activations == ACTIVATIONS_F32) return DTYPE_F32;
    return stored == DTYPE_Q8_0 ? DTYPE_Q8_0 : DTYPE_BF16;
}

void costs_add(struct model_costs *costs, const struct model_shape *shape,
               const struct weight_item *item, enum dtype dtype) {
    costs->attend_flops = 4 * (uint64_t)shape->n_layers * shape->n_heads * shape->head_dim;
    if (item->which >= WEIGHT_COUNT) add_msar(costs, shape, item);
    if (!item->matrix) return;
    uint64_t flops = 2 * (uint64_t)item->rows * item->cols, bytes = weights_bytes(item, dtype);
    bool base, output, draft, head = is_head(item->which, shape->tied_head);
    serves(item->which, &base, &output, &draft);
    if (base) costs->base_flops += flops;
    if (output) costs->output_flops += flops;
    if (draft) costs->draft_flops += flops;
    if (head) costs->head_flops += flops;
    if (base || head) costs->main_bytes += bytes;
    if (draft || head) costs->draft_bytes += bytes;
}

void model_costs(const struct model *model, struct model_costs *out) {
    *out = model->costs;
}

int model_peaks(const struct model *model, uint32_t n_threads, double *bytes_per_s,
                double *flops_per_s, struct err *err) {
    return model->kernels->peaks(model->products, n_threads ? n_threads : cpu_count(), bytes_per_s,
                                 flops_per_s, err);
}

int model_meter_open(const struct model *model, uint32_t n_threads, struct meter **out,
                     struct err *err) {
    *out = NULL;
    if (!model->kernels->meter_open) return OK;
    return model->kernels->meter_open(n_threads ? n_threads : cpu_count(), out, err);
}

double model_meter_rate(const struct model *model, struct meter *meter) {
    return meter ? model->kernels->meter_rate(meter) : 0;
}

void model_meter_close(const struct model *model, struct meter *meter) {
    if (meter) model->kernels->meter_close(meter);
}
