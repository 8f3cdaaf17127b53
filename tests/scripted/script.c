#include "tests/scripted/script.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_MAX = 1 << 20, VOCAB_MAX = 1 << 20, MS_MAX = 600000 };

/* ---- parts of the JSON ------------------------------------------------------------------------- */

/* calloc that never asks for nothing. */
static void *make(size_t n, size_t size) {
    return calloc(n ? n : 1, size);
}

static int no_memory(struct err *err) {
    return err_set(err, ERR_NOMEM, "script: no memory");
}

static int read_uint(const json_t *root, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                     struct err *err) {
    const json_t *v = json_object_get(root, key);
    if (!v) return OK;
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return err_set(err, ERR_INVALID, "script: %s: expected an integer from %u to %u", key, lo,
                       hi);
    *out = (uint32_t)json_integer_value(v);
    return OK;
}

static int read_ms(const json_t *root, const char *key, double *out, struct err *err) {
    const json_t *v = json_object_get(root, key);
    if (!v) return OK;
    double ms = json_number_value(v);
    if (!json_is_number(v) || !(ms >= 0 && ms <= MS_MAX))
        return err_set(err, ERR_INVALID, "script: %s: expected milliseconds from 0 to %d", key,
                       MS_MAX);
    *out = ms;
    return OK;
}

/* A logit: a number or "-inf". */
static bool read_logit(const json_t *v, float *out) {
    if (json_is_number(v)) {
        *out = (float)json_number_value(v);
        return true;
    }
    if (!json_is_string(v) || strcmp(json_string_value(v), "-inf") != 0) return false;
    *out = -INFINITY;
    return true;
}

static int read_id(const struct script *script, const json_t *v, const char *where, int32_t *out,
                   struct err *err) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 ||
        json_integer_value(v) >= script->n_vocab)
        return err_set(err, ERR_INVALID, "script: %s: expected token ids from 0 to %u", where,
                       script->n_vocab - 1);
    *out = (int32_t)json_integer_value(v);
    return OK;
}

/* One decimal id at *text, which moves behind it; -1 when there is none below n_vocab. */
static int32_t scan_id(const char **text, uint32_t n_vocab) {
    uint64_t id = 0;
    const char *start = *text;
    for (; **text >= '0' && **text <= '9' && *text - start < 10; ++*text)
        id = 10 * id + (uint64_t)(**text - '0');
    return *text == start || id >= n_vocab ? -1 : (int32_t)id;
}

/* ---- vocabulary -------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool unhex(const char *hex, size_t len, char *out) {
    for (size_t i = 0; i < len; i += 2) {
        int hi = hex_digit(hex[i]), lo = hex_digit(hex[i + 1]); /* an odd end meets the NUL */
        if (hi < 0 || lo < 0) return false;
        out[i / 2] = (char)(16 * hi + lo);
    }
    return true;
}

static int read_piece(const json_t *v, size_t index, struct script_piece *piece, struct err *err) {
    const json_t *special = json_object_get(v, "special"), *hex = json_object_get(v, "hex");
    const json_t *text = special ? special : hex ? hex : v;
    if (!json_is_string(text) || (json_is_object(v) && json_object_size(v) != 1))
        return err_set(err, ERR_INVALID,
                       "script: vocab[%zu]: expected a string, {\"hex\": ..} or {\"special\": ..}",
                       index);
    size_t len = json_string_length(text);
    piece->bytes = make(len + 1, 1);
    if (!piece->bytes) return no_memory(err);
    piece->special = special != NULL;
    piece->len = hex ? len / 2 : len;
    if (!hex)
        memcpy(piece->bytes, json_string_value(text), len);
    else if (!unhex(json_string_value(text), len, piece->bytes))
        return err_set(err, ERR_INVALID, "script: vocab[%zu]: expected pairs of hex digits", index);
    return OK;
}

static int read_vocab(struct script *script, const json_t *root, struct err *err) {
    const json_t *vocab = json_object_get(root, "vocab");
    size_t n = json_array_size(vocab);
    if (n < 1 || n > VOCAB_MAX)
        return err_set(err, ERR_INVALID, "script: vocab: expected an array of 1 to %d pieces",
                       VOCAB_MAX);
    script->vocab = make(n, sizeof *script->vocab);
    if (!script->vocab) return no_memory(err);
    script->n_vocab = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        int rc = read_piece(json_array_get(vocab, i), i, &script->vocab[i], err);
        if (rc != OK) return rc;
    }
    return OK;
}

static int read_eos(struct script *script, const json_t *root, struct err *err) {
    const json_t *eos = json_object_get(root, "eos");
    if (!eos) return OK;
    if (!json_is_array(eos) || json_array_size(eos) > ARRAY_LEN(script->eos))
        return err_set(err, ERR_INVALID, "script: eos: expected an array of at most %zu ids",
                       ARRAY_LEN(script->eos));
    for (size_t i = 0; i < json_array_size(eos); i++) {
        int rc = read_id(script, json_array_get(eos, i), "eos", &script->eos[i], err);
        if (rc != OK) return rc;
        script->n_eos++;
    }
    return OK;
}

/* ---- sources ----------------------------------------------------------------------------------- */

static int read_sequence(const struct script *script, const json_t *v, const char *name,
                         struct script_source *source, struct err *err) {
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n > CONTEXT_MAX || (n == 0 && script->n_eos == 0))
        return err_set(err, ERR_INVALID,
                       "script: %s: expected an array of ids, at least one where there is no eos",
                       name);
    source->given = true;
    source->sequence = make(n, sizeof *source->sequence);
    if (!source->sequence) return no_memory(err);
    source->n_sequence = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        int rc = read_id(script, json_array_get(v, i), name, &source->sequence[i], err);
        if (rc != OK) return rc;
    }
    return OK;
}

static int read_key(const struct script *script, const char *key, const char *name,
                    struct script_entry *entry, struct err *err) {
    entry->key = make(strlen(key) / 2 + 1, sizeof *entry->key);
    if (!entry->key) return no_memory(err);
    for (const char *at = key; *key;) {
        int32_t id = scan_id(&at, script->n_vocab);
        if (id < 0 || (*at && *at != ',') || (*at && !at[1]))
            return err_set(err, ERR_INVALID,
                           "script: %s: key \"%s\": expected ids from 0 to %u between commas", name,
                           key, script->n_vocab - 1);
        entry->key[entry->n_key++] = id;
        if (!*at++) break;
    }
    return OK;
}

static int read_entry(const struct script *script, const char *key, const json_t *v,
                      const char *name, struct script_entry *entry, struct err *err) {
    int rc = read_key(script, key, name, entry, err);
    if (rc != OK) return rc;
    if (!json_is_object(v))
        return err_set(err, ERR_INVALID, "script: %s: \"%s\": expected an object of logits", name,
                       key);
    entry->logits = make(json_object_size(v), sizeof *entry->logits);
    if (!entry->logits) return no_memory(err);
    json_t *object = (json_t *)(uintptr_t)v, *logit; /* jansson's iterators want it writable */
    const char *id_text;
    json_object_foreach(object, id_text, logit) {
        const char *end = id_text;
        struct script_logit *to = &entry->logits[entry->n_logits];
        to->id = scan_id(&end, script->n_vocab);
        if (to->id < 0 || *end)
            return err_set(err, ERR_INVALID, "script: %s: \"%s\": id \"%s\", expected 0 to %u",
                           name, key, id_text, script->n_vocab - 1);
        if (!read_logit(logit, &to->logit))
            return err_set(err, ERR_INVALID,
                           "script: %s: \"%s\": \"%s\": expected a number or \"-inf\"", name, key,
                           id_text);
        entry->n_logits++;
    }
    return OK;
}

static int longest_first(const void *a, const void *b) {
    const struct script_entry *x = a, *y = b;
    return x->n_key == y->n_key ? 0 : x->n_key < y->n_key ? 1 : -1;
}

static int read_table(const struct script *script, json_t *v, const char *name,
                      struct script_source *source, struct err *err) {
    if (!json_is_object(v))
        return err_set(err, ERR_INVALID, "script: %s: expected an object of histories", name);
    source->given = true;
    source->entries = make(json_object_size(v), sizeof *source->entries);
    if (!source->entries) return no_memory(err);
    const char *key;
    json_t *logits;
    json_object_foreach(v, key, logits) {
        struct script_entry *entry = &source->entries[source->n_entries++];
        int rc = read_entry(script, key, logits, name, entry, err);
        if (rc != OK) return rc;
    }
    qsort(source->entries, source->n_entries, sizeof *source->entries, longest_first);
    return OK;
}

static int read_source(const struct script *script, const json_t *root, const char *sequence_key,
                       const char *table_key, struct script_source *source, struct err *err) {
    json_t *sequence = json_object_get(root, sequence_key);
    json_t *table = json_object_get(root, table_key);
    if (sequence && table)
        return err_set(err, ERR_INVALID, "script: %s and %s exclude each other", sequence_key,
                       table_key);
    if (sequence) return read_sequence(script, sequence, sequence_key, source, err);
    return table ? read_table(script, table, table_key, source, err) : OK;
}

/* ---- the whole --------------------------------------------------------------------------------- */

static int read_fail(struct script *script, const json_t *root, struct err *err) {
    const json_t *fail = json_object_get(root, "fail");
    if (!fail) return OK;
    const json_t *at = json_object_get(fail, "at_output");
    const char *kind = json_string_value(json_object_get(fail, "kind"));
    bool request = kind && strcmp(kind, "request") == 0;
    bool device = kind && strcmp(kind, "device") == 0;
    if (!json_is_integer(at) || json_integer_value(at) < 0 || json_integer_value(at) > CONTEXT_MAX)
        return err_set(err, ERR_INVALID, "script: fail: at_output: expected 0 to %d", CONTEXT_MAX);
    if (!request && !device)
        return err_set(err, ERR_INVALID, "script: fail: kind: expected \"request\" or \"device\"");
    script->fail = request ? FAIL_REQUEST : FAIL_DEVICE;
    script->fail_at = (uint32_t)json_integer_value(at);
    return OK;
}

static int check_keys(json_t *root, struct err *err) {
    static const char *const known[] = {
        "vocab",  "eos",     "context", "block_size", "sequence", "draft_sequence",
        "target", "draft",   "default", "step_ms",    "row_ms",   "prefill_ms_per_token",
        "fail",   "load_ms", "state"};
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        size_t i = 0;
        while (i < ARRAY_LEN(known) && strcmp(known[i], key) != 0)
            i++;
        if (i == ARRAY_LEN(known)) return err_set(err, ERR_INVALID, "script: unknown key %s", key);
    }
    return OK;
}

static int read_script(struct script *script, json_t *root, struct err *err) {
    const json_t *default_logit = json_object_get(root, "default");
    const json_t *has_state = json_object_get(root, "state");
    script->context = 4096;
    script->state = json_is_true(has_state);
    script->default_logit = -20;
    int rc = check_keys(root, err);
    if (rc == OK) rc = read_vocab(script, root, err);
    if (rc == OK) rc = read_eos(script, root, err);
    if (rc == OK) rc = read_uint(root, "context", 2, CONTEXT_MAX, &script->context, err);
    if (rc == OK) rc = read_uint(root, "block_size", 0, DRAFT_MAX, &script->block_size, err);
    if (rc == OK && default_logit && !read_logit(default_logit, &script->default_logit))
        rc = err_set(err, ERR_INVALID, "script: default: expected a number or \"-inf\"");
    if (rc == OK && has_state && !json_is_boolean(has_state))
        rc = err_set(err, ERR_INVALID, "script: state: expected true or false");
    if (rc == OK) rc = read_source(script, root, "sequence", "target", &script->target, err);
    if (rc == OK && !script->target.given)
        rc = err_set(err, ERR_INVALID, "script: expected a sequence or a target");
    if (rc == OK) rc = read_source(script, root, "draft_sequence", "draft", &script->draft, err);
    if (rc == OK) rc = read_ms(root, "prefill_ms_per_token", &script->prefill_ms_per_token, err);
    if (rc == OK) rc = read_ms(root, "step_ms", &script->step_ms, err);
    if (rc == OK) rc = read_ms(root, "row_ms", &script->row_ms, err);
    if (rc == OK) rc = read_ms(root, "load_ms", &script->load_ms, err);
    return rc == OK ? read_fail(script, root, err) : rc;
}

int script_parse(const char *json, size_t len, struct script **out, struct err *err) {
    json_error_t where;
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root)
        return err_set(err, ERR_INVALID, "script: line %d, column %d: %s", where.line, where.column,
                       where.text);
    struct script *script = calloc(1, sizeof *script);
    int rc = OK;
    if (!script)
        rc = no_memory(err);
    else if (!json_is_object(root))
        rc = err_set(err, ERR_INVALID, "script: expected an object");
    else
        rc = read_script(script, root, err);
    json_decref(root);
    if (rc == OK)
        *out = script;
    else
        script_destroy(script);
    return rc;
}

static void source_free(struct script_source *source) {
    for (uint32_t i = 0; i < source->n_entries; i++) {
        free(source->entries[i].key);
        free(source->entries[i].logits);
    }
    free(source->entries);
    free(source->sequence);
}

void script_destroy(struct script *script) {
    if (!script) return;
    for (uint32_t i = 0; i < script->n_vocab; i++)
        free(script->vocab[i].bytes);
    free(script->vocab);
    source_free(&script->target);
    source_free(&script->draft);
    free(script);
}

/* ---- logits ------------------------------------------------------------------------------------ */

static int32_t sequence_token(const struct script *script, const struct script_source *source,
                              uint32_t out_pos) {
    if (out_pos < source->n_sequence) return source->sequence[out_pos];
    return script->n_eos ? script->eos[0] : source->sequence[out_pos % source->n_sequence];
}

static bool ends_with(const int32_t *history, uint32_t n_history,
                      const struct script_entry *entry) {
    return entry->n_key <= n_history && memcmp(history + (n_history - entry->n_key), entry->key,
                                               entry->n_key * sizeof *history) == 0;
}

void script_logits(const struct script *script, bool draft, const int32_t *history,
                   uint32_t n_history, uint32_t prompt_len, float *logits) {
    const struct script_source *source =
        draft && script->draft.given ? &script->draft : &script->target;
    for (uint32_t i = 0; i < script->n_vocab; i++)
        logits[i] = source->sequence ? -10 : script->default_logit;
    if (source->sequence) {
        if (n_history >= prompt_len)
            logits[sequence_token(script, source, n_history - prompt_len)] = 10;
        return;
    }
    for (uint32_t i = 0; i < source->n_entries; i++) {
        const struct script_entry *entry = &source->entries[i];
        if (!ends_with(history, n_history, entry)) continue;
        for (uint32_t j = 0; j < entry->n_logits; j++)
            logits[entry->logits[j].id] = entry->logits[j].logit;
        return;
    }
}
