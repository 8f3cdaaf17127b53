/* Markers that models write themselves: of reasoning and of calls. None of them ends a turn or opens
 * one, so a client that types them into an assistant's message forges nothing. */
#include <string.h>

#include "engine/chat/chat_adapt_internal.h"

#define MARKER(text) \
    { text, sizeof(text) - 1 }
static const struct {
    const char *text;
    size_t len;
} markers[] = {
    /* reasoning */
    MARKER("<think>"),
    MARKER("</think>"),
    MARKER("<seed:think>"),
    MARKER("</seed:think>"),
    MARKER("<mm:think>"),
    MARKER("</mm:think>"),
    MARKER("[THINK]"),
    MARKER("[/THINK]"),
    MARKER("<|START_THINKING|>"),
    MARKER("<|END_THINKING|>"),
    MARKER("<|channel>"),
    MARKER("<channel|>"),
    /* calls */
    MARKER("<tool_call>"),
    MARKER("</tool_call>"),
    MARKER("<tool_calls>"),
    MARKER("</tool_calls>"),
    MARKER("<seed:tool_call>"),
    MARKER("</seed:tool_call>"),
    MARKER("<minimax:tool_call>"),
    MARKER("</minimax:tool_call>"),
    MARKER("<arg_key>"),
    MARKER("</arg_key>"),
    MARKER("<arg_value>"),
    MARKER("</arg_value>"),
    MARKER("<|python_tag|>"),
    MARKER("<|tool_call_start|>"),
    MARKER("<|tool_call_end|>"),
    MARKER("<|tool_call>"),
    MARKER("<tool_call|>"),
    MARKER("<|\"|>"),
    MARKER("<|tool_call|>"),
    MARKER("<|/tool_call|>"),
    MARKER("[TOOL_CALLS]"),
    MARKER("[CALL_ID]"),
    MARKER("[ARGS]"),
    MARKER("<\uff5ctool\u2581calls\u2581begin\uff5c>"),
    MARKER("<\uff5ctool\u2581calls\u2581end\uff5c>"),
    MARKER("<\uff5ctool\u2581call\u2581begin\uff5c>"),
    MARKER("<\uff5ctool\u2581call\u2581end\uff5c>"),
    MARKER("<\uff5ctool\u2581sep\uff5c>"),
    MARKER("<|tool_calls_section_begin|>"),
    MARKER("<|tool_calls_section_end|>"),
    MARKER("<|tool_call_begin|>"),
    MARKER("<|tool_call_end|>"),
    MARKER("<|tool_call_argument_begin|>"),
    MARKER("<|START_ACTION|>"),
    MARKER("<|END_ACTION|>"),
    MARKER("<TOOLCALL>"),
    MARKER("</TOOLCALL>"),
    MARKER("<|tools_prefix|>"),
    MARKER("<|tools_suffix|>"),
};

enum { MARKER_MAX = 40 };

/* Length of the marker at text, 0: none. Each ends at its first closing bracket and has no second
 * opening one, so that a text of brackets is not walked over and over. */
static size_t marker_at(const char *text, size_t len) {
    char open = text[0], close = open == '<' ? '>' : ']';
    if (open != '<' && open != '[') return 0;
    size_t n = 1, max = len < MARKER_MAX ? len : MARKER_MAX;
    while (n < max && text[n] != close && text[n] != open)
        n++;
    if (n == max || text[n] == open) return 0;
    n++;
    for (size_t i = 0; i < ARRAY_LEN(markers); i++)
        if (markers[i].len == n && memcmp(text, markers[i].text, n) == 0) return n;
    return 0;
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
