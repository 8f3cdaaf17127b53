/* kernels.c: microseconds of the kernels of each CPU table of this machine, and what share of the
 * limit that is: the greater of the times that their bytes take at the memory's measured peak and
 * their operations at that of the products of these activations.
 *
 *   gemm     y += W x, stage out_residual: products of rows that attention left ready for them, sums;
 *            and stage mlp: norm, gate and up with SiLU-mul in one, down
 *   head     stage lm_head of 49152 x 576: norm, products
 *   attend   stage attend, one row behind a context, and a chunk of 256 rows that ends there, with full
 *            attention and in a window; rows made ready for the product behind it
 *   rows     kernels_rows.c: what is done to rows of 576 or 1536 numbers between products
 *   msar     kernels_rows.c: the sums of MSAR's residual path
 *   sample   stage accept over 49152 tokens: greedy, top_p, top_k
 *
 * All go through the stages of a loaded device and its worker pool, as in service; `rows` and `msar`,
 * which no stage does alone, call the table's operations on that pool, 16 rows a task. A model has as many
 * layers as make its timed matrices --weights MiB together, and calls walk over the layers: a weight
 * is read from where it would be in a whole model and not from the core's own cache. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/kernels.h"

enum {
    SAMPLES_MIN = 5,
    SAMPLES_MAX = 1000,
    CHUNK = 256,
    SMALL = 32, /* of what a model must have and nobody times */
};

/* ---- measuring -------------------------------------------------------------------------------- */

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measure(void (*fn)(void *arg, uint32_t part), void *arg, uint32_t n_parts, uint32_t ms,
             struct result *out) {
    static double samples[SAMPLES_MAX];
    uint32_t part = 0, n_samples = 0;
    double begun = now_us(), target = ms * 1e3;
    fn(arg, 0); /* the first one only warms */
    double once = now_us() - begun;
    double calls = once > 0 ? floor(target / (4 * SAMPLES_MIN) / once) : 1;
    uint32_t n_calls = calls < 1 ? 1 : calls > 10000 ? 10000 : (uint32_t)calls;
    begun = now_us();
    for (double before = begun, now;
         n_samples < SAMPLES_MIN || (before - begun < target && n_samples < SAMPLES_MAX);
         before = now) {
        for (uint32_t i = 0; i < n_calls; i++, part = part + 1 < n_parts ? part + 1 : 0)
            fn(arg, part);
        now = now_us();
        samples[n_samples++] = (now - before) / n_calls;
    }
    qsort(samples, n_samples, sizeof *samples, ascending);
    out->best_us = samples[0];
    out->median_us = samples[n_samples / 2];
}

void result_limit(struct result *r, const struct limits *peaks) {
    if (peaks->bytes_per_s == 0) return;
    double memory = r->bytes / peaks->bytes_per_s * 1e6;
    double products = r->flops / peaks->flops_per_s * 1e6;
    r->memory_bound = memory >= products;
    r->limit_us = r->memory_bound ? memory : products;
}

void bench_line(struct bench *b, struct result *r, void (*fn)(void *, uint32_t), void *arg,
                uint32_t n_parts) {
    r->table = b->table->name;
    r->activations = b->activations;
    measure(fn, arg, n_parts, b->plan->ms, r);
    result_limit(r, &b->peaks);
    report_result(b->plan, r);
}

static bool wanted(const char *words, const char *name) {
    if (!words) return true;
    size_t len = strlen(name);
    for (const char *at = words; (at = strstr(at, name)); at += len)
        if ((at == words || at[-1] == ',') && (at[len] == ',' || at[len] == '\0')) return true;
    return false;
}

uint32_t list_largest(const struct list *list) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->n; i++)
        if (list->items[i] > most) most = list->items[i];
    return most;
}

bool bench_open(struct bench *b, const struct model_shape *shape,
                const struct device_limits *limits, enum dtype dtype, const char *what) {
    struct err err = {0};
    if (bench_device_open(b->table, shape, limits, dtype, b->plan->n_threads, &b->device, &err) ==
        OK)
        return true;
    report_note(b->plan, what, err.msg);
    return false;
}

/* ---- products --------------------------------------------------------------------------------- */

struct model_shape small_shape(enum activations activations) {
    return (struct model_shape){.n_layers = 1,
                                .d_model = D_MODEL,
                                .n_heads = N_HEADS,
                                .n_kv_heads = N_KV_HEADS,
                                .head_dim = HEAD_DIM,
                                .d_ff = SMALL,
                                .vocab_size = SMALL,
                                .rms_eps = 1e-5f,
                                .tied_head = true,
                                .max_position = 512,
                                .rope_scale = 1,
                                .activations = activations};
}

struct device_limits small_limits(uint32_t n_rows) {
    return (struct device_limits){.kv_dtype = DTYPE_BF16,
                                  .n_pages = (uint32_t)div_ceil(n_rows, PAGE_TOKENS),
                                  .n_slots = 1,
                                  .max_rows = n_rows,
                                  .max_logit_rows = 1};
}

static void call_out_residual(void *arg, uint32_t layer) {
    struct bench_device *d = arg;
    d->table->out_residual(d->dev, layer);
}

static void call_mlp(void *arg, uint32_t layer) {
    struct bench_device *d = arg;
    d->table->mlp(d->dev, layer);
}

static void call_lm_head(void *arg, uint32_t part) {
    (void)part;
    struct bench_device *d = arg;
    d->table->lm_head(d->dev);
}

/* A matrix of n x k, in every number of rows. */
static void gemm_lines(struct bench *b, const char *group, enum dtype dtype, uint32_t n,
                       uint32_t k) {
    bool head = strcmp(group, "head") == 0;
    const struct list *rows = &b->plan->rows;
    for (uint32_t i = 0; i < rows->n; i++) {
        struct result r = {.group = group, .dtype = dtype_name(dtype), .rows = rows->items[i]};
        snprintf(r.shape, sizeof r.shape, "%ux%u", n, k);
        r.bytes = (double)dtype_row_bytes(dtype, (size_t)n * k);
        r.flops = 2.0 * r.rows * n * k;
        bench_device_begin(&b->device, 1, 0, r.rows, head ? r.rows : 0, PICK_NONE);
        bench_line(b, &r, head ? call_lm_head : call_out_residual, &b->device,
                   b->device.shape.n_layers);
        bench_device_end(&b->device);
    }
}

/* w_o is [d_model, heads * head_dim]: any shape whose depth is a multiple of three heads. */
static void bench_gemm(struct bench *b, enum dtype dtype) {
    const uint32_t sizes[][2] = {{D_MODEL, D_MODEL}, {D_FF, D_MODEL}, {D_MODEL, D_FF}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint32_t n = sizes[i][0], k = sizes[i][1];
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "%ux%u", n, k);
        if (!wanted(b->plan->shapes, name)) continue;
        struct model_shape shape = small_shape(b->activations);
        shape.d_model = n;
        shape.n_heads = k / HEAD_DIM;
        shape.n_kv_heads = shape.n_heads / 3;
        if (k % dtype_block(dtype) == 0)
            shape.n_layers = (uint32_t)div_ceil((size_t)b->plan->weights_mib << 20,
                                                dtype_row_bytes(dtype, (size_t)n * k));
        struct device_limits limits = small_limits(list_largest(&b->plan->rows));
        snprintf(name, sizeof name, "gemm %ux%u %s", n, k, dtype_name(dtype));
        if (!bench_open(b, &shape, &limits, dtype, name)) continue;
        gemm_lines(b, "gemm", dtype, n, k);
        bench_device_close(&b->device);
    }
}

/* Gate, up and down of every layer are timed together: no stage has the fused product alone. */
static void bench_mlp(struct bench *b, enum dtype dtype) {
    if (!wanted(b->plan->shapes, "mlp")) return;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "mlp %s", dtype_name(dtype));
    if (D_MODEL % dtype_block(dtype) != 0) {
        report_note(b->plan, name, "rows of 576 are no multiple of its block");
        return;
    }
    struct model_shape shape = small_shape(b->activations);
    size_t numbers = (size_t)3 * D_MODEL * D_FF, bytes = dtype_row_bytes(dtype, numbers);
    shape.d_ff = D_FF;
    shape.n_layers = (uint32_t)div_ceil((size_t)b->plan->weights_mib << 20, bytes);
    struct device_limits limits = small_limits(list_largest(&b->plan->rows));
    if (!bench_open(b, &shape, &limits, dtype, name)) return;
    for (uint32_t i = 0; i < b->plan->rows.n; i++) {
        struct result r = {
            .group = "mlp", .dtype = dtype_name(dtype), .rows = b->plan->rows.items[i]};
        snprintf(r.shape, sizeof r.shape, "3 x %ux%u", D_MODEL, D_FF);
        r.bytes = (double)bytes;
        r.flops = 2.0 * r.rows * (double)numbers;
        bench_device_begin(&b->device, 1, 0, r.rows, 0, PICK_NONE);
        bench_line(b, &r, call_mlp, &b->device, shape.n_layers);
        bench_device_end(&b->device);
    }
    bench_device_close(&b->device);
}

static void bench_head(struct bench *b, enum dtype dtype) {
    if (!wanted(b->plan->shapes, "49152x576")) return;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "head %s", dtype_name(dtype));
    if (D_MODEL % dtype_block(dtype) != 0) {
        report_note(b->plan, name, "rows of 576 are no multiple of its block");
        return;
    }
    struct model_shape shape = small_shape(b->activations);
    shape.vocab_size = VOCAB;
    struct device_limits limits = small_limits(list_largest(&b->plan->rows));
    limits.max_logit_rows = limits.max_rows;
    if (!bench_open(b, &shape, &limits, dtype, name)) return;
    gemm_lines(b, "head", dtype, VOCAB, D_MODEL);
    bench_device_close(&b->device);
}

/* ---- attention -------------------------------------------------------------------------------- */

static void call_attend(void *arg, uint32_t layer) {
    struct bench_device *d = arg;
    d->table->attend(d->dev, layer);
}

/* Positions that a row at `pos` attends. */
static double attended(const struct model_shape *shape, uint32_t pos) {
    return shape->orthros && pos + 1 > shape->window ? shape->window : pos + 1;
}

/* The last n_rows of `context` positions. Page memory may be padded; a position's bytes are its own. */
static void attend_line(struct bench *b, uint32_t context, uint32_t n_rows, enum dtype kv) {
    struct bench_device *d = &b->device;
    uint32_t pos = context - n_rows;
    struct result r = {.group = "attend", .dtype = dtype_name(kv), .rows = n_rows};
    snprintf(r.shape, sizeof r.shape, "context %u", context);
    if (d->shape.orthros)
        snprintf(r.shape, sizeof r.shape, "context %u window %u", context, d->shape.window);
    for (uint32_t i = 0; i < n_rows; i++)
        r.flops += 4.0 * attended(&d->shape, pos + i) * N_HEADS * HEAD_DIM;
    double reach =
        context - (pos + 1 - attended(&d->shape, pos)); /* of the first row, to the last */
    r.bytes = (double)d->table->page_bytes(d->dev, kv) / d->shape.n_layers / PAGE_TOKENS * reach;
    bench_device_begin(d, 1, pos, n_rows, 0, PICK_NONE);
    bench_line(b, &r, call_attend, d, d->shape.n_layers);
    bench_device_end(d);
}

/* window 0: full attention. Contexts within the window would be the same. */
static void bench_attend(struct bench *b, enum dtype kv, uint32_t window) {
    const struct list *contexts = &b->plan->contexts;
    struct model_shape shape = small_shape(b->activations);
    shape.n_layers = b->plan->attend_layers;
    shape.max_position = list_largest(contexts);
    shape.orthros = window > 0;
    shape.window = window;
    struct device_limits limits = small_limits(CHUNK);
    limits.kv_dtype = kv;
    limits.n_pages = (uint32_t)div_ceil(shape.max_position, PAGE_TOKENS);
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "attend, KV %s", dtype_name(kv));
    if (!bench_open(b, &shape, &limits, DTYPE_Q8_0, name)) return;
    /* Real keys and values in the first pages, copies of them in the others. */
    uint32_t filled = shape.max_position < CHUNK ? shape.max_position : CHUNK;
    bench_device_begin(&b->device, 1, 0, filled, 0, PICK_NONE);
    bench_device_end(&b->device);
    for (uint32_t page = CHUNK / PAGE_TOKENS; page < limits.n_pages; page++)
        b->table->page_copy(b->device.dev, page % (CHUNK / PAGE_TOKENS), page);
    for (uint32_t n_rows = 1; n_rows <= CHUNK; n_rows *= CHUNK)
        for (uint32_t i = 0; i < contexts->n; i++)
            if (contexts->items[i] >= n_rows && contexts->items[i] > window)
                attend_line(b, contexts->items[i], n_rows, kv);
    bench_device_close(&b->device);
}

/* ---- sampling --------------------------------------------------------------------------------- */

static void call_accept(void *arg, uint32_t part) {
    (void)part;
    struct bench_device *d = arg;
    d->table->accept(d->dev);
}

/* Logits are spread as those of random weights, a standard deviation of about one: no token stands
 * out, which is the most that top_p and top_k ever have to look at. */
static void bench_sample(struct bench *b) {
    struct model_shape shape = small_shape(b->activations);
    struct device_limits limits = small_limits(8);
    shape.vocab_size = VOCAB;
    limits.n_slots = limits.max_logit_rows = limits.n_pages = 8;
    if (!bench_open(b, &shape, &limits, DTYPE_Q8_0, "sample")) return;
    const struct {
        const char *name;
        struct rules rules;
    } kinds[] = {
        {"greedy", {.top_p = 1}},
        {"temperature", {.temperature = 0.8f, .top_p = 1, .seed = 1}},
        {"top_p 0.95", {.temperature = 0.8f, .top_p = 0.95f, .seed = 1}},
        {"top_k 40", {.temperature = 0.8f, .top_p = 1, .top_k = 40, .seed = 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        for (uint32_t n = 1; n <= limits.n_slots; n *= 8) {
            struct result r = {.group = "sample", .dtype = "f32", .rows = n};
            snprintf(r.shape, sizeof r.shape, "%s", kinds[i].name);
            /* What a greedy draw reads is known from the head: it has no limit to speak of. */
            r.bytes = kinds[i].rules.temperature > 0 ? 4.0 * VOCAB * n : 0;
            for (uint32_t slot = 0; slot < n; slot++)
                b->table->slot_set(b->device.dev, slot, &kinds[i].rules);
            bench_device_begin(&b->device, n, 0, 1, 1, PICK_ACCEPT);
            b->table->lm_head(b->device.dev);
            bench_line(b, &r, call_accept, &b->device, 1);
            bench_device_end(&b->device);
        }
    bench_device_close(&b->device);
}

/* ---- one table in one arithmetic -------------------------------------------------------------- */

/* The memory is the same for all tables: its best peak so far counts. */
static bool find_peaks(struct bench *b) {
    static double most_bytes_per_s;
    struct err err = {0};
    if (b->plan->no_peaks) return true;
    if (b->table->peaks(b->activations, b->plan->n_threads, &b->peaks.bytes_per_s,
                        &b->peaks.flops_per_s, &err) != OK) {
        report_note(b->plan, b->table->name, err.msg);
        return false;
    }
    if (b->peaks.bytes_per_s > most_bytes_per_s) most_bytes_per_s = b->peaks.bytes_per_s;
    b->peaks.bytes_per_s = most_bytes_per_s;
    report_peaks(b->plan, b->table->name, b->activations, &b->peaks);
    return true;
}

/* In int8 other types than blocks, attention and all that follows are those of f32. */
static void bench_table(struct bench *b) {
    const struct plan *plan = b->plan;
    bool own = b->activations != ACTIVATIONS_INT8;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        enum dtype dtype = (enum dtype)t;
        if (!plan->dtypes[t] || (!own && dtype_block(dtype) == 1)) continue;
        if (wanted(plan->groups, "gemm")) bench_gemm(b, dtype);
        if (wanted(plan->groups, "gemm")) bench_mlp(b, dtype);
        if (wanted(plan->groups, "head")) bench_head(b, dtype);
    }
    for (int t = 0; own && wanted(plan->groups, "attend") && t < DTYPE_COUNT; t++)
        for (uint32_t i = 0; plan->kv_dtypes[t] && i < plan->windows.n; i++)
            bench_attend(b, (enum dtype)t, plan->windows.items[i]);
    if (b->activations != ACTIVATIONS_F32) return;
    if (wanted(plan->groups, "rows")) bench_rows(b);
    if (wanted(plan->groups, "msar")) bench_msar(b);
    if (wanted(plan->groups, "sample")) bench_sample(b);
}

static void bench_all(const struct plan *plan) {
    const char *names[] = {"amx", "avx512", "avx2", "ref"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct err err = {0};
        bool asked = plan->tables && wanted(plan->tables, names[i]);
        if (!asked && (plan->tables || strcmp(names[i], "ref") == 0)) continue;
        const struct kernels *table = kernels_find(names[i], &err);
        if (!table) {
            report_note(plan, names[i], err.msg);
            continue;
        }
        for (int a = 0; a < ACTIVATIONS_COUNT; a++) {
            struct bench b = {.plan = plan, .table = table, .activations = (enum activations)a};
            if (plan->activations[a] && (table->activations >> a & 1) && find_peaks(&b))
                bench_table(&b);
        }
    }
}

/* ---- the command line ------------------------------------------------------------------------- */

static const char USAGE[] =
    "kernels: microseconds of the CPU kernels; lists have commas\n"
    "  --groups LIST       of gemm,head,attend,rows,msar,sample (all)\n"
    "  --tables LIST       of amx,avx512,avx2,ref (all of this machine but ref)\n"
    "  --activations LIST  of f32,bf16,int8 (all that a table has)\n"
    "  --dtypes LIST       of the weights (bf16,q8_0,q4_1,q4_k)\n"
    "  --kv LIST           of the attention and of storing (f32,bf16,q8_0)\n"
    "  --shapes LIST       of 576x576,1536x576,576x1536,mlp,49152x576 (all)\n"
    "  --rows LIST         up to 512 (1,2,4,8,16,32,128,512)\n"
    "  --contexts LIST     of the attention, positions (256,512,2048,8192)\n"
    "  --windows LIST      of the attention; 0 = full (0,512)\n"
    "  --threads N         (the processors this process may use)\n"
    "  --ms N              milliseconds a line at least (50)\n"
    "  --weights N         MiB that the matrices of one line take (64)\n"
    "  --layers N          of the attention (30)\n"
    "  --no-peaks          no limits and no shares: for a profiler, which else sees the peaks "
    "above all\n"
    "  --json\n";

static int bad(const char *flag, const char *value) {
    fprintf(stderr, "kernels: %s %s: not understood\n%s", flag, value, USAGE);
    return 2;
}

static bool parse_number(const char *text, uint32_t lo, uint32_t hi, uint32_t *out) {
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (end == text || *end || n < lo || n > hi) return false;
    *out = (uint32_t)n;
    return true;
}

static bool parse_list(char *text, uint32_t least, uint32_t most, struct list *out) {
    out->n = 0;
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ","))
        if (out->n == LIST_MAX || !parse_number(word, least, most, &out->items[out->n++]))
            return false;
    return out->n > 0;
}

/* Names of dtypes into a set; `kv`: of those alone that KV may have. */
static bool parse_dtypes(char *text, bool kv, bool *set) {
    memset(set, 0, DTYPE_COUNT * sizeof *set);
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        int t = dtype_parse(word);
        if (t < 0 || (kv && t != DTYPE_F32 && t != DTYPE_BF16 && t != DTYPE_Q8_0)) return false;
        set[t] = true;
    }
    return true;
}

static bool parse_activations(char *text, bool *set) {
    memset(set, 0, ACTIVATIONS_COUNT * sizeof *set);
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        int a = 0;
        while (a < ACTIVATIONS_COUNT && strcmp(word, activations_name((enum activations)a)) != 0)
            a++;
        if (a == ACTIVATIONS_COUNT) return false;
        set[a] = true;
    }
    return true;
}

/* Every word of a list is one of `known`. */
static bool parse_words(const char *text, const char *known, const char **out) {
    char word[NAME_MAX_BYTES];
    for (const char *at = text; *at; at += strcspn(at, ",")) {
        at += *at == ',';
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, ","), at);
        if (!*word || !wanted(known, word)) return false;
    }
    *out = text;
    return true;
}

static bool parse_flag(const char *flag, char *value, struct plan *plan) {
    if (!strcmp(flag, "--groups"))
        return parse_words(value, "gemm,head,attend,rows,msar,sample", &plan->groups);
    if (!strcmp(flag, "--tables")) return parse_words(value, "amx,avx512,avx2,ref", &plan->tables);
    if (!strcmp(flag, "--shapes"))
        return parse_words(value, "576x576,1536x576,576x1536,mlp,49152x576", &plan->shapes);
    if (!strcmp(flag, "--activations")) return parse_activations(value, plan->activations);
    if (!strcmp(flag, "--dtypes")) return parse_dtypes(value, false, plan->dtypes);
    if (!strcmp(flag, "--kv")) return parse_dtypes(value, true, plan->kv_dtypes);
    if (!strcmp(flag, "--rows")) return parse_list(value, 1, 512, &plan->rows);
    if (!strcmp(flag, "--contexts")) return parse_list(value, 1, 1 << 17, &plan->contexts);
    if (!strcmp(flag, "--windows")) return parse_list(value, 0, 1 << 17, &plan->windows);
    if (!strcmp(flag, "--threads"))
        return parse_number(value, 1, POOL_THREADS_MAX, &plan->n_threads);
    if (!strcmp(flag, "--ms")) return parse_number(value, 1, 100000, &plan->ms);
    if (!strcmp(flag, "--weights")) return parse_number(value, 1, 4096, &plan->weights_mib);
    if (!strcmp(flag, "--layers")) return parse_number(value, 1, 128, &plan->attend_layers);
    return false;
}

static uint32_t processors(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > POOL_THREADS_MAX ? POOL_THREADS_MAX : (uint32_t)n;
}

int main(int argc, char **argv) {
    struct plan plan = {
        .activations = {true, true, true},
        .dtypes =
            {[DTYPE_BF16] = true, [DTYPE_Q8_0] = true, [DTYPE_Q4_1] = true, [DTYPE_Q4_K] = true},
        .kv_dtypes = {[DTYPE_F32] = true, [DTYPE_BF16] = true, [DTYPE_Q8_0] = true},
        .rows = {8, {1, 2, 4, 8, 16, 32, 128, 512}},
        .contexts = {4, {256, 512, 2048, 8192}},
        .windows = {2, {0, 512}},
        .n_threads = processors(),
        .ms = 50,
        .weights_mib = 64,
        .attend_layers = 30,
    };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            plan.json = true;
        else if (strcmp(argv[i], "--no-peaks") == 0)
            plan.no_peaks = true;
        else if (i + 1 == argc || !parse_flag(argv[i], argv[i + 1], &plan))
            return bad(argv[i], i + 1 < argc ? argv[i + 1] : "");
        else
            i++;
    }
    report_begin(&plan);
    bench_all(&plan);
    report_end(&plan);
    return 0;
}
