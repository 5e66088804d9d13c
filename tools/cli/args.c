#include "args.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int args_mistake(const args_syntax *syntax, const char *format, ...)
{
    va_list arguments;
    fprintf(stderr, "%s: ", syntax->command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; see %s --help\n", syntax->command);
    return ARGS_USAGE;
}

int args_no_task(const char *command, const char *help, int argc, char **argv)
{
    const args_syntax syntax = {.command = command};
    const bool asked = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc >= 2 && !asked) return args_mistake(&syntax, "unknown task '%s'", argv[1]);
    fputs(help, asked ? stdout : stderr);
    return asked ? 0 : ARGS_USAGE;
}

/* ---- Help ---- */

static bool takes_value(const args_option *option) { return option->kind != ARGS_FLAG && option->kind != ARGS_MORE; }

/* "-n, --tokens N" */
static void print_option(const args_option *option)
{
    enum { COLUMN = 32 };
    char left[96];
    char letter[8] = "    ";
    if (option->letter != 0) snprintf(letter, sizeof letter, "-%c, ", option->letter);
    snprintf(left, sizeof left, "  %s--%s%s%s", letter, option->name, takes_value(option) ? " " : "",
             takes_value(option) ? option->value : "");
    const char *text = option->help;
    printf("%-*s%s", COLUMN, left, strlen(left) < COLUMN ? "" : "  ");
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        printf("%.*s\n", (int)length, text);
        text += length + (text[length] == '\n');
        if (*text != '\0') printf("%*s", COLUMN, "");
    }
}

static void print_help(const args_syntax *syntax)
{
    printf("usage: %s", syntax->command);
    for (size_t i = 0; i < syntax->options_count; i++)
        if (syntax->options[i].required) printf(" --%s %s", syntax->options[i].name, syntax->options[i].value);
    printf("%s%s [options]\n\n%s\n\noptions:\n", syntax->operands[0] != '\0' ? " " : "", syntax->operands,
           syntax->about);
    for (size_t i = 0; i < syntax->options_count; i++) print_option(&syntax->options[i]);
    print_option(&(args_option){.name = "help", .letter = 'h', .kind = ARGS_FLAG, .help = "this text"});
}

/* ---- Values ---- */

bool args_whole(const char *text, uint64_t *value)
{
    uint64_t sum = 0;
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (!isdigit((unsigned char)*text)) return false;
        const uint64_t digit = (uint64_t)(*text - '0');
        if (sum > (UINT64_MAX - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

/* The word of "a|b|c" that equals text, counted from 1; 0 when none does. */
static int choice(const char *words, const char *text)
{
    const size_t length = strlen(text);
    for (int index = 1;; index++) {
        const size_t word = strcspn(words, "|");
        if (word == length && strncmp(words, text, length) == 0) return index;
        if (words[word] == '\0') return 0;
        words += word + 1;
    }
}

static int set_u32(const args_syntax *syntax, const args_option *option, const char *text)
{
    const double most = option->most > 0 ? option->most : (double)UINT32_MAX;
    uint64_t value = 0;
    if (!args_whole(text, &value) || (double)value < option->least || (double)value > most)
        return args_mistake(syntax, "--%s: expected a whole number from %.0f to %.0f, not '%s'", option->name,
                            option->least, most, text);
    *(uint32_t *)option->to = (uint32_t)value;
    return ARGS_GO_ON;
}

static int set_f32(const args_syntax *syntax, const args_option *option, const char *text)
{
    const double most = option->most > 0 ? option->most : (double)FLT_MAX;
    char *end = NULL;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno == ERANGE || !(value >= option->least && value <= most))
        return args_mistake(syntax, "--%s: expected a number from %g to %g, not '%s'", option->name, option->least,
                            most, text);
    *(float *)option->to = (float)value;
    return ARGS_GO_ON;
}

static int set(const args_syntax *syntax, const args_option *option, const char *text)
{
    switch (option->kind) {
    case ARGS_FLAG: *(bool *)option->to = true; return ARGS_GO_ON;
    case ARGS_MORE: ++*(uint32_t *)option->to; return ARGS_GO_ON;
    case ARGS_TEXT: *(const char **)option->to = text; return ARGS_GO_ON;
    case ARGS_U32: return set_u32(syntax, option, text);
    case ARGS_U64:
        if (args_whole(text, (uint64_t *)option->to)) return ARGS_GO_ON;
        return args_mistake(syntax, "--%s: expected a whole number below 2^64, not '%s'", option->name, text);
    case ARGS_F32: return set_f32(syntax, option, text);
    case ARGS_CHOICE:
        *(int *)option->to = choice(option->value, text);
        if (*(int *)option->to != 0) return ARGS_GO_ON;
        return args_mistake(syntax, "--%s: expected %s, not '%s'", option->name, option->value, text);
    case ARGS_LIST: break;
    }
    args_list *list = option->to;
    if (list->count == ARGS_MAX_LIST)
        return args_mistake(syntax, "--%s: given more than %d times", option->name, ARGS_MAX_LIST);
    list->texts[list->count++] = text;
    return ARGS_GO_ON;
}

/* ---- The walk ---- */

static const args_option *find(const args_syntax *syntax, const char *name, size_t length, char letter)
{
    for (size_t i = 0; i < syntax->options_count; i++) {
        const args_option *option = &syntax->options[i];
        if (letter != 0 ? option->letter == letter
                        : strlen(option->name) == length && strncmp(option->name, name, length) == 0)
            return option;
    }
    return NULL;
}

static int parse_long(const args_syntax *syntax, bool *seen, int *i, int argc, char **argv)
{
    const char *name = argv[*i] + 2;
    const size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const args_option *option = find(syntax, name, length, 0);
    if (option == NULL) return args_mistake(syntax, "unknown option '--%.*s'", (int)length, name);
    seen[option - syntax->options] = true;
    if (!takes_value(option)) {
        if (value != NULL) return args_mistake(syntax, "--%s takes no value", option->name);
    } else if (value == NULL) {
        if (*i + 1 >= argc) return args_mistake(syntax, "--%s needs a value, %s", option->name, option->value);
        value = argv[++*i];
    }
    return set(syntax, option, value);
}

static int parse_letters(const args_syntax *syntax, bool *seen, int *i, int argc, char **argv)
{
    for (const char *at = argv[*i] + 1; *at != '\0'; at++) {
        const args_option *option = find(syntax, NULL, 0, *at);
        if (option == NULL) return args_mistake(syntax, "unknown option '-%c'", *at);
        seen[option - syntax->options] = true;
        const char *value = NULL;
        if (takes_value(option)) {
            value = at[1] != '\0' ? at + 1 : *i + 1 < argc ? argv[++*i] : NULL;
            if (value == NULL) return args_mistake(syntax, "-%c needs a value, %s", *at, option->value);
        }
        const int status = set(syntax, option, value);
        if (status != ARGS_GO_ON || value != NULL) return status;
    }
    return ARGS_GO_ON;
}

static int check_operands(const args_syntax *syntax, const args_operands *operands)
{
    uint32_t needed = 0, allowed = 0;
    const char *text = syntax->operands;
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        if (text[0] != '[') {
            if (operands->count == needed) return args_mistake(syntax, "%.*s is missing", (int)length, text);
            needed++;
        }
        allowed++;
        const size_t end = length - (text[length - 1] == ']');
        if (end >= 3 && strncmp(text + end - 3, "...", 3) == 0) allowed = ARGS_MAX_OPERANDS;
        text += length + (text[length] == ' ');
    }
    if (operands->count > allowed) return args_mistake(syntax, "unexpected argument '%s'", operands->texts[allowed]);
    return ARGS_GO_ON;
}

int args_parse(const args_syntax *syntax, int argc, char **argv, args_operands *operands)
{
    bool only_operands = false;
    *operands = (args_operands){.count = 0};
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i];
        int status = ARGS_GO_ON;
        if (only_operands || text[0] != '-' || text[1] == '\0') {
            if (operands->count == ARGS_MAX_OPERANDS) return args_mistake(syntax, "too many arguments");
            operands->texts[operands->count++] = text;
        } else if (strcmp(text, "--") == 0) {
            only_operands = true;
        } else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            print_help(syntax);
            return 0;
        } else if (text[1] == '-') {
            status = parse_long(syntax, operands->given, &i, argc, argv);
        } else {
            status = parse_letters(syntax, operands->given, &i, argc, argv);
        }
        if (status != ARGS_GO_ON) return status;
    }
    for (size_t i = 0; i < syntax->options_count; i++)
        if (syntax->options[i].required && !operands->given[i])
            return args_mistake(syntax, "--%s %s is missing", syntax->options[i].name, syntax->options[i].value);
    return check_operands(syntax, operands);
}

bool args_given(const args_syntax *syntax, const args_operands *operands, const char *name)
{
    const args_option *option = find(syntax, name, strlen(name), 0);
    return option != NULL && operands->given[option - syntax->options];
}
