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

void costs_add(struct model_costs *costs, const struct model_shape *shape,
               const struct weight_item *item, enum dtype dtype) {
    costs->attend_flops = 4 * (uint64_t)shape->n_layers * shape->n_heads * shape->head_dim;
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
    return kernels_peaks(model->kernels->name, n_threads ? n_threads : cpu_count(), bytes_per_s,
                         flops_per_s, err);
}
