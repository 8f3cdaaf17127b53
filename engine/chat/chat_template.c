/* Creating and rendering: the public face of the template interpreter. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

/* ---- creation ---------------------------------------------------------------------------------- */

/* jinja makes every line end \n and drops one at the end of the source. */
static size_t normalise(char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '\r') {
            if (i + 1 < len && text[i + 1] == '\n') i++;
            c = '\n';
        }
        text[n++] = c;
    }
    if (n && text[n - 1] == '\n') n--;
    text[n] = '\0';
    return n;
}

int chat_template_create(const char *source, size_t len, struct chat_template **out,
                         struct err *err) {
    if (len > CHAT_SOURCE_MAX)
        return err_set(err, ERR_TOO_LONG, "chat template: %zu bytes, at most %d are allowed", len,
                       CHAT_SOURCE_MAX);
    if (!chat_utf8_valid(source, len))
        return err_set(err, ERR_INVALID, "chat template: not valid UTF-8");
    struct chat_template *tmpl = calloc(1, sizeof *tmpl);
    if (!tmpl) return err_set(err, ERR_NOMEM, "chat template: no memory");
    tmpl->arena = arena_create(CHAT_TREE_BYTES_MAX);
    char *copy = tmpl->arena ? arena_strndup(tmpl->arena, source, len) : NULL;
    int rc = copy ? OK : err_set(err, ERR_NOMEM, "chat template: no memory");
    if (!rc) {
        tmpl->source = copy;
        tmpl->source_len = normalise(copy, len);
        rc = chat_parse(tmpl, err);
    }
    if (rc) {
        chat_template_destroy(tmpl);
        return rc;
    }
    *out = tmpl;
    return OK;
}

void chat_template_destroy(struct chat_template *tmpl) {
    if (!tmpl) return;
    arena_destroy(tmpl->arena);
    free(tmpl);
}

void rendered_free(struct rendered *rendered) {
    free(rendered->text);
    free(rendered->runs);
    *rendered = (struct rendered){0};
}

/* ---- inputs ------------------------------------------------------------------------------------ */

static bool convert(struct interp *in, const struct value *v, uint32_t depth, bool trusted,
                    struct val *out);

/* The first span that does not end before text. */
static size_t find_span(const struct chat_render_options *options, const char *text) {
    size_t lo = 0, hi = options->n_spans;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)options->spans[mid].text < (uintptr_t)text)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* A text with trusted spans, from `at` on. */
static bool convert_spans(struct interp *in, const char *text, size_t len, size_t at,
                          struct val *out) {
    const struct chat_render_options *options = in->options;
    struct buf buf;
    size_t done = 0;
    chat_buf_init(in, &buf);
    for (; at < options->n_spans; at++) {
        const struct chat_span *span = &options->spans[at];
        size_t start = (size_t)((uintptr_t)span->text - (uintptr_t)text);
        if (start >= len) break;
        ASSERT(start >= done && span->len <= len - start);
        chat_buf_add(&buf, text + done, start - done, false);
        chat_buf_add(&buf, span->text, span->len, true);
        done = start + span->len;
    }
    chat_buf_add(&buf, text + done, len - done, false);
    return chat_buf_finish(&buf, out);
}

static bool convert_text(struct interp *in, const char *text, size_t len, bool trusted,
                         struct val *out) {
    if (len > CHAT_MEMORY_MAX) return chat_fail_memory(in);
    size_t at = len ? find_span(in->options, text) : in->options->n_spans;
    if (at < in->options->n_spans && (uintptr_t)in->options->spans[at].text - (uintptr_t)text < len)
        return convert_spans(in, text, len, at, out);
    const struct str *s = chat_str_new(in, text ? text : "", len, trusted);
    if (!s) return false;
    *out = val_str(s);
    return true;
}

static bool convert_items(struct interp *in, const struct value *v, uint32_t depth, bool trusted,
                          struct val *out) {
    if (depth > CHAT_INPUT_DEPTH_MAX)
        return chat_fail(in, "the input is nested deeper than %d", CHAT_INPUT_DEPTH_MAX);
    if (v->n_items > CHAT_MEMORY_MAX) return chat_fail_memory(in);
    uint32_t n = (uint32_t)v->n_items;
    struct val *vals = chat_alloc_array(in, n, sizeof *vals);
    if (!vals) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!convert(in, &v->items[i], depth + 1, trusted, &vals[i])) return false;
    if (v->kind == VALUE_ARRAY) return chat_make_list(in, VAL_LIST, vals, n, out);
    struct dict *dict = chat_alloc(in, sizeof *dict);
    struct val *keys = dict ? chat_alloc_array(in, n, sizeof *keys) : NULL;
    if (!keys) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!convert_text(in, v->keys[i].text, v->keys[i].len, trusted, &keys[i])) return false;
    *dict = (struct dict){.keys = keys, .vals = vals, .n = n};
    *out = (struct val){.kind = VAL_DICT, .dict = dict};
    return true;
}

static bool convert(struct interp *in, const struct value *v, uint32_t depth, bool trusted,
                    struct val *out) {
    switch (v->kind) {
    case VALUE_BOOL:
        *out = val_bool(v->boolean);
        return true;
    case VALUE_INT:
        *out = val_int(v->integer);
        return true;
    case VALUE_REAL:
        *out = val_real(v->real);
        return true;
    case VALUE_STRING:
        return convert_text(in, v->text, v->len, trusted, out);
    case VALUE_ARRAY:
    case VALUE_OBJECT:
        return convert_items(in, v, depth, trusted, out);
    case VALUE_NULL:
        break;
    }
    *out = val_none();
    return true;
}

/* A name that the template never mentions cannot be asked for. */
static const struct str *find_name(const struct chat_template *tmpl, const char *text, size_t len) {
    uint32_t at = chat_hash(text, len) & (tmpl->names_cap - 1);
    for (; tmpl->names[at]; at = (at + 1) & (tmpl->names_cap - 1))
        if (tmpl->names[at]->len == len && memcmp(tmpl->names[at]->text, text, len) == 0)
            return tmpl->names[at];
    return NULL;
}

static bool bind_val(struct interp *in, const char *name, struct val v) {
    const struct str *s = find_name(in->tmpl, name, strlen(name));
    return !s || chat_frame_set(in, in->frame, s, v);
}

static bool bind_value(struct interp *in, const char *name, const struct value *value,
                       bool trusted) {
    struct val v = val_none();
    if (!find_name(in->tmpl, name, strlen(name))) return true;
    if (value && !convert(in, value, 1, trusted, &v)) return false;
    return bind_val(in, name, v);
}

/* Every member as a variable. messages and tools are the request's own fields, so that kwargs
 * cannot put others in their place. */
static bool bind_members(struct interp *in, const struct value *object, bool trusted,
                         bool keep_request) {
    if (!object || object->kind != VALUE_OBJECT) return true;
    for (size_t i = 0; i < object->n_items; i++) {
        const struct value_key *key = &object->keys[i];
        const struct str *name = find_name(in->tmpl, key->text ? key->text : "", key->len);
        struct val v;
        if (!name) continue;
        if (keep_request && (chat_str_is(name, "messages") || chat_str_is(name, "tools"))) continue;
        if (!convert(in, &object->items[i], 1, trusted, &v)) return false;
        if (!chat_frame_set(in, in->frame, name, v)) return false;
    }
    return true;
}

/* ---- rendering --------------------------------------------------------------------------------- */

/* The first line of the failed tag, with blanks squeezed. */
static void excerpt(const struct interp *in, char *out, size_t cap) {
    size_t n = 0;
    const struct node *node = in->culprit;
    uint32_t i = node ? node->off : 0;
    for (; node && i < node->end && n + 1 < cap; i++) {
        char c = in->tmpl->source[i];
        bool blank = c == ' ' || c == '\n' || c == '\t';
        if (blank && (n == 0 || out[n - 1] == ' ')) continue;
        out[n++] = blank ? ' ' : c;
    }
    while (n && out[n - 1] == ' ')
        n--;
    if (node && i < node->end) { /* a cut character goes */
        while (n && ((unsigned char)out[n - 1] & 0xC0) == 0x80)
            n--;
        if (n && (unsigned char)out[n - 1] >= 0xC0) n--;
    }
    out[n] = '\0';
}

static int report(const struct interp *in, struct err *err) {
    if (in->raised) return err_set(err, ERR_INVALID, "%s", in->err.msg);
    char text[80];
    excerpt(in, text, sizeof text);
    if (!text[0])
        return err_set(err, ERR_INVALID, "chat template: line %u: %s", in->line, in->err.msg);
    return err_set(err, ERR_INVALID, "chat template: line %u: %.150s, in '%s'", in->line,
                   in->err.msg, text);
}

static int take_output(struct buf *buf, struct rendered *out, struct err *err) {
    char *text = malloc((size_t)buf->len + 1);
    struct text_run *runs = malloc((buf->n_runs ? buf->n_runs : 1) * sizeof *runs);
    if (!text || !runs) {
        free(text);
        free(runs);
        return err_set(err, ERR_NOMEM, "chat template: no memory for %u bytes", buf->len);
    }
    if (buf->len) memcpy(text, buf->text, buf->len);
    text[buf->len] = '\0';
    uint32_t start = 0;
    for (uint32_t i = 0; i < buf->n_runs; i++) {
        runs[i] = (struct text_run){text + start, buf->runs[i].end - start, buf->runs[i].trusted};
        start = buf->runs[i].end;
    }
    *out = (struct rendered){.text = text, .len = buf->len, .runs = runs, .n_runs = buf->n_runs};
    return OK;
}

static const struct chat_render_options no_options;

struct inputs {
    const struct chat_render_options *options;
    const struct chat *chat; /* or: */
    const struct value *context;
    const struct chat_variable *variables;
    size_t n_variables;
};

static bool bind_inputs(struct interp *in, const struct inputs *inputs) {
    const struct chat *chat = inputs->chat;
    if (!chat) return bind_members(in, inputs->context, false, false);
    const struct value *tools = chat->tools;
    if (tools && tools->kind == VALUE_ARRAY && tools->n_items == 0) tools = NULL;
    if (!bind_value(in, "messages", chat->messages, false) ||
        !bind_value(in, "tools", tools, false) || !bind_value(in, "documents", NULL, false) ||
        !bind_val(in, "add_generation_prompt", val_bool(chat->add_generation_prompt)))
        return false;
    for (size_t i = 0; i < inputs->n_variables; i++) {
        const struct chat_variable *var = &inputs->variables[i];
        struct val v;
        if (!var->text || !find_name(in->tmpl, var->name, strlen(var->name))) continue;
        if (!convert_text(in, var->text, strlen(var->text), true, &v) ||
            !bind_val(in, var->name, v))
            return false;
    }
    return bind_members(in, chat->kwargs, false, true);
}

static int render(const struct chat_template *tmpl, const struct inputs *inputs, int64_t now,
                  struct rendered *out, struct err *err) {
    uint64_t *steps_left = inputs->options->steps_left;
    struct interp in = {.tmpl = tmpl,
                        .options = inputs->options,
                        .steps_max = steps_left ? *steps_left : CHAT_STEPS_MAX,
                        .now = now,
                        .oldest_write = UINT64_MAX};
    struct buf buf;
    chat_buf_init(&in, &buf);
    in.out = &buf;
    in.frame = chat_frame_new(&in, NULL);
    bool ok = in.frame && bind_inputs(&in, inputs);
    if (ok) {
        in.frame = chat_frame_new(&in, in.frame);
        ok = in.frame && chat_exec(&in, tmpl->root);
    }
    if (steps_left) *steps_left -= in.steps < *steps_left ? in.steps : *steps_left;
    int rc = ok && !in.failed ? take_output(&buf, out, err) : report(&in, err);
    chat_buf_drop(&buf);
    chat_pool_free(&in);
    return rc;
}

int chat_template_render_with(const struct chat_template *tmpl, const struct chat *chat,
                              const struct chat_variable *variables, size_t n_variables,
                              const struct chat_render_options *options, struct rendered *out,
                              struct err *err) {
    const struct inputs inputs = {
        .options = options, .chat = chat, .variables = variables, .n_variables = n_variables};
    int rc = render(tmpl, &inputs, chat->now, out, err);
    if (rc || !chat->parse_specials) return rc;
    if (out->n_runs) out->runs[0] = (struct text_run){out->text, out->len, true};
    out->n_runs = out->len ? 1 : 0;
    return OK;
}

int chat_template_render(const struct chat_template *tmpl, const struct chat *chat,
                         const struct chat_variable *variables, size_t n_variables,
                         struct rendered *out, struct err *err) {
    return chat_template_render_with(tmpl, chat, variables, n_variables, &no_options, out, err);
}

int chat_template_render_context(const struct chat_template *tmpl, const struct value *context,
                                 int64_t now, struct rendered *out, struct err *err) {
    const struct inputs inputs = {.options = &no_options, .context = context};
    return render(tmpl, &inputs, now, out, err);
}
