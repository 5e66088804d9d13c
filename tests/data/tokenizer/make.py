#!/usr/bin/env python3
"""Made the files of this folder with pip tokenizers 0.23.3: make.py TEXT....

tokenizer.json has 1,000 tokens trained on the texts (README.md and docs/ of this project), in the structure of GPT-NeoX: NFC, ByteLevel, two special
tokens, runs of spaces as added tokens. golden.json has variants (keys of tokenizer.json that differ) and, for texts, the reference's ids in each.
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).parent
END, PADDING = "<|endoftext|>", "<|padding|>"
RUNS = range(8, 1, -1)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = ["", "Hello world", "The state of a head is an N x P matrix.", " ", "  ", "   x", " " * 25 + "x", "v   ", "a\tb\n\n  c\r\n d \n", "\u2029x\u2028 y",
         "Fu\u0308hrer Führer", "I'm you'LL they've we'Re it\u017f'\u017f don't 'tis x's'", "12 123 1234567 ½²Ⅷ٣", f"{END}user", f" {END} {PADDING}{END}",
         "<|endoftext", "<|endoftext||>", f"x{END}\u0301y", "日本語の文 漢字", "한국어 \u1112\u1161\u11ab\u1100\u1161\u11a8", "\u0915\u093c क़ ﬁ Å K",
         "e\u0327\u0301\u0323 a\u0315\u0300\u05ae\u0062", "\u0344\u0f73\u0958\ufb1d", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
         "\0\x01\x7f\x80\u00a0\u0085\ufeff\u200b", "\U0010ffff\u0378\U00011938", "a\u0301" * 40, "a" + "\u0301\u0316\u0327" * 30, "a" * 1100, "=" * 150 + "-" * 200,
         "".join(chr(97 + i * i % 26) for i in range(1100)), "#include <stdio.h>\nint main(void) { return 0; } // ok...\n",
         "| `DARTLM_VULKAN` | `ON` | the Vulkan backend |", "...!?\n\n\n(x)\r\n\r\n", "\n \n  \n", "naïve café — “quotes” … and so on", "\u1e9b\u0323 \u212b \u2126"]


def variants():
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    frame = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": END, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                                                      {"SpecialToken": {"id": PADDING, "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {END: {"id": END, "ids": [0], "tokens": [END]}, PADDING: {"id": PADDING, "ids": [1], "tokens": [PADDING]}}}
    return {"neox": {},
            "llama3": {"normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_]},
                       "post_processor": {"type": "Sequence", "processors": [bytes_, frame]}},
            "qwen2": {"pre_tokenizer": {"type": "Sequence",
                                        "pretokenizers": [{**split, "pattern": {"Regex": LLAMA3.replace("{1,3}", "")}}, bytes_]}}}


def train(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1000 - len(RUNS), special_tokens=[END, PADDING], show_progress=False,
                                                             initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in RUNS])
    return tokenizer


def main():
    tokenizer = train([pathlib.Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]])
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    parsed = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    (FOLDER / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": {"__type": "AddedToken", "content": END}, "unk_token": END}) + "\n", encoding="utf-8")
    cases = [{"text": text} for text in TEXTS]
    for name, keys in variants().items():
        variant = Tokenizer.from_str(json.dumps({**parsed, **keys}))
        for case in cases:
            case[name] = variant.encode(case["text"], add_special_tokens=False).ids
            variant.encode_special_tokens = True
            case[f"{name}-plain"] = variant.encode(case["text"], add_special_tokens=True).ids
            variant.encode_special_tokens = False
            case[f"{name}-text"] = variant.decode(case[name], skip_special_tokens=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (FOLDER / "golden.json").write_text(f'{{"variants": {json.dumps(variants())},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
