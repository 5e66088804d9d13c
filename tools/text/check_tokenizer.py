#!/usr/bin/env python3
"""Compares dartlm's tokenizer with pip `tokenizers`: check_tokenizer.py [options] LIBRARY TOKENIZER_JSON [TEXT...].

LIBRARY is libdartlm.so. Strings of four generators (pieces of text with added tokens, the low planes, any code point, a mixture) are encoded with
special tokens and without, framed by the post-processor and not; ids at random are decoded at once and in groups; each TEXT, a file, is encoded
whole. The first difference is made as short as it will go and shown. The strings are others in each run; --seed with the number that is printed first
gives them again. Ends with 1 after a difference, with 77 where `tokenizers` is not installed.
"""
import argparse
import ctypes
import json
import os
import pathlib
import random
import sys
import tempfile
import time

try:
    import tokenizers
except ImportError:
    tokenizers = None


class TokenList(ctypes.Structure):
    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class EncodeOptions(ctypes.Structure):
    _fields_ = [("plain", ctypes.c_bool), ("frame", ctypes.c_bool), ("go_on", ctypes.c_void_p), ("user", ctypes.c_void_p)]


class TextOptions(ctypes.Structure):
    _fields_ = [("with_special", ctypes.c_bool), ("stops", ctypes.POINTER(ctypes.c_char_p)), ("stops_count", ctypes.c_uint32)]


class Tokenizer:
    """dartlm's, through its C functions."""

    def __init__(self, library, path):
        self.library, self.handle, self.list = ctypes.CDLL(str(library.resolve())), ctypes.c_void_p(), TokenList()
        error = ctypes.create_string_buffer(640)
        if self.library.dart_tokenizer_open(str(path).encode(), ctypes.byref(self.handle), error, ctypes.c_size_t(640)) != 0:
            sys.exit(f"check_tokenizer: {error.value.decode()}")

    def must(self, status):
        if status != 0:
            error = ctypes.create_string_buffer(640)
            self.library.dart_tokenizer_error(self.handle, error, ctypes.c_size_t(640))
            raise RuntimeError(error.value.decode())

    def encode(self, text, plain, frame):
        data = text.encode()
        self.list.count = 0
        self.must(self.library.dart_tokenizer_encode(self.handle, data, ctypes.c_size_t(len(data)), ctypes.byref(EncodeOptions(plain, frame)),
                                                     ctypes.byref(self.list)))
        return self.list.ids[:self.list.count]

    def decode(self, ids, special, most):
        """Text of ids, in groups of at most `most`."""
        stream, text, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        self.must(self.library.dart_text_stream_create(self.handle, ctypes.byref(TextOptions(special, None, 0)), ctypes.byref(stream)))
        parts = []
        while ids:
            some = random.randrange(1, most + 1)
            group, ids = ids[:some], ids[some:]
            self.must(self.library.dart_text_stream_feed(stream, (ctypes.c_int32 * len(group))(*group), ctypes.c_size_t(len(group)),
                                                         ctypes.byref(text), ctypes.byref(count), None))
            parts.append(ctypes.string_at(text, count.value).decode())  # fails where a character is split
        self.must(self.library.dart_text_stream_end(stream, ctypes.byref(text), ctypes.byref(count)))
        parts.append(ctypes.string_at(text, count.value).decode())
        self.library.dart_text_stream_destroy(ctypes.byref(stream))
        return "".join(parts)


def reference_encode(reference, text, plain, frame):
    reference.encode_special_tokens = plain
    return reference.encode(text, add_special_tokens=frame).ids


# ---- Strings ----

PIECES = [
    "<|im_start|", "éx", "e\u0301y", "'s", "'S", "'re", "'VE", "'ll", "'LL", "'\u017f", "'", "’s", " ", "  ", "   ", "\t", "\n",
    "\r\n", "\r", "\n\n", "\u00a0", "\u2028", "\u2029", "\u3000", "\u0085", "\u200b", "\ufeff", "the", "The", "user", "tokens",
    "Führer", "Fu\u0308hrer", "é", "e\u0301", "a\u0327\u0301", "\u0301", "1", "12", "123", "1234567", "½", "²", "Ⅷ", "٣", "word",
    "don't", "I'm", "...", "!?", "<", ">", "|", "<|", "|>", "_", "-", "--", "#", "日本語", "漢", "한국어", "\u1112\u1161\u11ab", "각",
    "\u0915\u093c", "क़", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "العربية", "Привет",
    "ß", "ſ", "ﬁ", "K", "Å", "\u0344", "\u0f73", "\u1e9b\u0323", "\0", "\x01", "\x7f", "\u0378", "\U0010ffff", "\ufffd", "\ue000",
    "aaaa", "AAAAAAAAAAAAAAAA", "supercalifragilisticexpialidocious", "def f(x):\n    return x", "{\"a\": 1}",
    "https://example.org/?q=1&r=2",
]


def any_point(random_):
    while True:
        point = random_.randrange(0x110000)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def low_point(random_):
    point = random_.choice((random_.randrange(0x80), random_.randrange(0x250), random_.randrange(0x3100), random_.randrange(0x300, 0x370), 0x20))
    return chr(point)


def string(random_, specials):
    kind, count = random_.randrange(4), random_.choice((1, 2, 4, 8, 16, 40))
    if random_.randrange(200) == 0:
        count *= 20
    pieces = {
        0: lambda: random_.choice(PIECES) if random_.random() < 0.8 or not specials else random_.choice(specials),
        1: lambda: low_point(random_),
        2: lambda: any_point(random_),
    }
    if kind < 3:
        return "".join(pieces[kind]() for _ in range(count))
    text = "".join(pieces[random_.randrange(3)]() for _ in range(count))
    at = random_.randrange(len(text) + 1)
    return text[at:] + text[:random_.randrange(len(text) + 1)]


def shorten(text, differs):
    """A short part of the text that still differs."""
    step = len(text) // 2
    while step > 0:
        at = 0
        while at < len(text):
            if differs(text[:at] + text[at + step:]):
                text = text[:at] + text[at + step:]
            else:
                at += step
        step //= 2
    return text


# ---- Comparisons ----

def compare_text(ours, reference, text, plain, frame):
    def differs(part):
        return ours.encode(part, plain, frame) != reference_encode(reference, part, plain, frame)

    if not differs(text):
        return True
    text = shorten(text, differs)
    print(f"different: {text!r}{', plain' if plain else ''}{', framed' if frame else ''}: {ours.encode(text, plain, frame)}, "
          f"the reference has {reference_encode(reference, text, plain, frame)}")
    return False


def compare_ids(ours, reference, ids, special):
    expected = reference.decode(ids, skip_special_tokens=not special)
    for most in (len(ids), 1, 3):
        got = ours.decode(ids, special, most)
        if got != expected:
            print(f"different: ids {ids}{', with special tokens' if special else ''}: {got!r}, the reference has {expected!r}")
            return False
    return True


def compare(path, options):
    """All strings, ids and texts. Whether nothing differs."""
    ours, reference = Tokenizer(options.library, path), tokenizers.Tokenizer.from_file(str(path))
    specials = [token.content for token in reference.get_added_tokens_decoder().values()]
    random_, size = random.Random(options.seed), reference.get_vocab_size()
    random.seed(options.seed)
    for _ in range(options.fuzz):
        if not compare_text(ours, reference, string(random_, specials), random_.randrange(4) == 0, random_.randrange(4) == 0):
            return False
    for _ in range(options.fuzz // 10):
        ids = [random_.randrange(size + 3) for _ in range(random_.randrange(1, 30))]
        if not compare_ids(ours, reference, ids, random_.randrange(2) == 0):
            return False
    for text_path in options.texts:
        text = text_path.read_text(encoding="utf-8", errors="replace")
        ids = ours.encode(text, False, False)
        if ids != reference_encode(reference, text, False, False):
            print(f"different: {text_path}")
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fuzz", type=int, default=20000, help="strings, and a tenth as many lists of ids; by default 20000")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DARTLM_DRAW", time.time_ns() // 1000000 % 1000000000)),
                        help="by default DARTLM_DRAW of the environment, or drawn by the time")
    parser.add_argument("--variants", type=pathlib.Path,
                        help="like tests/data/tokenizer/golden.json: names, and the keys of TOKENIZER_JSON that each changes; all are compared")
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("texts", type=pathlib.Path, nargs="*")
    options = parser.parse_args()
    if tokenizers is None:
        print("NOT RUN: pip tokenizers is not installed")
        return 77
    print(f"seed {options.seed}", flush=True)
    variants = {"as it is": {}}
    if options.variants is not None:
        variants = json.loads(options.variants.read_text(encoding="utf-8"))["variants"]
    with tempfile.TemporaryDirectory() as work:
        for name, keys in variants.items():
            path = options.tokenizer
            if keys:
                path = pathlib.Path(work) / "tokenizer.json"
                path.write_text(json.dumps({**json.loads(options.tokenizer.read_text(encoding="utf-8")), **keys}), encoding="utf-8")
            if not compare(path, options):
                print(f"variant: {name}")
                return 1
    print(f"tokenizers {tokenizers.__version__}: {', '.join(variants)}: {options.fuzz} strings, {options.fuzz // 10} lists of ids and "
          f"{len(options.texts)} files each, 0 differ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
