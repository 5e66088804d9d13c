#include "arguments.h"

enum { MAX_TAPS = 8 };

dart_status ops_check_sizes(op_call *call, uint32_t H, uint32_t G, uint32_t N, uint32_t P, uint32_t S)
{
    OP_REQUIRE(call, H % G == 0, "H %u is not a multiple of G %u", H, G);
    OP_REQUIRE(call, N > 0 && N <= MAX_STATE && P > 0 && P <= MAX_STATE, "N %u, P %u must be 1 to %d", N, P, MAX_STATE);
    OP_REQUIRE(call, S <= 1u << 30, "S %u must be at most 2^30", S);
    return op_status(call);
}

dart_status ops_check_taps(op_call *call, uint32_t K)
{
    OP_REQUIRE(call, K >= 2 && K <= MAX_TAPS, "K %u must be 2 to %d", K, MAX_TAPS);
    return op_status(call);
}

dart_status ops_check_steps(op_call *call, float dt_min, float dt_max)
{
    OP_REQUIRE(call, dt_min >= 0 && dt_max >= 0 && (dt_max == 0 || dt_max >= dt_min), "step limits %g to %g", (double)dt_min, (double)dt_max);
    return op_status(call);
}

ops_run ops_run_of(const dart_memories *run, const char *dh, const char *scale, uint64_t count, uint32_t H, uint32_t N, uint32_t P)
{
    return (ops_run){.dh = {dh, run->dh, OP_FLOAT, count, (uint64_t)H * N * P}, .scale = {scale, run->scale, OP_F32, count, (uint64_t)H * N}};
}
