#!/usr/bin/env python3
"""tools/lm-corpus on packages made here, and tools/lm-needles: lm_corpus.py DARTLM. What they take and drop, equal bytes for equal
seeds, and training and a test of recall on it."""
import csv
import gzip
import hashlib
import importlib.util
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

NEEDLES = pathlib.Path(__file__).resolve().parent.parent / "tools/lm-needles"
TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools/lm-corpus"
PLACES = {  # a package, a path that is taken from it
    "linux-doc-6.1": "usr/share/doc/linux-doc-6.1/Documentation/a.rst.gz",
    "perl-doc": "usr/share/perl/pod/a.pod",
    "python3.11-doc": "usr/share/doc/python3.11/html/_sources/a.rst.txt",
    "postgresql-doc-15": "usr/share/doc/postgresql-doc-15/html/a.html",
    "anarchism": "usr/share/doc/anarchism/markdown/a.md",
    "debian-reference-en": "usr/share/debian-reference/ch01.en.html",
    "manpages": "usr/share/man/man7/a.7.gz",
    "manpages-dev": "usr/share/man/man3/a.3.gz",
    "dict-gcide": "usr/share/dictd/gcide.dict.dz",
    "dict-foldoc": "usr/share/dictd/foldoc.dict.dz",
    "dict-jargon": "usr/share/dictd/jargon.dict.dz",
}

WIDE = {  # the same of --wide
    "apache2-doc": "usr/share/doc/apache2-doc/manual/en/a.html",
    "bash-doc": "usr/share/doc/bash/bashref.html",
    "clang-14-doc": "usr/share/doc/clang-14/html/_sources/a.txt",
    "cmake-doc": "usr/share/doc/cmake-data/html/_sources/a.txt",
    "debian-handbook": "usr/share/doc/debian-handbook/html/en-US/a.html",
    "debian-policy": "usr/share/doc/debian-policy/policy.html/a.html",
    "developers-reference": "usr/share/developers-reference/a.html",
    "dict-wn": "usr/share/dictd/wn.dict.dz",
    "fortunes": "usr/share/games/fortunes/art",
    "freebsd-manpages": "usr/share/man/man2/a.2freebsd.gz",
    "git-doc": "usr/share/doc/git-doc/a.html",
    "gnome-user-docs": "usr/share/help/C/a.page",
    "libboost1.74-doc": "usr/share/doc/libboost1.74-doc/doc/html/a.html",
    "libglib2.0-doc": "usr/share/gtk-doc/html/gio/a.html",
    "libgtk-3-doc": "usr/share/gtk-doc/html/gdk3/a.html",
    "llvm-14-doc": "usr/share/doc/llvm-14-doc/html/_sources/a.txt",
    "maxima-doc": "usr/share/doc/maxima-doc/html/a.html",
    "nodejs-doc": "usr/share/doc/nodejs/api/a.md.gz",
    "octave-doc": "usr/share/doc/octave/octave.html/a.html",
    "python-django-doc": "usr/share/doc/python-django-doc/html/a.html",
    "sqlite3-doc": "usr/share/doc/sqlite3/a.html",
    "tcl8.6-doc": "usr/share/man/man3/a.3tcl.gz",
    "vim-runtime": "usr/share/vim/vim90/doc/a.txt",
    "zsh-doc": "usr/share/doc/zsh-common/html/a.html",
    "emacs-el": "usr/share/emacs/28.2/lisp/a.el.gz",
    "libpython3.11-stdlib": "usr/lib/python3.11/a.py",
    "perl-modules-5.36": "usr/share/perl/5.36.0/a.pm",
    "python3-django": "usr/lib/python3/dist-packages/django/a.py",
    "python3-sympy": "usr/lib/python3/dist-packages/sympy/a.py",
}


def prose(rng):
    return "".join(rng.choice("abcdefgh \n\u00e9") for _ in range(2000))


def package(folder, name, files):
    root = folder / "root" / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1-2\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
                                         "Description: test\n")
    for path, text in files.items():
        data = text.encode()
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(gzip.compress(data) if path.endswith((".gz", ".dz")) else data)
    (folder / "debs").mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", root, folder / "debs" / f"{name}_1-2_all.deb"], check=True, capture_output=True)


def run(*arguments):
    return subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True)


def shards(folder):
    """The documents of all shards, as bytes, in order."""
    found = []
    for path in sorted(folder.glob("corpus-*.safetensors")):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        assert header["__metadata__"] == {"vocabulary": "257", "end": "256"}, header
        tokens = struct.unpack(f"<{header['tokens']['shape'][0]}H", data[8 + length:])
        assert tokens[-1] == 256 and max(tokens) == 256
        document = []
        for token in tokens:
            if token == 256:
                found.append(bytes(document))
                document = []
            else:
                document.append(token)
    return found


def main():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        texts = {package_name: prose(rng) for package_name in PLACES}
        for package_name, path in PLACES.items():
            text = texts[package_name]
            if path.endswith(".html"):
                words = text.replace("\n", " ").strip()
                texts[package_name] = words + "\n"
                text = f"<html><head><title>no</title></head><body><script>no()</script><p>{words}</p></body></html>"
            elif path.endswith(".dz"):
                texts[package_name] = text + "\n"
            files = {path: text}
            if package_name == "perl-doc":  # equal to another, too short, of a kind that is not wanted
                files |= {"usr/share/perl/pod/b.pod": text, "usr/share/perl/pod/c.pod": "short", "usr/share/perl/d.txt": prose(rng)}
            package(folder, package_name, files)

        done = run(folder / "one", "--packages", folder / "debs")
        assert done.returncode == 0, (done.stdout, done.stderr)
        documents = shards(folder / "one")
        assert sorted(documents) == sorted(text.encode() for text in texts.values()), len(documents)
        lines = list(csv.DictReader((folder / "one/sources.csv").open()))
        assert [line["name"] for line in lines[:-1]] == list(PLACES) and all(line["documents"] == "1" for line in lines[:-1]), lines
        assert lines[-1]["sha256"] == hashlib.sha256((folder / "one/corpus-00.safetensors").read_bytes()).hexdigest()

        run(folder / "two", "--packages", folder / "debs", "--shard-bytes", "5000")
        assert shards(folder / "two") == documents and len(list((folder / "two").glob("corpus-*"))) > 3
        run(folder / "other", "--packages", folder / "debs", "--seed", "2")
        assert shards(folder / "other") != documents and sorted(shards(folder / "other")) == sorted(documents)
        run(folder / "few", "--packages", folder / "debs", "--limit", "5000")
        assert shards(folder / "few") == documents[:len(shards(folder / "few"))] and 0 < len(shards(folder / "few")) < 5

        if importlib.util.find_spec("tokenizers"):
            text_shards(sys.argv[1], folder, texts)
        else:
            print("NOT RUN: --vocabulary: the Python package tokenizers is not installed")
        assert "not empty" in run(folder / "one", "--packages", folder / "debs").stderr
        package(folder / "empty", "perl-doc", {"usr/share/nothing": "x"})
        (folder / "empty/debs/perl-doc_1-2_all.deb").replace(folder / "debs/perl-doc_1-2_all.deb")
        assert "has no document" in run(folder / "none", "--packages", folder / "debs").stderr

        data = [word for path in sorted((folder / "two").glob("corpus-*")) for word in ("--data", path)]
        step = subprocess.run([sys.argv[1], "train", "lm", *data, folder / "model", "--device", "cpu",
                               "--length", "64", "--width", "32", "--layers", "1", "--batch-tokens", "256", "--epochs", "1", "--separate"],
                              capture_output=True, text=True)
        assert step.returncode == 0, (step.stdout, step.stderr)
        needles(sys.argv[1], folder)


def text_shards(program, folder, texts):
    """Shards of text and their tokenizer: --wide takes more packages, every document is there once, and `dartlm tokenize` ends each."""
    rng = random.Random(5)
    texts = dict(texts)
    for name, path in WIDE.items():
        texts[name] = prose(rng).replace("\n", " ").strip() + "\n"
        files = {path: texts[name]} | ({path.replace("/a.", "/b."): "<|endoftext|>" + prose(rng)} if name == "emacs-el" else {})
        package(folder, name, files)
        texts[name] += "\n" if name in ("dict-wn", "fortunes") else ""  # behind the last article
    done = run(folder / "text", "--packages", folder / "debs", "--wide", "--vocabulary", "300")
    assert done.returncode == 0, (done.stdout, done.stderr)
    documents = (folder / "text/corpus-00.txt").read_text().split("<|endoftext|>")
    assert sorted(documents) == sorted(texts.values()), (len(documents), len(texts))
    subprocess.run([program, "tokenize", "--tokenizer", folder / "text", folder / "text/corpus-00.txt", "--out", folder / "tokens"], check=True)
    data = (folder / "tokens").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    tokens = struct.unpack(f"<{header['tokens']['shape'][0]}H", data[8 + length:])
    assert header["__metadata__"]["vocabulary"] == "300" and tokens.count(0) == len(documents) and tokens[-1] == 0


def needles(program, folder):
    """Both stretches lie where they should, and `eval mqar` takes the file."""
    shard, out = next((folder / "two").glob("corpus-*")), folder / "needles"
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        subprocess.run([NEEDLES, shard, f"{out}-{name}", "--length", "100", "--distance", "40", "--sequences", "9", "--seed", str(seed)], check=True)
    data = pathlib.Path(f"{out}-a").read_bytes()
    assert data == pathlib.Path(f"{out}-b").read_bytes() != pathlib.Path(f"{out}-c").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    begin = header["query_pos"]["data_offsets"][0] + 8 + length
    ids = struct.unpack("<900i", data[8 + length:8 + length + 3600])
    places, targets = (struct.unpack("<108i", data[begin + offset:begin + offset + 432]) for offset in (0, 432))
    assert list(header) == ["input_ids", "query_pos", "target"] and header["target"]["shape"] == [9, 12]
    for b in range(9):
        row = bytes(ids[100 * b:100 * b + 100])
        assert row[79:] == row[39:60] and row[79:84] == b"\nKEY=" and row[84:].islower() and row[84:].isalpha(), row
        assert list(places[12 * b:12 * b + 12]) == list(range(87, 99)) and bytes(targets[12 * b:12 * b + 12]) == row[88:]
    wide = random.Random(3).choices(range(300, 330), k=1000)
    header = json.dumps({"__metadata__": {"vocabulary": "330"}, "tokens": {"dtype": "U16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
    (folder / "wide").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<1000H", *wide))
    subprocess.run([NEEDLES, folder / "wide", f"{out}-wide", "--length", "100", "--distance", "40", "--sequences", "9"], check=True)
    data = pathlib.Path(f"{out}-wide").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    ids, places = (struct.unpack(f"<{count}i", data[8 + length + at:8 + length + at + 4 * count]) for at, count in ((0, 900), (3600, 108)))
    for b in range(9):
        row = ids[100 * b:100 * b + 100]
        assert row[84:] == row[44:60] and min(row) >= 300 and places[12 * b:12 * b + 12] == tuple(range(87, 99)), row
    assert subprocess.run([NEEDLES, shard, folder / "x", "--length", "100", "--distance", "90"], capture_output=True).returncode == 2
    asked = subprocess.run([program, "eval", "mqar", "--model", folder / "model", "--data", f"{out}-a", "--device", "cpu"], capture_output=True,
                           text=True)
    assert asked.returncode == 0 and "of 108 right" in asked.stdout, (asked.stdout, asked.stderr)


if __name__ == "__main__":
    main()
