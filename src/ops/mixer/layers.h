/* What launches of several layers share. */
#ifndef DART_MIXER_LAYERS_H
#define DART_MIXER_LAYERS_H

#include "mixer.h"
#include "runtime/op.h"

enum { LAYERS_N = 128, LAYERS_P = 64, LAYERS_TAPS = 4 };

/* What passes for `tensor` where its elements are found by address. */
bool mixer_lies_at(const dart_tensor *tensor, dart_dtype dtype, uint32_t bytes);
bool mixer_is_16bit(dart_dtype dtype);
/* Of the runs, bf16 where there are none. */
dart_dtype mixer_memories_dtype(const dart_mixer_step_args *a);
/* Sizes, types and places of one layer, by itself and beside the first, for any number of sequences. */
bool mixer_layer_fits(const dart_mixer_step_args *a, const dart_mixer_step_args *first);
/* Rows of in_proj, and of sma_proj where there is one: q, e and the gate. */
uint32_t mixer_outputs(const dart_mixer_step_args *a);
/* The table of places (MixerLayersArgs, with windows MixerWindowsArgs). */
op_operand mixer_places(op_call *call, const dart_mixer_step_args *layers, const mixer_window *windows, uint32_t count);

#endif
