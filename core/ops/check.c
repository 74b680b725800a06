/* Validation of a descriptor: its frame, its operands against the table's signature, its epilogues; then the op's own
 * check (check_attrs.c). Looks at no data. SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "ops/ops.h"
#include "ops/ref.h"
#include "quant/quant.h"

/* What the letters of a signature stand for so far; 0: not seen. */
typedef struct bindings {
    int64_t size[128];
    int64_t more[4]; /* the axes of "..." */
    uint32_t n_more;
    int more_set;
} bindings;

/* One operand of a signature: name and axes are runs inside the string. */
typedef struct pattern {
    const char *name, *axes;
    int name_len;
    char kind;
    int optional;
} pattern;

/* Reads the operand at *s and steps past it; 0 at "->" or the end. */
static int next_pattern(const char **s, pattern *p)
{
    const char *c = *s;
    while (*c == ' ')
        c++;
    if (!*c || *c == '-')
        return 0;
    p->name = c;
    p->name_len = (int)strcspn(c, "[");
    p->axes = c + p->name_len + 1;
    c = strchr(p->axes, ']') + 2; /* past "]:" */
    p->kind = *c++;
    p->optional = *c == '?';
    *s = c + p->optional;
    return 1;
}

static int plain_float(infer_format f)
{
    return f == INFER_FMT_F32 || f == INFER_FMT_F16 || f == INFER_FMT_BF16;
}

static int kind_ok(char kind, const infer_tensor_desc *t)
{
    const infer_format_info *f = infer_format_get(t->format);
    switch (kind) {
    case 'f':
        return plain_float(t->format);
    case 'i':
        return t->format == INFER_FMT_I32;
    case 'u':
        return t->format == INFER_FMT_U32;
    case 'h':
        return t->format == INFER_FMT_U16;
    case 'b':
        return t->format == INFER_FMT_U8;
    case 'w':
        return t->quant.format || (f && f->unpack);
    case 'p':
        return plain_float(t->format) || t->format == INFER_FMT_F8_E4M3 || t->format == INFER_FMT_Q8_0 ||
               t->format == INFER_FMT_Q4_0;
    default:
        return f != NULL;
    }
}

/* Axes named by one alternative (up to '|' or ']'), and whether it has "...". */
static uint32_t count_axes(const char *a, int *more)
{
    uint32_t n = 0;
    *more = 0;
    for (; *a != '|' && *a != ']'; a++) {
        if (*a == '.')
            *more = 1;
        else
            n++;
    }
    return n;
}

static infer_status bind(int64_t *slot, int64_t size, const char *what, const pattern *p, uint32_t axis,
                         infer_error *err)
{
    if (*slot && *slot != size)
        return infer_error_set(err, INFER_E_INVALID, "%s: operand %.*s: axis %u is %" PRId64 " where %" PRId64 " fits",
                               what, p->name_len, p->name, axis, size, *slot);
    *slot = size;
    return INFER_OK;
}

static infer_status match_axes(const char *what, const pattern *p, const infer_tensor_desc *t, bindings *b,
                               infer_error *err)
{
    for (const char *a = p->axes;;) {
        int more;
        uint32_t named = count_axes(a, &more);
        uint32_t want = named + (more && b->more_set ? b->n_more : 0);
        if (more && !b->more_set ? t->rank >= named : t->rank == want) {
            uint32_t axis = 0;
            for (; *a != '|' && *a != ']'; a++) {
                if (*a != '.') {
                    INFER_TRY(bind(&b->size[(unsigned char)*a], t->shape[axis], what, p, axis, err));
                    axis++;
                    continue;
                }
                a += 2; /* the rest of "..." */
                if (!b->more_set) {
                    b->more_set = 1;
                    b->n_more = t->rank - named;
                }
                for (uint32_t i = 0; i < b->n_more; i++, axis++)
                    INFER_TRY(bind(&b->more[i], t->shape[axis], what, p, axis, err));
            }
            return INFER_OK;
        }
        a += strcspn(a, "|]");
        if (*a++ == ']')
            return infer_error_set(err, INFER_E_INVALID, "%s: operand %.*s: rank %u does not fit [%.*s]", what,
                                   p->name_len, p->name, t->rank, (int)strcspn(p->axes, "]"), p->axes);
    }
}

/* Format, layout and size of one operand, for which p has the name and class. */
static infer_status check_tensor(const char *what, const pattern *p, const infer_tensor_desc *t, infer_error *err)
{
    uint64_t bytes;
    if (t->layout != INFER_LAYOUT_CANONICAL)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: operand %.*s: layout %u is a device's own", what,
                               p->name_len, p->name, t->layout);
    if (t->quant.format && p->kind != 'w' && p->kind != 'a')
        return infer_error_set(err, INFER_E_INVALID, "%s: operand %.*s: side planes on what is no weight", what,
                               p->name_len, p->name);
    if (!kind_ok(p->kind, t)) {
        const infer_format_info *f = infer_format_get(t->format);
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: operand %.*s: format %s (%u) is not taken here", what,
                               p->name_len, p->name, f ? f->name : "?", t->format);
    }
    infer_status st = infer_tensor_bytes(t, &bytes);
    if (st != INFER_OK)
        return infer_error_set(err, st, "%s: operand %.*s: rank, shape, strides or groups do not make a tensor", what,
                               p->name_len, p->name);
    return INFER_OK;
}

static infer_status check_side(const infer_op_desc *op, const infer_op_info *info, const char **sig, int outputs,
                               bindings *b, infer_error *err)
{
    pattern p;
    for (uint32_t i = 0; next_pattern(sig, &p); i++) {
        const infer_tensor_desc *t = outputs ? infer_op_out(op, i) : infer_op_in(op, i);
        if (!t) {
            if (p.optional)
                continue;
            return infer_error_set(err, INFER_E_INVALID, "%s: operand %.*s is missing", info->name, p.name_len, p.name);
        }
        INFER_TRY(check_tensor(info->name, &p, t, err));
        INFER_TRY(match_axes(info->name, &p, t, b, err));
    }
    return INFER_OK;
}

static infer_status check_frame(const infer_op_desc *op, const infer_op_info *info, infer_error *err)
{
    if (op->revision || op->must_understand)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: revision %u with attribute bits %" PRIx64 " is unknown",
                               info->name, op->revision, op->must_understand);
    if (op->n_in > INFER_OP_MAX_OPERANDS || op->n_out > INFER_OP_MAX_OPERANDS ||
        op->n_in + op->n_out > INFER_OP_MAX_OPERANDS)
        return infer_error_set(err, INFER_E_TOO_LARGE, "%s: %u inputs and %u outputs, at most %u operands", info->name,
                               op->n_in, op->n_out, INFER_OP_MAX_OPERANDS);
    if (op->n_in < info->n_in_min || op->n_out < info->n_out_min || op->n_out > info->n_out_max ||
        (op->n_in > info->n_in_max && !op->n_epilogue))
        return infer_error_set(err, INFER_E_INVALID, "%s: %u inputs and %u outputs, not %u..%u and %u..%u", info->name,
                               op->n_in, op->n_out, info->n_in_min, info->n_in_max, info->n_out_min, info->n_out_max);
    if (!op->tensors || op->tensor_size < sizeof(infer_tensor_desc) || op->tensor_size % 8)
        return infer_error_set(err, INFER_E_INVALID,
                               "%s: tensor elements of %u bytes, at least %zu and a multiple of 8", info->name,
                               op->tensor_size, sizeof(infer_tensor_desc));
    if (op->rows_from != INFER_ROWS_STATIC && (op->rows_from >= INFER_COUNT_MAX || !op->rows_mul))
        return infer_error_set(err, INFER_E_INVALID, "%s: rows from count %u times %u", info->name, op->rows_from,
                               op->rows_mul);
    uint32_t size = 0;
    if (op->attrs && op->attrs_size >= sizeof size)
        memcpy(&size, op->attrs, sizeof size);
    if (op->attrs ? op->attrs_size < sizeof size || size < sizeof size || size > op->attrs_size : op->attrs_size != 0)
        return infer_error_set(err, INFER_E_INVALID, "%s: attributes of %u bytes say that they have %u", info->name,
                               op->attrs_size, size);
    return INFER_OK;
}

/* The list against the first output; inputs past the op's own must each serve a step. */
static infer_status check_epilogue(const infer_op_desc *op, const infer_op_info *info, infer_error *err)
{
    uint32_t used = 0;
    const infer_tensor_desc *y = infer_op_out(op, 0);
    if (!op->n_epilogue)
        return INFER_OK;
    if (!info->takes_epilogue)
        return infer_error_set(err, INFER_E_INVALID, "%s takes no epilogue", info->name);
    if (!op->epilogue || op->epilogue_size < sizeof(infer_epilogue) || op->epilogue_size % 4 || op->n_epilogue > 64)
        return infer_error_set(err, INFER_E_INVALID, "%s: %u epilogue steps of %u bytes", info->name, op->n_epilogue,
                               op->epilogue_size);
    for (uint32_t i = 0; i < op->n_epilogue; i++) {
        const infer_epilogue *e =
            (const infer_epilogue *)(const void *)((const uint8_t *)op->epilogue + (size_t)i * op->epilogue_size);
        const pattern p = {.name = "of an epilogue", .name_len = 14, .kind = 'f'};
        const infer_tensor_desc *t = NULL;
        int fits = 1;
        switch (e->kind) {
        case INFER_EPI_BIAS:
        case INFER_EPI_RESIDUAL:
        case INFER_EPI_MUL:
            t = infer_op_in(op, e->operand);
            if (!t)
                return infer_error_set(err, INFER_E_INVALID, "%s: epilogue %u: input %u is missing", info->name, i,
                                       e->operand);
            INFER_TRY(check_tensor(info->name, &p, t, err));
            if (e->kind == INFER_EPI_BIAS)
                fits = t->rank == 1 && t->shape[0] == y->shape[y->rank - 1];
            else
                fits = t->rank == y->rank && !memcmp(t->shape, y->shape, sizeof t->shape);
            used |= 1u << e->operand;
            break;
        case INFER_EPI_ACT:
            fits = e->arg <= INFER_ACT_SIGMOID;
            break;
        case INFER_EPI_SCALE:
            fits = isfinite(e->factor);
            break;
        case INFER_EPI_CONVERT:
            fits = i + 1 == op->n_epilogue && e->arg == y->format;
            break;
        default:
            return infer_error_set(err, INFER_E_UNSUPPORTED, "%s: epilogue %u: kind %u is unknown", info->name, i,
                                   e->kind);
        }
        if (!fits)
            return infer_error_set(err, INFER_E_INVALID, "%s: epilogue %u of kind %u does not fit the output",
                                   info->name, i, e->kind);
    }
    for (uint32_t i = info->n_in_max; i < op->n_in; i++)
        if (!(used >> i & 1))
            return infer_error_set(err, INFER_E_INVALID, "%s: input %u serves nothing", info->name, i);
    return INFER_OK;
}

infer_status infer_op_check(const infer_op_desc *op, infer_error *err)
{
    if (!op || op->struct_size < sizeof(infer_op_desc))
        return infer_error_set(err, INFER_E_INVALID, "op descriptor of %u bytes, at least %zu",
                               op ? op->struct_size : 0, sizeof(infer_op_desc));
    const infer_op_info *info = infer_op_get(op->op);
    if (!info)
        return infer_error_set(err, INFER_E_UNSUPPORTED, "op %u is unknown", op->op);
    INFER_TRY(check_frame(op, info, err));
    bindings b = {0};
    const char *sig = info->sig;
    INFER_TRY(check_side(op, info, &sig, 0, &b, err));
    sig = strstr(sig, "->") + 2;
    INFER_TRY(check_side(op, info, &sig, 1, &b, err));
    if (info->check)
        INFER_TRY(info->check(op, err));
    return check_epilogue(op, info, err);
}
