/* What a trainer keeps for the backward pass: its bytes, against a count by hand, and that gradients do not depend on it. */
#include "train_cases.h"

#include "train/trainer.h"

/* Bytes of a trainer: parameters with moments, gradients and copies; what layers keep; what all layers share; scratch memory. */
typedef struct account {
    double parameters, kept, shared, scratch;
} account;

static account account_of(const dart_model_config *c, dart_trainer *trainer, uint32_t keep, double B, double length, double size)
{
    account a = {0};
    dart_train_parameter p;
    const double T = B * length, I = (double)c->H * c->P, M = ceil(length / c->S), memory = I * c->N, C = fmin(c->S, length);
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++)
        a.parameters += (double)p.elements * (p.rank == 2 && size < 4 ? 16 + size : 16);
    /* Of a layer: the stream in f32; r and lse in f32; the projections' outputs, y and memories, in 16 bits with scales. The rest. */
    const double stream = 4 * T * c->W, readout = 4 * T * I + 4 * T * c->H;
    const double memories = size * B * M * memory + (size < 4 ? 4 * B * M * memory / c->P : 0);
    const double projections = size * T * ((double)model_config_in_proj_row(c) + model_config_sma_proj(c) + I);
    const double rest = size * T * ((double)c->W + model_config_conv(c) + model_config_sma_conv(c) + I);
    const double readers = keep <= 1 ? c->layers : keep == 2 ? ceil(c->layers / 3.0) : 0;
    a.kept = c->layers * stream + readers * readout + (keep <= 1 ? c->layers * (projections + memories) : 0) + (keep == 0 ? c->layers * rest : 0);
    /* One layer's of what is not kept. Gradients of all of it, r's in 16 bits, in f32 those of the stream and of memories. The stream behind the
     * last layer. */
    a.shared = (keep >= 1 ? rest : 0) + (keep >= 2 ? projections + memories + readout : 0) + projections + rest + 2 * stream + size * T * I +
               4 * B * M * memory;
    /* As ops_backward.h says of the op that takes the most: the scan, SMA with its qn, en and rho, or the cross entropy. */
    const double scan = 8 * B * M * c->G * C * C + 8 * B * M * memory + 16 * T * c->H;
    const double attention = 8 * T * c->H * M + 4 * T * c->G * (c->N + c->P) + 4 * B * M * memory + 4 * T * c->G * (2.0 * c->N + c->P) +
                             4 * B * M * c->H * c->N;
    const double loss = 2 * (fmin(67108864, 4 * T * c->V) + size * T * c->W);
    a.scratch = fmax(fmax(scan, attention), loss);
    return a;
}

static void check_memory(const dart_model_config *config, const dart_train_batch *batch, dart_storage weights, uint32_t keep)
{
    enum { ROWS = 2, LENGTH = 512 };
    dart_trainer *trainer = NULL;
    const dart_trainer_options options = {.B = ROWS, .L = LENGTH, .keep = keep, .weights = weights};
    assert_int_equal(dart_device_bytes(device), 0);
    must(dart_trainer_create(device, config, &options, &trainer), "create");
    const double made = (double)dart_device_bytes(device);
    must_train(trainer, dart_trainer_step(trainer, batch, 1e-3, NULL), "step");
    const double used = (double)dart_device_bytes(device);
    const account a = account_of(config, trainer, keep, ROWS, LENGTH, weights == DART_STORAGE_F32 ? 4 : 2);
    const double buffers = a.parameters + a.kept + a.shared, count = buffers + a.scratch;
    print_message("  %s, keep %u: %.2f MB, %.2f MB of scratch memory in it; counted %.2f = parameters %.2f + kept %.2f + shared %.2f + "
                  "scratch %.2f\n",
                  weights == DART_STORAGE_F32 ? "f32" : "f16", keep, used / 1e6, (used - made) / 1e6, count / 1e6, a.parameters / 1e6,
                  a.kept / 1e6, a.shared / 1e6, a.scratch / 1e6);
    assert_true(fabs(made / buffers - 1) <= 0.01);
    assert_true(fabs(used / count - 1) <= 0.15);
    dart_trainer_destroy(&trainer);
}

void memory_is_as_counted(void **unused)
{
    (void)unused;
    enum { TOKENS = 1024 };
    static const dart_model_config config = {.sma = true, .V = 256, .W = 128, .layers = 8, .H = 4, .P = 64, .G = 1, .N = 32, .K = 4, .S = 64,
                                             .eps = 1e-5f, .sma_eps = 1e-5f};
    int32_t *ids = calloc(TOKENS, sizeof *ids), *targets = calloc(TOKENS, sizeof *targets);
    assert_true(ids != NULL && targets != NULL);
    for (uint32_t i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(base_mix(i) % config.V);
        targets[i] = (int32_t)(base_mix(i + 1) % config.V);
    }
    const dart_train_batch batch = {.ids = ids, .targets = targets};
    for (dart_storage weights = DART_STORAGE_F32; weights <= DART_STORAGE_F16; weights++)
        for (uint32_t keep = 0; keep <= 3; keep++) check_memory(&config, &batch, weights, keep);
    free(ids);
    free(targets);
}

/* Two batches of every level, against those of level 0, in which nothing is computed again. */
static void check_levels(const dart_model_config *config, dart_storage weights, bool no_sma, uint32_t seed)
{
    int32_t ids[2][SMALL_B * SMALL_L], targets[2][SMALL_B * SMALL_L];
    dart_trainer *all = NULL;
    for (int i = 0; i < 2; i++) small_batch(ids[i], targets[i], seed + (uint32_t)i);
    for (uint32_t keep = 0; keep <= 3; keep++) {
        dart_trainer *trainer = NULL;
        dart_train_result result;
        const dart_trainer_options options = {.B = SMALL_B, .L = SMALL_L, .keep = keep, .weights = weights, .no_sma = no_sma, .seed = seed};
        must(dart_trainer_create(device, config, &options, &trainer), "create");
        for (int i = 0; i < 2; i++) {
            const dart_train_batch batch = {.ids = ids[i], .targets = targets[i]};
            must_train(trainer, dart_trainer_step(trainer, &batch, 1e-2, &result), "step");
        }
        assert_true(isfinite(result.loss) && result.norm > 0);
        if (all == NULL) {
            all = trainer;
            continue;
        }
        assert_same_bits(all, trainer, DART_TRAIN_GRADIENT);
        assert_same_bits(all, trainer, DART_TRAIN_SQUARE);
        dart_trainer_destroy(&trainer);
    }
    dart_trainer_destroy(&all);
}

/* Five layers: of those that keep r at level 2, and of the others, one is not the last. */
void levels_agree(void **unused)
{
    (void)unused;
    enum { LAYERS = 5 };
    dart_model_config dart = small;
    const dart_model_config transformer = {.transformer = true, .V = small.V, .W = 32, .layers = LAYERS, .H = 4, .P = 8, .G = 2, .F = 24, .base = 100,
                                           .eps = 1e-5f};
    dart.layers = LAYERS;
    for (dart_storage weights = DART_STORAGE_F32; weights <= DART_STORAGE_BF16; weights++) check_levels(&dart, weights, false, 100 * weights);
    check_levels(&dart, DART_STORAGE_F32, true, 400);
    check_levels(&transformer, DART_STORAGE_F32, false, 500);
    dart.independent_c = true;
    check_levels(&dart, DART_STORAGE_F32, false, 600);
}
