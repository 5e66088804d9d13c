/* A Vulkan driver for tests: makes and counts objects, computes nothing, and fails where it is told to. What a failed call was to write is
 * garbage afterwards, as Vulkan allows: destroying that is noted. Copies between buffers happen when they are recorded. Memory and semaphores go out
 * and come in by descriptors, which are real ones of nothing. */
#ifndef DARTLM_TESTS_DRIVER_H
#define DARTLM_TESTS_DRIVER_H

#include <stdbool.h>
#include <volk.h>

typedef struct driver_options {
    bool discrete;    /* buffers lie where the host reads and writes through copies */
    uint32_t fail_at; /* the n-th call that can give `gives`; 0: none */
    VkResult gives;
    const char *extension; /* of devices, beside those for descriptors; NULL: none */
    bool validation;  /* Khronos' layer is there */
    bool matrices;    /* cooperative matrices, whose products are wrong */
    uint32_t graphics_family; /* of two families, this one has graphics; 0: there is one family, without */
    bool portability; /* not all of Vulkan, as on macOS: hidden, as loaders do, from instances that do not ask for such; see driver_misuse */
    void (*change)(VkPhysicalDeviceProperties *properties); /* makes another device of it; NULL: one with more than is needed */
    VkQueueFlags queues; /* of the one family; 0: compute */
} driver_options;

/* Where objects get memory from: calloc and free. A test that makes those of the library fail gives others. */
extern void *(*driver_calloc)(size_t count, size_t size);
extern void (*driver_free)(void *memory);
/* Begins anew: forgets earlier failures, misuse and objects. */
void driver_set(const driver_options *options);
/* The call that failed; NULL: none has. */
const char *driver_failed(void);
/* Objects that are made while this is set are the host's: only the host destroys them. */
void driver_host(bool host);
/* Objects alive: the host's, or the library's, memory allocations among them. */
uint32_t driver_alive(bool of_host);
/* The first misuse: an object destroyed twice, by the wrong call or by whom it does not belong to; a device of a driver with `portability` made
 * without its extension, which Vulkan demands; NULL: none. */
const char *driver_misuse(void);
/* A program with a device of this driver, which dartlm may adopt. Of what it makes nothing can fail. */
enum { DRIVER_PROGRAM_BYTES = 8192, DRIVER_PROGRAM_OBJECTS = 5 }; /* the size of its buffer; what it has alive */
typedef struct driver_program {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkBuffer buffer; /* bound to `memory` */
    VkDeviceMemory memory;
    VkSemaphore semaphore;
    VkCommandBuffer commands;
} driver_program;
void driver_program_open(driver_program *program);
void driver_program_close(const driver_program *program);
/* The family of the queue of the last device that was made. */
uint32_t driver_family(void);
/* The global priority of the queue of the last device that was made; 0: none was asked for. */
uint32_t driver_priority(void);
VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL driver_get(VkInstance instance, const char *name);

#endif
