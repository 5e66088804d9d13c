// SiLU(x) and its derivative, sigma(x) (1 + x (1 - sigma(x))).
struct Slope { float value, slope; };
Slope silu_slope(float x)
{
    float e = exp_neg(-abs(x));
    float sigma = (x >= 0.0 ? 1.0 : e) / (1.0 + e);
    float rest = (x >= 0.0 ? e : 1.0) / (1.0 + e); // 1 - sigma, without cancellation
    return Slope(x * sigma, sigma * (1.0 + x * rest));
}
