#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
// Do as many workgroups as the launch has run side by side, so that they can wait for one another as those of mixer/layers.comp do? See args.h.
// Shared memory: 8 bytes.
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_atomic_int64 : require
#extension GL_KHR_memory_scope_semantics : require
#include "lib/dart.glsl"
#include "table/resident_check.glsl"
WRITES(r)
READS_WRITES_AS(uint64_t, posts, posts)

const uint PATIENCE = 200000u;
shared uint sum, in_vain;

void main()
{
    uint own = gl_WorkGroupID.x;
    if (LANE == 0u) sum = in_vain = 0u;
    for (uint round = 1u; round <= args.rounds; round++) {
        barrier();
        if (LANE == 0u)
            atomicStore(posts_posts[own], (uint64_t(round) << 32) | uint64_t(256u * round + own), gl_ScopeDevice, gl_StorageSemanticsNone,
                        gl_SemanticsRelaxed);
        for (uint other = LANE; other < args.tiles; other += LANES) {
            uint64_t word = 0UL;
            uint tries = 0u;
            // The other may be a round ahead, and its number then 256 larger.
            while (uint(word >> 32) < round && tries++ < PATIENCE)
                word = atomicLoad(posts_posts[other], gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
            uint late = uint(word >> 32);
            if (late < round) atomicOr(in_vain, 1u);
            atomicAdd(sum, uint(word & 0xffffffffUL) - 256u * (late - round));
        }
        barrier();
        if (in_vain != 0u) break;
    }
    if (LANE == 0u) store_r(own, in_vain != 0u ? 0.0 : float(sum));
}
