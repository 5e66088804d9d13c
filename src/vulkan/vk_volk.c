/* The one translation unit with volk's definitions. */
#define VOLK_IMPLEMENTATION
#include <volk.h>
