/* Arguments and contracts of the kernels of dense; the contract of every kernel is in ../args.h. */
#ifndef DART_DENSE_ARGS_H
#define DART_DENSE_ARGS_H

/* y[i] = value for rows x width elements. Tile: T0 consecutive elements. */
struct FillArgs { U32 tiles, rows, width, y_at, y_row; F32 value; };

/* y = x in another dtype; with HAS_SEQ the rows are tokens, L of each sequence. With HAS_ROWS seq holds `rows` pairs {from, to}, and row
 * `to` of y becomes row `from` of x, unless one of them is negative. With HAS_FROM seq holds `rows` numbers from_t, and row t of y becomes row
 * from_t of x, or 0 where from_t is negative. Tile: T0 consecutive elements, counted row by row. */
struct ConvertArgs { U32 tiles, flags, rows, L, width, x_at, x_row, y_at, y_row, seq_at; };

/* y_t = weight_{ids_t} for ids in [first, first + count), the rows that the weight binding holds. Rows with an id
 * outside [0, vocabulary) become NaN in the launch with first == 0. Tile: T0 consecutive rows. */
struct EmbedArgs { U32 tiles, rows, width, vocabulary, first, count, ids_at, weight_at, y_at, y_row; };

/* y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. HAS_ROWS: where rows_t is negative, y_t stays as it is. Tile:
 * T0 consecutive rows t. */
struct NormArgs { U32 tiles, flags, rows, width, x_at, x_row, weight_at, rows_at, y_at, y_row; F32 eps; };

/* y_t = (x_s - mean(x_s)) / sqrt(mean((x_s - mean(x_s))^2) + eps) weight + bias, s = rows_t or t, as in norm. Tile: T0 consecutive rows t. */
struct LayerNormArgs { U32 tiles, flags, rows, width, x_at, x_row, weight_at, bias_at, rows_at, y_at, y_row; F32 eps; };

/* y[t, o] = bias[o]; y[t, o] += bias[o] with IS_ADD. Tile: T0 consecutive elements of rows x width, counted row by row. */
struct BiasArgs { U32 tiles, flags, rows, width, bias_at, y_at, y_row; };

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight. gate is one number a row. Tile: T0 consecutive rows. */
struct GatedNormArgs { U32 tiles, flags, rows, width, y_at, y_row, r_at, r_row, gate_at, gate_row, z_at, z_row, weight_at, out_at,
                      out_row; F32 eps; };

/* y[t, o] (+)= sum_i x[t, i] weight[o, i]. weight is packed: outputs x inputs.
 * Tile: T0 outputs x T1 rows, tile = output block + (number of output blocks) * row block. */
struct LinearArgs { U32 tiles, flags, rows, inputs, outputs, x_at, x_row, weight_at, y_at, y_row; };

/* y[t, o] = from[t, o] + sum_i x[t, i] weight[o, i], from of y's type; flags IS_ADD. In place of convert and linear. Tile: as linear. */
struct LinearFromArgs { U32 tiles, flags, rows, inputs, outputs, x_at, x_row, weight_at, from_at, from_row, y_at, y_row; };

/* linear with quantised rows of weights (dart_quantise), weight_row bytes each, from byte weight_at on, both multiples of 16. The type of
 * weight is 0 for q8, 1 for q4. inputs is a multiple of 32. x may be rounded to 16-bit numbers, a scale a block of 32. Tile: as linear. */
struct LinearQuantisedArgs { U32 tiles, flags, rows, inputs, outputs, x_at, x_row, weight_at, weight_row, y_at, y_row; };

/* embed with quantised rows of weights, as of linear_quantised. Without HAS_ROWS y_t is row t, and ids, vocabulary, first and count are not used.
 * Tile: T0 consecutive rows of y. */
struct EmbedQuantisedArgs { U32 tiles, flags, rows, width, vocabulary, first, count, ids_at, weight_at, weight_row, y_at, y_row; };

/* ---- Backward passes: up_y is the gradient of the loss with respect to y, grad_x the one with respect to x. ----
 * Gradients of parameters are sums over rows. Each tile writes the sum over its own rows to a slot of `partial`, f32, slot = tile, and
 * column_sum adds the slots up. Each row of the table has an order of these sums of its own, which depends on shapes only. */

/* grad_x_s (+)= i (v - n mean(v n)), n = x_s i, i = 1 / sqrt(mean(x_s^2) + eps), v = up_y_t weight, s = rows_t or t; added with IS_ADD.
 * HAS_ROWS: a row with a negative rows_t takes no part. HAS_FROM: added to row from_rows_t of from, or to 0 where that is negative. WRITES_COPY:
 * copy = grad_x. partial[tile, .] = sum over the rows t of the tile of up_y_t n. Tile: T0 consecutive rows t. */
struct NormBackwardArgs {
    U32 tiles, flags, rows, width, x_at, x_row, weight_at, rows_at, up_y_at, up_y_row, grad_x_at, grad_x_row, from_at, from_row, from_rows_at,
        copy_at, copy_row;
    F32 eps;
};

/* Of gated_norm, with w = y + SiLU(gate) r, v = w SiLU(z), n = v i, i = 1 / sqrt(mean(v^2) + eps), u = up_out weight:
 *   grad_v = i (u - n mean(u n));  grad_y = grad_v SiLU(z);  grad_z = grad_v w SiLU'(z);
 *   grad_r = SiLU(gate) grad_y;  grad_gate = SiLU'(gate) sum grad_y r    (HAS_SMA).
 * partial[tile, .] = sum over the rows of the tile of up_out n. Tile: T0 consecutive rows. */
struct GatedNormBackwardArgs {
    U32 tiles, flags, rows, width, y_at, y_row, r_at, r_row, gate_at, gate_row, z_at, z_row, weight_at, up_out_at, up_out_row, grad_y_at,
        grad_y_row, grad_r_at, grad_r_row, grad_gate_at, grad_gate_row, grad_z_at, grad_z_row;
    F32 eps;
};

/* grad_x[part, t, i] (+)= sum over the outputs o of the part of up_y[t, o] weight[o, i]; part has the outputs part * share to
 * part * share + share - 1, and its rows come after those of the part before. Tile: T0 inputs x T1 rows of a part,
 * tile = input block + input blocks * (row block + row blocks * part). */
struct LinearBackwardXArgs { U32 tiles, flags, rows, share, inputs, outputs, up_y_at, up_y_row, weight_at, grad_x_at, grad_x_row; };

/* grad_weight[part, o, i] (+)= sum over rows t of the part, in order, of up_y[t, o] x[t, i]; part has the rows part * share to
 * part * share + share - 1. Tile: T0 inputs x T1 outputs of a part,
 * tile = input block + input blocks * (output block + output blocks * part). */
struct LinearBackwardWeightArgs { U32 tiles, flags, rows, share, inputs, outputs, up_y_at, up_y_row, x_at, x_row, grad_weight_at; };

/* y[g, i] (+)= sum over the rows s = g share .. of x, share of them or as many as there are, of x[s, i]. x is packed, f32; y lies in
 * lines of `line` elements, y_row apart. Tile: T0 columns of one g, tile = column block + column blocks * g. Where there are few columns, a tile
 * adds up T1 elements. */
struct ColumnSumArgs { U32 tiles, flags, rows, share, width, line, y_at, y_row; };

/* The gradient of embed with respect to weight, in two launches. plan: see dart_embed_plan. Piece k of plan[0] pieces has the id, the
 * places begin to end - 1 in `order`, and a slot: sum = the sum of up_y_t over its tokens t. A slot below 0: grad_weight[id] += sum;
 * else partial[slot] = sum. Tile: T0 columns of a piece, tile = column block + column blocks * piece. */
struct EmbedBackwardArgs { U32 tiles, rows, width, vocabulary, plan_at, up_y_at, up_y_row, grad_weight_at; };
/* grad_weight[id] += the sum of the slots of run k of plan[1] runs, in order. Tile: T0 columns of a run, as above. */
struct EmbedBackwardSumArgs { U32 tiles, rows, width, vocabulary, plan_at, grad_weight_at; };
#define EMBED_PIECE 64 /* tokens of a piece */

#endif
