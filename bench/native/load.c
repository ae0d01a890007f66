/* The load: many connections to one gateway, every answer checked, one line of JSON at the end.
 *
 * Four modes:
 *
 *     requests   N connections, each sends its next request when the last is answered whole
 *     streams    N streams, each starts again when it ends; starts are spread over --stagger milliseconds
 *     hold       N streams opened a few at a time, then left open until standard input ends
 *     idle       N connections that had one answer each, then left open until standard input ends
 *
 * `hold` and `idle` print {"ready": N} when all are there: whoever started this then looks at the gateway's
 * memory.  The bytes of the request come from a file, so that nothing here knows what an API looks like, apart
 * from three marks in the answers: "chatcmpl-" and 16 digits (when the upstream sent it), "content" (not empty)
 * and [DONE].
 *
 * `requests` and `streams` count over a window of --seconds that begins after --warmup.  At both its ends the
 * processor time of the processes in --pids is read, here and not in the harness, so that both ends fall between
 * two requests.  What is in flight when the window closes is finished, and checked, but not counted.
 *
 * Errors, by kind, are counted from the first request to the last.  An answer of the wrong length is an error,
 * and so is a stream without [DONE].  After MAX_ERRORS the run ends: a gateway that fails at once would spin.
 */
#include "common.h"
#include "histogram.h"
#include "response.h"

#include <poll.h>
#include <sys/stat.h>

enum {
    EPOLL_BATCH = 256,
    MAX_PIDS = 256,
    MAX_ERRORS = 100,
    OPENING_AT_ONCE = 16, /* hold and idle: a burst would measure the burst's buffers */
    DRAIN_S = 5,
    STAMP_DIGITS = 16,
};

enum mode { REQUESTS, STREAMS, HOLD, IDLE };
static const char *const MODE_NAMES[] = {"requests", "streams", "hold", "idle"};

enum fault { CONNECT, RESET, CLOSED_EARLY, STATUS, FRAMING, LENGTH, NO_DONE, EVENTS, TIMEOUT, FAULTS };
static const char *const FAULT_NAMES[] = {"connect",  "reset",   "closed_early", "status", "framing",
                                          "length",   "no_done", "events",       "timeout"};

enum place { UNOPENED, CONNECTING, WAITING, RESTING };

struct client {
    enum place place;
    int fd;
    size_t sent;
    uint64_t opens_ns;   /* not before then */
    uint64_t started_ns; /* when this request was first handed to the kernel */
    uint64_t heard_ns;   /* when the last bytes came */
    uint64_t read_ns;    /* when the bytes being looked at came */
    uint64_t last_stamp_ns;
    uint32_t events;
    bool done_seen, content_seen, was_ready;
    uint32_t line_size;
    char line[1024]; /* the beginning of an event's line that a read has cut */
    struct response response;
};

static struct {
    enum mode mode;
    struct address address;
    char *request;
    size_t request_size;
    uint32_t count, expect_bytes, expect_events;
    uint64_t warmup_ns, window_ns, stagger_ns, timeout_ns;
    int pids[MAX_PIDS], pid_count;
} settings;

static int poller;
static struct client *clients;
static uint32_t ready_count, opening_count, next_to_open, in_flight;
static uint64_t begin_ns, window_start_ns, window_end_ns; /* 0 until reached */
static uint64_t cpu_start_ns, cpu_end_ns;
static bool stopping;

static uint64_t errors[FAULTS], error_count, completed, chunks, unstamped, reconnects, body_bytes;
static char first_error[512];
static struct histogram latency, first_content, transit;

/* ---- the window ---- */

/* Processor time of another process, all its threads, dead ones too: the clock id of man clock_getcpuclockid(3). */
static uint64_t cpu_ns(int pid)
{
    clockid_t id;
    struct timespec t;
    if (clock_getcpuclockid(pid, &id) || clock_gettime(id, &t))
        die(1, "process %d has ended: its processor time cannot be read", pid);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_of_all_ns(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < settings.pid_count; i++)
        sum += cpu_ns(settings.pids[i]);
    return sum;
}

static bool in_window(void)
{
    return window_start_ns && !window_end_ns;
}

static void move_window(uint64_t now)
{
    if (!window_start_ns && now - begin_ns >= settings.warmup_ns) {
        cpu_start_ns = cpu_of_all_ns();
        window_start_ns = now_ns();
    } else if (in_window() && now - window_start_ns >= settings.window_ns) {
        cpu_end_ns = cpu_of_all_ns();
        window_end_ns = now_ns();
        stopping = true;
    }
}

/* ---- one client ---- */

static void open_client(struct client *c);
static void start_request(struct client *c);

static void watch(struct client *c, int operation, uint32_t what)
{
    struct epoll_event event = {.events = what, .data.ptr = c};
    epoll_ctl(poller, operation, c->fd, &event);
}

static void close_client(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    if (c->place == CONNECTING || c->place == WAITING)
        in_flight--;
    c->fd = -1;
    c->place = UNOPENED;
}

__attribute__((format(printf, 3, 4))) static void fail(struct client *c, enum fault fault, const char *format, ...)
{
    if (!error_count) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first_error, sizeof first_error, format, arguments);
        va_end(arguments);
    }
    errors[fault]++;
    if (++error_count >= MAX_ERRORS)
        stopping = true;
    close_client(c);
    if (stopping)
        return;
    if (settings.mode == HOLD || settings.mode == IDLE)
        stopping = true; /* one that is missing makes the figure wrong */
    else
        c->opens_ns = now_ns() + 10 * NS_PER_MS;
}

static void become_ready(struct client *c)
{
    if (c->was_ready)
        return;
    c->was_ready = true;
    ready_count++;
    opening_count--;
}

/* ---- what an answer says ---- */

/* Reads the 16 digits the upstream wrote.  Returns 0 when these are not they. */
static uint64_t read_stamp(const char *digits, const char *end)
{
    uint64_t ns = 0;
    if (end - digits < STAMP_DIGITS)
        return 0;
    for (int i = 0; i < STAMP_DIGITS; i++) {
        char c = digits[i];
        if (c >= '0' && c <= '9')
            ns = ns << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            ns = ns << 4 | (uint64_t)(c - 'a' + 10);
        else
            return 0;
    }
    return ns;
}

static bool has_content(const char *line, size_t size)
{
    static const char key[] = "\"content\":";
    const char *end = line + size, *place = memmem(line, size, key, sizeof key - 1);
    if (!place)
        return false;
    place += sizeof key - 1;
    while (place < end && *place == ' ')
        place++;
    return place + 1 < end && place[0] == '"' && place[1] != '"';
}

static void on_content(struct client *c)
{
    c->content_seen = true;
    if (in_window() && c->started_ns >= window_start_ns)
        histogram_add(&first_content, c->read_ns - c->started_ns);
    if (settings.mode == HOLD)
        become_ready(c);
}

/* Counts an event as a chunk, unless the upstream sent it together with the one before: same stamp, same chunk. */
static void count_chunk(struct client *c, const char *line, size_t size)
{
    static const char mark[] = "chatcmpl-";
    const char *id = memmem(line, size, mark, sizeof mark - 1);
    uint64_t stamp = id ? read_stamp(id + sizeof mark - 1, line + size) : 0;
    if (!stamp || stamp > c->read_ns || c->read_ns - stamp > 3600 * NS_PER_S) {
        unstamped++;
        chunks++;
    } else if (stamp != c->last_stamp_ns) {
        histogram_add(&transit, c->read_ns - stamp);
        chunks++;
    }
    c->last_stamp_ns = stamp;
}

static void on_line(struct client *c, const char *line, size_t size)
{
    if (size < 6 || memcmp(line, "data:", 5) != 0)
        return;
    if (memmem(line, size, "[DONE]", 6)) {
        c->done_seen = true;
        return;
    }
    c->events++;
    if (!c->content_seen && has_content(line, size))
        on_content(c);
    if (in_window())
        count_chunk(c, line, size);
}

static void keep_line(struct client *c, const char *bytes, size_t size)
{
    size_t room = sizeof c->line - c->line_size;
    size_t taken = size < room ? size : room;
    memcpy(c->line + c->line_size, bytes, taken);
    c->line_size += (uint32_t)taken;
}

/* Cuts the decoded body of a stream into lines.  A body_sink. */
static void on_body(void *owner, const char *bytes, size_t size)
{
    struct client *c = owner;
    if (settings.mode != STREAMS && settings.mode != HOLD)
        return;
    const char *end = bytes + size, *newline;
    while ((newline = memchr(bytes, '\n', (size_t)(end - bytes)))) {
        if (c->line_size) {
            keep_line(c, bytes, (size_t)(newline - bytes));
            on_line(c, c->line, c->line_size);
            c->line_size = 0;
        } else {
            on_line(c, bytes, (size_t)(newline - bytes));
        }
        bytes = newline + 1;
    }
    keep_line(c, bytes, (size_t)(end - bytes));
}

/* Judges an answer that is complete.  Returns false after fail(). */
static bool is_right(struct client *c)
{
    const struct response *r = &c->response;
    if (r->status != 200)
        fail(c, STATUS, "the status was %d", r->status);
    else if (settings.mode == HOLD)
        fail(c, CLOSED_EARLY, "a stream ended that should have stayed open");
    else if (settings.mode == STREAMS && !c->done_seen)
        fail(c, NO_DONE, "a stream ended after %u events without [DONE]", c->events);
    else if (settings.mode == STREAMS && settings.expect_events && c->events != settings.expect_events)
        fail(c, EVENTS, "a stream had %u events instead of %u", c->events, settings.expect_events);
    else if (settings.mode != STREAMS && settings.expect_bytes && r->body_bytes != settings.expect_bytes)
        fail(c, LENGTH, "a body had %llu bytes instead of %u", (unsigned long long)r->body_bytes,
             settings.expect_bytes);
    else if (settings.mode != STREAMS && !r->body_bytes)
        fail(c, LENGTH, "a body was empty");
    else
        return true;
    return false;
}

static void on_complete(struct client *c)
{
    if (!is_right(c))
        return;
    if (in_window()) {
        completed++;
        body_bytes += c->response.body_bytes;
        if (settings.mode == REQUESTS)
            histogram_add(&latency, c->read_ns - c->started_ns);
    }
    if (settings.mode == IDLE) {
        if (!c->response.keep_alive) {
            fail(c, CLOSED_EARLY, "the gateway does not keep connections alive");
            return;
        }
        become_ready(c);
    }
    if (!c->response.keep_alive) {
        reconnects++;
        close_client(c);
        if (!stopping)
            open_client(c);
        return;
    }
    c->place = RESTING;
    in_flight--;
    if (!stopping && settings.mode != IDLE)
        start_request(c);
}

/* ---- sending and receiving ---- */

static void send_request(struct client *c)
{
    ssize_t sent = send(c->fd, settings.request + c->sent, settings.request_size - c->sent, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        fail(c, RESET, "the request could not be sent: %s", strerror(errno));
        return;
    }
    bool had_rest = c->sent > 0;
    c->sent += sent < 0 ? 0 : (size_t)sent;
    if (c->sent < settings.request_size)
        watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
    else if (had_rest || sent < 0)
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void start_request(struct client *c)
{
    response_start(&c->response);
    c->sent = c->line_size = c->events = 0;
    c->done_seen = c->content_seen = false;
    c->place = WAITING;
    in_flight++;
    c->started_ns = c->heard_ns = now_ns();
    send_request(c);
}

static void open_client(struct client *c)
{
    c->fd = socket(settings.address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die(1, "cannot open a socket: %s", strerror(errno));
    set_nodelay(c->fd);
    c->place = CONNECTING;
    c->opens_ns = 0;
    in_flight++;
    c->heard_ns = now_ns();
    int result = connect(c->fd, (struct sockaddr *)&settings.address.storage, settings.address.size);
    if (result && errno != EINPROGRESS)
        fail(c, CONNECT, "cannot connect: %s", strerror(errno));
    else
        watch(c, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static void on_connected(struct client *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        fail(c, CONNECT, "cannot connect: %s", strerror(error));
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    in_flight--; /* start_request() counts it again */
    start_request(c);
}

static void on_end(struct client *c, const char *how)
{
    if (c->place == RESTING && (stopping || settings.mode != IDLE)) {
        close_client(c);
        return;
    }
    if (c->place == WAITING && c->response.state == CLOSE_BODY && strcmp(how, "closed") == 0) {
        c->response.state = COMPLETE;
        c->response.keep_alive = false;
        on_complete(c);
        return;
    }
    fail(c, strcmp(how, "closed") == 0 ? CLOSED_EARLY : RESET, "the connection was %s before the answer was complete", how);
}

static void on_readable(struct client *c)
{
    static char buffer[256 * 1024];
    ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
    c->read_ns = now_ns();
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        on_end(c, got ? "reset" : "closed");
        return;
    }
    c->heard_ns = c->read_ns;
    if (c->place != WAITING) {
        fail(c, FRAMING, "bytes came that belong to no request");
        return;
    }
    ssize_t used = response_feed(&c->response, buffer, (size_t)got, on_body, c);
    if (used < 0)
        fail(c, FRAMING, "the answer is not HTTP/1.1: %.60s", c->response.line);
    else if (c->response.state == COMPLETE && used < got)
        fail(c, FRAMING, "bytes came after the end of an answer");
    else if (c->response.state == COMPLETE)
        on_complete(c);
}

static void on_event(struct epoll_event *event)
{
    struct client *c = event->data.ptr;
    if (c->place == CONNECTING) {
        on_connected(c);
        return;
    }
    if (c->place == WAITING && (event->events & EPOLLOUT) && c->sent < settings.request_size)
        send_request(c);
    if (c->fd >= 0 && (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        on_readable(c);
}

/* ---- the run ---- */

static bool holds(void)
{
    return settings.mode == HOLD || settings.mode == IDLE;
}

static void open_what_is_due(uint64_t now)
{
    if (stopping)
        return;
    if (holds()) {
        for (; next_to_open < settings.count && opening_count < OPENING_AT_ONCE && !stopping; next_to_open++) {
            opening_count++;
            open_client(&clients[next_to_open]);
        }
        return;
    }
    for (uint32_t i = 0; i < settings.count && !stopping; i++)
        if (clients[i].place == UNOPENED && clients[i].opens_ns <= now)
            open_client(&clients[i]);
}

static void end_silent_ones(uint64_t now)
{
    for (uint32_t i = 0; i < settings.count; i++) {
        struct client *c = &clients[i];
        if ((c->place == WAITING || c->place == CONNECTING) && c->heard_ns + settings.timeout_ns < now)
            fail(c, TIMEOUT, "no byte came for %llu seconds", (unsigned long long)(settings.timeout_ns / NS_PER_S));
    }
}

static bool input_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

static void turn(int timeout_ms)
{
    struct epoll_event batch[EPOLL_BATCH];
    int count = epoll_wait(poller, batch, EPOLL_BATCH, timeout_ms);
    for (int i = 0; i < count; i++)
        on_event(&batch[i]);
}

/* Opens, keeps, and after the window finishes what is in flight.  Ends in bounded time: see die(). */
static void run_window(void)
{
    uint64_t housekeeping_ns = 0, limit_ns = 0;
    while (!stopping || (in_flight && error_count < MAX_ERRORS && now_ns() < limit_ns)) {
        uint64_t now = now_ns();
        if (now >= housekeeping_ns) {
            housekeeping_ns = now + NS_PER_MS;
            open_what_is_due(now);
            move_window(now);
            end_silent_ones(now);
            if (stopping && !limit_ns)
                limit_ns = now + DRAIN_S * NS_PER_S;
        }
        turn(1);
    }
}

static void run_held(void)
{
    bool announced = false;
    while (!stopping && !input_ended()) {
        uint64_t now = now_ns();
        open_what_is_due(now);
        if (!announced)
            end_silent_ones(now);
        if (!announced && ready_count == settings.count) {
            announced = true;
            printf("{\"ready\": %u}\n", ready_count);
            fflush(stdout);
        }
        turn(announced ? 20 : 1);
    }
}

static void print_errors(void)
{
    printf("\"errors\": {");
    const char *comma = "";
    for (int i = 0; i < FAULTS; i++) {
        if (!errors[i])
            continue;
        printf("%s\"%s\": %llu", comma, FAULT_NAMES[i], (unsigned long long)errors[i]);
        comma = ", ";
    }
    printf("}, \"first_error\": \"");
    for (const char *p = first_error; *p; p++)
        putchar(*p == '"' || *p == '\\' || *p < ' ' ? '.' : *p);
    printf("\", ");
}

static void print_result(void)
{
    uint64_t span = window_end_ns > window_start_ns ? window_end_ns - window_start_ns : 0;
    printf("{\"mode\": \"%s\", \"count\": %u, \"ready\": %u, \"seconds\": %.6f, \"cpu_ns\": %llu, ",
           MODE_NAMES[settings.mode], settings.count, ready_count, (double)span / 1e9,
           (unsigned long long)(span ? cpu_end_ns - cpu_start_ns : 0));
    printf("\"completed\": %llu, \"chunks\": %llu, \"unstamped\": %llu, \"reconnects\": %llu, \"body_bytes\": %llu, ",
           (unsigned long long)completed, (unsigned long long)chunks, (unsigned long long)unstamped,
           (unsigned long long)reconnects, (unsigned long long)body_bytes);
    printf("\"unfinished\": %u, ", holds() ? 0 : in_flight);
    print_errors();
    histogram_print(&latency, "latency_us");
    printf(", ");
    histogram_print(&first_content, "first_content_us");
    printf(", ");
    histogram_print(&transit, "transit_us");
    printf("}\n");
    fflush(stdout);
}

/* ---- options ---- */

static void read_request(const char *path)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &facts) || facts.st_size == 0)
        die(2, "cannot read the request from '%s'", path);
    settings.request = must_alloc((size_t)facts.st_size);
    settings.request_size = (size_t)facts.st_size;
    if (read(fd, settings.request, settings.request_size) != facts.st_size)
        die(2, "cannot read the request from '%s'", path);
    close(fd);
}

static enum mode read_mode(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(MODE_NAMES[i], name) == 0)
            return (enum mode)i;
    die(2, "--mode is '%s': requests, streams, hold or idle", name);
}

static void read_pids(const char *list)
{
    while (*list && settings.pid_count < MAX_PIDS) {
        settings.pids[settings.pid_count++] = atoi(list);
        list += strcspn(list, ",");
        list += *list == ',';
    }
}

static void read_options(int argc, char **argv)
{
    settings.mode = read_mode(option(argc, argv, "mode", "requests"));
    settings.address = parse_address(option(argc, argv, "connect", ""));
    settings.count = (uint32_t)number_option(argc, argv, "count", 1);
    settings.expect_bytes = (uint32_t)number_option(argc, argv, "expect-bytes", 0);
    settings.expect_events = (uint32_t)number_option(argc, argv, "expect-events", 0);
    settings.warmup_ns = (uint64_t)(number_option(argc, argv, "warmup", 0.5) * 1e9);
    settings.window_ns = (uint64_t)(number_option(argc, argv, "seconds", 2) * 1e9);
    settings.stagger_ns = (uint64_t)(number_option(argc, argv, "stagger", 0) * 1e6);
    settings.timeout_ns = (uint64_t)(number_option(argc, argv, "timeout", 10) * 1e9);
    read_pids(option(argc, argv, "pids", ""));
    read_request(option(argc, argv, "request", ""));
    if (!settings.count)
        die(2, "--count is 0: give at least 1");
}

static void make_clients(void)
{
    clients = must_alloc(settings.count * sizeof *clients);
    begin_ns = now_ns();
    for (uint32_t i = 0; i < settings.count; i++) {
        clients[i].fd = -1;
        clients[i].opens_ns = begin_ns + settings.stagger_ns * i / settings.count;
    }
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    poller = epoll_create1(EPOLL_CLOEXEC);
    make_clients();
    if (holds())
        run_held();
    else
        run_window();
    print_result();
    return 0;
}
