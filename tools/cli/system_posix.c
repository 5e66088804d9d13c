#define _POSIX_C_SOURCE 200809L
#include "system.h"

#include "base/file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

bool system_start(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return true;
}

FILE *system_open(const char *path, const char *mode) { return fopen(path, mode); }
bool system_is_terminal(FILE *file) { return isatty(fileno(file)) != 0; }

void system_describe(char *text, size_t size)
{
    struct utsname name;
    if (uname(&name) == 0) snprintf(text, size, "%s %s %s", name.sysname, name.release, name.machine);
    else snprintf(text, size, "unknown");
}

char *system_cache_folder(void)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base != NULL && base[0] != '\0') return file_join(base, "");
    return home != NULL && home[0] != '\0' ? file_join(home, ".cache") : NULL;
}

void system_make_private_folder(const char *path) { (void)mkdir(path, 0700); }
