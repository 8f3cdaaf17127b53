/* options_table.h: one row per flag and group of commands: what parsing, environment twins, help
 * and messages are made from. Only flags whose function exists are in the table. */
#ifndef GERYON_OPTIONS_TABLE_H
#define GERYON_OPTIONS_TABLE_H

#include "server/options.h"

enum option_kind {
    KIND_TEXT,   /* const char * */
    KIND_CHOICE, /* const char *, one of `choices` */
    KIND_COUNT,  /* uint32_t in lo .. hi */
    KIND_SIZE,   /* uint64_t bytes in lo .. hi */
    KIND_REAL,   /* double in lo .. hi */
    KIND_INT,    /* struct option_int in lo .. hi, or any 64-bit number where lo == hi */
    KIND_COUNTS, /* struct option_counts: numbers in lo .. hi between commas */
    KIND_SWITCH, /* bool; takes no value */
    KIND_LIST,   /* struct option_list; repeatable */
    KIND_DRAFTS, /* int32_t: auto, off or lo .. hi */
};

enum { OPTION_REQUIRED = 1, OPTION_ROWS_MAX = 96 };

struct option {
    const char *name;       /* "--max-num-seqs" */
    const char *aliases[2]; /* or NULL */
    unsigned commands;
    enum option_kind kind;
    size_t offset;
    const char *fallback; /* default as text, or NULL: left at zero */
    double lo, hi;
    const char *choices; /* "a|b|c", or what to call the value in help */
    const char *meaning;
    unsigned flags;
};

extern const struct option options_table[];
extern const size_t options_table_rows; /* at most OPTION_ROWS_MAX */

#endif
