/* Arguments and contracts of the kernels of mixer; the contract of every kernel is in ../args.h. */
#ifndef DART_MIXER_ARGS_H
#define DART_MIXER_ARGS_H

/* What rows with FITS_MIXER_STEP have room for: inputs of mixer_project and of mixer_output, and heads times splits of the latter. */
#define STEP_PROJECT_INPUTS 1536
#define STEP_OUTPUT_INPUTS 3072
#define STEP_PARTIALS 1024

/* The first launch of a mixer's step: RMSNorm, a product, and the convolution or the step sizes of its outputs. Row t is the one
 * token of sequence t: u = x_t / sqrt(mean(x_t^2) + eps) * norm, v_o = sum_i u_i weight[o, i], weight packed, and
 *   first <= o < first + C, a channel ch = o - first: conv_step with in_{K-1} = v_o: y[t, o] = SiLU(bias[ch] +
 *     sum_k taps[ch, k] in_k), (in_0 .. in_{K-2}) = tail[t, :, ch]; then tail[t, :, ch] = in_1 .. in_{K-1};
 *   with HAS_STEPS the H outputs after the channels, h = o - first - C: y[t, o] = v_o, and the results of ssd_decay for
 *     L = M = 1 and dt_bias: cum[(t H + h) 3] = {log-decay, 0, step}, cum[decay_at + 2 t H + h] = open_decay[t H + h] (0 without
 *     HAS_OPEN), cum[decay_at + (2 t + 1) H + h] = log-decay;
 *   any other o: y[t, o] = v_o.
 * A count of 0 leaves row t of every output unchanged. 1 <= K <= 8. Tile: T0 outputs x T1 rows,
 * tile = output block + (number of output blocks) * row block.
 * mixer_project_quantised: the same with quantised rows of weight (dart_quantise), weight_at in bytes, inputs a multiple of 32.
 * mixer_output_quantised stands so to mixer_output, with P a multiple of 8. */
struct MixerProjectArgs {
    U32 tiles, flags, rows, inputs, outputs, first, C, K, H, x_at, x_row, norm_at, weight_at, y_at, y_row, taps_at, bias_at, tail_at,
        seq_at, a_log_at, dt_bias_at, decay_at;
    F32 eps, dt_min, dt_max;
};

/* The second launch, which may overlap ssd_step: sma_query and sma_step in one, from q and e after their convolution, and normalised
 * memories. logit and v as in SmaArgs. Rows of q and e lie q_row apart.
 * Tile: split + splits * (h + H b) reads memories [split T, split T + T), T = ceil(count / splits), and writes
 * partial[partial_at + (split B H + b H + h) (P + 4)] = {acc[P], top, den}: top = max logit (-3.4e38 without memories), den =
 * sum exp(logit - top), acc = sum exp(logit - top) v. A count of 0 writes nothing. Of one sequence a split has T0 memories or more. */
struct MixerAttendArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, splits, q_at, e_at, q_row, c_at, c_row, dh_at, factor_at, seq_at, partial_at;
    F32 eps;
};

/* The last launch: x_t += weight u_t, u = RMSNorm((y + SiLU(gate) r) SiLU(z)) norm over all inputs, weight packed, outputs x
 * inputs. With HAS_SMA r is merged from the `splits` partials of (t, head i / P), 0 where no partial saw a memory:
 * r_i = sum_s exp(top_s - T) acc_s,i / sum_s exp(top_s - T) den_s, T = max top_s over den_s > 0. partial
 * [(s B H + t H + h) (P + 4)] as mixer_attend writes it, B = rows, H = inputs / P. A count of 0 leaves x_t unchanged.
 * Tile: T0 outputs x T1 rows, tile = output block + (number of output blocks) * row block. */
struct MixerOutputArgs {
    U32 tiles, flags, rows, inputs, outputs, P, splits, y_at, y_row, gate_at, gate_row, z_at, z_row, norm_at, weight_at, seq_at, x_at, x_row;
    F32 eps;
};

/* The steps of `layers` mixers on the one token of one sequence, one after another, in one launch: each computes what mixer_project (for in_proj and
 * sma_proj), ssd_step, mixer_attend, mixer_output and sma_append compute together. B = G = 1, K = 4, N = 128, P = 64, T0 = W and T1 = H +
 * LAYERS_WORKGROUPS tiles, W a multiple of 256, H one of 4, H P at most 2 W, tiles 1 or at least 2 H; all weights of one 16-bit type, memories of
 * one, tails of one type; norms, taps, biases, a_log, d, states and scales in f32; weights, states, memories and scales begin at a multiple of 16
 * bytes.
 * Tensors are found by their addresses. places: first and M of each run, from pair MIXER_RUNS on of the runs that may receive a memory; then place p
 * of layer l, a 64-bit number, in words 2 (RUN_PAIRS + l PLACES + p) and the next, 0 for an absent bias. Bindings weight, tail and dh are the first
 * layer's, for their types. HAS_OPEN: with memories, of `runs` runs, and `closing` runs that may receive the chunk that closes. A count of 0 leaves
 * everything as it is.
 * The workgroups wait for one another: all `tiles` of them run side by side (DART_CAP_RESIDENT), and each has rows of in_proj and out_proj. They
 * pass numbers in 64-bit words of posts, a tag above each. Word 0 is the last tag that launches have used. After MIXER_PATIENCE looks at a word, or a
 * hundred times as many on processors, a workgroup sets stuck and ends. posts: 8 + W + R + N + P + 1 + H P + H (splits + 1) (P + 2) such words. */
#define PLACE_NORM 0u
#define PLACE_IN_PROJ 1u
#define PLACE_TAPS 2u
#define PLACE_BIAS 3u
#define PLACE_TAIL 4u
#define PLACE_DT_BIAS 5u
#define PLACE_A_LOG 6u
#define PLACE_D 7u
#define PLACE_MIXER_NORM 8u
#define PLACE_OUT_PROJ 9u
#define PLACE_H 10u
#define PLACE_SMA_PROJ 11u
#define PLACE_SMA_TAPS 12u
#define PLACE_SMA_BIAS 13u
#define PLACE_SMA_TAIL 14u
#define PLACE_OPEN 15u
#define PLACE_OPEN_DECAY 16u
#define PLACE_RUNS 17u /* memories and scales of each run */
#define PLACE_CLOSING 25u /* likewise */
#define PLACES 32u
#define MIXER_RUNS 4
#define MIXER_CLOSING 2
#define RUN_PAIRS 8u
#define MIXER_MOST_SPLITS 4
/* Of a multiprocessor's ring of weights through CUDA: words of 16 bytes, and rows of in_proj in a place of it. Where a layer's places exceed it,
 * threads hold the first ones if W is at most LAYERS_HELD_WIDTH. */
#define LAYERS_RING_WORDS 8192u
#define LAYERS_PLACE_ROWS 8u
#define LAYERS_HELD_WIDTH 1536u
#define LAYERS_WORKGROUPS 256u /* of T1 */
#define MIXER_PATIENCE 2000000
struct MixerLayersArgs {
    U32 tiles, flags, layers, W, H, S, splits, runs, closing, x_at, seq_at;
    F32 eps, sma_eps, dt_min, dt_max;
};

/* The same for B sequences whose newest tokens wait in windows (../window/args.h): of each layer what window_append, window_output, mixer_attend and
 * window_fold compute besides. G = 1, K = 4, N = 128, P = 64, T0 = W and T1 = H, W a multiple of 256 up to 768, H one of 8 up to 24, B at most 64;
 * weights, activations and memories bf16; norms, taps, biases, a_log, d and states in f32.
 * Places are those above, of which a layer has WINDOW_PLACES. The sequences are shared out to `groups` groups, `members` each but for the last, and
 * the workgroups likewise, tiles / groups each: groups do not wait for one another. Of a sequence `share` workgroups have `heads` heads each, but for
 * the last.
 * work, f32: B (W / 2 + H P / 2 + tiles / groups + groups + share) numbers. posts: 8 + 2 tiles words of 64 bits, and for each sequence one of each
 * output of in_proj and sma_proj and of each head, an even number.
 * mixer_window_layers computes the same but for mixer_attend and window_fold: runs = 0, though with HAS_OPEN sma_proj's convolution goes on.
 * work, f32: B (W / 2 + H P / 2 + W / 16 + H P + N + share) numbers. posts: 8 + 3 tiles words of 64 bits. */
#define PLACE_ROWS 29u
#define PLACE_HIN 30u
#define PLACE_HIN_SCALE 31u
#define PLACE_STEPS 32u
#define WINDOW_PLACES 33u
#define WINDOWS_RING 9u        /* places of a workgroup for states and memories */
#define WINDOWS_MOST_HEADS 12u /* of a workgroup */
struct MixerWindowsArgs {
    U32 tiles, flags, layers, B, W, H, S, runs, closing, groups, members, share, heads, x_at, seq_at;
    F32 eps, sma_eps, dt_min, dt_max;
};

#endif
