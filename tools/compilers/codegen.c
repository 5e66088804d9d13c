/* Has Mesa's lavapipe generate code the fast way, preloaded by tools/with-vulkan.sh: LLVM's passes run as they do, but instructions are selected and
 * registers allocated as clang -O0 has it. Tests compile each shader for seconds and run it for milliseconds; they compile in half to two thirds of
 * the time (docs/lab/2026-11-25-time-of-tests.md). GALLIVM_PERF=nopt leaves out the passes as well, after which there is more to select for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SYMBOL "_ZN4llvm13EngineBuilder12selectTargetEv"
enum { JIT = 1, NONE = 0, DEFAULT = 2 }; /* llvm::EngineKind::Kind and llvm::CodeGenOptLevel */

struct builder { /* how llvm::EngineBuilder begins */
    void *module;
    int kind;
    void *error;
    int level;
};

static int find_llvm(struct dl_phdr_info *info, size_t bytes, void *found)
{
    (void)bytes;
    if (strstr(info->dlpi_name, "/libLLVM") == NULL) return 0;
    *(const char **)found = info->dlpi_name;
    return 1;
}

/* llvm::EngineBuilder::selectTarget(). The driver has loaded LLVM for itself alone, so that the next of that name is not in sight. */
__attribute__((visibility("default"))) void *select_target(struct builder *self) __asm__(SYMBOL);
void *select_target(struct builder *self)
{
    const char *name = NULL;
    dl_iterate_phdr(find_llvm, &name);
    void *const llvm = name != NULL ? dlopen(name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *(*real)(struct builder *) = NULL;
    if (llvm != NULL) *(void **)&real = dlsym(llvm, SYMBOL);
    if (real == NULL) abort();
    if (self->kind == JIT && self->level == DEFAULT) self->level = NONE;
    return real(self);
}
