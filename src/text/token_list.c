/* Lists of tokens, which grow. */
#include "tokenizer.h"

#include <stdlib.h>

bool text_list_reserve(dart_token_list *list, size_t more)
{
    if (list->capacity - list->count >= more) return true;
    if (list->count > SIZE_MAX / 16 || more > SIZE_MAX / 16) return false;
    const size_t needed = list->count + more, capacity = needed + needed / 2 + 64;
    int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
    if (ids == NULL) return false;
    list->ids = ids;
    list->capacity = capacity;
    return true;
}

void dart_token_list_free(dart_token_list *list)
{
    if (list == NULL) return;
    free(list->ids);
    *list = (dart_token_list){NULL, 0, 0};
}

dart_status dart_token_list_add(dart_token_list *list, int32_t id)
{
    if (list == NULL) return DART_INVALID_ARGUMENT;
    if (!text_list_reserve(list, 1)) return DART_OUT_OF_MEMORY;
    list->ids[list->count++] = id;
    return DART_OK;
}
