/* Files as constants.
 *
 *   extern const uint32_t words[4];
 *   BASE_EMBED(words, "/folder/file", 32, 16)     words are bytes 32 to 47 of that file
 *
 * The assembler copies the bytes, as they are, to an address that is a multiple of 16. The same as an array of numbers takes a compiler a second
 * for each megabyte. Only made files use it (tools/build), and contain nothing else: code is in section .text afterwards. For GCC and Clang, ELF and
 * COFF. */
#ifndef DARTLM_BASE_EMBED_H
#define DARTLM_BASE_EMBED_H

#ifdef _WIN32
#define BASE_EMBED_PLACE(name) ".section .rdata,\"dr\"\n"
#else
#define BASE_EMBED_PLACE(name) ".section .rodata\n.hidden " #name "\n.type " #name ", %object\n"
#endif

#define BASE_EMBED(name, file, at, bytes) \
    __asm__(BASE_EMBED_PLACE(name) ".globl " #name "\n.balign 16\n" #name ":\n.incbin \"" file "\", " #at ", " #bytes "\n.text\n");

#endif
