#!/usr/bin/env python3
"""Makes a tokenizer of texts: make_tokenizer.py OUT --vocabulary N FILE ...

Byte-level BPE with GPT-NeoX's settings and N ids, the end of text "<|endoftext|>" among them: OUT/tokenizer.json and OUT/tokenizer_config.json, for
`dartlm train lm --tokenizer OUT`. It needs the Python package `tokenizers`, which tools/setup.sh --test puts into .deps/python.
"""
import argparse
import json
import pathlib
import sys

END = "<|endoftext|>"


def make(vocabulary, texts, out):
    """The tokenizer of an iterator of texts. Ends the program where the texts give fewer ids."""
    import tokenizers as hf
    tokenizer = hf.Tokenizer(hf.models.BPE())
    tokenizer.normalizer = hf.normalizers.NFC()
    tokenizer.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.post_processor = hf.processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.decoder = hf.decoders.ByteLevel(add_prefix_space=False, trim_offsets=True)
    trainer = hf.trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=[END], show_progress=False, max_token_length=32,
                                     initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        sys.exit(f"make_tokenizer: the text gives {tokenizer.get_vocab_size()} ids, --vocabulary is {vocabulary}")
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--vocabulary", type=int, required=True, help="ids, from 257 to 1048576")
    options = parser.parse_args()
    if not 257 <= options.vocabulary <= 1 << 20:
        parser.error("--vocabulary is from 257 to 1048576")
    make(options.vocabulary, (path.read_text(encoding="utf-8") for path in options.files), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
