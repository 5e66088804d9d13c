/* What the commands share: sessions, messages, numbers for reading, tensors from and to files. */
#ifndef DARTLM_CLI_H
#define DARTLM_CLI_H

#include "args.h"
#include "dartlm/text.h"
#include "dartlm/train.h"
#include "base/file.h"
#include "checkpoint/safetensors.h"

#include <jansson.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = ARGS_USAGE };

/* ---- Commands: argv[0] is the command's own name; the result is the program's status. ---- */
int cmd_devices(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_params(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_eval_ppl(int argc, char **argv);
int cmd_eval_niah(int argc, char **argv);
int cmd_eval_lambada(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_data(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_grad(int argc, char **argv);
int cmd_train(int argc, char **argv);
int cmd_train_mqar(int argc, char **argv);
int cmd_train_lm(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_op(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_op(int argc, char **argv);
int cmd_conform(int argc, char **argv);

/* ---- Times of launches ---- */
typedef struct cli_profile_entry {
    const char *phase;
    char line[120]; /* as dart_stream_options.trace has it, without the barrier */
    uint64_t count, ns;
} cli_profile_entry;
typedef struct cli_profile {
    const char *phase; /* what launches now belong to; NULL: nothing is kept */
    cli_profile_entry entries[256];
    size_t entries_count;
} cli_profile;
/* For dart_device_options.profile, with the profile as user. */
void cli_profile_note(void *profile, const char *line, uint64_t ns);
/* A table for each phase, divided by the number of runs. */
void cli_profile_print(cli_profile *profile, uint32_t runs);

/* ---- Options that several commands take ---- */
typedef struct cli_common {
    const char *device;
    const char *variant; /* of kernels; NULL: the best */
    uint32_t threads;
    bool no_matrix, no_resident, minimum_limits, low_priority;
    bool validation; /* with Vulkan's validation layer */
    const char *cache; /* a file, "off", or NULL for the user's */
    cli_profile *profile; /* of the device opened, or NULL */
    bool null_too;         /* the null device will do, which computes nothing */
    dart_log_function log; /* takes all of the library's log instead of stderr; may be NULL */
    void *log_user;
    int dtype; /* a dart_storage: the same order */
    bool json;
    uint32_t verbosity;
} cli_common;
#define CLI_DTYPES "f32|f16|bf16"
#define CLI_STORAGES "f32|f16|bf16|q8|q4" /* of a model that is not trained */
#define CLI_DEVICE(c) \
    {"device", 0, ARGS_TEXT, "SPEC", &(c).device, \
     "cpu, vulkan, cuda, or one of them with :INDEX, :NAME or :UUID;\nby default the first GPU, else the CPU", 0, 0, \
     false}, \
    {"threads", 0, ARGS_U32, "N", &(c).threads, "of the CPU backend; by default one a core", 0, 4096, false}, \
    CLI_LESS(c), \
    {"low-priority", 0, ARGS_FLAG, NULL, &(c).low_priority, \
     "a queue of low priority, where the device has\none: other programs' work goes first", 0, 0, false}, \
    {"cache", 0, ARGS_TEXT, "FILE", &(c).cache, \
     "compiled code from run to run; off: none;\nby default in the user's folder for caches", 0, 0, false}
/* To use less of a device than it has. */
#define CLI_LESS(c) \
    {"no-matrix", 0, ARGS_FLAG, NULL, &(c).no_matrix, "do without cooperative matrices (Vulkan)", 0, 0, false}, \
    {"no-resident", 0, ARGS_FLAG, NULL, &(c).no_resident, "do without launches whose workgroups wait for one\nanother", 0, 0, false}, \
    {"minimum-limits", 0, ARGS_FLAG, NULL, &(c).minimum_limits, \
     "take the device for one with the least limits that Vulkan allows:\nbindings of 128 MiB, 16 KiB of shared memory, workgroups of 128", \
     0, 0, false}
#define CLI_OUTPUT(c) \
    {"json", 0, ARGS_FLAG, NULL, &(c).json, "print JSON", 0, 0, false}, \
    {"verbose", 'v', ARGS_MORE, NULL, &(c).verbosity, "show the library's log; twice: all of it", 0, 0, false}

typedef struct cli_model_options {
    const char *folder;
    int activations, memories; /* dart_storage */
    bool no_sma;
    uint32_t S;
} cli_model_options;
#define CLI_WEIGHTS(c, m) \
    {"dtype", 0, ARGS_CHOICE, CLI_STORAGES, &(c).dtype, "storage of the matrices; by default the file's", 0, 0, false}, \
    {"activations", 0, ARGS_CHOICE, CLI_DTYPES, &(m).activations, \
     "storage between ops; by default as the weights\non a GPU with matrix hardware for them, else f32", 0, 0, false}, \
    {"memories", 0, ARGS_CHOICE, CLI_DTYPES, &(m).memories, "of state memories; by default as --dtype", 0, 0, false}
#define CLI_STATE(m) \
    {"no-sma", 0, ARGS_FLAG, NULL, &(m).no_sma, "leave the state memories out", 0, 0, false}, \
    {"chunk-size", 0, ARGS_U32, "S", &(m).S, "tokens of a chunk; by default the model's", 1, 1 << 30, false}

/* ---- Sessions ---- */

/* Compiled code kept in a file. */
typedef struct cli_cache {
    char *path; /* NULL: none */
    base_report *report; /* of failures that nobody is told of */
    file_map map;
    size_t had; /* bytes of code when the device was opened */
} cli_cache;
void cli_cache_load(cli_cache *cache, const cli_common *common, base_report *report);
/* Lets the file go once the device is open. */
void cli_cache_release(cli_cache *cache);
/* Writes the device's code back where it has grown. */
void cli_cache_save(cli_cache *cache, dart_device *device);
void cli_cache_close(cli_cache *cache);

typedef struct cli_session {
    dart_context *context;
    cli_cache cache;
    dart_device *device;
    dart_device_info info;
    base_report report; /* of files */
    dart_log_level log_level;
    bool has_report;
} cli_session;

/* These return CLI_OK, or after telling stderr why CLI_FAILED, or CLI_USAGE where --device is no device's. cli_close accepts a zero session. */
int cli_open_context(cli_session *session, const cli_common *common);
int cli_open_device(cli_session *session, const cli_common *common);
/* Tells stderr that times on the null device are none of a device. */
void cli_note_null(const cli_session *session);
void cli_close(cli_session *session);
int cli_open_model(cli_session *session, const cli_common *common, const cli_model_options *options,
                   dart_model **model);

/* Tell stderr of a failure, return CLI_FAILED. */
int cli_fail(const char *format, ...) DART_PRINTF(1, 2);
int cli_fail_memory(void);
int cli_fail_file(const cli_session *session, dart_status status);
int cli_fail_device(const cli_session *session, dart_status status);
int cli_fail_stream(const dart_stream *stream, dart_status status);
int cli_fail_model(const dart_model *model, dart_status status);
int cli_fail_state(const dart_state *state, dart_status status);
int cli_fail_trainer(const dart_trainer *trainer, dart_status status);
/* Whether a file can come to this path, as far as its folders tell: before work of minutes whose result it is to be. NULL is CLI_OK. */
int cli_check_place(const char *path);

/* ---- Text ---- */

int cli_open_tokenizer(const char *path, dart_tokenizer **tokenizer);
int cli_fail_tokenizer(const dart_tokenizer *tokenizer, const char *what, dart_status status);
/* Copies the files of a tokenizer into a folder. */
int cli_copy_tokenizer(const char *path, const char *folder);
/* Writes the files of a tokenizer whose ids are bytes, and CORPUS_END_ID the end of text. */
int cli_write_byte_tokenizer(const char *folder);
/* All of a file, NULL and "-" are standard input, for free(); a zero byte follows. */
int cli_read_text(const char *path, char **text, size_t *bytes);

/* JSON Lines: an object a line; blank lines are skipped. */
typedef struct cli_lines {
    const char *path;
    char *text, *at;
    size_t bytes;
    uint64_t line; /* the number of the last one given, from 1 */
} cli_lines;
/* The caller closes it either way. */
int cli_lines_open(cli_lines *lines, const char *path);
/* The next object, the caller's, or NULL at the end. */
int cli_lines_next(cli_lines *lines, json_t **object);
void cli_lines_close(cli_lines *lines);

/* From here on the signal only sets what cli_stopped gives: its number, 0 before. A second one ends the program at once, unless it comes with the
 * first: timeout(1) sends it to the program and to its process group. What the caller of the program had ignored stays ignored but with ignored_too:
 * a shell that is not interactive ignores SIGINT for what it runs in the background. */
void cli_stop_at(int number, bool ignored_too);
void cli_stop_no_more(int number); /* it ends the program again */
int cli_stopped(void);
void cli_wait_for_stop(void); /* until cli_stopped is not 0; not on Windows */

/* A line on stderr that the next one replaces; only where stderr is a terminal. */
void cli_progress(const char *format, ...) DART_PRINTF(1, 2);
void cli_progress_end(void);

/* "cpu", "vulkan:0" */
const char *cli_device_spec(const dart_device_info *info, char text[32]);

/* ---- Numbers and tables ---- */

enum { CLI_NUMBER = 32 };
const char *cli_count(uint64_t value, char text[CLI_NUMBER]); /* 32,768 */
const char *cli_bytes(uint64_t value, char text[CLI_NUMBER]); /* 1.5 MiB */
const char *cli_rate(double value, char text[CLI_NUMBER]); /* 1,234 or 12.3 */
const char *cli_time(double seconds, char text[CLI_NUMBER]); /* 1.23 s, 4.56 ms, 7.89 us */
double cli_median(double *values, size_t count); /* sorts them */

typedef struct cli_table cli_table;
/* One letter a column: 'l' or 'r'. NULL without memory, which the functions below accept. */
cli_table *cli_table_create(const char *alignments);
void cli_table_cell(cli_table *table, const char *format, ...) DART_PRINTF(2, 3);
/* Prints and destroys. */
int cli_table_print(cli_table **table);
/* Prints, and releases the value; NULL stands for one that could not be made. */
int cli_print_json(json_t *value);
/* json_load_file(). */
json_t *cli_json_load(const char *path, size_t flags, json_error_t *error);
/* The same on one line, at once. */
int cli_print_line(json_t *value);
/* null where the number is not finite, which JSON has no way to write. */
json_t *cli_json_number(double value);
/* What JSON has no way to write, as names of files may have, becomes U+FFFD. */
json_t *cli_json_text(const char *text);

/* ---- Tensors of files ---- */

/* Whole numbers of I32 or I64 as i32, for free(). name and shape are the caller's business. */
int cli_integers(const safetensors_tensor *tensor, int32_t **values);
/* "[2, 77]" */
const char *cli_shape(const uint64_t *shape, uint32_t rank, char text[160]);

#endif
