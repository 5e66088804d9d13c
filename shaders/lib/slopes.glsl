// SiLU(x) and its derivative, sigma(x) (1 + x (1 - sigma(x))), of four numbers, for results of `type`. Include after lib/eight.glsl and
// lib/slope.glsl. For 16-bit results the built-in exp is accurate enough, as in silu_four; 1 - sigma is then within 2^-23 of its value, and
// is added to 1. Below -80 the exponent stays at 80, so that exp does not overflow.
struct Slopes { vec4 value, slope; };
Slopes silu_slopes(uint type, vec4 x)
{
    if (is_16bit(type)) {
        vec4 sigma = 1.0 / (1.0 + exp(min(-x, vec4(80.0))));
        return Slopes(x * sigma, sigma * (1.0 + x * (1.0 - sigma)));
    }
    Slope a = silu_slope(x.x);
    Slope b = silu_slope(x.y);
    Slope c = silu_slope(x.z);
    Slope d = silu_slope(x.w);
    return Slopes(vec4(a.value, b.value, c.value, d.value), vec4(a.slope, b.slope, c.slope, d.slope));
}
