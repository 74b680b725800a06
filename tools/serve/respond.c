/*
 * Replies and errors as JSON. Sends nothing.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdarg.h>
#include <string.h>

#include "respond.h"

void respond_json(call *c, unsigned status, json_t *body)
{
    c->reply.n = 0;
    c->content_type = "application/json";
    c->status = status;
    if (!body || json_dump_callback(body, sbuf_json, &c->reply, JSON_COMPACT | JSON_REAL_PRECISION(9)) < 0 ||
        c->reply.failed) {
        static const char text[] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                                   "\"code\":null}}";
        sbuf_free(&c->reply);
        sbuf_puts(&c->reply, text);
        c->status = 500;
    }
    json_decref(body);
}

const char *respond_type(unsigned http_status)
{
    switch (http_status) {
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    case 500:
        return "server_error";
    case 501:
        return "not_supported_error";
    case 503:
        return "unavailable_error";
    default:
        return "invalid_request_error";
    }
}

json_t *respond_error_object(const char *type, const char *code, const char *param, const char *message)
{
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", utf8_json(message), "type", type, "param", param,
                     "code", code);
}

void respond_error(call *c, unsigned status, const char *code, const char *param, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    respond_json(c, status, respond_error_object(respond_type(status), code, param, text));
}

unsigned respond_http_status(infer_status s)
{
    switch (s) {
    case INFER_E_INVALID:
    case INFER_E_TOO_LARGE:
        return 400;
    case INFER_E_NOT_FOUND:
        return 404;
    case INFER_E_UNSUPPORTED:
        return 501;
    case INFER_E_BUSY:
        return 429;
    case INFER_E_CANCELLED:
        return 503;
    default:
        return 500;
    }
}

void respond_status(call *c, const infer_error *err, const char *param)
{
    unsigned status = respond_http_status(err->status);
    const char *code = err->status == INFER_E_BUSY ? "queue_full" : NULL;
    if (status == 429)
        c->retry_after = 1;
    respond_error(c, status, code, status == 400 ? param : NULL, "%s", err->text);
}

json_t *respond_parse(call *c)
{
    json_error_t e;
    json_t *body = json_loadb(c->body.p ? c->body.p : "", c->body.n, JSON_ALLOW_NUL, &e);
    if (!body) {
        if (json_error_code(&e) == json_error_out_of_memory)
            respond_error(c, 500, NULL, NULL, "out of memory");
        else
            respond_error(c, 400, "invalid_json", NULL, "The body of the request is no JSON: line %d, column %d: %s",
                          e.line, e.column, e.text);
        return NULL;
    }
    if (!json_is_object(body)) {
        respond_error(c, 400, "invalid_json", NULL, "The body of the request must be a JSON object.");
        json_decref(body);
        return NULL;
    }
    return body;
}
