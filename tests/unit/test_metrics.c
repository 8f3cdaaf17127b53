/* The text of GET /metrics: its grammar in every state, and sums that add up. */
#include "tests/harness.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/metrics.h"

static const struct engine_info ENGINE = {
    .page_tokens = 16, .n_pages = 128, .draft_block = 8, .kv_bytes = 4096, .workspace_bytes = 99};
static const struct model_info MODEL = {
    .weight_bytes = 1234, .hardware = "Device 5", .kernel_table = "avx9", .activations = "int8"};

static struct metrics_source source_of(const struct engine_gauges *gauges, bool loaded) {
    return (struct metrics_source){
        .gauges = gauges,
        .engine = loaded ? &ENGINE : NULL,
        .model = loaded ? &MODEL : NULL,
        .model_name = loaded ? "a \"quoted\\ name\n" : NULL,
        .version = "1.2.3",
        .commit = "abc",
        .backend = "cpu",
        .load_progress = loaded ? 1 : 0.25,
    };
}

/* NUL-terminated; freed by buf_free. */
static struct buf page_of(const struct metrics *metrics, const struct metrics_source *source) {
    struct buf out = {0};
    metrics_write(metrics, source, &out);
    buf_add(&out, "", 1);
    assert_false(out.failed);
    return out;
}

/* The value of the one line that begins with series and a blank. */
static double value_of(const struct buf *page, const char *series) {
    char line[256];
    snprintf(line, sizeof line, "\n%s ", series);
    const char *at = strstr(page->data, line);
    if (!at) fail_msg("no %s in\n%s", series, page->data);
    assert_null(strstr(at + 1, line));
    return strtod(at + strlen(line), NULL);
}

static bool has(const struct buf *page, const char *text) {
    return strstr(page->data, text) != NULL;
}

/* Every line: HELP and TYPE of a family once and before its samples, which stand together; names of
 * ours by the rules; values finite. */
static void check_grammar(char *text) {
    char family[128] = "", type[16] = "", seen[64][128];
    size_t n_seen = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strncmp(line, "# HELP ", 7)) {
            snprintf(family, sizeof family, "%.*s", (int)strcspn(line + 7, " "), line + 7);
            for (size_t i = 0; i < n_seen; i++)
                assert_string_not_equal(seen[i], family);
            memcpy(seen[n_seen++], family, sizeof family);
            assert_true(strlen(line + 7) > strlen(family) + 1);
            char *next = strtok_r(NULL, "\n", &save);
            assert_non_null(next);
            char expect[160];
            snprintf(expect, sizeof expect, "# TYPE %s ", family);
            assert_memory_equal(next, expect, strlen(expect));
            snprintf(type, sizeof type, "%s", next + strlen(expect));
            assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") ||
                        !strcmp(type, "histogram"));
            bool is_ours = !strncmp(family, METRICS_PREFIX, strlen(METRICS_PREFIX));
            assert_true(is_ours || !strncmp(family, "vllm:", 5));
            for (const char *c = family; is_ours && *c; c++)
                assert_true(islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_');
            size_t len = strlen(family);
            bool total = len > 6 && !strcmp(family + len - 6, "_total");
            assert_int_equal(total, !strcmp(type, "counter"));
            continue;
        }
        size_t len = strlen(family);
        assert_true(len && !strncmp(line, family, len));
        const char *rest = line + len;
        if (!strcmp(type, "histogram")) {
            size_t suffix = strcspn(rest, "{ ");
            assert_true(!strncmp(rest, "_bucket", suffix) || !strncmp(rest, "_sum", suffix) ||
                        !strncmp(rest, "_count", suffix));
            rest += suffix;
        }
        if (*rest == '{') rest = strrchr(rest, '}') + 1;
        assert_true(*rest == ' ');
        char *end;
        double value = strtod(rest + 1, &end);
        assert_true(*end == 0 && isfinite(value) && value >= 0);
    }
    assert_true(n_seen > 20);
}

static void every_state_keeps_the_grammar(void **state) {
    (void)state;
    for (int loaded = 0; loaded < 2; loaded++) {
        struct metrics *metrics = metrics_create();
        struct engine_gauges gauges;
        engine_gauges(NULL, &gauges);
        gauges.n_draft_positions = loaded ? 7 : 0;
        struct metrics_source source = source_of(&gauges, loaded);
        struct buf page = page_of(metrics, &source);
        check_grammar(page.data);
        buf_free(&page);
        struct api_error error;
        api_error_set(&error, API_QUEUE_FULL, NULL, "full");
        for (int i = 0; i < 3; i++) {
            metrics_http(metrics, "/v1/completions", 200);
            metrics_http(metrics, NULL, 404);
            metrics_http(metrics, "/v1/completions", 777);
            metrics_rejected(metrics, &error);
            metrics_finished(metrics, REASON_ABORT, 0);
            metrics_first_token(metrics, 0.05);
            metrics_request(metrics, &(struct metrics_request){.queue = 1000, .whole = 0});
        }
        page = page_of(metrics, &source);
        check_grammar(page.data);
        buf_free(&page);
        metrics_destroy(metrics);
    }
}

static void counts_appear_where_they_belong(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create();
    struct engine_gauges gauges;
    engine_gauges(NULL, &gauges);
    gauges.running = 3;
    gauges.waiting = 2;
    gauges.pages_used = 32;
    gauges.pages_total = 128;
    gauges.prompt_tokens = 1ull << 40;
    gauges.pages_cached = 64; /* free to whoever needs them: no part of the usage */
    gauges.page_evictions = 9;
    gauges.prefix_query_tokens = 500;
    gauges.prefix_hit_tokens = 48;
    gauges.n_draft_positions = 2;
    gauges.accepted_position[1] = 5;
    histogram_observe(&gauges.step_seconds[FORWARD_VERIFY], 0.001, 1); /* on the bound: below it */
    histogram_observe(&gauges.step_seconds[FORWARD_VERIFY], 99, 2);
    metrics_http(metrics, "/v1/completions", 200);
    metrics_http(metrics, "/v1/completions", 200);
    metrics_http(metrics, "/v1/completions", 499);
    metrics_http(metrics, METRICS_PATH, 200);
    metrics_http(metrics, NULL, 404);
    metrics_finished(metrics, REASON_LENGTH, 33);
    metrics_finished(metrics, REASON_ABORT, 7);
    struct api_error error;
    api_error_set(&error, API_INVALID_VALUE, NULL, "no 429 and no 503");
    metrics_rejected(metrics, &error);
    api_error_set(&error, API_MODEL_LOADING, NULL, "loading");
    metrics_rejected(metrics, &error);
    metrics_request(metrics, &(struct metrics_request){.prompt_tokens = 5, .generation_tokens = 1});
    struct metrics_source source = source_of(&gauges, true);
    source.free_bytes = 7;
    struct buf page = page_of(metrics, &source);
    const char *name = "{model_name=\"a \\\"quoted\\\\ name\\n\"";
    char series[200];
    snprintf(series, sizeof series, "vllm:num_requests_running%s}", name);
    assert_true(value_of(&page, series) == 3);
    snprintf(series, sizeof series, "vllm:kv_cache_usage_perc%s}", name);
    assert_true(value_of(&page, series) == 0.25);
    snprintf(series, sizeof series,
             "vllm:cache_config_info%s,block_size=\"16\",num_gpu_blocks=\"128\"}", name);
    assert_true(value_of(&page, series) == 1);
    assert_true(value_of(&page, "geryon_prompt_tokens_total") == 1099511627776.0);
    assert_true(value_of(&page, "geryon_prompt_cached_tokens_total") == 40);
    assert_true(value_of(&page, "geryon_kv_pages") == 128);
    assert_true(value_of(&page, "geryon_kv_pages_used") == 32);
    assert_true(value_of(&page, "geryon_kv_pages_cached") == 64);
    assert_true(value_of(&page, "geryon_kv_page_evictions_total") == 9);
    assert_true(value_of(&page, "geryon_prefix_cache_query_tokens_total") == 500);
    assert_true(value_of(&page, "geryon_prefix_cache_hit_tokens_total") == 48);
    assert_true(has(&page, " 1099511627776\n")); /* no exponent, no rounding */
    assert_true(value_of(&page, "geryon_draft_accepted_position_total{position=\"1\"}") == 5);
    assert_true(value_of(&page, "geryon_step_seconds_bucket{kind=\"verify\",le=\"0.001\"}") == 1);
    assert_true(value_of(&page, "geryon_step_seconds_bucket{kind=\"verify\",le=\"2.5\"}") == 1);
    assert_true(value_of(&page, "geryon_step_seconds_bucket{kind=\"verify\",le=\"+Inf\"}") == 3);
    assert_true(value_of(&page, "geryon_step_seconds_count{kind=\"verify\"}") == 3);
    assert_true(fabs(value_of(&page, "geryon_step_seconds_sum{kind=\"verify\"}") - 198.001) < 1e-9);
    assert_true(
        value_of(&page, "geryon_http_requests_total{route=\"/v1/completions\",status=\"200\"}") ==
        2);
    assert_true(
        value_of(&page, "geryon_http_requests_total{route=\"/v1/completions\",status=\"499\"}") ==
        1);
    assert_true(value_of(&page, "geryon_http_requests_total{route=\"none\",status=\"404\"}") == 1);
    assert_false(has(&page, "/metrics"));
    assert_true(value_of(&page, "geryon_requests_finished_total{reason=\"length\"}") == 1);
    assert_true(value_of(&page, "geryon_requests_finished_total{reason=\"stop\"}") == 0);
    assert_true(value_of(&page, "geryon_requests_rejected_total{code=\"model_loading\"}") == 1);
    assert_false(has(&page, "invalid_value"));
    assert_true(value_of(&page, "geryon_request_prompt_tokens_bucket{le=\"4\"}") == 0);
    assert_true(value_of(&page, "geryon_request_prompt_tokens_bucket{le=\"8\"}") == 1);
    assert_true(value_of(&page, "geryon_request_prompt_tokens_bucket{le=\"1048576\"}") == 1);
    assert_true(value_of(&page, "geryon_device_memory_bytes{kind=\"weights\"}") == 1234);
    assert_true(value_of(&page, "geryon_device_memory_bytes{kind=\"free\"}") == 7);
    buf_free(&page);
    metrics_destroy(metrics);
}

static void before_the_model_only_what_is_known_is_said(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create();
    struct engine_gauges gauges;
    engine_gauges(NULL, &gauges);
    struct metrics_source source = source_of(&gauges, false);
    struct buf page = page_of(metrics, &source);
    assert_true(value_of(&page, "geryon_model_load_progress") == 0.25);
    assert_false(has(&page, "vllm:"));
    assert_false(has(&page, "geryon_kv_pages"));
    assert_false(has(&page, "\n\n"));
    assert_false(has(&page, ",device=\""));
    buf_free(&page);
    source = source_of(&gauges, true);
    page = page_of(metrics, &source);
    assert_true(has(&page, ",backend=\"cpu\",device=\"Device 5\",kernels=\"avx9\","
                           "activations=\"int8\",model_name="));
    buf_free(&page);
    source = source_of(&gauges, false);
    source.model_name = "early";
    page = page_of(metrics, &source);
    assert_true(has(&page, "vllm:num_requests_waiting{model_name=\"early\"} 0\n"));
    assert_false(has(&page, "vllm:cache_config_info"));
    assert_false(has(&page, "kernels=") || has(&page, "activations="));
    buf_free(&page);
    metrics_destroy(metrics);
}

static void long_labels_are_cut_at_a_character(void **state) {
    (void)state;
    static char name[4000];
    struct metrics *metrics = metrics_create();
    struct engine_gauges gauges;
    engine_gauges(NULL, &gauges);
    struct metrics_source source = source_of(&gauges, true);
    source.model_name = name;
    for (size_t shift = 0; shift < 3; shift++) {
        memset(name, 0, sizeof name);
        memset(name, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof name; i += 3)
            memcpy(name + i, "\xe2\x9c\x93", 3);
        struct buf page = page_of(metrics, &source);
        const char *end = strstr(page.data, "\"} 0\n");
        assert_non_null(end);
        assert_memory_equal(end - 3, "\xe2\x9c\x93", 3);
        buf_free(&page);
    }
    memset(name, '"', sizeof name - 1); /* every one of them is escaped */
    struct buf page = page_of(metrics, &source);
    assert_true(has(&page, "\\\"\"} 0\n"));
    buf_free(&page);
    memset(name, 0x80, sizeof name - 1); /* no UTF-8 at all */
    page = page_of(metrics, &source);
    buf_free(&page);
    metrics_destroy(metrics);
}

static void a_full_page_costs_microseconds(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create();
    struct engine_gauges gauges;
    engine_gauges(NULL, &gauges);
    gauges.n_draft_positions = DRAFT_POSITIONS_MAX - 1;
    struct metrics_source source = source_of(&gauges, true);
    struct timespec from, to;
    enum { PAGES = 200 };
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < PAGES; i++) {
        struct buf page = page_of(metrics, &source);
        buf_free(&page);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    double us = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) / 1e3;
    print_message("/metrics: %.0f us a page\n", us / PAGES); /* told, not asserted */
    metrics_destroy(metrics);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_state_keeps_the_grammar),
        cmocka_unit_test(counts_appear_where_they_belong),
        cmocka_unit_test(before_the_model_only_what_is_known_is_said),
        cmocka_unit_test(long_labels_are_cut_at_a_character),
        cmocka_unit_test(a_full_page_costs_microseconds),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
