/* How pieces are merged: for merge*.c and tests. */
#ifndef DART_MERGE_H
#define DART_MERGE_H

#include "vocabulary.h"

enum { TEXT_WINDOW_BITS = 10, TEXT_WINDOW = 1 << TEXT_WINDOW_BITS };

/* A part of a piece: the tokens of its encoding, and where they begin, in bytes from its start. */
typedef struct text_window {
    uint32_t count;
    int32_t ids[TEXT_WINDOW];
    uint32_t begins[TEXT_WINDOW];
} text_window;

/* Appends the tokens of a piece, encoded in windows of `size` bytes, 1 to TEXT_WINDOW. *joined is false, and what was appended of no use, where
 * two windows have no token in common. false without memory. */
bool text_merge_in_windows(const text_vocabulary *v, const uint8_t *piece, size_t bytes, uint32_t size, dart_token_list *list, bool *joined);
/* Appends the tokens of a piece, encoded as a whole. false without memory. */
bool text_merge_by_heap(const text_vocabulary *v, const uint8_t *piece, size_t bytes, dart_token_list *list);

#endif
