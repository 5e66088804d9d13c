/* What a state asks about windows before it uses them. */
#ifndef DART_WINDOW_H
#define DART_WINDOW_H

#include "runtime/device.h"

/* Do dart_window_append, _output and _fold take less time than dart_conv and dart_ssd with L = 1? Looks at B, N, P and the types of rows and hin. */
bool window_pays(const dart_device *device, const dart_window_args *args);

#endif
