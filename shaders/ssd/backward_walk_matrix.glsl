// Parts of backward_walk_matrix.comp, which includes this after its bindings and walk_matrix.glsl.
const uint OF_SUMS = 7u;   // of keys times squares: b_s . write_s, then c_t . read_t
const uint OF_ALONG = 9u;  // sum over t of weight_ts up_y_t . x_s
const uint OF_ACROSS = 10u; // sum of z_us over u >= k > s
// Where U, then write^T and read^T, lie among a head's panels once these are used up.
#define SQUARE_AT(kind, head) ((head) * PANELS * PANEL + (kind) * FLOATS)
const uint OF_U = 2u;

vec4 floats_at(uint at) { return uintBitsToFloat(panels[at]); }
// The row of 16 columns of a square times that of keys.
float dot_row(uint at, uint key)
{
    float sum = 0.0;
    [[unroll]] for (uint q = 0u; q < 2u; q++) {
        uvec4 words = keys[key + q];
        sum += dot(floats_at(at + 2u * q), vec4(unpack_elements(words.x), unpack_elements(words.y))) +
               dot(floats_at(at + 2u * q + 1u), vec4(unpack_elements(words.z), unpack_elements(words.w)));
    }
    return sum;
}
void put_grad_x(uint at, vec4 low, vec4 high)
{
#ifdef MATRIX_BF16
    if (DTYPE_OF(grad_x) == TYPE_BF16) {
        quads_grad_x[at / 8u] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y),
                                      pack_elements(high.z, high.w));
        return;
    }
#endif
    store_eight_grad_x(at, Eight(low, high));
}
void put_grad_c(uint at, vec4 low, vec4 high)
{
    if (is_16bit(DTYPE_OF(grad_c))) {
        if (has(args.flags, IS_ADD)) {
            low += four_16bit(DTYPE_OF(grad_c), quads_grad_c[at / 8u].xy);
            high += four_16bit(DTYPE_OF(grad_c), quads_grad_c[at / 8u].zw);
        }
        quads_grad_c[at / 8u] = uvec4(as_16bit(DTYPE_OF(grad_c), low), as_16bit(DTYPE_OF(grad_c), high));
    } else {
        if (has(args.flags, IS_ADD)) {
            low += uintBitsToFloat(quads_grad_c[at / 4u]);
            high += uintBitsToFloat(quads_grad_c[at / 4u + 1u]);
        }
        quads_grad_c[at / 4u] = floatBitsToUint(low);
        quads_grad_c[at / 4u + 1u] = floatBitsToUint(high);
    }
}
// Of the derivative by the step that by dt.
float through_step(float raw, float grad)
{
    if (has(args.flags, IS_STEP)) return grad;
    float soft = softplus(raw);
    float e = exp_neg(-abs(raw));
    return soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0 ? 1.0 : e) / (1.0 + e)) : 0.0;
}

// From weight_ts up_y_t . x_s in parts, lines s: the sums over t, and of z_us over u >= k > s.
void put_sums_of_pairs(uint own, uint lane, uint part_at)
{
    for (uint s = lane; s < SIDE; s += SUBGROUP_SIZE) { // to sums over u >= k, at column k
        float step = TOKEN(OF_STEP, own, s);
        float sum = 0.0;
        [[unroll]] for (uint q = 0u; q < SIDE / 4u; q++) {
            uint at = part_at + s * QUADS + SIDE / 4u - 1u - q;
            vec4 line = parts[at];
            float w = sum + line.w;
            float z = w + line.z;
            float y = z + line.y;
            sum = y + line.x;
            parts[at] = step * vec4(sum, y, z, w);
        }
        TOKEN(OF_ALONG, own, s) = sum;
    }
    subgroup_sync();
    for (uint k = lane; k < SIDE; k += SUBGROUP_SIZE) {
        float sum = 0.0;
        [[unroll]] for (uint s = 0u; s < SIDE; s++) sum += s < k ? parts[part_at + s * QUADS + k / 4u][k % 4u] : 0.0;
        TOKEN(OF_ACROSS, own, k) = sum;
    }
}

// grad_b (own 0) or grad_c (own 1) of a chunk: the product in parts and the heads' squares, times a value of each token.
void put_group_grads(uint own, uint lane, uint part_at, uint row, uint size, uint g)
{
    for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / 2u;
        uint at = i % 2u * 2u;
        vec4 low = parts[part_at + t * QUADS + at];
        vec4 high = parts[part_at + t * QUADS + at + 1u];
        [[unroll]] for (uint k = 0u; k < HEADS; k++) {
            float by = TOKEN(OF_WRITTEN + own, k, t);
            low += by * floats_at(SQUARE_AT(own, k) + t * QUADS + at);
            high += by * floats_at(SQUARE_AT(own, k) + t * QUADS + at + 1u);
        }
        if (t >= size) continue;
        uint n = g * SIDE + 4u * at;
        if (own == 0u) store_eight_grad_b(args.grad_b_at + (row + t) * args.grad_b_row + n, Eight(low, high));
        else put_grad_c(args.grad_c_at + (row + t) * args.grad_c_row + n, low, high);
    }
}

#ifdef QUIET
// The same for a chunk without up_y: no product, and no grad_c.
void put_quiet_grads(uint own, uint lane, uint row, uint size, uint g)
{
    if (own == 1u && has(args.flags, IS_ADD)) return;
    for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / 2u;
        uint at = i % 2u * 2u;
        uint n = g * SIDE + 4u * at;
        vec4 low = vec4(0.0);
        vec4 high = vec4(0.0);
        if (t >= size) continue;
        if (own == 0u) {
            [[unroll]] for (uint k = 0u; k < HEADS; k++) {
                float by = TOKEN(OF_WRITTEN, k, t);
                low += by * floats_at(SQUARE_AT(0u, k) + t * QUADS + at);
                high += by * floats_at(SQUARE_AT(0u, k) + t * QUADS + at + 1u);
            }
            store_eight_grad_b(args.grad_b_at + (row + t) * args.grad_b_row + n, Eight(low, high));
        } else {
            put_grad_c(args.grad_c_at + (row + t) * args.grad_c_row + n, low, high);
        }
    }
}
#endif

// The derivative by the log-decay of a token, but for what the state carries.
float token_grad_a(uint own, uint t)
{
    float sum = 0.0;
    [[unroll]] for (uint q = 0u; q < SIDE / 4u; q++) {
        vec4 write = tokens[TOKENS_AT(OF_WRITTEN, own) + q] * tokens[TOKENS_AT(OF_SUMS, own) + q];
        vec4 read = tokens[TOKENS_AT(OF_READ, own) + q] * tokens[TOKENS_AT(OF_SUMS + 1u, own) + q];
        [[unroll]] for (uint c = 0u; c < 4u; c++) sum += 4u * q + c < t ? write[c] : read[c];
    }
    return sum + TOKEN(OF_ACROSS, own, t);
}

#ifdef QUIET
float quiet_grad_a(uint own, uint t)
{
    float sum = 0.0;
    [[unroll]] for (uint q = 0u; q < SIDE / 4u; q++) {
        vec4 write = tokens[TOKENS_AT(OF_WRITTEN, own) + q] * tokens[TOKENS_AT(OF_SUMS, own) + q];
        [[unroll]] for (uint c = 0u; c < 4u; c++) sum += 4u * q + c < t ? write[c] : 0.0;
    }
    return sum;
}
#endif

// Component by component, tile n of a state whose elements begin at `at`.
#define STATE_AT(at, n) ((at) + (n) * MATRIX_M * MATRIX_N)
#define STORE_STATE(at, state) \
    EACH_TILE(n) [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 4u) { \
        if (ELEMENTS % 4u == 0u) \
            quads_hin[STATE_AT(at, n) / 4u + e / 4u * SUBGROUP_SIZE + lane] = \
                vec4(state[n][e], state[n][e + 1u], state[n][e + 2u], state[n][e + 3u]); \
        else \
            [[unroll]] for (uint c = e; c < ELEMENTS; c++) plain_hin[STATE_AT(at, n) + c * SUBGROUP_SIZE + lane] = state[n][c]; \
    }
#define LOAD_STATE(at, state) \
    EACH_TILE(n) [[unroll]] for (uint e = 0u; e < ELEMENTS; e += 4u) { \
        if (ELEMENTS % 4u == 0u) { \
            vec4 quad = quads_hin[STATE_AT(at, n) / 4u + e / 4u * SUBGROUP_SIZE + lane]; \
            [[unroll]] for (uint c = 0u; c < 4u; c++) state[n][e + c] = quad[c]; \
        } else { \
            [[unroll]] for (uint c = e; c < ELEMENTS; c++) state[n][c] = plain_hin[STATE_AT(at, n) + c * SUBGROUP_SIZE + lane]; \
        } \
    }
