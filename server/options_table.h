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
    KIND_DRAFTS, /* int32_t: auto, off, ngram or lo .. hi */
};

enum { OPTION_REQUIRED = 1, OPTION_ROWS_MAX = 128 };

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

/* The row of a flag ("--port", an alias too) of len bytes for this command, or NULL. */
const struct option *options_find(const char *name, size_t len, unsigned command);

/* Check text and store it in the option's field (which borrows it). ERR_INVALID; name: the flag,
 * variable or place as the user wrote it. */
int options_set(struct options *options, const struct option *opt, const char *name,
                const char *text, struct err *err);

/* Read options->config, if there is one: `key = value` lines. Sets and marks the rows that are not
 * given yet; checks all (options_config.c). */
int options_read_config(struct options *options, bool *given, struct err *err);

#endif
