/* dartlm: the DART sequence model on Vulkan, CUDA and CPU. Tier 1: devices, buffers, streams, ops. Programs include this header; it brings the
 * four that declare them.
 *
 * GLOSSARY. Dimensions are upper case, tensors lower case. A letter has one meaning but for C, D, I and R.
 *
 *   B  batch                      S  chunk size                    x   B L H P  value input of the scan
 *   L  tokens in this piece       M  number of chunks, ceil(L/S)   dt  B L H    step size
 *   H  heads                      W  model width                   b   B L G N  write key
 *   G  groups of b, c, q, e       I  inner width, H P              c   B L G N  read vector (scan and SMA)
 *   P  head dimension             K  convolution width             q   B L G N  query
 *   N  state size                 V  vocabulary                    e   B L G P  value-side verifier
 *   T  rows of a row-wise op                                       h   B H N P  recurrent state
 *                                                                  dh  B M H N P chunk state memories
 *                                                                  r   B L H P  SMA readout, lse  B L H
 *   SMA: state-memory attention, dart_sma. A piece: the tokens of one call, L of each sequence at most.
 *   C  channels of a convolution; in softmax attention the tokens that the cache has room for
 *   D  head dimension of softmax attention; in dart_mixer_step the channels of the second convolution
 *   F  width of a Transformer's MLP, which dart_gelu and dart_swiglu call I
 *   R  in dart_rope and of a Transformer the elements of a head that positions turn; in dart_mixer_step the rows of in_proj
 *   Q  in dart_mixer_step the rows of sma_proj
 *   X, Y  in dart_convert with pairs the rows of x and of y
 *   Head h belongs to group h / (H / G).
 *
 * LAWS that hold for every function of the headers included here.
 *   Shapes     Row-major, last index fastest. A token-major tensor (B L ...) may be a view whose consecutive
 *              tokens lie `row` elements apart; everything else is packed.
 *   Numbers    Storage is f32, f16 or bf16, chosen per tensor; sums, states, norms and softmax statistics are f32.
 *              A Vulkan driver may take f32 numbers below 2^-126 for 0, as lavapipe and SwiftShader do; the CPU backend keeps them.
 *   Errors     Every fallible function returns a dart_status. The text of the failed condition goes to the log
 *              callback of the context and to the *_error call of the object. The library never aborts, prints, or
 *              reads the environment. Out-parameters are untouched on failure unless stated otherwise.
 *   Streams    An op records its launches; dart_stream_submit runs them. The first failure of a stream is sticky: later
 *              ops and submissions return that status and do nothing, until dart_stream_begin clears it. A lost device
 *              stays lost.
 *   Threads    A context, a device and their queries may be used from several threads at once. A stream is used by one
 *              thread at a time; different ones concurrently. A buffer may be shared under the caller's own ordering.
 *   Lifetime   Destroy children before parents. Destroy functions take the address of the handle, set it to NULL and
 *              accept NULL. Destroying a stream waits for its work; a buffer is destroyed once every stream that uses
 *              it has been waited for.
 *   Alignment  Tensors may start at any element, with these exceptions: h, open, open_decay, cum, decay, qn, en, and in
 *              dart_window_args rows, steps and hin, start at multiples of 64 elements; the dh of a closing run of
 *              dart_window_args starts at a multiple of 8.
 *   Packed     Ops with cu and T also take B sequences of different lengths that lie one after another in T rows, as they are:
 *              cu i32 B + 1 (dart_cu_check), sequence b in the rows from cu_b to cu_(b+1) - 1, at most L of them, from position 0 on.
 *              Token-major tensors (B L ...) then have T rows, tensors of chunks (B M ...) dart_packed_chunks(T, S, B) slots,
 *              chunk j of sequence b in slot cu_b / S + b + j, rounded down. Slots of no chunk and rows of no sequence are neither
 *              read nor written. A sequence is computed as it is alone, to the bit where the same variants are taken, and
 *              what one holds, NaN included, reaches no other. cu excludes seq, and with it open; tail and the step plans.
 *   Zero       Option and argument structs are valid when zeroed, and zero means the default.
 */
#ifndef DARTLM_H
#define DARTLM_H

#include "base.h"         /* version, status and log */
#include "runtime.h"      /* contexts, devices, buffers, tensors, streams */
#include "ops.h"          /* ops on rows, choice of tokens */
#include "ops_sequence.h" /* convolution, scan, attention, decoding steps */

#endif
