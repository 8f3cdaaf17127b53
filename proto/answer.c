#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/proto.h"

/* Answers and chunks share one frame; what differs is marked:
 *
 *   {"id":..,"object":*,"created":..,"model":..,"system_fingerprint":..,
 *    "choices":[{"index":..,*text*,"logprobs":null,"finish_reason":..,..ends..,..ids..}],
 *    "usage":..,"timings":..}
 *
 *   *text*   completions: "text":"..."    chat: "message":{...}, in a stream "delta":{...}
 *   ends     "stop_reason", in answers and finish chunks
 *   ids      "token_ids", "prompt_token_ids", when asked for */

static void json_text(struct buf *out, const char *text) {
    buf_json(out, text, strlen(text));
}

static void add_frame(struct buf *out, const struct answer_head *head, const char *object) {
    buf_str(out, "{\"id\":");
    json_text(out, head->id);
    buf_fmt(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
            (long long)head->created);
    json_text(out, head->model);
    buf_str(out, ",\"system_fingerprint\":");
    json_text(out, head->fingerprint);
    buf_str(out, ",\"choices\":[");
}

static void add_ids(struct buf *out, const char *name, const int32_t *ids, uint32_t n) {
    buf_fmt(out, ",\"%s\":", name);
    buf_ids(out, ids, n);
}

static void add_token_ids(struct buf *out, const struct answer_head *head, const int32_t *ids,
                          uint32_t n_ids, const int32_t *prompt_ids, uint32_t n_prompt_ids) {
    if (!head->return_token_ids) return;
    add_ids(out, "token_ids", ids, n_ids);
    if (prompt_ids) add_ids(out, "prompt_token_ids", prompt_ids, n_prompt_ids);
}

static void add_ending(struct buf *out, const struct answer_choice *choice) {
    buf_str(out, ",\"logprobs\":null,\"finish_reason\":");
    json_text(out, choice->finish_reason);
    buf_str(out, ",\"stop_reason\":");
    if (choice->stop_text)
        buf_json(out, choice->stop_text, choice->stop_len);
    else if (choice->stop_id >= 0)
        buf_fmt(out, "%d", choice->stop_id);
    else
        buf_str(out, "null");
}

static void add_usage(struct buf *out, const struct usage *usage) {
    buf_fmt(out,
            "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
            "\"prompt_tokens_details\":{\"cached_tokens\":%llu},",
            (unsigned long long)usage->prompt_tokens, (unsigned long long)usage->completion_tokens,
            (unsigned long long)(usage->prompt_tokens + usage->completion_tokens),
            (unsigned long long)usage->cached_tokens);
    buf_fmt(out,
            "\"completion_tokens_details\":{\"reasoning_tokens\":%llu,"
            "\"accepted_prediction_tokens\":%llu,\"rejected_prediction_tokens\":%llu}}",
            (unsigned long long)usage->reasoning_tokens, (unsigned long long)usage->accepted_tokens,
            (unsigned long long)usage->rejected_tokens);
}

/* A measured number: three decimals without trailing zeros, and never anything but a JSON number that
 * every parser takes (hence the exponent for absurd ones). */
static void add_measure(struct buf *out, double number) {
    char text[40];
    if (!isfinite(number)) number = 0;
    if (fabs(number) >= 1e15) {
        buf_fmt(out, "%.6e", number);
        return;
    }
    if (fabs(number) < 0.0005) number = 0; /* no "-0" */
    int n = snprintf(text, sizeof text, "%.3f", number);
    while (text[n - 1] == '0')
        n--;
    if (text[n - 1] == '.') n--;
    buf_add(out, text, (size_t)n);
}

static void add_timings(struct buf *out, const struct timings *t) {
    const struct {
        const char *name;
        double value;
    } measures[] = {{"{\"queue_ms\":", t->queue_ms},
                    {",\"prefill_ms\":", t->prefill_ms},
                    {",\"ttft_ms\":", t->ttft_ms},
                    {",\"decode_ms\":", t->decode_ms},
                    {",\"tokens_per_second\":", t->tokens_per_second}};
    for (size_t i = 0; i < ARRAY_LEN(measures); i++) {
        buf_str(out, measures[i].name);
        add_measure(out, measures[i].value);
    }
    buf_fmt(out,
            ",\"cached_tokens\":%llu,\"prefill_passes\":%llu,\"draft_passes\":%llu,"
            "\"verify_passes\":%llu,\"mean_accepted_length\":",
            (unsigned long long)t->cached_tokens, (unsigned long long)t->prefill_passes,
            (unsigned long long)t->draft_passes, (unsigned long long)t->verify_passes);
    add_measure(out, t->mean_accepted_length);
    buf_fmt(out, ",\"preemptions\":%llu}", (unsigned long long)t->preemptions);
}

/* ---- whole answers ------------------------------------------------------------------------------ */

static void add_choice(struct buf *out, const struct answer_head *head,
                       const struct answer_choice *choice) {
    buf_fmt(out, "{\"index\":%u,", choice->index);
    if (head->kind == ROUTE_CHAT) {
        buf_str(out, "\"message\":{\"role\":\"assistant\",\"content\":");
        buf_json(out, choice->text, choice->text_len);
        buf_str(out, ",\"refusal\":null,\"reasoning_content\":null}");
    } else {
        buf_str(out, "\"text\":");
        buf_json(out, choice->text, choice->text_len);
    }
    add_ending(out, choice);
    add_token_ids(out, head, choice->token_ids, choice->n_token_ids, choice->prompt_ids,
                  choice->n_prompt_ids);
    buf_str(out, "}");
}

void proto_answer(struct buf *out, const struct answer_head *head,
                  const struct answer_choice *choices, uint32_t n_choices,
                  const struct usage *usage, const struct timings *timings) {
    add_frame(out, head, head->kind == ROUTE_CHAT ? "chat.completion" : "text_completion");
    for (uint32_t i = 0; i < n_choices; i++) {
        if (i) buf_str(out, ",");
        add_choice(out, head, &choices[i]);
    }
    buf_str(out, "],\"usage\":");
    add_usage(out, usage);
    if (timings) {
        buf_str(out, ",\"timings\":");
        add_timings(out, timings);
    }
    buf_str(out, "}");
}

/* ---- chunks ------------------------------------------------------------------------------------- */

static void open_chunk(struct buf *out, const struct answer_head *head) {
    buf_str(out, "data: ");
    add_frame(out, head, head->kind == ROUTE_CHAT ? "chat.completion.chunk" : "text_completion");
}

/* From behind the choices to the blank line. */
static void close_chunk(struct buf *out, const struct answer_head *head, const struct usage *usage,
                        const struct timings *timings) {
    buf_str(out, "]");
    if (usage) {
        buf_str(out, ",\"usage\":");
        add_usage(out, usage);
    } else if (head->include_usage) {
        buf_str(out, ",\"usage\":null");
    }
    if (timings) {
        buf_str(out, ",\"timings\":");
        add_timings(out, timings);
    }
    buf_str(out, "}\n\n");
}

void proto_chunk_role(struct buf *out, const struct answer_head *head, uint32_t index,
                      const int32_t *prompt_ids, uint32_t n_prompt_ids, const struct usage *usage) {
    ASSERT(head->kind == ROUTE_CHAT);
    open_chunk(out, head);
    buf_fmt(out,
            "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
            "\"finish_reason\":null",
            index);
    add_token_ids(out, head, NULL, 0, prompt_ids, n_prompt_ids);
    buf_str(out, "}");
    close_chunk(out, head, usage, NULL);
}

void proto_chunk_text(struct buf *out, const struct answer_head *head, uint32_t index,
                      const char *text, size_t len, const int32_t *ids, uint32_t n_ids,
                      const int32_t *prompt_ids, uint32_t n_prompt_ids, const struct usage *usage) {
    const bool chat = head->kind == ROUTE_CHAT;
    open_chunk(out, head);
    buf_fmt(out, "{\"index\":%u,%s", index, chat ? "\"delta\":{\"content\":" : "\"text\":");
    buf_json(out, text, len);
    buf_str(out, chat ? "},\"logprobs\":null,\"finish_reason\":null"
                      : ",\"logprobs\":null,\"finish_reason\":null");
    add_token_ids(out, head, ids, n_ids, prompt_ids, n_prompt_ids);
    buf_str(out, "}");
    close_chunk(out, head, usage, NULL);
}

void proto_chunk_finish(struct buf *out, const struct answer_head *head,
                        const struct answer_choice *choice, const struct usage *usage,
                        const struct timings *timings) {
    open_chunk(out, head);
    buf_fmt(out, "{\"index\":%u,%s", choice->index,
            head->kind == ROUTE_CHAT ? "\"delta\":{}" : "\"text\":\"\"");
    add_ending(out, choice);
    add_token_ids(out, head, choice->token_ids, choice->n_token_ids, choice->prompt_ids,
                  choice->n_prompt_ids);
    buf_str(out, "}");
    close_chunk(out, head, usage, timings);
}

void proto_chunk_usage(struct buf *out, const struct answer_head *head, const struct usage *usage,
                       const struct timings *timings) {
    open_chunk(out, head);
    close_chunk(out, head, usage, timings);
}

void proto_sse_done(struct buf *out) {
    buf_str(out, "data: [DONE]\n\n");
}

void proto_sse_keepalive(struct buf *out) {
    buf_str(out, ": keep-alive\n\n");
}

void proto_sse_error(struct buf *out, const struct api_error *err) {
    buf_str(out, "data: ");
    proto_error_body(out, err);
    buf_str(out, "\n\n");
}

/* ---- models, probes, version -------------------------------------------------------------------- */

void proto_model(struct buf *out, const struct model_card *card) {
    buf_str(out, "{\"id\":");
    json_text(out, card->id);
    buf_fmt(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"local\",\"root\":",
            (long long)card->created);
    json_text(out, card->root);
    buf_fmt(out, ",\"parent\":null,\"max_model_len\":%u}", card->max_model_len);
}

void proto_models(struct buf *out, const struct model_card *cards, size_t n) {
    buf_str(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) buf_str(out, ",");
        proto_model(out, &cards[i]);
    }
    buf_str(out, "]}");
}

void proto_status(struct buf *out, const char *status, const char *phase, double progress,
                  const char *reason) {
    buf_str(out, "{\"status\":");
    json_text(out, status);
    if (phase) {
        buf_str(out, ",\"phase\":");
        json_text(out, phase);
    }
    if (progress >= 0) {
        buf_str(out, ",\"progress\":");
        add_measure(out, progress);
    }
    if (reason) {
        buf_str(out, ",\"reason\":");
        json_text(out, reason);
    }
    buf_str(out, "}");
}

void proto_version(struct buf *out, const char *version, const char *commit, const char *backend) {
    buf_str(out, "{\"version\":");
    json_text(out, version);
    buf_str(out, ",\"commit\":");
    json_text(out, commit);
    buf_str(out, ",\"backend\":");
    json_text(out, backend);
    buf_str(out, "}");
}
