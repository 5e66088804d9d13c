#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct capability {
    uint32_t bit;
    const char *name;
} capabilities[] = {
    {DART_CAP_AVX2, "avx2"},
    {DART_CAP_BLAS, "blas"},
    {DART_CAP_STORE16, "store16"},
    {DART_CAP_SUBGROUP, "subgroup"},
    {DART_CAP_FLOAT16, "float16"},
    {DART_CAP_LARGE, "large"},
    {DART_CAP_SHARED48, "shared48"},
    {DART_CAP_MATRIX_F16, "matrix_f16"},
    {DART_CAP_MATRIX_BF16, "matrix_bf16"},
    {DART_CAP_MATRIX2, "matrix2"},
    {DART_CAP_MATRIX_CUTS, "matrix_cuts"},
    {DART_CAP_MATRIX_PLACES, "matrix_places"},
    {DART_CAP_SM90, "sm90"},
    {DART_CAP_CUBLASLT, "cublaslt"},
    {DART_CAP_WIDE, "wide"},
    {DART_CAP_REGISTERS, "registers"},
    {DART_CAP_REGISTERS160, "registers160"},
    {DART_CAP_REGISTERS96, "registers96"},
    {DART_CAP_CUMULATIVE, "cumulative"},
    {DART_CAP_ADDRESSES, "addresses"},
    {DART_CAP_RESIDENT, "resident"},
};

static const char *type_name(dart_device_type type)
{
    switch (type) {
    case DART_DEVICE_CPU: return "cpu";
    case DART_DEVICE_DISCRETE: return "discrete";
    case DART_DEVICE_INTEGRATED: return "integrated";
    case DART_DEVICE_VIRTUAL: return "virtual";
    case DART_DEVICE_OTHER: break;
    }
    return "other";
}

/* Those beyond what every device of the backend has. */
static const char *capability_names(uint32_t bits, char text[160])
{
    size_t used = 0;
    strcpy(text, "-");
    for (size_t i = 0; i < COUNT_OF(capabilities); i++)
        if ((bits & capabilities[i].bit) != 0)
            used += (size_t)snprintf(text + used, 160 - used, "%s%s", used > 0 ? "," : "", capabilities[i].name);
    return text;
}

static json_t *describe(const dart_device_info *info)
{
    char spec[32], uuid[33];
    for (size_t i = 0; i < sizeof info->uuid; i++) snprintf(uuid + 2 * i, 3, "%02x", info->uuid[i]);
    json_t *names = json_array();
    for (size_t i = 0; i < COUNT_OF(capabilities); i++)
        if ((info->capabilities & capabilities[i].bit) != 0)
            json_array_append_new(names, json_string(capabilities[i].name));
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:b, s:s*}", "device",
                     cli_device_spec(info, spec), "backend", dart_backend_name(info->backend), "name", info->name,
                     "type", type_name(info->type), "driver", info->driver, "uuid", uuid, "memory_bytes",
                     (json_int_t)info->memory_bytes, "max_binding_bytes", (json_int_t)info->max_binding_bytes,
                     "shared_bytes", (json_int_t)info->shared_bytes, "subgroup", (json_int_t)info->subgroup,
                     "capabilities", names, "usable", (int)info->usable, "why_not",
                     info->usable ? NULL : info->why_not);
}

static void add_row(cli_table *table, const dart_device_info *info)
{
    char spec[32], names[160], memory[CLI_NUMBER], binding[CLI_NUMBER], shared[CLI_NUMBER];
    cli_table_cell(table, "%s", cli_device_spec(info, spec));
    cli_table_cell(table, "%s", info->name);
    cli_table_cell(table, "%s", type_name(info->type));
    cli_table_cell(table, "%s", info->driver);
    cli_table_cell(table, "%s", cli_bytes(info->memory_bytes, memory));
    cli_table_cell(table, "%s", cli_bytes(info->max_binding_bytes, binding));
    cli_table_cell(table, "%s", cli_bytes(info->shared_bytes, shared));
    cli_table_cell(table, "%" PRIu32, info->subgroup);
    cli_table_cell(table, "%s", capability_names(info->capabilities, names));
    cli_table_cell(table, "%s", info->usable ? "yes" : info->why_not);
}

static int list(const cli_session *session, bool json)
{
    static const char *const titles[] = {"DEVICE",  "NAME",   "TYPE",     "DRIVER",       "MEMORY",
                                         "BINDING", "SHARED", "SUBGROUP", "CAPABILITIES", "USABLE"};
    json_t *array = json ? json_array() : NULL;
    cli_table *table = json ? NULL : cli_table_create("llllrrrrll");
    for (size_t i = 0; i < COUNT_OF(titles); i++) cli_table_cell(table, "%s", titles[i]);
    for (uint32_t i = 0; i < dart_context_device_count(session->context); i++) {
        dart_device_info info;
        if (dart_context_device_info(session->context, i, &info) != DART_OK) continue;
        if (json) json_array_append_new(array, describe(&info));
        else add_row(table, &info);
    }
    return json ? cli_print_json(array) : cli_table_print(&table);
}

int cmd_devices(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    const args_option options[] = {CLI_OUTPUT(common)};
    const args_syntax syntax = {
        .command = "dartlm devices",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Lists the devices in order of preference: what --device takes, memory, the largest range that one kernel\n"
            "can see of one tensor, shared memory of a workgroup, lanes of a subgroup, and what a device can do\n"
            "beyond the least that is needed."};
    args_operands operands;
    cli_session session = {.context = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = cli_open_context(&session, &common);
    if (status == CLI_OK) status = list(&session, common.json);
    cli_close(&session);
    return status;
}
