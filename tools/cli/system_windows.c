#include "system.h"

#include "base/file.h"

#include <fcntl.h>
#include <io.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <shellapi.h>

/* For free(); NULL without memory. */
static char *narrow(const wchar_t *wide)
{
    const int bytes = WideCharToMultiByte(CP_UTF8, 0, wide, -1, NULL, 0, NULL, NULL);
    char *text = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (text != NULL) WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, bytes, NULL, NULL);
    return text;
}

static wchar_t *widen(const char *text)
{
    const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
    wchar_t *wide = length > 0 ? malloc((size_t)length * sizeof *wide) : NULL;
    if (wide != NULL) MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, length);
    return wide;
}

static UINT code_page_before; /* the console is there after the program */

static void put_back(void) { SetConsoleOutputCP(code_page_before); }

static void start_terminal(void)
{
    const HANDLE errors = GetStdHandle(STD_ERROR_HANDLE);
    DWORD mode = 0;
    code_page_before = GetConsoleOutputCP();
    if (code_page_before != 0 && code_page_before != CP_UTF8 && SetConsoleOutputCP(CP_UTF8)) (void)atexit(put_back);
    /* Progress clears its line by an escape sequence. */
    if (GetConsoleMode(errors, &mode)) SetConsoleMode(errors, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}

bool system_start(int *argc, char ***argv)
{
    FILE *const streams[] = {stdin, stdout, stderr};
    for (size_t i = 0; i < COUNT_OF(streams); i++) (void)_setmode(_fileno(streams[i]), _O_BINARY);
    start_terminal();
    int count = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &count);
    char **made = wide != NULL ? calloc((size_t)count + 1, sizeof *made) : NULL;
    bool complete = made != NULL;
    for (int i = 0; i < count && complete; i++) complete = (made[i] = narrow(wide[i])) != NULL;
    LocalFree(wide);
    if (!complete) return false;
    *argc = count;
    *argv = made;
    return true;
}

FILE *system_open(const char *path, const char *mode)
{
    wchar_t *wide = widen(path), *wide_mode = widen(mode);
    FILE *file = wide != NULL && wide_mode != NULL ? _wfopen(wide, wide_mode) : NULL;
    free(wide);
    free(wide_mode);
    return file;
}

bool system_is_terminal(FILE *file) { return _isatty(_fileno(file)) != 0; }

/* Its version is that of its kernel: GetVersion tells programs without a manifest of an older one. */
void system_describe(char *text, size_t size)
{
    typedef LONG (WINAPI *get_version)(OSVERSIONINFOW *);
    OSVERSIONINFOW version = {.dwOSVersionInfoSize = sizeof version};
    const HMODULE ntdll = GetModuleHandleW(L"ntdll.dll");
    get_version get = NULL;
    const FARPROC found = ntdll != NULL ? GetProcAddress(ntdll, "RtlGetVersion") : NULL;
    memcpy(&get, &found, sizeof get);
    if (get == NULL || get(&version) != 0) snprintf(text, size, "Windows");
    else snprintf(text, size, "Windows %lu.%lu.%lu", version.dwMajorVersion, version.dwMinorVersion, version.dwBuildNumber);
}

char *system_cache_folder(void)
{
    const wchar_t *base = _wgetenv(L"LOCALAPPDATA"), *home = _wgetenv(L"USERPROFILE");
    if (base != NULL && base[0] != L'\0') return narrow(base);
    char *at = home != NULL && home[0] != L'\0' ? narrow(home) : NULL;
    char *folder = at != NULL ? file_join(at, "AppData/Local") : NULL;
    free(at);
    return folder;
}

void system_make_private_folder(const char *path)
{
    wchar_t *wide = widen(path);
    if (wide != NULL) CreateDirectoryW(wide, NULL);
    free(wide);
}
