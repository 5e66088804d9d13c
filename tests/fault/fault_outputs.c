/* What writing a file does to what was at its path: fault_outputs. */
#define _POSIX_C_SOURCE 200809L

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static base_report report;
static char folder[] = "fault_outputs.XXXXXX";

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL && chdir(folder) == 0 && base_report_init(&report, NULL) == DART_OK ? 0 : 1;
}

static int leave(void **state)
{
    (void)state;
    base_report_destroy(&report);
    return chdir("..") == 0 && rmdir(folder) == 0 ? 0 : 1;
}

static dart_status write_text(const char *path, const char *text)
{
    file_writer *writer = NULL;
    dart_status status = file_writer_open(path, &report, &writer);
    if (status != DART_OK) return status;
    status = file_writer_append(writer, text, strlen(text));
    if (status == DART_OK) return file_writer_close(&writer);
    file_writer_destroy(&writer);
    return status;
}

static void make(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void holds(const char *path, const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    got[fread(got, 1, sizeof got - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(got, text);
}

/* Exactly `count` names in the folder. */
static void has_files(int count)
{
    DIR *here = opendir(".");
    assert_non_null(here);
    int found = 0;
    char names[200] = "";
    for (struct dirent *entry = readdir(here); entry != NULL; entry = readdir(here)) {
        if (entry->d_name[0] == '.') continue;
        found++;
        strncat(names, entry->d_name, sizeof names - strlen(names) - 1);
        strncat(names, " ", sizeof names - strlen(names) - 1);
    }
    closedir(here);
    if (found != count) fail_msg("%d files, %d expected: %s", found, count, names);
}

static mode_t mode_of(const char *path)
{
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode;
}

static void replaces_a_file_and_keeps_its_mode(void **state)
{
    (void)state;
    make("file", "old", 0640);
    assert_int_equal(write_text("file", "new"), DART_OK);
    holds("file", "new");
    assert_int_equal(mode_of("file") & 07777, 0640);
    assert_int_equal(write_text("other", "first"), DART_OK);
    holds("other", "first");
    has_files(2);
    unlink("file");
    unlink("other");
}

static void refuses_read_only_files_and_folders(void **state)
{
    (void)state;
    make("file", "old", 0444);
    assert_int_equal(mkdir("below", 0777), 0);
    assert_int_equal(write_text("file", "new"), DART_IO);
    assert_non_null(strstr(report.text, "read-only"));
    assert_int_equal(write_text("below", "new"), DART_IO);
    holds("file", "old");
    assert_int_equal(mode_of("file") & 07777, 0444);
    has_files(2);
    unlink("file");
    rmdir("below");
}

static void follows_links(void **state)
{
    (void)state;
    assert_int_equal(mkdir("below", 0777), 0);
    make("below/file", "old", 0644);
    assert_int_equal(symlink("below/file", "link"), 0);
    assert_int_equal(symlink("link", "again"), 0);
    assert_int_equal(symlink("below/later", "dangling"), 0);
    assert_int_equal(write_text("again", "new"), DART_OK);
    assert_int_equal(write_text("dangling", "made"), DART_OK);
    assert_true(S_ISLNK(mode_of("link")) && S_ISLNK(mode_of("again")) && S_ISLNK(mode_of("dangling")));
    assert_true(S_ISREG(mode_of("below/file")));
    holds("below/file", "new");
    holds("below/later", "made");
    has_files(4);
    unlink("link");
    unlink("again");
    unlink("dangling");
    unlink("below/file");
    unlink("below/later");
    assert_int_equal(rmdir("below"), 0);
}

static void writes_through_to_devices_and_pipes(void **state)
{
    (void)state;
    assert_int_equal(mkfifo("pipe", 0666), 0);
    const int reader = open("pipe", O_RDONLY | O_NONBLOCK);
    char got[8] = "";
    assert_true(reader >= 0);
    assert_int_equal(write_text("pipe", "new"), DART_OK);
    assert_int_equal(read(reader, got, sizeof got), 3);
    assert_string_equal(got, "new");
    close(reader);
    assert_true(S_ISFIFO(mode_of("pipe")));
    assert_int_equal(symlink("/dev/null", "link"), 0);
    assert_int_equal(write_text("link", "new"), DART_OK);
    assert_true(S_ISLNK(mode_of("link")));
    assert_true(S_ISCHR(mode_of("/dev/null")));
    has_files(2);
    unlink("pipe");
    unlink("link");
}

/* As /dev/stdout and the paths of a shell's >(...) do, a link may lead to a pipe that has no path. */
static void writes_through_to_pipes_without_a_path(void **state)
{
    (void)state;
    int ends[2];
    char path[40], got[8] = "";
    assert_int_equal(pipe(ends), 0);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    if (access(path, W_OK) != 0) {
        print_message("NOT RUN: this system has no /dev/fd\n");
        close(ends[0]);
        close(ends[1]);
        skip();
    }
    assert_int_equal(write_text(path, "new"), DART_OK);
    close(ends[1]);
    assert_int_equal(read(ends[0], got, sizeof got), 3);
    assert_string_equal(got, "new");
    close(ends[0]);
    has_files(0);
}

static void refuses_links_in_a_circle(void **state)
{
    (void)state;
    assert_int_equal(symlink("one", "other"), 0);
    assert_int_equal(symlink("other", "one"), 0);
    assert_int_equal(write_text("one", "new"), DART_IO);
    assert_true(S_ISLNK(mode_of("one")) && S_ISLNK(mode_of("other")));
    has_files(2);
    unlink("one");
    unlink("other");
}

/* The number that the next open file gets: one that was left open has taken it. */
static int next_handle(void)
{
    const int handle = dup(STDOUT_FILENO);
    assert_true(handle >= 0);
    close(handle);
    return handle;
}

static void reads_regular_files_only(void **state)
{
    (void)state;
    file_map map;
    assert_int_equal(mkfifo("pipe", 0666), 0);
    assert_int_equal(symlink("/dev/zero", "link"), 0);
    assert_int_equal(mkdir("folder", 0777), 0);
    const int handle = next_handle();
    static const char *const paths[] = {"pipe", "link", "folder"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        assert_int_equal(file_map_open(paths[i], &report, &map), DART_IO);
        assert_non_null(strstr(report.text, "not a regular file"));
        assert_true(map.data == NULL && map.bytes == 0);
    }
    assert_int_equal(file_map_open("absent", &report, &map), DART_IO);
    assert_int_equal(write_text("file", ""), DART_OK);
    assert_int_equal(file_map_open("file", &report, &map), DART_OK);
    assert_true(map.data == NULL && map.bytes == 0);
    file_map_close(&map);
    assert_int_equal(write_text("file", "text"), DART_OK);
    assert_int_equal(file_map_open("file", &report, &map), DART_OK);
    assert_int_equal(next_handle(), handle); /* the mapping keeps the file */
    unlink("file");
    assert_true(map.bytes == 4 && memcmp(map.data, "text", 4) == 0);
    file_map_close(&map);
    unlink("pipe");
    unlink("link");
    rmdir("folder");
}

static void gives_up_without_a_trace(void **state)
{
    (void)state;
    make("file", "old", 0644);
    file_writer *writer = NULL;
    assert_int_equal(file_writer_open("file", &report, &writer), DART_OK);
    assert_int_equal(file_writer_append(writer, "new", 3), DART_OK);
    holds("file", "old");
    file_writer_destroy(&writer);
    holds("file", "old");
    has_files(1);
    unlink("file");
}

/* The system takes the first bytes and then no more, as on a full disk. */
static void refuses_half_a_file(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit little = {.rlim_cur = 5, .rlim_max = before.rlim_max};
    make("file", "old", 0644);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const dart_status status = write_text("file", "longer than that");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, DART_IO);
    holds("file", "old");
    has_files(1);
    unlink("file");
}

/* What stands at the path at last is a folder. */
static void takes_back_what_cannot_be_named(void **state)
{
    (void)state;
    file_writer *writer = NULL;
    assert_int_equal(file_writer_open("file", &report, &writer), DART_OK);
    assert_int_equal(file_writer_append(writer, "new", 3), DART_OK);
    assert_int_equal(mkdir("file", 0777), 0);
    assert_int_equal(file_writer_close(&writer), DART_IO);
    assert_null(writer);
    has_files(1);
    rmdir("file");
}

/* Some systems tell of a failed write when the file is closed. */
static void tells_that_closing_failed(void **state)
{
    (void)state;
    assert_int_equal(mkfifo("pipe", 0666), 0);
    const int reader = open("pipe", O_RDONLY | O_NONBLOCK), next = dup(reader);
    file_writer *writer = NULL;
    assert_true(reader >= 0 && next >= 0);
    close(next);
    assert_int_equal(file_writer_open("pipe", &report, &writer), DART_OK);
    assert_int_equal(file_writer_append(writer, "new", 3), DART_OK);
    close(next); /* the writer's own, opened as the lowest that was free */
    assert_int_equal(file_writer_close(&writer), DART_IO);
    close(reader);
    unlink("pipe");
}

/* Does this file system have files without a name? Elsewhere a killed program cannot clean up. */
static bool has_unnamed_files(void)
{
    file_writer *writer = NULL;
    assert_int_equal(file_writer_open("probe", &report, &writer), DART_OK);
    DIR *here = opendir(".");
    bool none = true;
    assert_non_null(here);
    for (struct dirent *entry = readdir(here); entry != NULL; entry = readdir(here)) none = none && entry->d_name[0] == '.';
    closedir(here);
    file_writer_destroy(&writer);
    return none;
}

static void leaves_nothing_behind_when_killed(void **state)
{
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGXFSZ, SIGKILL};
    if (!has_unnamed_files()) {
        print_message("NOT RUN: this file system has no files without a name\n");
        skip();
    }
    make("file", "old", 0644);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            file_writer *writer = NULL;
            const struct rlimit none = {0, 0};
            setrlimit(RLIMIT_CORE, &none);
            signal(signals[i], SIG_DFL);
            if (file_writer_open("file", &report, &writer) == DART_OK && file_writer_append(writer, "new", 3) == DART_OK) raise(signals[i]);
            _exit(1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
        holds("file", "old");
        has_files(1);
    }
    unlink("file");
}

/* Kernels release the lock of a killed program. */
static void one_program_has_a_lock(void **state)
{
    (void)state;
    file_lock *lock = NULL, *second = NULL;
    char holder[40], byte;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60); /* in case this test fails first */
        if (file_lock_open("lock", &report, &lock) == DART_OK && write(ready[1], "x", 1) == 1)
            for (;;) pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    snprintf(holder, sizeof holder, "lock: process %ld has it", (long)child);
    const int handle = next_handle();
    assert_int_equal(file_lock_open("lock", &report, &second), DART_IO);
    assert_non_null(strstr(report.text, holder));
    assert_null(second);
    assert_int_equal(next_handle(), handle);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(file_lock_open("lock", &report, &second), DART_OK);
    file_lock_close(&second);
    assert_null(second);
    assert_int_equal(file_lock_open("lock", &report, &second), DART_OK);
    file_lock_close(&second);
    file_lock_close(NULL);
    assert_int_equal(file_lock_open("no folder/lock", &report, &second), DART_IO);
    close(ready[0]);
    close(ready[1]);
    has_files(1);
    unlink("lock");
}

/* ---- What reaches the disk, and in which order ---- */

#if defined(__linux__)
int __real_fsync(int handle);
int __real_rename(const char *from, const char *to);
int __real_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __real_mkdir(const char *path, mode_t mode);
int __wrap_fsync(int handle);
int __wrap_rename(const char *from, const char *to);
int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags);
int __wrap_mkdir(const char *path, mode_t mode);

static char calls[32];  /* f: a file, d: a folder is flushed; r: rename, l: linkat, m: mkdir */
static ino_t flushed;   /* the last folder */
static int folder_fails; /* with this error */

static void called(char what)
{
    const size_t length = strlen(calls);
    if (length + 1 < sizeof calls) calls[length] = what;
}

int __wrap_fsync(int handle)
{
    struct stat info;
    if (fstat(handle, &info) != 0) return -1;
    called(S_ISDIR(info.st_mode) ? 'd' : 'f');
    if (!S_ISDIR(info.st_mode)) return __real_fsync(handle);
    flushed = info.st_ino;
    errno = folder_fails;
    return folder_fails != 0 ? -1 : __real_fsync(handle);
}

int __wrap_rename(const char *from, const char *to)
{
    called('r');
    return __real_rename(from, to);
}

int __wrap_linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    const int linked = __real_linkat(from_folder, from, to_folder, to, flags);
    if (linked == 0) called('l');
    return linked;
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    called('m');
    return __real_mkdir(path, mode);
}

static ino_t inode_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

/* The file, then its name, then the folder that has the name. */
static void expect_calls(const char *named, const char *unnamed, const char *in)
{
    if (strcmp(calls, named) != 0 && strcmp(calls, unnamed) != 0) fail_msg("calls are %s, neither %s nor %s", calls, named, unnamed);
    assert_int_equal(flushed, inode_of(in));
    memset(calls, 0, sizeof calls);
    flushed = 0;
}

static void flushes_files_and_folders(void **state)
{
    (void)state;
    memset(calls, 0, sizeof calls);
    assert_int_equal(file_make_folder("below", &report), DART_OK);
    expect_calls("md", "md", ".");
    assert_int_equal(file_make_folder("below/again//", &report), DART_OK);
    expect_calls("md", "md", "below");
    assert_int_equal(write_text("below/file", "first"), DART_OK);
    expect_calls("frd", "fld", "below");
    assert_int_equal(write_text("below/file", "second"), DART_OK);
    expect_calls("frd", "flrd", "below");
    assert_int_equal(write_text("file", "here"), DART_OK);
    expect_calls("frd", "fld", ".");
    assert_int_equal(symlink("below/file", "link"), 0);
    assert_int_equal(write_text("link", "third"), DART_OK);
    expect_calls("frd", "flrd", "below");
    folder_fails = EIO;
    assert_int_equal(write_text("below/file", "fourth"), DART_IO);
    assert_int_equal(file_make_folder("below/more", &report), DART_IO);
    folder_fails = EINVAL; /* a file system that flushes no folders */
    assert_int_equal(write_text("below/file", "fifth"), DART_OK);
    folder_fails = 0;
    holds("below/file", "fifth");
    unlink("below/file");
    unlink("file");
    unlink("link");
    rmdir("below/again");
    rmdir("below/more");
    assert_int_equal(rmdir("below"), 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replaces_a_file_and_keeps_its_mode), cmocka_unit_test(refuses_read_only_files_and_folders),
        cmocka_unit_test(follows_links),                      cmocka_unit_test(writes_through_to_devices_and_pipes),
        cmocka_unit_test(writes_through_to_pipes_without_a_path), cmocka_unit_test(refuses_links_in_a_circle),
        cmocka_unit_test(reads_regular_files_only),
        cmocka_unit_test(gives_up_without_a_trace),           cmocka_unit_test(refuses_half_a_file),
        cmocka_unit_test(takes_back_what_cannot_be_named),    cmocka_unit_test(tells_that_closing_failed),
        cmocka_unit_test(leaves_nothing_behind_when_killed),  cmocka_unit_test(one_program_has_a_lock),
#if defined(__linux__)
        cmocka_unit_test(flushes_files_and_folders),
#endif
    };
    return cmocka_run_group_tests_name("fault_outputs", tests, enter, leave);
}
