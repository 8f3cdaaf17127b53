/* bench_report.c: the figures of a bench as JSON and as Markdown. */
#include <string.h>

#include "server/bench.h"

struct limits {
    double bytes_per_s, flops_per_s;
};

static void share(struct bench_price *price, double tokens_per_s, const struct limits *limits) {
    price->bandwidth_share = tokens_per_s * price->bytes / limits->bytes_per_s;
    price->flop_share = tokens_per_s * price->flops / limits->flops_per_s;
}

static void shares(struct bench_phase *phase, const struct limits *limits) {
    share(&phase->whole, phase->tokens_per_s.median, limits);
    if (!phase->has_work) return;
    double speed = phase->tokens / phase->seconds;
    share(&phase->products, speed / phase->work_share[ENGINE_PRODUCTS], limits);
    share(&phase->attention, speed / phase->work_share[ENGINE_ATTENTION], limits);
}

void bench_shares(struct bench *bench) {
    for (uint32_t i = 0; i < bench->n_cases; i++) {
        struct bench_case *c = &bench->cases[i];
        if (c->skipped[0]) continue;
        bool metered = c->read_bytes_per_s > 0;
        struct limits limits = {metered ? c->read_bytes_per_s : bench->peak_bytes_per_s,
                                bench->peak_flops_per_s};
        shares(&c->prefill, &limits);
        shares(&c->decode, &limits);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static void add_text(struct buf *out, const char *key, const char *text) {
    buf_fmt(out, "\"%s\":", key);
    buf_json(out, text, strlen(text));
    buf_str(out, ",");
}

static void add_spread(struct buf *out, const char *key, const struct spread *s) {
    buf_fmt(out, "\"%s\":{\"median\":%.6g,\"min\":%.6g,\"max\":%.6g}", key, s->median, s->min,
            s->max);
}

static void add_price(struct buf *out, const struct bench_price *p) {
    buf_fmt(out,
            ",\"bytes_per_token\":%.6g,\"flops_per_token\":%.6g,\"bandwidth_share\":%.4f,"
            "\"flop_share\":%.4f",
            p->bytes, p->flops, p->bandwidth_share, p->flop_share);
}

static const char *const works[ENGINE_WORKS] = {"products", "attention", "rows", "sampling"};

static void add_phase(struct buf *out, const char *key, const struct bench_phase *p) {
    buf_fmt(out, "\"%s\":{", key);
    add_spread(out, "tokens_per_second", &p->tokens_per_s);
    add_price(out, &p->whole);
    if (p->has_work) {
        buf_str(out, ",\"work\":{");
        for (int i = 0; i < ENGINE_WORKS; i++) {
            buf_fmt(out, "\"%s\":{\"time_share\":%.4f", works[i], p->work_share[i]);
            if (i == ENGINE_PRODUCTS) add_price(out, &p->products);
            if (i == ENGINE_ATTENTION) add_price(out, &p->attention);
            buf_str(out, "},");
        }
        buf_fmt(out, "\"rest\":{\"time_share\":%.4f}}", p->rest_share);
    }
    buf_str(out, "}");
}

static void add_paired(struct buf *out, const struct bench_case *c) {
    const struct bench_paired *p = &c->paired;
    buf_str(out, ",\"without_drafts\":{");
    add_spread(out, "tokens_per_second", &p->plain_tokens_per_s);
    buf_fmt(out, ",\"speed_over_it\":{\"median\":%.4f,\"q1\":%.4f,\"q3\":%.4f,\"of_each\":[",
            p->median, p->q1, p->q3);
    for (uint32_t i = 0; i < c->reps; i++)
        buf_fmt(out, "%s%.4f", i ? "," : "", p->ratios[i]);
    buf_str(out, "]}}");
}

static void add_case(struct buf *out, const struct bench_case *c) {
    buf_fmt(out, "{\"prompt_tokens\":%u,\"gen_tokens\":%u,\"batch\":%u,", c->prompt_tokens,
            c->gen_tokens, c->batch);
    if (c->skipped[0]) {
        buf_str(out, "\"skipped\":");
        buf_json(out, c->skipped, strlen(c->skipped));
        buf_str(out, "}");
        return;
    }
    buf_fmt(out, "\"reps\":%u,\"total_prompt_tokens\":%llu,\"total_output_tokens\":%llu,", c->reps,
            (unsigned long long)c->prompt_total, (unsigned long long)c->output_total);
    if (c->read_bytes_per_s > 0)
        buf_fmt(out, "\"read_bytes_per_second\":%.6g,", c->read_bytes_per_s);
    add_phase(out, "prefill", &c->prefill);
    buf_str(out, ",");
    add_spread(out, "time_to_first_token_ms", &c->first_token_ms);
    if (c->gen_tokens > 1) {
        buf_str(out, ",");
        add_phase(out, "decode", &c->decode);
        buf_fmt(out,
                ",\"inter_token_latency_ms\":{\"p50\":%.6g,\"p95\":%.6g,\"p99\":%.6g,\"n\":%llu},"
                "\"tokens_per_forward\":%.4f,\"accepted_length\":%.4f",
                c->gap_ms_p50, c->gap_ms_p95, c->gap_ms_p99, (unsigned long long)c->n_gaps,
                c->tokens_per_forward, c->accepted_length);
        buf_fmt(out, ",\"forward_ms\":{\"draft\":%.6g,\"verify\":%.6g,\"decode\":%.6g}",
                c->forward_ms[FORWARD_DRAFT], c->forward_ms[FORWARD_VERIFY],
                c->forward_ms[FORWARD_DECODE]);
        if (c->paired.ratios) add_paired(out, c);
    }
    buf_str(out, "}");
}

void bench_json(const struct bench *b, struct buf *out) {
    buf_str(out, "{");
    add_text(out, "version", GERYON_VERSION);
    add_text(out, "commit", GERYON_COMMIT);
    buf_str(out, "\"model\":{");
    add_text(out, "name", b->model->name);
    add_text(out, "architecture", b->model->architecture);
    add_text(out, "weight_dtype", b->model->weight_dtype);
    buf_fmt(out, "\"weight_bytes\":%llu,\"window\":%u,\"block_size\":%u,\"synthetic\":%s},",
            (unsigned long long)b->model->weight_bytes, b->model->window, b->model->block_size,
            b->synthetic ? "true" : "false");
    buf_str(out, "\"engine\":{");
    add_text(out, "backend", b->model->backend);
    add_text(out, "kernel_table", b->model->kernel_table);
    add_text(out, "activations", b->model->activations);
    add_text(out, "kv_dtype", b->engine->kv_dtype);
    buf_fmt(out, "\"threads\":%u,\"draft_block\":%u,\"kv_bytes\":%llu,\"workspace_bytes\":%llu},",
            b->model->n_threads, b->engine->draft_block, (unsigned long long)b->engine->kv_bytes,
            (unsigned long long)b->engine->workspace_bytes);
    buf_str(out, "\"machine\":{");
    add_text(out, b->model->hardware ? "device" : "cpu", b->hardware);
    buf_fmt(out, "\"read_bytes_per_second\":%.6g,\"multiply_add_flops_per_second\":%.6g},",
            b->peak_bytes_per_s, b->peak_flops_per_s);
    buf_fmt(out, "\"timing_only\":%s,\"resident_bytes\":%llu,\"cases\":[",
            b->forced_window || b->forced_accept ? "true" : "false",
            (unsigned long long)b->resident_bytes);
    for (uint32_t i = 0; i < b->n_cases; i++) {
        if (i) buf_str(out, ",");
        add_case(out, &b->cases[i]);
    }
    buf_str(out, "]");
    const struct bench_perplexity *p = &b->perplexity;
    if (p->file) {
        buf_str(out, ",\"perplexity\":{");
        add_text(out, "file", p->file);
        buf_fmt(out,
                "\"tokens\":%u,\"scored\":%u,\"window\":%u,\"mean_nll\":%.6f,\"perplexity\":%.4f}",
                p->n_tokens, p->n_scored, p->window, p->mean_nll, p->perplexity);
    }
    buf_str(out, "}\n");
}

/* ---- Markdown ---------------------------------------------------------------------------------- */

static void markdown_case(struct buf *out, const struct bench_case *c) {
    buf_fmt(out, "| %u | %u | ", c->prompt_tokens, c->batch);
    if (c->skipped[0]) {
        buf_fmt(out, "skipped: %s | | | | | | | | |\n", c->skipped);
        return;
    }
    const struct bench_phase *p = &c->prefill, *d = &c->decode;
    buf_fmt(out, "%.0f (%.0f-%.0f) | %.0f %% | %.1f | ", p->tokens_per_s.median,
            p->tokens_per_s.min, p->tokens_per_s.max, 100 * p->whole.flop_share,
            c->first_token_ms.median);
    if (c->gen_tokens < 2) {
        buf_str(out, "| | | | | |\n");
        return;
    }
    buf_fmt(out, "%.1f (%.1f-%.1f) | %.0f %% | %.0f %% | %.2f / %.2f / %.2f | %.2f | %.2f |\n",
            d->tokens_per_s.median, d->tokens_per_s.min, d->tokens_per_s.max,
            100 * d->whole.bandwidth_share, 100 * d->whole.flop_share, c->gap_ms_p50, c->gap_ms_p95,
            c->gap_ms_p99, c->tokens_per_forward, c->accepted_length);
}

static void markdown_price(struct buf *out, const struct bench_case *c, const char *name,
                           const struct bench_phase *p) {
    buf_fmt(out, "| %u | %u | %s | ", c->prompt_tokens, c->batch, name);
    if (c->read_bytes_per_s > 0) buf_fmt(out, "%.1f", c->read_bytes_per_s / 1e9);
    buf_fmt(out, " | %.2f, %.0f | ", p->whole.bytes / 1e6, p->whole.flops / 1e6);
    if (!p->has_work) {
        buf_str(out, "| | |\n");
        return;
    }
    for (int i = 0; i < ENGINE_WORKS; i++)
        buf_fmt(out, "%.0f / ", 100 * p->work_share[i]);
    buf_fmt(out, "%.0f %% | %.0f %%, %.0f %% | %.0f %%, %.0f %% |\n", 100 * p->rest_share,
            100 * p->products.bandwidth_share, 100 * p->products.flop_share,
            100 * p->attention.bandwidth_share, 100 * p->attention.flop_share);
}

static void markdown_prices(struct buf *out, const struct bench *b) {
    buf_str(
        out,
        "\n| prompt | batch | | memory GB/s meanwhile | MB, MFLOP a token | time: products / "
        "attention / rows / sampling / rest | products: of bandwidth, FLOP peak | attention: of "
        "bandwidth, FLOP peak |\n|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < b->n_cases; i++) {
        const struct bench_case *c = &b->cases[i];
        if (c->skipped[0]) continue;
        markdown_price(out, c, "prefill", &c->prefill);
        if (c->gen_tokens > 1) markdown_price(out, c, "decode", &c->decode);
    }
}

static void markdown_pairs(struct buf *out, const struct bench *b) {
    buf_str(out,
            "\n| prompt | batch | decode tokens/s without drafts | with drafts over that, median "
            "(quartiles) |\n|---|---|---|---|\n");
    for (uint32_t i = 0; i < b->n_cases; i++) {
        const struct bench_case *c = &b->cases[i];
        const struct bench_paired *p = &c->paired;
        if (!p->ratios) continue;
        buf_fmt(out, "| %u | %u | %.1f (%.1f-%.1f) | %.3f (%.3f-%.3f) |\n", c->prompt_tokens,
                c->batch, p->plain_tokens_per_s.median, p->plain_tokens_per_s.min,
                p->plain_tokens_per_s.max, p->median, p->q1, p->q3);
    }
}

void bench_markdown(const struct bench *b, struct buf *out) {
    buf_fmt(out, "geryon %s (%s): %s, %s weights, %s activations, KV %s, table %s", GERYON_VERSION,
            GERYON_COMMIT, b->model->name, b->model->weight_dtype, b->model->activations,
            b->engine->kv_dtype, b->model->kernel_table);
    if (!b->model->hardware) buf_fmt(out, ", %u threads", b->model->n_threads);
    if (b->model->window) buf_fmt(out, ", window %u", b->model->window);
    if (b->engine->draft_block) buf_fmt(out, ", draft blocks of %u", b->engine->draft_block);
    if (b->synthetic) buf_str(out, ", random weights");
    buf_fmt(out, "\n\n%s: reads %.1f GB/s, %s products %.0f GFLOP/s (best of this run).",
            b->hardware, b->peak_bytes_per_s / 1e9, b->model->activations,
            b->peak_flops_per_s / 1e9);
    buf_fmt(out, " Resident memory %.0f MiB.\n", (double)b->resident_bytes / (1 << 20));
    if (b->forced_window || b->forced_accept)
        buf_fmt(out, "\n**%s given: figures are for timing only, the text is not the model's.**\n",
                !b->forced_accept   ? "--window was"
                : !b->forced_window ? "--accept was"
                                    : "--window and --accept were");
    buf_str(out, "\n| prompt | batch | prefill tokens/s | of FLOP peak | first token ms | decode "
                 "tokens/s | of bandwidth | of FLOP peak | between tokens ms p50 / p95 / p99 | "
                 "tokens a forward | accepted |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < b->n_cases; i++)
        markdown_case(out, &b->cases[i]);
    markdown_prices(out, b);
    if (b->paired) markdown_pairs(out, b);
    const struct bench_perplexity *p = &b->perplexity;
    if (p->file)
        buf_fmt(out, "\nPerplexity of %s: %.4f (%u tokens scored, windows of %u).\n", p->file,
                p->perplexity, p->n_scored, p->window);
}
