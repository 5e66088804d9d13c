#include "base.h"

#include <stdio.h>
#include <string.h>

/* Length of the character at s, 0 when there is no well-formed UTF-8. */
static size_t utf8_length(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return 1;
    if (u[0] < 0xC2 || u[0] > 0xF4) return 0;
    const size_t length = u[0] < 0xE0 ? 2 : u[0] < 0xF0 ? 3 : 4;
    /* The second byte excludes overlong forms, surrogates and what lies above U+10FFFF. */
    const unsigned low = u[0] == 0xE0 ? 0xA0 : u[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned high = u[0] == 0xED ? 0x9F : u[0] == 0xF4 ? 0x8F : 0xBF;
    if (u[1] < low || u[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (u[i] < 0x80 || u[i] > 0xBF) return 0;
    return length;
}

bool base_is_utf8(const char *text)
{
    size_t length = 1;
    for (; *text != '\0' && length > 0; text += length) length = utf8_length(text);
    return length > 0;
}

static bool is_control(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    return u[0] < 0x20 || u[0] == 0x7F || (u[0] == 0xC2 && u[1] < 0xA0);
}

bool base_has_controls(const char *text)
{
    while (*text != '\0') {
        const size_t length = utf8_length(text);
        if (length == 0 || is_control(text)) return true;
        text += length;
    }
    return false;
}

static void hide_controls(char *text)
{
    char *to = text;
    while (*text != '\0') {
        const size_t length = utf8_length(text);
        const bool hidden = length == 0 || (is_control(text) && *text != '\n' && *text != '\t');
        if (hidden) *to++ = '?';
        else for (size_t i = 0; i < length; i++) *to++ = text[i];
        text += length > 0 ? length : 1;
    }
    *to = '\0';
}

void base_log_line(base_log *log, dart_log_level level, const char *format, ...)
{
    if (log == NULL || log->function == NULL || level > log->level) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    hide_controls(text);
    base_lock(&log->mutex);
    log->function(log->user, level, text);
    base_unlock(&log->mutex);
}

dart_status base_report_init(base_report *report, base_log *log)
{
    report->log = log;
    report->text[0] = '\0';
    return base_mutex_init(&report->mutex);
}

void base_report_destroy(base_report *report) { base_mutex_destroy(&report->mutex); }

/* text: as large as the report's. */
static void keep(base_report *report, char *text, const char *format, va_list arguments)
{
    vsnprintf(text, sizeof report->text, format, arguments);
    hide_controls(text);
    base_lock(&report->mutex);
    memcpy(report->text, text, sizeof report->text);
    base_unlock(&report->mutex);
}

void base_note(base_report *report, dart_log_level level, const char *format, ...)
{
    char text[sizeof report->text];
    va_list arguments;
    va_start(arguments, format);
    keep(report, text, format, arguments);
    va_end(arguments);
    base_log_line(report->log, level, "%s", text);
}

dart_status base_advance(base_progress *progress, uint64_t more, base_report *report, const char *call)
{
    if (progress == NULL || progress->go_on == NULL) return DART_OK;
    progress->done += more;
    if (progress->go_on(progress->user, progress->done, progress->of)) return DART_OK;
    return base_fail(report, DART_CANCELLED, "%s: ended by go_on", call);
}

dart_status base_fail(base_report *report, dart_status status, const char *format, ...)
{
    char text[sizeof report->text];
    va_list arguments;
    va_start(arguments, format);
    keep(report, text, format, arguments);
    va_end(arguments);
    base_log_line(report->log, DART_LOG_ERROR, "%s: %s", dart_status_name(status), text);
    return status;
}

size_t base_report_copy(const base_report *report, char *text, size_t size)
{
    /* The lock is the one part of a report that readers change. */
    base_mutex *mutex = (base_mutex *)&report->mutex;
    base_lock(mutex);
    const size_t length = strlen(report->text);
    if (text != NULL && size > 0) {
        const size_t kept = length < size ? length : size - 1;
        memcpy(text, report->text, kept);
        text[kept] = '\0';
    }
    base_unlock(mutex);
    return length;
}

bool base_product(const uint64_t *factors, size_t count, uint64_t *out)
{
    uint64_t product = 1;
    for (size_t i = 0; i < count; i++)
        if (!base_mul(product, factors[i], &product)) return false;
    *out = product;
    return true;
}

const char *dart_status_name(dart_status status)
{
    switch (status) {
    case DART_OK: return "ok";
    case DART_INVALID_ARGUMENT: return "invalid argument";
    case DART_UNSUPPORTED: return "unsupported";
    case DART_OUT_OF_MEMORY: return "out of memory";
    case DART_DEVICE_LOST: return "device lost";
    case DART_TIMEOUT: return "time-out";
    case DART_IO: return "input/output error";
    case DART_BAD_DATA: return "bad data";
    case DART_INTERNAL: return "internal error";
    case DART_CANCELLED: return "cancelled";
    }
    return "unknown status";
}

const char *dart_backend_name(dart_backend_kind kind)
{
    static const char *const names[] = {"cpu", "vulkan", "cuda", "null"};
    return (size_t)kind < COUNT_OF(names) ? names[kind] : "unknown backend";
}

const char *dart_dtype_name(dart_dtype dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16", "i32", "q8", "q4"};
    return (size_t)dtype < COUNT_OF(names) ? names[dtype] : "unknown dtype";
}

size_t dart_dtype_size(dart_dtype dtype)
{
    static const size_t sizes[] = {4, 2, 2, 4, 1, 1};
    return (size_t)dtype < COUNT_OF(sizes) ? sizes[dtype] : 0;
}

#define TEXT_OF(x) #x
#define VERSION_TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)
const char *dart_version(void) { return VERSION_TEXT(DART_VERSION_MAJOR, DART_VERSION_MINOR, DART_VERSION_PATCH); }
