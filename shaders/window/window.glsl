// What decays leave of the slots of a window, see args.h. Include after READS(steps) or READS_WRITES(steps), in a kernel whose arguments
// have H and S.
#include "slot.glsl"

shared vec4 log_decays[WINDOW / 4u];
shared float keeps[WINDOW];      // times step
shared float log_decay_of_all;

// {log-decay, step} of the slot that is this lane's, 0 from slot n on; to be asked for early.
vec2 own_slot(uint b, uint h, uint n)
{
    uint at = 2u * ((b * WINDOW + min(LANE, WINDOW - 1u)) * args.H + h);
    return LANE < n ? vec2(load_steps(at), load_steps(at + 1u)) : vec2(0.0);
}

float sum_where(vec4 v, bvec4 counts)
{
    v = mix(vec4(0.0), v, counts);
    return (v.x + v.y) + (v.z + v.w);
}

// keeps and log_decay_of_all of one head from all lanes' own slots. Call in uniform flow; LANES is at least WINDOW.
void weigh_slots(vec2 own)
{
    if (LANE < WINDOW) log_decays[LANE / 4u][LANE % 4u] = own.x;
    barrier();
    if (LANE < WINDOW) {
        float after = 0.0;
        for (uint k = 0u; k < WINDOW / 4u; k++)
            after += sum_where(log_decays[k], greaterThan(4u * k + uvec4(0u, 1u, 2u, 3u), uvec4(LANE)));
        keeps[LANE] = exp_neg(after) * own.y;
        if (LANE == 0u) log_decay_of_all = after + own.x;
    }
    barrier();
}
