/* What the model asks about the mixer's op before it records. */
#ifndef DART_MIXER_H
#define DART_MIXER_H

#include "runtime/device.h"

/* Does dart_norm_linear multiply matrices in this call? Where it does not, a norm and a product of its result are faster from
 * some rows on. */
bool mixer_norm_linear_has_matrices(const dart_device *device, const dart_norm_linear_args *args);
/* Does dart_norm_linear with few rows take less time than dart_rms_norm and dart_linear? */
bool mixer_norm_linear_pays(const dart_device *device, const dart_norm_linear_args *args);

#endif
