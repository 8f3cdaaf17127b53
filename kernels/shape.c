#include "kernels/shape.h"

#include <math.h>

enum { MSAR_KERNEL_MAX = 256 };

int shape_check(const struct model_shape *s, struct err *err) {
    const struct {
        const char *name;
        uint32_t value;
    } positive[] = {
        {"layers", s->n_layers},       {"d_model", s->d_model},        {"heads", s->n_heads},
        {"kv heads", s->n_kv_heads},   {"head_dim", s->head_dim},      {"d_ff", s->d_ff},
        {"vocab_size", s->vocab_size}, {"positions", s->max_position},
    };
    const uint32_t most = 1u << 24; /* keeps every product of two of them far from overflow */
    for (size_t i = 0; i < ARRAY_LEN(positive); i++)
        if (positive[i].value < 1 || positive[i].value > most)
            return err_set(err, ERR_INVALID, "model: %s is %u, expected 1 .. %u", positive[i].name,
                           positive[i].value, most);
    if (s->n_heads % s->n_kv_heads != 0)
        return err_set(err, ERR_INVALID, "model: %u heads are no multiple of %u kv heads",
                       s->n_heads, s->n_kv_heads);
    if (s->head_dim % 2 != 0 || (uint64_t)s->n_heads * s->head_dim > most)
        return err_set(err, ERR_INVALID,
                       "model: head_dim %u of %u heads, expected even and at most %u in all",
                       s->head_dim, s->n_heads, most);
    if (s->block_size > DRAFT_MAX)
        return err_set(err, ERR_INVALID, "model: block_size %u, expected 0 .. %d", s->block_size,
                       DRAFT_MAX);
    if (s->orthros && s->window == 0)
        return err_set(err, ERR_INVALID, "model: window 0, an Orthros model needs one");
    if (s->n_msar_streams > MAX_MSAR_STREAMS)
        return err_set(err, ERR_INVALID, "model: %u MSAR streams, expected 0 .. %d",
                       s->n_msar_streams, MAX_MSAR_STREAMS);
    if (s->n_msar_streams && (s->msar_branches < 1 || s->msar_branches > 2 * s->n_layers))
        return err_set(err, ERR_INVALID, "model: MSAR blocks of %u branches, expected 1 .. %u",
                       s->msar_branches, 2 * s->n_layers);
    for (uint32_t r = 0; r < s->n_msar_streams; r++)
        if (s->msar_kernels[r] < 1 || s->msar_kernels[r] > (r ? MSAR_KERNEL_MAX : 1))
            return err_set(err, ERR_INVALID, "model: MSAR kernel %u is %u, expected 1 .. %d", r,
                           s->msar_kernels[r], r ? MSAR_KERNEL_MAX : 1);
    return OK;
}

int limits_check(const struct device_limits *l, struct err *err) {
    if (l->kv_dtype != DTYPE_F32 && l->kv_dtype != DTYPE_BF16 && l->kv_dtype != DTYPE_Q8_0)
        return err_set(err, ERR_INVALID, "device: kv type %s, expected f32, bf16 or q8_0",
                       l->kv_dtype < DTYPE_COUNT ? dtype_name(l->kv_dtype) : "unknown");
    const struct {
        const char *name;
        uint32_t value;
    } positive[] = {{"pages", l->n_pages},
                    {"slots", l->n_slots},
                    {"rows", l->max_rows},
                    {"logit rows", l->max_logit_rows}};
    for (size_t i = 0; i < ARRAY_LEN(positive); i++)
        if (positive[i].value < 1 || positive[i].value > 1u << 30)
            return err_set(err, ERR_INVALID, "device: %u %s, expected 1 .. %u", positive[i].value,
                           positive[i].name, 1u << 30);
    if (l->max_proposed >= DRAFT_MAX)
        return err_set(err, ERR_INVALID, "device: %u proposals, expected 0 .. %d", l->max_proposed,
                       DRAFT_MAX - 1);
    return OK;
}

void rope_tables(const struct model_shape *shape, float *cosines, float *sines) {
    uint32_t half = shape->head_dim / 2;
    for (uint32_t t = 0; t < shape->max_position; t++)
        for (uint32_t m = 0; m < half; m++) {
            double angle = t * shape->rope_freq[m];
            cosines[(size_t)t * half + m] = (float)(cos(angle) * shape->rope_scale);
            sines[(size_t)t * half + m] = (float)(sin(angle) * shape->rope_scale);
        }
}

size_t kv_value_bytes(enum dtype kv_dtype, uint32_t head_pad) {
    size_t number = kv_dtype == DTYPE_Q8_0 ? sizeof(int8_t) : dtype_row_bytes(kv_dtype, 1);
    return PAGE_TOKENS * head_pad * number;
}

size_t kv_scale_bytes(enum dtype kv_dtype) {
    return kv_dtype == DTYPE_Q8_0 ? 2 * PAGE_TOKENS * sizeof(uint16_t) : 0;
}

void segment_check(const struct segment *s, const struct model_shape *shape,
                   const struct device_limits *limits, int view_before, uint32_t n_asked) {
    ASSERT(s->slot < limits->n_slots);
    ASSERT(s->view <= VIEW_DRAFT);
    ASSERT(s->view >= view_before);
    ASSERT(s->n_rows > 0);
    ASSERT(s->pos < shape->max_position);
    ASSERT(s->n_rows <= shape->max_position - s->pos);
    ASSERT(s->n_proposed <= s->n_rows);
    ASSERT(s->n_logits <= s->n_rows);
    if (s->view == VIEW_OUTPUT) ASSERT(shape->orthros);
    if (s->view == VIEW_DRAFT) {
        ASSERT(s->n_rows <= shape->block_size);
        ASSERT(s->n_proposed == 0);
        ASSERT(s->pick != PICK_ACCEPT);
    } else {
        ASSERT(s->given ? n_asked == 0 : s->n_proposed <= n_asked); /* one source a cycle */
        ASSERT(s->n_proposed <= limits->max_proposed);
        ASSERT(s->pick != PICK_PROPOSE);
    }
    uint32_t end = s->view == VIEW_DRAFT ? s->pos : s->pos + s->n_rows;
    for (uint32_t i = 0; i < div_ceil(end, PAGE_TOKENS); i++)
        ASSERT(s->pages[i] < limits->n_pages);
}
