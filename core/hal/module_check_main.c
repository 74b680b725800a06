/*
 * infer-check-module VERSION MODULE: loads and probes one module and says before each step which one it is
 * (module_check.h). Started by the library only; what it prints is for the library. Opens no device.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "hal/hal.h"
#include "hal/module_check.h"

static void say(void *user, const char *step)
{
    char line[32] = {HAL_MODULE_MARK};
    (void)user;
    strncat(line, step, sizeof line - 3);
    strcat(line, "\n");
    if (write(1, line, strlen(line)) < 0)
        _exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 3 || strcmp(argv[1], INFER_VERSION_STRING))
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    for (int fd = 3; fd < 1024; fd++) /* what the caller has open is none of a module's business */
        close(fd);
    infer_hal_options opt = {
        .backend_path = "", .allow = "", .deny = "ref", .module_check = INFER_MODULE_CHECK_NEVER, .on_step = say};
    infer_hal *h = NULL;
    infer_error e = {0};
    if (infer_hal_create(&opt, &h, &e))
        return 2;
    if (!infer_hal_load(h, argv[2], &e))
        infer_hal_probe(h, &e);
    say(NULL, "end");
    infer_hal_destroy(h);
    say(NULL, "back");
    _exit(0); /* what the module's libraries do at the end of a process is not asked */
}
