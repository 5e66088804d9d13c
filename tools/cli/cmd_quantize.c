/* dartlm quantize: a checkpoint with smaller weights. */
#include "cli.h"

#include "base/file.h"
#include "checkpoint/config.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int copy_config(cli_session *session, const char *from, const char *to)
{
    file_map map = {NULL, 0};
    file_writer *writer = NULL;
    dart_status status = file_map_open(from, &session->report, &map);
    if (status == DART_OK) status = file_writer_open(to, &session->report, &writer);
    if (status == DART_OK) status = file_writer_append(writer, map.data, map.bytes);
    if (status == DART_OK) status = file_writer_close(&writer);
    file_writer_destroy(&writer);
    file_map_close(&map);
    return status == DART_OK ? CLI_OK : cli_fail_file(session, status);
}

static bool show_progress(void *user, uint64_t done, uint64_t of)
{
    (void)user;
    cli_progress("quantising: %u %%", of > 0 ? (unsigned)(100.0 * (double)done / (double)of) : 0);
    return cli_stopped() == 0;
}

static int quantize(cli_session *session, const cli_common *common, const char *in, const char *out)
{
    const dart_dtype dtype = common->dtype == 2 ? DART_Q4 : DART_Q8;
    model_quantised_counts counts = {0};
    char *weights = file_join(out, "model.safetensors"), *index = file_join(out, "model.safetensors.index.json");
    char *config = file_join(in, "config.json"), *config_out = file_join(out, "config.json"), *tokenizer = file_join(in, "tokenizer.json");
    int result = CLI_OK;
    if (weights == NULL || index == NULL || config == NULL || config_out == NULL || tokenizer == NULL) result = cli_fail_memory();
    else if (file_exists(weights) || file_exists(index) || file_exists(config_out))
        result = cli_fail("%s holds a checkpoint already; name another folder", out);
    if (result == CLI_OK) {
        dart_status status = file_is_folder(in) ? DART_OK : base_fail(&session->report, DART_IO, "%s is not a folder", in);
        if (status == DART_OK) status = file_make_folder(out, &session->report);
        base_progress progress = {.go_on = show_progress};
        cli_stop_at(SIGINT, true);
        if (status == DART_OK) status = model_quantise(in, dtype, weights, &progress, &session->report, &counts);
        cli_progress_end();
        if (status == DART_CANCELLED) result = cli_fail("interrupted: %s holds no weights", out);
        else if (status != DART_OK) result = cli_fail_file(session, status);
    }
    if (result == CLI_OK) result = copy_config(session, config, config_out);
    if (result == CLI_OK && file_exists(tokenizer)) result = cli_copy_tokenizer(in, out);
    if (result == CLI_OK && common->json)
        result = cli_print_json(json_pack("{s:o, s:s, s:i, s:I, s:I}", "folder", cli_json_text(out), "dtype", dart_dtype_name(dtype), "matrices",
                                          (int)counts.matrices, "bytes", (json_int_t)counts.bytes_after, "bytes_before",
                                          (json_int_t)counts.bytes_before));
    else if (result == CLI_OK)
        printf("%s: %u matrices are %s, %.1f MB instead of %.1f\n", out, counts.matrices, dart_dtype_name(dtype), (double)counts.bytes_after / 1e6,
               (double)counts.bytes_before / 1e6);
    free(weights);
    free(index);
    free(config);
    free(config_out);
    free(tokenizer);
    return result;
}

int cmd_quantize(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    const args_option options[] = {
        {"dtype", 0, ARGS_CHOICE, "q8|q4", &common.dtype, "numbers of 8 bits (default) or of 4", 0, 0, false},
        {"json", 0, ARGS_FLAG, NULL, &common.json, "print JSON", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm quantize",
        .operands = "IN OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Writes a checkpoint with quantised weights to the folder OUT, from the one in the folder IN: what --dtype q8 or q4 makes\n"
            "of IN when it is loaded, ready made. Matrices become blocks of 32 numbers with a scale; with q4 the embedding and the\n"
            "head take 8 bits. Step sizes, gates, decays, convolutions and norms stay as they are. Not for training.\n"
            "Ctrl-C ends it and leaves no weights."};
    args_operands operands;
    cli_session session = {.context = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    session.has_report = true;
    status = quantize(&session, &common, operands.texts[0], operands.texts[1]);
    cli_close(&session);
    return status;
}
