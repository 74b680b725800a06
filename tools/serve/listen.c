/*
 * Sockets to listen on.
 * SPDX-License-Identifier: Apache-2.0
 */
#include "config.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "listen.h"

int listen_unix(const char *path, char **kept, infer_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (strlen(path) >= sizeof a.sun_path) {
        infer_error_set(err, INFER_E_IO, "listen on %s: the name is too long for a socket", path);
        return -1;
    }
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* A socket that nobody listens on is left over: take its place. */
    if (fd >= 0 && !lstat(path, &st) && S_ISSOCK(st.st_mode)) {
        if (connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno == ECONNREFUSED)
            unlink(path);
        close(fd);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, 1024) < 0) {
        infer_error_set(err, INFER_E_IO, "listen on %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *kept = strdup(path);
    return fd;
}

int listen_tcp(const char *host, unsigned port, unsigned *used_port, infer_error *err)
{
    char service[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    int why = getaddrinfo(host, service, &hints, &list), fd = -1, cause = 0, on = 1;
    if (why) {
        infer_error_set(err, INFER_E_IO, "listen on %s: %s", host, gai_strerror(why));
        return -1;
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
        if (fd < 0) {
            cause = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, 1024) < 0) {
            cause = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        infer_error_set(err, INFER_E_IO, "listen on %s port %u: %s", host, port, strerror(cause));
        return -1;
    }
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    *used_port = port;
    if (!getsockname(fd, (struct sockaddr *)&a, &n))
        *used_port = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                                   : ((struct sockaddr_in *)&a)->sin_port);
    return fd;
}
