/* Probes of what drivers do without a promise. */
#ifndef DART_PROBE_H
#define DART_PROBE_H

#include "device.h"

/* Runs the probes of matrix hardware that the device's capabilities call for, and takes away the capabilities of those that fail or
 * give wrong numbers; probes of the bits in `wrong` count as having done so. Part of opening a device. */
dart_status device_probe(dart_device *device, uint32_t wrong);

#endif
