// The steps of a head's tokens; include after the READS of dt, a_log and dt_bias.

// What a head has for all of its tokens.
struct Head { float a, bias; };
Head head_of(uint h)
{
    float a_log = load_a_log(args.a_log_at + h);
    return Head(a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log), has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h) : 0.0);
}

// dt of a token with its bias, and its step.
float raw_of(uint row, uint h, Head head) { return load_dt(args.dt_at + row * args.dt_row + h) + (has(args.flags, IS_STEP) ? 0.0 : head.bias); }
float step_of(float raw) { return has(args.flags, IS_STEP) ? raw : min(max(softplus(raw), args.dt_min), args.dt_max); }
