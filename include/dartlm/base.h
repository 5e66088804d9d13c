/* dartlm: version, status and log. Part of dartlm.h, whose laws hold here. */
#ifndef DARTLM_BASE_H
#define DARTLM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(DARTLM_STATIC)
#define DART_API
#elif defined(_WIN32)
#ifdef DARTLM_BUILD
#define DART_API __declspec(dllexport)
#else
#define DART_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define DART_API __attribute__((visibility("default")))
#else
#define DART_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of these headers; dart_version() tells that of the library. Before 1.0 a minor step may break. */
#define DART_VERSION_MAJOR 0
#define DART_VERSION_MINOR 1
#define DART_VERSION_PATCH 0
/* "MAJOR.MINOR.PATCH", static. */
DART_API const char *dart_version(void);

/* ---- Status and log ------------------------------------------------------------------------------------------ */

/* The result of a call. The comment of a failure says what the caller does next. */
typedef enum dart_status {
    DART_OK = 0,
    DART_INVALID_ARGUMENT = 1, /* fix the call: the text names the condition */
    DART_UNSUPPORTED = 2,      /* take another device, size or option: this one cannot do it */
    DART_OUT_OF_MEMORY = 3,    /* free something or ask for less, then try again */
    DART_DEVICE_LOST = 4,      /* destroy everything on this device and open it again */
    DART_TIMEOUT = 5,          /* wait again, or give up the device: the work is still running */
    DART_IO = 6,               /* the file cannot be opened or read: check path and rights */
    DART_BAD_DATA = 7,         /* the file's contents are wrong: the text names the place */
    DART_INTERNAL = 8,         /* a defect of this library or of a driver: report it with the text */
    DART_CANCELLED = 9         /* the caller's callback stopped the call: go on from where it says it stopped */
} dart_status;
/* Short lower-case name, static; "unknown status" for other values. */
DART_API const char *dart_status_name(dart_status status);

typedef enum dart_log_level { DART_LOG_ERROR = 0, DART_LOG_WARNING = 1, DART_LOG_INFO = 2, DART_LOG_TRACE = 3 } dart_log_level;
/* Called from any thread that uses the library, never concurrently for one context. The text is valid until the callback
 * returns. The callback must not call the library. */
typedef void (*dart_log_function)(void *user, dart_log_level level, const char *text);

#ifdef __cplusplus
}
#endif
#endif
