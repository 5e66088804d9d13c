/* dartlm, tier 2: whole models. Load a checkpoint, feed tokens, take logits or sampled tokens.
 *
 * A model is the weights on a device; it does not change after it has been loaded. A state is a batch of B sequences, each with
 * its own position, and what must be kept of their past: convolution inputs, recurrent states and memories. Any number of states
 * may share a model.
 *
 * LAWS, besides those of dartlm.h.
 *   One function   Prefill in one piece, in pieces of any lengths, and decoding token by token give the same logits
 *                  within rounding. Sequences of a batch do not see one another.
 *   Blocking       Every call returns when its work is done, unless stated otherwise.
 *   Threads        A model may be used from several threads at once. A state is used by one thread at a time; several
 *                  states of one model may be used concurrently.
 *   Lifetime       Destroy states before their model, and models before their device.
 *   Failure        A call that fails before its first work on the device leaves the state as it was: invalid arguments,
 *                  or no memory before the first piece. A later failure breaks the state: every call except
 *                  dart_state_reset, the queries and dart_state_destroy then returns that same status. Resetting all
 *                  sequences repairs the state, unless the device is lost. A prefill that go_on ends breaks nothing.
 *   Errors         dart_state_error has the text for calls on a state, dart_model_error for dart_state_create, and
 *                  dart_device_error for dart_model_open and dart_model_random.
 */
#ifndef DARTLM_MODEL_H
#define DARTLM_MODEL_H

#include "dartlm/dartlm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configurations ------------------------------------------------------------------------------------------ */

/* The numbers of config.json, under the letters of the glossary; where two keys are named, the second is that of a Transformer. N, K, S,
 * sma_eps, dt_min and dt_max of a Transformer are 0, F and base of other models. */
typedef struct dart_model_config {
    bool sma;             /* model_type: true for dart, false for others */
    bool transformer;     /* model_type: true for llama (RMSNorm, rotary positions, causal softmax attention, SwiGLU) and gpt_neox */
    bool neox;            /* model_type: true for gpt_neox, a Transformer with LayerNorm, biases and GELU, G = H; inference only */
    bool sequential;      /* use_parallel_residual is false: the MLP reads what the attention has added to; with neox only */
    bool gelu_tanh;       /* hidden_act: GELU by tanh, not by erf; with neox only */
    bool tied;            /* tie_word_embeddings: lm_head uses the embedding's weights */
    bool no_conv_bias;    /* use_conv_bias is false */
    bool independent_c;   /* sma_independent_c: SMA reads memories with a c of its own (the paper's ablation); with sma only */
    uint32_t V;           /* vocab_size */
    uint32_t W;           /* hidden_size */
    uint32_t layers;      /* num_hidden_layers */
    uint32_t H;           /* num_heads, num_attention_heads */
    uint32_t P;           /* head_dim; H P is a multiple of W; of a Transformer even, at most 128, with neox 256 */
    uint32_t G;           /* n_groups, num_key_value_heads */
    uint32_t N;           /* state_size */
    uint32_t K;           /* conv_kernel */
    uint32_t S;           /* chunk_size */
    uint32_t F;           /* intermediate_size; Transformer only */
    uint32_t R;           /* rotary_pct of P: the first elements of a head that positions turn; with neox only, else 0: all */
    float base;           /* rope_theta, rotary_emb_base; Transformer only */
    float eps;            /* layer_norm_epsilon, rms_norm_eps, layer_norm_eps */
    float sma_eps;        /* sma_norm_epsilon */
    float dt_min, dt_max; /* time_step_limit; dt_max 0: no limit */
} dart_model_config;

/* Reads folder/config.json. DART_IO, DART_BAD_DATA (the text names key, value and range), or DART_UNSUPPORTED for
 * settings that no kernel of this library computes. error, optional, receives the text, cut to error_size bytes. */
DART_API dart_status dart_config_load(const char *folder, dart_model_config *config, char *error, size_t error_size);
/* The sizes of the DART and Mamba-2 papers: mamba2-130m, mamba2-370m, mamba2-780m, dart-130m, dart-370m, dart-780m.
 * DART_INVALID_ARGUMENT for other names. */
DART_API dart_status dart_config_preset(const char *name, dart_model_config *config);
/* Number of parameters: elements of all tensors of a checkpoint. 0 for a configuration whose sizes are out of range. */
DART_API uint64_t dart_config_parameters(const dart_model_config *config);

/* ---- Models -------------------------------------------------------------------------------------------------- */

typedef struct dart_model dart_model;

/* How numbers are stored. DART_STORAGE_DEFAULT leaves the choice to the library, see dart_model_options. */
typedef enum dart_storage {
    DART_STORAGE_DEFAULT = 0,
    DART_STORAGE_F32 = 1,
    DART_STORAGE_F16 = 2,
    DART_STORAGE_BF16 = 3,
    DART_STORAGE_Q8 = 4, /* weights only, see dart_quantise; not for training */
    DART_STORAGE_Q4 = 5
} dart_storage;

typedef struct dart_model_options {
    dart_storage weights;     /* of the matrices; default: as in the file. Vectors and convolutions are always f32. With q8 and q4 the
                                 rows of in_proj that make step sizes, the gate's row of sma_proj and matrices whose width is no multiple
                                 of 32 stay as they are in the file. The embedding and the head take q8 with q4, too. */
    dart_storage activations; /* between ops of a layer; default: the dtype of the weights (if quantised, that of the rows that stay, but
                                 bf16 for f32) on a GPU with matrix hardware for that dtype, else f32. The residual stream is always f32. */
    dart_storage memories;    /* of closed chunks, or of keys and values; default: the dtype of the weights (if quantised, that of the rows
                                 that stay, or the dtype of the activations where those rows are f32) */
    bool skip_nan_check;      /* accept NaN and infinite weights, and load without looking for them */
    /* Optional: called while weights are read, made and copied, with how much of the work is done, from the thread of the call; false ends it with
     * DART_CANCELLED. */
    bool (*go_on)(void *user, uint64_t done, uint64_t of);
    void *user;
} dart_model_options;

typedef struct dart_model_info {
    dart_model_config config;
    dart_dtype weights, activations, memories; /* weights: of most matrices */
    uint64_t parameters;
    uint64_t bytes; /* of device memory */
} dart_model_info;

/* Loads config.json and the safetensors of a folder. The file is mapped and its tensors are copied to the device one after
 * another, so that loading needs a few MiB of host memory besides pages of the file, which the system may drop.
 * options may be NULL. DART_IO; DART_BAD_DATA with the name of a tensor that is missing, has another shape, or holds NaN or
 * infinity. */
DART_API dart_status dart_model_open(dart_device *device, const char *folder, const dart_model_options *options,
                                     dart_model **model);
/* A model with random weights, for benchmarks and tests. The same seed gives the same weights on every device; on another
 * machine they may differ in a last bit, as exp and log of C libraries do. They are scaled so that activations keep their magnitude from layer to
 * layer; step sizes and decays are those of Mamba-2's initialisation. The default storage of weights is f32. */
DART_API dart_status dart_model_random(dart_device *device, const dart_model_config *config, uint64_t seed,
                                       const dart_model_options *options, dart_model **model);
DART_API void dart_model_destroy(dart_model **model);
/* The numbers of a model, and the dtypes that options and device have led to. */
DART_API dart_status dart_model_describe(const dart_model *model, dart_model_info *info);
/* As dart_context_error. */
DART_API size_t dart_model_error(const dart_model *model, char *text, size_t size);

/* ---- States -------------------------------------------------------------------------------------------------- */

typedef struct dart_state dart_state;

typedef struct dart_state_options {
    uint32_t B;            /* sequences; 0: 1 */
    uint32_t S;            /* chunk size; 0: the configuration's. It may differ from the chunk size of training. Not for a Transformer. */
    bool no_sma;           /* switch state-memory attention off (the paper's ablation); no effect on other models */
    uint32_t max_piece;    /* the most tokens of all sequences that are computed together; 0: 4096 on a discrete GPU, else 1024 */
    uint32_t memory_block; /* memories of a sequence that are allocated together (a block), for all sequences alike. 0: the first block is
                              made when a chunk closes. When it is full and another chunk closes, it is copied to one at least twice as
                              large, until it has room for the memories of 1024 tokens. Each later block has room for half as many memories as
                              there are, or for as many as a call needs. Up to 1024 tokens there is room for at most twice the memories of
                              the longest sequence. Of a Transformer: tokens of a block of keys and values; 0: the first block has 1024, each
                              later one as many as all before it. Keys and values are never moved, nor memories once the first block has
                              its final size. */
    uint64_t timeout_ns;   /* for the work of one submission, the clearing in dart_state_create and dart_state_reset included;
                              0: no limit. DART_TIMEOUT breaks the state. */
    uint32_t slice_ms;     /* how long one submission may occupy the device; 0: 100 ms, which keeps desktops responsive and
                              watchdogs quiet; UINT32_MAX: no limit, for servers. At most two submissions are queued, so that a frame on
                              the same queue waits for at most twice that. A submission is a number of layers of a piece, of decoding steps, or
                              of other work of a call (clearing, copies). A layer or step that would take longer is submitted launch by
                              launch, and a launch that would take longer in ranges of its workgroups (docs/embedding.md lists the launches
                              that are not cut: those through CUDA, those with cooperative matrices, and a few kernels). How much a
                              submission holds is computed from the measured times of earlier submissions; before the first measurement,
                              from an assumed rate (docs/embedding.md). Results do not depend on it.
                              Except on processors, pieces become shorter with longer contexts and larger models, so that a layer of a piece
                              takes at most slice_ms at the assumed rate. The length of pieces changes results within rounding.
                              dart_state_longest returns the longest submission so far. */
    uint32_t marks;        /* the most marks of a sequence (dart_state_mark), at most 1024; 0: 1 */
    bool keep_queries;     /* decoding steps keep what dart_state_queries returns; small batches then decode in more launches. No effect
                              without state-memory attention */
} dart_state_options;

/* B empty sequences at position 0. options may be NULL. DART_UNSUPPORTED when a tensor of B sequences exceeds
 * max_binding_bytes of the device: the text names the largest B. */
DART_API dart_status dart_state_create(dart_model *model, const dart_state_options *options, dart_state **state);
DART_API void dart_state_destroy(dart_state **state);
/* Compiles the kernels that prefill and decoding of this state need, on several threads. Without this call the first calls
 * compile kernels as they need them. dart_device_cache returns the compiled code. Blocking; changes no sequence. */
DART_API dart_status dart_state_warm(dart_state *state);
/* dart_state_warm that calls go_on first and between kernels, from the thread of the call, with how many are compiled; false ends it with
 * DART_CANCELLED, once the kernels under way are compiled. What is compiled stays so. */
DART_API dart_status dart_state_warm_while(dart_state *state, bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user);
/* Makes sequence b, or all sequences with b < 0, empty at position 0; sequence 0 of one is all sequences. Tokens that an
 * earlier call chose are discarded for the whole batch, so the next dart_decode needs ids. Resetting all sequences repairs a
 * broken state, and later results are bit-equal to those of a new state. After resetting one sequence they equal those of a
 * new state within rounding only: its memories share blocks with those of other sequences, and a sum over memories is split
 * where a block ends. Memory stays allocated; a later call that needs a larger block of memories than those kept frees the
 * kept ones first. */
DART_API dart_status dart_state_reset(dart_state *state, int32_t b);
/* Tokens consumed by sequence b; 0 for b >= B. */
DART_API uint64_t dart_state_position(const dart_state *state, uint32_t b);
/* Whether sequence b has ended by the settings of the last call that chose tokens, see dart_sampling. false for b >= B. */
DART_API bool dart_state_ended(const dart_state *state, uint32_t b);
/* As dart_context_error. */
DART_API size_t dart_state_error(const dart_state *state, char *text, size_t size);

typedef enum dart_state_kind {
    DART_STATE_CONVOLUTION = 0, /* the last K-1 inputs of both convolutions */
    DART_STATE_RECURRENT = 1,   /* h, with SMA the memory of the open chunk, and once allocated the windows of dart_window_args */
    DART_STATE_MEMORIES = 2,    /* allocated for memories of closed chunks, with their scales; of a Transformer, for keys and values */
    DART_STATE_MEMORIES_USED = 3, /* the part of DART_STATE_MEMORIES that is in use now */
    DART_STATE_WORKSPACE = 4,   /* activations of a piece, logits, ids; without the ops' own scratch memory */
    DART_STATE_MARKS = 6,       /* allocated for marks, and for what a prefill with go_on goes back to */
    DART_STATE_KV_CACHE = 5     /* for comparison: keys and values of all heads for the same tokens, 2 H P elements a token and
                                   layer in the dtype of the memories; allocated nowhere but in a Transformer with G = H */
} dart_state_kind;
/* Bytes on the device, of all layers and sequences. */
DART_API uint64_t dart_state_bytes(const dart_state *state, dart_state_kind kind);
/* Nanoseconds that the longest submission of this state has occupied the device since the state was made, by the device's clock where it has one:
 * layers of a piece, decoding steps, clearing and copying of sequences. slice_ms bounds it. */
DART_API uint64_t dart_state_longest(const dart_state *state);

/* What state-memory attention of one token and layer reads, where it lies on the device: for programs that show what a model attends to.
 * With qn = q / rms(q) and en = e / rms(e), rms(v) = sqrt(mean(v^2) + sma_eps), head h of group g = h / (H / G) computes
 *   logit_m = qn_g . (dh_m en_g) / sqrt(N),   weight_m = exp(logit_m) / sum over j < M of exp(logit_j),   m < M,
 * with dh_m as it is stored, normalised. */
typedef struct dart_queries {
    uint32_t M;                 /* memories that the token attends to: of chunks closed before its own */
    dart_tensor q, e;           /* G N and G P, after convolution, in the dtype of activations */
    const dart_memories *runs;  /* of this sequence and layer, in order, without gaps: those that hold memories 0 .. M - 1 */
    uint32_t runs_count;        /* 0 where M is */
} dart_queries;
/* Of the newest token of sequence b in a layer. The state must have been made with keep_queries, and a decoding step (dart_decode,
 * dart_generate) must have consumed the token: else DART_INVALID_ARGUMENT, as for a state without state-memory attention and for b or layer out of
 * range. Tensors and runs may be read, by streams and through dart_vulkan_buffer_of too, until the next call on the state; another
 * dart_state_queries rewrites runs, but leaves the tensors. Launches nothing. */
DART_API dart_status dart_state_queries(dart_state *state, uint32_t b, uint32_t layer, dart_queries *queries);

/* ---- States are values ---------------------------------------------------------------------------------------- */

/* A sequence of a state can be written to a file and read on any backend and device, copied to another place, and taken back to an
 * earlier token. Each of these calls may end the windows of decoding steps (dart_window_args), which changes later results within
 * rounding. Sequences that the call does not name stay as they are otherwise. */

/* Writes sequence b, or with b < 0 all sequences, to a file, in the form of docs/state-file.md: positions, recurrent states, convolution
 * inputs, memories or keys and values, and the tokens chosen last, with checksums. The file appears at `path` only when it is complete and
 * on stable storage; until then what was there stays. Settings of dart_sampling and marks are not part of it. Blocking. Besides the file the
 * call needs host memory for a layer on each of its threads, at most eight. A file in memory that was replaced, and a mapping, are given back by a
 * thread, which the state's next dart_state_save (for a load's, dart_state_load) and dart_state_destroy wait for.
 * DART_IO: the file, the state goes on. */
DART_API dart_status dart_state_save(dart_state *state, int32_t b, const char *path);
/* dart_state_save that calls go_on, from the thread of the call, between layers and before the file appears, with how many parts of the file are
 * written; false ends it with DART_CANCELLED, and what was at `path` stays. */
DART_API dart_status dart_state_save_while(dart_state *state, int32_t b, const char *path, bool (*go_on)(void *user, uint64_t done, uint64_t of),
                                           void *user);
/* Finds room for the file of a later dart_state_save at the same path, so that this takes less time, say when a program is told to end: where files
 * lie in memory (tmpfs, on Linux) the system's search for pages is most of the time of saving, or up to a third where the system has huge pages
 * (docs/state-file.md). tokens: the most that a sequence will have by then; a longer one is saved as without this call, and for a shorter one the
 * rest is given back. That much memory is taken, beside the file that is there, which stays as it is, until the state's next dart_state_save to
 * `path`, its next dart_state_prepare_save or its end. Where files do not lie in memory, the call does nothing and returns DART_OK. One call serves
 * one dart_state_save. Blocking. DART_IO: no room, as dart_state_save would say. */
DART_API dart_status dart_state_prepare_save(dart_state *state, int32_t b, const char *path, uint64_t tokens);
/* dart_state_prepare_save that calls go_on, from the thread of the call, between layers and once room for all is found, with how many parts of the
 * file have room; false ends it with DART_CANCELLED, and what was found is given back. Where there is nothing to do it asks once, with 0 of 0. */
DART_API dart_status dart_state_prepare_save_while(dart_state *state, int32_t b, const char *path, uint64_t tokens,
                                                   bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user);
/* Replaces sequence b by the one sequence of the file, or with b < 0 all B sequences by the B of the file. The file may come from another
 * backend or device, and from models that store activations and memories otherwise: these are then converted. What the sequence yields
 * afterwards is what the saved one yields, within rounding; to the bit where all sequences were saved, the state that loads has the
 * same options, dtypes and device and had no tokens, and the state that was saved went on after saving.
 * DART_INVALID_ARGUMENT: the file is of another model, of other S or no_sma, or has another number of sequences; the text names the first
 * number that differs. The same model means: equal numbers in dart_model_config (but for S), and an equal fingerprint of the weights, a
 * checksum of 64 bits over the values of all parameters, in the dtype that the checkpoint has, computed when a model is loaded. The same
 * weights in a checkpoint of another dtype are another model, and so are quantised ones; otherwise it does not depend on dart_model_options.
 * DART_BAD_DATA: no state file, of another version, cut short or damaged; the text says where. Everything is checked before the state
 * changes: these failures, DART_IO and DART_OUT_OF_MEMORY leave it as it was. A device that fails while sequences are written breaks it.
 * The tokens chosen last come with the sequences: dart_decode needs no ids if the saving state needed none and, with b >= 0 and B > 1,
 * this state needs none either. dart_state_ended is false until the next call that chooses. */
DART_API dart_status dart_state_load(dart_state *state, int32_t b, const char *path);
/* dart_state_load that calls go_on, from the thread of the call, while it reads and checks the file, which is the longer half of its work; false ends
 * it with DART_CANCELLED and the state as it was. Not asked once the state changes. */
DART_API dart_status dart_state_load_while(dart_state *state, int32_t b, const char *path, bool (*go_on)(void *user, uint64_t done, uint64_t of),
                                           void *user);
/* Replaces sequence to_b of a state by a copy of sequence from_b of the same state or of another state of the same model, with the same S
 * and no_sma; B may differ. Copies on the device, without the host. The text of a failure is that of dart_state_error(to). No other thread
 * may use either state meanwhile. The token chosen last is copied if `to` has chosen tokens, too, or has B = 1; else dart_decode of `to`
 * needs ids. So one prefill can be the context of many answers: prefill sequence 0 alone, copy it to all others, choose with seeds.
 * Running out of memory leaves both as they were. */
DART_API dart_status dart_state_copy(dart_state *to, uint32_t to_b, dart_state *from, uint32_t from_b);
/* The same of `count` sequences in one submission: from_b[i] of `from` to to_b[i] of another state; of equal numbers in to_b the last counts. So
 * a batch that decodes takes in sequences that another state prefills, without waiting for each. count 0 does nothing. */
DART_API dart_status dart_state_copy_several(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count);
/* dart_state_copy_several that calls go_on, from the thread of the call, before each submission (see slice_ms), with how many were made; false ends
 * it with DART_CANCELLED. Before the first submission nothing has changed; later the sequences named in `to` are empty, as dart_state_reset of each
 * leaves them. */
DART_API dart_status dart_state_copy_while(dart_state *to, const uint32_t *to_b, dart_state *from, const uint32_t *from_b, uint32_t count,
                                           bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user);
/* Keeps what dart_state_truncate needs to return sequence b to its present position: recurrent states and convolution inputs, whose size is
 * that of DART_STATE_CONVOLUTION and DART_STATE_RECURRENT for one sequence, on the device. Memories of closed chunks are shared, not copied.
 * The oldest mark of the sequence gives way where dart_state_options.marks are kept. Resetting or replacing a sequence drops its marks.
 * A Transformer needs none, nor does position 0: the call then does nothing. */
DART_API dart_status dart_state_mark(dart_state *state, uint32_t b);
/* Takes sequence b back to its first `position` tokens. What is possible: a recurrent state cannot be run backwards, as every token has
 * multiplied it by a decay, and inverting it would multiply rounding errors by the inverse. Memories of closed chunks do not hold the
 * convolution inputs either. So the sequence returns to its last mark at or before `position`, or to the empty sequence at 0, and computes
 * the tokens from there to `position` again, to the same results within rounding; without tokens between, to the same bits as at the mark.
 * To return to a chunk border, or to any token, at no cost: mark it on the way. ids: the first `position` tokens of the sequence, of
 * which only those behind the mark are read; may be NULL at a mark and at 0.
 * Of a Transformer, keys and values stay and nothing is computed; with ids the last token is computed again for its logits, without
 * DART_LOGITS_LAST gives zeros until the next token. Its repetition_penalty then counts later tokens only.
 * Marks behind `position` are dropped, and so are tokens chosen earlier, for the whole batch: the next dart_decode needs ids.
 * DART_INVALID_ARGUMENT: position is beyond the sequence's, or ids are missing (the text names the mark) or outside [0, V); nothing has
 * changed then. Where computing tokens again fails for want of memory, the sequence stands at a token
 * between, see dart_state_position. */
DART_API dart_status dart_state_truncate(dart_state *state, uint32_t b, uint64_t position, const int32_t *ids);
/* dart_state_truncate that calls go_on, from the thread of the call, between submissions of tokens that are computed again, with how many of them
 * are done; false ends it with DART_CANCELLED. The sequence then stands at a token between the mark and `position`, see dart_state_position, and goes
 * on from there; a Transformer's one token before `position`, with zeros for DART_LOGITS_LAST until the next token. */
DART_API dart_status dart_state_truncate_while(dart_state *state, uint32_t b, uint64_t position, const int32_t *ids,
                                               bool (*go_on)(void *user, uint64_t done, uint64_t of), void *user);

/* ---- Feeding tokens ------------------------------------------------------------------------------------------ */

enum { DART_END_IDS = 4 }; /* the most end ids that a sequence can have */

/* How the next token is chosen, step by step as dart_sample says, and when a sequence ends. The zero value chooses the largest logit and
 * never ends. The repetition penalty is over all tokens that the sequence has consumed since it was reset, those of prompts and those chosen
 * alike, each once, whichever call fed them: a set of V bits a sequence that lies on the device.
 * The random number depends on seed, the tokens so far and b, so that a sequence continues alike after prefill and decoding; with `anywhere` not
 * on b, so that a sequence continues alike in every place of every batch, as it does alone (B 1).
 *
 * Calls take either one dart_sampling for all sequences (sampling_count 0 or 1) or B of them, one a sequence (sampling_count B).
 * The settings lie in a device tensor: changing them costs a small copy, not a new recording.
 *
 * A sequence has ended when the token chosen last is one of its end ids, or when it has consumed last_position tokens. The
 * settings of the call decide, so that other settings may let the sequence continue. dart_decode without ids and dart_generate
 * skip a sequence that has ended: its position, memories and last token stay as they are. Tokens that the caller gives are
 * consumed by ended sequences, too.
 *
 * `idle` takes a sequence out of dart_decode and dart_generate, as having ended does (dart_state_ended is true), but whether ids are given or not:
 * it consumes no token, its memories do not grow, its row of logits and scores is not written, and next_ids has -1 for it. An id that is given
 * for it must be one of the model's; it is then the token chosen last. Other sequences get the same bits as beside a sequence that is not idle.
 * dart_prefill computes what it is given, whatever is idle. For batches whose places are filled one by one. */
typedef struct dart_sampling {
    float temperature; /* 0 to 1e6; 0: the largest logit */
    uint32_t top_k;    /* 0: all */
    float top_p;              /* 0 to 1; 0, 1: all */
    float min_p;              /* 0 to 1; 0: all */
    float repetition_penalty; /* 0 to 1e6; 0, 1: none; above 1 tokens that were there become less likely. Counts without a temperature, too */
    uint32_t ids_below;       /* only ids below this are chosen; 0: V. For models whose V exceeds the tokenizer's ids. At most V */
    uint64_t seed;
    bool anywhere; /* the random number does not depend on b */
    bool idle;     /* takes no part in steps */
    uint64_t last_position;         /* dart_state_position at which the sequence ends; 0: none */
    uint32_t end_ids_count;
    int32_t end_ids[DART_END_IDS];  /* only the first end_ids_count are used; 0 <= id < V */
} dart_sampling;

typedef enum dart_logits_of {
    DART_LOGITS_NONE = 0,
    DART_LOGITS_LAST = 1, /* B V: after the newest token of each sequence, also when an earlier call fed that token;
                             zeros for a sequence without tokens */
    DART_LOGITS_ALL = 2,  /* B L V: after every token; rows past a sequence's count are not written */
    DART_LOGITS_ROWS = 3  /* rows_count V: row i after token rows_i = b L + t, in any order */
} dart_logits_of;

/* Log-probabilities instead of logits, or besides them: computed on the device (dart_log_probs, whose formulas, limits and -3.4e38 hold here),
 * so that V numbers a row need not be copied. Over all V ids, whatever dart_sampling leaves out. Rows are those that the call's logits have, row
 * by row; arrays are the caller's, on the host. */
typedef struct dart_scores {
    uint32_t k;             /* 0 to DART_MOST_TOP */
    const int32_t *targets; /* optional, one a row */
    float *target;          /* log-probability of targets, 0 where one is outside 0 to V - 1. Without targets: of the tokens that the call chooses */
    float *log_z;           /* optional: log of the sum of exp(logit) */
    int32_t *top_ids;       /* rows k, with k above 0: the likeliest ids, from the largest down */
    float *top;             /* rows k: their log-probabilities */
} dart_scores;

typedef struct dart_prefill_args {
    const int32_t *ids;     /* B L, 0 <= id < V; ids past a sequence's count are not read */
    uint64_t ids_row;       /* elements from one sequence to the next; 0: L */
    uint32_t L;             /* tokens of the longest sequence of this call */
    const uint32_t *counts; /* B: tokens of each sequence, 0..L; a sequence with 0 stays as it is. NULL: L each */
    dart_logits_of want;
    const uint64_t *rows;   /* rows_count of them, for DART_LOGITS_ROWS only */
    size_t rows_count;
    float *logits;          /* in the shape that `want` names; optional with scores */
    const dart_scores *scores; /* optional, of the rows that `want` names. target without targets needs DART_LOGITS_LAST and sampling */
    const dart_sampling *sampling; /* optional: choose every sequence's next token and keep it for dart_decode */
    uint32_t sampling_count;
    int32_t *next_ids;      /* B, optional: the tokens chosen; needs sampling */
    bool (*go_on)(void *user); /* optional: called between submissions; false ends the call with DART_CANCELLED. Each sequence is then
                                  as after its last whole piece, see dart_state_position, and goes on from there; tokens that an
                                  earlier call chose are discarded. Costs a copy of what layers carry (not of memories) before each
                                  piece, and room for it. */
    void *user;
} dart_prefill_args;
/* Consumes up to L tokens of every sequence. A long input is computed in pieces of at most max_piece tokens, and a piece in
 * submissions of about slice_ms. All ids and rows are checked, and memories for the whole input are allocated, before the first
 * piece. Sequences without tokens so far are computed one behind the other instead of side by side where the longest is many
 * times as long as most. */
DART_API dart_status dart_prefill(dart_state *state, const dart_prefill_args *args);

typedef struct dart_decode_args {
    const int32_t *ids;     /* B, or NULL: the tokens that the last call chose, which lie on the device */
    const dart_sampling *sampling; /* NULL: the largest logit */
    uint32_t sampling_count;
    float *logits;          /* B V, optional; rows of idle sequences, and without ids of those that had ended, are not written */
    const dart_scores *scores; /* optional, B rows; as logits */
    int32_t *next_ids;      /* B, optional: the tokens chosen; -1 for a sequence that is idle, and without ids for one that had ended */
} dart_decode_args;
/* Consumes one token of every sequence that is not idle (without ids: of every sequence that has not ended) and chooses the next ones. The step is
 * recorded once and submitted again by later calls. It is recorded anew when a sequence enters another block of memories, or of
 * keys and values, and of one sequence once in about 2,048 tokens.
 * DART_INVALID_ARGUMENT without ids when no call has chosen tokens since the state was created or reset. */
DART_API dart_status dart_decode(dart_state *state, const dart_decode_args *args);

typedef struct dart_generate_args {
    uint32_t n;             /* steps */
    uint32_t together;      /* the most steps in one submission; 0: 1 with a callback, else 64. At most 64, fewer where slice_ms
                               asks for it. The host reads the tokens of a submission once all its steps are done. */
    const dart_sampling *sampling; /* NULL: the largest logit */
    uint32_t sampling_count;
    /* Optional. Called for each step, in order, with the B tokens chosen, -1 for a sequence that had ended before. Returning
     * false ends the generation. Steps submitted together are reported one after the other once all are done. Steps after the
     * one for which the callback returned false have then been taken, too: dart_state_position counts them, and ids has their
     * tokens. */
    bool (*step)(void *user, uint32_t step, const int32_t *ids);
    void *user;
    int32_t *ids;           /* n B, optional: the tokens chosen, step by step; -1 for steps after a sequence has ended */
} dart_generate_args;
/* n times dart_decode without ids. A call that chooses tokens must come first: dart_prefill with sampling, or dart_decode. The
 * first step consumes the tokens that it chose, and does not report them again. Returns early once all sequences have ended. */
DART_API dart_status dart_generate(dart_state *state, const dart_generate_args *args);

#ifdef __cplusplus
}
#endif
#endif
