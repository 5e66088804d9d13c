/* Has Mesa's lavapipe compile for a processor whose gathers are worth using, preloaded by tools/with-vulkan.sh on AMD's, whose are not: LLVM
 * then writes a gather of 8 lanes, as every load of a shader is, as 8 blocks with a branch each, and splitting blocks of shaders with many loads
 * is what it does most. Shaders compile in two thirds of the time (docs/lab/2026-11-25-time-of-tests.md). Instructions that the processor lacks
 * stay switched off: lavapipe names each feature that it has or lacks. */
#include <stddef.h>

struct name { /* llvm::StringRef */
    const char *data;
    size_t bytes;
};

/* llvm::sys::getHostCPUName() */
__attribute__((visibility("default"))) struct name host_name(void) __asm__("_ZN4llvm3sys14getHostCPUNameEv");
struct name host_name(void) { return (struct name){"skylake", sizeof "skylake" - 1}; }
