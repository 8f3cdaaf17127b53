/* json.h: JSON text to values, for this room's parsers of bodies and of JSON inside strings. */
#ifndef GERYON_PROTO_JSON_H
#define GERYON_PROTO_JSON_H

#include "proto/proto.h"

enum {
    JSON_DEPTH_MAX = 64,       /* arrays and objects inside each other */
    JSON_VALUES_MAX = 1000000, /* in one request, strings that hold JSON included */
};

/* As proto_parse_json, but `values_left` bounds the number of values and is lowered by those found,
 * so that several texts of one request share one bound. */
int json_parse_counted(const char *text, size_t len, size_t *values_left, struct arena *arena,
                       struct value *out, struct api_error *err);

#endif
