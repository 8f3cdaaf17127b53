/* Arguments of calls, and the global functions. */
#include <stdio.h>
#include <string.h>

#include "engine/chat/chat_internal.h"

bool chat_bind(struct interp *in, const char *what, const struct args *args,
               const char *const *params, uint32_t n_params, uint32_t n_required, struct val *out) {
    for (uint32_t i = 0; i < n_params; i++)
        out[i].kind = VAL_MISSING;
    if (args->n_pos > n_params)
        return chat_fail(in, "%s takes at most %u arguments, not %u", what, n_params, args->n_pos);
    for (uint32_t i = 0; i < args->n_pos; i++)
        out[i] = args->pos[i];
    for (uint32_t k = 0; k < args->n_kw; k++) {
        const struct str *name = args->kw[k].name;
        uint32_t i = 0;
        while (i < n_params && !chat_str_is(name, params[i]))
            i++;
        int shown = (int)(name->len < 40 ? name->len : 40);
        if (i == n_params)
            return chat_fail(in, "%s takes no argument '%.*s'", what, shown, name->text);
        if (out[i].kind != VAL_MISSING)
            return chat_fail(in, "%s got '%.*s' twice", what, shown, name->text);
        out[i] = args->kw[k].val;
    }
    for (uint32_t i = 0; i < n_required; i++)
        if (out[i].kind == VAL_MISSING)
            return chat_fail(in, "%s needs the argument '%s'", what, params[i]);
    return true;
}

bool chat_want_int(struct interp *in, const char *what, struct val v, int64_t *out) {
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (!val_is_int(v))
        return chat_fail(in, "%s needs an integer, not %s", what, chat_type_name(v));
    *out = val_as_int(v);
    return true;
}

bool chat_want_str(struct interp *in, const char *what, struct val v, const struct str **out) {
    if (v.kind == VAL_UNDEFINED) return chat_fail_undefined(in, v);
    if (v.kind != VAL_STR)
        return chat_fail(in, "%s needs a string, not %s", what, chat_type_name(v));
    *out = v.s;
    return true;
}

/* ---- globals ----------------------------------------------------------------------------------- */

static bool global_raise(struct interp *in, const struct args *args, struct val *out) {
    static const char *const params[] = {"message"};
    struct val v;
    (void)out;
    if (!chat_bind(in, "raise_exception", args, params, 1, 1, &v)) return false;
    if (!chat_to_str(in, v, &v)) return false;
    in->raised = !in->failed;
    int len = v.s->len < sizeof in->err.msg ? (int)v.s->len : (int)sizeof in->err.msg;
    return chat_fail(in, "%.*s", len, v.s->text);
}

static bool global_range(struct interp *in, const struct args *args, struct val *out) {
    int64_t v[3] = {0, 0, 1};
    if (args->n_kw || args->n_pos < 1 || args->n_pos > 3)
        return chat_fail(in, "range takes 1 to 3 integers");
    for (uint32_t i = 0; i < args->n_pos; i++)
        if (!chat_want_int(in, "range", args->pos[i], &v[i])) return false;
    if (args->n_pos == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0) return chat_fail(in, "range needs a step that is not 0");
    uint64_t span = 0, step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    if (v[2] > 0 && v[1] > v[0]) span = (uint64_t)v[1] - (uint64_t)v[0];
    if (v[2] < 0 && v[1] < v[0]) span = (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t n = span ? (span - 1) / step + 1 : 0;
    if (n > CHAT_RANGE_MAX)
        return chat_fail(in, "range of %llu items, at most %d are allowed", (unsigned long long)n,
                         CHAT_RANGE_MAX);
    struct range *range = chat_alloc(in, sizeof *range);
    if (!range) return false;
    *range = (struct range){v[0], v[1], v[2], (uint32_t)n};
    *out = (struct val){.kind = VAL_RANGE, .range = range};
    return true;
}

/* The pairs of what dict() and namespace() get first: a dict, or a list of pairs. */
static bool pairs_of(struct interp *in, struct val v, struct val **keys, struct val **vals,
                     uint32_t *n, uint32_t extra) {
    struct val all;
    const struct dict *dict = v.kind == VAL_DICT ? v.dict : NULL;
    if (!dict && !chat_collect(in, v, &all)) return false;
    *n = dict ? dict->n : all.list->n;
    *keys = chat_alloc_array(in, (size_t)*n + extra, sizeof **keys);
    *vals = *keys ? chat_alloc_array(in, (size_t)*n + extra, sizeof **vals) : NULL;
    if (!*vals) return false;
    for (uint32_t i = 0; i < *n; i++) {
        struct val pair;
        if (dict) {
            (*keys)[i] = dict->keys[i];
            (*vals)[i] = dict->vals[i];
            continue;
        }
        if (!chat_collect(in, all.list->items[i], &pair)) return false;
        if (pair.list->n != 2) return chat_fail(in, "dict needs pairs");
        (*keys)[i] = pair.list->items[0];
        (*vals)[i] = pair.list->items[1];
    }
    return true;
}

static bool global_dict(struct interp *in, const struct args *args, struct val *out) {
    struct val *keys, *vals, none = val_undefined(NULL);
    uint32_t n;
    if (args->n_pos > 1) return chat_fail(in, "dict takes at most 1 positional argument");
    if (!pairs_of(in, args->n_pos ? args->pos[0] : none, &keys, &vals, &n, args->n_kw))
        return false;
    for (uint32_t i = 0; i < args->n_kw; i++, n++) {
        keys[n] = val_str(args->kw[i].name);
        vals[n] = args->kw[i].val;
    }
    return chat_make_dict(in, keys, vals, n, out);
}

static bool global_namespace(struct interp *in, const struct args *args, struct val *out) {
    struct val dict;
    if (!global_dict(in, args, &dict)) return false;
    struct namespace *ns = chat_alloc(in, sizeof *ns);
    if (!ns) return false;
    *ns = (struct namespace){.serial = ++in->serial};
    for (uint32_t i = 0; i < dict.dict->n; i++) {
        const struct str *name = NULL;
        if (!chat_want_str(in, "namespace", dict.dict->keys[i], &name)) return false;
        if (!chat_ns_set(in, ns, name, dict.dict->vals[i])) return false;
    }
    *out = (struct val){.kind = VAL_NAMESPACE, .ns = ns};
    return true;
}

static bool global_cycler(struct interp *in, const struct args *args, struct val *out) {
    if (args->n_kw || !args->n_pos) return chat_fail(in, "cycler needs at least one item");
    struct cycler *cycler = chat_alloc(in, sizeof *cycler);
    if (!cycler) return false;
    *cycler = (struct cycler){.items = args->pos, .n = args->n_pos};
    *out = (struct val){.kind = VAL_CYCLER, .cycler = cycler};
    return true;
}

static bool global_joiner(struct interp *in, const struct args *args, struct val *out) {
    static const char *const params[] = {"sep"};
    struct val sep;
    if (!chat_bind(in, "joiner", args, params, 1, 0, &sep)) return false;
    if (sep.kind == VAL_MISSING && !chat_make_text(in, ", ", 2, &sep)) return false;
    struct joiner *joiner = chat_alloc(in, sizeof *joiner);
    if (!joiner) return false;
    *joiner = (struct joiner){.sep = sep};
    *out = (struct val){.kind = VAL_JOINER, .joiner = joiner};
    return true;
}

/* ---- the clock --------------------------------------------------------------------------------- */

struct civil {
    int64_t year, yday;                         /* yday from 0 */
    int month, day, hour, minute, second, wday; /* month from 1, wday from Sunday 0 */
};

/* UTC: a template reads no environment, so no time zone either. Days are counted from 1 March 0000,
 * where leap days end a year. */
static struct civil civil_time(int64_t now) {
    int64_t days = now / 86400, rest = now % 86400;
    if (rest < 0) {
        rest += 86400;
        days--;
    }
    struct civil c = {.hour = (int)(rest / 3600), .minute = (int)(rest / 60 % 60)};
    c.second = (int)(rest % 60);
    c.wday = (int)(((days + 4) % 7 + 7) % 7);
    int64_t z = days + 719468, era = (z >= 0 ? z : z - 146096) / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    c.day = (int)(doy - (153 * mp + 2) / 5 + 1);
    c.month = (int)(mp < 10 ? mp + 3 : mp - 9);
    c.year = yoe + era * 400 + (c.month <= 2);
    bool leap = (c.year % 4 == 0 && c.year % 100 != 0) || c.year % 400 == 0;
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    c.yday = before[c.month - 1] + c.day - 1 + (leap && c.month > 2);
    return c;
}

/* One conversion of strftime; dash: without leading zeros. False for one we do not know. */
static bool put_time(struct buf *buf, const struct civil *c, char conversion, bool dash) {
    static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                       "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    const char *name = NULL;
    int64_t n = 0;
    int width = 2, hour12 = c->hour % 12 ? c->hour % 12 : 12;
    switch (conversion) {
    case 'Y':
        n = c->year;
        width = 4;
        break;
    case 'y':
        n = c->year % 100;
        break;
    case 'm':
        n = c->month;
        break;
    case 'd':
        n = c->day;
        break;
    case 'e':
        n = c->day;
        break;
    case 'H':
        n = c->hour;
        break;
    case 'I':
        n = hour12;
        break;
    case 'M':
        n = c->minute;
        break;
    case 'S':
        n = c->second;
        break;
    case 'f':
        n = 0;
        width = 6;
        break;
    case 'j':
        n = c->yday + 1;
        width = 3;
        break;
    case 'w':
        n = c->wday;
        width = 1;
        break;
    case 'u':
        n = c->wday ? c->wday : 7;
        width = 1;
        break;
    case 'p':
        name = c->hour < 12 ? "AM" : "PM";
        break;
    case 'Z':
        name = "UTC";
        break;
    case 'z':
        name = "+0000";
        break;
    case 'A':
    case 'a':
        name = days[c->wday];
        break;
    case 'B':
    case 'b':
    case 'h':
        name = months[c->month - 1];
        break;
    case 'n':
        name = "\n";
        break;
    case 't':
        name = "\t";
        break;
    case '%':
        name = "%";
        break;
    default:
        return false;
    }
    if (name) {
        bool brief = conversion == 'a' || conversion == 'b' || conversion == 'h';
        return chat_buf_add(buf, name, brief ? 3 : strlen(name), true);
    }
    char text[32];
    if (conversion == 'e' && !dash)
        snprintf(text, sizeof text, "%2lld", (long long)n);
    else
        snprintf(text, sizeof text, "%0*lld", dash ? 1 : width, (long long)n);
    return chat_buf_add(buf, text, strlen(text), true);
}

static bool put_format(struct buf *buf, const struct civil *c, const struct str *format) {
    for (uint32_t i = 0; i < format->len; i++) {
        bool trusted = chat_str_trusted_at(format, i);
        if (format->text[i] != '%') {
            if (!chat_buf_add(buf, format->text + i, 1, trusted)) return false;
            continue;
        }
        bool dash = i + 1 < format->len && format->text[i + 1] == '-';
        i += dash ? 2 : 1;
        char conversion = i < format->len ? format->text[i] : '\0';
        bool ok;
        if (conversion == 'F')
            ok = put_time(buf, c, 'Y', false) && chat_buf_add(buf, "-", 1, true) &&
                 put_time(buf, c, 'm', false) && chat_buf_add(buf, "-", 1, true) &&
                 put_time(buf, c, 'd', false);
        else if (conversion == 'T')
            ok = put_time(buf, c, 'H', false) && chat_buf_add(buf, ":", 1, true) &&
                 put_time(buf, c, 'M', false) && chat_buf_add(buf, ":", 1, true) &&
                 put_time(buf, c, 'S', false);
        else
            ok = put_time(buf, c, conversion, dash);
        if (!ok) return chat_fail(buf->in, "strftime_now does not know '%%%c'", conversion);
    }
    return true;
}

static bool global_strftime(struct interp *in, const struct args *args, struct val *out) {
    static const char *const params[] = {"format"};
    struct val v;
    const struct str *format = NULL;
    if (!chat_bind(in, "strftime_now", args, params, 1, 1, &v)) return false;
    if (!chat_want_str(in, "strftime_now", v, &format)) return false;
    struct civil c = civil_time(in->now);
    struct buf buf;
    chat_buf_init(in, &buf);
    if (chat_charge(in, format->len / 8) && put_format(&buf, &c, format))
        return chat_buf_finish(&buf, out);
    chat_buf_drop(&buf);
    return false;
}

const struct global *chat_global_find(const struct str *name) {
    static const struct global globals[] = {
        {"range", global_range},           {"dict", global_dict},
        {"namespace", global_namespace},   {"raise_exception", global_raise},
        {"cycler", global_cycler},         {"joiner", global_joiner},
        {"strftime_now", global_strftime},
    };
    for (size_t i = 0; i < ARRAY_LEN(globals); i++)
        if (chat_str_is(name, globals[i].name)) return &globals[i];
    return NULL;
}
