/*
 * Modules that harm the process that loads them: crash, end it, hang, print. Which harm is in the file's name, so that
 * one build serves for all: infer-HARM_STEP.so, HARM one of crash, exit, hang, talk and STEP one of load, query, start,
 * probe. Under any other name it is the least backend, without a device.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define infer_plugin_query infer_tiny_query
#include "unit/tiny_plugin.c"
#undef infer_plugin_query

static char name[64];

static void harm(const char *step)
{
    const char *at = strchr(name, '_');
    if (!at || strcmp(at + 1, step))
        return;
    if (!strncmp(name, "crash_", 6)) {
        fprintf(stderr, "about to fail\n");
        raise(SIGSEGV);
    } else if (!strncmp(name, "kill_", 5)) {
        raise(SIGKILL); /* as the kernel does when memory runs out */
    } else if (!strncmp(name, "exit_", 5)) {
        exit(3);
    } else if (!strncmp(name, "hang_", 5)) {
        signal(SIGTERM, SIG_IGN);
        if (!fork()) /* and leaves a process behind that holds what it inherited */
            for (;;)
                pause();
        for (;;)
            pause();
    } else if (!strncmp(name, "talk_", 5)) {
        for (int i = 0; i < 10000; i++)
            fprintf(stderr, "a line of no interest\n");
    }
}

__attribute__((constructor)) static void loaded(void)
{
    Dl_info info;
    if (!dladdr(name, &info) || !info.dli_fname)
        return;
    const char *base = strrchr(info.dli_fname, '/');
    base = base ? base + 1 : info.dli_fname;
    if (!strncmp(base, "infer-", 6))
        snprintf(name, sizeof name, "%.*s", (int)strcspn(base + 6, "."), base + 6);
    harm("load");
}

static infer_status start(const infer_host *host)
{
    (void)host;
    harm("start");
    return INFER_OK;
}

static void end(void)
{
}

static infer_status harm_probe(const infer_host *host, infer_device_info *out, uint32_t cap, uint32_t *n)
{
    harm("probe");
    return probe(host, out, cap, n);
}

INFER_PLUGIN_EXPORT const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range);
const infer_plugin_desc *infer_plugin_query(const infer_host *host, const infer_abi_range *range)
{
    static infer_backend_ops ops;
    static infer_plugin_desc desc;
    harm("query");
    const infer_plugin_desc *tiny = infer_tiny_query(host, range);
    if (!tiny)
        return NULL;
    ops = *tiny->ops;
    ops.probe = harm_probe;
    ops.backend_init = start;
    ops.backend_fini = end;
    desc = *tiny;
    desc.name = desc.device_prefix = name;
    desc.ops = &ops;
    return &desc;
}
