/* Windows for the model: what a state asks about them before it uses them, and launches that a block makes of several. */
#ifndef DART_WINDOW_H
#define DART_WINDOW_H

#include "runtime/stream.h"

/* Do dart_window_append, _output and _fold take less time than dart_conv and dart_ssd with L = 1? Looks at B, N, P and the types of rows and hin. */
bool window_pays(const dart_device *device, const dart_window_args *args);

/* Does dart_window_fold of `count` layers go in one launch? Their arguments must be valid. */
bool window_folds_fit(const dart_stream *stream, const dart_window_args *layers, uint32_t count);
dart_status window_folds(dart_stream *stream, const dart_window_args *layers, uint32_t count);

/* A product behind RMSNorm with `outputs` outputs for each of B sequences: from output `first` on C channels of a convolution with K taps, then
 * H step sizes; formulas: WindowProjectArgs in shaders/window/args.h. It is a norm, a product and dart_window_append in one launch or, with
 * H = kept = 0, a norm, a product and dart_conv of one token. x f32 B W; norm W; weight outputs W; y B outputs, whose columns of channels and step
 * sizes are not written; conv B C, whose first `kept` columns are not written; conv_weight C K, conv_bias C, tail B K-1 C, a_log, dt_bias H; seq,
 * rows and steps as in dart_window_args, rows with `kept` channels. */
typedef struct window_project_args {
    uint32_t B, W, outputs, first, C, K, H, S, kept;
    float eps, dt_min, dt_max;
    dart_tensor x, norm, weight, y, conv, conv_weight, conv_bias, tail, seq, a_log, dt_bias, rows, steps;
} window_project_args;
/* Has the device a row for it? */
bool window_project_fits(const dart_device *device, const window_project_args *args);
dart_status window_project(dart_stream *stream, const window_project_args *args);

/* dart_window_output, y times SiLU(z): z B H P, a view of any float type. */
bool window_gated_fits(const dart_device *device, const dart_window_args *args);
dart_status window_gated(dart_stream *stream, const dart_window_args *args, dart_tensor z);

/* y_b += RMSNorm(x_b) norm . weight^T for sequences whose count is above 0. x B I, norm I, weight W I, y f32 B W, seq i32 B 2. */
typedef struct window_back_args {
    uint32_t B, I, W;
    float eps;
    dart_tensor x, norm, weight, y, seq;
} window_back_args;
bool window_back_fits(const dart_device *device, const window_back_args *args);
dart_status window_back(dart_stream *stream, const window_back_args *args);

#endif
