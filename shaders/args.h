/* One argument struct per kernel, which C, CUDA and GLSL include. The comment above a struct is the contract of the kernel.
 *
 * Contract of every kernel:
 *   - Fields are 4-byte scalars. `tiles` comes first: the number of independent pieces of work ("tiles"). One workgroup (thread
 *     block, CPU task) computes a tile; a grid smaller than `tiles` loops over them. Vulkan passes structs of up to 128
 *     bytes as push constants and longer ones in a buffer.
 *   - Bindings are listed in the op's table (src/ops/OP/OP.def), in order. X_at is the index of the first element of binding X,
 *     X_row the elements from one token (row) to the next. Rows of a batch are numbered b L + t.
 *   - dtypes: two bits a binding (0 f32, 1 f16, 2 bf16, 3 i32), the first binding in the lowest bits; bindings after the 16th are f32. A binding
 *     whose flag is not set is a dummy and is never read.
 *   - T0 and T1 below are the tile sizes of the chosen row of the table.
 *   - HAS_SEQ: seq[2 b] is the position, seq[2 b + 1] the count of sequence b; otherwise 0 and L. Tokens t >= count
 *     are neither read nor written. A count above L is taken as L, a negative position or count as 0.
 *   - HAS_CU: binding seq holds cu, B + 1 numbers: the sequences are packed, one after another, in T rows. The tokens of sequence b are rows
 *     cu[b] <= r < min(cu[b + 1], cu[b] + L), all cu taken as at most T; its position is 0. Where formulas below say b L + t, the row
 *     of a token is cu[b] + t; where they say ((b H + h) L + t), it is cu[b] H + h (cu[b + 1] - cu[b]) + t; where they say b M + j (or b capacity
 *     + m for memories of sma), the slot of a chunk is cu[b] / S + b + j; where they say b (M + 1) + i, it is cu[b] / S + 2 b + i. Tiles are
 * numbered as
 *     without it, with the L and M of the longest sequence. What belongs to no sequence is neither read nor written. Rows of the
 *     table with FITS_UNPACKED are never launched with it. T is 0 without it.
 *   - Chunks of a piece: with o = position mod S, chunk j holds tokens begin(j) <= t < end(j),
 *     begin(j) = j ? j S - o : 0, end(j) = min(count, (j + 1) S - o). It closes when (j + 1) S - o <= count.
 *     Its number in the sequence is position / S + j.
 *   - Every sum is f32. Only exponents <= 0 are exponentiated. No float atomics. Each output element is written once.
 */
#ifndef DART_ARGS_H
#define DART_ARGS_H

#ifdef DART_GLSL
#define U32 uint
#define F32 float
#else
#include <stdint.h>
#define U32 uint32_t
#define F32 float
#endif

#define PUSH_BYTES 128    /* Vulkan: longer arguments lie in a buffer, others are push constants, of which every device has as many */

#define HAS_SEQ 1u        /* seq is bound */
#define HAS_BIAS 2u       /* conv: bias; ssd: dt_bias */
#define HAS_TAIL 4u       /* conv: tail */
#define HAS_ROWS 8u       /* norm: rows; advance: ids and log; convert: pairs of rows */
#define HAS_SMA 16u       /* gated_norm: r and gate */
#define HAS_D 32u         /* ssd: d */
#define HAS_H 64u         /* ssd: h */
#define HAS_OPEN 128u     /* ssd: open and open_decay */
#define HAS_DH 256u       /* ssd_step: dh; ssd_piece: memory and scale */
#define IS_STEP 512u      /* ssd_decay: dt is the step size itself: no bias, softplus or limits */
#define IS_ADD 1024u      /* linear: add to what y holds */
#define IS_RAW 2048u      /* sma: dh is raw and factor is rho; otherwise dh is normalised and factor is 1/rho */
#define IS_MERGE 4096u    /* sma, sma_merge: combine with what r and lse hold */
#define HAS_UNIT 8192u    /* sma_query, sma: qn, en and c are 16-bit numbers scaled by powers of two; unit holds what undoes it */
#define HAS_SCALE 16384u  /* ssd: memories are normalised */
#define HAS_HIN_SCALE 32768u /* ssd: hin is normalised */
#define HAS_RUN 65536u    /* ssd: memories lie in a run */
#define HAS_CU (1u << 17)     /* seq holds cu: packed sequences */
#define HAS_FROM (1u << 18)    /* convert: for each row of y its row of x; norm_backward: from and from_rows */
#define NEVER (1u << 19)       /* never set: shaders/lib/together.glsl */
#define HAS_CLOSED (1u << 20) /* ssd_step: dh is written only where the chunk closes */
#define HAS_STEPS (1u << 21)  /* mixer_project: the outputs after the channels are step sizes; window_append: dt_bias */

#define IS_EVERY (1u << 22)   /* window_fold: fold all windows, with the tokens before `position` */
#define IS_FRESH (1u << 23)   /* window_fold: the windows are empty */
#define IS_LATER (1u << 24)   /* window_fold: only chunks that close into the run of this launch */

#define KEEPS_ENDED (1u << 25) /* sample: a row with a count of 0 keeps its id */
#define HAS_STOPS (1u << 26)  /* advance: stops and live */

#define HAS_SEEN (1u << 28)    /* sample: seen */
#define WRITES_COPY HAS_SEEN   /* norm_backward: copy */
#define MARKS_IDS (1u << 29)   /* sample: the id of a row before the choice is put into seen */
#define HAS_TARGETS (1u << 30) /* log_probs: targets and target */

#define HAS_UP_H (1u << 27)   /* ssd_backward_state: up_h */
#define IS_TANH (1u << 31)    /* gelu: the form with tanh */

#define MAX_STATE 256     /* largest N and P */
#define MAX_HEAD 128      /* largest D, except in attention_large and attention_step_large */
#define MAX_LARGE_HEAD 256 /* largest D of softmax attention */
#define STEP_TOKENS 32    /* attention_step: the share of a split is a multiple of this many tokens */
#define MERGE_PARTS 128   /* sma_step, sma_merge: most partials of a head */
#define SMA_PADDING 256   /* most tokens of a tile of sma that reads qn and c in 16 bits */
#define WINDOW 32         /* tokens that a window has room for */
#define SCORE_SIDE 32     /* side of a tile of ssd_backward_scores */
#define CUM_STRIDE 3      /* floats a token in cum: rounded cumulative log-decay, its remainder, step size */

#ifndef DART_GLSL /* a shader includes those of its own op only, so that a change of one op compiles its own shaders again */
#include "dense/args.h"
#include "conv/args.h"
#include "ssd/args.h"
#include "window/args.h"
#include "sma/args.h"
#include "attention/args.h"
#include "mixer/args.h"
#include "choice/args.h"
#include "loss/args.h"
#include "optim/args.h"
#include "mlp/args.h"
#include "probe/args.h"
#endif

#endif
