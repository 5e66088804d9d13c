/* Keys of a config.json: of the types that are asked for, within their limits, or an error that names the key. */
#ifndef DART_CONFIG_READER_H
#define DART_CONFIG_READER_H

#include "json.h"

typedef struct config_reader {
    json_t *root;
    const char *name; /* for messages */
    base_report *report;
} config_reader;

/* The object that the text is, for config_reader_close; what Mamba-2's own code wrote is translated (config_original.h). Infinity, -Infinity
 * and NaN may stand as they are, which JSON does not know. */
dart_status config_reader_open(const char *text, size_t bytes, const char *name, base_report *report, config_reader *reader);
/* Accepts a zero reader. */
void config_reader_close(config_reader *reader);

/* NULL where the key is absent or null. */
json_t *config_get(const config_reader *r, const char *key);
/* The text of a string, or what stands there instead; of line ends and tabs, which reports leave, too: a message is a line. */
const char *config_text(const json_t *value);

/* A number, or what stands for one that JSON does not know. */
bool config_real_of(const json_t *value, double *out);

typedef struct config_integer {
    const char *key;
    size_t at; /* in dart_model_config */
    uint32_t min, max;
    uint32_t standard; /* 0: the key is required */
} config_integer;
dart_status config_read_integer(const config_reader *r, const config_integer *field, uint32_t *out);
dart_status config_read_real(const config_reader *r, const char *key, double standard, float *out);
dart_status config_read_boolean(const config_reader *r, const char *key, bool standard, bool *out);
/* time_step_limit, two numbers. An infinite second one is 0: no limit. */
dart_status config_read_limits(const config_reader *r, float *dt_min, float *dt_max);

typedef struct config_feature {
    const char *key;
    bool refused; /* this value; absent: the other one */
} config_feature;
/* DART_UNSUPPORTED for the first that has the refused value. */
dart_status config_check_features(const config_reader *r, const config_feature *features, size_t count);

#endif
