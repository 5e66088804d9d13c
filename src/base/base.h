/* What every room uses: error reports, checked arithmetic, and of platform.h locks and threads. */
#ifndef DART_BASE_H
#define DART_BASE_H

#include "platform.h"

#include <assert.h>
#include <stdarg.h>

#if defined(__MINGW32__)
#define DART_PRINTF(text, first) __attribute__((format(gnu_printf, text, first))) /* see __USE_MINGW_ANSI_STDIO in CMakeLists.txt */
#elif defined(__GNUC__)
#define DART_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define DART_PRINTF(text, first)
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- Errors ---- */

/* Where log lines go: one per context, shared by its children. */
typedef struct base_log {
    dart_log_function function;
    void *user;
    dart_log_level level;
    base_mutex mutex;
} base_log;
void base_log_line(base_log *log, dart_log_level level, const char *format, ...) DART_PRINTF(3, 4);

/* The last failure of an object. Safe to write and read from several threads. */
typedef struct base_report {
    base_log *log; /* may be NULL */
    base_mutex mutex;
    char text[512];
} base_report;
dart_status base_report_init(base_report *report, base_log *log);
void base_report_destroy(base_report *report);
/* Keeps the text and logs it at that level: what is worth knowing and no failure. */
void base_note(base_report *report, dart_log_level level, const char *format, ...) DART_PRINTF(3, 4);
/* Keeps and logs the text, returns status. Texts quote files: in reports and log lines '?' stands for every control character but
 * line feeds and tabs, and for bytes that are no UTF-8. */
/* How far a long call is, for a caller who may end it. */
typedef struct base_progress {
    bool (*go_on)(void *user, uint64_t done, uint64_t of); /* NULL: nobody asks */
    void *user;
    uint64_t done, of;
} base_progress;
/* So much more is done. DART_CANCELLED, with a text, where go_on says no. progress may be NULL. */
dart_status base_advance(base_progress *progress, uint64_t more, base_report *report, const char *call);

dart_status base_fail(base_report *report, dart_status status, const char *format, ...) DART_PRINTF(3, 4);
/* Does the text hold a control character (below U+0020, U+007F to U+009F) or bytes that are no UTF-8? A terminal may obey them. */
bool base_has_controls(const char *text);
bool base_is_utf8(const char *text);
size_t base_report_copy(const base_report *report, char *text, size_t size);

/* The caller's fault: returns status invalid with the condition in the text. For functions without cleanup. */
#define REQUIRE(report, condition, ...) \
    do { \
        if (!(condition)) return base_fail((report), DART_INVALID_ARGUMENT, __VA_ARGS__); \
    } while (0)
/* For functions with a local `dart_status status` and a label `fail`. */
#define TRY(expression) \
    do { \
        status = (expression); \
        if (status != DART_OK) goto fail; \
    } while (0)
#define FAIL(report, code, ...) \
    do { \
        status = base_fail((report), (code), __VA_ARGS__); \
        goto fail; \
    } while (0)

/* ---- Random numbers by counter: the same on every machine ---- */

/* Sixty-four bits that look random, of any number. Source: Steele, Lea and Flood 2014 (SplitMix64). */
static inline uint64_t base_mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}
/* From 0 to below 1. */
static inline double base_uniform(uint64_t bits) { return (double)(bits >> 11) / 9007199254740992.0; }

/* A hint: what is at the address will be written soon. Any address. */
static inline void base_prefetch(const void *at)
{
#if defined(__GNUC__)
    __builtin_prefetch(at, 1);
#else
    (void)at;
#endif
}

/* ---- Checked arithmetic: false on overflow, *out untouched ---- */
static inline bool base_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b) return false;
    *out = a * b;
    return true;
}
static inline bool base_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b) return false;
    *out = a + b;
    return true;
}
/* Product of count factors. */
bool base_product(const uint64_t *factors, size_t count, uint64_t *out);
static inline uint64_t base_smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t base_larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint64_t base_ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static inline uint64_t base_round_up(uint64_t a, uint64_t multiple) { return base_ceil_div(a, multiple) * multiple; }

#endif
