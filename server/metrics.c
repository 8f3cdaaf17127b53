/* metrics.c: see metrics.h. A family's HELP and TYPE lines come with its first series, so a family
 * that has none is not mentioned. */
#include "server/metrics.h"

#include <stdlib.h>
#include <string.h>

enum { ROUTES_MAX = 48, CODES_MAX = 8, LABELS_MAX = 7, VALUE_MAX = 256 };

/* Statuses that we send; 499 is a client that left before an answer. Anything else is the last. */
static const int STATUSES[] = {200, 204, 400, 401, 404, 405, 408, 413, 414,
                               415, 429, 431, 499, 500, 503, 504, 505, 0};

/* Bounds as text: made once, since printing a real costs more than all the rest of a line. */
struct bound_texts {
    const double *bounds;
    char text[HISTOGRAM_BOUNDS_MAX][24];
};
enum { BOUND_TABLES = 4 };

struct metrics {
    struct bound_texts bound_texts[BOUND_TABLES];
    struct {
        const char *route;
        uint64_t n[ARRAY_LEN(STATUSES)];
    } http[ROUTES_MAX];
    uint32_t n_routes;
    struct {
        const char *code;
        uint64_t n;
    } rejected[CODES_MAX];
    uint64_t finished[REASON_COUNT], prompt_cached;
    struct histogram first_token, queue, prefill, decode, whole;
    struct histogram prompt_tokens, generation_tokens;
};

/* ---- the families ---------------------------------------------------------------------------- */

enum family {
    WAITING,
    RUNNING,
    KV_USAGE,
    CACHE_CONFIG,
    HTTP_REQUESTS,
    FINISHED,
    REJECTED,
    PROMPT_TOKENS,
    PROMPT_CACHED,
    GENERATION_TOKENS,
    FIRST_TOKEN,
    INTER_TOKEN,
    QUEUE,
    PREFILL,
    DECODE,
    WHOLE,
    REQUEST_PROMPT,
    REQUEST_GENERATION,
    PROPOSED,
    ACCEPTED,
    ACCEPTED_POSITION,
    ACCEPTED_LENGTH,
    DRAFT_LENGTH,
    DRAFT_ACCEPTANCE,
    FORWARDS,
    KV_PAGES,
    KV_PAGES_USED,
    KV_PAGES_CACHED,
    EVICTIONS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    PREEMPTIONS,
    BATCH_SEQUENCES,
    BATCH_TOKENS,
    STEP_SECONDS,
    LOAD_PROGRESS,
    MEMORY,
    BUILD,
    FAMILY_COUNT
};

#define OURS(name) METRICS_PREFIX name

/* Group A keeps the names that routers assume when a pod has no label; the rest is ours. */
static const struct {
    const char *name, *type, *help;
} FAMILIES[FAMILY_COUNT] = {
    [WAITING] = {"vllm:num_requests_waiting", "gauge",
                 "Admitted sequences not in the batch, preempted ones included."},
    [RUNNING] = {"vllm:num_requests_running", "gauge",
                 "Sequences in the batch, prefilling or decoding."},
    [KV_USAGE] = {"vllm:kv_cache_usage_perc", "gauge",
                  "Share of KV pages held by live sequences, 0 to 1."},
    [CACHE_CONFIG] = {"vllm:cache_config_info", "gauge",
                      "Tokens of a KV page and pages in all, as labels."},
    [HTTP_REQUESTS] = {OURS("http_requests_total"), "counter",
                       "HTTP requests by route and status; scrapes of this page are left out."},
    [FINISHED] = {OURS("requests_finished_total"), "counter",
                  "Admitted requests that ended, by reason."},
    [REJECTED] = {OURS("requests_rejected_total"), "counter",
                  "Requests refused with 429 or 503, by error code."},
    [PROMPT_TOKENS] = {OURS("prompt_tokens_total"), "counter", "Prompt tokens taken in."},
    [PROMPT_CACHED] = {OURS("prompt_cached_tokens_total"), "counter",
                       "Prompt tokens of ended requests that came from stored pages."},
    [GENERATION_TOKENS] = {OURS("generation_tokens_total"), "counter",
                           "Tokens that became part of a text."},
    [FIRST_TOKEN] = {OURS("time_to_first_token_seconds"), "histogram",
                     "Arrival to the first token; in streams, to its hand-over to the socket."},
    [INTER_TOKEN] = {OURS("inter_token_latency_seconds"), "histogram",
                     "Time between tokens; k tokens at once count k times a k-th of the gap."},
    [QUEUE] = {OURS("request_queue_seconds"), "histogram", "Admission to the first step."},
    [PREFILL] = {OURS("request_prefill_seconds"), "histogram", "First step to first token."},
    [DECODE] = {OURS("request_decode_seconds"), "histogram", "First token to last token."},
    [WHOLE] = {OURS("request_seconds"), "histogram", "Arrival to the end of the answer."},
    [REQUEST_PROMPT] = {OURS("request_prompt_tokens"), "histogram", "Prompt tokens of a request."},
    [REQUEST_GENERATION] = {OURS("request_generation_tokens"), "histogram",
                            "Generated tokens of a request."},
    [PROPOSED] = {OURS("draft_tokens_proposed_total"), "counter",
                  "Drafted tokens offered to a verifying pass."},
    [ACCEPTED] = {OURS("draft_tokens_accepted_total"), "counter", "Drafted tokens kept by it."},
    [ACCEPTED_POSITION] = {OURS("draft_accepted_position_total"), "counter",
                           "How often the drafted token at this place of its block was kept."},
    [ACCEPTED_LENGTH] = {OURS("draft_accepted_length"), "histogram",
                         "Tokens a decoding pass gave a text, its own one included."},
    [DRAFT_LENGTH] = {OURS("draft_length"), "gauge",
                      "Proposals of a decoding sequence in the last step, the mean."},
    [DRAFT_ACCEPTANCE] = {OURS("draft_acceptance"), "gauge",
                          "Estimated share of first proposals that are kept; 0: none is made."},
    [FORWARDS] = {OURS("forward_passes_total"), "counter",
                  "Forward passes; a mixed one counts as verify, else decode, else prefill."},
    [KV_PAGES] = {OURS("kv_pages"), "gauge", "KV pages in all."},
    [KV_PAGES_USED] = {OURS("kv_pages_used"), "gauge", "KV pages held by live sequences."},
    [KV_PAGES_CACHED] = {OURS("kv_pages_cached"), "gauge",
                         "KV pages that no sequence holds, kept for texts that begin alike."},
    [EVICTIONS] = {OURS("kv_page_evictions_total"), "counter",
                   "Kept KV pages that were given to others."},
    [PREFIX_QUERIES] = {OURS("prefix_cache_query_tokens_total"), "counter",
                        "Prompt tokens looked up among kept pages."},
    [PREFIX_HITS] = {OURS("prefix_cache_hit_tokens_total"), "counter",
                     "Prompt tokens found among them."},
    [PREEMPTIONS] = {OURS("preemptions_total"), "counter",
                     "Sequences sent back to the line for want of KV pages."},
    [BATCH_SEQUENCES] = {OURS("batch_sequences"), "gauge", "Sequences in the last step."},
    [BATCH_TOKENS] = {OURS("batch_tokens"), "gauge",
                      "Positions computed by the last step's main forward."},
    [STEP_SECONDS] = {OURS("step_seconds"), "histogram", "Time of a forward pass, by kind."},
    [LOAD_PROGRESS] = {OURS("model_load_progress"), "gauge", "Loading of the model, 0 to 1."},
    [MEMORY] = {OURS("device_memory_bytes"), "gauge",
                "Memory of the computing device, by what holds it; free: what may still be used."},
    [BUILD] = {OURS("build_info"), "gauge", "What is running, as labels."},
};

/* ---- counting -------------------------------------------------------------------------------- */

static const double STAGES[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,
                                .75,  1,    2.5, 5,   7.5, 10,  20,  40, 80,  160};
static const double TOKENS[] = {1,     2,     4,     8,      16,     32,     64,
                                128,   256,   512,   1024,   2048,   4096,   8192,
                                16384, 32768, 65536, 131072, 262144, 524288, 1048576};
_Static_assert(ARRAY_LEN(TOKENS) <= HISTOGRAM_BOUNDS_MAX, "raise HISTOGRAM_BOUNDS_MAX");

static void name_bounds(struct bound_texts *out, const double *bounds, size_t n) {
    out->bounds = bounds;
    for (size_t i = 0; i < n; i++)
        snprintf(out->text[i], sizeof out->text[i], "%.9g", bounds[i]);
}

struct metrics *metrics_create(void) {
    struct metrics *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    struct histogram *stages[] = {&m->first_token, &m->queue, &m->prefill, &m->decode, &m->whole};
    for (size_t i = 0; i < ARRAY_LEN(stages); i++)
        *stages[i] = (struct histogram){.bounds = STAGES, .n_bounds = ARRAY_LEN(STAGES)};
    struct engine_gauges gauges;
    engine_gauges(NULL, &gauges);
    const struct histogram *h[] = {&gauges.inter_token_seconds, &gauges.accepted_length};
    for (size_t i = 0; i < ARRAY_LEN(h); i++)
        name_bounds(&m->bound_texts[i], h[i]->bounds, h[i]->n_bounds);
    name_bounds(&m->bound_texts[2], STAGES, ARRAY_LEN(STAGES));
    name_bounds(&m->bound_texts[3], TOKENS, ARRAY_LEN(TOKENS));
    m->prompt_tokens = m->generation_tokens =
        (struct histogram){.bounds = TOKENS, .n_bounds = ARRAY_LEN(TOKENS)};
    return m;
}

void metrics_destroy(struct metrics *metrics) {
    free(metrics);
}

void metrics_http(struct metrics *m, const char *route, int status) {
    uint32_t r = 0, s = 0;
    if (!route) route = "none";
    if (!strcmp(route, METRICS_PATH)) return; /* reading must not change what is read */
    while (r < m->n_routes && strcmp(m->http[r].route, route) != 0)
        r++;
    ASSERT(r < ROUTES_MAX); /* more than the route table has rows */
    if (r == m->n_routes) m->http[m->n_routes++].route = route;
    while (s + 1 < ARRAY_LEN(STATUSES) && STATUSES[s] != status)
        s++;
    m->http[r].n[s]++;
}

void metrics_rejected(struct metrics *m, const struct api_error *error) {
    if (error->status != 429 && error->status != 503) return;
    uint32_t i = 0;
    while (i < CODES_MAX && m->rejected[i].code && strcmp(m->rejected[i].code, error->code) != 0)
        i++;
    ASSERT(i < CODES_MAX); /* more than there are codes of 429 and 503 */
    m->rejected[i].code = error->code;
    m->rejected[i].n++;
}

const char *metrics_reason_name(enum metrics_reason reason) {
    static const char *const NAMES[REASON_COUNT] = {"stop", "length", "tool_calls", "abort",
                                                    "error"};
    return NAMES[reason];
}

void metrics_finished(struct metrics *m, enum metrics_reason reason, uint64_t cached_tokens) {
    m->finished[reason]++;
    m->prompt_cached += cached_tokens;
}

void metrics_first_token(struct metrics *m, double seconds) {
    histogram_observe(&m->first_token, seconds, 1);
}

void metrics_request(struct metrics *m, const struct metrics_request *request) {
    histogram_observe(&m->queue, request->queue, 1);
    histogram_observe(&m->prefill, request->prefill, 1);
    histogram_observe(&m->decode, request->decode, 1);
    histogram_observe(&m->whole, request->whole, 1);
    histogram_observe(&m->prompt_tokens, (double)request->prompt_tokens, 1);
    histogram_observe(&m->generation_tokens, (double)request->generation_tokens, 1);
}

/* ---- writing --------------------------------------------------------------------------------- */

struct page {
    struct buf *out;
    const struct metrics *metrics;
    bool named[FAMILY_COUNT];                   /* HELP and TYPE are written */
    char labels[LABELS_MAX * (VALUE_MAX + 40)]; /* of the series being written, without braces */
    size_t labels_len;
};

static void name_family(struct page *page, enum family family) {
    if (page->named[family]) return;
    page->named[family] = true;
    buf_fmt(page->out, "# HELP %s %s\n# TYPE %s %s\n", FAMILIES[family].name, FAMILIES[family].help,
            FAMILIES[family].name, FAMILIES[family].type);
}

/* Add a label to the series that comes next. A long value is cut at a character. */
static void label(struct page *page, const char *key, const char *value) {
    size_t at = page->labels_len, room = sizeof page->labels - at;
    int n = snprintf(page->labels + at, room, "%s%s=\"", at ? "," : "", key);
    ASSERT(n > 0 && (size_t)n + VALUE_MAX + 8 < room);
    at += (size_t)n;
    size_t end = at + VALUE_MAX;
    for (const unsigned char *c = (const unsigned char *)value; *c; c++) {
        if ((*c & 0xc0) != 0x80 && at + 4 > end) break; /* a character has 4 bytes at most */
        if (at >= end) break;                           /* and this text is no UTF-8 */
        if (*c == '\\' || *c == '"' || *c == '\n') page->labels[at++] = '\\';
        page->labels[at++] = *c == '\n' ? 'n' : (char)*c;
    }
    page->labels[at++] = '"';
    page->labels[at] = 0;
    page->labels_len = at;
}

static void end_series(struct page *page) {
    page->labels_len = 0;
    page->labels[0] = 0;
}

/* The name of a series: family, suffix, labels, and `le` where it is a bucket. */
static void put_name(struct page *page, enum family family, const char *suffix, const char *le) {
    struct buf *out = page->out;
    buf_str(out, FAMILIES[family].name);
    buf_str(out, suffix);
    if (page->labels_len || le) buf_str(out, "{");
    buf_add(out, page->labels, page->labels_len);
    if (le) {
        buf_str(out, page->labels_len ? ",le=\"" : "le=\"");
        buf_str(out, le);
        buf_str(out, "\"");
    }
    buf_str(out, page->labels_len || le ? "} " : " ");
}

static void put_whole(struct page *page, uint64_t value) {
    char digits[24];
    size_t at = sizeof digits;
    digits[--at] = '\n';
    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    buf_add(page->out, digits + at, sizeof digits - at);
}

static void whole(struct page *page, enum family family, uint64_t value) {
    name_family(page, family);
    put_name(page, family, "", NULL);
    put_whole(page, value);
    end_series(page);
}

static void real(struct page *page, enum family family, double value) {
    name_family(page, family);
    put_name(page, family, "", NULL);
    buf_fmt(page->out, "%.15g\n", value);
    end_series(page);
}

/* Buckets are cumulative, and the last of them is the count itself. */
static void histogram(struct page *page, enum family family, const struct histogram *h) {
    const struct bound_texts *texts = page->metrics->bound_texts;
    uint64_t n = 0;
    while (texts->bounds != h->bounds) {
        texts++;
        ASSERT(texts < page->metrics->bound_texts + BOUND_TABLES);
    }
    name_family(page, family);
    for (uint32_t i = 0; i < h->n_bounds; i++) {
        n += h->counts[i];
        put_name(page, family, "_bucket", texts->text[i]);
        put_whole(page, n);
    }
    n += h->counts[h->n_bounds];
    put_name(page, family, "_bucket", "+Inf");
    put_whole(page, n);
    put_name(page, family, "_sum", NULL);
    buf_fmt(page->out, "%.15g\n", h->sum);
    put_name(page, family, "_count", NULL);
    put_whole(page, n);
    end_series(page);
}

static void write_routers(struct page *page, const struct metrics_source *source) {
    const struct engine_gauges *g = source->gauges;
    const struct engine_info *engine = source->engine;
    char number[24];
    if (!source->model_name) return;
    label(page, "model_name", source->model_name);
    whole(page, WAITING, g->waiting);
    label(page, "model_name", source->model_name);
    whole(page, RUNNING, g->running);
    label(page, "model_name", source->model_name);
    real(page, KV_USAGE, g->pages_total ? (double)g->pages_used / g->pages_total : 0);
    if (!engine) return;
    label(page, "model_name", source->model_name);
    snprintf(number, sizeof number, "%u", engine->page_tokens);
    label(page, "block_size", number);
    snprintf(number, sizeof number, "%u", engine->n_pages);
    label(page, "num_gpu_blocks", number);
    whole(page, CACHE_CONFIG, 1);
}

static void write_http(struct page *page, const struct metrics *m) {
    char status[16];
    for (uint32_t r = 0; r < m->n_routes; r++) {
        for (size_t s = 0; s < ARRAY_LEN(STATUSES); s++) {
            if (!m->http[r].n[s]) continue;
            snprintf(status, sizeof status, "%d", STATUSES[s]);
            label(page, "route", m->http[r].route);
            label(page, "status", STATUSES[s] ? status : "other");
            whole(page, HTTP_REQUESTS, m->http[r].n[s]);
        }
    }
}

static void write_requests(struct page *page, const struct metrics *m) {
    for (int i = 0; i < REASON_COUNT; i++) {
        label(page, "reason", metrics_reason_name((enum metrics_reason)i));
        whole(page, FINISHED, m->finished[i]);
    }
    for (int i = 0; i < CODES_MAX && m->rejected[i].code; i++) {
        label(page, "code", m->rejected[i].code);
        whole(page, REJECTED, m->rejected[i].n);
    }
}

static void write_times(struct page *page, const struct metrics *m, const struct engine_gauges *g) {
    whole(page, PROMPT_TOKENS, g->prompt_tokens);
    whole(page, PROMPT_CACHED, m->prompt_cached);
    whole(page, GENERATION_TOKENS, g->generated_tokens);
    histogram(page, FIRST_TOKEN, &m->first_token);
    histogram(page, INTER_TOKEN, &g->inter_token_seconds);
    histogram(page, QUEUE, &m->queue);
    histogram(page, PREFILL, &m->prefill);
    histogram(page, DECODE, &m->decode);
    histogram(page, WHOLE, &m->whole);
    histogram(page, REQUEST_PROMPT, &m->prompt_tokens);
    histogram(page, REQUEST_GENERATION, &m->generation_tokens);
}

static void write_engine(struct page *page, const struct metrics_source *source) {
    static const char *const KINDS[FORWARD_KINDS] = {"prefill", "draft", "verify", "decode"};
    const struct engine_gauges *g = source->gauges;
    char position[16];
    whole(page, PROPOSED, g->proposed_tokens);
    whole(page, ACCEPTED, g->accepted_tokens);
    for (uint32_t i = 0; i < g->n_draft_positions; i++) {
        snprintf(position, sizeof position, "%u", i);
        label(page, "position", position);
        whole(page, ACCEPTED_POSITION, g->accepted_position[i]);
    }
    histogram(page, ACCEPTED_LENGTH, &g->accepted_length);
    real(page, DRAFT_LENGTH, g->draft_length);
    real(page, DRAFT_ACCEPTANCE, g->draft_acceptance);
    for (int i = 0; i < FORWARD_KINDS; i++) {
        label(page, "kind", KINDS[i]);
        whole(page, FORWARDS, g->forwards[i]);
    }
    if (source->engine) {
        whole(page, KV_PAGES, source->engine->n_pages);
        whole(page, KV_PAGES_USED, g->pages_used);
        whole(page, KV_PAGES_CACHED, g->pages_cached);
    }
    whole(page, EVICTIONS, g->page_evictions);
    whole(page, PREFIX_QUERIES, g->prefix_query_tokens);
    whole(page, PREFIX_HITS, g->prefix_hit_tokens);
    whole(page, PREEMPTIONS, g->preemptions);
    whole(page, BATCH_SEQUENCES, g->batch_sequences);
    whole(page, BATCH_TOKENS, g->batch_tokens);
    for (int i = 0; i < FORWARD_KINDS; i++) {
        label(page, "kind", KINDS[i]);
        histogram(page, STEP_SECONDS, &g->step_seconds[i]);
    }
}

static void memory(struct page *page, const char *kind, uint64_t bytes) {
    label(page, "kind", kind);
    whole(page, MEMORY, bytes);
}

static void write_process(struct page *page, const struct metrics_source *source) {
    real(page, LOAD_PROGRESS, source->load_progress);
    if (source->model) memory(page, "weights", source->model->weight_bytes);
    if (source->engine) {
        memory(page, "kv", source->engine->kv_bytes);
        memory(page, "workspace", source->engine->workspace_bytes);
    }
    if (source->free_bytes) memory(page, "free", source->free_bytes);
    label(page, "version", source->version);
    label(page, "commit", source->commit);
    label(page, "backend", source->backend);
    if (source->model) { /* what computes is known once the model is loaded */
        if (source->model->hardware) label(page, "device", source->model->hardware);
        label(page, "kernels", source->model->kernel_table);
        label(page, "activations", source->model->activations);
    }
    label(page, "model_name", source->model_name ? source->model_name : "");
    whole(page, BUILD, 1);
}

void metrics_write(const struct metrics *metrics, const struct metrics_source *source,
                   struct buf *out) {
    struct page page = {.out = out, .metrics = metrics};
    write_routers(&page, source);
    write_http(&page, metrics);
    write_requests(&page, metrics);
    write_times(&page, metrics, source->gauges);
    write_engine(&page, source);
    write_process(&page, source);
}
