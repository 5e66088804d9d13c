#define _GNU_SOURCE /* memmem, strncasecmp */
#include "fuzz/replies.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The value of a header in lines [at, end), up to the end of its line. NULL: there is none. */
static const char *header(const char *at, const char *end, const char *name)
{
    const size_t length = strlen(name);
    while (at < end) {
        const char *line = memmem(at, (size_t)(end - at), "\r\n", 2);
        if (line == NULL) line = end;
        if ((size_t)(line - at) > length + 1 && strncasecmp(at, name, length) == 0 && at[length] == ':') {
            at += length + 1;
            while (at < line && *at == ' ') at++;
            return at;
        }
        at = line + 2;
    }
    return NULL;
}

static bool known(int status)
{
    static const int all[] = {100, 200, 400, 401, 403, 404, 405, 408, 411, 413, 414, 417, 429, 431, 499, 500, 501, 503, 505};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] == status) return true;
    return false;
}

/* The bytes that chunks take with their end; 0: they are cut. SIZE_MAX: they are none. */
static size_t chunks(const char *body, size_t size)
{
    size_t at = 0;
    for (;;) {
        const char *line = memmem(body + at, size - at, "\r\n", 2);
        if (line == NULL) return size - at > 20 ? SIZE_MAX : 0;
        char *end;
        const unsigned long count = strtoul(body + at, &end, 16);
        if (end == body + at || end != line) return SIZE_MAX;
        at = (size_t)(line - body) + 2;
        if (count > size - at || size - at - count < 2) return 0;
        at += count;
        if (memcmp(body + at, "\r\n", 2) != 0) return SIZE_MAX;
        at += 2;
        if (count == 0) return at;
    }
}

/* What this server says as JSON is one object, an error one with its status. */
static const char *check_json(const reply *a)
{
    json_error_t reason;
    json_t *object = json_loadb(a->body, a->body_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    if (object == NULL && json_error_code(&reason) == json_error_null_byte_in_key) return NULL; /* a token is U+0000; jansson has no such keys */
    const json_t *error = json_object_get(object, "error");
    const char *wrong = NULL;
    if (!json_is_object(object)) wrong = "a body that is no object of JSON";
    else if ((a->status == 200) != (error == NULL)) wrong = "an error with status 200, or another status without one";
    else if (error != NULL && json_integer_value(json_object_get(error, "code")) != a->status) wrong = "an error with another status";
    json_decref(object);
    return wrong;
}

const char *reply_read(const char *at, size_t size, bool whole, bool head, reply *a)
{
    const char *const cut = whole ? "an answer that is cut" : NULL;
    *a = (reply){.bytes = size};
    if (size < 15) return cut;
    if (memcmp(at, "HTTP/1.1 ", 9) != 0 && memcmp(at, "HTTP/1.0 ", 9) != 0) return "no answer of HTTP";
    for (size_t i = 9; i < 12; i++) a->status = a->status * 10 + (at[i] - '0');
    if (!known(a->status)) return "a status that nobody should see";
    const char *end = memmem(at, size, "\r\n\r\n", 4);
    if (end == NULL) return cut;
    const char *const length = header(at, end + 2, "Content-Length"), *const coding = header(at, end + 2, "Transfer-Encoding");
    const char *const type = header(at, end + 2, "Content-Type");
    const size_t before = (size_t)(end - at) + 4, left = size - before;
    a->body = at + before;
    a->bytes = before;
    if (a->status == 100 || (left >= 7 && memcmp(a->body, "HTTP/1.", 7) == 0) || (head && left == 0)) return NULL;
    if (coding != NULL) {
        const size_t bytes = chunks(a->body, left);
        if (bytes == SIZE_MAX) return "chunks that are none";
        a->bytes = bytes > 0 ? before + bytes : size;
        return bytes > 0 ? NULL : cut;
    }
    if (length == NULL) { /* up to the end of the connection: a stream for HTTP/1.0 */
        a->bytes = size;
        return NULL;
    }
    a->body_bytes = (size_t)strtoull(length, NULL, 10);
    if (a->body_bytes > left) {
        a->bytes = size;
        return cut;
    }
    a->bytes = before + a->body_bytes;
    a->json = type != NULL && strncmp(type, "application/json", 16) == 0;
    return a->json ? check_json(a) : NULL;
}
