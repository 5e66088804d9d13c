#include "platform.h"

#include <stdlib.h>
#include <string.h>

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

dart_status base_mutex_init(base_mutex *mutex)
{
    InitializeSRWLock((PSRWLOCK)&mutex->srw);
    return DART_OK;
}
void base_mutex_destroy(base_mutex *mutex) { (void)mutex; }
void base_lock(base_mutex *mutex) { AcquireSRWLockExclusive((PSRWLOCK)&mutex->srw); }
bool base_lock_if_free(base_mutex *mutex) { return TryAcquireSRWLockExclusive((PSRWLOCK)&mutex->srw) != 0; }
void base_unlock(base_mutex *mutex) { ReleaseSRWLockExclusive((PSRWLOCK)&mutex->srw); }
dart_status base_condition_init(base_condition *condition)
{
    InitializeConditionVariable((PCONDITION_VARIABLE)&condition->cv);
    return DART_OK;
}
void base_condition_destroy(base_condition *condition) { (void)condition; }
void base_condition_wait(base_condition *condition, base_mutex *mutex)
{
    SleepConditionVariableSRW((PCONDITION_VARIABLE)&condition->cv, (PSRWLOCK)&mutex->srw, INFINITE, 0);
}
void base_condition_broadcast(base_condition *condition)
{
    WakeAllConditionVariable((PCONDITION_VARIABLE)&condition->cv);
}

typedef struct thread_start {
    void (*run)(void *);
    void *argument;
} thread_start;

static DWORD WINAPI thread_main(LPVOID start)
{
    const thread_start *s = start;
    s->run(s->argument);
    return 0;
}

dart_status base_thread_start(base_thread *thread, void (*run)(void *), void *argument)
{
    thread_start *start = malloc(sizeof *start);
    if (start == NULL) return DART_OUT_OF_MEMORY;
    *start = (thread_start){run, argument};
    thread->handle = CreateThread(NULL, 0, thread_main, start, 0, NULL);
    if (thread->handle == NULL) {
        free(start);
        return DART_OUT_OF_MEMORY;
    }
    thread->start = start;
    return DART_OK;
}

void base_thread_join(base_thread *thread)
{
    WaitForSingleObject(thread->handle, INFINITE);
    CloseHandle(thread->handle);
    free(thread->start);
    thread->start = NULL;
}

void base_thread_yield(void) { (void)SwitchToThread(); }

uint64_t base_now_ns(void)
{
    LARGE_INTEGER now, frequency;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&frequency);
    const uint64_t ticks = (uint64_t)now.QuadPart, second = (uint64_t)frequency.QuadPart;
    return ticks / second * 1000000000u + ticks % second * 1000000000u / second;
}

void base_pause_ns(uint64_t ns) { Sleep((DWORD)(ns / 1000000u)); }

uint32_t base_core_count(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwNumberOfProcessors > 0 ? (uint32_t)info.dwNumberOfProcessors : 1;
}

uint64_t base_memory_bytes(void)
{
    MEMORYSTATUSEX status = {.dwLength = sizeof status};
    return GlobalMemoryStatusEx(&status) ? status.ullTotalPhys : 0;
}

void *base_library_open(const char *name) { return (void *)LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS); }
void base_library_close(void *library) { FreeLibrary((HMODULE)library); }

bool base_library_find(void *library, const char *symbol, void *function, size_t size)
{
    const FARPROC found = GetProcAddress((HMODULE)library, symbol);
    memcpy(function, &found, size);
    return found != NULL;
}
