#include "cli.h"
#include "text/unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ---- */

const char *cli_count(uint64_t value, char text[CLI_NUMBER])
{
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%" PRIu64, value);
    int at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *cli_bytes(uint64_t value, char text[CLI_NUMBER])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double amount = (double)value;
    int unit = -1;
    while (amount >= 1024 && unit < 3) {
        amount /= 1024;
        unit++;
    }
    if (unit < 0) snprintf(text, CLI_NUMBER, "%" PRIu64 " B", value);
    else snprintf(text, CLI_NUMBER, amount < 100 ? "%.1f %s" : "%.0f %s", amount, units[unit]);
    return text;
}

const char *cli_rate(double value, char text[CLI_NUMBER])
{
    if (value < 100) snprintf(text, CLI_NUMBER, "%.3g", value);
    else cli_count((uint64_t)(value + 0.5), text);
    return text;
}

const char *cli_time(double seconds, char text[CLI_NUMBER])
{
    const bool whole = seconds >= 1, milli = seconds >= 1e-3;
    snprintf(text, CLI_NUMBER, "%.3g %s",
             whole   ? seconds
             : milli ? seconds * 1e3
                     : seconds * 1e6,
             whole   ? "s"
             : milli ? "ms"
                     : "us");
    return text;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_median(double *values, size_t count)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, compare);
    return count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

const char *cli_shape(const uint64_t *shape, uint32_t rank, char text[160])
{
    size_t used = 1;
    strcpy(text, "[");
    for (uint32_t i = 0; i < rank && used < 120; i++)
        used += (size_t)snprintf(text + used, 160 - used, i > 0 ? ", %" PRIu64 : "%" PRIu64, shape[i]);
    strcpy(text + used, "]");
    return text;
}

/* ---- Tables ---- */

enum { MAX_COLUMNS = 16, CELL = 320 };

struct cli_table {
    const char *alignments;
    size_t columns, count, room;
    char (*cells)[CELL];
    bool failed;
};

cli_table *cli_table_create(const char *alignments)
{
    cli_table *table = calloc(1, sizeof *table);
    if (table == NULL) return NULL;
    table->alignments = alignments;
    table->columns = strlen(alignments);
    assert(table->columns <= MAX_COLUMNS);
    return table;
}

void cli_table_cell(cli_table *table, const char *format, ...)
{
    if (table == NULL || table->failed) return;
    if (table->count == table->room) {
        const size_t room = table->room != 0 ? 2 * table->room : 64;
        char (*cells)[CELL] = realloc(table->cells, room * sizeof *cells);
        if (cells == NULL) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->room = room;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(table->cells[table->count++], CELL, format, arguments);
    va_end(arguments);
}

int cli_table_print(cli_table **table)
{
    cli_table *t = *table;
    *table = NULL;
    if (t == NULL || t->failed) {
        if (t != NULL) free(t->cells);
        free(t);
        return cli_fail_memory();
    }
    int widths[MAX_COLUMNS] = {0};
    for (size_t i = 0; i < t->count; i++) {
        const int length = (int)strlen(t->cells[i]);
        if (length > widths[i % t->columns]) widths[i % t->columns] = length;
    }
    for (size_t i = 0; i < t->count; i++) {
        const size_t column = i % t->columns;
        const bool last = column + 1 == t->columns;
        if (t->alignments[column] == 'r') printf("%*s", widths[column], t->cells[i]);
        else if (last) printf("%s", t->cells[i]);
        else printf("%-*s", widths[column], t->cells[i]);
        fputs(last ? "\n" : "  ", stdout);
    }
    free(t->cells);
    free(t);
    return CLI_OK;
}

int cli_print_json(json_t *value)
{
    if (value == NULL) return cli_fail_memory();
    const int result = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(value);
    if (result != 0) return cli_fail("the results cannot be written");
    putchar('\n');
    return CLI_OK;
}

json_t *cli_json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *cli_json_text(const char *text)
{
    static const char unknown[] = "\xEF\xBF\xBD";
    const size_t bytes = strlen(text);
    char *made = malloc(3 * bytes + 1); /* a byte becomes three at most */
    size_t used = 0;
    if (made == NULL) return NULL;
    for (size_t at = 0, invalid = 0; at < bytes;) {
        uint32_t point;
        const size_t length = text_utf8_read((const uint8_t *)text + at, bytes - at, &point, &invalid);
        memcpy(made + used, length > 0 ? text + at : unknown, length > 0 ? length : 3);
        used += length > 0 ? length : 3;
        at += length > 0 ? length : invalid;
    }
    json_t *value = json_stringn(made, used);
    free(made);
    return value;
}

int cli_print_line(json_t *value)
{
    if (value == NULL) return cli_fail_memory();
    const int failed = json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    putchar('\n');
    return failed == 0 && fflush(stdout) == 0 ? CLI_OK : cli_fail("a line could not be written to standard output");
}

/* ---- Whole numbers of files ---- */

int cli_integers(const safetensors_tensor *tensor, int32_t **values)
{
    if (tensor->dtype != SAFETENSORS_I32 && tensor->dtype != SAFETENSORS_I64)
        return cli_fail("tensor %s has dtype %s, expected I32 or I64", tensor->name,
                        safetensors_dtype_name(tensor->dtype));
    if (tensor->elements > SIZE_MAX / sizeof(int32_t) - 1) return cli_fail_memory();
    const size_t count = (size_t)tensor->elements;
    int32_t *made = malloc((count + 1) * sizeof *made);
    if (made == NULL) return cli_fail_memory();
    if (tensor->dtype == SAFETENSORS_I32) {
        if (count > 0) memcpy(made, tensor->data, count * sizeof *made);
        *values = made;
        return CLI_OK;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t wide = 0;
        memcpy(&wide, (const uint8_t *)tensor->data + i * sizeof wide, sizeof wide);
        if (wide < INT32_MIN || wide > INT32_MAX) {
            free(made);
            return cli_fail("tensor %s: element %zu is %" PRId64 ", beyond 32 bits", tensor->name, i, wide);
        }
        made[i] = (int32_t)wide;
    }
    *values = made;
    return CLI_OK;
}
