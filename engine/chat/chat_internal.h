/* chat_internal.h: what the chat_*.c files share: the bounds, text that remembers where it came
 * from, values, the syntax tree and the state of one rendering. Not for other modules.
 *
 *   source -> chat_lex -> tokens -> chat_parse -> tree of nodes          (chat_template_create)
 *   tree + context -> chat_exec (statements) -> chat_eval (expressions)  (chat_template_render)
 *                       |                         chat_ops, chat_filters, chat_gens, chat_tests,
 *                       v                         chat_methods, chat_format, chat_globals
 *                   struct buf -> struct rendered
 *
 * Functions that can fail return false after chat_fail() recorded why; the first failure wins. */
#ifndef GERYON_CHAT_INTERNAL_H
#define GERYON_CHAT_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/chat/chat.h"

/* Templates and inputs are hostile: nothing grows beyond these. */
enum {
    CHAT_SOURCE_MAX = 256 << 10,    /* bytes of a template */
    CHAT_NESTING_MAX = 200,         /* depth of the tree */
    CHAT_NODES_MAX = 64 << 10,      /* nodes of the tree */
    CHAT_INPUT_DEPTH_MAX = 64,      /* nesting of messages, tools and kwargs */
    CHAT_CALL_DEPTH_MAX = 100,      /* macros and recursive loops that are open at once */
    CHAT_EVAL_DEPTH_MAX = 2000,     /* nodes that are open at once: bounds the C stack */
    CHAT_DATA_DEPTH_MAX = 200,      /* nesting of a value that is printed, compared or serialised */
    CHAT_STEPS_MAX = 10000000,      /* nodes evaluated, items walked, blocks of text scanned */
    CHAT_STEP_BYTES = 256,          /* so much text scanned or copied costs one step */
    CHAT_OUTPUT_MAX = 16 << 20,     /* bytes of the output, and of any one string made on the way */
    CHAT_MEMORY_MAX = 64 << 20,     /* live bytes of one rendering */
    CHAT_RANGE_MAX = 100000,        /* items of range() */
    CHAT_TREE_BYTES_MAX = 32 << 20, /* memory of a parsed template */
};

/* ---- text with provenance ---------------------------------------------------------------------- */

struct run {
    uint32_t end; /* byte after the run; a run starts where the one before ends */
    bool trusted;
};

/* Immutable. Slices share the bytes, so text need not be NUL-terminated. */
struct str {
    const char *text;
    uint32_t len;
    uint32_t n_chars; /* code points; equal to len means ASCII; CHAT_CHARS_UNKNOWN: not counted */
    uint32_t n_runs;  /* 0: the whole string is `trusted` */
    bool trusted;
    const struct run *runs;
};

#define CHAT_CHARS_UNKNOWN UINT32_MAX

/* ---- values ------------------------------------------------------------------------------------ */

enum val_kind {
    VAL_MISSING, /* an argument that was not given; never seen by a template */
    VAL_UNDEFINED,
    VAL_NONE,
    VAL_BOOL,
    VAL_INT,
    VAL_REAL,
    VAL_STR,
    VAL_LIST,
    VAL_TUPLE,
    VAL_DICT,
    VAL_VIEW, /* what keys(), values() and items() return */
    VAL_RANGE,
    VAL_NAMESPACE,
    VAL_GEN, /* lazy, used up once: map, select, items, ... */
    VAL_LOOP,
    VAL_MACRO,
    VAL_METHOD, /* bound to its object */
    VAL_GLOBAL, /* range, dict, raise_exception, ... */
    VAL_CYCLER,
    VAL_JOINER,
};

struct val {
    enum val_kind kind;
    bool marked; /* VAL_STR: went through safe or e, so + escapes the other side */
    union {
        bool b;
        int64_t i;
        double r;
        const struct str *s;     /* VAL_STR; VAL_UNDEFINED: the name that was missing, or NULL */
        const struct list *list; /* VAL_LIST, VAL_TUPLE */
        const struct dict *dict;
        const struct view *view;
        const struct range *range;
        struct namespace *ns;
        struct gen *gen;
        struct loop *loop;
        const struct macro *macro;
        const struct method *method;
        const struct global *global;
        struct cycler *cycler;
        struct joiner *joiner;
    };
};

struct list {
    const struct val *items; /* shared by slices */
    uint32_t n;
};

struct dict { /* insertion order; keys distinct and hashable */
    const struct val *keys, *vals;
    uint32_t n;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    const struct dict *dict;
    enum view_kind kind;
};

struct range {
    int64_t start, stop, step;
    uint32_t n;
};

struct binding {
    const struct str *name; /* interned: compared by address in frames, by text in namespaces */
    struct val val;
};

/* Variables of one scope. Writes of younger values into an older scope keep their memory alive:
 * see chat_note_write. */
struct frame {
    struct frame *parent;
    uint64_t serial;
    struct binding *vars;
    uint32_t n, cap;
};

struct namespace {
    uint64_t serial;
    struct binding *vars;
    uint32_t n, cap;
};

struct macro {
    const struct node *node;
    struct frame *frame; /* where it was defined */
};

struct cycler {
    const struct val *items;
    uint32_t n, at;
};

struct joiner {
    struct val sep;
    bool used;
};

/* Arguments of a call, filter or test. */
struct kwarg {
    const struct str *name;
    struct val val;
};
struct args {
    const struct val *pos;
    uint32_t n_pos;
    const struct kwarg *kw;
    uint32_t n_kw;
};

struct interp;

struct filter {
    const char *name;
    bool (*fn)(struct interp *in, struct val input, const struct args *args, struct val *out);
};
struct test {
    const char *name;
    bool (*fn)(struct interp *in, struct val input, const struct args *args, bool *out);
};
struct method_def {
    const char *name;
    bool (*fn)(struct interp *in, struct val self, const struct args *args, struct val *out);
};
struct method {
    const struct method_def *def;
    struct val self;
};
struct global {
    const char *name;
    bool (*fn)(struct interp *in, const struct args *args, struct val *out);
};

/* A walk over anything iterable. Holds positions only, never values made on the way. */
struct iter {
    struct val src;
    uint32_t pos; /* items taken; in a string: bytes */
};

enum gen_kind { GEN_LIST, GEN_ITEMS, GEN_MAP_ATTR, GEN_MAP, GEN_SELECT };
struct gen {
    enum gen_kind kind;
    struct iter src;
    struct val attr;     /* GEN_MAP_ATTR; GEN_SELECT: VAL_MISSING without one */
    struct val fallback; /* GEN_MAP_ATTR: default=, or VAL_MISSING */
    const struct filter *filter;
    const struct test *test; /* NULL: truth */
    bool negate;
    struct args args;
};

/* ---- the tree ---------------------------------------------------------------------------------- */

enum node_kind {
    /* statements */
    NODE_BODY,         /* items */
    NODE_TEXT,         /* value */
    NODE_OUTPUT,       /* a */
    NODE_IF,           /* items: test, body, test, body, ...; a: else body or NULL */
    NODE_FOR,          /* a target, b iterable, c body, d filter or NULL, e else body or NULL */
    NODE_SET,          /* a target, b expression */
    NODE_SET_BLOCK,    /* a target, b filter chain or NULL, c body */
    NODE_MACRO,        /* name, items parameters, others defaults (NULL where none), c body */
    NODE_CALL_BLOCK,   /* a the call, b the NODE_MACRO of its body */
    NODE_FILTER_BLOCK, /* a filter chain, c body */
    NODE_WITH,         /* items targets, others expressions, c body */
    NODE_SCOPE,        /* c body: {% generation %} */
    NODE_BREAK,
    NODE_CONTINUE,
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_NSREF,   /* name, text: target of `set ns.text` */
    NODE_TUPLE,   /* items */
    NODE_LIST,    /* items */
    NODE_DICT,    /* items: key, value, ... */
    NODE_ATTR,    /* a.text */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a[b:c:d], each but a may be NULL */
    NODE_CALL,    /* a(items) */
    NODE_FILTER,  /* a | name(items); a NULL: the text of a block */
    NODE_TEST,    /* a is name(items); op: negated */
    NODE_NEG,     /* -a */
    NODE_POS,     /* +a */
    NODE_NOT,     /* not a */
    NODE_BINARY,  /* a op b */
    NODE_SUM,     /* items joined by +, left to right: long chains stay flat */
    NODE_CONCAT,  /* items joined by ~ */
    NODE_COMPARE, /* a, then others[i] with ops in items[i] (NODE_OP) */
    NODE_OP,      /* op: one comparison; a: its right side */
    NODE_AND,     /* a, b */
    NODE_OR,      /* a, b */
    NODE_COND,    /* a if b else c; c may be NULL */
    /* only among call arguments */
    NODE_KWARG, /* name=a */
    NODE_STAR,  /* *a */
    NODE_DSTAR, /* **a */
};

/* Operators: one or two characters; word operators have letters. */
#define OP1(c)    ((int)(c))
#define OP2(c, d) ((int)(c) | (int)(d) << 8)
#define OP_IN     OP2('i', 'n')
#define OP_NOT_IN OP2('n', 'i')

struct node {
    uint8_t kind;
    bool recursive;                              /* NODE_FOR */
    bool uses_caller, uses_varargs, uses_kwargs; /* NODE_MACRO */
    int op;
    uint32_t line;
    uint32_t depth;    /* 1 + the deepest child's */
    uint32_t off, end; /* statements and outputs: their tag's inside in the source */
    struct node *a, *b, *c, *d, *e;
    struct node **items, **others;
    uint32_t n_items, n_others;
    const struct str *name, *text;
    struct val value;
    const struct filter *filter; /* NULL: unknown, an error when it runs */
    const struct test *test;
};

struct chat_template {
    struct arena *arena; /* the source, the tree and its strings */
    const char *source;  /* line ends made \n, last one dropped */
    size_t source_len;
    const struct node *root;
    const struct str **names; /* every identifier, interned: open addressing, NULL where free */
    uint32_t names_cap;       /* a power of two */
    const struct str *loop_name, *caller_name, *varargs_name, *kwargs_name;
};

uint32_t chat_hash(const char *text, size_t len);

/* ---- rendering with more said ------------------------------------------------------------------ */

/* A stretch of an input text that is trusted; the rest of the text is not. */
struct chat_span {
    const char *text; /* inside the bytes of one string value */
    size_t len;
};

struct chat_render_options {
    const struct chat_span *spans; /* sorted by address, not overlapping */
    size_t n_spans;
    uint64_t *steps_left; /* lowered by what the rendering took; NULL: CHAT_STEPS_MAX */
};

int chat_template_render_with(const struct chat_template *tmpl, const struct chat *chat,
                              const struct chat_variable *variables, size_t n_variables,
                              const struct chat_render_options *options, struct rendered *out,
                              struct err *err);

/* ---- tokens ------------------------------------------------------------------------------------ */

enum token_kind {
    TOKEN_EOF,
    TOKEN_TEXT,
    TOKEN_VAR_BEGIN,
    TOKEN_VAR_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_REAL,
    TOKEN_OP,
};

struct token {
    enum token_kind kind;
    int op;
    uint32_t line;
    uint32_t off, end; /* in the source */
    union {
        const struct str *text; /* TEXT, STRING; NAME (not interned yet) */
        int64_t i;
        double r;
    };
};

/* Tokens of a source whose line ends are \n; malloc'd, ends with TOKEN_EOF. Strings go into the
 * arena. */
int chat_lex(const char *source, size_t len, struct arena *arena, struct token **out,
             uint32_t *n_out, struct err *err);

/* Fills root and names of tmpl from its source. */
int chat_parse(struct chat_template *tmpl, struct err *err);

/* A trusted string over len bytes at text, which must outlive it. NULL without memory. */
const struct str *chat_str_static(struct arena *arena, const char *text, size_t len);

/* ---- memory of a rendering --------------------------------------------------------------------- */

/* Bump allocation that can be wound back. */
struct pool_mark {
    struct pool_chunk *chunk;
    size_t used;
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

struct interp {
    const struct chat_template *tmpl;
    struct pool_chunk *chunks;
    size_t live; /* bytes in use: pool and growing buffers */
    uint64_t steps, steps_max;
    const struct chat_render_options *options; /* never NULL */
    uint32_t eval_depth, call_depth, data_depth;
    uint64_t serial;       /* counts frames and namespaces */
    uint64_t oldest_write; /* smallest serial written to since the last mark */
    struct frame *frame;
    struct buf *out;
    struct val block_value; /* what the innermost filter of a block filters */
    enum flow flow;
    int64_t now;
    uint32_t line;              /* of the node evaluated last */
    const struct node *culprit; /* the innermost statement that failed */
    bool failed, raised;
    struct err err;
};

/* Records a failure unless there is one already; returns false. */
bool chat_fail(struct interp *in, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool chat_fail_memory(struct interp *in);
/* Counts n steps; false beyond the bound. */
bool chat_charge(struct interp *in, uint64_t n);
bool chat_charge_bytes(struct interp *in, size_t bytes);
/* 16-byte aligned, not zeroed; NULL (recorded) beyond the bound. */
void *chat_alloc(struct interp *in, size_t bytes);
void *chat_alloc_array(struct interp *in, size_t n, size_t size);

/* Memory is wound back after each statement and loop turn unless something made since the mark was
 * stored in a scope or namespace older than it:
 *
 *   mark m: serial 7                 frame 5 ... m ... frame 8 ... namespace 9
 *   write into 8 or 9: dies with them, so winding back to m is fine
 *   write into 5: oldest_write = 5 <= 7, everything since m stays */
struct scope_mark {
    struct pool_mark pool;
    uint64_t serial, oldest_write;
};
void chat_mark(struct interp *in, struct scope_mark *mark);
void chat_release(struct interp *in, const struct scope_mark *mark);
void chat_note_write(struct interp *in, uint64_t serial);
void chat_pool_free(struct interp *in);

/* ---- chat_str.c -------------------------------------------------------------------------------- */

/* A growing text. A failed append is remembered; finish reports it. */
struct buf {
    struct interp *in;
    char *text;
    uint32_t len, cap;
    struct run *runs;
    uint32_t n_runs, cap_runs;
    bool failed;
};
void chat_buf_init(struct interp *in, struct buf *buf);
void chat_buf_drop(struct buf *buf);
bool chat_buf_add(struct buf *buf, const char *text, size_t len, bool trusted);
bool chat_buf_str(struct buf *buf, const struct str *s);
bool chat_buf_slice(struct buf *buf, const struct str *s, size_t lo, size_t hi);
bool chat_buf_fill(struct buf *buf, char c, size_t n, bool trusted);
/* Into an immutable string value; the buffer is dropped whether or not it fails. */
bool chat_buf_finish(struct buf *buf, struct val *out);

const struct str *chat_str_new(struct interp *in, const char *text, size_t len, bool trusted);
const struct str *chat_str_slice(struct interp *in, const struct str *s, size_t lo, size_t hi);
bool chat_str_trusted_at(const struct str *s, size_t off);
/* Code points of s; counts at most once for strings of the rendering. */
bool chat_str_chars(struct interp *in, const struct str *s, uint32_t *out);
/* Byte offset of code point `index` <= n_chars. */
size_t chat_str_offset(const struct str *s, uint32_t index);
bool chat_str_equal(const struct str *a, const struct str *b);
bool chat_str_is(const struct str *s, const char *text);
/* First or last occurrence within [lo, hi), or SIZE_MAX. */
size_t chat_str_find(const struct str *s, size_t lo, size_t hi, const struct str *what);
size_t chat_str_rfind(const struct str *s, size_t lo, size_t hi, const struct str *what);
/* The cost of looking for what in s; backward search is not linear. */
bool chat_charge_find(struct interp *in, const struct str *s, const struct str *what);

/* Length in bytes of the character at pos < len; a byte that starts none counts alone as
 * U+FFFD. */
size_t chat_utf8_next(const char *text, size_t len, size_t pos, uint32_t *cp);
size_t chat_utf8_put(char out[4], uint32_t cp);
bool chat_is_space(uint32_t cp);
bool chat_utf8_valid(const char *text, size_t len);
/* [lo, hi) without blanks (set NULL) or without the characters of set at its ends. */
enum strip_side { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
void chat_str_strip(const struct str *s, const struct str *set, int sides, size_t *lo, size_t *hi);

enum case_op { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_TITLE_WORDS, CASE_SWAP };
/* CASE_TITLE is the method (a letter after a non-letter), CASE_TITLE_WORDS the filter. */
bool chat_str_case(struct interp *in, const struct str *s, enum case_op op, struct val *out);
bool chat_is_printable(uint32_t cp);
bool chat_is_cased(uint32_t cp, bool *upper);
bool chat_str_escape_html(struct interp *in, const struct str *s, struct val *out);

/* ---- chat_val.c -------------------------------------------------------------------------------- */

static inline struct val val_undefined(const struct str *name) {
    return (struct val){.kind = VAL_UNDEFINED, .s = name};
}
static inline struct val val_none(void) {
    return (struct val){.kind = VAL_NONE};
}
static inline struct val val_bool(bool b) {
    return (struct val){.kind = VAL_BOOL, .b = b};
}
static inline struct val val_int(int64_t i) {
    return (struct val){.kind = VAL_INT, .i = i};
}
static inline struct val val_real(double r) {
    return (struct val){.kind = VAL_REAL, .r = r};
}
static inline struct val val_str(const struct str *s) {
    return (struct val){.kind = VAL_STR, .s = s};
}
static inline bool val_is_int(struct val v) {
    return v.kind == VAL_INT || v.kind == VAL_BOOL;
}
static inline int64_t val_as_int(struct val v) {
    return v.kind == VAL_BOOL ? v.b : v.i;
}
static inline bool val_is_number(struct val v) {
    return val_is_int(v) || v.kind == VAL_REAL;
}
static inline double val_as_real(struct val v) {
    return v.kind == VAL_REAL ? v.r : (double)val_as_int(v);
}
/* Wraps in between, as only the result is known to fit. */
static inline int64_t range_at(const struct range *r, int64_t i) {
    return (int64_t)((uint64_t)r->start + (uint64_t)r->step * (uint64_t)i);
}
static inline bool val_is_seq(struct val v) {
    return v.kind == VAL_LIST || v.kind == VAL_TUPLE;
}

/* What Python calls the type. */
const char *chat_type_name(struct val v);
/* Fails as an operation on an undefined value does; or, for a defined one, false as well. */
bool chat_fail_undefined(struct interp *in, struct val v);
bool chat_make_list(struct interp *in, enum val_kind kind, const struct val *items, uint32_t n,
                    struct val *out);
bool chat_make_text(struct interp *in, const char *text, size_t len, struct val *out);

bool chat_truth(struct val v);
bool chat_equal(struct interp *in, struct val a, struct val b, bool *out);
/* -1, 0, 1 by Python's <; a type error where Python has none. */
bool chat_compare(struct interp *in, struct val a, struct val b, int *out);
bool chat_contains(struct interp *in, struct val item, struct val container, bool *out);
bool chat_length(struct interp *in, struct val v, int64_t *out);
bool chat_dict_find(struct interp *in, const struct dict *dict, struct val key, struct val *out,
                    bool *found);
const struct val *chat_dict_get(const struct dict *dict, const struct str *key);
bool chat_hashable(struct interp *in, struct val v);
/* A dict from n pairs; later ones win, in the place of the first. */
bool chat_make_dict(struct interp *in, const struct val *keys, const struct val *vals, uint32_t n,
                    struct val *out);

bool chat_iter_init(struct interp *in, struct iter *it, struct val v);
/* *more false at the end. */
bool chat_iter_next(struct interp *in, struct iter *it, struct val *out, bool *more);
/* Everything left, as a list value. */
bool chat_collect(struct interp *in, struct val v, struct val *out);

/* Python's str() and repr(); print: an undefined prints nothing. */
bool chat_print(struct buf *buf, struct val v);
bool chat_repr(struct buf *buf, struct val v);
/* str() as a string value; strings stay what they are. */
bool chat_to_str(struct interp *in, struct val v, struct val *out);
/* Shortest digits that read back as r, as Python writes them; out holds 32. */
size_t chat_format_real(double r, char out[32]);

/* a.name and a[key]; what is missing is undefined. */
bool chat_get_attr(struct interp *in, struct val v, const struct str *name, struct val *out);
bool chat_get_item(struct interp *in, struct val v, struct val key, struct val *out);
bool chat_get_slice(struct interp *in, struct val v, const struct val bounds[3], struct val *out);
/* 'a.b.0' of attribute= arguments; what is undefined on the way becomes fallback unless MISSING. */
bool chat_get_path(struct interp *in, struct val v, struct val path, struct val fallback,
                   struct val *out);
/* Opens and closes one level of a walk into nested data. */
bool chat_deeper(struct interp *in);
void chat_shallower(struct interp *in);

/* ---- operators, calls -------------------------------------------------------------------------- */

bool chat_add(struct interp *in, struct val a, struct val b, struct val *out);
bool chat_binary(struct interp *in, int op, struct val a, struct val b, struct val *out);
bool chat_negate(struct interp *in, struct val v, struct val *out);

bool chat_eval(struct interp *in, const struct node *node, struct val *out);
bool chat_exec(struct interp *in, const struct node *node);
bool chat_call(struct interp *in, struct val callee, const struct args *args, struct val *out);
bool chat_eval_args(struct interp *in, struct node *const *items, uint32_t n, struct args *out);
bool chat_call_macro(struct interp *in, const struct macro *macro, const struct args *args,
                     struct val *out);
bool chat_run_body(struct interp *in, const struct node *body, struct frame *frame,
                   struct val *out);
/* One for statement over an evaluated iterable; loop() recursion comes back here. */
bool chat_run_for(struct interp *in, const struct node *node, struct val iterable,
                  struct frame *frame, uint32_t depth0);
bool chat_loop_attr(struct interp *in, struct loop *loop, const struct str *name, struct val *out);
bool chat_loop_call(struct interp *in, struct loop *loop, const struct args *args, struct val *out);
/* Repetitions and widths: n must fit the bound on output. */
bool chat_check_width(struct interp *in, const char *what, int64_t n);

struct frame *chat_frame_new(struct interp *in, struct frame *parent);
bool chat_frame_set(struct interp *in, struct frame *frame, const struct str *name, struct val v);
bool chat_ns_set(struct interp *in, struct namespace *ns, const struct str *name, struct val v);

/* Sorts args into out[n_params] by position or name; VAL_MISSING where not given. */
bool chat_bind(struct interp *in, const char *what, const struct args *args,
               const char *const *params, uint32_t n_params, uint32_t n_required, struct val *out);
/* v as an integer (bools too), or a type error naming what. */
bool chat_want_int(struct interp *in, const char *what, struct val v, int64_t *out);
bool chat_want_str(struct interp *in, const char *what, struct val v, const struct str **out);

const struct filter *chat_filter_find(const struct str *name);
const struct test *chat_test_find(const struct str *name);
const struct global *chat_global_find(const struct str *name);
/* The method of v's kind, or NULL; *unsafe: it exists but would change v. */
const struct method_def *chat_method_find(struct val v, const struct str *name, bool *unsafe);
bool chat_gen_next(struct interp *in, struct gen *gen, struct val *out, bool *more);
extern const struct filter chat_gen_filters[]; /* map, select, ...; ends with a NULL name */
bool chat_json(struct interp *in, struct val v, const struct args *args, struct val *out);
/* str.format and str % args. */
bool chat_str_format(struct interp *in, struct val self, const struct args *args, struct val *out);
bool chat_str_percent(struct interp *in, struct val self, struct val right, struct val *out);

#endif
