/* ops_ref.c: the arithmetic of the `ref` table: plain C, weights widened to float32 at load, every
 * sum in double. It is the definition that the fast tables are tested against, so it is written to
 * be checked by eye. */
#include <math.h>
#include <string.h>

#include "kernels/blocks.h"
#include "kernels/cpu/cpu.h"

/* int8: the file's blocks as they are; else float32. */
static size_t matrix_bytes(struct matrix *m) {
    size_t row = m->int8 ? dtype_row_bytes(m->dtype, m->cols) : m->cols * sizeof(float);
    m->group_bytes = GROUP * row;
    return m->rows * row;
}

static void pack_group(const struct matrix *m, uint32_t group, const void *rows) {
    uint32_t left = m->rows - group * GROUP, n_rows = left < GROUP ? left : GROUP;
    size_t n = (size_t)n_rows * m->cols;
    char *to = (char *)m->data + group * m->group_bytes;
    if (m->int8)
        memcpy(to, rows, dtype_row_bytes(m->dtype, n));
    else
        dtype_to_f32(m->dtype, rows, n, (float *)(void *)to);
}

static const float *row_of(const struct matrix *m, uint32_t row) {
    return (const float *)m->data + (size_t)row * m->cols;
}

static void matrix_row(const struct matrix *m, uint32_t row, float *out) {
    if (m->int8) {
        size_t row_bytes = dtype_row_bytes(m->dtype, m->cols);
        dtype_to_f32(m->dtype, (const char *)m->data + row * row_bytes, m->cols, out);
        return;
    }
    memcpy(out, row_of(m, row), m->cols * sizeof *out);
}

static void step_sums(const float *x, uint32_t n_steps, float *sums) {
    for (uint32_t i = 0; i < n_steps; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < GROUP; k++)
            sum += (double)x[i * GROUP + k];
        sums[i] = (float)sum;
    }
}

void cpu_finish_columns(float (*acc)[GROUP], uint32_t n_rows, uint32_t n, const float *bias,
                        bool add, float *y, size_t ldy) {
    for (uint32_t i = 0; i < n_rows; i++, y += ldy)
        for (uint32_t j = 0; j < n; j++) {
            float sum = bias ? acc[i][j] + bias[j] : acc[i][j];
            y[j] = add ? y[j] + sum : sum;
        }
}

void cpu_narrow(float *x, uint32_t first, uint32_t n, uint32_t n_steps, uint16_t *rows,
                uint32_t row) {
    (void)first;
    (void)n_steps;
    (void)rows;
    (void)row;
    for (uint32_t k = 0; k < n * GROUP; k++)
        x[k] = bf16_to_f32(f32_to_bf16(x[k]));
}

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void gemm_group(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                       float (*acc)[GROUP]) {
    for (uint32_t i = 0; i < in->n_rows; i++)
        for (uint32_t j = 0; j < GROUP; j++) {
            uint32_t row = group * GROUP + j;
            acc[i][j] =
                row < m->rows ? (float)dot(row_of(m, row), in->x + i * in->ldx, m->cols) : 0;
        }
}

/* ---- activations in int8 ----------------------------------------------------------------------- */

/* The largest magnitude, by its bits: above every number lies infinity, above it NaN. */
static float largest(const float *x, uint32_t n) {
    uint32_t bits, most = 0;
    for (uint32_t k = 0; k < n; k++) {
        memcpy(&bits, x + k, sizeof bits);
        bits &= 0x7fffffff;
        if (bits > most) most = bits;
    }
    float result;
    memcpy(&result, &most, sizeof result);
    return result;
}

static void quantise(const float *x, uint32_t first, uint32_t n, uint32_t n_steps,
                     struct int8_step *rows, uint32_t row) {
    struct int8_step *to = rows + (size_t)(row / ROW_TILE) * n_steps + first;
    for (uint32_t i = 0; i < n; i++, x += GROUP, to++) {
        int8_t *q = to->q[row % ROW_TILE];
        float most = largest(x, GROUP);
        bool tiny = most < 0x1p-100f, finite = isfinite(most) != 0;
        float inverse = tiny || !finite ? 0 : 127.0f / most;
        struct int8_row r = {.scale = tiny ? 0 : finite ? most / 127.0f : most};
        for (uint32_t k = 0; k < GROUP; k++) {
            q[k] = finite ? (int8_t)lrintf(x[k] * inverse) : 0;
            r.qsum += q[k];
        }
        r.sum = (float)r.qsum * r.scale;
        to->rows[row % ROW_TILE] = r;
    }
}

static const struct int8_step *int8_step(const struct gemm_rows *in, uint32_t row, uint32_t s) {
    return in->int8 + row / ROW_TILE * (in->ldx / GROUP) + s;
}

/* sum of x's and w's integers over one block. */
static int32_t dot_int8(enum dtype dtype, const uint8_t *block, const int8_t *x) {
    const uint8_t *w = block + (dtype == DTYPE_Q4_1 ? 4 : 2);
    int32_t sum = 0;
    for (uint32_t k = 0; k < GROUP; k++) {
        int32_t nibble = k < 16 ? w[k % 16] & 15 : w[k % 16] >> 4;
        sum += x[k] * (dtype == DTYPE_Q8_0   ? (int8_t)w[k]
                       : dtype == DTYPE_Q4_0 ? nibble - 8
                                             : nibble);
    }
    return sum;
}

static float load_f16(const uint8_t *p) {
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* The same sums of a type that is only read, of all rows of in: a step is taken apart once. */
static void gemm_int8_steps(const struct matrix *m, uint32_t row, const struct gemm_rows *in,
                            float (*acc)[GROUP]) {
    uint32_t block_steps = dtype_block(m->dtype) / GROUP, j = row % GROUP;
    size_t block_bytes = dtype_row_bytes(m->dtype, dtype_block(m->dtype));
    const uint8_t *block =
        (const uint8_t *)m->data + (size_t)row * dtype_row_bytes(m->dtype, m->cols);
    struct block_step w;
    for (uint32_t i = 0; i < in->n_rows; i++)
        acc[i][j] = 0;
    for (uint32_t s = 0; s < m->cols / GROUP; s++) {
        block_step(m->dtype, block + s / block_steps * block_bytes, s % block_steps, &w);
        for (uint32_t i = 0; i < in->n_rows; i++) {
            const struct int8_step *x = int8_step(in, i, s);
            const struct int8_row *r = &x->rows[i % ROW_TILE];
            int32_t dot = 0;
            for (uint32_t k = 0; k < GROUP; k++)
                dot += x->q[i % ROW_TILE][k] * w.n[k];
            acc[i][j] = fmaf((float)dot * r->scale, w.d, acc[i][j]);
            if (block_has_minima(m->dtype)) acc[i][j] = fmaf(w.m, r->sum, acc[i][j]);
        }
    }
}

/* Output column `row` of the matrix for row i of in; the order of the floats is the definition. */
static float gemm_int8_one(const struct matrix *m, uint32_t row, const struct gemm_rows *in,
                           uint32_t i) {
    size_t block_bytes = dtype_row_bytes(m->dtype, GROUP);
    uint32_t n_steps = m->cols / GROUP;
    const uint8_t *block = (const uint8_t *)m->data + (size_t)row * n_steps * block_bytes;
    float acc = 0;
    for (uint32_t s = 0; s < n_steps; s++, block += block_bytes) {
        const struct int8_step *x = int8_step(in, i, s);
        const struct int8_row *r = &x->rows[i % ROW_TILE];
        int32_t dot = dot_int8(m->dtype, block, x->q[i % ROW_TILE]);
        acc = fmaf((float)dot * r->scale, load_f16(block), acc);
        if (m->dtype == DTYPE_Q4_1) acc = fmaf(load_f16(block + 2), r->sum, acc);
    }
    return acc;
}

static void gemm_int8(const struct matrix *m, uint32_t group, const struct gemm_rows *in,
                      float (*acc)[GROUP]) {
    for (uint32_t j = 0; j < GROUP; j++) {
        uint32_t row = group * GROUP + j;
        bool steps = row < m->rows && block_is_read_only(m->dtype);
        if (steps) gemm_int8_steps(m, row, in, acc);
        for (uint32_t i = 0; !steps && i < in->n_rows; i++)
            acc[i][j] = row < m->rows ? gemm_int8_one(m, row, in, i) : 0;
    }
}

static void rmsnorm(const float *x, const float *g, uint32_t n, float eps, float *out) {
    double inverse = 1 / sqrt(dot(x, x, n) / n + (double)eps);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)((double)g[i] * (double)x[i] * inverse);
}

static void silu_mul(float *gate, const float *up, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        double z = (double)gate[i];
        gate[i] = (float)(z / (1 + exp(-z)) * (double)up[i]);
    }
}

static void rope(float *head, const float *cosines, const float *sines, uint32_t half) {
    for (uint32_t m = 0; m < half; m++) {
        double a = (double)head[m], b = (double)head[m + half];
        double c = (double)cosines[m], s = (double)sines[m];
        head[m] = (float)(a * c - b * s);
        head[m + half] = (float)(b * c + a * s);
    }
}

/* ---- MSAR --------------------------------------------------------------------------------------- */

static void dots(const float *const *v, const float *w, uint32_t n_v, uint32_t n, float *out) {
    for (uint32_t k = 0; k < n_v; k++)
        out[k] = (float)dot(v[k], w, n);
}

static void weighted_sum(const float *const *v, const float *w, uint32_t n_v, uint32_t n,
                         float *out) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < n_v; k++)
            sum += (double)w[k] * (double)v[k][i];
        out[i] = (float)sum;
    }
}

static void expand(const float *const *v, const float *c, uint32_t n_v, uint32_t n, float *out) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < n_v; k++)
            sum += (double)c[(size_t)k * n + i] * (double)v[k][i];
        out[i] = (float)sum;
    }
}

/* ---- attention: K and V as [position][head_pad] ----------------------------------------------- */

/* x [n] as 8-bit KV (cpu.h): q, and d as the result. */
static uint16_t kv_quantise(const float *x, uint32_t n, int8_t *q) {
    float most = largest(x, n);
    memset(q, 0, n);
    if (!isfinite(most)) return KV_SCALE_NAN;
    uint16_t scale = f32_to_f16(fminf(most / 127.0f, 65504.0f));
    float d = f16_to_f32(scale);
    for (uint32_t i = 0; d > 0 && i < n; i++)
        q[i] = (int8_t)lrintf(fminf(fmaxf(x[i] / d, -127), 127));
    return scale;
}

static void kv_store(const struct device *dev, void *page, uint32_t at, const float *k,
                     const float *v) {
    enum dtype dtype = dev->limits.kv_dtype;
    uint32_t e = dev->shape.head_dim;
    if (dtype == DTYPE_Q8_0) {
        int8_t *q = (int8_t *)page + at * dev->head_pad;
        if (k) cpu_kv_scales(dev, page, false)[at] = kv_quantise(k, e, q);
        if (v) cpu_kv_scales(dev, page, true)[at] = kv_quantise(v, e, q + dev->value_bytes);
        return;
    }
    size_t row = dtype_row_bytes(dtype, dev->head_pad);
    char *to = (char *)page + at * row;
    if (k) dtype_from_f32(dtype, k, e, to);
    if (v) dtype_from_f32(dtype, v, e, to + dev->value_bytes);
}

/* Scratch: a widened K or V row, output sums, and one score a position. */
struct ref_scratch {
    double *scores, *sum;
    float *row;
};

static struct ref_scratch cut_scratch(const struct device *dev, struct carve *c) {
    struct ref_scratch s;
    s.scores = carve(c, dev->shape.max_position + DRAFT_MAX, sizeof *s.scores);
    s.sum = carve(c, dev->shape.head_dim, sizeof *s.sum);
    s.row = carve(c, dev->shape.head_dim, sizeof *s.row);
    return s;
}

static size_t attend_scratch(const struct device *dev) {
    struct carve c = {0};
    cut_scratch(dev, &c);
    return c.used;
}

/* K (v = false) or V of position t, widened. */
static void kv_load(const struct device *dev, uint32_t segment, uint32_t layer, uint32_t kv_head,
                    uint32_t t, bool v, float *out) {
    enum dtype dtype = dev->limits.kv_dtype;
    char *page = cpu_page(dev, segment, layer, t / PAGE_TOKENS) + kv_head * dev->head_bytes;
    const char *values = page + (v ? dev->value_bytes : 0);
    values += t % PAGE_TOKENS * dev->value_bytes / PAGE_TOKENS;
    if (dtype != DTYPE_Q8_0) {
        dtype_to_f32(dtype, values, dev->shape.head_dim, out);
        return;
    }
    float d = f16_to_f32(cpu_kv_scales(dev, page, v)[t % PAGE_TOKENS]);
    for (uint32_t i = 0; i < dev->shape.head_dim; i++)
        out[i] = d * (float)(int8_t)values[i]; /* exact: 11 bits times 7 */
}

static void attend_row(const struct device *dev, uint32_t layer, uint32_t row, uint32_t head,
                       const struct ref_scratch *s) {
    uint32_t e = dev->shape.head_dim, g = head / dev->group, segment = dev->row_segment[row];
    uint32_t lo = dev->row_lo[row], hi = dev->row_hi[row];
    const float *q = dev->q + row * dev->ld_q + head * e;
    double most = -INFINITY, total = 0;
    for (uint32_t t = lo; t < hi; t++) {
        kv_load(dev, segment, layer, g, t, false, s->row);
        s->scores[t - lo] = dot(q, s->row, e) / sqrt((double)e);
        if (!(s->scores[t - lo] <= most)) most = s->scores[t - lo];
    }
    memset(s->sum, 0, e * sizeof *s->sum);
    for (uint32_t t = lo; t < hi; t++) {
        double p = exp(s->scores[t - lo] - most);
        kv_load(dev, segment, layer, g, t, true, s->row);
        total += p;
        for (uint32_t i = 0; i < e; i++)
            s->sum[i] += p * (double)s->row[i];
    }
    float *o = dev->o + row * dev->ld_q + head * e;
    for (uint32_t i = 0; i < e; i++)
        o[i] = (float)(s->sum[i] / total);
}

static bool attend_tile(struct device *dev, uint32_t layer, const struct attend_task *task,
                        void *scratch) {
    struct carve c = {.base = scratch};
    struct ref_scratch s = cut_scratch(dev, &c);
    const struct attend_tile *t = &dev->tiles[task->tile];
    for (uint32_t i = 0; i < t->n_rows; i++)
        for (uint32_t h = 0; h < dev->group; h++)
            attend_row(dev, layer, dev->order[t->first + i], task->kv_head * dev->group + h, &s);
    return true;
}

static void finish(float (*acc)[GROUP], uint32_t n_rows, const float *bias, bool add, float *y,
                   size_t ldy) {
    cpu_finish_columns(acc, n_rows, GROUP, bias, add, y, ldy);
}

static uint32_t maximum(const float *z, uint32_t n, float *most) {
    uint32_t at = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite &= isfinite(z[i]) != 0;
        if (z[i] > z[at]) at = i;
    }
    *most = finite ? z[at] : NAN;
    return at;
}

const struct cpu_ops cpu_ops_ref = {
    .finish = finish,
    .matrix_bytes = matrix_bytes,
    .pack_group = pack_group,
    .matrix_row = matrix_row,
    .step_sums = step_sums,
    .quantise = quantise,
    .gemm_group = gemm_group,
    .gemm_int8 = gemm_int8,
    .narrow = cpu_narrow,
    .gemm_bf16 = gemm_group,
    .rmsnorm = rmsnorm,
    .silu_mul = silu_mul,
    .dots = dots,
    .weighted_sum = weighted_sum,
    .expand = expand,
    .rope = rope,
    .maximum = maximum,
    .kv_store = kv_store,
    .attend_tile = attend_tile,
    .attend_scratch = attend_scratch,
};
