// The arguments of a kernel, `args`, as src/vulkan/vk_stream.c passes them. table/KERNEL.glsl includes this file; it defines ARGS, the struct;
// ARGS_BYTES, its size; and BINDINGS, how many bindings the kernel has. range_begin is there for IS_RANGE only (lib/dart.glsl).
#if ARGS_BYTES > PUSH_BYTES // in a buffer, whose binding follows the kernel's own
layout(std430, binding = BINDINGS) readonly buffer Arguments { ARGS args; uint range_begin; };
#elif ARGS_BYTES == PUSH_BYTES // no room for where a range begins: such a launch is not cut
layout(push_constant) uniform Push { ARGS args; };
const uint range_begin = 0u;
#else
layout(push_constant) uniform Push { ARGS args; uint range_begin; };
#endif
