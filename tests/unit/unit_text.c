/* Tokenizers: ids and texts as the reference has them, streams, lists, tables, and pieces merged in windows. */
#include "dartlm/text.h"
#include "text/merge.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef DART_TEST_DATA
#define DART_TEST_DATA "tests/data"
#endif
#define FOLDER DART_TEST_DATA "/tokenizer"

static json_t *golden;
static uint64_t random_state = 1;

static uint32_t random_below(size_t limit) { return (uint32_t)(base_mix(random_state++) % limit); }

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *value = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (value == NULL) fail_msg("%s:%d: %s", path, error.line, error.text);
    return value;
}

static int set_up(void **state)
{
    (void)state;
    golden = load(FOLDER "/golden.json");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

/* The fixture with some keys of its own. */
static dart_tokenizer *open_variant(const char *name)
{
    char error[600];
    dart_tokenizer *t = NULL;
    json_t *root = load(FOLDER "/tokenizer.json");
    json_object_update(root, json_object_get(json_object_get(golden, "variants"), name));
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(text);
    const dart_tokenizer_source source = {.json = text, .json_bytes = strlen(text)};
    if (dart_tokenizer_create(&source, &t, error, sizeof error) != DART_OK) fail_msg("%s: %s", name, error);
    free(text);
    json_decref(root);
    return t;
}

static void must(const dart_tokenizer *t, dart_status status)
{
    char text[600];
    dart_tokenizer_error(t, text, sizeof text);
    if (status != DART_OK) fail_msg("%s: %s", dart_status_name(status), text);
}

static dart_token_list encode(dart_tokenizer *t, const char *text, size_t bytes, bool plain, bool frame)
{
    const dart_encode_options options = {.plain = plain, .frame = frame};
    dart_token_list list = {NULL, 0, 0};
    must(t, dart_tokenizer_encode(t, text, bytes, &options, &list));
    return list;
}

/* The text of ids, fed in groups of up to `most`, for free(). Each part must be whole characters. */
static char *decode(dart_tokenizer *t, const int32_t *ids, size_t count, const dart_text_options *options, size_t most, bool *stopped)
{
    dart_text_stream *stream = NULL;
    text_bytes all = {NULL, 0, 0};
    const char *text;
    size_t bytes;
    bool stop = false;
    must(t, dart_text_stream_create(t, options, &stream));
    for (size_t i = 0; i < count;) {
        size_t some = 1 + random_below(most);
        if (some > count - i) some = count - i;
        must(t, dart_text_stream_feed(stream, ids + i, some, &text, &bytes, &stop));
        assert_int_equal(text_utf8_prefix((const uint8_t *)text, bytes), bytes);
        assert_true(text_bytes_add(&all, text, bytes));
        i += some;
    }
    must(t, dart_text_stream_end(stream, &text, &bytes));
    assert_true(text_bytes_add(&all, text, bytes));
    assert_true(text_bytes_add(&all, "", 1));
    dart_text_stream_destroy(&stream);
    if (stopped != NULL) *stopped = stop;
    return (char *)all.at;
}

/* ---- As the reference ---- */

static void same_ids(const char *variant, size_t at, const dart_token_list *got, const json_t *expected)
{
    if (got->count != json_array_size(expected)) fail_msg("%s: text %zu has %zu ids, not %zu", variant, at, got->count, json_array_size(expected));
    for (size_t i = 0; i < got->count; i++)
        if (got->ids[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: id %zu of text %zu is %d, not %d", variant, i, at, (int)got->ids[i], (int)json_integer_value(json_array_get(expected, i)));
}

static void agrees_with_the_reference(void **state)
{
    (void)state;
    const char *variant;
    const json_t *keys, *item;
    size_t at;
    json_object_foreach(json_object_get(golden, "variants"), variant, keys)
    {
        char plain[40], text_key[40];
        dart_tokenizer *t = open_variant(variant);
        snprintf(plain, sizeof plain, "%s-plain", variant);
        snprintf(text_key, sizeof text_key, "%s-text", variant);
        json_array_foreach(json_object_get(golden, "cases"), at, item)
        {
            const json_t *text = json_object_get(item, "text"), *decoded = json_object_get(item, text_key);
            dart_token_list list = encode(t, json_string_value(text), json_string_length(text), false, false);
            same_ids(variant, at, &list, json_object_get(item, variant));
            char *back = decode(t, list.ids, list.count, NULL, 3, NULL);
            assert_memory_equal(back, json_string_value(decoded), json_string_length(decoded) + 1);
            free(back);
            dart_token_list_free(&list);
            list = encode(t, json_string_value(text), json_string_length(text), true, true);
            same_ids(plain, at, &list, json_object_get(item, plain));
            dart_token_list_free(&list);
        }
        dart_tokenizer_destroy(&t);
    }
}

static void describes(void **state)
{
    (void)state;
    dart_tokenizer *t = NULL;
    dart_tokenizer_info info;
    char error[600];
    assert_int_equal(dart_tokenizer_open(FOLDER, &t, error, sizeof error), DART_OK);
    assert_int_equal(dart_tokenizer_describe(t, &info), DART_OK);
    assert_int_equal(info.ids, 1000);
    assert_int_equal(info.tokens, 1000);
    assert_int_equal(info.bos, 0);
    assert_int_equal(info.eos, 0);
    assert_true(info.nfc);
    assert_false(info.frames);
    assert_int_equal(dart_tokenizer_find(t, "<|padding|>"), 1);
    assert_int_equal(dart_tokenizer_find(t, "  "), 999);
    assert_int_equal(dart_tokenizer_find(t, "<|none|>"), -1);
    assert_int_equal(dart_tokenizer_find(t, " a"), -1);
    assert_true(dart_tokenizer_find(t, "\xC4\xA0" "a") > 1);
    dart_tokenizer_destroy(&t);
    assert_null(t);
    assert_int_equal(dart_tokenizer_open(FOLDER "/tokenizer.json", &t, error, sizeof error), DART_OK);
    assert_int_equal(dart_tokenizer_describe(t, &info), DART_OK);
    assert_int_equal(info.eos, 0);
    dart_tokenizer_destroy(&t);
    assert_int_equal(dart_tokenizer_open(DART_TEST_DATA "/nowhere", &t, error, sizeof error), DART_IO);
    assert_non_null(strstr(error, "nowhere"));
    assert_null(t);
    dart_tokenizer_destroy(NULL);
    dart_tokenizer_destroy(&t);
}

/* ---- Encoding ---- */

static void appends_or_leaves_alone(void **state)
{
    (void)state;
    dart_tokenizer *t = open_variant("neox");
    dart_token_list list = {NULL, 0, 0};
    char text[200];
    must(t, dart_tokenizer_encode(t, "one", 3, NULL, &list));
    const size_t first = list.count;
    must(t, dart_tokenizer_encode(t, NULL, 0, NULL, &list));
    assert_int_equal(list.count, first);
    must(t, dart_tokenizer_encode(t, "one", 3, NULL, &list));
    assert_int_equal(list.count, 2 * first);
    assert_memory_equal(list.ids, list.ids + first, first * sizeof *list.ids);
    static const struct {
        const char *text;
        size_t bytes;
        const char *said;
    } wrong[] = {{"ab\xFF", 3, "byte 2 is 0xFF"},     {"\xC3", 1, "byte 0 is 0xC3"},         {"a\xED\xA0\x80", 4, "byte 1 is 0xED"},
                 {"\xC0\x80", 2, "byte 0 is 0xC0"},   {"\xF4\x90\x80\x80", 4, "byte 0"},     {"12345678\xE2\x82", 10, "byte 8 is 0xE2"},
                 {"\xF0\x9F\x98", 3, "byte 0 is 0xF0"}, {"12345678\x80", 9, "byte 8 is 0x80"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(dart_tokenizer_encode(t, wrong[i].text, wrong[i].bytes, NULL, &list), DART_BAD_DATA);
        dart_tokenizer_error(t, text, sizeof text);
        assert_non_null(strstr(text, wrong[i].said));
        assert_int_equal(list.count, 2 * first);
    }
    assert_int_equal(dart_tokenizer_encode(t, "", DART_TEXT_BYTES + 1, NULL, &list), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_encode(t, NULL, 1, NULL, &list), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_encode(t, "a", 1, NULL, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_tokenizer_encode(NULL, "a", 1, NULL, &list), DART_INVALID_ARGUMENT);
    dart_token_list_free(&list);
    dart_token_list_free(&list);
    dart_token_list_free(NULL);
    dart_tokenizer_destroy(&t);
}

typedef struct asker {
    uint32_t calls, most; /* says no at its call `most` */
    uint64_t done, of;
} asker;

static bool ask(void *user, uint64_t done, uint64_t of)
{
    asker *a = user;
    assert_true(done <= of && (a->calls == 0 ? done == 0 : done >= a->done + (1 << 20) && of == a->of));
    a->done = done;
    a->of = of;
    return a->calls++ != a->most;
}

/* Telling how far it is changes no token, of text that grows and shrinks in its normal form, with and without added tokens. */
static void encoding_can_be_ended(void **state)
{
    (void)state;
    enum { BYTES = 5 << 20 };
    static const char *const parts[] = {"the end ", "e\xCC\x81te\xCC\x81 ", "\xE0\xA5\x98\xE0\xA5\x98 ", "a<|endoftext|>  "};
    dart_tokenizer *t = open_variant("neox");
    char *text = malloc(BYTES), said[200];
    assert_non_null(text);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const size_t one = strlen(parts[i]), bytes = BYTES / one * one;
        for (size_t at = 0; at < bytes; at += one) memcpy(text + at, parts[i], one);
        dart_token_list wanted = encode(t, text, bytes, false, false);
        asker whole = {.most = UINT32_MAX};
        dart_encode_options options = {.go_on = ask, .user = &whole};
        dart_token_list list = {NULL, 0, 0};
        must(t, dart_tokenizer_encode(t, text, bytes, &options, &list));
        assert_int_equal(list.count, wanted.count);
        assert_memory_equal(list.ids, wanted.ids, wanted.count * sizeof *wanted.ids);
        assert_int_equal(whole.of, bytes);
        assert_true(whole.calls >= 3);
        for (uint32_t most = 0; most < whole.calls; most += whole.calls - 1) {
            asker a = {.most = most};
            options.user = &a;
            assert_int_equal(dart_tokenizer_encode(t, text, bytes, &options, &list), DART_CANCELLED);
            assert_int_equal(a.calls, most + 1);
            assert_int_equal(list.count, wanted.count);
            dart_tokenizer_error(t, said, sizeof said);
            assert_non_null(strstr(said, "ended by go_on"));
        }
        dart_token_list_free(&wanted);
        dart_token_list_free(&list);
    }
    free(text);
    dart_tokenizer_destroy(&t);
}

/* Text without special tokens comes back in normal form, and its ids do not change. */
static void goes_round(void **state)
{
    (void)state;
    static const uint32_t limits[] = {0x80, 0x250, 0x3100, 0x110000};
    dart_tokenizer *t = open_variant("neox");
    uint8_t *properties = text_properties_create();
    assert_non_null(properties);
    for (uint32_t round = 0; round < 3000; round++) {
        text_bytes text = {NULL, 0, 0}, normal = {NULL, 0, 0}, again = {NULL, 0, 0};
        for (uint32_t n = random_below(60) + 1; n > 0; n--) {
            const uint32_t point = random_below(limits[random_below(COUNT_OF(limits))]);
            assert_true(text_bytes_reserve(&text, 4));
            if ((point < 0xD800 || point > 0xDFFF) && point > 0) text.count += text_utf8_write(point, text.at + text.count);
        }
        assert_true(text_normalize(properties, text.at, text.count, &normal));
        assert_true(text_normalize(properties, normal.at, normal.count, &again));
        assert_int_equal(again.count, normal.count);
        if (normal.count > 0) assert_memory_equal(again.at, normal.at, normal.count);
        assert_true(text_bytes_add(&normal, "", 1));
        dart_token_list list = encode(t, (const char *)text.at, text.count, true, false);
        char *back = decode(t, list.ids, list.count, &(dart_text_options){.with_special = true}, 4, NULL);
        assert_string_equal(back, (const char *)normal.at);
        free(back);
        dart_token_list_free(&list);
        free(text.at);
        free(normal.at);
        free(again.at);
    }
    free(properties);
    dart_tokenizer_destroy(&t);
}

/* A block has the ends that the pieces have one by one, up to the second but last byte that is known to be ASCII, or to the end of the text. */
static void finds_ends_in_blocks(void **state)
{
    (void)state;
    static const char *const parts[] = {"a", "re", "ve", "ll", "s", "t", "Z", "z", "@", "[", "`", "{", "'", "'s", "'re", "'", " ", " ", "  ", "\t",
                                        "\n", "\r", "\v", "\x08", "\x0E", "!", "\x1F", "0", "9", "/", ":", "\x7F", "\xC3\xA9", "\xC2\xA7",
                                        "\xE2\x80\xA9", "\xF0\x9F\x98\x80"};
    uint8_t *properties = text_properties_create();
    assert_non_null(properties);
    uint32_t found = 0;
    for (uint32_t round = 0; round < 200000; round++) {
        const uint32_t kinds = 1 + random_below(COUNT_OF(parts)), most = 1 + random_below(100);
        uint8_t text[200];
        size_t bytes = 0, ascii = 0;
        uint64_t expected = 0;
        memset(text, ' ', sizeof text);
        while (bytes < most) {
            const char *part = parts[random_below(kinds)];
            memcpy(text + bytes, part, strlen(part));
            bytes += strlen(part);
        }
        while (ascii < bytes && ascii < TEXT_BLOCK && text[ascii] < 0x80) ascii++;
        for (size_t at = 0; at < ascii;) {
            at = text_piece_end(TEXT_PATTERN_GPT2, properties, text, at, bytes);
            if (at + 2 <= ascii || (ascii == bytes && ascii < TEXT_BLOCK)) expected |= UINT64_C(1) << at;
        }
        const uint64_t ends = text_block_ends(text, bytes);
        if (ends != expected)
            fail_msg("round %u: %llx, not %llx: %.*s", round, (unsigned long long)ends, (unsigned long long)expected, (int)bytes, (const char *)text);
        found += ends != 0;
    }
    assert_true(found > 100000);
    free(properties);
}

/* Added tokens are found where looking for each at each place finds them, whether they begin alike or not. */
static void finds_added_tokens(void **state)
{
    (void)state;
    static const char letters[] = "<|a\xC3";
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t others = random_below(20), alike = random_below(3), count = 1 + random_below(4), from = random_below(20);
        text_added added = {.count = 0};
        uint8_t text[80];
        const size_t bytes = from + random_below(sizeof text - from);
        for (uint32_t i = 0; i < count; i++) {
            uint8_t content[5];
            const uint32_t length = 1 + random_below(sizeof content);
            for (uint32_t k = 0; k < length; k++) content[k] = (uint8_t)letters[k < alike ? k : random_below(sizeof letters - 1)];
            assert_true(text_added_add(&added, content, length, (int32_t)i, false));
        }
        for (size_t i = 0; i < bytes; i++) text[i] = (uint8_t)(random_below(1 + others) == 0 ? letters[random_below(sizeof letters - 1)] : 'x');
        if (text_added_finish(&added) == NULL) {
            const text_added_token *expected = NULL;
            size_t place = from, at = 0;
            for (; place < bytes && expected == NULL; place++)
                for (uint32_t i = 0; i < count; i++) {
                    const text_added_token *token = &added.tokens[i];
                    if (token->count > bytes - place || memcmp(text + place, token->at, token->count) != 0) continue;
                    if (expected == NULL || token->count > expected->count) expected = token;
                }
            assert_ptr_equal(text_added_find(&added, text, from, bytes, &at), expected);
            if (expected != NULL) assert_int_equal(at, place - 1);
        }
        text_added_free(&added);
    }
}

/* Windows of any size, a heap and what short pieces take give the same tokens, also where windows do not join, and where a byte has no token. */
static void merges_in_windows(void **state)
{
    (void)state;
    dart_tokenizer *t = open_variant("neox");
    static const uint32_t sizes[] = {1, 2, 7, 16, 33, 64, 200, 1000, TEXT_WINDOW};
    uint32_t joined_count = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        uint8_t piece[3000];
        const uint32_t bytes = 1 + random_below(round % 5 == 0 ? sizeof piece : 40), letters = 1 + random_below(27);
        if (round == 1000) t->vocabulary.symbols['t'] = TEXT_NO_TOKEN;
        dart_token_list expected = {NULL, 0, 0}, list = {NULL, 0, 0};
        for (uint32_t i = 0; i < bytes; i++) piece[i] = (uint8_t)("etaoinshrdlcumwfgypbvkjxqz-"[random_below(letters)]);
        assert_true(text_merge_by_heap(&t->vocabulary, piece, bytes, &expected));
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            bool joined = false;
            list.count = 0;
            assert_true(text_merge_in_windows(&t->vocabulary, piece, bytes, sizes[s], &list, &joined));
            if (!joined) continue;
            joined_count++;
            assert_int_equal(list.count, expected.count);
            assert_memory_equal(list.ids, expected.ids, expected.count * sizeof *list.ids);
        }
        list.count = 0;
        assert_true(text_merge(&t->vocabulary, piece, bytes, &list));
        assert_int_equal(list.count, expected.count);
        assert_memory_equal(list.ids, expected.ids, expected.count * sizeof *list.ids);
        dart_token_list_free(&expected);
        dart_token_list_free(&list);
    }
    assert_true(joined_count > 10000);
    dart_tokenizer_destroy(&t);
}

/* ---- Decoding ---- */

static void gives_whole_characters(void **state)
{
    (void)state;
    dart_tokenizer *t = open_variant("neox");
    const char *emoji = "\xF0\x9F\x98\x80";
    dart_token_list list = encode(t, emoji, 4, false, false);
    dart_text_stream *stream = NULL;
    const char *text;
    size_t bytes;
    assert_true(list.count > 1);
    must(t, dart_text_stream_create(t, NULL, &stream));
    for (size_t i = 0; i < list.count; i++) {
        must(t, dart_text_stream_feed(stream, list.ids + i, 1, &text, &bytes, NULL));
        assert_int_equal(bytes, i + 1 < list.count ? 0 : 4);
    }
    assert_memory_equal(text, emoji, 4);
    must(t, dart_text_stream_feed(stream, list.ids, list.count - 1, &text, &bytes, NULL)); /* not all of it */
    assert_int_equal(bytes, 0);
    must(t, dart_text_stream_end(stream, &text, &bytes));
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "\xEF\xBF\xBD", 3);
    must(t, dart_text_stream_end(stream, &text, &bytes));
    assert_int_equal(bytes, 0);
    const int32_t none[] = {-1, 1000, INT32_MAX, 0}; /* 0 is special */
    must(t, dart_text_stream_feed(stream, none, 4, &text, &bytes, NULL));
    assert_int_equal(bytes, 0);
    dart_text_stream_destroy(&stream);
    char *back = decode(t, none, 4, &(dart_text_options){.with_special = true}, 4, NULL);
    assert_string_equal(back, "<|endoftext|>");
    free(back);
    dart_token_list_free(&list);
    dart_tokenizer_destroy(&t);
}

static void stops_at_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stops[3], *expected;
        bool stopped;
    } cases[] = {
        {"one two three", {"two"}, "one ", true},
        {"one two three", {"four", "thr", "tw"}, "one ", true},
        {"one two three", {"threes", "x"}, "one two three", false},
        {"aaab", {"aab"}, "a", true},
        {"ababab abac", {"abac"}, "ababab ", true},
        {"a\n\nb", {"\n\n"}, "a", true},
        {"a\n\nb", {"\n\nb", "\n"}, "a", true},
        {"x\xF0\x9F\x98\x80y", {"\xF0\x9F\x98\x80"}, "x", true},
        {"stop", {"stop"}, "", true},
        {"tail is sto", {"stop"}, "tail is sto", false},
    };
    dart_tokenizer *t = open_variant("neox");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint32_t count = 0;
        while (count < 3 && cases[i].stops[count] != NULL) count++;
        dart_token_list list = encode(t, cases[i].text, strlen(cases[i].text), false, false);
        for (size_t most = 1; most < 8; most += 3) {
            bool stopped;
            char *back = decode(t, list.ids, list.count, &(dart_text_options){.stops = cases[i].stops, .stops_count = count}, most, &stopped);
            assert_string_equal(back, cases[i].expected);
            assert_int_equal(stopped, cases[i].stopped);
            free(back);
        }
        dart_token_list_free(&list);
    }
    dart_text_stream *stream = NULL;
    static const char *const empty[] = {""}, *const broken[] = {"\xFF"}, *const null[] = {NULL};
    assert_int_equal(dart_text_stream_create(t, &(dart_text_options){.stops = empty, .stops_count = 1}, &stream), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_create(t, &(dart_text_options){.stops = broken, .stops_count = 1}, &stream), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_create(t, &(dart_text_options){.stops = null, .stops_count = 1}, &stream), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_text_stream_create(t, &(dart_text_options){.stops_count = 1}, &stream), DART_INVALID_ARGUMENT);
    assert_null(stream);
    dart_tokenizer_destroy(&t);
}

/* ---- Tables ---- */

static void has_tables_in_order(void **state)
{
    (void)state;
    const struct {
        const text_range *ranges;
        size_t count;
        uint32_t most;
    } tables[] = {{text_class_ranges, text_class_ranges_count, TEXT_SPACE}, {text_mark_ranges, text_mark_ranges_count, 255}};
    for (size_t k = 0; k < COUNT_OF(tables); k++)
        for (size_t i = 0; i < tables[k].count; i++) {
            const text_range *r = &tables[k].ranges[i];
            assert_true(r->first <= r->last && r->last < TEXT_POINTS && r->value > 0 && r->value <= tables[k].most);
            assert_true(i == 0 || r[-1].last < r->first);
        }
    for (size_t i = 1; i < text_decompositions_count; i++) assert_true(text_decompositions[i - 1].point < text_decompositions[i].point);
    for (size_t i = 1; i < text_compositions_count; i++) {
        const text_composition *c = &text_compositions[i];
        assert_true(c[-1].a < c->a || (c[-1].a == c->a && c[-1].b < c->b));
    }
    uint8_t *p = text_properties_create();
    assert_non_null(p);
    uint32_t counts[4] = {0};
    for (uint32_t c = 0; c < TEXT_POINTS; c++) counts[p[c] & TEXT_CLASS]++;
    assert_int_equal(counts[TEXT_LETTER], 141028); /* of Unicode 16, in the reference */
    assert_int_equal(counts[TEXT_NUMBER], 1911);
    assert_int_equal(counts[TEXT_SPACE], 25);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_reference), cmocka_unit_test(describes), cmocka_unit_test(appends_or_leaves_alone),
        cmocka_unit_test(encoding_can_be_ended),     cmocka_unit_test(finds_ends_in_blocks), cmocka_unit_test(finds_added_tokens),
        cmocka_unit_test(goes_round),                cmocka_unit_test(merges_in_windows), cmocka_unit_test(gives_whole_characters),
        cmocka_unit_test(stops_at_texts),            cmocka_unit_test(has_tables_in_order),
    };
    return cmocka_run_group_tests_name("unit_text", tests, set_up, tear_down);
}
