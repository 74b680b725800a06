/*
 * Type and range checks of request fields.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include "field.h"
#include "respond.h"

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a decimal";
    case JSON_NULL:
        return "null";
    default:
        return "a boolean";
    }
}

int field_wrong_type(call *c, const char *name, const char *expected, const json_t *got)
{
    respond_error(c, 400, "invalid_type", name, "Invalid type for '%s': expected %s, but got %s instead.", name,
                  expected, type_name(got));
    return -1;
}

int field_get(call *c, const json_t *object, const char *name, json_type type, json_t **out)
{
    static const char *const expected[] = {"an object", "an array", "a string", "an integer", "a decimal", "a boolean"};
    json_t *v = json_object_get(object, name);
    *out = NULL;
    if (!v || json_is_null(v))
        return 0;
    json_type got = json_typeof(v);
    if (got != type && !(type == JSON_TRUE && got == JSON_FALSE))
        return field_wrong_type(c, name, expected[type], v);
    *out = v;
    return 0;
}

static int out_of_range(call *c, const field *f, double value)
{
    const char *kind = f->type == FIELD_INT ? "integer" : "decimal";
    int below = value < f->min;
    respond_error(c, 400,
                  f->type == FIELD_INT ? (below ? "integer_below_min_value" : "integer_above_max_value")
                                       : (below ? "decimal_below_min_value" : "decimal_above_max_value"),
                  f->name, "Invalid '%s': %s %s value. Expected a value %s %.12g, but got %.12g instead.", f->name,
                  kind, below ? "below minimum" : "above maximum", below ? ">=" : "<=", below ? f->min : f->max, value);
    return -1;
}

int fields_read(call *c, const json_t *object, const field *table, size_t n, void *target)
{
    for (size_t i = 0; i < n; i++) {
        const field *f = &table[i];
        const json_t *v = json_object_get(object, f->name);
        void *to = (char *)target + f->offset;
        if (!v || json_is_null(v))
            continue;
        switch (f->type) {
        case FIELD_BOOL:
            if (!json_is_boolean(v))
                return field_wrong_type(c, f->name, "a boolean", v);
            *(int *)to = json_is_true(v);
            break;
        case FIELD_INT:
            if (!json_is_integer(v))
                return field_wrong_type(c, f->name, "an integer", v);
            if ((double)json_integer_value(v) < f->min || (double)json_integer_value(v) > f->max)
                return out_of_range(c, f, (double)json_integer_value(v));
            *(int64_t *)to = json_integer_value(v);
            break;
        case FIELD_NUMBER:
            if (!json_is_number(v))
                return field_wrong_type(c, f->name, "a decimal", v);
            if (!(json_number_value(v) >= f->min && json_number_value(v) <= f->max))
                return out_of_range(c, f, json_number_value(v));
            *(double *)to = json_number_value(v);
            break;
        }
    }
    return 0;
}
