/* Initial values of parameters. */
#include "trainer.h"

#include <math.h>
#include <stdlib.h>

/* Of element i of a parameter: the same for every device. */
static uint64_t bits_of(uint64_t key, uint64_t i) { return base_mix(key + i * UINT64_C(0x9E3779B97F4A7C15)); }

/* Two uniform numbers make a normal one. Source: Box and Muller 1958. */
static double normal(uint64_t key, uint64_t i)
{
    const double radius = sqrt(-2 * log(1 - base_uniform(bits_of(key, 2 * i)))), angle = 6.283185307179586 * base_uniform(bits_of(key, 2 * i + 1));
    return radius * cos(angle);
}

static double within(double limit, uint64_t bits) { return limit * (2 * base_uniform(bits) - 1); }

static double initial(const dart_model_config *c, const model_parameter *p, uint64_t key, uint64_t i)
{
    const uint64_t bits = bits_of(key, i);
    switch (p->role) {
    case MODEL_EMBEDDING:
    case MODEL_HEAD: return 0.02 * normal(key, i);
    case MODEL_NORM:
    case MODEL_MIXER_NORM:
    case MODEL_FINAL_NORM:
    case MODEL_MLP_NORM:
    case MODEL_D: return 1;
    case MODEL_Q_PROJ:
    case MODEL_K_PROJ:
    case MODEL_V_PROJ:
    case MODEL_GATE_PROJ:
    case MODEL_UP_PROJ:
    case MODEL_IN_PROJ: return within(1 / sqrt((double)c->W), bits);
    case MODEL_SMA_PROJ: return i / c->W < model_config_sma_conv(c) ? within(1 / sqrt((double)c->W), bits) : 0;
    case MODEL_OUT_PROJ: return within(1 / sqrt((double)model_config_inner(c) * c->layers), bits);
    case MODEL_DOWN_PROJ: return within(1 / sqrt((double)c->F * c->layers), bits);
    case MODEL_CONV_WEIGHT:
    case MODEL_CONV_BIAS:
    case MODEL_SMA_CONV_WEIGHT:
    case MODEL_SMA_CONV_BIAS: return within(1 / sqrt((double)c->K), bits);
    case MODEL_DT_BIAS: { /* the number whose softplus is the step size */
        const double step = exp(log(0.001) + base_uniform(bits) * (log(0.1) - log(0.001)));
        return step + log(-expm1(-step));
    }
    case MODEL_A_LOG: return log(1 + 15 * base_uniform(bits));
    case MODEL_NORM_BIAS: /* of GPT-NeoX, which is not trained, here and below */
    case MODEL_Q_BIAS:
    case MODEL_K_BIAS:
    case MODEL_V_BIAS:
    case MODEL_OUT_BIAS:
    case MODEL_MLP_NORM_BIAS:
    case MODEL_UP_BIAS:
    case MODEL_DOWN_BIAS:
    case MODEL_FINAL_NORM_BIAS:
    case MODEL_ROLE_COUNT: break;
    }
    return 0;
}

/* Different for every parameter. Roles that a mixer has and those that only a Transformer has are counted apart. */
static uint64_t place_of(const model_parameter *p)
{
    const uint64_t mixer_roles = MODEL_HEAD + 1;
    if (p->role <= MODEL_HEAD) return p->layer * mixer_roles + p->role;
    return (UINT64_C(1) << 32) + (uint64_t)p->layer * (MODEL_DOWN_PROJ + 1) + p->role;
}

void trainer_initial(const dart_trainer *trainer, uint32_t index, float *values)
{
    const model_parameter *p = &trainer->parameters[index].is;
    const uint64_t key = base_mix(trainer->options.seed ^ base_mix(place_of(p)));
    for (uint64_t i = 0; i < p->elements; i++) values[i] = (float)initial(&trainer->config, p, key, i);
}
