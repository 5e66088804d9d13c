/* Which products of cooperative matrices a driver offers that the rows with matrices can be made of. */
#include "vk.h"

#include <stdlib.h>

/* A GPU whose products have fewer sums (8 x 8: Intel before Xe2) has 4 KiB of registers for a subgroup, into which not even tiles of
 * 16 x 16 f32 sums fit beside their operands (docs/compilers.md). The rows without matrices fit. */
#define LEAST_SUMS 128u

/* The largest product of that operand type with f32 sums among those that tiles of 16 can be made of, and of at least as many sums. */
static vk_matrix find_matrix(const VkCooperativeMatrixPropertiesKHR *list, uint32_t count, VkComponentTypeKHR type, uint32_t least_sums)
{
    vk_matrix best = {0, 0, 0};
    for (uint32_t i = 0; i < count; i++) {
        const VkCooperativeMatrixPropertiesKHR *p = &list[i];
        if (p->scope != VK_SCOPE_SUBGROUP_KHR || p->saturatingAccumulation || p->AType != type || p->BType != type ||
            p->CType != VK_COMPONENT_TYPE_FLOAT32_KHR || p->ResultType != VK_COMPONENT_TYPE_FLOAT32_KHR)
            continue;
        if (p->MSize < 8 || p->NSize < 8 || p->KSize < 8 || 16 % p->MSize != 0 || 16 % p->NSize != 0 || 16 % p->KSize != 0)
            continue;
        if (p->MSize * p->NSize < least_sums) continue;
        if (p->MSize * p->NSize * p->KSize > best.M * best.N * best.K)
            best = (vk_matrix){p->MSize, p->NSize, p->KSize};
    }
    return best;
}

static bool is_16(vk_matrix size) { return size.M == 16 && size.N == 16 && size.K == 16; }

/* Is there a product of 16 x 16 x 16 with f16 sums? Rows of DART_CAP_MATRIX2 keep f16 in matrices of that use. */
static bool has_f16_sums(const VkCooperativeMatrixPropertiesKHR *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const VkCooperativeMatrixPropertiesKHR *p = &list[i];
        if (p->scope == VK_SCOPE_SUBGROUP_KHR && is_16((vk_matrix){p->MSize, p->NSize, p->KSize}) &&
            p->AType == VK_COMPONENT_TYPE_FLOAT16_KHR && p->CType == VK_COMPONENT_TYPE_FLOAT16_KHR)
            return true;
    }
    return false;
}

bool vk_matrices_find(const vk_instance *instance, vk_adapter *adapter, bool bfloat16)
{
    uint32_t count = 0;
    if (instance->vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR == NULL ||
        instance->vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(adapter->handle, &count, NULL) != VK_SUCCESS || count == 0)
        return false;
    VkCooperativeMatrixPropertiesKHR *list = calloc(count, sizeof(*list));
    if (list == NULL) return false;
    bool sixteen = false;
    for (uint32_t i = 0; i < count; i++) list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (instance->vk.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR(adapter->handle, &count, list) >= VK_SUCCESS) {
        const uint32_t least_sums = adapter->info.type == DART_DEVICE_CPU ? 0 : LEAST_SUMS;
        adapter->matrix_f16 = find_matrix(list, count, VK_COMPONENT_TYPE_FLOAT16_KHR, least_sums);
        if (bfloat16) adapter->matrix_bf16 = find_matrix(list, count, VK_COMPONENT_TYPE_BFLOAT16_KHR, least_sums);
        sixteen = adapter->matrix_subgroup == 32 && is_16(adapter->matrix_f16) &&
                  (adapter->matrix_bf16.M == 0 || is_16(adapter->matrix_bf16)) && has_f16_sums(list, count);
    }
    free(list);
    return sixteen;
}
