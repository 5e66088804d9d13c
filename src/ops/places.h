/* Tables by which a kernel finds the tensors of several layers: some pairs of words, then `each` 64-bit addresses of every layer. */
#ifndef DART_OPS_PLACES_H
#define DART_OPS_PLACES_H

#include "runtime/op.h"

typedef struct ops_places {
    op_call *call;
    uint32_t *words, pairs, each;
    uint64_t count; /* of words */
    bool missing; /* a tensor has no address */
} ops_places;

/* All 0. False on failure, which the stream learns: the other functions must not be called then. */
bool ops_places_begin(ops_places *places, op_call *call, uint32_t pairs, uint32_t each, uint32_t layers);
/* First and M of each run, from pair `at` on. */
void ops_places_sizes(ops_places *places, uint32_t at, const dart_memories *runs, uint32_t count);
/* An absent tensor leaves its place 0. */
void ops_places_put(ops_places *places, uint32_t layer, uint32_t place, const dart_tensor *tensor);
/* Memories and scales of each run, from `place` on. */
void ops_places_put_runs(ops_places *places, uint32_t layer, uint32_t place, const dart_memories *runs, uint32_t count);
/* Puts `tensor` where places of the layer are 0, but for those whose bits are in `empty`: Mesa's driver for processors loads from an address that is
 * the same for all lanes even where none of them asks for it. */
void ops_places_fill(ops_places *places, uint32_t layer, const dart_tensor *tensor, uint64_t empty);
/* The table, for a binding; frees the host's copy. Fails the stream with DART_UNSUPPORTED where an address is missing. */
op_operand ops_places_end(ops_places *places);

#endif
