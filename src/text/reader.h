/* tokenizer.json piece by piece. Whatever is in it that is not computed exactly is DART_UNSUPPORTED, with key and value; whatever is wrong
 * DART_BAD_DATA. */
#ifndef DART_TEXT_READER_H
#define DART_TEXT_READER_H

#include "checkpoint/json.h"
#include "tokenizer.h"

typedef struct text_reader {
    dart_tokenizer *t;
    const char *name;
    base_report *report;
} text_reader;

enum { TEXT_PLACE = 96 }; /* bytes for the name of a key, behind the names of those that it is in */

/* DART_UNSUPPORTED for key `place` with its value; supported is what may stand there. */
dart_status text_refuse(const text_reader *r, const char *place, const json_t *value, const char *supported);
dart_status text_refuse_keys(const text_reader *r, const char *place, const json_t *object, const char *const *keys, size_t count);
/* A boolean; where it is missing or null, standard, or DART_BAD_DATA for a standard below 0. */
dart_status text_read_boolean(const text_reader *r, const char *place, const json_t *object, const char *key, int standard, bool *out);
/* "type" of an object, or "" */
const char *text_type(const json_t *object);

/* The parts. They need those before them. */
dart_status text_read_model(const text_reader *r, const json_t *model, const json_t *added);
dart_status text_read_normalizer(const text_reader *r, const json_t *normalizer);
dart_status text_read_added(const text_reader *r, const json_t *model, const json_t *added);
dart_status text_read_pre_tokenizer(const text_reader *r, const json_t *pre_tokenizer);
dart_status text_read_post_processor(const text_reader *r, const json_t *processor);
dart_status text_read_decoder(const text_reader *r, const json_t *decoder);

#endif
