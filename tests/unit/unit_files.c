/* Files as memory, where they lie in memory themselves: src/base/file.h. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise, MAP_ANONYMOUS */

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define HUGE ((uint64_t)2 << 20)
#define COLLAPSE 25 /* MADV_COLLAPSE */

static base_report report;
static char path[] = "/dev/shm/unit_files.XXXXXX";
static bool found; /* a file can be made there */

static int enter(void **state)
{
    (void)state;
    const int made = mkstemp(path);
    found = made >= 0;
    if (found) close(made);
    return base_report_init(&report, NULL) == DART_OK ? 0 : 1;
}

static int leave(void **state)
{
    (void)state;
    if (found) unlink(path);
    base_report_destroy(&report);
    return 0;
}

static void need_memory_files(void)
{
    if (found) return;
    print_message("NOT RUN: no files can be made in /dev/shm\n");
    skip();
}

static file_writer *open_as_memory(uint64_t bytes)
{
    file_writer *writer = NULL;
    assert_int_equal(file_writer_open(path, &report, &writer), DART_OK);
    if (file_writer_maps(writer, bytes)) return writer;
    file_writer_destroy(&writer);
    print_message("NOT RUN: this system does not find pages of files in memory ahead\n");
    skip();
    return NULL;
}

static uint8_t *place(file_writer *writer, uint64_t at, uint64_t bytes)
{
    uint8_t *placed = NULL;
    assert_int_equal(file_writer_place(writer, at, bytes, &placed), DART_OK);
    return placed;
}

/* Bytes of the mapping at this address that lie in huge pages. */
static uint64_t huge_bytes(const void *address)
{
    static const char mapped[] = "ShmemPmdMapped:";
    char line[600], *dash, *end;
    uint64_t bytes = 0;
    bool here = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        const uint64_t first = strtoull(line, &dash, 16), behind = *dash == '-' ? strtoull(dash + 1, &end, 16) : 0;
        if (behind > 0 && *end == ' ') here = (uintptr_t)address >= first && (uintptr_t)address < behind;
        else if (here && strncmp(line, mapped, sizeof mapped - 1) == 0) bytes += 1024 * strtoull(line + sizeof mapped - 1, NULL, 10);
    }
    fclose(maps);
    return bytes;
}

/* Does the system make a huge page of a file in memory, when asked as plainly as can be? */
static bool makes_huge_pages(file_writer *writer)
{
    const uint64_t bytes = 2 * HUGE;
    if (!file_writer_maps(writer, bytes)) return false;
    uint8_t *map = place(writer, 0, 1);
    return madvise(map, (size_t)HUGE, COLLAPSE) == 0 && huge_bytes(map) >= HUGE;
}

static void finds_huge_pages(void **state)
{
    (void)state;
    need_memory_files();
    const uint64_t bytes = 9 * HUGE + 12345;
    file_writer *writer = open_as_memory(bytes);
    uint8_t *map = place(writer, 100, 3 * HUGE);
    map -= 100;
    assert_int_equal((uintptr_t)map % HUGE, 0);
    memset(map + 100, 7, 3 * HUGE);
    /* The next bytes begin within the same page, and what is written there stays. */
    assert_ptr_equal(place(writer, 100 + 3 * HUGE, 2 * HUGE), map + 100 + 3 * HUGE);
    for (uint64_t i = 0; i < 3 * HUGE; i++)
        if (map[100 + i] != 7) fail_msg("byte %llu was written and is %u", (unsigned long long)(100 + i), map[100 + i]);
    for (uint64_t i = 0; i < 2 * HUGE; i++)
        if (map[100 + 3 * HUGE + i] != 0) fail_msg("byte %llu is no zero", (unsigned long long)(100 + 3 * HUGE + i));
    place(writer, 100 + 5 * HUGE, bytes - 100 - 5 * HUGE);
    const uint64_t huge = huge_bytes(map);
    memset(map + 100 + 3 * HUGE, 8, bytes - 100 - 3 * HUGE);
    assert_int_equal(file_writer_close(&writer), DART_OK);
    file_map view;
    assert_int_equal(file_map_open(path, &report, &view), DART_OK);
    assert_int_equal(view.bytes, bytes);
    assert_int_equal((uintptr_t)view.data % HUGE, 0); /* elsewhere they would be mapped in small pieces */
    for (uint64_t i = 0; i < bytes; i++) {
        const uint8_t wanted = i < 100 ? 0 : i < 100 + 3 * HUGE ? 7 : 8;
        if (view.data[i] != wanted) fail_msg("byte %llu of the file is %u", (unsigned long long)i, view.data[i]);
    }
    file_map_close(&view);
    assert_true(huge <= 9 * HUGE);
    if (huge >= 7 * HUGE) return; /* the system may refuse one that it is busy with */
    assert_int_equal(file_writer_open(path, &report, &writer), DART_OK);
    const bool makes = makes_huge_pages(writer);
    file_writer_destroy(&writer);
    assert_false(makes);
    print_message("NOT RUN: this system has no huge pages for files in memory\n");
    skip();
}

/* Pages found for more bytes than the file has at last. */
static void shortens(void **state)
{
    (void)state;
    need_memory_files();
    file_writer *writer = open_as_memory(4 * HUGE);
    place(writer, 0, 4 * HUGE);
    assert_true(file_writer_maps(writer, HUGE + 5000));
    memset(place(writer, 0, HUGE + 5000), 9, HUGE + 5000);
    assert_int_equal(file_writer_close(&writer), DART_OK);
    file_map view;
    assert_int_equal(file_map_open(path, &report, &view), DART_OK);
    assert_int_equal(view.bytes, HUGE + 5000);
    for (uint64_t i = 0; i < view.bytes; i++)
        if (view.data[i] != 9) fail_msg("byte %llu of the file is %u", (unsigned long long)i, view.data[i]);
    file_map_close(&view);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_huge_pages),
        cmocka_unit_test(shortens),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
