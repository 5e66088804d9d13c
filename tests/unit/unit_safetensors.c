/* The reader and writer of safetensors: what a file may be, and what it may not. */
#include "base/file.h"
#include "checkpoint/json.h"
#include "checkpoint/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef DART_TEST_DATA
#define DART_TEST_DATA "tests/data"
#endif
#define SCRATCH "unit_safetensors.scratch"

static base_report report;

static int set_up(void **state)
{
    (void)state;
    return base_report_init(&report, NULL) == DART_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    base_report_destroy(&report);
    return 0;
}

/* A file of this header and data_bytes bytes of data, counting up. */
static uint8_t *build(const char *header, size_t data_bytes, size_t *bytes)
{
    const size_t length = strlen(header);
    uint8_t *file = malloc(8 + length + data_bytes);
    assert_non_null(file);
    for (unsigned i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) file[8 + length + i] = (uint8_t)i;
    *bytes = 8 + length + data_bytes;
    return file;
}

static dart_status open_built(const char *header, size_t data_bytes)
{
    size_t bytes;
    uint8_t *file = build(header, data_bytes, &bytes);
    safetensors *opened = NULL;
    const dart_status status = safetensors_open_memory(file, bytes, "built", &report, &opened);
    assert_true((status == DART_OK) == (opened != NULL));
    safetensors_close(&opened);
    assert_null(opened);
    free(file);
    return status;
}

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\",\"a\\u00e9\":\"\\ud83d\\ude00\\n\"},"
                          "\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                          "\"a\":{\"data_offsets\":[8,14],\"shape\":[3],\"dtype\":\"BF16\"},"
                          "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[8,8]},"
                          "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[14,15]}}  ";

static void reads_what_is_there(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *memory = build(two, 15, &bytes);
    safetensors *file;
    assert_int_equal(safetensors_open_memory(memory, bytes, "two", &report, &file), DART_OK);
    assert_int_equal(safetensors_count(file), 4);
    for (size_t i = 1; i < safetensors_count(file); i++)
        assert_true(strcmp(safetensors_at(file, i - 1)->name, safetensors_at(file, i)->name) < 0);
    const safetensors_tensor *b = safetensors_find(file, "b"), *none = safetensors_find(file, "none");
    assert_non_null(b);
    assert_int_equal(b->dtype, SAFETENSORS_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 1);
    assert_int_equal(b->bytes, 8);
    assert_int_equal(b->elements, 2);
    assert_ptr_equal(b->data, memory + bytes - 15);
    assert_non_null(none);
    assert_int_equal(none->bytes, 0);
    assert_int_equal(safetensors_find(file, "scalar")->elements, 1);
    assert_int_equal(safetensors_find(file, "scalar")->rank, 0);
    assert_null(safetensors_find(file, "c"));
    assert_null(safetensors_find(file, ""));
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    assert_string_equal(safetensors_metadata(file, "a\xC3\xA9"), "\xF0\x9F\x98\x80\n");
    assert_null(safetensors_metadata(file, "b"));
    safetensors_close(&file);
    free(memory);
}

/* One tensor with these fields and 4 bytes of data. */
#define ONE(dtype, shape, offsets) "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

#define U8(name, count, offsets) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" count "],\"data_offsets\":[" offsets "]}"

static void accepts_odd_but_valid(void **state)
{
    (void)state;
    assert_int_equal(open_built("{}", 0), DART_OK);
    assert_int_equal(open_built(ONE("\"F32\"", "[1]", "[0,4]"), 4), DART_OK);
    assert_int_equal(open_built("{" U8("a", "1", "0,1") "," U8("b", "3", "1,4") "}", 4), DART_OK);
    assert_int_equal(open_built("{ \t\r\n} \n", 0), DART_OK);
    assert_int_equal(open_built("{\"__metadata__\":{}}", 0), DART_OK);
    assert_int_equal(open_built("{" U8("\\u0061\\/\\\"", "1", "0,1") "}", 1), DART_OK);
    assert_int_equal(
        open_built("{\"a\":{\"dtype\":\"U8\",\"shape\":[0,9223372036854775807],\"data_offsets\":[0,0]}}", 0), DART_OK);
}

static void rejects_what_is_wrong(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        "x",
        " {}",
        "[]",
        "null",
        "{",
        "{\"",
        "{\"t",
        "{\"t\"",
        "{\"t\":",
        "{}x",
        "{},",
        "{,}",
        "{\"t\":{}}",
        "{\"t\":[]}",
        "{\"t\":1}",
        "{\"t\":null}",
        "{\"t\":{\"dtype\":\"F32\"}}",
        /* sizes */
        ONE("\"F32\"", "[-1]", "[0,4]"),
        ONE("\"F32\"", "[1.0]", "[0,4]"),
        ONE("\"F32\"", "[1e0]", "[0,4]"),
        ONE("\"F32\"", "[01]", "[0,4]"),
        ONE("\"F32\"", "[+1]", "[0,4]"),
        ONE("\"F32\"", "[\"1\"]", "[0,4]"),
        ONE("\"F32\"", "[0,9223372036854775808]", "[0,0]"),
        ONE("\"F32\"", "[18446744073709551616]", "[0,4]"),
        ONE("\"F32\"", "[99999999999999999999999999]", "[0,4]"),
        ONE("\"F32\"", "[1,]", "[0,4]"),
        ONE("\"F32\"", "[,1]", "[0,4]"),
        ONE("\"F32\"", "[1 1]", "[0,4]"),
        ONE("\"F32\"", "[1", "[0,4]"),
        ONE("\"F32\"", "1", "[0,4]"),
        ONE("\"F32\"", "[[1]]", "[0,4]"),
        ONE("\"F32\"", "null", "[0,4]"),
        ONE("\"F32\"", "[true]", "[0,4]"),
        ONE("\"F32\"", "[NaN]", "[0,4]"),
        ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),
        ONE("\"F32\"", "[4611686018427387905]", "[0,4]"),
        ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"),
        ONE("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"),
        /* offsets */
        ONE("\"F32\"", "[1]", "[4,0]"),
        ONE("\"F32\"", "[1]", "[0,8]"),
        ONE("\"F32\"", "[2]", "[0,8]"),
        ONE("\"F32\"", "[1]", "[1,5]"),
        ONE("\"F32\"", "[1]", "[0]"),
        ONE("\"F32\"", "[1]", "[0,4,4]"),
        ONE("\"F32\"", "[1]", "[0,18446744073709551615]"),
        ONE("\"F32\"", "[1]", "[18446744073709551612,4]"),
        ONE("\"F32\"", "[2]", "[0,4]"),
        ONE("\"F16\"", "[1]", "[0,4]"),
        ONE("\"U8\"", "[3]", "[1,4]"),
        ONE("\"U8\"", "[3]", "[0,3]"),
        ONE("\"F32\"", "[1]", "{}"),
        /* dtypes */
        ONE("\"F33\"", "[1]", "[0,4]"),
        ONE("\"f32\"", "[1]", "[0,4]"),
        ONE("\"\"", "[1]", "[0,4]"),
        ONE("32", "[1]", "[0,4]"),
        ONE("\"F32\\u0000\"", "[1]", "[0,4]"),
        ONE("\"F4\"", "[8]", "[0,4]"),
        /* names and keys */
        "{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"more\":1}}",
        "{" U8("t", "4", "0,4") ",}",
        "{" U8("t", "2", "0,2") "," U8("t", "2", "2,4") "}",
        "{" U8("t", "2", "0,2") "," U8("\\u0074", "2", "2,4") "}",
        "{" U8("a", "3", "0,3") "," U8("b", "2", "2,4") "}",
        "{" U8("a", "4", "0,4") "," U8("b", "4", "0,4") "}",
        "{" U8("a", "1", "0,1") "," U8("b", "2", "2,4") "}",
        "{" U8("a", "4", "0,4") "," U8("b", "0", "2,2") "}",
        "{\"a\\u001b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"a\x7F\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"a\xC2\x9B\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"a\\u009b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"a\n\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\\u0000\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\\x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\\udc00\\ud800\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\\u00g0\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\x80\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\xC0\xAF\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\xE0\x80\xAF\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\xED\xA0\x80\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\xF4\x90\x80\x80\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
        "{\"\xF0\x9F\x98\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const dart_status status = open_built(wrong[i], 4);
        if (status != DART_BAD_DATA) fail_msg("status %d for %s", (int)status, wrong[i]);
    }
    static const char *const metadata[] = {
        "{\"__metadata__\":[]}",
        "{\"__metadata__\":\"x\"}",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":{\"a\":{}}}",
        "{\"__metadata__\":{\"a\":null}}",
        "{\"__metadata__\":{\"a\":\"1\",\"b\":\"1\",\"a\":\"2\"}}",
        "{\"__metadata__\":{\"a\":\"1\",}}",
        "{\"__metadata__\":{},\"__metadata__\":{}}",
    };
    for (size_t i = 0; i < COUNT_OF(metadata); i++) assert_int_equal(open_built(metadata[i], 0), DART_BAD_DATA);
    assert_int_equal(open_built("{}", 1), DART_BAD_DATA);
}

static void rejects_nesting_and_long_headers(void **state)
{
    (void)state;
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH + 1);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    memcpy(deep, "{\"a\":", 5);
    deep[DEPTH] = '\0';
    assert_int_equal(open_built(deep, 0), DART_BAD_DATA);
    for (size_t i = 5; i + 5 <= DEPTH; i += 5) memcpy(deep + i, "{\"a\":", 5);
    assert_int_equal(open_built(deep, 0), DART_BAD_DATA);
    free(deep);

    safetensors *file = NULL;
    uint8_t start[16] = {0};
    static const uint64_t lengths[] = {
        0, 1, 9, CHECKPOINT_MAX_JSON, CHECKPOINT_MAX_JSON + 1u, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (unsigned b = 0; b < 8; b++) start[b] = (uint8_t)(lengths[i] >> 8 * b);
        start[8] = '{';
        assert_int_equal(safetensors_open_memory(start, sizeof start, "start", &report, &file), DART_BAD_DATA);
        assert_null(file);
        if (lengths[i] > sizeof start - 8 && lengths[i] <= CHECKPOINT_MAX_JSON) assert_non_null(strstr(report.text, "reaches past the end"));
    }
}

static void rejects_every_prefix(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *whole = build(two, 15, &bytes);
    safetensors *file = NULL;
    for (size_t length = 0; length < bytes; length++) {
        uint8_t *prefix = malloc(length + 1); /* exact, so that a sanitizer sees any read past the end */
        assert_non_null(prefix);
        memcpy(prefix + 1, whole, length);
        assert_int_equal(safetensors_open_memory(prefix + 1, length, "prefix", &report, &file), DART_BAD_DATA);
        assert_null(file);
        free(prefix);
    }
    free(whole);
}

static void messages_name_tensor_and_key(void **state)
{
    (void)state;
    char text[512];
    assert_int_equal(open_built(ONE("\"F33\"", "[1]", "[0,4]"), 4), DART_BAD_DATA);
    base_report_copy(&report, text, sizeof text);
    assert_string_equal(text, "built: tensor t: dtype is unknown");
}

static void reads_the_fixtures(void **state)
{
    (void)state;
    safetensors *file = NULL;
    assert_int_equal(safetensors_open(DART_TEST_DATA "/mqar-dart", &report, &file), DART_OK);
    assert_int_equal(safetensors_count(file), 27);
    const safetensors_tensor *t = safetensors_find(file, "backbone.layers.1.mixer.sma_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[0], 88);
    assert_int_equal(t->shape[1], 64);
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    safetensors_close(&file);

    assert_int_equal(safetensors_open(DART_TEST_DATA "/hf-mamba2/expected.safetensors", &report, &file), DART_OK);
    t = safetensors_find(file, "ids");
    assert_non_null(t);
    assert_int_equal(t->dtype, SAFETENSORS_I32);
    for (uint64_t i = 0; i < t->elements; i++) {
        int32_t id;
        memcpy(&id, (const uint8_t *)t->data + 4 * i, sizeof id);
        assert_in_range(id, 0, 300);
    }
    assert_int_equal(safetensors_find(file, "logits_fp64")->dtype, SAFETENSORS_F64);
    safetensors_close(&file);

    static const char *const others[] = {"/hf-mamba2", "/mqar-mamba2", "/mqar-dart/test.safetensors",
                                         "/mqar-mamba2/test.safetensors"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", DART_TEST_DATA, others[i]);
        assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
        safetensors_close(&file);
    }
}

static void converts_from_any_address(void **state)
{
    (void)state;
    enum { COUNT = 700 };
    static uint8_t room[4 * COUNT + 8];
    static float out[COUNT];
    for (unsigned shift = 0; shift < 8; shift++) {
        for (unsigned i = 0; i < COUNT; i++) {
            const float value = (float)i - 350;
            memcpy(room + shift + 4 * i, &value, sizeof value);
        }
        const safetensors_tensor t = {
            .name = "t", .dtype = SAFETENSORS_F32, .data = room + shift, .rank = 1, .shape = {COUNT}};
        safetensors_to_f32(&t, 3, COUNT - 3, out);
        for (unsigned i = 3; i < COUNT; i++) assert_true(out[i - 3] == (float)i - 350);
        for (unsigned i = 0; i < COUNT; i++) { /* i counted in bf16: 1, 1 + 2^-7, ... */
            const uint16_t bits = (uint16_t)(0x3F80 + i % 128);
            memcpy(room + shift + 2 * i, &bits, sizeof bits);
        }
        const safetensors_tensor b = {
            .name = "b", .dtype = SAFETENSORS_BF16, .data = room + shift, .rank = 1, .shape = {COUNT}};
        safetensors_to_f32(&b, 0, COUNT, out);
        for (unsigned i = 0; i < COUNT; i++) assert_true(out[i] == 1 + (float)(i % 128) / 128);
    }
}

static void put_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    static const char path[] = SCRATCH ".safetensors";
    static const float f[6] = {1, 2, 3, 4, 5, -0.0f};
    static const uint8_t bytes[3] = {7, 8, 9};
    static const double d = 2.5;
    const safetensors_tensor entries[] = {
        {.name = "bytes", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {3}, .data = bytes},
        {.name = "f \"\\ \xC3\xA9", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {2, 3}, .data = f},
        {.name = "none", .dtype = SAFETENSORS_BF16, .rank = 2, .shape = {0, 4}},
        {.name = "scalar", .dtype = SAFETENSORS_F64, .data = &d},
    };
    safetensors *file = NULL;
    put_file(path, "old", 3);
    assert_int_equal(safetensors_write(path, entries, COUNT_OF(entries), &report), DART_OK);
    assert_false(file_exists(SCRATCH ".safetensors.0.tmp"));
    assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
    assert_int_equal(safetensors_count(file), COUNT_OF(entries));
    assert_string_equal(safetensors_metadata(file, "format"), "pt");
    for (size_t i = 0; i < COUNT_OF(entries); i++) {
        const safetensors_tensor *t = safetensors_find(file, entries[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, entries[i].dtype);
        assert_int_equal(t->rank, entries[i].rank);
        assert_memory_equal(t->shape, entries[i].shape, sizeof t->shape);
        if (t->bytes > 0) assert_memory_equal(t->data, entries[i].data, (size_t)t->bytes);
        assert_int_equal((uintptr_t)t->data % safetensors_dtype_size(t->dtype), 0);
    }
    safetensors_close(&file);
    assert_int_equal(safetensors_write(path, NULL, 0, &report), DART_OK);
    assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
    assert_int_equal(safetensors_count(file), 0);
    safetensors_close(&file);

    /* What cannot be written leaves what was there. */
    const safetensors_tensor wrong[][2] = {
        {{.name = "a", .rank = 1, .shape = {1}, .data = f}, {.name = "a", .rank = 1, .shape = {1}, .data = f}},
        {{.name = "__metadata__", .rank = 1, .shape = {1}, .data = f}, {.name = "b", .data = f}},
        {{.name = "a\x1b", .data = f}, {.name = "b", .data = f}},
        {{.name = "a\xFF", .data = f}, {.name = "b", .data = f}},
        {{.name = "a", .data = NULL}, {.name = "b", .data = f}},
        {{.name = "a", .rank = SAFETENSORS_MAX_RANK + 1, .data = f}, {.name = "b", .data = f}},
        {{.name = "a", .dtype = SAFETENSORS_DTYPE_COUNT, .data = f}, {.name = "b", .data = f}},
        {{.name = "a", .rank = 2, .shape = {UINT64_C(1) << 40, UINT64_C(1) << 40}, .data = f},
         {.name = "b", .data = f}},
        {{.name = "a", .rank = 1, .shape = {UINT64_C(1) << 60}, .data = f},
         {.name = "b", .rank = 1, .shape = {UINT64_C(3) << 60}, .data = f}},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_int_equal(safetensors_write(path, wrong[i], 2, &report), DART_INVALID_ARGUMENT);
    assert_int_equal(safetensors_open(path, &report, &file), DART_OK);
    safetensors_close(&file);
    assert_int_equal(safetensors_write(SCRATCH "/no/such/folder", entries, 1, &report), DART_IO);
    remove(path);
}

static void opens_shards(void **state)
{
    (void)state;
    static const float f[4] = {1, 2, 3, 4};
    const safetensors_tensor entries[] = {{.name = "a", .rank = 1, .shape = {1}, .data = f},
                                          {.name = "b", .rank = 1, .shape = {4}, .data = f}};
    static const struct {
        const char *index;
        dart_status status;
    } cases[] = {
        {"{\"metadata\":{\"total_size\":20},\"weight_map\":{\"a\":\"" SCRATCH "-1\",\"b\":\"" SCRATCH "-2\"}}",
         DART_OK},
        {"{\"weight_map\":{\"b\":\"" SCRATCH "-2\"}}", DART_OK},
        {"{\"weight_map\":{\"a\":\"" SCRATCH "-2\",\"b\":\"" SCRATCH "-1\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"" SCRATCH "-1\",\"b\":\"" SCRATCH "-2\",\"c\":\"" SCRATCH "-2\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"" SCRATCH "-1\",\"b\":\"" SCRATCH "-3\"}}", DART_IO},
        {"{\"weight_map\":{\"a\":\"" SCRATCH "-1\",\"a\":\"" SCRATCH "-1\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"./" SCRATCH "-1\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"..\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"C:\\\\x\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":\"\"}}", DART_BAD_DATA},
        {"{\"weight_map\":{\"a\":1}}", DART_BAD_DATA},
        {"{\"weight_map\":{}}", DART_BAD_DATA},
        {"{\"weight_map\":[]}", DART_BAD_DATA},
        {"{}", DART_BAD_DATA},
        {"[]", DART_BAD_DATA},
        {"", DART_BAD_DATA},
    };
    safetensors *file = NULL;
    assert_int_equal(safetensors_write(SCRATCH "-1", &entries[0], 1, &report), DART_OK);
    assert_int_equal(safetensors_write(SCRATCH "-2", &entries[1], 1, &report), DART_OK);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        put_file(SCRATCH ".index.json", cases[i].index, strlen(cases[i].index));
        const dart_status status = safetensors_open(SCRATCH ".index.json", &report, &file);
        if (status != cases[i].status) fail_msg("status %d for %s", (int)status, cases[i].index);
        if (i == 0) {
            assert_int_equal(safetensors_count(file), 2);
            assert_int_equal(safetensors_find(file, "a")->shard, 0);
            assert_int_equal(safetensors_find(file, "b")->shard, 1);
            assert_memory_equal(safetensors_find(file, "b")->data, f, sizeof f);
        }
        safetensors_close(&file);
    }
    /* The same name in two shards. */
    assert_int_equal(safetensors_write(SCRATCH "-2", entries, 2, &report), DART_OK);
    put_file(SCRATCH ".index.json", cases[0].index, strlen(cases[0].index));
    assert_int_equal(safetensors_open(SCRATCH ".index.json", &report, &file), DART_BAD_DATA);
    assert_non_null(strstr(report.text, "a stands twice"));
    /* A tensor that the index does not list. */
    put_file(SCRATCH ".index.json", cases[1].index, strlen(cases[1].index));
    assert_int_equal(safetensors_open(SCRATCH ".index.json", &report, &file), DART_BAD_DATA);
    remove(SCRATCH "-1");
    remove(SCRATCH "-2");
    remove(SCRATCH ".index.json");
}

static void says_what_cannot_be_opened(void **state)
{
    (void)state;
    safetensors *file = NULL;
    assert_int_equal(safetensors_open("no such file", &report, &file), DART_IO);
    assert_int_equal(safetensors_open("no such file.json", &report, &file), DART_IO);
    assert_int_equal(safetensors_open(DART_TEST_DATA, &report, &file), DART_IO);
    assert_int_equal(safetensors_open(DART_TEST_DATA "/mqar-dart/config.json", &report, &file), DART_BAD_DATA);
    put_file(SCRATCH, "", 0);
    assert_int_equal(safetensors_open(SCRATCH, &report, &file), DART_BAD_DATA);
    remove(SCRATCH);
    assert_null(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_is_there),        cmocka_unit_test(accepts_odd_but_valid),
        cmocka_unit_test(rejects_what_is_wrong),      cmocka_unit_test(rejects_nesting_and_long_headers),
        cmocka_unit_test(rejects_every_prefix),       cmocka_unit_test(messages_name_tensor_and_key),
        cmocka_unit_test(reads_the_fixtures),         cmocka_unit_test(converts_from_any_address),
        cmocka_unit_test(writes_what_it_reads),       cmocka_unit_test(opens_shards),
        cmocka_unit_test(says_what_cannot_be_opened),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
