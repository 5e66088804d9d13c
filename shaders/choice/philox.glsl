// Word 0 of Philox4x32-10 (Salmon et al. 2011).
uint philox(uvec4 counter, uvec2 key)
{
    for (uint i = 0u; i < 10u; i++) {
        uint high0, low0, high1, low1;
        umulExtended(0xd2511f53u, counter.x, high0, low0);
        umulExtended(0xcd9e8d57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter.x;
}
