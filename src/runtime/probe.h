/* Probes when a device is opened: does it do what variants rely on and no specification promises? */
#ifndef DART_PROBE_H
#define DART_PROBE_H

#include "device.h"

/* Runs the probes of the capabilities that the device has, as part of dart_device_open. A probe that fails or gives wrong
 * numbers removes its capabilities from device->info and logs a warning. wrong: capabilities whose probes count as failed, for
 * tests. Returns DART_OK, DART_DEVICE_LOST or DART_OUT_OF_MEMORY. */
dart_status device_probe(dart_device *device, uint32_t wrong);

#endif
