/* Steps of a mixer behind launches that write what a step reads, which a backend may fetch ahead (CUDA_EARLY): unit_steps [DEVICE_SPEC]. */
#include "rig.h"

enum { W = 768, H = 24, SN = 128, P = 64, K = 4, S = 16, I = H * P, C = I + 2 * SN, R = I + C + H, D = SN + P, Q = (D + 8) / 8 * 8 };
enum { STATE = H * SN * P };

/* What a step reads and what launches before it wrote or write: `from` comes into `to`. */
typedef struct part {
    const char *name;
    uint32_t count;
    bool moves; /* a step writes it, too */
    dart_tensor from, to;
    float *before; /* of `to` */
} part;
enum {
    X, IN_PROJ, SMA_PROJ, OUT_PROJ, NORM, TAPS, BIAS, A_LOG, DT_BIAS, SKIP, MIXER_NORM, SMA_TAPS, SMA_BIAS, TAIL, SMA_TAIL, STATE_H, OPEN, DECAY,
    MEMORIES, SCALE, LATER_MEMORIES, LATER_SCALE, PARTS
};

static part part_of(rig *r, const char *name, dart_dtype dtype, uint32_t count, float low, float high)
{
    part p = {.name = name, .count = count, .from = rig_random(r, DART_F32, count, low, high), .to = rig_tensor(r, dtype, count, NULL)};
    p.before = rig_values(r, count, low, high);
    return p;
}

static void restore(const part *p) { rig_write(&p->to, p->count, p->before); }
static void bring(rig *r, const part *p) { MUST(r, dart_convert(r->stream, &(dart_convert_args){.T = 1, .W = p->count, .x = p->from, .y = p->to})); }

static void make_parts(rig *r, part parts[PARTS])
{
    static const struct { const char *name; dart_dtype dtype; uint32_t count; float low, high; } all[PARTS] = {
        [X] = {"x", DART_F32, W, -1, 1}, [IN_PROJ] = {"in_proj", DART_BF16, R * W, -0.05f, 0.05f},
        [SMA_PROJ] = {"sma_proj", DART_BF16, Q * W, -0.05f, 0.05f}, [OUT_PROJ] = {"out_proj", DART_BF16, W * I, -0.05f, 0.05f},
        [NORM] = {"norm", DART_F32, W, 0.5f, 2}, [TAPS] = {"conv_weight", DART_F32, C * K, -1, 1}, [BIAS] = {"conv_bias", DART_F32, C, -1, 1},
        [A_LOG] = {"a_log", DART_F32, H, -1, 0}, [DT_BIAS] = {"dt_bias", DART_F32, H, -1, 0}, [SKIP] = {"d", DART_F32, H, -1, 1},
        [MIXER_NORM] = {"mixer_norm", DART_F32, I, 0.5f, 2}, [SMA_TAPS] = {"sma_conv_weight", DART_F32, D * K, -1, 1},
        [SMA_BIAS] = {"sma_conv_bias", DART_F32, D, -1, 1}, [TAIL] = {"tail", DART_BF16, C * (K - 1), -1, 1},
        [SMA_TAIL] = {"sma_tail", DART_BF16, D * (K - 1), -1, 1}, [STATE_H] = {"h", DART_F32, STATE, -1, 1},
        [OPEN] = {"open", DART_F32, STATE, -1, 1}, [DECAY] = {"open_decay", DART_F32, H, -1, 0},
        [MEMORIES] = {"memories", DART_BF16, STATE, -1, 1}, [SCALE] = {"scale", DART_F32, H * SN, 0.5f, 2},
        [LATER_MEMORIES] = {"memories of the second run", DART_BF16, STATE, -1, 1},
        [LATER_SCALE] = {"scale of the second run", DART_F32, H * SN, 0.5f, 2}};
    for (uint32_t i = 0; i < PARTS; i++) {
        parts[i] = part_of(r, all[i].name, all[i].dtype, all[i].count, all[i].low, all[i].high);
        parts[i].moves = i == X || i == TAIL || i == SMA_TAIL || i == STATE_H || i == OPEN || i == DECAY;
        restore(&parts[i]);
    }
}

static void sees_what_was_written_just_before(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const int32_t position[2] = {2 * S + 3, 1};
    part parts[PARTS];
    make_parts(&r, parts);
    const dart_memories runs[2] = {{.M = 1, .dh = parts[MEMORIES].to, .scale = parts[SCALE].to},
                                   {.M = 1, .first = 1, .dh = parts[LATER_MEMORIES].to, .scale = parts[LATER_SCALE].to}};
    const dart_mixer_step_args args = {
        .B = 1, .W = W, .H = H, .G = 1, .N = SN, .P = P, .K = K, .S = S, .eps = 1e-5f, .sma_eps = 1e-5f, .x = parts[X].to,
        .seq = rig_ints(&r, 2, position), .norm = parts[NORM].to, .in_proj = parts[IN_PROJ].to, .conv_weight = parts[TAPS].to,
        .conv_bias = parts[BIAS].to, .dt_bias = parts[DT_BIAS].to, .a_log = parts[A_LOG].to, .d = parts[SKIP].to, .mixer_norm = parts[MIXER_NORM].to,
        .out_proj = parts[OUT_PROJ].to, .tail = parts[TAIL].to, .h = parts[STATE_H].to, .sma_proj = parts[SMA_PROJ].to,
        .sma_conv_weight = parts[SMA_TAPS].to, .sma_conv_bias = parts[SMA_BIAS].to, .sma_tail = parts[SMA_TAIL].to, .open = parts[OPEN].to,
        .open_decay = parts[DECAY].to, .memories = runs, .memories_count = 2};
    rig_begin(&r);
    MUST(&r, dart_mixer_step(r.stream, &args));
    rig_run(&r);
    float *old = rig_read(&parts[X].to, W); /* of a step that sees none of what comes */
    for (uint32_t i = 0; i < PARTS; i++) {
        float *want = NULL;
        /* Apart; in one recording; that once more, which CUDA replays as a graph. */
        for (int run_of = 0; run_of < 4; run_of++) {
            for (uint32_t k = 0; k < PARTS; k++)
                if (k == i || parts[k].moves) restore(&parts[k]);
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
        if (memcmp(want, old, W * sizeof *old) == 0) fail_msg("%s changes nothing", parts[i].name);
        restore(&parts[i]);
        free(want);
    }
    for (uint32_t i = 0; i < PARTS; i++) free(parts[i].before);
    free(old);
    rig_close(&r);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(sees_what_was_written_just_before)};

RIG_MAIN("unit_steps")
