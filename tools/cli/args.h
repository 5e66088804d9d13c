/* Command-line options from a table: --name VALUE, --name=VALUE, -n VALUE, grouped letters, "--" before operands. */
#ifndef DARTLM_ARGS_H
#define DARTLM_ARGS_H

#include "base/base.h"

typedef enum args_kind {
    ARGS_FLAG, /* bool */
    ARGS_MORE, /* uint32_t: how often the option is given */
    ARGS_TEXT, /* const char * */
    ARGS_U32, /* uint32_t from least to most */
    ARGS_U64, /* uint64_t */
    ARGS_F32, /* float from least to most */
    ARGS_CHOICE, /* int: the number of the word in `value` ("a|b|c"), from 1; 0 when the option is not given */
    ARGS_LIST /* args_list: the texts of all its occurrences */
} args_kind;

enum { ARGS_MAX_LIST = 16, ARGS_MAX_OPERANDS = 24, ARGS_MAX_OPTIONS = 64 };

typedef struct args_list {
    const char *texts[ARGS_MAX_LIST];
    uint32_t count;
} args_list;

typedef struct args_option {
    const char *name;
    char letter; /* 0: none */
    args_kind kind;
    const char *value; /* the name of the value in the help text; NULL for flags */
    void *to;          /* where the value goes, of the type of `kind`; holds the default */
    const char *help;
    double least, most; /* most 0: as large as the type allows */
    bool required;
} args_option;

typedef struct args_syntax {
    const char *command;  /* "dartlm eval mqar" */
    const char *operands; /* names of the operands: optional ones in brackets, the last with "..." if it may repeat; "" for none */
    const char *about;
    const args_option *options;
    size_t options_count;
} args_syntax;

typedef struct args_operands {
    const char *texts[ARGS_MAX_OPERANDS];
    uint32_t count;
    bool given[ARGS_MAX_OPTIONS]; /* the options of the syntax, by their number */
} args_operands;

enum { ARGS_GO_ON = -1, ARGS_USAGE = 2 };

/* Parses argv[1] and what follows into the places of the options and into operands. Returns ARGS_GO_ON, or the exit status: 0 after
 * --help, ARGS_USAGE after a mistake, with a message on stderr. Texts point into argv. */
int args_parse(const args_syntax *syntax, int argc, char **argv, args_operands *operands);
/* Whether the option of this name was given. */
bool args_given(const args_syntax *syntax, const args_operands *operands, const char *name);
/* Prints a message about a mistake that args_parse cannot detect. Returns ARGS_USAGE. */
int args_mistake(const args_syntax *syntax, const char *format, ...) DART_PRINTF(2, 3);

/* The end of a command whose task, argv[1], is none that it has: prints `help` where that is asked for. ARGS_USAGE or, after help, 0. */
int args_no_task(const char *command, const char *help, int argc, char **argv);

/* Whether text is a decimal number without sign and nothing else; stores the number. */
bool args_whole(const char *text, uint64_t *value);

#endif
