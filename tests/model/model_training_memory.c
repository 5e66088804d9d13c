/* What a trainer allocates, against a count by hand. */
#include "train_cases.h"

#include "train/trainer.h"

/* Bytes of a trainer at level 2: parameters with moments, gradients and copies; what each layer keeps; what all layers share; scratch memory. */
typedef struct account {
    double parameters, kept, shared, scratch;
} account;

static account account_of(const dart_model_config *c, dart_trainer *trainer, double B, double length, double size)
{
    account a = {0};
    dart_train_parameter p;
    const double T = B * length, I = (double)c->H * c->P, M = ceil(length / c->S), memory = I * c->N, C = fmin(c->S, length);
    const double projected = (double)model_config_in_proj_row(c) + model_config_conv(c) + model_config_sma_proj(c) + model_config_sma_conv(c);
    for (uint32_t i = 0; dart_trainer_parameter(trainer, i, &p); i++)
        a.parameters += (double)p.elements * (p.rank == 2 && size < 4 ? 16 + size : 16);
    /* The stream and r in f32, memories, in 16 bits with scales, and lse. */
    const double scales = size < 4 ? 4 * B * M * memory / c->P : 0;
    a.kept = c->layers * (4 * T * c->W + size * B * M * memory + scales + 4 * T * I + 4 * T * c->H);
    /* The rest of one layer, and gradients of it: in f32 those of the stream and of memories. The stream behind the last layer. */
    const double rest = c->W + projected + 2 * I;
    a.shared = 2 * rest * T * size + 4 * T * c->W + 4 * T * c->W + size * T * I + 4 * B * M * memory;
    /* As ops_backward.h says of the op that takes the most: the scan, SMA with its qn, en and rho, or the cross entropy. */
    const double scan = 8 * B * M * c->G * C * C + 8 * B * M * memory + 16 * T * c->H;
    const double attention = 8 * T * c->H * M + 4 * T * c->G * (c->N + c->P) + 4 * B * M * memory + 4 * T * c->G * (2.0 * c->N + c->P) +
                             4 * B * M * c->H * c->N;
    const double loss = 2 * (fmin(67108864, 4 * T * c->V) + size * T * c->W);
    a.scratch = fmax(fmax(scan, attention), loss);
    return a;
}

void memory_is_as_counted(void **unused)
{
    (void)unused;
    enum { ROWS = 2, LENGTH = 512 };
    static const dart_model_config config = {.sma = true, .V = 256, .W = 128, .layers = 8, .H = 4, .P = 64, .G = 1, .N = 32, .K = 4, .S = 64,
                                             .eps = 1e-5f, .sma_eps = 1e-5f};
    int32_t *ids = calloc(ROWS * LENGTH, sizeof *ids), *targets = calloc(ROWS * LENGTH, sizeof *targets);
    assert_true(ids != NULL && targets != NULL);
    for (uint32_t i = 0; i < ROWS * LENGTH; i++) {
        ids[i] = (int32_t)(base_mix(i) % config.V);
        targets[i] = (int32_t)(base_mix(i + 1) % config.V);
    }
    for (dart_storage weights = DART_STORAGE_F32; weights <= DART_STORAGE_F16; weights++) {
        dart_trainer *trainer = NULL;
        const dart_trainer_options options = {.B = ROWS, .L = LENGTH, .keep = 2, .weights = weights};
        assert_int_equal(dart_device_bytes(device), 0);
        must(dart_trainer_create(device, &config, &options, &trainer), "create");
        const double made = (double)dart_device_bytes(device);
        const dart_train_batch batch = {.ids = ids, .targets = targets};
        must_train(trainer, dart_trainer_step(trainer, &batch, 1e-3, NULL), "step");
        const double used = (double)dart_device_bytes(device);
        const account a = account_of(&config, trainer, ROWS, LENGTH, weights == DART_STORAGE_F32 ? 4 : 2);
        const double buffers = a.parameters + a.kept + a.shared, count = buffers + a.scratch;
        print_message("  %s: %.2f MB, %.2f MB of scratch memory in it; counted %.2f = parameters %.2f + kept %.2f + shared %.2f + scratch %.2f\n",
                      weights == DART_STORAGE_F32 ? "f32" : "f16", used / 1e6, (used - made) / 1e6, count / 1e6, a.parameters / 1e6, a.kept / 1e6,
                      a.shared / 1e6, a.scratch / 1e6);
        assert_true(fabs(made / buffers - 1) <= 0.01);
        assert_true(fabs(used / count - 1) <= 0.15);
        dart_trainer_destroy(&trainer);
    }
    free(ids);
    free(targets);
}
