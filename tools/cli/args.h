/* Command-line options from a table: --name VALUE, --name=VALUE, -n VALUE, grouped letters, "--" before operands. */
#ifndef DARTLM_ARGS_H
#define DARTLM_ARGS_H

#include "base/base.h"

typedef enum args_kind {
    ARGS_FLAG, /* bool */
    ARGS_MORE, /* uint32_t, one more each time */
    ARGS_TEXT, /* const char * */
    ARGS_U32, /* uint32_t from least to most */
    ARGS_U64, /* uint64_t */
    ARGS_F32, /* float from least to most */
    ARGS_CHOICE, /* int: 1 for the first word of `value` ("a|b|c"), 0 when the option is not given */
    ARGS_LIST /* args_list, one text each time */
} args_kind;

enum { ARGS_MAX_LIST = 16, ARGS_MAX_OPERANDS = 24 };

typedef struct args_list {
    const char *texts[ARGS_MAX_LIST];
    uint32_t count;
} args_list;

typedef struct args_option {
    const char *name;
    char letter; /* 0: none */
    args_kind kind;
    const char *value; /* how the help calls it; NULL for flags */
    void *to;          /* of the kind's type; holds the default */
    const char *help;
    double least, most; /* most 0: as large as the type allows */
    bool required;
} args_option;

typedef struct args_syntax {
    const char *command;  /* "dartlm eval mqar" */
    const char *operands; /* names, in brackets when optional, the last with "..." when it may repeat; "" for none */
    const char *about;
    const args_option *options;
    size_t options_count;
} args_syntax;

typedef struct args_operands {
    const char *texts[ARGS_MAX_OPERANDS];
    uint32_t count;
} args_operands;

enum { ARGS_GO_ON = -1, ARGS_USAGE = 2 };

/* Fills the options' places from argv[1] on. ARGS_GO_ON, or the status to end with: 0 after --help, ARGS_USAGE after
 * a mistake, of which stderr has been told. The texts are those of argv. */
int args_parse(const args_syntax *syntax, int argc, char **argv, args_operands *operands);
/* Tells stderr of a mistake that the table cannot see. Returns ARGS_USAGE. */
int args_mistake(const args_syntax *syntax, const char *format, ...) DART_PRINTF(2, 3);

/* Whole decimal numbers without sign or rest. */
bool args_whole(const char *text, uint64_t *value);

#endif
