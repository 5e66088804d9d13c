#include "cli.h"

#include "conform/conform.h"

#include <stdio.h>

static void show_progress(void *user, const char *text)
{
    (void)user;
    cli_progress("%s", text);
}

int cmd_conform(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    args_list devices = {.count = 0};
    const char *filter = NULL;
    uint64_t seed = 1;
    uint32_t jobs = 0, seeds = 1;
    const args_option options[] = {
        {"device", 0, ARGS_LIST, "SPEC", &devices, "may be repeated; by default every usable device", 0, 0, false},
        {"filter", 0, ARGS_TEXT, "TEXT", &filter, "only cases with TEXT in their name", 0, 0, false},
        {"jobs", 0, ARGS_U32, "N", &jobs, "variants of a case at the same time; by default one a core,\nwhere a device is a processor 1", 1, 64,
         false},
        {"seed", 0, ARGS_U64, "N", &seed, "of the random inputs, by default 1", 0, 0, false},
        {"seeds", 0, ARGS_U32, "N", &seeds, "each case so many times, with the seeds from --seed on; by default once", 1, 1000000, false},
        CLI_LESS(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm conform",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Runs every op in every variant on the devices and compares all results, intermediates included,\n"
                 "with a plain sequential computation in fp64, and the devices with the first one."};
    args_operands operands;
    cli_session session = {.context = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = cli_open_context(&session, &common);
    if (status == CLI_OK) {
        const conform_options conform = {.devices = devices.count > 0 ? devices.texts : NULL,
                                         .devices_count = devices.count,
                                         .filter = filter,
                                         .no_matrix = common.no_matrix,
                                         .minimum_limits = common.minimum_limits,
                                         .json = common.json,
                                         .verbose = common.verbosity > 0,
                                         .seed = seed,
                                         .seeds = seeds,
                                         .jobs = jobs,
                                         .progress = show_progress};
        const int failures = conform_all(session.context, &conform, stdout);
        status = failures == 0 ? CLI_OK : CLI_FAILED;
    }
    cli_close(&session);
    return status;
}
