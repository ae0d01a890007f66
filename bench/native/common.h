/* What both native programs need: the clock, options, addresses, a message before leaving.
 *
 * Header-only, so that each program is one compiler command with no object files to track.
 * Nothing here is on a hot path but now_ns().
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull
#define NS_PER_S 1000000000ull

/* The machine's monotonic clock: the same for every process, so that one may subtract what another wrote. */
static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* Ends the program with one line on stderr.  `code` is the exit status. */
__attribute__((noreturn, format(printf, 2, 3))) static void die(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(code);
}

static inline void *must_alloc(size_t size)
{
    void *memory = calloc(1, size);
    if (!memory)
        die(1, "out of memory");
    return memory;
}

/* Returns the value of option `name` in "--name value" pairs, or `otherwise`. */
static inline const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i += 2)
        if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0)
            return argv[i + 1];
    return otherwise;
}

static inline double number_option(int argc, char **argv, const char *name, double otherwise)
{
    const char *text = option(argc, argv, name, NULL);
    if (!text)
        return otherwise;
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || value < 0)
        die(2, "--%s is '%s': give a number that is not negative", name, text);
    return value;
}

struct address {
    struct sockaddr_storage storage;
    socklen_t size;
    int family;
};

/* Reads "HOST:PORT" or "[HOST]:PORT". */
static inline struct address parse_address(const char *text)
{
    char host[256];
    const char *colon = strrchr(text, ':');
    size_t size = colon ? (size_t)(colon - text) : 0;
    if (!size || size >= sizeof host)
        die(2, "'%s' is not an address: write HOST:PORT", text);
    memcpy(host, text, size);
    host[size] = 0;
    char *name = host;
    if (host[0] == '[' && host[size - 1] == ']') {
        host[size - 1] = 0;
        name = host + 1;
    }

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(name, colon + 1, &hints, &found);
    if (error)
        die(2, "'%s' is not an address: %s", text, gai_strerror(error));
    struct address address = {.size = found->ai_addrlen, .family = found->ai_family};
    memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return address;
}

static inline void set_nodelay(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

#endif
