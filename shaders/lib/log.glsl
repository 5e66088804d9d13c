// log(x) for normal x >= 1. The built-in log has no bound on its error relative to a small result.
float log_above_one(float x)
{
    uint u = floatBitsToUint(x);
    float mantissa = uintBitsToFloat((u & 0x7fffffu) | 0x3f800000u);
    precise float result = float(int(u >> 23) - 127) * 0.693147181 + log1p_unit(mantissa - 1.0);
    return result;
}
