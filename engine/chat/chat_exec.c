/* Statements: output, scopes, loops, macros. */
#include <stdlib.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

/* ---- assignment -------------------------------------------------------------------------------- */

static bool lookup(const struct interp *in, const struct str *name, struct val *out) {
    for (const struct frame *f = in->frame; f; f = f->parent)
        for (uint32_t i = 0; i < f->n; i++)
            if (f->vars[i].name == name) {
                *out = f->vars[i].val;
                return true;
            }
    return false;
}

static bool assign(struct interp *in, const struct node *target, struct val v);

static bool unpack(struct interp *in, const struct node *target, struct val v) {
    struct val all;
    if (!chat_collect(in, v, &all)) return false;
    if (all.list->n != target->n_items)
        return chat_fail(in, "%u values cannot be unpacked into %u names", all.list->n,
                         target->n_items);
    for (uint32_t i = 0; i < target->n_items; i++)
        if (!assign(in, target->items[i], all.list->items[i])) return false;
    return true;
}

static bool assign(struct interp *in, const struct node *target, struct val v) {
    if (target->kind == NODE_NAME) return chat_frame_set(in, in->frame, target->name, v);
    if (target->kind == NODE_TUPLE) return unpack(in, target, v);
    struct val ns;
    if (!lookup(in, target->name, &ns) || ns.kind != VAL_NAMESPACE)
        return chat_fail(in, "'%.40s.%.40s' cannot be set: only a namespace's attributes can",
                         target->name->text, target->text->text);
    return chat_ns_set(in, ns.ns, target->text, v);
}

/* ---- bodies ------------------------------------------------------------------------------------ */

static bool exec_in(struct interp *in, const struct node *body, struct frame *frame) {
    struct frame *outer = in->frame;
    in->frame = frame;
    bool ok = frame && chat_exec(in, body);
    in->frame = outer;
    return ok;
}

bool chat_run_body(struct interp *in, const struct node *body, struct frame *frame,
                   struct val *out) {
    struct buf buf, *outer = in->out;
    chat_buf_init(in, &buf);
    in->out = &buf;
    bool ok = exec_in(in, body, frame);
    in->out = outer;
    if (ok) return chat_buf_finish(&buf, out);
    chat_buf_drop(&buf);
    return false;
}

static bool exec_output(struct interp *in, const struct node *node) {
    struct scope_mark mark;
    struct val v;
    chat_mark(in, &mark);
    bool ok = chat_eval(in, node->a, &v) && chat_print(in->out, v);
    chat_release(in, &mark);
    return ok;
}

static bool exec_if(struct interp *in, const struct node *node) {
    for (uint32_t i = 0; i + 1 < node->n_items; i += 2) {
        struct val test;
        if (!chat_eval(in, node->items[i], &test)) return false;
        if (chat_truth(test)) return chat_exec(in, node->items[i + 1]);
    }
    return !node->a || chat_exec(in, node->a);
}

static bool exec_set(struct interp *in, const struct node *node) {
    struct val v;
    return chat_eval(in, node->b, &v) && assign(in, node->a, v);
}

/* The filter chain of a block over the block's text. */
static bool filter_text(struct interp *in, const struct node *chain, struct val *text) {
    struct val outer = in->block_value;
    in->block_value = *text;
    bool ok = chat_eval(in, chain, text);
    in->block_value = outer;
    return ok;
}

static bool exec_set_block(struct interp *in, const struct node *node) {
    struct val text;
    if (!chat_run_body(in, node->c, chat_frame_new(in, in->frame), &text)) return false;
    if (node->b && !filter_text(in, node->b, &text)) return false;
    return assign(in, node->a, text);
}

static bool exec_filter_block(struct interp *in, const struct node *node) {
    struct val text;
    if (!chat_run_body(in, node->c, chat_frame_new(in, in->frame), &text)) return false;
    return filter_text(in, node->a, &text) && chat_print(in->out, text);
}

static bool exec_with(struct interp *in, const struct node *node) {
    struct frame *inner = chat_frame_new(in, in->frame), *outer = in->frame;
    if (!inner) return false;
    for (uint32_t i = 0; i < node->n_items; i++) {
        struct val v;
        if (!chat_eval(in, node->others[i], &v)) return false;
        in->frame = inner;
        bool ok = assign(in, node->items[i], v);
        in->frame = outer;
        if (!ok) return false;
    }
    return exec_in(in, node->c, inner);
}

/* ---- loops ------------------------------------------------------------------------------------- */

struct loop {
    const struct node *node;
    struct frame *frame; /* around the loop */
    struct iter it;
    struct val current, prev, next;
    bool has_prev;
    bool has_next; /* `next` was fetched early */
    bool ended;    /* nothing comes after it */
    bool filtered; /* items of `it` still have to pass the if */
    int64_t index0;
    int64_t length; /* -1: not known yet */
    uint32_t depth0;
};

/* The next item that passes the loop's if. */
static bool fetch(struct interp *in, struct loop *loop, struct val *out, bool *more) {
    const struct node *node = loop->node;
    for (;;) {
        if (!chat_iter_next(in, &loop->it, out, more)) return false;
        if (!*more || !loop->filtered) return true;
        struct frame *frame = chat_frame_new(in, loop->frame), *outer = in->frame;
        struct val test;
        if (!frame) return false;
        in->frame = frame;
        bool ok = assign(in, node->a, *out) && chat_eval(in, node->d, &test);
        in->frame = outer;
        if (!ok) return false;
        if (chat_truth(test)) return true;
    }
}

/* Items fetched during a turn outlive it. */
static bool peek(struct interp *in, struct loop *loop) {
    if (loop->has_next || loop->ended) return true;
    if (!val_is_seq(loop->it.src) || loop->filtered) chat_note_write(in, 0);
    bool more;
    if (!fetch(in, loop, &loop->next, &more)) return false;
    loop->has_next = more;
    loop->ended = !more;
    return true;
}

/* Fetches the rest, so that the length is known. */
static bool measure(struct interp *in, struct loop *loop) {
    if (loop->length >= 0) return true;
    if (!peek(in, loop)) return false;
    chat_note_write(in, 0);
    struct val *rest = NULL;
    uint32_t n = 0, cap = 0;
    for (bool more = !loop->ended; more; n++) {
        if (n == cap) {
            uint32_t new_cap = cap ? cap * 2 : 16;
            struct val *grown = chat_alloc_array(in, new_cap, sizeof *grown);
            if (!grown) return false;
            if (n) memcpy(grown, rest, n * sizeof *grown);
            rest = grown;
            cap = new_cap;
        }
        if (!fetch(in, loop, &rest[n], &more)) return false;
        if (!more) break;
    }
    loop->length = loop->index0 + 1 + (loop->has_next ? 1 : 0) + n;
    struct val list;
    if (!chat_make_list(in, VAL_LIST, rest, n, &list)) return false;
    loop->filtered = false;
    loop->it = (struct iter){.src = list};
    return true;
}

static bool run_turn(struct interp *in, struct loop *loop, const struct node *node) {
    struct frame *frame = chat_frame_new(in, loop->frame), *outer = in->frame;
    if (!frame) return false;
    in->frame = frame;
    struct val self = {.kind = VAL_LOOP, .loop = loop};
    bool ok = chat_frame_set(in, frame, in->tmpl->loop_name, self) &&
              assign(in, node->a, loop->current) && chat_exec(in, node->c);
    in->frame = outer;
    return ok;
}

bool chat_run_for(struct interp *in, const struct node *node, struct val iterable,
                  struct frame *frame, uint32_t depth0) {
    struct loop *loop = chat_alloc(in, sizeof *loop);
    if (!loop) return false;
    *loop = (struct loop){.node = node, .frame = frame, .length = -1, .depth0 = depth0};
    loop->index0 = -1;
    loop->filtered = node->d != NULL;
    if (!chat_iter_init(in, &loop->it, iterable)) return false;
    bool whole_turn = false;
    bool sized = iterable.kind != VAL_GEN && !node->d;
    if (sized && !chat_length(in, iterable, &loop->length)) return false;
    for (;;) {
        struct val item = loop->next;
        bool more = loop->has_next;
        if (!more && !loop->ended && !fetch(in, loop, &item, &more)) return false;
        if (!more) break;
        loop->has_next = false;
        loop->has_prev = loop->index0 >= 0;
        loop->prev = loop->current;
        loop->current = item;
        loop->index0++;
        struct scope_mark mark;
        chat_mark(in, &mark);
        bool ok = run_turn(in, loop, node);
        chat_release(in, &mark);
        if (!ok) return false;
        enum flow flow = in->flow;
        in->flow = FLOW_NEXT;
        if (flow == FLOW_NEXT) whole_turn = true;
        if (flow == FLOW_BREAK) break;
    }
    /* As in jinja a turn that break or continue cut short does not count for else. */
    if (whole_turn || !node->e) return true;
    return exec_in(in, node->e, chat_frame_new(in, frame));
}

static bool loop_cycle(struct interp *in, struct val self, const struct args *args,
                       struct val *out) {
    if (!args->n_pos) return chat_fail(in, "loop.cycle needs items");
    *out = args->pos[self.loop->index0 % args->n_pos];
    return true;
}

static const struct method_def cycle_method = {"cycle", loop_cycle};

bool chat_loop_attr(struct interp *in, struct loop *loop, const struct str *name, struct val *out) {
    if (chat_str_is(name, "index0")) return *out = val_int(loop->index0), true;
    if (chat_str_is(name, "index")) return *out = val_int(loop->index0 + 1), true;
    if (chat_str_is(name, "first")) return *out = val_bool(loop->index0 == 0), true;
    if (chat_str_is(name, "depth0")) return *out = val_int(loop->depth0), true;
    if (chat_str_is(name, "depth")) return *out = val_int((int64_t)loop->depth0 + 1), true;
    if (chat_str_is(name, "last") || chat_str_is(name, "nextitem")) {
        if (!peek(in, loop)) return false;
        if (chat_str_is(name, "last"))
            *out = val_bool(loop->ended);
        else
            *out = loop->has_next ? loop->next : val_undefined(name);
        return true;
    }
    if (chat_str_is(name, "previtem")) {
        *out = loop->has_prev ? loop->prev : val_undefined(name);
        return true;
    }
    if (chat_str_is(name, "length") || chat_str_is(name, "revindex") ||
        chat_str_is(name, "revindex0")) {
        if (!measure(in, loop)) return false;
        int64_t left = loop->length - loop->index0;
        *out = val_int(name->text[0] == 'l' ? loop->length : name->len == 8 ? left : left - 1);
        return true;
    }
    if (chat_str_is(name, "cycle")) {
        struct method *method = chat_alloc(in, sizeof *method);
        if (!method) return false;
        *method = (struct method){&cycle_method, {.kind = VAL_LOOP, .loop = loop}};
        *out = (struct val){.kind = VAL_METHOD, .method = method};
        return true;
    }
    *out = val_undefined(name);
    return true;
}

static bool enter_call(struct interp *in) {
    if (++in->call_depth <= CHAT_CALL_DEPTH_MAX) return true;
    in->call_depth--;
    return chat_fail(in, "more than %d calls are open at once", CHAT_CALL_DEPTH_MAX);
}

bool chat_loop_call(struct interp *in, struct loop *loop, const struct args *args,
                    struct val *out) {
    if (!loop->node->recursive) return chat_fail(in, "a loop without 'recursive' cannot be called");
    if (args->n_pos != 1 || args->n_kw) return chat_fail(in, "loop() takes one argument");
    if (!enter_call(in)) return false;
    struct buf buf, *outer = in->out;
    chat_buf_init(in, &buf);
    in->out = &buf;
    const struct node *node = loop->node;
    bool ok = chat_run_for(in, node, args->pos[0], loop->frame, loop->depth0 + 1);
    in->out = outer;
    in->call_depth--;
    if (ok) return chat_buf_finish(&buf, out);
    chat_buf_drop(&buf);
    return false;
}

static bool exec_for(struct interp *in, const struct node *node) {
    struct val iterable;
    return chat_eval(in, node->b, &iterable) && chat_run_for(in, node, iterable, in->frame, 0);
}

/* ---- macros ------------------------------------------------------------------------------------ */

static bool make_macro(struct interp *in, const struct node *node, struct val *out) {
    struct macro *macro = chat_alloc(in, sizeof *macro);
    if (!macro) return false;
    *macro = (struct macro){.node = node, .frame = in->frame};
    *out = (struct val){.kind = VAL_MACRO, .macro = macro};
    return true;
}

static bool exec_macro(struct interp *in, const struct node *node) {
    struct val macro;
    return make_macro(in, node, &macro) && chat_frame_set(in, in->frame, node->name, macro);
}

static const struct val *find_kwarg(const struct args *args, const struct str *name) {
    for (uint32_t i = 0; i < args->n_kw; i++)
        if (chat_str_equal(args->kw[i].name, name)) return &args->kw[i].val;
    return NULL;
}

static bool is_param(const struct node *node, const struct str *name) {
    for (uint32_t i = 0; i < node->n_items; i++)
        if (chat_str_equal(node->items[i]->name, name)) return true;
    return false;
}

/* varargs, kwargs and caller, where the body mentions them; else extra arguments are errors. */
static bool bind_extras(struct interp *in, const struct node *node, const struct args *args,
                        struct frame *frame) {
    const struct chat_template *tmpl = in->tmpl;
    uint32_t extra = args->n_pos > node->n_items ? args->n_pos - node->n_items : 0;
    struct val v;
    if (extra && !node->uses_varargs)
        return chat_fail(in, "macro '%.40s' takes at most %u arguments, not %u", node->name->text,
                         node->n_items, args->n_pos);
    if (node->uses_varargs &&
        !(chat_make_list(in, VAL_TUPLE, extra ? args->pos + node->n_items : NULL, extra, &v) &&
          chat_frame_set(in, frame, tmpl->varargs_name, v)))
        return false;
    struct val *keys = chat_alloc_array(in, args->n_kw, sizeof *keys);
    struct val *vals = keys ? chat_alloc_array(in, args->n_kw, sizeof *vals) : NULL;
    uint32_t n = 0;
    if (!vals || !chat_charge(in, (uint64_t)args->n_kw * (1 + node->n_items / 8))) return false;
    bool caller_given = false;
    for (uint32_t i = 0; i < args->n_kw; i++) {
        const struct kwarg *kw = &args->kw[i];
        if (is_param(node, kw->name)) continue;
        if (node->uses_caller && chat_str_equal(kw->name, tmpl->caller_name)) {
            caller_given = true;
            if (!chat_frame_set(in, frame, tmpl->caller_name, kw->val)) return false;
            continue;
        }
        if (!node->uses_kwargs)
            return chat_fail(in, "macro '%.40s' takes no argument '%.*s'", node->name->text,
                             (int)(kw->name->len < 40 ? kw->name->len : 40), kw->name->text);
        keys[n] = val_str(kw->name);
        vals[n++] = kw->val;
    }
    if (node->uses_caller && !caller_given && !is_param(node, tmpl->caller_name) &&
        !chat_frame_set(in, frame, tmpl->caller_name, val_undefined(tmpl->caller_name)))
        return false;
    if (!node->uses_kwargs) return true;
    return chat_make_dict(in, keys, vals, n, &v) && chat_frame_set(in, frame, tmpl->kwargs_name, v);
}

static bool bind_params(struct interp *in, const struct node *node, const struct args *args,
                        struct frame *frame) {
    for (uint32_t i = 0; i < node->n_items; i++) {
        const struct str *name = node->items[i]->name;
        const struct val *given = find_kwarg(args, name);
        struct val v = val_undefined(name);
        if (given && i < args->n_pos)
            return chat_fail(in, "macro '%.40s' got '%.40s' twice", node->name->text, name->text);
        if (i < args->n_pos) {
            v = args->pos[i];
        } else if (given) {
            v = *given;
        } else if (node->others[i]) { /* defaults see the parameters before them */
            struct frame *outer = in->frame;
            in->frame = frame;
            bool ok = chat_eval(in, node->others[i], &v);
            in->frame = outer;
            if (!ok) return false;
        }
        if (!chat_frame_set(in, frame, name, v)) return false;
    }
    return true;
}

bool chat_call_macro(struct interp *in, const struct macro *macro, const struct args *args,
                     struct val *out) {
    const struct node *node = macro->node;
    if (!enter_call(in)) return false;
    struct frame *frame = chat_frame_new(in, macro->frame);
    bool ok = frame && bind_extras(in, node, args, frame) && bind_params(in, node, args, frame) &&
              chat_run_body(in, node->c, frame, out);
    in->call_depth--;
    return ok;
}

static bool exec_call_block(struct interp *in, const struct node *node) {
    const struct node *call = node->a;
    struct val callee, caller, v;
    struct args args;
    if (!chat_eval(in, call->a, &callee)) return false;
    if (!chat_eval_args(in, call->items, call->n_items, &args)) return false;
    if (!make_macro(in, node->b, &caller)) return false;
    if (find_kwarg(&args, in->tmpl->caller_name))
        return chat_fail(in, "a call block cannot pass 'caller' itself");
    struct kwarg *kw = chat_alloc_array(in, args.n_kw + 1, sizeof *kw);
    if (!kw) return false;
    if (args.n_kw) memcpy(kw, args.kw, args.n_kw * sizeof *kw);
    kw[args.n_kw] = (struct kwarg){.name = in->tmpl->caller_name, .val = caller};
    args.kw = kw;
    args.n_kw++;
    return chat_call(in, callee, &args, &v) && chat_print(in->out, v);
}

/* ---- dispatch ---------------------------------------------------------------------------------- */

static bool exec_body(struct interp *in, const struct node *node) {
    for (uint32_t i = 0; i < node->n_items && in->flow == FLOW_NEXT; i++)
        if (!chat_exec(in, node->items[i])) return false;
    return true;
}

static bool jump(struct interp *in, enum flow flow) {
    in->flow = flow;
    return true;
}

static bool dispatch(struct interp *in, const struct node *node) {
    switch (node->kind) {
    case NODE_BODY:
        return exec_body(in, node);
    case NODE_TEXT:
        return chat_buf_str(in->out, node->value.s);
    case NODE_OUTPUT:
        return exec_output(in, node);
    case NODE_IF:
        return exec_if(in, node);
    case NODE_FOR:
        return exec_for(in, node);
    case NODE_SET:
        return exec_set(in, node);
    case NODE_SET_BLOCK:
        return exec_set_block(in, node);
    case NODE_MACRO:
        return exec_macro(in, node);
    case NODE_CALL_BLOCK:
        return exec_call_block(in, node);
    case NODE_FILTER_BLOCK:
        return exec_filter_block(in, node);
    case NODE_WITH:
        return exec_with(in, node);
    case NODE_SCOPE:
        return exec_in(in, node->c, chat_frame_new(in, in->frame));
    case NODE_BREAK:
        return jump(in, FLOW_BREAK);
    case NODE_CONTINUE:
        return jump(in, FLOW_CONTINUE);
    default:
        return chat_fail(in, "internal: node %d is no statement", node->kind);
    }
}

bool chat_exec(struct interp *in, const struct node *node) {
    in->line = node->line;
    if (!chat_charge(in, 1)) return false;
    if (++in->eval_depth > CHAT_EVAL_DEPTH_MAX) {
        in->eval_depth--;
        return chat_fail(in, "more than %d nodes are open at once", CHAT_EVAL_DEPTH_MAX);
    }
    bool ok = dispatch(in, node);
    in->eval_depth--;
    if (!ok && !in->culprit && node->end > node->off) in->culprit = node;
    return ok;
}
