#include "compare_reports.h"
#include "system.h"

#include "conform/conform.h"

#include "commit.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { CONFORM_WORSE = 3 };

static int compare(const args_syntax *syntax, const args_list *reports, bool json)
{
    bool worse = false;
    if (reports->count != 2) return args_mistake(syntax, "--compare is given twice, for the report before and the one after");
    const int status = compare_reports(reports->texts[0], reports->texts[1], json, &worse);
    return status == CLI_OK && worse ? CONFORM_WORSE : status;
}

/* The case at hand ends, and then the run, with its summary and a whole report. */
static bool go_on(void *user)
{
    (void)user;
    return cli_stopped() == 0;
}

/* Messages of the validation layer; they name the rule that was broken. */
static void note_message(void *user, dart_log_level level, const char *text)
{
    atomic_uint *errors = user;
    if (level > DART_LOG_WARNING) return;
    if (level == DART_LOG_ERROR && strstr(text, "VUID") == NULL) return; /* failures of ops are results */
    cli_progress_end();
    fprintf(stderr, "dartlm: %s\n", text);
    if (level == DART_LOG_ERROR) atomic_fetch_add(errors, 1);
}

static void show_progress(void *user, const char *text)
{
    (void)user;
    cli_progress("%s", text);
}

int cmd_conform(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    args_list devices = {.count = 0}, reports = {.count = 0};
    const char *filter = NULL, *only = NULL, *variant = NULL, *report = NULL, *dump = NULL;
    bool list = false, draw = false, validation = false;
    char system[160];
    uint64_t seed = 1;
    uint32_t jobs = 0, seeds = 1, cut = 0, margin = 0, backwards = 0, multiprocessors = 0, random = 0;
    const args_option options[] = {
        {"device", 0, ARGS_LIST, "SPEC", &devices, "may be repeated; by default every usable device", 0, 0, false},
        {"filter", 0, ARGS_TEXT, "TEXT", &filter, "only cases with TEXT in their name", 0, 0, false},
        {"case", 0, ARGS_TEXT, "NAME", &only, "only the case of this whole name, in the list or not", 0, 0, false},
        {"random", 0, ARGS_U32, "N", &random,
         "instead of the list N cases that the seed draws, of those that --filter\nlets through: sizes, types and flags that nobody chose", 1,
         1000000, false},
        {"variant", 0, ARGS_TEXT, "NAME", &variant, "the device's own choice and this variant only", 0, 0, false},
        {"list", 0, ARGS_FLAG, NULL, &list, "print the names of the cases and run none", 0, 0, false},
        {"report", 0, ARGS_TEXT, "FILE", &report, "write JSON there, too, case by case:\ndocs/conformance-report.md", 0, 0, false},
        {"dump", 0, ARGS_TEXT, "DIR", &dump, "write the tensors of each case that fails there, as safetensors:\ninputs, expected, got", 0, 0, false},
        {"compare", 0, ARGS_LIST, "FILE", &reports,
         "run nothing; given twice: what differs between two reports.\nEnds with 3 if a result that passed no longer does", 0, 0, false},
        {"validation", 0, ARGS_FLAG, NULL, &validation, "with the Khronos validation layer of Vulkan; a message\nof an error ends with 1",
         0, 0, false},
        {"jobs", 0, ARGS_U32, "N", &jobs, "cases and variants at the same time; by default one a core,\nwhere a device is a processor 1", 1, 64,
         false},
        {"seed", 0, ARGS_U64, "N", &seed, "of the random inputs, by default 1", 0, 0, false},
        {"seeds", 0, ARGS_U32, "N", &seeds, "all cases so many times, with the seeds from --seed on; by default once", 1, 1000000, false},
        {"draw", 0, ARGS_FLAG, NULL, &draw,
         "only some cases, drawn by the seed: so many that every row of kernels\nruns that all cases make the device run", 0, 0, false},
        {"cut", 0, ARGS_U32, "N", &cut, "each launch in N ranges of its workgroups, as submissions that\nwould take too long are cut", 1, 65535,
         false},
        {"margin", 0, ARGS_U32, "BYTES", &margin,
         "each tensor between so many bytes of NaN, a multiple of 256, which\nkernels can reach: what is read or written outside a tensor shows", 256,
         1 << 24, false},
        {"backwards", 0, ARGS_U32, "N", &backwards,
         "workgroups of launches in reverse order, of all with 1, of every\nsecond one with 2; not through CUDA", 1, 2, false},
        {"multiprocessors", 0, ARGS_U32, "N", &multiprocessors,
         "launches as for so many multiprocessors; where workgroups wait for\none another, so many must run side by side", 1, 65535, false},
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
                 "with a plain sequential computation in fp64, and the devices with the first one. Ctrl-C ends it\n"
                 "behind the case at hand, with the summary of what ran."};
    args_operands operands;
    cli_session session = {.context = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (reports.count > 0) return compare(&syntax, &reports, common.json);
    if (list && (common.json || report != NULL || variant != NULL || draw))
        return args_mistake(&syntax, "--list goes with none of --json, --report, --variant and --draw");
    if (only != NULL && (random > 0 || filter != NULL)) return args_mistake(&syntax, "--case goes with none of --random and --filter");
    if (random > 0 && (draw || seeds > 1)) return args_mistake(&syntax, "--random goes with none of --draw and --seeds");
    conform_case named;
    if (only != NULL && !conform_parse(only, &named)) return args_mistake(&syntax, "--case takes a whole name, as --list prints them");
    if (report != NULL && common.json) return args_mistake(&syntax, "--json and --report are the same twice: give one");
    atomic_uint errors;
    atomic_init(&errors, 0);
    if (validation) {
        common.validation = true;
        common.log = note_message;
        common.log_user = &errors;
    }
    system_describe(system, sizeof system);
    status = cli_open_context(&session, &common);
    FILE *file = NULL;
    if (status == CLI_OK && report != NULL && (file = system_open(report, "wb")) == NULL) status = cli_fail("%s: %s", report, strerror(errno));
    if (status == CLI_OK) {
        const conform_options conform = {.devices = devices.count > 0 ? devices.texts : NULL,
                                         .devices_count = devices.count,
                                         .filter = filter,
                                         .only = only,
                                         .random = random,
                                         .no_matrix = common.no_matrix,
                                         .no_resident = common.no_resident,
                                         .minimum_limits = common.minimum_limits,
                                         .cut = cut,
                                         .margin = margin,
                                         .backwards = backwards,
                                         .multiprocessors = multiprocessors,
                                         .variant = variant,
                                         .list = list,
                                         .report = file,
                                         .dump = dump,
                                         .json = common.json,
                                         .verbose = common.verbosity > 0,
                                         .seed = seed,
                                         .seeds = seeds,
                                         .draw = draw,
                                         .draw_seed = seed,
                                         .jobs = jobs,
                                         .progress = show_progress,
                                         .go_on = go_on,
                                         .commit = DARTLM_COMMIT,
                                         .system = system};
        cli_stop_at(SIGINT, true);
        const int failures = conform_all(session.context, &conform, stdout);
        status = failures == 0 ? CLI_OK : CLI_FAILED;
        const unsigned broken = atomic_load(&errors);
        if (broken > 0) status = cli_fail("the validation layer has %u message%s of errors", broken, broken == 1 ? "" : "s");
        if (list && failures != 0) cli_fail("no case has '%s' in its name", filter != NULL ? filter : "");
    }
    if (file != NULL && (ferror(file) | fclose(file)) != 0) status = cli_fail("%s: %s", report, strerror(errno));
    cli_close(&session);
    return status;
}
