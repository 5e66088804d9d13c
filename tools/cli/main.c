/* dartlm: the library's command-line program. */
#include "cli.h"
#include "system.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"devices", "list devices", cmd_devices},
    {"doctor", "tell what this machine has and lacks", cmd_doctor},
    {"params", "count the parameters of a model", cmd_params},
    {"eval", "measure a model on a task", cmd_eval},
    {"logits", "write a model's logits", cmd_logits},
    {"generate", "continue a sequence of tokens", cmd_generate},
#ifdef CLI_SERVE
    {"serve", "answer requests for completions over HTTP", cmd_serve},
#endif
    {"tokenize", "turn text into token ids", cmd_tokenize},
    {"detokenize", "turn token ids into text", cmd_detokenize},
    {"grad", "write the gradients of a model's parameters", cmd_grad},
    {"train", "train a model", cmd_train},
    {"quantize", "write a checkpoint with smaller weights", cmd_quantize},
    {"data", "make data to train or test with", cmd_data},
    {"op", "run one op on tensors of a file", cmd_op},
    {"bench", "time a model or an op", cmd_bench},
#ifdef CLI_CONFORM
    {"conform", "compare devices with a reference", cmd_conform},
#endif
};

static void print_help(FILE *to)
{
    fprintf(to, "usage: dartlm COMMAND ...\n\ncommands:\n");
    for (size_t i = 0; i < COUNT_OF(commands); i++) fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].about);
    fprintf(to, "\ndartlm COMMAND --help tells more; dartlm --version the version.\n");
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("dartlm %s\n", dart_version());
        return CLI_OK;
    }
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(name, commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "dartlm: unknown %s '%s'; see dartlm --help\n", name[0] == '-' ? "option" : "command", name);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
#if defined(SIGXFSZ)
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error of the write, which cleans up */
#endif
    const int status = system_start(&argc, &argv) ? run(argc, argv) : cli_fail_memory();
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "dartlm: the results could not be written to standard output\n");
        return CLI_FAILED;
    }
    return status;
}
