#include <string.h>

#include "proto/chars.h"
#include "proto/proto.h"

/* GET /props and GET /slots: what an operator asks; nothing here is part of a client's text. */

static void add_text(struct buf *out, const char *name, const char *text) {
    buf_fmt(out, ",\"%s\":", name);
    if (text)
        buf_json(out, text, strlen(text));
    else
        buf_str(out, "null");
}

static void add_number(struct buf *out, const char *name, double number) {
    char text[CHARS_NUMBER_CAP];
    buf_fmt(out, ",\"%s\":%s", name, chars_number(text, number));
}

static void add_flag(struct buf *out, const char *name, bool on) {
    buf_fmt(out, ",\"%s\":%s", name, on ? "true" : "false");
}

void proto_props(struct buf *out, const struct props *props) {
    const struct sampling *defaults = &props->defaults;
    buf_str(out, "{\"served_model_names\":[");
    for (size_t i = 0; i < props->n_names; i++) {
        if (i) buf_str(out, ",");
        buf_json(out, props->names[i], strlen(props->names[i]));
    }
    buf_str(out, "]");
    add_text(out, "model_path", props->path);
    add_text(out, "architecture", props->architecture);
    add_text(out, "system_fingerprint", props->fingerprint);
    add_number(out, "max_model_len", props->max_model_len);
    add_number(out, "vocab_size", props->vocab_size);
    add_number(out, "page_size", props->page_size);
    add_number(out, "n_pages", props->n_pages);
    add_text(out, "weight_dtype", props->weight_dtype);
    add_text(out, "kv_dtype", props->kv_dtype);
    add_text(out, "kernels", props->kernels);
    add_text(out, "activations", props->activations);
    add_number(out, "draft_block", props->draft_block);
    add_number(out, "window", props->window);
    add_text(out, "scheduling", props->scheduling);
    buf_str(out, ",\"defaults\":{\"n\":1");
    add_number(out, "temperature", defaults->temperature);
    add_number(out, "top_p", defaults->top_p);
    add_number(out, "top_k", defaults->top_k);
    add_number(out, "min_p", defaults->min_p);
    add_number(out, "frequency_penalty", defaults->frequency_penalty);
    add_number(out, "presence_penalty", defaults->presence_penalty);
    add_number(out, "repetition_penalty", defaults->repetition_penalty);
    add_number(out, "min_tokens", defaults->min_tokens);
    add_flag(out, "ignore_eos", defaults->ignore_eos);
    add_flag(out, "skip_special_tokens", defaults->skip_special_tokens);
    add_flag(out, "include_stop_str_in_output", defaults->include_stop_str_in_output);
    buf_fmt(out, "},\"limits\":{\"prompts\":%u", props->max_choices);
    add_number(out, "n", props->max_n);
    add_number(out, "choices", props->max_choices); /* prompts times n */
    add_number(out, "max_num_seqs", props->max_num_seqs);
    add_number(out, "max_queued_requests", props->max_queued);
    add_number(out, "max_body_bytes", (double)props->max_body_bytes);
    add_number(out, "stop", STOP_STRINGS_MAX);
    add_number(out, "stop_bytes", STOP_STRING_BYTES_MAX);
    add_number(out, "stop_token_ids", STOP_IDS_MAX);
    add_number(out, "logit_bias", LOGIT_BIAS_MAX);
    add_number(out, "cache_salt_bytes", CACHE_SALT_BYTES_MAX);
    buf_str(out, "}");
    add_text(out, "chat_template", props->chat_template);
    buf_str(out, "}");
}

void proto_slots(struct buf *out, const struct slot_card *cards, size_t n) {
    buf_str(out, "[");
    for (size_t i = 0; i < n; i++) {
        const struct slot_card *card = &cards[i];
        buf_fmt(out, "%s{\"id\":%u", i ? "," : "", card->id);
        add_text(out, "request_id", card->request_id);
        add_text(out, "state", card->state);
        add_number(out, "prompt_tokens", card->prompt_tokens);
        add_number(out, "cached_tokens", card->cached_tokens);
        add_number(out, "output_tokens", card->output_tokens);
        add_number(out, "pages", card->pages);
        add_number(out, "age_ms", (double)card->age_ms);
        buf_fmt(out, ",\"mean_accepted_length\":%.3f}", card->mean_accepted_length);
    }
    buf_str(out, "]");
}
