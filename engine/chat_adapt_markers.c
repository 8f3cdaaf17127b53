/* Markers that models write themselves: of reasoning and of calls. None of them ends a turn or opens
 * one, so a client that types them into an assistant's message forges nothing. */
#include <string.h>

#include "engine/chat_adapt_internal.h"

static const char *const markers[] = {
    /* reasoning */
    "<think>",
    "</think>",
    "<seed:think>",
    "</seed:think>",
    "<mm:think>",
    "</mm:think>",
    "[THINK]",
    "[/THINK]",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|channel>",
    "<channel|>",
    /* calls */
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<|tools_prefix|>",
    "<|tools_suffix|>",
};

/* Length of the longest marker at text, 0: none. */
static size_t marker_at(const char *text, size_t len) {
    size_t best = 0;
    if (text[0] != '<' && text[0] != '[') return 0;
    for (size_t i = 0; i < ARRAY_LEN(markers); i++) {
        size_t n = strlen(markers[i]);
        if (n > best && n <= len && memcmp(text, markers[i], n) == 0) best = n;
    }
    return best;
}

static size_t count_markers(const char *text, size_t len) {
    size_t count = 0;
    for (size_t i = 0, n; i < len; i += n ? n : 1) {
        n = marker_at(text + i, len - i);
        count += n > 0;
    }
    return count;
}

static bool reserve(struct adapt *a, size_t n) {
    if (a->cap_spans - a->n_spans >= n) return true;
    size_t cap = a->cap_spans * 2 + n; /* what is left behind stays below what is used */
    struct chat_span *grown = chat_adapt_alloc(a, cap, sizeof *grown);
    if (!grown) return false;
    if (a->n_spans) memcpy(grown, a->spans, a->n_spans * sizeof *grown);
    a->spans = grown;
    a->cap_spans = cap;
    return true;
}

/* A copy of its own: a span is known by its address, which no other text may share. */
static void trust_text(struct adapt *a, struct value *v) {
    size_t n = v->len ? count_markers(v->text, v->len) : 0;
    if (!n || !reserve(a, n)) return;
    char *copy = chat_adapt_alloc(a, v->len + 1, 1);
    if (!copy) return;
    memcpy(copy, v->text, v->len);
    for (size_t i = 0, len; i < v->len; i += len ? len : 1) {
        len = marker_at(copy + i, v->len - i);
        if (len) a->spans[a->n_spans++] = (struct chat_span){copy + i, len};
    }
    v->text = copy;
}

void chat_adapt_trust(struct adapt *a, struct value *v) {
    if (v->kind == VALUE_STRING) trust_text(a, v);
    if (v->kind != VALUE_ARRAY) return;
    struct value *parts = chat_adapt_alloc(a, v->n_items, sizeof *parts);
    for (size_t i = 0; parts && i < v->n_items; i++) {
        parts[i] = v->items[i];
        if (parts[i].kind != VALUE_OBJECT) continue;
        struct value *members = chat_adapt_alloc(a, parts[i].n_items, sizeof *members);
        for (size_t k = 0; members && k < parts[i].n_items; k++) {
            members[k] = parts[i].items[k];
            if (members[k].kind == VALUE_STRING) trust_text(a, &members[k]);
        }
        if (members) parts[i].items = members;
    }
    if (parts) v->items = parts;
}
