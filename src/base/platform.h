/* What each system does in its own way, but for files: platform_posix.c and platform_windows.c, one of which is built. file_system.h is the
 * same for files, and tools/cli/system.h for a program's arguments and terminal. */
#ifndef DART_PLATFORM_H
#define DART_PLATFORM_H

#include "dartlm/dartlm.h"

/* ---- Locks and threads ---- */
typedef struct base_mutex base_mutex;
typedef struct base_condition base_condition;
typedef struct base_thread base_thread;
#if defined(_WIN32)
struct base_mutex { void *srw; };
struct base_condition { void *cv; };
struct base_thread { void *handle; void *start; };
#define BASE_MUTEX_STATIC {NULL}
#else
#include <pthread.h>
struct base_mutex { pthread_mutex_t m; };
struct base_condition { pthread_cond_t c; };
struct base_thread { pthread_t t; void *start; };
#define BASE_MUTEX_STATIC {PTHREAD_MUTEX_INITIALIZER}
#endif
dart_status base_mutex_init(base_mutex *mutex);
void base_mutex_destroy(base_mutex *mutex);
void base_lock(base_mutex *mutex);
bool base_lock_if_free(base_mutex *mutex); /* false at once where a thread holds it */
void base_unlock(base_mutex *mutex);
dart_status base_condition_init(base_condition *condition);
void base_condition_destroy(base_condition *condition);
void base_condition_wait(base_condition *condition, base_mutex *mutex);
void base_condition_broadcast(base_condition *condition);
/* run(argument) on a thread of its own; join frees what start took. */
dart_status base_thread_start(base_thread *thread, void (*run)(void *), void *argument);
void base_thread_join(base_thread *thread);
void base_thread_yield(void); /* lets another thread run that waits for a processor */

/* ---- Time and machine ---- */
uint64_t base_now_ns(void); /* monotonic */
/* Sleeps so long, about: Windows counts in milliseconds and rounds down, and with 0 of them only yields. */
void base_pause_ns(uint64_t ns);
uint32_t base_core_count(void);
uint64_t base_memory_bytes(void); /* 0 where the system does not tell */

/* ---- Libraries opened at run time; they stay in the process where the system can promise it, because their threads need them ---- */
void *base_library_open(const char *name); /* NULL: not found */
void base_library_close(void *library);
/* Copies the address of the symbol to *function, a pointer to a function, which has `size` bytes. */
bool base_library_find(void *library, const char *symbol, void *function, size_t size);

#endif
