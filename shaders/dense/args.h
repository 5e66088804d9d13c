/* Arguments and contracts of the kernels of dense; the contract of every kernel is in ../args.h. */
#ifndef DART_DENSE_ARGS_H
#define DART_DENSE_ARGS_H

/* y[i] = value for rows x width elements. Tile: T0 consecutive elements. */
struct FillArgs { U32 tiles, rows, width, y_at, y_row; F32 value; };

/* y = x in another dtype; with HAS_SEQ the rows are tokens, L of each sequence. Tile: T0 consecutive elements, counted
 * row by row. */
struct ConvertArgs { U32 tiles, flags, rows, L, width, x_at, x_row, y_at, y_row, seq_at; };

/* y_t = weight_{ids_t} for ids in [first, first + count), the rows that the weight binding holds. Rows with an id
 * outside [0, vocabulary) become NaN in the launch with first == 0. Tile: one row. */
struct EmbedArgs { U32 tiles, rows, width, vocabulary, first, count, ids_at, weight_at, y_at, y_row; };

/* y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. HAS_ROWS: where rows_t is negative, y_t stays as it is. Tile:
 * one row. */
struct NormArgs { U32 tiles, flags, rows, width, x_at, x_row, weight_at, rows_at, y_at, y_row; F32 eps; };

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight. gate is one number a row. Tile: one row. */
struct GatedNormArgs { U32 tiles, flags, rows, width, y_at, y_row, r_at, r_row, gate_at, gate_row, z_at, z_row, weight_at, out_at,
                      out_row; F32 eps; };

/* y[t, o] (+)= sum_i x[t, i] weight[o, i]. weight is packed: outputs x inputs.
 * Tile: T0 outputs x T1 rows, tile = output block + (number of output blocks) * row block. */
struct LinearArgs { U32 tiles, flags, rows, inputs, outputs, x_at, x_row, weight_at, y_at, y_row; };

#endif
