/* Tokens to a tree: statements here, expressions in chat_expr.c. The grammar is jinja's; what no
 * published template uses (include, import, extends, block, do, trans, autoescape) is refused with
 * its line. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_parse_internal.h"

bool chat_parse_fail(struct parser *p, uint32_t line, const char *fmt, ...) {
    if (p->failed) return false;
    p->failed = true;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(p->err, ERR_INVALID, "chat template: line %u: %s", line, text);
    return false;
}

bool chat_parse_fail_memory(struct parser *p) {
    if (p->failed) return false;
    p->failed = true;
    err_set(p->err, ERR_TOO_LONG, "chat template: its tree needs more than %d bytes",
            CHAT_TREE_BYTES_MAX);
    return false;
}

/* Every child hangs on its parent through here, so no tree is deeper than its bound. */
bool chat_parse_adopt(struct parser *p, struct node *parent, const struct node *child) {
    if (!child) return true;
    if (child->depth + 1 > parent->depth) parent->depth = child->depth + 1;
    if (parent->depth > CHAT_NESTING_MAX)
        return chat_parse_fail(p, parent->line, "nesting deeper than %d", CHAT_NESTING_MAX);
    return true;
}

struct node *chat_parse_node(struct parser *p, enum node_kind kind, uint32_t line) {
    if (p->failed) return NULL;
    if (++p->n_nodes > CHAT_NODES_MAX) {
        chat_parse_fail(p, line, "more than %d nodes", CHAT_NODES_MAX);
        return NULL;
    }
    struct node *node = arena_alloc(p->tmpl->arena, sizeof *node);
    if (!node) {
        chat_parse_fail_memory(p);
        return NULL;
    }
    node->kind = (uint8_t)kind;
    node->line = line;
    node->depth = 1;
    return node;
}

bool chat_parse_push(struct parser *p, struct node_list *list, struct node *node) {
    if (p->failed) return false;
    if (list->n == list->cap) {
        uint32_t cap = list->cap ? list->cap * 2 : 4;
        struct node **grown = arena_alloc(p->tmpl->arena, cap * sizeof(struct node *));
        if (!grown) return chat_parse_fail_memory(p);
        if (list->n) memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->n++] = node;
    return true;
}

bool chat_parse_give_items(struct parser *p, struct node *node, const struct node_list *list) {
    node->items = list->items;
    node->n_items = list->n;
    for (uint32_t i = 0; i < list->n; i++)
        if (!chat_parse_adopt(p, node, list->items[i])) return false;
    return true;
}

static bool give_others(struct parser *p, struct node *node, const struct node_list *list) {
    node->others = list->items;
    node->n_others = list->n;
    for (uint32_t i = 0; i < list->n; i++)
        if (!chat_parse_adopt(p, node, list->items[i])) return false;
    return true;
}

/* ---- identifiers ------------------------------------------------------------------------------- */

uint32_t chat_hash(const char *text, size_t len) {
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

static bool grow_names(struct parser *p) {
    uint32_t cap = p->names_cap ? p->names_cap * 2 : 64;
    const struct str **table = calloc(cap, sizeof *table);
    if (!table) return chat_parse_fail_memory(p);
    for (uint32_t i = 0; i < p->names_cap; i++) {
        const struct str *s = p->names[i];
        if (!s) continue;
        uint32_t at = chat_hash(s->text, s->len) & (cap - 1);
        while (table[at])
            at = (at + 1) & (cap - 1);
        table[at] = s;
    }
    free(p->names);
    p->names = table;
    p->names_cap = cap;
    return true;
}

const struct str *chat_parse_intern(struct parser *p, const char *text, size_t len) {
    if (p->failed) return NULL;
    if (2 * (p->n_names + 1) > p->names_cap && !grow_names(p)) return NULL;
    uint32_t at = chat_hash(text, len) & (p->names_cap - 1);
    for (; p->names[at]; at = (at + 1) & (p->names_cap - 1))
        if (p->names[at]->len == len && memcmp(p->names[at]->text, text, len) == 0)
            return p->names[at];
    char *copy = arena_strndup(p->tmpl->arena, text, len); /* messages print names with %s */
    const struct str *s = copy ? chat_str_static(p->tmpl->arena, copy, len) : NULL;
    if (!s) {
        chat_parse_fail_memory(p);
        return NULL;
    }
    p->names[at] = s;
    p->n_names++;
    return s;
}

/* ---- the token stream -------------------------------------------------------------------------- */

bool chat_parse_is_name(const struct parser *p, const struct token *t, const char *text) {
    size_t len = strlen(text);
    return t->kind == TOKEN_NAME && t->end - t->off == len &&
           memcmp(p->tmpl->source + t->off, text, len) == 0;
}

bool chat_parse_is_op(const struct parser *p, int op) {
    return p->at->kind == TOKEN_OP && p->at->op == op;
}

bool chat_parse_skip_op(struct parser *p, int op) {
    if (!chat_parse_is_op(p, op)) return false;
    p->at++;
    return true;
}

bool chat_parse_skip_name(struct parser *p, const char *name) {
    if (!chat_parse_is_name(p, p->at, name)) return false;
    p->at++;
    return true;
}

bool chat_parse_unexpected(struct parser *p, const char *wanted) {
    const struct token *t = p->at;
    if (t->kind == TOKEN_EOF)
        return chat_parse_fail(p, t->line, "the template ends where %s was expected", wanted);
    int len = (int)(t->end - t->off);
    while (len > 0 && strchr(" \n\t", p->tmpl->source[t->off + (uint32_t)len - 1]))
        len--;
    return chat_parse_fail(p, t->line, "'%.*s' found where %s was expected", len < 40 ? len : 40,
                           p->tmpl->source + t->off, wanted);
}

bool chat_parse_expect_op(struct parser *p, int op, const char *text) {
    if (p->failed) return false;
    return chat_parse_skip_op(p, op) || chat_parse_unexpected(p, text);
}

static bool expect_block_end(struct parser *p) {
    if (p->failed) return false;
    if (p->at->kind != TOKEN_BLOCK_END) return chat_parse_unexpected(p, "the end of the tag");
    p->at++;
    return true;
}

/* ---- statements -------------------------------------------------------------------------------- */

static struct node *parse_body(struct parser *p, const char *const *ends);

static bool at_any_name(const struct parser *p, const char *const *names) {
    for (; *names; names++)
        if (chat_parse_is_name(p, p->at, *names)) return true;
    return false;
}

static struct node *take_body(struct parser *p, const char *const *ends) {
    if (!expect_block_end(p)) return NULL;
    return parse_body(p, ends);
}

/* A body up to its one end tag, which is consumed up to the tag's own end. */
static struct node *take_whole_body(struct parser *p, const char *end) {
    struct node *body = take_body(p, (const char *const[]){end, NULL});
    if (body) p->at++;
    return body;
}

static struct node *parse_if(struct parser *p, uint32_t line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *node = chat_parse_node(p, NODE_IF, line);
    struct node_list list = {0};
    p->soft++; /* unknown filters in a branch matter only when it runs */
    for (;;) {
        if (!chat_parse_push(p, &list, chat_parse_tuple(p, TUPLE_NO_COND, NULL))) break;
        if (!chat_parse_push(p, &list, take_body(p, ends)) || p->failed) break;
        if (chat_parse_skip_name(p, "elif")) continue;
        if (chat_parse_skip_name(p, "else")) {
            node->a = take_whole_body(p, "endif");
            if (!node->a || !chat_parse_adopt(p, node, node->a)) break;
        } else {
            p->at++; /* endif */
        }
        break;
    }
    p->soft--;
    if (p->failed || !chat_parse_give_items(p, node, &list)) return NULL;
    return node;
}

static struct node *parse_for(struct parser *p, uint32_t line) {
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *node = chat_parse_node(p, NODE_FOR, line);
    if (!node) return NULL;
    node->a = chat_parse_target(p, "in");
    if (p->failed) return NULL;
    if (!chat_parse_skip_name(p, "in")) {
        chat_parse_unexpected(p, "'in'");
        return NULL;
    }
    node->b = chat_parse_tuple(p, TUPLE_NO_COND, "recursive");
    if (chat_parse_skip_name(p, "if")) node->d = chat_parse_expression(p);
    node->recursive = chat_parse_skip_name(p, "recursive");
    p->loops++;
    node->c = take_body(p, ends);
    p->loops--;
    if (p->failed) return NULL;
    if (chat_parse_skip_name(p, "else"))
        node->e = take_whole_body(p, "endfor");
    else
        p->at++;
    bool ok = !p->failed && chat_parse_adopt(p, node, node->a) &&
              chat_parse_adopt(p, node, node->b) && chat_parse_adopt(p, node, node->c) &&
              chat_parse_adopt(p, node, node->d) && chat_parse_adopt(p, node, node->e);
    return ok ? node : NULL;
}

static struct node *parse_set(struct parser *p, uint32_t line) {
    struct node *target = chat_parse_target(p, NULL);
    if (!target) return NULL;
    struct node *node =
        chat_parse_node(p, chat_parse_is_op(p, '=') ? NODE_SET : NODE_SET_BLOCK, line);
    if (!node) return NULL;
    node->a = target;
    if (chat_parse_skip_op(p, '=')) {
        node->b = chat_parse_tuple(p, TUPLE_PLAIN, NULL);
    } else {
        if (chat_parse_is_op(p, '|')) node->b = chat_parse_filters(p, NULL, false);
        node->c = take_whole_body(p, "endset");
    }
    bool ok = !p->failed && chat_parse_adopt(p, node, node->a) &&
              chat_parse_adopt(p, node, node->b) && chat_parse_adopt(p, node, node->c);
    return ok ? node : NULL;
}

static bool parse_signature(struct parser *p, struct node *node) {
    struct node_list params = {0}, defaults = {0};
    if (!chat_parse_expect_op(p, '(', "'('")) return false;
    bool seen_default = false;
    while (!chat_parse_is_op(p, ')')) {
        struct node *param = chat_parse_name_target(p);
        struct node *fallback = NULL;
        if (!param) return false;
        if (chat_parse_skip_op(p, '=')) {
            fallback = chat_parse_expression(p);
            seen_default = true;
        } else if (seen_default) {
            return chat_parse_fail(p, param->line, "a parameter without default follows one with");
        }
        for (uint32_t i = 0; i < params.n; i++)
            if (params.items[i]->name == param->name)
                return chat_parse_fail(p, param->line, "parameter '%.40s' twice",
                                       param->name->text);
        if (!chat_parse_push(p, &params, param) || !chat_parse_push(p, &defaults, fallback))
            return false;
        if (!chat_parse_skip_op(p, ',')) break;
    }
    return chat_parse_expect_op(p, ')', "')'") && chat_parse_give_items(p, node, &params) &&
           give_others(p, node, &defaults);
}

/* The body of a macro or call block; notes which of the implicit variables it mentions. */
static bool parse_macro_body(struct parser *p, struct node *node, const char *end) {
    struct macro_uses uses = {.outer = p->uses};
    uint32_t loops = p->loops;
    p->uses = &uses;
    p->loops = 0;
    node->c = take_whole_body(p, end);
    p->uses = uses.outer;
    p->loops = loops;
    node->uses_caller = uses.caller;
    node->uses_varargs = uses.varargs;
    node->uses_kwargs = uses.kwargs;
    return !p->failed && chat_parse_adopt(p, node, node->c);
}

static struct node *parse_macro(struct parser *p, uint32_t line) {
    struct node *node = chat_parse_node(p, NODE_MACRO, line);
    struct node *name = node ? chat_parse_name_target(p) : NULL;
    if (!name) return NULL;
    node->name = name->name;
    bool ok = parse_signature(p, node) && parse_macro_body(p, node, "endmacro");
    return ok ? node : NULL;
}

static struct node *parse_call_block(struct parser *p, uint32_t line) {
    struct node *node = chat_parse_node(p, NODE_CALL_BLOCK, line);
    struct node *body = node ? chat_parse_node(p, NODE_MACRO, line) : NULL;
    if (!body) return NULL;
    body->name = chat_parse_intern(p, "caller", 6);
    if (chat_parse_is_op(p, '(') && !parse_signature(p, body)) return NULL;
    node->a = chat_parse_expression(p);
    if (!node->a) return NULL;
    if (node->a->kind != NODE_CALL) {
        chat_parse_fail(p, line, "call needs a macro call");
        return NULL;
    }
    node->b = body;
    bool ok = parse_macro_body(p, body, "endcall") && chat_parse_adopt(p, node, node->a) &&
              chat_parse_adopt(p, node, body);
    return ok ? node : NULL;
}

static struct node *parse_filter_block(struct parser *p, uint32_t line) {
    struct node *node = chat_parse_node(p, NODE_FILTER_BLOCK, line);
    if (!node) return NULL;
    node->a = chat_parse_filters(p, NULL, true);
    node->c = take_whole_body(p, "endfilter");
    bool ok =
        !p->failed && chat_parse_adopt(p, node, node->a) && chat_parse_adopt(p, node, node->c);
    return ok ? node : NULL;
}

static struct node *parse_with(struct parser *p, uint32_t line) {
    struct node *node = chat_parse_node(p, NODE_WITH, line);
    struct node_list targets = {0}, values = {0};
    while (!p->failed && p->at->kind != TOKEN_BLOCK_END) {
        if (targets.n && !chat_parse_expect_op(p, ',', "','")) return NULL;
        if (!chat_parse_push(p, &targets, chat_parse_target(p, NULL))) return NULL;
        if (!chat_parse_expect_op(p, '=', "'='")) return NULL;
        if (!chat_parse_push(p, &values, chat_parse_expression(p))) return NULL;
    }
    if (p->failed) return NULL;
    node->c = take_whole_body(p, "endwith");
    bool ok = !p->failed && chat_parse_give_items(p, node, &targets) &&
              give_others(p, node, &values) && chat_parse_adopt(p, node, node->c);
    return ok ? node : NULL;
}

static struct node *parse_generation(struct parser *p, uint32_t line) {
    struct node *node = chat_parse_node(p, NODE_SCOPE, line);
    if (!node) return NULL;
    node->c = take_whole_body(p, "endgeneration");
    return !p->failed && chat_parse_adopt(p, node, node->c) ? node : NULL;
}

static struct node *parse_jump(struct parser *p, uint32_t line, enum node_kind kind) {
    if (p->loops) return chat_parse_node(p, kind, line);
    chat_parse_fail(p, line, "%s outside of a loop", kind == NODE_BREAK ? "break" : "continue");
    return NULL;
}

static struct node *parse_break(struct parser *p, uint32_t line) {
    return parse_jump(p, line, NODE_BREAK);
}

static struct node *parse_continue(struct parser *p, uint32_t line) {
    return parse_jump(p, line, NODE_CONTINUE);
}

static const struct {
    const char *tag;
    struct node *(*parse)(struct parser *p, uint32_t line);
} statements[] = {
    {"if", parse_if},           {"for", parse_for},
    {"set", parse_set},         {"macro", parse_macro},
    {"call", parse_call_block}, {"filter", parse_filter_block},
    {"with", parse_with},       {"generation", parse_generation},
    {"break", parse_break},     {"continue", parse_continue},
};

static struct node *parse_statement(struct parser *p) {
    const struct token *tag = p->at;
    if (tag->kind != TOKEN_NAME) {
        chat_parse_unexpected(p, "the name of a tag");
        return NULL;
    }
    for (size_t i = 0; i < ARRAY_LEN(statements); i++) {
        if (!chat_parse_is_name(p, tag, statements[i].tag)) continue;
        p->at++;
        struct node *node = statements[i].parse(p, tag->line);
        if (!node) return NULL;
        node->off = tag->off;
        const struct token *t = tag; /* the opening tag is what errors quote */
        while (t->kind != TOKEN_BLOCK_END && t->kind != TOKEN_EOF)
            t++;
        node->end = t->off;
        return node;
    }
    int len = (int)(tag->end - tag->off);
    chat_parse_fail(p, tag->line, "the tag '%.*s' is unknown or out of place", len < 40 ? len : 40,
                    p->tmpl->source + tag->off);
    return NULL;
}

static struct node *parse_output(struct parser *p) {
    const struct token *open = p->at++;
    struct node *node = chat_parse_node(p, NODE_OUTPUT, open->line);
    if (!node) return NULL;
    node->off = open->end;
    node->a = chat_parse_tuple(p, TUPLE_PLAIN, NULL);
    if (p->failed) return NULL;
    if (p->at->kind != TOKEN_VAR_END) {
        chat_parse_unexpected(p, "'}}'");
        return NULL;
    }
    node->end = p->at->off;
    p->at++;
    return chat_parse_adopt(p, node, node->a) ? node : NULL;
}

/* Up to an end tag (p->at is then its name) or, with ends NULL, to the end of the source. */
static struct node *parse_body(struct parser *p, const char *const *ends) {
    struct node *body = chat_parse_node(p, NODE_BODY, p->at->line);
    struct node_list list = {0};
    if (!body) return NULL;
    if (++p->depth > CHAT_NESTING_MAX) {
        chat_parse_fail(p, p->at->line, "nesting deeper than %d", CHAT_NESTING_MAX);
        return NULL;
    }
    while (!p->failed) {
        struct node *node = NULL;
        if (p->at->kind == TOKEN_TEXT) {
            node = chat_parse_node(p, NODE_TEXT, p->at->line);
            if (node) node->value = val_str(p->at->text);
            p->at++;
        } else if (p->at->kind == TOKEN_VAR_BEGIN) {
            node = parse_output(p);
        } else if (p->at->kind == TOKEN_BLOCK_BEGIN) {
            p->at++;
            if (ends && at_any_name(p, ends)) break;
            node = parse_statement(p);
            if (node) expect_block_end(p);
        } else if (ends) {
            chat_parse_fail(p, body->line, "the template ends before '%s'", ends[0]);
        } else {
            break;
        }
        if (!chat_parse_push(p, &list, node)) break;
    }
    p->depth--;
    return !p->failed && chat_parse_give_items(p, body, &list) ? body : NULL;
}

int chat_parse(struct chat_template *tmpl, struct err *err) {
    struct token *tokens;
    uint32_t n_tokens;
    int rc = chat_lex(tmpl->source, tmpl->source_len, tmpl->arena, &tokens, &n_tokens, err);
    if (rc) return rc;
    struct err first = {.code = OK};
    struct parser p = {.tmpl = tmpl, .at = tokens, .tokens = tokens, .err = &first};
    struct node *root = parse_body(&p, NULL);
    tmpl->loop_name = chat_parse_intern(&p, "loop", 4);
    tmpl->caller_name = chat_parse_intern(&p, "caller", 6);
    tmpl->varargs_name = chat_parse_intern(&p, "varargs", 7);
    tmpl->kwargs_name = chat_parse_intern(&p, "kwargs", 6);
    const struct str **names = NULL;
    if (!p.failed) {
        names = arena_alloc(tmpl->arena, p.names_cap * sizeof *names);
        if (!names) chat_parse_fail_memory(&p);
    }
    if (!p.failed) {
        memcpy(names, p.names, p.names_cap * sizeof *names);
        tmpl->names = names;
        tmpl->names_cap = p.names_cap;
        tmpl->root = root;
    }
    free(tokens);
    free(p.names);
    return p.failed ? err_set(err, first.code, "%s", first.msg) : OK;
}
