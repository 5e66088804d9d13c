/* Letters as bits. */
#ifndef DESKTOP_FONT_H
#define DESKTOP_FONT_H

#include <stdint.h>

enum { FONT_PITCH = 6, FONT_HEIGHT = 8 }; /* points from one letter to the next, and of a line */

/* Bit 8 y + x of the 64: point x of line y. */
void font_bits(char c, uint32_t bits[2]);

#endif
