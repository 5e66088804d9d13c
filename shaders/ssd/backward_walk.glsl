// Bindings of four elements, and shared memory, of backward_walk.comp, which includes this after its other bindings and walk.glsl.

READS_STATE(up_dh) READS_STATE(hin) WRITES_STATE(hin) WRITES_FOUR(grad_x) WRITES_FOUR(grad_b)
#ifdef TILES
WRITES_FOUR(grad_c)
vec4 load_four_grad_c(uint at, uint room)
{
    if (is_16bit(DTYPE_OF(grad_c))) return four_16bit(DTYPE_OF(grad_c), olds_grad_c[at / 4u]);
    return uintBitsToFloat(old_quads_grad_c[at / 4u]);
}
#else
READS_WRITES(grad_c)
void store_four_grad_c(uint at, uint room, vec4 value)
{
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        if (i < room) store_grad_c(at + i, value[i]);
}
vec4 load_four_grad_c(uint at, uint room)
{
    vec4 value = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < 4u; i++)
        if (i < room) value[i] = load_grad_c(at + i);
    return value;
}
#endif

// Squares of a head, in this order: cb_ts E_ts with lines s; u_ts with lines t; hin up_y with lines t; G x with lines s.
const uint OF_WEIGHT = 0u;
const uint OF_U = 1u;
const uint OF_READ = 2u;
const uint OF_WRITE = 3u;
uint square_of(uint kind, uint head) { return (kind * TEAMS + head) * SQUARE; }
const uint STRIPE = SIDE + 1u; // elements from one line of z to the next

shared vec4 early[max(PANEL, 4u * TEAMS * SQUARE)]; // x; then the squares
shared vec4 ups[PANEL];                             // up_y
shared vec4 states[PANEL];                          // hin; then G = lambda + up_dh; then two squares of a head, each with STRIPE:
                                                    // cb_ts E_ts up_y_t . x_s, and the sums of z_us over s < k
shared vec4 bs[SQUARE];
shared vec4 cs[SQUARE];
shared float reads[TEAMS * SIDE];  // exp(cum_t)
shared float inters[TEAMS * SIDE]; // exp(cum_t) c_t . hin up_y_t
shared float writes[TEAMS * SIDE]; // keep_s step_s b_s . G x_s
shared float parts[LANES];         // of sums over a team
shared float sums[TEAMS * SIDE];   // ... of four lanes each

uint z_at(uint square, uint head, uint line, uint column) { return ((square * TEAMS + head) * SIDE + line) * STRIPE + column; }
float z_of(uint at) { return states[at / 4u][at % 4u]; }
void put_z(uint at, float value) { states[at / 4u][at % 4u] = value; }

// The sum of a value over a team, in every lane of it.
float team_sum(float value)
{
    barrier();
    parts[LANE] = value;
    barrier();
    float sum = 0.0;
    for (uint i = 0u; i < TEAM; i++) sum += parts[OWN_TEAM * TEAM + i];
    return sum;
}
