/* kernels_report.c: lines of a Markdown table, or one JSON object. */
#include <stdio.h>

#include "tests/bench/kernels.h"

static bool some; /* JSON: an element stands before the next one */

void report_begin(const struct plan *plan) {
    some = false;
    if (plan->json)
        printf("{\"threads\":%u,\"lines\":[", plan->n_threads);
    else
        printf(
            "%u threads; microseconds: median and best; share: of the limit, by the best\n\n"
            "| what | table | activations | type | shape | rows | us | best | MB | MFLOP | GB/s | "
            "GFLOP/s | share |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
            plan->n_threads);
}

static void separate(void) {
    if (some) printf(",");
    some = true;
    printf("\n");
}

void report_peaks(const struct plan *plan, const char *table, enum activations activations,
                  const struct limits *peaks) {
    const char *name = activations_name(activations);
    if (plan->json) {
        separate();
        printf("{\"peaks\":true,\"table\":\"%s\",\"activations\":\"%s\",\"bytes_per_second\":%.6g,"
               "\"flops_per_second\":%.6g}",
               table, name, peaks->bytes_per_s, peaks->flops_per_s);
    } else {
        printf("| peaks | %s | %s | | | | | | | | %.1f | %.0f | |\n", table, name,
               peaks->bytes_per_s / 1e9, peaks->flops_per_s / 1e9);
    }
    fflush(stdout);
}

void report_result(const struct plan *plan, const struct result *r) {
    const char *name = activations_name(r->activations);
    const char *bound = r->memory_bound ? "memory" : "products";
    double share = r->limit_us / r->best_us;
    if (plan->json) {
        separate();
        printf("{\"group\":\"%s\",\"table\":\"%s\",\"activations\":\"%s\",\"dtype\":\"%s\","
               "\"shape\":\"%s\",\"rows\":%u,\"median_us\":%.6g,\"best_us\":%.6g,\"bytes\":%.0f,"
               "\"flops\":%.0f",
               r->group, r->table, name, r->dtype, r->shape, r->rows, r->median_us, r->best_us,
               r->bytes, r->flops);
        if (r->limit_us > 0)
            printf(",\"limit_us\":%.6g,\"bound\":\"%s\",\"share\":%.4f", r->limit_us, bound, share);
        printf("}");
    } else {
        printf("| %s | %s | %s | %s | %s | %u | %.2f | %.2f | %.3f | %.2f | %.1f | %.0f | ",
               r->group, r->table, name, r->dtype, r->shape, r->rows, r->median_us, r->best_us,
               r->bytes / 1e6, r->flops / 1e6, r->bytes / r->best_us / 1e3,
               r->flops / r->best_us / 1e3);
        if (r->limit_us > 0) printf("%.0f %% of %s ", 100 * share, bound);
        printf("|\n");
    }
    fflush(stdout);
}

void report_note(const struct plan *plan, const char *where, const char *why) {
    if (!plan->json) printf("| %s | left out: %s | | | | | | | | | | | |\n", where, why);
}

void report_end(const struct plan *plan) {
    if (plan->json) printf("\n]}\n");
}
