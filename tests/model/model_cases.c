#include "model_cases.h"

const char *spec, *data_folder;
dart_context *context;
dart_device *device;
bool quiet, minimum_limits, many_registers, margins;
