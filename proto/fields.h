/* fields.h: the fields of the two generation routes. fields.c holds the one table that names each with
 * its type, range, routes and standing; the checks that the table alone can make are here, what needs
 * more (prompt, messages, stop, ...) is in request.c, bias.c, prompt.c and messages.c. */
#ifndef GERYON_PROTO_FIELDS_H
#define GERYON_PROTO_FIELDS_H

#include "proto/chars.h"
#include "proto/proto.h"

/* JSON types a field may have, as a set. */
enum field_type {
    TYPE_BOOL = 1,
    TYPE_INT = 2, /* a whole real too */
    TYPE_NUMBER = 4,
    TYPE_STRING = 8,
    TYPE_ARRAY = 16,
    TYPE_OBJECT = 32,
    TYPE_ANY = 63,
};

enum { FIELDS_CAP = 80 }; /* above the rows of the table */

/* The fields a body gave, by row of the table: NULL where absent or null. */
struct fields {
    enum route_kind kind;
    struct value *given[FIELDS_CAP];
};

/* Sort the body's members into the table's rows; unknown ones are left out. */
void fields_collect(enum route_kind kind, struct value *body, struct fields *out);

/* Under --strict-params: unknown_parameter for the first member that the table does not know. */
int fields_check_names(enum route_kind kind, const struct value *body, struct api_error *err);

/* Note the members that the table does not know in request->ignored. ERR_NOMEM. */
int fields_note_ignored(const struct value *body, struct api_request *request);

/* In the table's order: the type of every field; then every range, and of every field that is not
 * there yet that it has its default. */
int fields_check_types(const struct fields *fields, struct api_error *err);
int fields_check_values(const struct fields *fields, const struct proto_limits *limits,
                        struct api_error *err);

/* Put the plain fields (those the table gives a place) into request, which holds the defaults. */
void fields_store(const struct fields *fields, struct api_request *request);

/* A field of this route by name, NULL when absent or null; no such row asserts. */
struct value *fields_get(const struct fields *fields, const char *name);

/* A member of an object, NULL when absent or null, or when the value is no object. */
struct value *fields_member(struct value *object, const char *name);

/* ERR_INVALID with invalid_type at the path made from path_fmt, unless v has one of the types. */
int fields_want(const struct value *v, unsigned types, struct api_error *err, const char *path_fmt,
                ...) __attribute__((format(printf, 4, 5)));

/* What a client sent, for a message: a number itself, of all else the type only (it may be prompt
 * text). May use out. */
const char *fields_describe(const struct value *v, char out[CHARS_NUMBER_CAP]);

/* An integer, whole reals included. False when v is none or does not fit 64 bits. */
bool fields_int(const struct value *v, int64_t *out);

/* The value of a number. */
double fields_number(const struct value *v);

bool fields_equal(const struct value *string, const char *text);

#endif
