/* The expression half of the template parser. Binding, loose to tight: inline if, or, and, not,
 * comparisons and in, + and -, ~, * / // %, **, unary signs, then attributes, calls, filters and
 * tests. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_parse_internal.h"

static struct node *parse_unary(struct parser *p, bool with_filters);
static struct node *parse_or(struct parser *p);

static struct node *finish(struct parser *p, struct node *node) {
    if (p->failed) return NULL;
    bool ok = chat_parse_adopt(p, node, node->a) && chat_parse_adopt(p, node, node->b) &&
              chat_parse_adopt(p, node, node->c) && chat_parse_adopt(p, node, node->d);
    return ok ? node : NULL;
}

static struct node *const_node(struct parser *p, uint32_t line, struct val value) {
    struct node *node = chat_parse_node(p, NODE_CONST, line);
    if (node) node->value = value;
    return node;
}

/* ---- operators --------------------------------------------------------------------------------- */

struct node *chat_parse_expression(struct parser *p) {
    if (p->failed) return NULL;
    if (++p->depth > CHAT_NESTING_MAX) {
        chat_parse_fail(p, p->at->line, "nesting deeper than %d", CHAT_NESTING_MAX);
        return NULL;
    }
    /* Whether the unknown filters of the first operand matter shows only behind it. */
    const struct token *start = p->at;
    uint32_t n_nodes = p->n_nodes;
    p->soft++;
    struct node *node = parse_or(p);
    p->soft--;
    if (!p->failed && !p->soft && !chat_parse_is_name(p, p->at, "if") && p->deferred >= start) {
        p->at = start; /* an unknown filter outside of any if: parse again to report it */
        p->n_nodes = n_nodes;
        node = parse_or(p);
    }
    while (!p->failed && chat_parse_is_name(p, p->at, "if")) {
        struct node *cond = chat_parse_node(p, NODE_COND, p->at->line);
        if (!cond) break;
        p->at++;
        p->soft++;
        cond->a = node;
        cond->b = parse_or(p);
        if (chat_parse_skip_name(p, "else")) cond->c = chat_parse_expression(p);
        p->soft--;
        node = finish(p, cond);
    }
    p->depth--;
    return p->failed ? NULL : node;
}

static struct node *parse_not(struct parser *p);

static struct node *parse_and(struct parser *p) {
    struct node *left = parse_not(p);
    while (!p->failed && chat_parse_is_name(p, p->at, "and")) {
        struct node *node = chat_parse_node(p, NODE_AND, p->at->line);
        if (!node) return NULL;
        p->at++;
        node->a = left;
        node->b = parse_not(p);
        left = finish(p, node);
    }
    return left;
}

static struct node *parse_or(struct parser *p) {
    struct node *left = parse_and(p);
    while (!p->failed && chat_parse_is_name(p, p->at, "or")) {
        struct node *node = chat_parse_node(p, NODE_OR, p->at->line);
        if (!node) return NULL;
        p->at++;
        node->a = left;
        node->b = parse_and(p);
        left = finish(p, node);
    }
    return left;
}

static struct node *parse_compare(struct parser *p);

static struct node *parse_not(struct parser *p) {
    if (!chat_parse_is_name(p, p->at, "not")) return parse_compare(p);
    struct node *node = chat_parse_node(p, NODE_NOT, p->at->line);
    if (!node) return NULL;
    if (++p->depth > CHAT_NESTING_MAX) {
        chat_parse_fail(p, p->at->line, "nesting deeper than %d", CHAT_NESTING_MAX);
        return NULL;
    }
    p->at++;
    node->a = parse_not(p);
    p->depth--;
    return finish(p, node);
}

/* The comparison at p->at, which is consumed, or 0. */
static int take_comparison(struct parser *p) {
    static const int ops[] = {OP2('=', '='), OP2('!', '='), OP2('<', '='),
                              OP2('>', '='), OP1('<'),      OP1('>')};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++)
        if (chat_parse_skip_op(p, ops[i])) return ops[i];
    if (chat_parse_skip_name(p, "in")) return OP_IN;
    if (chat_parse_is_name(p, p->at, "not") && chat_parse_is_name(p, p->at + 1, "in")) {
        p->at += 2;
        return OP_NOT_IN;
    }
    return 0;
}

static struct node *parse_sum(struct parser *p);

static struct node *parse_compare(struct parser *p) {
    struct node *left = parse_sum(p);
    struct node_list ops = {0};
    uint32_t line = p->at->line;
    int op;
    while (!p->failed && (op = take_comparison(p)) != 0) {
        struct node *one = chat_parse_node(p, NODE_OP, line);
        if (!one) return NULL;
        one->op = op;
        one->a = parse_sum(p);
        if (!chat_parse_push(p, &ops, finish(p, one))) return NULL;
    }
    if (p->failed || !ops.n) return left;
    struct node *node = chat_parse_node(p, NODE_COMPARE, line);
    if (!node) return NULL;
    node->a = left;
    return chat_parse_give_items(p, node, &ops) ? finish(p, node) : NULL;
}

static struct node *parse_concat(struct parser *p);

/* a + b + c stays one flat node; a minus starts over with what there is as first operand. */
static struct node *parse_sum(struct parser *p) {
    struct node *left = parse_concat(p);
    while (!p->failed && (chat_parse_is_op(p, '+') || chat_parse_is_op(p, '-'))) {
        uint32_t line = p->at->line;
        if (chat_parse_skip_op(p, '-')) {
            struct node *node = chat_parse_node(p, NODE_BINARY, line);
            if (!node) return NULL;
            node->op = '-';
            node->a = left;
            node->b = parse_concat(p);
            left = finish(p, node);
            continue;
        }
        struct node *node = chat_parse_node(p, NODE_SUM, line);
        struct node_list list = {0};
        if (!node || !chat_parse_push(p, &list, left)) return NULL;
        while (!p->failed && chat_parse_skip_op(p, '+'))
            chat_parse_push(p, &list, parse_concat(p));
        if (p->failed || !chat_parse_give_items(p, node, &list)) return NULL;
        left = node;
    }
    return left;
}

static struct node *parse_product(struct parser *p);

static struct node *parse_concat(struct parser *p) {
    struct node *first = parse_product(p);
    if (p->failed || !chat_parse_is_op(p, '~')) return first;
    struct node *node = chat_parse_node(p, NODE_CONCAT, p->at->line);
    struct node_list list = {0};
    if (!node || !chat_parse_push(p, &list, first)) return NULL;
    while (!p->failed && chat_parse_skip_op(p, '~'))
        chat_parse_push(p, &list, parse_product(p));
    return !p->failed && chat_parse_give_items(p, node, &list) ? node : NULL;
}

static struct node *parse_power(struct parser *p) {
    struct node *left = parse_unary(p, true);
    while (!p->failed && chat_parse_is_op(p, OP2('*', '*'))) {
        struct node *node = chat_parse_node(p, NODE_BINARY, p->at->line);
        if (!node) return NULL;
        node->op = OP2('*', '*');
        p->at++;
        node->a = left;
        node->b = parse_unary(p, true);
        left = finish(p, node);
    }
    return left;
}

static struct node *parse_product(struct parser *p) {
    static const int ops[] = {OP1('*'), OP1('/'), OP2('/', '/'), OP1('%')};
    struct node *left = parse_power(p);
    for (size_t i = 0; !p->failed && i < ARRAY_LEN(ops);) {
        if (!chat_parse_is_op(p, ops[i])) {
            i++;
            continue;
        }
        struct node *node = chat_parse_node(p, NODE_BINARY, p->at->line);
        if (!node) return NULL;
        node->op = ops[i];
        p->at++;
        node->a = left;
        node->b = parse_power(p);
        left = finish(p, node);
        i = 0;
    }
    return left;
}

/* ---- primaries --------------------------------------------------------------------------------- */

static struct node *parse_strings(struct parser *p) {
    const struct token *t = p->at++;
    if (p->at->kind != TOKEN_STRING) return const_node(p, t->line, val_str(t->text));
    size_t len = t->text->len; /* adjacent strings join */
    const struct token *end = p->at;
    for (; end->kind == TOKEN_STRING; end++)
        len += end->text->len;
    char *joined = arena_alloc(p->tmpl->arena, len + 1);
    if (!joined) {
        chat_parse_fail_memory(p);
        return NULL;
    }
    size_t at = 0;
    for (; t < end; t++) {
        memcpy(joined + at, t->text->text, t->text->len);
        at += t->text->len;
    }
    p->at = end;
    const struct str *s = chat_str_static(p->tmpl->arena, joined, len);
    if (s) return const_node(p, end[-1].line, val_str(s));
    chat_parse_fail_memory(p);
    return NULL;
}

static struct node *parse_list(struct parser *p) {
    struct node *node = chat_parse_node(p, NODE_LIST, p->at->line);
    struct node_list list = {0};
    p->at++;
    while (!p->failed && !chat_parse_is_op(p, ']')) {
        if (!chat_parse_push(p, &list, chat_parse_expression(p))) return NULL;
        if (!chat_parse_skip_op(p, ',')) break;
    }
    bool ok = chat_parse_expect_op(p, ']', "']'") && chat_parse_give_items(p, node, &list);
    return ok ? node : NULL;
}

static struct node *parse_dict(struct parser *p) {
    struct node *node = chat_parse_node(p, NODE_DICT, p->at->line);
    struct node_list list = {0};
    p->at++;
    while (!p->failed && !chat_parse_is_op(p, '}')) {
        if (!chat_parse_push(p, &list, chat_parse_expression(p))) return NULL;
        if (!chat_parse_expect_op(p, ':', "':'")) return NULL;
        if (!chat_parse_push(p, &list, chat_parse_expression(p))) return NULL;
        if (!chat_parse_skip_op(p, ',')) break;
    }
    bool ok = chat_parse_expect_op(p, '}', "'}'") && chat_parse_give_items(p, node, &list);
    return ok ? node : NULL;
}

static const struct str *name_of(struct parser *p, const struct token *t) {
    return chat_parse_intern(p, p->tmpl->source + t->off, t->end - t->off);
}

static struct node *parse_name(struct parser *p) {
    static const struct {
        const char *name;
        struct val value;
    } constants[] = {
        {"true", {.kind = VAL_BOOL, .b = true}},
        {"True", {.kind = VAL_BOOL, .b = true}},
        {"false", {.kind = VAL_BOOL, .b = false}},
        {"False", {.kind = VAL_BOOL, .b = false}},
        {"none", {.kind = VAL_NONE}},
        {"None", {.kind = VAL_NONE}},
    };
    const struct token *t = p->at++;
    for (size_t i = 0; i < ARRAY_LEN(constants); i++)
        if (chat_parse_is_name(p, t, constants[i].name))
            return const_node(p, t->line, constants[i].value);
    struct node *node = chat_parse_node(p, NODE_NAME, t->line);
    if (!node) return NULL;
    node->name = name_of(p, t);
    for (struct macro_uses *u = p->uses; u; u = u->outer) {
        u->caller |= chat_parse_is_name(p, t, "caller");
        u->varargs |= chat_parse_is_name(p, t, "varargs");
        u->kwargs |= chat_parse_is_name(p, t, "kwargs");
    }
    return p->failed ? NULL : node;
}

static bool is_keyword(const struct parser *p, const struct token *t) {
    static const char *const words[] = {"and", "or", "not", "in", "is", "if", "else"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (chat_parse_is_name(p, t, words[i])) return true;
    return false;
}

static struct node *parse_primary(struct parser *p) {
    const struct token *t = p->at;
    if (p->failed) return NULL;
    switch (t->kind) {
    case TOKEN_NAME:
        if (is_keyword(p, t)) break;
        return parse_name(p);
    case TOKEN_STRING:
        return parse_strings(p);
    case TOKEN_INT:
        p->at++;
        return const_node(p, t->line, val_int(t->i));
    case TOKEN_REAL:
        p->at++;
        return const_node(p, t->line, val_real(t->r));
    case TOKEN_OP:
        if (t->op == '(') {
            p->at++;
            struct node *node = chat_parse_tuple(p, TUPLE_PARENS, NULL);
            return chat_parse_expect_op(p, ')', "')'") ? node : NULL;
        }
        if (t->op == '[') return parse_list(p);
        if (t->op == '{') return parse_dict(p);
        break;
    default:
        break;
    }
    chat_parse_unexpected(p, "an expression");
    return NULL;
}

/* ---- what follows a primary -------------------------------------------------------------------- */

/* One of the comma-separated parts between the brackets of a[...]: an index or a slice. */
static struct node *parse_index(struct parser *p, struct node *object, uint32_t line) {
    struct node *bounds[3] = {NULL, NULL, NULL};
    int n = 0;
    bool is_slice = false;
    while (!p->failed && !chat_parse_is_op(p, ']')) {
        if (chat_parse_skip_op(p, ':')) {
            is_slice = true;
            if (++n > 2) {
                chat_parse_unexpected(p, "']'");
                return NULL;
            }
            continue;
        }
        if (bounds[n]) {
            chat_parse_unexpected(p, "']'");
            return NULL;
        }
        bounds[n] = n == 0 ? chat_parse_tuple(p, TUPLE_PLAIN, NULL) : chat_parse_expression(p);
    }
    if (p->failed) return NULL;
    p->at++;
    if (!is_slice && !bounds[0]) {
        chat_parse_fail(p, line, "an index is missing between the brackets");
        return NULL;
    }
    struct node *node = chat_parse_node(p, is_slice ? NODE_SLICE : NODE_ITEM, line);
    if (!node) return NULL;
    node->a = object;
    node->b = bounds[0];
    node->c = bounds[1];
    node->d = bounds[2];
    return finish(p, node);
}

static struct node *parse_dot(struct parser *p, struct node *object, uint32_t line) {
    const struct token *t = p->at;
    if (t->kind == TOKEN_INT) {
        struct node *node = chat_parse_node(p, NODE_ITEM, line);
        if (!node) return NULL;
        p->at++;
        node->a = object;
        node->b = const_node(p, line, val_int(t->i));
        return finish(p, node);
    }
    if (t->kind != TOKEN_NAME) {
        chat_parse_unexpected(p, "an attribute's name");
        return NULL;
    }
    struct node *node = chat_parse_node(p, NODE_ATTR, line);
    if (!node) return NULL;
    p->at++;
    node->a = object;
    node->text = name_of(p, t);
    return finish(p, node);
}

static struct node *parse_argument(struct parser *p) {
    uint32_t line = p->at->line;
    enum node_kind kind = chat_parse_is_op(p, '*')             ? NODE_STAR
                          : chat_parse_is_op(p, OP2('*', '*')) ? NODE_DSTAR
                                                               : NODE_KWARG;
    bool named = p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_OP && p->at[1].op == '=';
    if (kind == NODE_KWARG && !named) return chat_parse_expression(p);
    struct node *node = chat_parse_node(p, kind, line);
    if (!node) return NULL;
    if (kind == NODE_KWARG) {
        node->name = name_of(p, p->at);
        p->at++;
    }
    p->at++;
    node->a = chat_parse_expression(p);
    return finish(p, node);
}

/* ( ... ) with the opening bracket at p->at. */
static bool parse_arguments(struct parser *p, struct node_list *list) {
    p->at++;
    bool seen_named = false;
    while (!p->failed && !chat_parse_is_op(p, ')')) {
        struct node *arg = parse_argument(p);
        if (!arg) return false;
        bool named = arg->kind == NODE_KWARG || arg->kind == NODE_DSTAR;
        if (!named && seen_named)
            return chat_parse_fail(p, arg->line, "a positional argument follows a named one");
        seen_named |= named;
        if (!chat_parse_push(p, list, arg)) return false;
        if (!chat_parse_skip_op(p, ',')) break;
    }
    return chat_parse_expect_op(p, ')', "')'");
}

static struct node *parse_call(struct parser *p, struct node *callee) {
    struct node *node = chat_parse_node(p, NODE_CALL, p->at->line);
    struct node_list list = {0};
    if (!node || !parse_arguments(p, &list) || !chat_parse_give_items(p, node, &list)) return NULL;
    node->a = callee;
    return finish(p, node);
}

static struct node *parse_postfix(struct parser *p, struct node *node) {
    while (node && !p->failed) {
        uint32_t line = p->at->line;
        if (chat_parse_skip_op(p, '.'))
            node = parse_dot(p, node, line);
        else if (chat_parse_skip_op(p, '['))
            node = parse_index(p, node, line);
        else if (chat_parse_is_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return p->failed ? NULL : node;
}

/* The dotted name of a filter or test. */
static const struct str *parse_dotted(struct parser *p, const char *wanted) {
    if (p->at->kind != TOKEN_NAME) {
        chat_parse_unexpected(p, wanted);
        return NULL;
    }
    const struct token *first = p->at++;
    while (chat_parse_is_op(p, '.') && p->at[1].kind == TOKEN_NAME)
        p->at += 2;
    return chat_parse_intern(p, p->tmpl->source + first->off, p->at[-1].end - first->off);
}

/* An unknown filter or test is an error here, or only when it runs where an if decides. */
static bool unknown(struct parser *p, const char *what, const struct str *name,
                    const struct token *at) {
    p->deferred = at;
    if (p->soft) return true;
    return chat_parse_fail(p, at->line, "no %s named '%.60s'", what, name->text);
}

static struct node *parse_filter(struct parser *p, struct node *operand) {
    const struct token *at = p->at;
    struct node *node = chat_parse_node(p, NODE_FILTER, at->line);
    if (!node) return NULL;
    node->name = parse_dotted(p, "a filter's name");
    if (!node->name) return NULL;
    node->filter = chat_filter_find(node->name);
    if (!node->filter && !unknown(p, "filter", node->name, at)) return NULL;
    struct node_list list = {0};
    if (chat_parse_is_op(p, '(') && !parse_arguments(p, &list)) return NULL;
    if (p->failed || !chat_parse_give_items(p, node, &list)) return NULL;
    node->a = operand;
    return finish(p, node);
}

struct node *chat_parse_filters(struct parser *p, struct node *operand, bool inline_first) {
    struct node *node = operand;
    while (!p->failed && (inline_first || chat_parse_skip_op(p, '|'))) {
        inline_first = false;
        node = parse_filter(p, node);
    }
    return p->failed ? NULL : node;
}

static bool starts_test_argument(const struct parser *p) {
    const struct token *t = p->at;
    if (t->kind == TOKEN_NAME) return !is_keyword(p, t);
    if (t->kind == TOKEN_OP) return t->op == '[' || t->op == '{';
    return t->kind == TOKEN_STRING || t->kind == TOKEN_INT || t->kind == TOKEN_REAL;
}

static struct node *parse_test(struct parser *p, struct node *operand) {
    struct node *node = chat_parse_node(p, NODE_TEST, p->at->line);
    if (!node) return NULL;
    p->at++; /* is */
    node->op = chat_parse_skip_name(p, "not");
    const struct token *at = p->at;
    node->name = parse_dotted(p, "a test's name");
    if (!node->name) return NULL;
    node->test = chat_test_find(node->name);
    if (!node->test && !unknown(p, "test", node->name, at)) return NULL;
    struct node_list list = {0};
    if (chat_parse_is_op(p, '(')) {
        if (!parse_arguments(p, &list)) return NULL;
    } else if (starts_test_argument(p)) {
        if (!chat_parse_push(p, &list, parse_postfix(p, parse_primary(p)))) return NULL;
    }
    if (p->failed || !chat_parse_give_items(p, node, &list)) return NULL;
    node->a = operand;
    return finish(p, node);
}

static struct node *parse_tail(struct parser *p, struct node *node) {
    while (node && !p->failed) {
        if (chat_parse_skip_op(p, '|'))
            node = parse_filter(p, node);
        else if (chat_parse_is_name(p, p->at, "is"))
            node = parse_test(p, node);
        else if (chat_parse_is_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return p->failed ? NULL : node;
}

/* A sign takes the primary with its attributes and calls; filters come after: -3|abs is 3. */
static struct node *parse_unary(struct parser *p, bool with_filters) {
    struct node *node;
    if (chat_parse_is_op(p, '-') || chat_parse_is_op(p, '+')) {
        node = chat_parse_node(p, chat_parse_is_op(p, '-') ? NODE_NEG : NODE_POS, p->at->line);
        if (!node) return NULL;
        if (++p->depth > CHAT_NESTING_MAX) {
            chat_parse_fail(p, p->at->line, "nesting deeper than %d", CHAT_NESTING_MAX);
            return NULL;
        }
        p->at++;
        node->a = parse_unary(p, false);
        p->depth--;
        node = finish(p, node);
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    return with_filters ? parse_tail(p, node) : node;
}

/* ---- tuples and targets ------------------------------------------------------------------------ */

static bool ends_tuple(const struct parser *p, const char *end_name) {
    const struct token *t = p->at;
    if (t->kind == TOKEN_VAR_END || t->kind == TOKEN_BLOCK_END || t->kind == TOKEN_EOF) return true;
    if (t->kind == TOKEN_OP) return t->op == ')' || t->op == ']';
    return end_name && chat_parse_is_name(p, t, end_name);
}

struct node *chat_parse_tuple(struct parser *p, enum tuple_kind kind, const char *end_name) {
    if (p->failed) return NULL;
    uint32_t line = p->at->line;
    struct node_list list = {0};
    bool comma = false;
    while (!p->failed && !ends_tuple(p, end_name)) {
        struct node *part;
        if (kind == TUPLE_NO_COND)
            part = parse_or(p);
        else
            part = chat_parse_expression(p);
        if (!chat_parse_push(p, &list, part)) return NULL;
        if (!chat_parse_skip_op(p, ',')) break;
        comma = true;
    }
    if (p->failed) return NULL;
    if (!comma && list.n == 1) return list.items[0];
    if (list.n == 0 && kind != TUPLE_PARENS) {
        chat_parse_unexpected(p, "an expression");
        return NULL;
    }
    struct node *node = chat_parse_node(p, NODE_TUPLE, line);
    return node && chat_parse_give_items(p, node, &list) ? node : NULL;
}

struct node *chat_parse_name_target(struct parser *p) {
    const struct token *t = p->at;
    if (t->kind != TOKEN_NAME) {
        chat_parse_unexpected(p, "a name");
        return NULL;
    }
    struct node *node = is_keyword(p, t) ? NULL : parse_name(p);
    if (node && node->kind == NODE_NAME) return node;
    chat_parse_fail(p, t->line, "'%.*s' cannot be assigned to",
                    (int)(t->end - t->off < 40 ? t->end - t->off : 40), p->tmpl->source + t->off);
    return NULL;
}

static struct node *parse_one_target(struct parser *p, const char *end_name) {
    if (chat_parse_skip_op(p, '(')) {
        if (++p->depth > CHAT_NESTING_MAX) {
            chat_parse_fail(p, p->at->line, "nesting deeper than %d", CHAT_NESTING_MAX);
            return NULL;
        }
        struct node *inner = chat_parse_target(p, end_name);
        p->depth--;
        return chat_parse_expect_op(p, ')', "')'") ? inner : NULL;
    }
    struct node *node = chat_parse_name_target(p);
    if (!node || !chat_parse_skip_op(p, '.')) return node;
    const struct token *t = p->at;
    if (t->kind != TOKEN_NAME) {
        chat_parse_unexpected(p, "an attribute's name");
        return NULL;
    }
    p->at++;
    node->kind = NODE_NSREF;
    node->text = name_of(p, t);
    return p->failed ? NULL : node;
}

struct node *chat_parse_target(struct parser *p, const char *end_name) {
    if (p->failed) return NULL;
    uint32_t line = p->at->line;
    struct node_list list = {0};
    if (!chat_parse_push(p, &list, parse_one_target(p, end_name))) return NULL;
    bool comma = false;
    while (chat_parse_skip_op(p, ',')) {
        comma = true;
        if (ends_tuple(p, end_name) || chat_parse_is_op(p, '=')) break;
        if (!chat_parse_push(p, &list, parse_one_target(p, end_name))) return NULL;
    }
    if (!comma) return list.items[0];
    struct node *node = chat_parse_node(p, NODE_TUPLE, line);
    return node && chat_parse_give_items(p, node, &list) ? node : NULL;
}
