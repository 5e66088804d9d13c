#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* _SC_NPROCESSORS_ONLN and _SC_PHYS_PAGES, which no standard has */
#define _DARWIN_C_SOURCE
#include "platform.h"

#include <assert.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

dart_status base_mutex_init(base_mutex *mutex)
{
    return pthread_mutex_init(&mutex->m, NULL) == 0 ? DART_OK : DART_OUT_OF_MEMORY;
}
void base_mutex_destroy(base_mutex *mutex) { pthread_mutex_destroy(&mutex->m); }
void base_lock(base_mutex *mutex) { pthread_mutex_lock(&mutex->m); }
bool base_lock_if_free(base_mutex *mutex) { return pthread_mutex_trylock(&mutex->m) == 0; }
void base_unlock(base_mutex *mutex) { pthread_mutex_unlock(&mutex->m); }
dart_status base_condition_init(base_condition *condition)
{
    return pthread_cond_init(&condition->c, NULL) == 0 ? DART_OK : DART_OUT_OF_MEMORY;
}
void base_condition_destroy(base_condition *condition) { pthread_cond_destroy(&condition->c); }
void base_condition_wait(base_condition *condition, base_mutex *mutex)
{
    pthread_cond_wait(&condition->c, &mutex->m);
}
void base_condition_broadcast(base_condition *condition) { pthread_cond_broadcast(&condition->c); }

typedef struct thread_start {
    void (*run)(void *);
    void *argument;
} thread_start;

static void *thread_main(void *start)
{
    const thread_start *s = start;
    s->run(s->argument);
    return NULL;
}

dart_status base_thread_start(base_thread *thread, void (*run)(void *), void *argument)
{
    thread_start *start = malloc(sizeof *start);
    if (start == NULL) return DART_OUT_OF_MEMORY;
    *start = (thread_start){run, argument};
    if (pthread_create(&thread->t, NULL, thread_main, start) != 0) {
        free(start);
        return DART_OUT_OF_MEMORY;
    }
    thread->start = start;
    return DART_OK;
}

void base_thread_join(base_thread *thread)
{
    pthread_join(thread->t, NULL);
    free(thread->start);
    thread->start = NULL;
}

void base_thread_yield(void) { (void)sched_yield(); }

uint64_t base_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void base_pause_ns(uint64_t ns)
{
    const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&time, NULL);
}

uint32_t base_core_count(void)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 ? (uint32_t)cores : 1;
}

uint64_t base_memory_bytes(void)
{
#if defined(_SC_PHYS_PAGES)
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (uint64_t)pages * (uint64_t)bytes : 0;
#else
    return 0;
#endif
}

#if defined(RTLD_NODELETE)
#define STAY RTLD_NODELETE
#else
#define STAY 0
#endif

void *base_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL | STAY); }
void base_library_close(void *library) { dlclose(library); }

/* Through memory, since C knows no conversion between object and function pointers. */
bool base_library_find(void *library, const char *symbol, void *function, size_t size)
{
    void *found = dlsym(library, symbol);
    static_assert(sizeof found == sizeof(void (*)(void)), "POSIX says so");
    memcpy(function, &found, size);
    return found != NULL;
}
