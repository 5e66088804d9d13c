// A rectangle an instance, six corners each. The canvas is 960 x 600 pixels.
#version 450
layout(location = 0) in vec4 place; // x, y, w, h in pixels
layout(location = 1) in uvec4 look; // colour, kind, bits
layout(location = 0) out vec2 at;   // 0..1 within the rectangle
layout(location = 1) flat out uvec4 what;
layout(location = 2) flat out vec4 where;

void main()
{
    const vec2 corners[6] = vec2[6](vec2(0, 0), vec2(1, 0), vec2(0, 1), vec2(0, 1), vec2(1, 0), vec2(1, 1));
    at = corners[gl_VertexIndex];
    what = look;
    where = place;
    gl_Position = vec4((place.xy + at * place.zw) / vec2(480, 300) - 1, 0, 1);
}
