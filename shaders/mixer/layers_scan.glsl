// The scan of layers.comp: the state of a head, what closes, and the gated output.

void fetch_state(uint layer, uint head)
{
    Fours h = Fours(PLACE(layer, PLACE_H));
    [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) own[r] = floatBitsToUint(h.v[(head * STATE_ROWS + r) * SIZE + LANE]);
    a_log = Floats(PLACE(layer, PLACE_A_LOG)).v[head];
    step_bias = Floats(PLACE(layer, PLACE_DT_BIAS)).v[head];
    skip = Floats(PLACE(layer, PLACE_D)).v[head];
    before = 0.0;
    if (has(args.flags, HAS_OPEN)) {
        before = Floats(PLACE(layer, PLACE_OPEN_DECAY)).v[head];
        Fours open = Fours(PLACE(layer, PLACE_OPEN));
        [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) own[STATE_ROWS + r] = floatBitsToUint(open.v[(head * STATE_ROWS + r) * SIZE + LANE]);
    }
}

// Of the chunk that closes: the memory of a head goes to its run. Lanes hold rows n = LANE / 16 + SIZE / 16 r.
void append(uint layer, uint head, uint position)
{
    uint m = position / args.S;
    for (uint c = 0u; c < args.closing; c++) {
        uvec2 run = runs[MIXER_RUNS + c];
        if (m < run.x || m - run.x >= run.y) continue;
        uint at = ((m - run.x) * H + head) * N;
        [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) {
            vec4 open = uintBitsToFloat(own[STATE_ROWS + r]);
            barrier(); // found is free
            found[LANE / 4u][LANE % 4u] = dot(open, open);
            barrier();
            float squares = 0.0;
            for (uint i = 0u; i < 4u; i++) squares += dot(found[LANE / 16u * 4u + i], vec4(1.0));
            float size = sqrt(squares / float(P) + args.sma_eps);
            uint n = LANE / 16u + SIZE / 16u * r;
            if (LANE % 16u == 0u) Floats(PLACE(layer, PLACE_CLOSING + 2u * c + 1u)).v[at + n] = size;
            Halves to = Halves(PLACE(layer, PLACE_CLOSING + 2u * c));
            [[unroll]] for (uint i = 0u; i < 4u; i++)
                to.v[(at + n) * P + LANE % 16u * 4u + i] = uint16_t(bits_16bit(DTYPE_OF(dh), open[i] / size));
        }
    }
    barrier(); // found is free
}

void scan(uint layer, uint head, uint position)
{
    bool has_open = has(args.flags, HAS_OPEN);
    bool closes = has_open && (position + 1u) % args.S == 0u;
    float step_size = softplus(taken[STEP] + step_bias);
    step_size = min(max(step_size, args.dt_min), args.dt_max);
    float decay = (a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log)) * step_size;
    float total = before + decay;
    float keep_open = exp_neg(decay);
    float keep_h = exp_neg(total);
    uint word = LANE % 16u;
    uint row = LANE / 16u;
    vec4 x = vec4(taken[P + 4u * word], taken[P + 4u * word + 1u], taken[P + 4u * word + 2u], taken[P + 4u * word + 3u]);
    vec4 write = step_size * x;
    vec4 sum = vec4(0.0);
    Fours to_open = Fours(PLACE(layer, PLACE_OPEN)), to_h = Fours(PLACE(layer, PLACE_H));
    [[unroll]] for (uint r = 0u; r < STATE_ROWS; r++) {
        vec4 open = taken[2u * P + row + SIZE / 16u * r] * write;
        if (has_open) open += keep_open * uintBitsToFloat(own[STATE_ROWS + r]);
        vec4 state = keep_h * uintBitsToFloat(own[r]) + open;
        sum += taken[2u * P + N + row + SIZE / 16u * r] * state;
        uint at = (head * STATE_ROWS + r) * SIZE + LANE;
        if (has_open) to_open.v[at] = closes ? vec4(0.0) : open;
        if (closes || !has_open) to_h.v[at] = state;
        own[STATE_ROWS + r] = floatBitsToUint(open);
    }
    if (closes) append(layer, head, position);
    if (SUBGROUP_SIZE >= 32u) sum += subgroupShuffleXor(sum, 16u);
    if (SUBGROUP_SIZE < 32u || lane < 16u) found[(SUBGROUP_SIZE >= 32u ? subgroup : row) * 16u + word] = sum;
    barrier();
    if (has_open && LANE == 0u) Floats(PLACE(layer, PLACE_OPEN_DECAY)).v[head] = closes ? 0.0 : total; // all lanes have read it
    float y = 0.0;
    if (LANE < P) {
        y = skip * taken[P + LANE];
        [[unroll]] for (uint i = 0u; i < FOUND_ROWS; i++) y += found[i * 16u + LANE / 4u][LANE % 4u];
    }
    if (IS_WIDE && !IS_ALONE) fetch_output(layer, rows_of.z);
    if (has_open && args.runs > 0u) y += silu(taken[STEP + 1u]) * merged(head);
    if (LANE < P) post(Y_AT + head * P + LANE, y * silu(taken[LANE]));
}
