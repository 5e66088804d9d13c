/* The safetensors reader on bytes from anywhere. For clang's libFuzzer, compile with -DDART_LIBFUZZER
 * -fsanitize=fuzzer. Otherwise a program: a loop of mutations of valid files, or files that are named (mutate.h). */
#include "checkpoint/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) abort();
}

/* What must hold of whatever was accepted. */
static void check(const safetensors *file, const uint8_t *data, size_t size)
{
    uint64_t sum = 0, header = 0;
    volatile uint8_t touched = 0;
    memcpy(&header, data, 8);
    require(header <= size - 8);
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *t = safetensors_at(file, i);
        const uint8_t *bytes = t->data;
        uint64_t product = 1;
        require(t->rank <= SAFETENSORS_MAX_RANK && safetensors_dtype_size(t->dtype) > 0);
        for (uint32_t d = 0; d < t->rank; d++) product *= t->shape[d];
        require(t->elements == product && t->bytes == product * safetensors_dtype_size(t->dtype));
        require(bytes >= data + 8 + header && bytes + t->bytes <= data + size);
        if (t->bytes > 0) touched = (uint8_t)(touched + bytes[0] + bytes[t->bytes - 1]);
        require(safetensors_find(file, t->name) == t);
        sum += t->bytes;
    }
    require(sum == size - 8 - header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    base_report report;
    safetensors *file = NULL;
    if (base_report_init(&report, NULL) != DART_OK) return 0;
    const dart_status status = safetensors_open_memory(data, size, "input", &report, &file);
    require((status == DART_OK) == (file != NULL));
    require(status == DART_OK || status == DART_BAD_DATA || status == DART_OUT_OF_MEMORY);
    if (file != NULL) check(file, data, size);
    safetensors_close(&file);
    base_report_destroy(&report);
    return 0;
}

#ifndef DART_LIBFUZZER

#define ROUNDS 150000u
#define CAPACITY 2048u
#include "mutate.h"

static const struct {
    const char *header;
    size_t data;
} valid[] = {
    {"{}", 0},
    {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24},
    {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]},"
     "\"b\":{\"dtype\":\"F16\",\"shape\":[1,1,2],\"data_offsets\":[8,12]}}   ",
     12},
    {"{\"\\u00e9\\ud83d\\ude00\xC3\xA9\":{\"data_offsets\":[1,1],\"shape\":[0,7],\"dtype\":\"I64\"},"
     "\"s\":{\"shape\":[],\"dtype\":\"U8\",\"data_offsets\":[0,1]},\"__metadata__\":{\"k\\\"\":\"\\\\\\t\"}}",
     1},
};

static const char *const words[] = {
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "-",
    "0",
    "1",
    "1.5",
    "1e9",
    "null",
    "true",
    "NaN",
    "\\u0000",
    "\\ud83d",
    "\\u00e9",
    "18446744073709551615",
    "[]",
    "{}",
    "\"F32\"",
    "\"BOOL\"",
    "\"dtype\":",
    "\"shape\":",
    "\"data_offsets\":",
    "\"__metadata__\":",
    "\xC3",
    "4294967296",
};

static size_t build(size_t which, uint8_t *file)
{
    const size_t length = strlen(valid[which].header);
    memset(file, 0, 8);
    file[0] = (uint8_t)length;
    file[1] = (uint8_t)(length >> 8);
    memcpy(file + 8, valid[which].header, length);
    memset(file + 8 + length, 0x3F, valid[which].data);
    return 8 + length + valid[which].data;
}

static size_t mutate(uint8_t *file, size_t size)
{
    uint8_t piece[32];
    const size_t before = size, at = 8 + random_below(size - 7);
    switch (random_below(5)) {
    case 0:
        if (at < size) file[at] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1: {
        const char *word = words[random_below(COUNT_OF(words))];
        size = replace(file, size, at, random_below(4), word, strlen(word));
        break;
    }
    case 2: size = replace(file, size, at, random_below(24), "", 0); break;
    case 3: {
        const size_t count = random_below(sizeof piece), from = random_below(size);
        const size_t taken = count < size - from ? count : size - from;
        memcpy(piece, file + from, taken);
        size = replace(file, size, at, random_below(8), piece, taken);
        break;
    }
    default: { /* a digit for a digit finds the sums that do not match */
        const uint8_t digit = (uint8_t)('0' + random_below(10));
        size_t i = at;
        while (i < size && (file[i] < '0' || file[i] > '9')) i++;
        if (i < size) file[i] = digit;
        break;
    }
    }
    /* Most mutations of the header should get past its length. */
    if (random_below(8) == 0) {
        file[random_below(8)] = (uint8_t)random_below(256);
    } else if (random_below(8) != 0) {
        const size_t length = ((size_t)file[0] | (size_t)file[1] << 8) + size - before;
        file[0] = (uint8_t)length;
        file[1] = (uint8_t)(length >> 8);
    }
    return size;
}

/* In memory of its own, so that a sanitizer sees every byte read past the end. */
static void run(const uint8_t *file, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    require(copy != NULL);
    memcpy(copy, file, size);
    random_watch(copy, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void expect(const uint8_t *file, size_t size, dart_status wanted)
{
    base_report report;
    safetensors *opened = NULL;
    require(base_report_init(&report, NULL) == DART_OK);
    require(safetensors_open_memory(file, size, "input", &report, &opened) == wanted);
    safetensors_close(&opened);
    base_report_destroy(&report);
}

static int run_file(const char *path)
{
    size_t size = 0, capacity = 0, got;
    uint8_t *data = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    do {
        capacity += (size_t)1 << 20;
        uint8_t *larger = realloc(data, capacity);
        require(larger != NULL);
        data = larger;
        got = fread(data + size, 1, capacity - size, file);
        size += got;
    } while (size == capacity);
    fclose(file);
    run(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    argc = random_begin(argc, argv);
    static uint8_t file[CAPACITY];
    int failed = 0;
    for (int i = 1; i < argc; i++) failed |= run_file(argv[i]);
    if (argc > 1) return failed;

    for (size_t v = 0; v < COUNT_OF(valid); v++) {
        const size_t size = build(v, file);
        expect(file, size, DART_OK);
        for (size_t length = 0; length < size; length++) {
            run(file, length);
            expect(file, length, DART_BAD_DATA);
        }
    }
    for (uint32_t round = 0; random_goes_on(round, ROUNDS); round++) {
        size_t size = build(random_below(COUNT_OF(valid)), file);
        for (uint32_t steps = 1 + random_below(4); steps > 0; steps--) size = mutate(file, size);
        run(file, size);
    }
    return 0;
}

#endif
