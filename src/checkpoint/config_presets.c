/* Configurations by name, and the public calls on configurations. */
#include "config.h"

#include <string.h>

/* ---- Presets -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *by_count; /* the paper's name and its own count */
    bool sma;
    uint32_t W, layers;
} presets[] = {
    {"mamba2-130m", "mamba2-129m", false, 768, 24},
    {"mamba2-370m", "mamba2-368m", false, 1024, 48},
    {"mamba2-780m", "mamba2-780m", false, 1536, 48},
    {"dart-130m", "dart-133m", true, 768, 24},
    {"dart-370m", "dart-378m", true, 1024, 48},
    {"dart-780m", "dart-795m", true, 1536, 48},
};

const char *model_config_preset_name(size_t index) { return index < COUNT_OF(presets) ? presets[index].name : NULL; }

dart_status model_config_preset(const char *name, base_report *report, dart_model_config *config)
{
    for (size_t i = 0; i < COUNT_OF(presets); i++) {
        if (strcmp(name, presets[i].name) != 0 && strcmp(name, presets[i].by_count) != 0) continue;
        const uint32_t W = presets[i].W, P = 64;
        *config = (dart_model_config){
            .sma = presets[i].sma, .tied = true, .V = 50288, .W = W, .layers = presets[i].layers, .H = 2 * W / P, .P = P,
            .G = 1, .N = 128, .K = 4, .S = 256, .eps = 1e-5f, .sma_eps = 1e-5f};
        return DART_OK;
    }
    return base_fail(report, DART_INVALID_ARGUMENT, "no preset is called %.100s", name);
}

/* ---- The public calls ---- */

dart_status dart_config_load(const char *folder, dart_model_config *config, char *error, size_t error_size)
{
    if (folder == NULL || config == NULL) return DART_INVALID_ARGUMENT;
    base_report report = {0};
    dart_status status = base_report_init(&report, NULL);
    if (status != DART_OK) return status;
    status = model_config_load(folder, &report, config);
    if (error != NULL && error_size > 0) {
        error[0] = '\0';
        if (status != DART_OK) base_report_copy(&report, error, error_size);
    }
    base_report_destroy(&report);
    return status;
}

dart_status dart_config_preset(const char *name, dart_model_config *config)
{
    if (name == NULL || config == NULL) return DART_INVALID_ARGUMENT;
    base_report report = {0};
    dart_status status = base_report_init(&report, NULL);
    if (status != DART_OK) return status;
    status = model_config_preset(name, &report, config);
    base_report_destroy(&report);
    return status;
}

uint64_t dart_config_parameters(const dart_model_config *config)
{
    base_report report = {0};
    if (config == NULL || base_report_init(&report, NULL) != DART_OK) return 0;
    const bool valid = model_config_check(config, DART_INVALID_ARGUMENT, "config", &report) == DART_OK;
    base_report_destroy(&report);
    return valid ? model_config_count(config) : 0;
}
