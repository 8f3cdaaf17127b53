/* Expressions. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

/* ---- scopes ------------------------------------------------------------------------------------ */

struct frame *chat_frame_new(struct interp *in, struct frame *parent) {
    struct frame *frame = chat_alloc(in, sizeof *frame);
    if (!frame) return NULL;
    *frame = (struct frame){.parent = parent, .serial = ++in->serial};
    return frame;
}

/* Whether a value refers to memory that a release could take away. */
static bool holds_memory(struct val v) {
    switch (v.kind) {
    case VAL_MISSING:
    case VAL_NONE:
    case VAL_BOOL:
    case VAL_INT:
    case VAL_REAL:
    case VAL_GLOBAL:
        return false;
    default:
        return true;
    }
}

/* *grown: the table moved to new memory, which must live as long as its owner. */
static struct binding *add_binding(struct interp *in, struct binding **vars, uint32_t *n,
                                   uint32_t *cap, bool *grown) {
    *grown = *n == *cap;
    if (*grown) {
        uint32_t new_cap = *cap ? *cap * 2 : 4;
        struct binding *table = chat_alloc_array(in, new_cap, sizeof *table);
        if (!table) return NULL;
        if (*n) memcpy(table, *vars, *n * sizeof *table);
        *vars = table;
        *cap = new_cap;
    }
    return &(*vars)[(*n)++];
}

bool chat_frame_set(struct interp *in, struct frame *frame, const struct str *name, struct val v) {
    struct binding *at = NULL;
    bool grown = false;
    for (uint32_t i = 0; i < frame->n && !at; i++)
        if (frame->vars[i].name == name) at = &frame->vars[i];
    if (!chat_charge(in, 1 + frame->n / 16)) return false;
    if (!at) at = add_binding(in, &frame->vars, &frame->n, &frame->cap, &grown);
    if (!at) return false;
    *at = (struct binding){.name = name, .val = v};
    if (grown || holds_memory(v)) chat_note_write(in, frame->serial);
    return true;
}

bool chat_ns_set(struct interp *in, struct namespace *ns, const struct str *name, struct val v) {
    struct binding *at = NULL;
    bool grown = false;
    for (uint32_t i = 0; i < ns->n && !at; i++)
        if (chat_str_equal(ns->vars[i].name, name)) at = &ns->vars[i];
    if (!chat_charge(in, 1 + ns->n / 16)) return false;
    if (at) {
        at->val = v;
    } else {
        at = add_binding(in, &ns->vars, &ns->n, &ns->cap, &grown);
        if (!at) return false;
        *at = (struct binding){.name = name, .val = v};
        grown = true; /* the name may be younger than the namespace too */
    }
    if (grown || holds_memory(v)) chat_note_write(in, ns->serial);
    return true;
}

static bool eval_name(struct interp *in, const struct node *node, struct val *out) {
    for (const struct frame *f = in->frame; f; f = f->parent) {
        for (uint32_t i = 0; i < f->n; i++)
            if (f->vars[i].name == node->name) {
                *out = f->vars[i].val;
                return true;
            }
        if (!chat_charge(in, 1 + f->n / 16)) return false;
    }
    const struct global *global = chat_global_find(node->name);
    if (global)
        *out = (struct val){.kind = VAL_GLOBAL, .global = global};
    else
        *out = val_undefined(node->name);
    return true;
}

/* ---- literals ---------------------------------------------------------------------------------- */

static bool eval_items(struct interp *in, const struct node *node, enum val_kind kind,
                       struct val *out) {
    struct val *items = chat_alloc_array(in, node->n_items, sizeof *items);
    if (!items) return false;
    for (uint32_t i = 0; i < node->n_items; i++)
        if (!chat_eval(in, node->items[i], &items[i])) return false;
    return chat_make_list(in, kind, items, node->n_items, out);
}

static bool eval_dict(struct interp *in, const struct node *node, struct val *out) {
    uint32_t n = node->n_items / 2;
    struct val *keys = chat_alloc_array(in, n, sizeof *keys);
    struct val *vals = keys ? chat_alloc_array(in, n, sizeof *vals) : NULL;
    if (!vals) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!chat_eval(in, node->items[2 * i], &keys[i])) return false;
        if (!chat_eval(in, node->items[2 * i + 1], &vals[i])) return false;
    }
    return chat_make_dict(in, keys, vals, n, out);
}

/* ---- operators --------------------------------------------------------------------------------- */

/* a + b + c: plain strings gather in one buffer, so a chain copies its text once. */
static bool eval_sum(struct interp *in, const struct node *node, struct val *out) {
    struct val acc, v;
    struct buf buf = {.in = in};
    bool buffered = false, ok = true;
    if (!chat_eval(in, node->items[0], &acc)) return false;
    for (uint32_t i = 1; ok && i < node->n_items; i++) {
        ok = chat_eval(in, node->items[i], &v);
        if (!ok) break;
        bool plain = v.kind == VAL_STR && !v.marked;
        if (!buffered && plain && acc.kind == VAL_STR && !acc.marked) {
            chat_buf_init(in, &buf);
            buffered = true;
            ok = chat_buf_str(&buf, acc.s);
        }
        if (ok && buffered && plain) {
            ok = chat_buf_str(&buf, v.s);
            continue;
        }
        if (buffered) {
            buffered = false;
            ok = ok && chat_buf_finish(&buf, &acc);
            if (!ok) chat_buf_drop(&buf);
        }
        ok = ok && chat_add(in, acc, v, &acc);
    }
    if (buffered && ok) return chat_buf_finish(&buf, out);
    if (buffered) chat_buf_drop(&buf);
    if (ok) *out = acc;
    return ok;
}

static bool eval_concat(struct interp *in, const struct node *node, struct val *out) {
    struct buf buf;
    chat_buf_init(in, &buf);
    for (uint32_t i = 0; i < node->n_items; i++) {
        struct val v;
        if (!chat_eval(in, node->items[i], &v) || !chat_print(&buf, v)) {
            chat_buf_drop(&buf);
            return false;
        }
    }
    return chat_buf_finish(&buf, out);
}

static bool compare_one(struct interp *in, int op, struct val a, struct val b, bool *out) {
    int order;
    switch (op) {
    case OP2('=', '='):
        return chat_equal(in, a, b, out);
    case OP2('!', '='):
        if (!chat_equal(in, a, b, out)) return false;
        *out = !*out;
        return true;
    case OP_IN:
        return chat_contains(in, a, b, out);
    case OP_NOT_IN:
        if (!chat_contains(in, a, b, out)) return false;
        *out = !*out;
        return true;
    default:
        break;
    }
    if (!chat_compare(in, a, b, &order)) return false;
    if (order == 2) { /* not a number */
        *out = false;
        return true;
    }
    switch (op) {
    case OP1('<'):
        *out = order < 0;
        break;
    case OP1('>'):
        *out = order > 0;
        break;
    case OP2('<', '='):
        *out = order <= 0;
        break;
    default:
        *out = order >= 0;
        break;
    }
    return true;
}

static bool eval_compare(struct interp *in, const struct node *node, struct val *out) {
    struct val left, right;
    bool holds = true;
    if (!chat_eval(in, node->a, &left)) return false;
    for (uint32_t i = 0; holds && i < node->n_items; i++) {
        const struct node *op = node->items[i];
        if (!chat_eval(in, op->a, &right)) return false;
        if (!compare_one(in, op->op, left, right, &holds)) return false;
        left = right;
    }
    *out = val_bool(holds);
    return true;
}

static bool eval_cond(struct interp *in, const struct node *node, struct val *out) {
    struct val test;
    if (!chat_eval(in, node->b, &test)) return false;
    if (chat_truth(test)) return chat_eval(in, node->a, out);
    if (node->c) return chat_eval(in, node->c, out);
    *out = val_undefined(NULL);
    return true;
}

static bool eval_logic(struct interp *in, const struct node *node, struct val *out) {
    if (!chat_eval(in, node->a, out)) return false;
    bool decided = chat_truth(*out) == (node->kind == NODE_OR);
    return decided || chat_eval(in, node->b, out);
}

static bool eval_slice(struct interp *in, const struct node *node, struct val *out) {
    struct val v, bounds[3] = {{.kind = VAL_MISSING}, {.kind = VAL_MISSING}, {.kind = VAL_MISSING}};
    if (!chat_eval(in, node->a, &v)) return false;
    if (node->b && !chat_eval(in, node->b, &bounds[0])) return false;
    if (node->c && !chat_eval(in, node->c, &bounds[1])) return false;
    if (node->d && !chat_eval(in, node->d, &bounds[2])) return false;
    return chat_get_slice(in, v, bounds, out);
}

/* ---- calls, filters, tests --------------------------------------------------------------------- */

struct arg_list {
    struct val *pos;
    struct kwarg *kw;
    uint32_t n_pos, n_kw, cap_pos, cap_kw;
};

static bool push_pos(struct interp *in, struct arg_list *list, struct val v) {
    if (list->n_pos == list->cap_pos) {
        uint32_t cap = list->cap_pos ? list->cap_pos * 2 : 4;
        struct val *grown = chat_alloc_array(in, cap, sizeof *grown);
        if (!grown) return false;
        if (list->n_pos) memcpy(grown, list->pos, list->n_pos * sizeof *grown);
        list->pos = grown;
        list->cap_pos = cap;
    }
    list->pos[list->n_pos++] = v;
    return true;
}

static bool push_kw(struct interp *in, struct arg_list *list, const struct str *name,
                    struct val v) {
    for (uint32_t i = 0; i < list->n_kw; i++)
        if (chat_str_equal(list->kw[i].name, name))
            return chat_fail(in, "argument '%.*s' is given twice",
                             (int)(name->len < 60 ? name->len : 60), name->text);
    if (!chat_charge(in, 1 + list->n_kw / 16)) return false;
    if (list->n_kw == list->cap_kw) {
        uint32_t cap = list->cap_kw ? list->cap_kw * 2 : 4;
        struct kwarg *grown = chat_alloc_array(in, cap, sizeof *grown);
        if (!grown) return false;
        if (list->n_kw) memcpy(grown, list->kw, list->n_kw * sizeof *grown);
        list->kw = grown;
        list->cap_kw = cap;
    }
    list->kw[list->n_kw++] = (struct kwarg){.name = name, .val = v};
    return true;
}

static bool spread_list(struct interp *in, struct arg_list *list, struct val v) {
    struct iter it;
    bool more;
    if (!chat_iter_init(in, &it, v)) return false;
    for (;;) {
        if (!chat_iter_next(in, &it, &v, &more)) return false;
        if (!more) return true;
        if (!push_pos(in, list, v)) return false;
    }
}

static bool spread_dict(struct interp *in, struct arg_list *list, struct val v) {
    if (v.kind != VAL_DICT) return chat_fail(in, "** needs a dict, not %s", chat_type_name(v));
    for (uint32_t i = 0; i < v.dict->n; i++) {
        if (v.dict->keys[i].kind != VAL_STR) return chat_fail(in, "** needs keys that are strings");
        if (!push_kw(in, list, v.dict->keys[i].s, v.dict->vals[i])) return false;
    }
    return true;
}

bool chat_eval_args(struct interp *in, struct node *const *items, uint32_t n, struct args *out) {
    struct arg_list list = {0};
    for (uint32_t i = 0; i < n; i++) {
        const struct node *item = items[i];
        bool wrapped =
            item->kind == NODE_STAR || item->kind == NODE_DSTAR || item->kind == NODE_KWARG;
        struct val v;
        if (!chat_eval(in, wrapped ? item->a : item, &v)) return false;
        bool ok = item->kind == NODE_STAR    ? spread_list(in, &list, v)
                  : item->kind == NODE_DSTAR ? spread_dict(in, &list, v)
                  : item->kind == NODE_KWARG ? push_kw(in, &list, item->name, v)
                                             : push_pos(in, &list, v);
        if (!ok) return false;
    }
    *out = (struct args){list.pos, list.n_pos, list.kw, list.n_kw};
    return true;
}

bool chat_call(struct interp *in, struct val callee, const struct args *args, struct val *out) {
    switch (callee.kind) {
    case VAL_METHOD:
        return callee.method->def->fn(in, callee.method->self, args, out);
    case VAL_GLOBAL:
        return callee.global->fn(in, args, out);
    case VAL_MACRO:
        return chat_call_macro(in, callee.macro, args, out);
    case VAL_LOOP:
        return chat_loop_call(in, callee.loop, args, out);
    case VAL_JOINER:
        *out = callee.joiner->used ? callee.joiner->sep : val_str(chat_str_new(in, "", 0, true));
        callee.joiner->used = true;
        return !in->failed;
    case VAL_UNDEFINED:
        return chat_fail_undefined(in, callee);
    default:
        return chat_fail(in, "%s cannot be called", chat_type_name(callee));
    }
}

static bool eval_call(struct interp *in, const struct node *node, struct val *out) {
    struct val callee;
    struct args args;
    if (!chat_eval(in, node->a, &callee)) return false;
    if (!chat_eval_args(in, node->items, node->n_items, &args)) return false;
    in->line = node->line;
    return chat_call(in, callee, &args, out);
}

static bool eval_filter(struct interp *in, const struct node *node, struct val *out) {
    struct val input = in->block_value;
    struct args args;
    if (node->a && !chat_eval(in, node->a, &input)) return false;
    if (!node->filter) return chat_fail(in, "no filter named '%.60s'", node->name->text);
    if (!chat_eval_args(in, node->items, node->n_items, &args)) return false;
    in->line = node->line;
    return node->filter->fn(in, input, &args, out);
}

static bool eval_test(struct interp *in, const struct node *node, struct val *out) {
    struct val input;
    struct args args;
    bool holds;
    if (!chat_eval(in, node->a, &input)) return false;
    if (!node->test) return chat_fail(in, "no test named '%.60s'", node->name->text);
    if (!chat_eval_args(in, node->items, node->n_items, &args)) return false;
    in->line = node->line;
    if (!node->test->fn(in, input, &args, &holds)) return false;
    *out = val_bool(holds != (node->op != 0));
    return true;
}

/* ---- dispatch ---------------------------------------------------------------------------------- */

static bool eval_unary(struct interp *in, const struct node *node, struct val *out) {
    struct val v;
    if (!chat_eval(in, node->a, &v)) return false;
    if (node->kind == NODE_NOT) {
        *out = val_bool(!chat_truth(v));
        return true;
    }
    if (node->kind == NODE_NEG) return chat_negate(in, v, out);
    if (!val_is_number(v)) return chat_negate(in, v, out); /* fails with the reason */
    *out = v.kind == VAL_BOOL ? val_int(v.b) : v;
    return true;
}

static bool eval_pair(struct interp *in, const struct node *node, struct val *out) {
    struct val a, b;
    if (!chat_eval(in, node->a, &a) || !chat_eval(in, node->b, &b)) return false;
    in->line = node->line;
    if (node->kind == NODE_ITEM) return chat_get_item(in, a, b, out);
    return chat_binary(in, node->op, a, b, out);
}

static bool eval_attr(struct interp *in, const struct node *node, struct val *out) {
    struct val v;
    if (!chat_eval(in, node->a, &v)) return false;
    in->line = node->line;
    return chat_get_attr(in, v, node->text, out);
}

static bool dispatch(struct interp *in, const struct node *node, struct val *out) {
    switch (node->kind) {
    case NODE_CONST:
        *out = node->value;
        return true;
    case NODE_NAME:
        return eval_name(in, node, out);
    case NODE_TUPLE:
        return eval_items(in, node, VAL_TUPLE, out);
    case NODE_LIST:
        return eval_items(in, node, VAL_LIST, out);
    case NODE_DICT:
        return eval_dict(in, node, out);
    case NODE_ATTR:
        return eval_attr(in, node, out);
    case NODE_ITEM:
    case NODE_BINARY:
        return eval_pair(in, node, out);
    case NODE_SLICE:
        return eval_slice(in, node, out);
    case NODE_CALL:
        return eval_call(in, node, out);
    case NODE_FILTER:
        return eval_filter(in, node, out);
    case NODE_TEST:
        return eval_test(in, node, out);
    case NODE_NEG:
    case NODE_POS:
    case NODE_NOT:
        return eval_unary(in, node, out);
    case NODE_SUM:
        return eval_sum(in, node, out);
    case NODE_CONCAT:
        return eval_concat(in, node, out);
    case NODE_COMPARE:
        return eval_compare(in, node, out);
    case NODE_AND:
    case NODE_OR:
        return eval_logic(in, node, out);
    case NODE_COND:
        return eval_cond(in, node, out);
    default:
        return chat_fail(in, "internal: node %d is no expression", node->kind);
    }
}

bool chat_eval(struct interp *in, const struct node *node, struct val *out) {
    in->line = node->line;
    if (!chat_charge(in, 1)) return false;
    if (++in->eval_depth > CHAT_EVAL_DEPTH_MAX) {
        in->eval_depth--;
        return chat_fail(in, "more than %d nodes are open at once", CHAT_EVAL_DEPTH_MAX);
    }
    bool ok = dispatch(in, node, out);
    in->eval_depth--;
    return ok;
}
