/* Reads an HTTP/1.1 response as it comes, and checks it: a measure of wrong answers is no measure.
 *
 * States go down this list; a response that needs no body jumps to COMPLETE.
 *
 *     HEAD -> LENGTH_BODY | CHUNK_SIZE -> CHUNK_DATA -> CHUNK_END -> CHUNK_SIZE ... -> TRAILER | CLOSE_BODY -> COMPLETE
 *
 * Decoded body bytes go to a function of the caller's.  Owner: one per connection, embedded in it.
 */
#ifndef BENCH_RESPONSE_H
#define BENCH_RESPONSE_H

#include "common.h"

#include <strings.h>

enum response_state { HEAD, LENGTH_BODY, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, CLOSE_BODY, COMPLETE };

struct response {
    enum response_state state;
    int status;
    bool keep_alive;
    uint64_t body_bytes;
    uint64_t left;      /* of the body, or of this chunk */
    uint32_t line_size; /* of the head, size line or trailer being collected */
    char line[6000];
};

/* Takes decoded bytes, borrowed until it returns. */
typedef void body_sink(void *owner, const char *bytes, size_t size);

static inline void response_start(struct response *r)
{
    r->state = HEAD;
    r->line_size = 0;
    r->body_bytes = 0;
    r->keep_alive = true;
}

/* Moves bytes into r->line until `mark` ends it.  Returns bytes used; sets *found; -1 when the line is too long. */
static inline ssize_t collect(struct response *r, const char *data, size_t size, const char *mark, bool *found)
{
    size_t mark_size = strlen(mark);
    size_t room = sizeof r->line - 1 - r->line_size;
    size_t taken = size < room ? size : room;
    size_t from = r->line_size >= mark_size ? r->line_size - mark_size + 1 : 0;
    memcpy(r->line + r->line_size, data, taken);
    char *end = memmem(r->line + from, r->line_size + taken - from, mark, mark_size);
    *found = end != NULL;
    if (end) {
        size_t whole = (size_t)(end - r->line) + mark_size;
        taken = whole - r->line_size;
        r->line_size = (uint32_t)whole;
        r->line[whole] = 0;
        return (ssize_t)taken;
    }
    r->line_size += (uint32_t)taken;
    return taken < size ? -1 : (ssize_t)taken;
}

/* Returns the value of header `name` in the collected head, or NULL. */
static inline const char *head_value(const struct response *r, const char *name)
{
    size_t size = strlen(name);
    for (const char *line = strstr(r->line, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, size) == 0 && line[2 + size] == ':')
            return line + 3 + size + strspn(line + 3 + size, " \t");
    return NULL;
}

/* Decides from a complete head what follows.  Returns false when it is not a response. */
static inline bool response_head(struct response *r)
{
    if (strncmp(r->line, "HTTP/1.", 7) != 0 || r->line_size < 12)
        return false;
    r->status = atoi(r->line + 9);
    const char *connection = head_value(r, "connection");
    r->keep_alive = r->line[7] == '1' && !(connection && strncasecmp(connection, "close", 5) == 0);
    const char *coding = head_value(r, "transfer-encoding");
    const char *length = head_value(r, "content-length");
    if (r->status >= 100 && r->status < 200)
        r->state = HEAD;
    else if (coding && strncasecmp(coding, "chunked", 7) == 0)
        r->state = CHUNK_SIZE;
    else if (length)
        r->state = (r->left = strtoull(length, NULL, 10)) ? LENGTH_BODY : COMPLETE;
    else
        r->state = CLOSE_BODY;
    r->line_size = 0;
    return true;
}

/* Reads a chunk's size line.  Returns false when it is none. */
static inline bool response_chunk_size(struct response *r)
{
    char *end;
    r->left = strtoull(r->line, &end, 16);
    if (end == r->line || (*end != '\r' && *end != ';' && *end != ' '))
        return false;
    r->state = r->left ? CHUNK_DATA : TRAILER;
    r->line_size = 0;
    return true;
}

static inline size_t take_some(struct response *r, const char *data, size_t size, body_sink *sink, void *owner)
{
    size_t taken = size < r->left || r->state == CLOSE_BODY ? size : (size_t)r->left;
    r->body_bytes += taken;
    r->left -= r->state == CLOSE_BODY ? 0 : taken;
    sink(owner, data, taken);
    if (!r->left && r->state == LENGTH_BODY)
        r->state = COMPLETE;
    if (!r->left && r->state == CHUNK_DATA)
        r->state = CHUNK_END;
    return taken;
}

/* Takes one step over `data`.  Returns bytes used, -1 when the framing is wrong. */
static inline ssize_t response_step(struct response *r, const char *data, size_t size, body_sink *sink, void *owner)
{
    bool found = false;
    ssize_t used;
    switch (r->state) {
    case HEAD:
        used = collect(r, data, size, "\r\n\r\n", &found);
        return found && !response_head(r) ? -1 : used;
    case CHUNK_SIZE:
        used = collect(r, data, size, "\r\n", &found);
        return found && !response_chunk_size(r) ? -1 : used;
    case CHUNK_END:
        used = collect(r, data, size, "\r\n", &found);
        if (found && r->line_size != 2)
            return -1;
        if (found) {
            r->line_size = 0;
            r->state = CHUNK_SIZE;
        }
        return used;
    case TRAILER: /* an empty line ends it */
        used = collect(r, data, size, "\r\n", &found);
        if (found) {
            r->state = r->line_size == 2 ? COMPLETE : TRAILER;
            r->line_size = 0;
        }
        return used;
    default:
        return (ssize_t)take_some(r, data, size, sink, owner);
    }
}

/* Reads until COMPLETE or the end of `data`.  Returns bytes used, -1 when the framing is wrong. */
static inline ssize_t response_feed(struct response *r, const char *data, size_t size, body_sink *sink, void *owner)
{
    size_t place = 0;
    while (place < size && r->state != COMPLETE) {
        ssize_t used = response_step(r, data + place, size - place, sink, owner);
        if (used < 0)
            return -1;
        place += (size_t)used;
    }
    return (ssize_t)place;
}

#endif
