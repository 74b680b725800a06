/*
 * API keys: reading and comparing. Knows no routes.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "auth.h"
#include "sbuf.h"

static infer_status add_key(auth *a, const char *key, size_t n, infer_error *err)
{
    char **keys = realloc(a->keys, (a->n + 1) * sizeof *keys);
    if (keys)
        a->keys = keys;
    if (!keys || !(keys[a->n] = strndup(key, n)))
        return infer_error_set(err, INFER_E_NO_MEMORY, "reading keys: out of memory");
    a->n++;
    return INFER_OK;
}

infer_status auth_read(auth *a, const opts *o, infer_error *err)
{
    const opt_value *list = &o->v[OPT_API_KEY];
    const char *path = opt_str(o, OPT_API_KEY_FILE);
    sbuf text = {0};
    memset(a, 0, sizeof *a);
    infer_status st = INFER_OK;
    for (size_t i = 0; i < list->n && st >= 0; i++)
        st = *list->list[i] ? add_key(a, list->list[i], strlen(list->list[i]), err)
                            : infer_error_set(err, INFER_E_INVALID, "--api-key: is empty");
    if (st < 0 || !path)
        goto done;
    if ((st = sbuf_read_file(&text, path, err)) < 0)
        goto done;
    size_t before = a->n;
    for (char *p = text.p; p && *p && st >= 0;) {
        size_t line = strcspn(p, "\n"), n = line;
        while (n && strchr(" \t\r", p[n - 1]))
            n--;
        size_t skip = strspn(p, " \t");
        if (skip < n && p[skip] != '#')
            st = add_key(a, p + skip, n - skip, err);
        p += line + (p[line] == '\n');
    }
    if (st >= 0 && a->n == before)
        st = infer_error_set(err, INFER_E_INVALID, "--api-key-file %s: holds no key", path);
done:
    sbuf_free(&text);
    if (st < 0)
        auth_free(a);
    return st;
}

void auth_free(auth *a)
{
    for (size_t i = 0; i < a->n; i++)
        free(a->keys[i]);
    free(a->keys);
    memset(a, 0, sizeof *a);
}

/* Compares without leaving early; only the given key's own length shows. */
static unsigned same(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned differ = n != m;
    for (size_t i = 0; i < m; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0];
    return differ == 0;
}

int auth_allows(const auth *a, const char *authorization, const char *x_api_key)
{
    if (!a->n)
        return 1;
    const char *given[2] = {NULL, x_api_key};
    if (authorization && !strncasecmp(authorization, "Bearer ", 7))
        given[0] = authorization + 7 + strspn(authorization + 7, " ");
    unsigned ok = 0;
    for (size_t g = 0; g < 2; g++)
        for (size_t i = 0; given[g] && i < a->n; i++)
            ok |= same(a->keys[i], given[g]);
    return ok != 0;
}
