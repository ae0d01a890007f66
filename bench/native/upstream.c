/* A stand-in for an inference server, fast enough to sit behind nginx at full speed.
 *
 * One thread, one epoll.  It answers GET /v1/models and every POST: with a chat completion of 592 bytes, or, when
 * the body says "stream":true, with server-sent events at fixed gaps.  The body also says how many
 * ("max_tokens", 64 otherwise) and how far apart ("bench_gap_ms", 10 otherwise), since every gateway passes a
 * body on unchanged, which is not so for headers and query strings.
 *
 * What one stream looks like, each line one send():
 *
 *     at once        head, the role-only event, the first content event
 *     every gap      a content event
 *     the last       the event with a finish_reason, [DONE], the closing chunk
 *
 * The first content comes with the role, as engines send it, because a gateway may hold a preamble back until
 * there is content to commit to, and that must not be read as latency.  Every event carries in its "id" the
 * monotonic time at which it was handed to the kernel, 16 hexadecimal digits of nanoseconds, so that the client
 * can tell how long it travelled.  Schedules are absolute: a late event does not delay those after it.
 */
#include "common.h"

#include <strings.h>
#include <sys/timerfd.h>

enum {
    MAX_HEAD = 64 * 1024,
    MAX_BODY = 4 * 1024 * 1024,
    FIRST_BUFFER = 4096,
    EPOLL_BATCH = 256,
    STAMP_DIGITS = 16,
    ANSWER_BYTES = 592,
};

struct connection {
    int fd;
    char *in; /* bytes of requests not yet answered */
    size_t in_size, in_capacity;
    char *out; /* bytes the socket did not take; NULL while there are none */
    size_t out_size, out_sent;
    bool streaming, close_after, dead;
    uint64_t due_ns, gap_ns; /* of the next event; streaming only */
    uint32_t sends_left;
    size_t heap_place; /* where timers[] holds it; streaming only */
    struct connection *next_dead;
};

struct request {
    const char *method;
    size_t method_size;
    const char *path;
    size_t path_size;
    const char *body; /* decoded; borrowed until the next take_request() */
    size_t body_size, consumed;
    bool close_after;
};

static int poller, timer;
static struct connection **timers; /* a binary heap, the soonest first */
static size_t timer_count, timer_capacity;
static uint64_t timer_armed_ns;
static struct connection *dead_list;
static char *body_scratch;

/* ---- what is sent ---- */

#define EVENT(delta, reason)                                                                                    \
    "data: {\"id\":\"chatcmpl-0000000000000000\",\"object\":\"chat.completion.chunk\",\"created\":1735689600,"  \
    "\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{" delta "},\"finish_reason\":" reason "}]}\n\n"

static const char STREAM_HEAD[] = "HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\nserver: bench\r\n"
                                  "content-type: text/event-stream; charset=utf-8\r\n"
                                  "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";

/* One send of a stream, ready but for the times in it. */
struct piece {
    char bytes[1024];
    size_t size;
    size_t stamps[2]; /* offsets of the digits */
    int stamp_count;
};

static struct piece first_piece, content_piece, last_piece;
static char plain_answer[1024];
static size_t plain_answer_size;

static void append(struct piece *piece, const char *text)
{
    size_t size = strlen(text);
    if (piece->size + size > sizeof piece->bytes)
        die(1, "an event is larger than its buffer");
    memcpy(piece->bytes + piece->size, text, size);
    piece->size += size;
}

/* Adds `event` as a chunk of its own, which is how engines send it. */
static void append_chunk(struct piece *piece, const char *event)
{
    char size_line[24];
    snprintf(size_line, sizeof size_line, "%zx\r\n", strlen(event));
    append(piece, size_line);
    const char *id = strstr(event, "chatcmpl-");
    if (id)
        piece->stamps[piece->stamp_count++] = piece->size + (size_t)(id - event) + strlen("chatcmpl-");
    append(piece, event);
    append(piece, "\r\n");
}

static void make_plain_answer(void)
{
    static const char start[] =
        "{\"id\":\"chatcmpl-7f3a9c51e2d84b06\",\"object\":\"chat.completion\",\"created\":1735689600,\"model\":\"bench\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    static const char end[] =
        "\",\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],"
        "\"usage\":{\"prompt_tokens\":312,\"total_tokens\":376,\"completion_tokens\":64}}";
    static const char words[] = "The relay answers with words that mean nothing but weigh what they should. ";
    char body[ANSWER_BYTES + 1];
    size_t size = (size_t)snprintf(body, sizeof body, "%s", start);
    while (size < ANSWER_BYTES - (sizeof end - 1)) {
        body[size] = words[size % (sizeof words - 1)];
        size++;
    }
    memcpy(body + size, end, sizeof end);
    plain_answer_size = (size_t)snprintf(plain_answer, sizeof plain_answer,
                                         "HTTP/1.1 200 OK\r\ndate: Wed, 01 Jan 2025 00:00:00 GMT\r\nserver: bench\r\n"
                                         "content-length: %d\r\ncontent-type: application/json\r\n\r\n%s",
                                         ANSWER_BYTES, body);
}

static void make_pieces(void)
{
    append(&first_piece, STREAM_HEAD);
    append_chunk(&first_piece, EVENT("\"role\":\"assistant\",\"content\":\"\"", "null"));
    append_chunk(&first_piece, EVENT("\"content\":\" token\"", "null"));
    append_chunk(&content_piece, EVENT("\"content\":\" token\"", "null"));
    append_chunk(&last_piece, EVENT("\"content\":\"\"", "\"stop\""));
    append_chunk(&last_piece, "data: [DONE]\n\n");
    append(&last_piece, "0\r\n\r\n");
    make_plain_answer();
}

static void write_stamp(char *place, uint64_t ns)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = STAMP_DIGITS - 1; i >= 0; i--, ns >>= 4)
        place[i] = digits[ns & 15];
}

/* ---- connections ---- */

static void watch(struct connection *c, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void heap_put(size_t place, struct connection *c)
{
    timers[place] = c;
    c->heap_place = place;
}

static void heap_up(size_t place)
{
    struct connection *c = timers[place];
    for (; place && timers[(place - 1) / 2]->due_ns > c->due_ns; place = (place - 1) / 2)
        heap_put(place, timers[(place - 1) / 2]);
    heap_put(place, c);
}

static void heap_down(size_t place)
{
    struct connection *c = timers[place];
    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= timer_count)
            break;
        if (child + 1 < timer_count && timers[child + 1]->due_ns < timers[child]->due_ns)
            child++;
        if (timers[child]->due_ns >= c->due_ns)
            break;
        heap_put(place, timers[child]);
        place = child;
    }
    heap_put(place, c);
}

static void heap_add(struct connection *c)
{
    if (timer_count == timer_capacity) {
        timer_capacity = timer_capacity ? 2 * timer_capacity : 256;
        timers = realloc(timers, timer_capacity * sizeof *timers);
        if (!timers)
            die(1, "out of memory");
    }
    heap_put(timer_count++, c);
    heap_up(timer_count - 1);
}

static void heap_remove(struct connection *c)
{
    size_t place = c->heap_place;
    struct connection *last = timers[--timer_count];
    if (last == c)
        return;
    heap_put(place, last);
    heap_up(place);
    heap_down(last->heap_place);
}

/* Closes now and frees at the end of the batch: a later event of the same batch may still name it. */
static void drop(struct connection *c)
{
    if (c->dead)
        return;
    if (c->streaming)
        heap_remove(c);
    close(c->fd);
    c->dead = true;
    c->next_dead = dead_list;
    dead_list = c;
}

static void free_dead(void)
{
    while (dead_list) {
        struct connection *c = dead_list;
        dead_list = c->next_dead;
        free(c->in);
        free(c->out);
        free(c);
    }
}

static void keep_rest(struct connection *c, const char *bytes, size_t size)
{
    c->out = must_alloc(size);
    memcpy(c->out, bytes, size);
    c->out_size = size;
    c->out_sent = 0;
    watch(c, EPOLLIN | EPOLLOUT);
}

/* Sends `bytes`, or keeps what the socket does not take.  Never called while something is kept. */
static void send_bytes(struct connection *c, const char *bytes, size_t size)
{
    ssize_t sent = send(c->fd, bytes, size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
        drop(c);
        return;
    }
    if (sent < (ssize_t)size)
        keep_rest(c, bytes + (sent < 0 ? 0 : sent), size - (size_t)(sent < 0 ? 0 : sent));
}

static void send_piece(struct connection *c, struct piece *piece)
{
    uint64_t now = now_ns();
    for (int i = 0; i < piece->stamp_count; i++)
        write_stamp(piece->bytes + piece->stamps[i], now);
    send_bytes(c, piece->bytes, piece->size);
}

/* ---- requests ---- */

static bool is_header(const char *line, size_t size, const char *name)
{
    size_t name_size = strlen(name);
    return size > name_size && line[name_size] == ':' && strncasecmp(line, name, name_size) == 0;
}

static bool value_has(const char *line, size_t size, const char *word)
{
    size_t word_size = strlen(word);
    for (size_t i = 0; i + word_size <= size; i++)
        if (strncasecmp(line + i, word, word_size) == 0)
            return true;
    return false;
}

/* Decodes a chunked body into body_scratch.  Returns the bytes used, 0 when more are needed, -1 when it is none. */
static ssize_t decode_chunks(const char *data, size_t size, size_t *body_size)
{
    size_t place = 0;
    *body_size = 0;
    for (;;) {
        const char *line_end = memmem(data + place, size - place, "\r\n", 2);
        if (!line_end)
            return 0;
        char *digits_end;
        unsigned long chunk = strtoul(data + place, &digits_end, 16);
        if (digits_end == data + place || *body_size + chunk > MAX_BODY)
            return -1;
        place = (size_t)(line_end - data) + 2;
        if (place + chunk + 2 > size)
            return 0;
        memcpy(body_scratch + *body_size, data + place, chunk);
        *body_size += chunk;
        place += chunk + 2;
        if (chunk == 0)
            return (ssize_t)place;
    }
}

/* Finds the body that follows a head of `head_size` bytes.  Returns 1, 0 when more is needed, -1 when it is bad. */
static int take_body(struct connection *c, struct request *r, size_t head_size, size_t length, bool chunked)
{
    if (chunked) {
        ssize_t used = decode_chunks(c->in + head_size, c->in_size - head_size, &r->body_size);
        r->body = body_scratch;
        r->consumed = head_size + (size_t)(used > 0 ? used : 0);
        return used > 0 ? 1 : (int)used;
    }
    if (length > MAX_BODY)
        return -1;
    r->body = c->in + head_size;
    r->body_size = length;
    r->consumed = head_size + length;
    return c->in_size >= r->consumed;
}

/* Reads one request off the front of the input.  Returns 1, 0 when more is needed, -1 when it is not HTTP. */
static int take_request(struct connection *c, struct request *r)
{
    char *end = c->in_size ? memmem(c->in, c->in_size, "\r\n\r\n", 4) : NULL;
    if (!end)
        return c->in_size > MAX_HEAD ? -1 : 0;
    size_t head_size = (size_t)(end - c->in) + 4;
    char *line_end = memmem(c->in, head_size, "\r\n", 2);
    char *path = memchr(c->in, ' ', (size_t)(line_end - c->in));
    char *path_end = path ? memchr(path + 1, ' ', (size_t)(line_end - path - 1)) : NULL;
    if (!path_end)
        return -1;
    *r = (struct request){.method = c->in, .method_size = (size_t)(path - c->in),
                          .path = path + 1, .path_size = (size_t)(path_end - path - 1),
                          .close_after = line_end[-1] == '0'};

    size_t length = 0;
    bool chunked = false;
    for (char *line = line_end + 2; line < end; line = line_end + 2) {
        line_end = memmem(line, (size_t)(end + 2 - line), "\r\n", 2);
        size_t size = (size_t)(line_end - line);
        if (is_header(line, size, "content-length"))
            length = strtoul(line + strlen("content-length:"), NULL, 10);
        else if (is_header(line, size, "transfer-encoding"))
            chunked = value_has(line, size, "chunked");
        else if (is_header(line, size, "connection") && value_has(line, size, "close"))
            r->close_after = true;
    }
    return take_body(c, r, head_size, length, chunked);
}

/* Returns what follows `"key":` in the body, at least one byte, or NULL.  Good enough for what benchmarks send. */
static const char *json_value(const struct request *r, const char *quoted_key)
{
    const char *end = r->body + r->body_size;
    const char *place = memmem(r->body, r->body_size, quoted_key, strlen(quoted_key));
    if (!place)
        return NULL;
    place += strlen(quoted_key);
    while (place < end && (*place == ' ' || *place == ':'))
        place++;
    return place < end ? place : NULL;
}

static uint64_t json_number(const struct request *r, const char *quoted_key, uint64_t otherwise)
{
    const char *value = json_value(r, quoted_key);
    return value && *value >= '0' && *value <= '9' ? strtoull(value, NULL, 10) : otherwise;
}

static bool json_true(const struct request *r, const char *quoted_key)
{
    const char *value = json_value(r, quoted_key);
    return value && r->body + r->body_size - value >= 4 && memcmp(value, "true", 4) == 0;
}

static bool is_path(const struct request *r, const char *path)
{
    return r->path_size == strlen(path) && memcmp(r->path, path, r->path_size) == 0;
}

/* ---- answers ---- */

static void answer_text(struct connection *c, const char *status, const char *body)
{
    char answer[1024];
    int size = snprintf(answer, sizeof answer,
                        "HTTP/1.1 %s\r\nserver: bench\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s",
                        status, strlen(body), body);
    send_bytes(c, answer, (size_t)size);
}

static void start_stream(struct connection *c, const struct request *r)
{
    uint64_t sends = json_number(r, "\"max_tokens\"", 64);
    c->sends_left = sends < 2 ? 1 : (uint32_t)sends - 1;
    c->gap_ns = json_number(r, "\"bench_gap_ms\"", 10) * NS_PER_MS;
    c->due_ns = now_ns() + c->gap_ns;
    c->streaming = true;
    heap_add(c);
    send_piece(c, &first_piece);
}

static void answer(struct connection *c, const struct request *r)
{
    c->close_after = r->close_after;
    if (r->method_size == 4 && memcmp(r->method, "POST", 4) == 0) {
        if (json_true(r, "\"stream\""))
            start_stream(c, r);
        else
            send_bytes(c, plain_answer, plain_answer_size);
    } else if (is_path(r, "/v1/models")) {
        answer_text(c, "200 OK",
                    "{\"object\":\"list\",\"data\":[{\"id\":\"bench\",\"object\":\"model\",\"created\":1735689600,"
                    "\"owned_by\":\"bench\"}]}");
    } else if (is_path(r, "/health")) {
        answer_text(c, "200 OK", "{}");
    } else {
        answer_text(c, "404 Not Found", "{\"error\":{\"message\":\"no such path\",\"code\":404}}");
    }
}

static bool may_answer(const struct connection *c)
{
    return !c->dead && !c->streaming && !c->out;
}

static void answer_what_is_there(struct connection *c)
{
    struct request r;
    while (may_answer(c)) {
        if (c->close_after) {
            drop(c);
            return;
        }
        int found = take_request(c, &r);
        if (found < 0) {
            c->in_size = 0;
            c->close_after = true;
            answer_text(c, "400 Bad Request", "{\"error\":{\"message\":\"not a request\",\"code\":400}}");
            continue;
        }
        if (!found)
            return;
        answer(c, &r);
        c->in_size -= r.consumed;
        memmove(c->in, c->in + r.consumed, c->in_size);
    }
}

/* ---- readiness ---- */

static void on_readable(struct connection *c)
{
    if (c->in_size == c->in_capacity) {
        c->in_capacity = c->in_capacity ? 2 * c->in_capacity : FIRST_BUFFER;
        c->in = realloc(c->in, c->in_capacity + 1);
        if (!c->in || c->in_capacity > MAX_HEAD + 2 * MAX_BODY) {
            drop(c);
            return;
        }
    }
    ssize_t got = recv(c->fd, c->in + c->in_size, c->in_capacity - c->in_size, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        drop(c);
        return;
    }
    c->in_size += got < 0 ? 0 : (size_t)got;
    c->in[c->in_size] = 0; /* strtoul() must stop */
    answer_what_is_there(c);
}

static void on_writable(struct connection *c)
{
    ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_size - c->out_sent, MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno != EAGAIN)
            drop(c);
        return;
    }
    c->out_sent += (size_t)sent;
    if (c->out_sent < c->out_size)
        return;
    free(c->out);
    c->out = NULL;
    watch(c, EPOLLIN);
    answer_what_is_there(c);
}

static void send_next_event(struct connection *c)
{
    if (c->out) { /* the reader is behind: look again after a gap, as an engine would keep the event */
        c->due_ns += c->gap_ns ? c->gap_ns : NS_PER_MS;
        heap_down(c->heap_place);
        return;
    }
    if (--c->sends_left) {
        c->due_ns += c->gap_ns;
        heap_down(c->heap_place);
        send_piece(c, &content_piece);
        return;
    }
    heap_remove(c);
    c->streaming = false;
    send_piece(c, &last_piece);
    answer_what_is_there(c);
}

static void on_timer(void)
{
    uint64_t expirations;
    if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN)
        die(1, "the timer cannot be read: %s", strerror(errno));
    timer_armed_ns = 0;
    uint64_t now = now_ns();
    while (timer_count && timers[0]->due_ns <= now)
        send_next_event(timers[0]);
}

static void arm_timer(void)
{
    if (!timer_count || timers[0]->due_ns == timer_armed_ns)
        return;
    timer_armed_ns = timers[0]->due_ns;
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(timer_armed_ns / NS_PER_S),
                                           .tv_nsec = (long)(timer_armed_ns % NS_PER_S)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static void on_listener(int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        set_nodelay(fd);
        struct connection *c = must_alloc(sizeof *c);
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    }
}

static int listen_on(const char *text)
{
    struct address address = parse_address(text);
    int on = 1, fd = socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address.storage, address.size) || listen(fd, 8192))
        die(errno == EADDRINUSE ? 75 : 1, "cannot listen on %s: %s", text, strerror(errno));
    getsockname(fd, (struct sockaddr *)&address.storage, &address.size);
    char host[64], port[16];
    getnameinfo((struct sockaddr *)&address.storage, address.size, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    printf("listening on %s:%s\n", host, port);
    fflush(stdout);
    return fd;
}

static void on_event(struct epoll_event *event, int listener)
{
    if (event->data.ptr == &poller) {
        on_listener(listener);
        return;
    }
    if (event->data.ptr == &timer) {
        on_timer();
        return;
    }
    struct connection *c = event->data.ptr;
    if (!c->dead && c->out && (event->events & EPOLLOUT))
        on_writable(c);
    if (!c->dead && (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        on_readable(c);
}

int main(int argc, char **argv)
{
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    body_scratch = must_alloc(MAX_BODY);
    make_pieces();
    int listener = listen_on(option(argc, argv, "listen", "127.0.0.1:0"));
    struct epoll_event on_accept = {.events = EPOLLIN, .data.ptr = &poller};
    struct epoll_event on_expiry = {.events = EPOLLIN, .data.ptr = &timer};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &on_accept);
    epoll_ctl(poller, EPOLL_CTL_ADD, timer, &on_expiry);

    struct epoll_event batch[EPOLL_BATCH];
    for (;;) {
        arm_timer();
        int count = epoll_wait(poller, batch, EPOLL_BATCH, -1);
        for (int i = 0; i < count; i++)
            on_event(&batch[i], listener);
        free_dead();
    }
}
