// Filled rectangles, letters of 8 x 8 bits, and the map: one row a token, one column a memory, brighter where more weight lies.
#version 450
layout(location = 0) in vec2 at;
layout(location = 1) flat in uvec4 what; // colour, kind, bits
layout(location = 2) flat in vec4 where; // x, y, w, h in pixels
layout(location = 0) out vec4 color;
layout(std430, set = 0, binding = 0) readonly buffer Weights { float weights[]; };
layout(push_constant) uniform Map { uint rows, columns, pitch; };

vec3 of(uint rgb) { return vec3(rgb >> 16 & 255, rgb >> 8 & 255, rgb & 255) / 255; }

vec3 map_color()
{
    // In whole pixels, so that every device draws the same borders.
    const uvec2 pixel = uvec2(gl_FragCoord.xy - where.xy), size = uvec2(where.zw);
    const uint row = pixel.y * rows / size.y, column = pixel.x * columns / size.x;
    const float weight = weights[row * pitch + column];
    if (weight < 0) return of(0x14181f);
    return mix(of(0x1d2735), of(what.x), sqrt(clamp(weight, 0, 1)));
}

void main()
{
    const uint kind = what.y;
    if (kind == 1) {
        const uvec2 point = min(uvec2(at * 8), uvec2(7));
        const uint bits = point.y < 4 ? what.z : what.w;
        if ((bits >> (8 * (point.y & 3) + point.x) & 1) == 0) discard;
    }
    color = vec4(kind == 2 ? map_color() : of(what.x), 1);
}
