/* What the model asks about the mixer's op before it records. */
#ifndef DART_MIXER_H
#define DART_MIXER_H

#include "runtime/stream.h"

/* Does dart_norm_linear multiply matrices in this call? Where it does not, a norm and a product of its result are faster from
 * some rows on. */
bool mixer_norm_linear_has_matrices(const dart_device *device, const dart_norm_linear_args *args);
/* Does dart_norm_linear with few rows take less time than dart_rms_norm and dart_linear? */
bool mixer_norm_linear_pays(const dart_device *device, const dart_norm_linear_args *args);

/* Can `count` steps of one token on the same x, one after another, go in one launch (mixer_layers)? */
bool mixer_layers_fit(const dart_stream *stream, const dart_mixer_step_args *layers, uint32_t count);
/* The same as dart_mixer_step for each of them, but for the order of sums. Where they do not fit, DART_UNSUPPORTED. */
dart_status mixer_layers(dart_stream *stream, const dart_mixer_step_args *layers, uint32_t count);
/* What the window of a layer adds to its step, as in dart_window_args. */
typedef struct mixer_window { dart_tensor rows, steps, hin, hin_scale; } mixer_window;
/* Can `count` steps of many sequences through windows go in one launch (mixer_windows)? */
bool mixer_windows_fit(const dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count);
/* What dart_window_append, dart_window_output, dart_sma, dart_window_fold and the products around them do for each layer, but for the order of sums
 * and for what is rounded: x times the norm and the gated output are, before products, and the convolutions' x and b as they go to the window. Where
 * they do not fit, DART_UNSUPPORTED. */
dart_status mixer_windows(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count);
/* The same of sequences without memories, but for dart_window_fold. */
bool mixer_window_layers_fit(const dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count);
dart_status mixer_window_layers(dart_stream *stream, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count);
/* Checks the arguments of a step, as dart_mixer_step does. */
dart_status mixer_check(dart_stream *stream, const dart_mixer_step_args *args);

#endif
