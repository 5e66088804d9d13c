#include "cli.h"
#include "checkpoint/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[MODEL_ROLE_COUNT] = {
    [MODEL_EMBEDDING] = "embeddings",
    [MODEL_NORM] = "norm",
    [MODEL_IN_PROJ] = "in_proj",
    [MODEL_CONV_WEIGHT] = "conv1d",
    [MODEL_CONV_BIAS] = "conv1d bias",
    [MODEL_DT_BIAS] = "dt_bias",
    [MODEL_A_LOG] = "A_log",
    [MODEL_D] = "D",
    [MODEL_MIXER_NORM] = "mixer norm",
    [MODEL_OUT_PROJ] = "out_proj",
    [MODEL_SMA_PROJ] = "sma_proj",
    [MODEL_SMA_CONV_WEIGHT] = "sma_conv1d",
    [MODEL_SMA_CONV_BIAS] = "sma_conv1d bias",
    [MODEL_FINAL_NORM] = "norm_f",
    [MODEL_HEAD] = "lm_head",
    [MODEL_Q_PROJ] = "q_proj",
    [MODEL_K_PROJ] = "k_proj",
    [MODEL_V_PROJ] = "v_proj",
    [MODEL_MLP_NORM] = "MLP norm",
    [MODEL_GATE_PROJ] = "gate_proj",
    [MODEL_UP_PROJ] = "up_proj",
    [MODEL_DOWN_PROJ] = "down_proj",
    [MODEL_NORM_BIAS] = "norm bias",
    [MODEL_Q_BIAS] = "q bias",
    [MODEL_K_BIAS] = "k bias",
    [MODEL_V_BIAS] = "v bias",
    [MODEL_OUT_BIAS] = "out bias",
    [MODEL_MLP_NORM_BIAS] = "mlp norm bias",
    [MODEL_UP_BIAS] = "up bias",
    [MODEL_DOWN_BIAS] = "down bias",
    [MODEL_FINAL_NORM_BIAS] = "norm_f bias",
};

typedef struct kind_total {
    uint64_t tensors, each, all;
} kind_total;

static int print_text(const dart_model_config *config, const kind_total *totals, uint64_t count, bool verbose)
{
    if (!verbose) {
        printf("%" PRIu64 "\n", count);
        return CLI_OK;
    }
    char each[CLI_NUMBER], all[CLI_NUMBER];
    cli_table *table = cli_table_create("lrrrr");
    cli_table_cell(table, "KIND");
    cli_table_cell(table, "TENSORS");
    cli_table_cell(table, "EACH");
    cli_table_cell(table, "PARAMETERS");
    cli_table_cell(table, "%%");
    for (int role = 0; role < MODEL_ROLE_COUNT; role++) {
        if (totals[role].tensors == 0) continue;
        cli_table_cell(table, "%s", role_names[role]);
        cli_table_cell(table, "%" PRIu64, totals[role].tensors);
        cli_table_cell(table, "%s", cli_count(totals[role].each, each));
        cli_table_cell(table, "%s", cli_count(totals[role].all, all));
        cli_table_cell(table, "%.2f", 100 * (double)totals[role].all / (double)count);
    }
    cli_table_cell(table, "%s", config->tied ? "all, lm_head tied" : "all");
    cli_table_cell(table, " ");
    cli_table_cell(table, " ");
    cli_table_cell(table, "%" PRIu64, count);
    cli_table_cell(table, "100.00");
    return cli_table_print(&table);
}

static int print_json(const dart_model_config *c, const kind_total *totals, uint64_t count)
{
    json_t *kinds = json_array();
    for (int role = 0; role < MODEL_ROLE_COUNT; role++)
        if (totals[role].tensors > 0)
            json_array_append_new(kinds,
                                  json_pack("{s:s, s:I, s:I, s:I}", "kind", role_names[role], "tensors",
                                            (json_int_t)totals[role].tensors, "each", (json_int_t)totals[role].each,
                                            "parameters", (json_int_t)totals[role].all));
    return cli_print_json(json_pack("{s:I, s:s, s:b, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:o}",
                                    "parameters", (json_int_t)count, "model_type",
                                    c->transformer ? "llama" : c->sma ? "dart" : "mamba2", "tied", (int)c->tied, "sizes", "layers",
                                    (json_int_t)c->layers, "V", (json_int_t)c->V, "W", (json_int_t)c->W, "H",
                                    (json_int_t)c->H, "P", (json_int_t)c->P, "G", (json_int_t)c->G, "N",
                                    (json_int_t)c->N, "K", (json_int_t)c->K, "S", (json_int_t)c->S, "kinds", kinds));
}

static int count(cli_session *session, const char *folder, const char *preset, const cli_common *common)
{
    dart_model_config config;
    const dart_status status = preset != NULL ? model_config_preset(preset, &session->report, &config)
                                              : model_config_load(folder, &session->report, &config);
    if (status != DART_OK) return cli_fail_file(session, status);
    kind_total totals[MODEL_ROLE_COUNT] = {{0}};
    model_parameter parameter;
    for (uint32_t i = 0; model_config_parameter(&config, i, &parameter); i++) {
        kind_total *total = &totals[parameter.role];
        total->tensors++;
        total->each = parameter.elements;
        total->all += parameter.elements;
    }
    const uint64_t all = model_config_count(&config);
    return common->json ? print_json(&config, totals, all) : print_text(&config, totals, all, common->verbosity > 0);
}

int cmd_params(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    const char *preset = NULL;
    const args_option options[] = {
        {"preset", 0, ARGS_TEXT, "NAME", &preset, "instead of a folder: {dart,mamba2}-{130m,370m,780m}", 0, 0, false},
        {"json", 0, ARGS_FLAG, NULL, &common.json, "print JSON, by kind too", 0, 0, false},
        {"verbose", 'v', ARGS_MORE, NULL, &common.verbosity, "print a table by kind", 0, 0, false},
    };
    const args_syntax syntax = {
        .command = "dartlm params",
        .operands = "[FOLDER]",
        .options = options,
        .options_count = COUNT_OF(options),
        .about = "Prints the number of parameters of the model that FOLDER/config.json describes, or of a preset."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model_config config;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if ((operands.count > 0) == (preset != NULL)) return args_mistake(&syntax, "give a folder or --preset NAME");
    if (preset != NULL && dart_config_preset(preset, &config) != DART_OK)
        return args_mistake(&syntax, "no preset is called %s; there are {dart,mamba2}-{130m,370m,780m}", preset);
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    session.has_report = true;
    status = count(&session, operands.texts[0], preset, &common);
    cli_close(&session);
    return status;
}
