/* Steps of a mixer behind launches that write what a step reads, which a backend may fetch ahead (CUDA_EARLY): unit_steps [DEVICE_SPEC]. */
#include "rig.h"

enum { W = 768, H = 24, SN = 128, P = 64, K = 4, S = 16, I = H * P, C = I + 2 * SN, R = I + C + H, D = SN + P, Q = (D + 8) / 8 * 8 };
enum { STATE = H * SN * P };

/* What a step reads and what launches before it wrote or write: `from` comes into `to`. */
typedef struct part {
    const char *name;
    uint32_t count;
    dart_tensor from, to;
    float *before; /* of `to` */
} part;
enum { X, IN_PROJ, SMA_PROJ, OUT_PROJ, NORM, TAPS, TAIL, STATE_H, OPEN, MEMORIES, SCALE, DECAY, PARTS };

static part part_of(rig *r, const char *name, dart_dtype dtype, uint32_t count, float low, float high)
{
    part p = {.name = name, .count = count, .from = rig_random(r, DART_F32, count, low, high), .to = rig_tensor(r, dtype, count, NULL)};
    p.before = rig_values(r, count, low, high);
    return p;
}

/* Everything as it was before a step. */
static void restore(const part *parts)
{
    for (uint32_t i = 0; i < PARTS; i++) rig_write(&parts[i].to, parts[i].count, parts[i].before);
}

static void bring(rig *r, const part *p) { MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = 1, .W = p->count, .x = p->from, .y = p->to})); }

static void sees_what_was_written_just_before(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const int32_t position[2] = {S + 3, 1};
    const dart_tensor seq = rig_ints(&r, 2, position), small = rig_random(&r, DART_F32, H, -1, 0), skip = rig_random(&r, DART_F32, H, -1, 1),
                      sma_taps = rig_random(&r, DART_F32, D * K, -1, 1), inner = rig_random(&r, DART_F32, I, 0.5f, 2),
                      sma_tail = rig_random(&r, DART_BF16, D * (K - 1), -1, 1);
    float *sma_tail_before = rig_read(&sma_tail, D * (K - 1));
    part parts[PARTS] = {
        [X] = part_of(&r, "x", DART_F32, W, -1, 1), [IN_PROJ] = part_of(&r, "in_proj", DART_BF16, R * W, -0.05f, 0.05f),
        [SMA_PROJ] = part_of(&r, "sma_proj", DART_BF16, Q * W, -0.05f, 0.05f), [OUT_PROJ] = part_of(&r, "out_proj", DART_BF16, W * I, -0.05f, 0.05f),
        [NORM] = part_of(&r, "norm", DART_F32, W, 0.5f, 2), [TAPS] = part_of(&r, "conv_weight", DART_F32, C * K, -1, 1),
        [TAIL] = part_of(&r, "tail", DART_BF16, C * (K - 1), -1, 1), [STATE_H] = part_of(&r, "h", DART_F32, STATE, -1, 1),
        [OPEN] = part_of(&r, "open", DART_F32, STATE, -1, 1), [MEMORIES] = part_of(&r, "memories", DART_BF16, STATE, -1, 1),
        [SCALE] = part_of(&r, "scale", DART_F32, H * SN, 0.5f, 2), [DECAY] = part_of(&r, "open_decay", DART_F32, H, -1, 0)};
    const dart_memories run = {.M = 1, .dh = parts[MEMORIES].to, .scale = parts[SCALE].to};
    const dart_mixer_step_args args = {
        .B = 1, .W = W, .H = H, .G = 1, .N = SN, .P = P, .K = K, .S = S, .eps = 1e-5f, .sma_eps = 1e-5f, .x = parts[X].to, .seq = seq,
        .norm = parts[NORM].to, .in_proj = parts[IN_PROJ].to, .conv_weight = parts[TAPS].to, .dt_bias = small, .a_log = small, .d = skip,
        .mixer_norm = inner, .out_proj = parts[OUT_PROJ].to, .tail = parts[TAIL].to, .h = parts[STATE_H].to, .sma_proj = parts[SMA_PROJ].to,
        .sma_conv_weight = sma_taps, .sma_tail = sma_tail, .open = parts[OPEN].to, .open_decay = parts[DECAY].to, .memories = &run,
        .memories_count = 1};
    for (uint32_t i = 0; i < PARTS; i++) {
        float *want = NULL;
        /* Apart; in one recording; that once more, which CUDA replays as a graph. */
        for (int run_of = 0; run_of < 4; run_of++) {
            restore(parts);
            rig_write(&sma_tail, D * (K - 1), sma_tail_before);
            if (run_of < 2) {
                rig_begin(&r);
                bring(&r, &parts[i]);
                if (run_of == 0) rig_run(&r);
                MUST(&r, dart_mixer_step(r.stream, &args));
            }
            MUST(&r, dart_stream_submit(r.stream));
            MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
            float *got = rig_read(&parts[X].to, W);
            if (want != NULL) rig_same_bits(parts[i].name, got, want, W);
            if (want == NULL) want = got;
            else free(got);
        }
        free(want);
    }
    for (uint32_t i = 0; i < PARTS; i++) free(parts[i].before);
    free(sma_tail_before);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(sees_what_was_written_just_before)};

RIG_MAIN("unit_steps")
