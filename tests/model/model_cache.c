/* The cache of a Transformer grows by blocks: model_cache DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"

#include "runtime/device.h"

static const dart_model_config llama = {.transformer = true, .V = 61, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 2, .F = 40, .eps = 1e-5f,
                                        .base = 10000};

enum { B = 2, TOKENS = 1060 };

/* A row more than sequences: a piece that begins late in a row reads on in the next. */
static int32_t *many_ids(void)
{
    int32_t *ids = calloc((size_t)(B + 1) * TOKENS, sizeof *ids);
    assert_non_null(ids);
    uint32_t x = 99;
    for (size_t i = 0; i < (size_t)(B + 1) * TOKENS; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % llama.V);
    }
    return ids;
}

/* The next `count` tokens of the first sequence, and half of them of the second, in a piece or, where it is one token, in a step; then the logits. */
static void go_on_by(dart_state *state, const int32_t *ids, uint32_t count, float *logits)
{
    int32_t piece[B][TOKENS], next[B];
    uint32_t counts[B] = {count, count / 2};
    for (uint32_t b = 0; b < B; b++) {
        const uint64_t at = dart_state_position(state, b);
        memcpy(piece[b], &ids[b * TOKENS + at], count * sizeof(int32_t));
        next[b] = piece[b][0];
    }
    if (count > 1)
        must(dart_prefill(state, &(dart_prefill_args){.ids = piece[0], .ids_row = TOKENS, .L = count, .counts = counts, .want = DART_LOGITS_LAST,
                                                      .logits = logits}), "dart_prefill");
    else must(dart_decode(state, &(dart_decode_args){.ids = next, .logits = logits}), "dart_decode");
}

/* ---- As if all of it had been there from the beginning ---- */

static void grows_alike(const char *what, const dart_model_options *storage, uint32_t block, const uint32_t *parts, size_t count)
{
    dart_model *model = model_of(&llama, storage);
    const dart_state_options options = {.B = B, .memory_block = block};
    dart_state *grown = state_of(model, &options), *whole = state_of(model, &options);
    int32_t *ids = many_ids();
    float *a = calloc((size_t)B * llama.V, sizeof *a), *b = calloc((size_t)B * llama.V, sizeof *b);
    must(model_cache_reserve(whole, 2 * TOKENS, what), "model_cache_reserve");
    const uint64_t room = model_cache_room(whole);
    for (size_t i = 0; i < count; i++) {
        go_on_by(grown, ids, parts[i], a);
        go_on_by(whole, ids, parts[i], b);
        assert_memory_equal(a, b, (size_t)B * llama.V * sizeof *a);
    }
    print_message("  %s: %u blocks of %u\n", what, grown->cache_count, whole->cache_count);
    assert_true(grown->cache_count > 1 && grown->cache_count < whole->cache_count && model_cache_room(whole) == room);
    /* Another history, without and with what is left of the first. */
    for (int again = 0; again < 2; again++) {
        dart_state *states[] = {grown, whole};
        for (int s = 0; s < 2; s++) {
            must(dart_state_reset(states[s], -1), "dart_state_reset");
            go_on_by(states[s], ids, parts[0] / 2, s ? b : a);
            go_on_by(states[s], ids, parts[0], s ? b : a);
        }
        assert_memory_equal(a, b, (size_t)B * llama.V * sizeof *a);
    }
    free(a);
    free(b);
    free(ids);
    dart_state_destroy(&grown);
    dart_state_destroy(&whole);
    dart_model_destroy(&model);
}

static void grows_as_if_it_had_been_there(void **unused)
{
    (void)unused;
    static const uint32_t small_parts[] = {9, 1, 1, 1, 6, 1, 13, 2, 1}, large_parts[] = {1018, 1, 1, 1, 1, 1, 1, 1, 7, 1};
    grows_alike("f32, blocks of 5", NULL, 5, small_parts, COUNT_OF(small_parts));
    const dart_model_options half = {.activations = DART_STORAGE_F16, .weights = DART_STORAGE_F16, .memories = DART_STORAGE_F16};
    grows_alike("f16, blocks of 5", &half, 5, small_parts, COUNT_OF(small_parts));
    grows_alike("f32, blocks of their own size", NULL, 0, large_parts, COUNT_OF(large_parts));
}

/* ---- What is there stays where it is ---- */

static struct spy {
    const backend *real;
    backend fake;
    const dart_state *state;
    uint64_t oldest; /* tokens of every sequence before this one are there */
    uint32_t reads, writes;
} spy;

/* Of blocks whose tokens are all there: attention alone reads them, and nothing writes. */
static dart_status launch(void *handle, void *stream, const backend_launch *l)
{
    const kernel_info *kernel = &kernel_table[l->row->id];
    for (uint32_t i = 0; i < kernel->bindings_count; i++)
        for (uint32_t k = 0; k < spy.state->cache_held; k++)
            for (uint32_t layer = 0; layer < llama.layers; layer++) {
                const cache_block *block = &spy.state->cache[k];
                if (l->bindings[i].memory == NULL || l->bindings[i].memory != block->buffers[layer]->memory) continue;
                if (block->first + (uint64_t)block->C > spy.oldest) continue;
                if ((kernel->bindings[i].access & ACCESS_WRITE) != 0) spy.writes++;
                else if (strncmp(kernel->name, "attention", 9) == 0) spy.reads++;
                else fail_msg("%s reads old keys", kernel->name);
            }
    return spy.real->stream_launch(handle, stream, l);
}

static void leaves_old_tokens_where_they_are(void **unused)
{
    (void)unused;
    static const uint32_t parts[] = {12, 1, 1, 20, 1, 1, 1, 1, 1, 1, 12, 1, 1};
    dart_model *model = model_of(&llama, NULL);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 4});
    int32_t *ids = many_ids();
    float *logits = calloc((size_t)B * llama.V, sizeof *logits);
    const uint64_t block_bytes = 2 * (uint64_t)B * 4 * llama.G * llama.P * 4 * llama.layers;
    spy = (struct spy){.real = device->backend, .fake = *device->backend, .state = state};
    spy.fake.stream_launch = launch;
    device->backend = &spy.fake;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const uint64_t a = dart_state_position(state, 0), b = dart_state_position(state, 1);
        spy.oldest = base_smaller(a, b); /* the launches that follow are for tokens from here on */
        go_on_by(state, ids, parts[i], logits);
        const uint64_t longest = base_larger(dart_state_position(state, 0), dart_state_position(state, 1));
        assert_int_equal(dart_state_bytes(state, DART_STATE_MEMORIES), base_ceil_div(longest, 4) * block_bytes);
    }
    device->backend = spy.real;
    assert_int_equal(spy.writes, 0);
    assert_true(spy.reads > 0);
    free(logits);
    free(ids);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* ---- More splits than are merged at once ---- */

static void merges_many_blocks(void **unused)
{
    (void)unused;
    enum { LONG = 140 };
    static const uint32_t parts[] = {LONG, 1, 1};
    for (int half = 0; half < 2; half++) {
        const dart_storage kind = half ? DART_STORAGE_F16 : DART_STORAGE_F32;
        dart_model *model = model_of(&llama, &(dart_model_options){.activations = kind, .weights = kind, .memories = kind});
        dart_state *one = state_of(model, &(dart_state_options){.B = B}), *many = state_of(model, &(dart_state_options){.B = B, .memory_block = 1});
        int32_t *ids = many_ids();
        float *a = calloc((size_t)B * llama.V, sizeof *a), *b = calloc((size_t)B * llama.V, sizeof *b);
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            go_on_by(one, ids, parts[i], a);
            go_on_by(many, ids, parts[i], b);
            /* f16: half a step of 2^-11 in each of some ten roundings that depend on what is summed before. */
            assert_close("blocks of one token", distance(b, a, (size_t)B * llama.V), half ? 5e-3 : TOLERANCE);
        }
        assert_true(many->cache_count > 128);
        free(a);
        free(b);
        free(ids);
        dart_state_destroy(&one);
        dart_state_destroy(&many);
        dart_model_destroy(&model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_as_if_it_had_been_there),
        cmocka_unit_test(leaves_old_tokens_where_they_are),
        cmocka_unit_test(merges_many_blocks),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
