// How the rows of sma_backward_token_side come into registers and shared memory, and how gradients leave them. `token` is the row of the first of
// the workgroup's tokens, of which `live` are there; four lanes take a token. Include after token_side.glsl.
Eight unpack_eight(uvec4 words)
{
    return Eight(vec4(unpack_elements(words.x), unpack_elements(words.y)), vec4(unpack_elements(words.z), unpack_elements(words.w)));
}
float dot_eight(Eight a, Eight b) { return dot(a.low, b.low) + dot(a.high, b.high); }
Eight held(uint at) { return Eight(uintBitsToFloat(memory[at]), uintBitsToFloat(memory[at + 1u])); }
float sum_of_four(float value) // over four neighbouring lanes
{
    value += subgroupShuffleXor(value, 1u);
    return value + subgroupShuffleXor(value, 2u);
}
float norm_of(float squares, uint width) { return 1.0 / sqrt(squares / float(width) + args.eps); }

// q and c into matrices and words, e into shared memory, and the norms. token: the row of the first of `live` tokens.
void take_tokens(uint s, uint thread, uint own, uint n0, uint token, uint live, uint group)
{
    barrier();
    for (uint i = thread; i < TOKENS * P / 8u; i += LANES) {
        uint t = i / (P / 8u);
        uint q = i % (P / 8u);
        verifier[t * PITCH + q] = t < live ? quads_e[(args.e_at + (token + t) * args.e_row + group * P) / 8u + q] : uvec4(0u);
    }
    for (uint i = thread; i < TOKENS * N / 8u; i += LANES) {
        uint t = i / (N / 8u);
        uint q = i % (N / 8u);
        memory[t * Q_PITCH + q] = t < live ? quads_q[(args.q_at + (token + t) * args.q_row + group * N) / 8u + q] : uvec4(0u);
    }
    barrier();
    [[unroll]] for (uint k = 0u; k < KEY_DEPTH; k++)
        coopMatLoad(query[k], memory, own * Q_PITCH + (n0 + k * MATRIX_K) / 8u, Q_PITCH, ROW_MAJOR);
    for (uint i = thread; i < TOKENS * 4u; i += LANES) { // four lanes a token
        uint t = i / 4u;
        float of_q = 0.0;
        float of_e = 0.0;
        for (uint x = i % 4u; x < N / 8u; x += 4u) {
            Eight v = unpack_eight(memory[t * Q_PITCH + x]);
            of_q += dot_eight(v, v);
        }
        for (uint x = i % 4u; x < P / 8u; x += 4u) {
            Eight v = unpack_eight(verifier[t * PITCH + x]);
            of_e += dot_eight(v, v);
        }
        vec2 norm = vec2(norm_of(sum_of_four(of_q), N), norm_of(sum_of_four(of_e), P));
        if (i % 4u == 0u) {
            norms[t] = norm;
            factors[t] = norm.x * (1.0 / sqrt(float(N))) * norm.y;
        }
    }
    [[unroll]] for (uint of_c = 0u; of_c < 2u; of_c++) {
        barrier();
        for (uint i = thread; i < TOKENS * N / 8u; i += LANES) {
            uint t = i / (N / 8u);
            uint q = i % (N / 8u);
            uvec4 words = uvec4(0u);
            if (t < live && of_c == 0u) words = quads_q[(args.q_at + (token + t) * args.q_row + group * N) / 8u + q];
            if (t < live && of_c == 1u) words = quads_c[(args.c_at + (token + t) * args.c_row + group * N) / 8u + q];
            put_f32(t, q, words);
        }
        barrier();
        [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
            MatrixSum rows = take_f32(own, n0, j);
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i += 2u) {
                uint at = (j * ELEMENTS + i) / 2u;
                uint word = pack_elements(rows[i], rows[i + 1u]);
                if (of_c == 0u) query_words[at] = word;
#ifdef READS_SHARED
                else read_words[at * LANES + thread] = word;
#else
                else read_words[at] = word;
#endif
            }
        }
    }
}

// A memory, whose first row is `row`, on its way to shared memory.
void fetch_memory(uint thread, uint row)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++) next_rows[i] = quads_dh[(args.dh_at + row * P) / 8u + i * LANES + thread];
    [[unroll]] for (uint i = 0u; i < SCALES; i++) next_scales[i] = floats_factor[args.factor_at + row + min(i * LANES + thread, N - 1u)];
}
void put_memory(uint thread)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++) {
        uint at = i * LANES + thread;
        memory[at / (P / 8u) * PITCH + at % (P / 8u)] = next_rows[i];
    }
    [[unroll]] for (uint i = 0u; i < SCALES; i++)
        if (i * LANES + thread < N) scales[i * LANES + thread] = next_scales[i];
}

// up_r, r and lse of head h, on their way to up_r, r . up_r and lse in shared memory.
void fetch_head(uint thread, uint token, uint live, uint h)
{
    [[unroll]] for (uint i = 0u; i < TURNS; i++) {
        uint t = (i * LANES + thread) / 4u;
        uint row = token + min(t, live - 1u);
        [[unroll]] for (uint x = 0u; x < EIGHTHS; x++) {
            uint p = h * P + (thread % 4u + 4u * x) * 8u;
            next_up[i * EIGHTHS + x] = quads_up_r[(args.up_r_at + row * args.up_r_row + p) / 8u];
            next_r[i * EIGHTHS + x] = load_words_r(args.r_at + row * args.r_row + p);
        }
        next_log[i] = floats_lse[args.lse_at + row * args.H + h];
    }
}
void put_head(uint thread, uint live)
{
    [[unroll]] for (uint i = 0u; i < TURNS; i++) {
        uint t = (i * LANES + thread) / 4u;
        float along = 0.0;
        [[unroll]] for (uint x = 0u; x < EIGHTHS; x++) {
            uvec4 words = t < live ? next_up[i * EIGHTHS + x] : uvec4(0u);
            along += dot_eight(unpack_eight(words), eight_of(DTYPE_OF(r), next_r[i * EIGHTHS + x]));
            if (t < TOKENS) incoming[t * PITCH + thread % 4u + 4u * x] = words;
        }
        along = sum_of_four(along);
        if (thread % 4u == 0u && t < TOKENS) {
            dots[t] = along;
            logs[t] = t < live ? next_log[i] : 0.0;
        }
    }
}

// The gradients of `rows` tokens; of grad_c with IS_ADD only of the first `live`. With several parts what one adds up to.
void put_gradients(uint s, uint thread, uint own, uint n0, uint token, uint live, uint rows, uint group, uint part)
{
    bool adds = has(args.flags, IS_ADD);
    bool whole = args.parts == 1u;
    uint row = token + part * (has(args.flags, HAS_CU) ? args.T : args.B * args.L);
    [[unroll]] for (uint of_c = 0u; of_c < 2u; of_c++) {
        barrier();
        [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
            uint to = own * F32_PITCH + (n0 + j * MATRIX_N) / 4u;
            if (of_c == 0u) coopMatStore(sum_q[j], memory, to, F32_PITCH, ROW_MAJOR);
            else coopMatStore(sum_c[j], memory, to, F32_PITCH, ROW_MAJOR);
        }
        barrier();
        for (uint i = thread; i < TOKENS * 4u; i += LANES) {
            uint t = i / 4u;
            Eight of_q[N / 32u];
            float along = 0.0;
            [[unroll]] for (uint x = 0u; x < N / 32u; x++) {
                uint q = i % 4u + 4u * x;
                if (of_c == 1u) {
                    uint to = args.grad_c_at + (row + t) * args.grad_c_row + group * N + 8u * q;
                    Eight value = held(t * F32_PITCH + 2u * q);
                    if (t >= (adds ? live : rows)) continue;
                    if (adds) {
                        Eight old = load_eight_grad_c(to);
                        value = Eight(value.low + old.low, value.high + old.high);
                    }
                    if (is_16bit(DTYPE_OF(grad_c))) {
                        quads_grad_c[to / 8u] = uvec4(as_16bit(DTYPE_OF(grad_c), value.low), as_16bit(DTYPE_OF(grad_c), value.high));
                    } else {
                        quads_grad_c[to / 4u] = floatBitsToUint(value.low);
                        quads_grad_c[to / 4u + 1u] = floatBitsToUint(value.high);
                    }
                } else {
                    of_q[x] = Eight(vec4(0.0), vec4(0.0));
                    if (t < live) of_q[x] = unpack_eight(quads_q[(args.q_at + (token + t) * args.q_row + group * N) / 8u + q]);
                    along += dot_eight(of_q[x], held(t * F32_PITCH + 2u * q));
                }
            }
            if (of_c == 1u) continue;
            along = whole ? sum_of_four(along) * norms[t].x * norms[t].x / float(N) : 0.0;
            float by = whole ? factors[t] : 1.0;
            [[unroll]] for (uint x = 0u; x < N / 32u; x++) {
                uint q = i % 4u + 4u * x;
                Eight sum = held(t * F32_PITCH + 2u * q);
                Eight value = Eight(by * (sum.low - along * of_q[x].low), by * (sum.high - along * of_q[x].high));
                if (t < rows) store_eight_grad_q(args.grad_q_at + (row + t) * args.grad_q_row + group * N + 8u * q, value);
            }
        }
    }
    barrier(); // the halves of to_e, one behind the other
    [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++)
        coopMatStore(sum_e[j], memory, (n0 / HALF * TOKENS + own) * E_PITCH + j * (MATRIX_N / 4u), E_PITCH, ROW_MAJOR);
    barrier();
    for (uint i = thread; i < TOKENS * 4u; i += LANES) {
        uint t = i / 4u;
        Eight sum[P / 32u];
        float along = 0.0;
        [[unroll]] for (uint x = 0u; x < P / 32u; x++) {
            uint at = t * E_PITCH + 2u * (i % 4u + 4u * x);
            Eight one = held(at);
            Eight other = held(TOKENS * E_PITCH + at);
            sum[x] = Eight(one.low + other.low, one.high + other.high);
            along += dot_eight(unpack_eight(verifier[t * PITCH + i % 4u + 4u * x]), sum[x]);
        }
        along = whole ? sum_of_four(along) * norms[t].y * norms[t].y / float(P) : 0.0;
        float by = whole ? factors[t] : 1.0;
        [[unroll]] for (uint x = 0u; x < P / 32u; x++) {
            uint q = i % 4u + 4u * x;
            Eight v = unpack_eight(verifier[t * PITCH + q]);
            Eight value = Eight(by * (sum[x].low - along * v.low), by * (sum[x].high - along * v.high));
            if (t < rows) store_eight_grad_e(args.grad_e_at + (row + t) * args.grad_e_row + group * P + 8u * q, value);
        }
    }
}
