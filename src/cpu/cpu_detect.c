/* What the machine is and can do. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

#if defined(DARTLM_AVX2)
#if defined(_MSC_VER)
#include <intrin.h>
static bool cpu_id(uint32_t leaf, uint32_t registers[4])
{
    int found[4];
    __cpuid(found, (int)(leaf & 0x80000000u));
    if ((uint32_t)found[0] < leaf) return false;
    __cpuidex(found, (int)leaf, 0);
    memcpy(registers, found, sizeof found);
    return true;
}
static uint64_t enabled_state(void) { return _xgetbv(0); }
#else
#include <cpuid.h>
static bool cpu_id(uint32_t leaf, uint32_t registers[4])
{
    return __get_cpuid_count(leaf, 0, &registers[0], &registers[1], &registers[2], &registers[3]) != 0;
}
static uint64_t enabled_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

bool cpu_detect_avx2(void)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, f16c = 1u << 29, needed = fma | osxsave | f16c;
    uint32_t registers[4];
    if (!cpu_id(1, registers) || (registers[2] & needed) != needed) return false;
    if ((enabled_state() & 6) != 6) return false; /* the system saves the upper halves of vectors */
    return cpu_id(7, registers) && (registers[1] & 1u << 5) != 0;
}

void cpu_detect_name(char *name, size_t size)
{
    uint32_t text[13] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        if (!cpu_id(0x80000002u + i, text + 4 * i)) {
            snprintf(name, size, "CPU");
            return;
        }
    }
    const char *from = (const char *)text;
    while (*from == ' ') from++;
    snprintf(name, size, "%s", from);
    for (size_t n = strlen(name); n > 0 && name[n - 1] == ' '; n--) name[n - 1] = '\0';
    if (name[0] == '\0') snprintf(name, size, "CPU");
}
#else
bool cpu_detect_avx2(void) { return false; }
void cpu_detect_name(char *name, size_t size) { snprintf(name, size, "CPU"); }
#endif
