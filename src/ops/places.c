/* Tables of addresses. */
#include "places.h"

#include <stdlib.h>

bool ops_places_begin(ops_places *places, op_call *call, uint32_t pairs, uint32_t each, uint32_t layers)
{
    const uint64_t count = 2 * (pairs + (uint64_t)layers * each);
    *places = (ops_places){.call = call, .pairs = pairs, .each = each, .count = count, .words = calloc((size_t)count, sizeof *places->words)};
    if (places->words == NULL) op_fail(call, DART_OUT_OF_MEMORY, "no host memory");
    return places->words != NULL;
}

void ops_places_sizes(ops_places *places, uint32_t at, const dart_memories *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        places->words[2 * (at + i)] = runs[i].first;
        places->words[2 * (at + i) + 1] = runs[i].M;
    }
}

static uint32_t *words_of(const ops_places *places, uint32_t layer, uint32_t place)
{
    return &places->words[2 * (places->pairs + (uint64_t)layer * places->each + place)];
}

void ops_places_put(ops_places *places, uint32_t layer, uint32_t place, const dart_tensor *tensor)
{
    if (!op_has(tensor)) return;
    const op_operand operand = {.of = *tensor};
    const uint64_t address = op_address(places->call, &operand);
    uint32_t *words = words_of(places, layer, place);
    places->missing = places->missing || address == 0;
    words[0] = (uint32_t)address;
    words[1] = (uint32_t)(address >> 32);
}

void ops_places_put_runs(ops_places *places, uint32_t layer, uint32_t place, const dart_memories *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ops_places_put(places, layer, place + 2 * i, &runs[i].dh);
        ops_places_put(places, layer, place + 2 * i + 1, &runs[i].scale);
    }
}

void ops_places_fill(ops_places *places, uint32_t layer, const dart_tensor *tensor, uint64_t empty)
{
    const uint32_t *words = words_of(places, layer, 0);
    for (uint32_t i = 0; i < places->each; i++)
        if ((empty >> i & 1) == 0 && words[2 * i] == 0 && words[2 * i + 1] == 0) ops_places_put(places, layer, i, tensor);
}

op_operand ops_places_end(ops_places *places)
{
    if (places->missing) op_fail(places->call, DART_UNSUPPORTED, "a buffer has no address");
    const op_operand operand = op_table(places->call, places->words, places->count);
    free(places->words);
    return operand;
}
