#!/usr/bin/env python3
"""`dartlm op --backward`: op_backward.py DARTLM DATA_FOLDER (swiftshader | lavapipe | DEVICE_SPEC).

On every device: results and gradients of the gradient fixtures, which another program computed in fp64. On the CPU, too: of every op the
derivative along random directions against differences of what `dartlm op` computes, what it writes for inputs that are optional, and what
it refuses.
"""
import array
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

# Relative L2 of a tensor. The fixtures are rounded to f32; f32 sums of these sizes err by less than 2e-6 (torch: 9e-7).
TOLERANCE = 2e-5
SKIPPED = 77


class NotRun(Exception):
    pass


# ---- Files: name -> (shape, values), values an array of floats ("f") or integers ("i") ----

def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        values = array.array({"F32": "f", "I32": "i"}[entry["dtype"]])
        values.frombytes(data[8 + length + begin:8 + length + end])
        tensors[name] = (entry["shape"], values)
    return tensors, metadata


def write(path, tensors, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    at, parts = 0, []
    for name, (shape, values) in tensors.items():
        part = values.tobytes()
        header[name] = {"dtype": {"f": "F32", "i": "I32"}[values.typecode], "shape": shape, "data_offsets": [at, at + len(part)]}
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def distance(got, want):
    difference = norm = 0.0
    for a, b in zip(got, want):
        if math.isinf(b):  # lse of a token that sees nothing
            if a != b:
                return math.inf
            continue
        difference += (a - b) ** 2
        norm += b * b
    result = math.sqrt(difference) / max(math.sqrt(norm), 1e-300)
    return math.inf if math.isnan(result) else result


# ---- The program ----

class Program:
    def __init__(self, path, device, work):
        self.path, self.work = path, work
        self.prefix, self.options = [], ["--device", device]
        if device in ("swiftshader", "lavapipe"):
            self.prefix = [str(pathlib.Path(__file__).parent / "on-driver.sh"), device, "--validation"]
            self.options = ["--device", "vulkan", "--cache", str(work / "code")]

    def call(self, *arguments):
        """Exit status and everything printed."""
        done = subprocess.run([*self.prefix, self.path, "op", *arguments, *self.options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode == SKIPPED and self.prefix:
            raise NotRun(done.stdout)
        return done.returncode, done.stdout

    def run(self, op, source, *options):
        out = self.work / "out.safetensors"
        status, text = self.call(op, str(source), str(out), *options)
        if status != 0:
            raise AssertionError(f"{op} {' '.join(options)} of {source} ends with {status}: {text}")
        if "warning" in text:
            raise AssertionError(f"{op} {' '.join(options)} of {source}: {text}")
        return read(out)[0]

    def of(self, op, tensors, *options, metadata=None):
        source = self.work / "in.safetensors"
        write(source, tensors, metadata)
        return self.run(op, source, *options)


def compare(what, got, want):
    """Both name -> tensor: the same names, shapes and, nearly, values."""
    if sorted(got) != sorted(want):
        raise AssertionError(f"{what}: tensors are {sorted(got)}, not {sorted(want)}")
    worst = 0.0
    for name, (shape, values) in want.items():
        if got[name][0] != shape:
            raise AssertionError(f"{what}: {name} has shape {got[name][0]}, not {shape}")
        off = distance(got[name][1], values)
        if not off <= TOLERANCE:
            raise AssertionError(f"{what}: {name} is off by {off:.2e}, at most {TOLERANCE:.0e}")
        worst = max(worst, off)
    print(f"  {what}: {len(want)} tensors, largest error {worst:.1e}")


# ---- Fixtures ----

def results(tensors, but=()):
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("out.", "grad.")) and name not in but}


def fixtures(program, data):
    for name in ("grad-ssd/odd", "grad-ssd/even", "grad-ssd/one", "grad-ssd/packed"):
        path = data / f"{name}.safetensors"
        tensors, metadata = read(path)
        compare(name, program.run("ssd", path, "--backward"), results(tensors, ("out.step", "grad.step")))
        # The same from the steps on, with what the file's metadata said as an option.
        inputs = {key: tensor for key, tensor in tensors.items() if "." not in key or key.startswith("up.")}
        inputs["dt"] = tensors["out.step"]
        del inputs["dt_bias"]
        want = results(tensors, ("out.step", "grad.step", "grad.dt_bias"))
        want["grad.dt"] = tensors["grad.step"]
        compare(f"{name} from steps", program.of("ssd", inputs, "--backward", "--dt-is-step", "--chunk-size", metadata["S"]), want)
    for op in ("attention", "sma"):
        for name in (f"grad-{op}/odd", f"grad-{op}/even", f"grad-{op}/packed"):
            path = data / f"{name}.safetensors"
            compare(name, program.run(op, path, "--backward"), results(read(path)[0]))


# ---- Differences ----

def numbers(count, low=-1.0, high=1.0):
    return array.array("f", (random.uniform(low, high) for _ in range(count)))


def tensor(*shape, low=-1.0, high=1.0):
    return list(shape), numbers(math.prod(shape), low, high)


def whole(*values):
    return [len(values)], array.array("i", values)


def rows(*values):
    return [len(values) // 2, 2], array.array("i", values)


def scan(B=2, L=11, H=4, G=2, N=3, P=5):
    inputs = {"x": tensor(B, L, H, P), "dt": tensor(B, L, H, low=-2), "b": tensor(B, L, G, N), "c": tensor(B, L, G, N), "a_log": tensor(H)}
    return inputs, {"dt_bias": tensor(H), "d": tensor(H), "h": tensor(B, H, N, P)}


# op, inputs, results with a gradient that comes in, options
def cases():
    needed, optional = scan()
    yield "ssd", {**needed, **optional}, ("y", "dh", "h"), ("--chunk-size", "4")
    yield "ssd", needed, ("y",), ("--chunk-size", "4")
    yield "ssd", {**needed, **optional, "seq": rows(2, 9, 0, 11)}, ("y", "h"), ("--chunk-size", "4", "--dt-min", "0.3")
    reads = {"q": tensor(2, 11, 2, 3), "e": tensor(2, 11, 2, 5), "c": tensor(2, 11, 2, 3), "dh": tensor(2, 3, 4, 3, 5)}
    yield "sma", reads, ("r",), ("--chunk-size", "4")
    yield "sma", {**reads, "seq": rows(2, 9, 0, 11)}, ("r",), ("--chunk-size", "4", "--eps", "0.01")
    yield "attention", {"q": tensor(2, 9, 4, 6), "k": tensor(2, 9, 2, 6), "v": tensor(2, 9, 2, 6)}, ("o",), ("--scale", "0.7")
    yield "attention", {"q": tensor(2, 9, 4, 6), "k": tensor(2, 9, 2, 6), "v": tensor(2, 9, 2, 6), "seq": rows(0, 9, 0, 5)}, ("o",), ()
    yield "embed", {"ids": whole(4, 0, 2, 4, 4, 1, 0), "weight": tensor(5, 3)}, ("y",), ()
    yield "norm", {"x": tensor(2, 3, 8), "weight": tensor(8)}, ("y",), ("--eps", "0.01")
    gated = {"y": tensor(4, 8), "z": tensor(4, 8), "weight": tensor(8)}
    yield "gated_norm", gated, ("out",), ("--eps", "0.01")
    yield "gated_norm", {**gated, "r": tensor(4, 8), "gate": tensor(4)}, ("out",), ("--eps", "0.01")
    yield "linear", {"x": tensor(2, 3, 5), "weight": tensor(4, 5)}, ("y",), ()
    yield "linear", {"x": tensor(6, 5), "weight": tensor(4, 5), "residual": tensor(6, 4)}, ("y",), ()
    yield "conv", {"x": tensor(2, 7, 3), "weight": tensor(3, 4)}, ("y",), ()
    yield "conv", {"x": tensor(2, 7, 3), "weight": tensor(3, 4), "bias": tensor(3), "seq": rows(0, 7, 0, 4)}, ("y",), ()
    yield "rope", {"x": tensor(2, 5, 2, 6), "seq": rows(3, 5, 0, 4)}, ("y",), ("--base", "50")
    yield "swiglu", {"a": tensor(5, 6), "u": tensor(5, 6)}, ("h",), ()
    cu = {"cu": whole(0, 5, 5, 14)}
    scanned, optional = scan(1, 14)
    yield "ssd", {**scanned, "d": optional["d"], **cu}, ("y", "dh", "h"), ("--chunk-size", "4")
    reads = {"q": tensor(1, 14, 2, 3), "e": tensor(1, 14, 2, 5), "c": tensor(1, 14, 2, 3), "dh": tensor(1, 5, 4, 3, 5)}
    yield "sma", {**reads, **cu}, ("r",), ("--chunk-size", "4")
    yield "attention", {"q": tensor(1, 14, 4, 6), "k": tensor(1, 14, 2, 6), "v": tensor(1, 14, 2, 6), **cu}, ("o",), ()
    yield "conv", {"x": tensor(1, 14, 3), "weight": tensor(3, 4), "bias": tensor(3), **cu}, ("y",), ()
    yield "rope", {"x": tensor(1, 14, 2, 6), **cu}, ("y",), ("--base", "50")
    share = [1], array.array("f", [0.25])
    yield "cross_entropy", {"x": tensor(5, 4), "weight": tensor(6, 4), "targets": whole(2, 0, 5, -1, 2), "share": share}, (), ()


def value(op, outputs, ups):
    """What the gradients are of."""
    if op == "cross_entropy":
        return outputs["loss"][1][0]
    return math.fsum(a * b for name, up in ups.items() for a, b in zip(outputs[name][1], up[1]))


def moved(inputs, name, way, far):
    shape, values = inputs[name]
    return {**inputs, name: (shape, array.array("f", (x + far * v for x, v in zip(values, way))))}


def differences(program):
    """Along a direction of an input, the gradient says what the value changes by. Differences over 2 h err by h^2 times a third derivative and by
    1e-6 / h; inputs lie in (-1, 1), none so close to a limit of the step that it matters."""
    far = 1e-2
    for op, inputs, up_names, options in cases():
        outputs = program.of(op, inputs, *options)
        ups = {name: tensor(*outputs[name][0]) for name in up_names}
        made = program.of(op, {**inputs, **{f"up.{name}": up for name, up in ups.items()}}, "--backward", *options)
        parameters = [name for name in inputs if name != "share" and inputs[name][1].typecode == "f"]
        expected = [f"out.{name}" for name in outputs] + [f"grad.{name}" for name in parameters]
        if sorted(made) != sorted(expected):
            raise AssertionError(f"{op}: results are {sorted(made)}, not {sorted(expected)}")
        for name, (shape, values) in outputs.items():
            if made[f"out.{name}"] != (shape, values):
                raise AssertionError(f"{op}: out.{name} is not what the op computes without --backward")
        worst = 0.0
        for name in parameters:
            way = numbers(len(inputs[name][1]))
            change = (value(op, program.of(op, moved(inputs, name, way, far), *options), ups) -
                      value(op, program.of(op, moved(inputs, name, way, -far), *options), ups)) / (2 * far)
            terms = [g * v for g, v in zip(made[f"grad.{name}"][1], way)]
            off = abs(change - math.fsum(terms)) / (1e-300 + math.fsum(abs(term) for term in terms))
            if not off <= 1e-2:
                raise AssertionError(f"{op} {' '.join(inputs)}: along grad.{name} {math.fsum(terms):.6g}, by differences {change:.6g}")
            worst = max(worst, off)
        print(f"  {op} of {' '.join(inputs)}: largest difference {worst:.1e}")


# ---- Documents in a row ----

def document(tensors, names, begin, end):
    """The rows of one document of the tensors of these names; others are left as they are."""
    def rows_of(shape, values):
        width = math.prod(shape[2:])
        return [1, end - begin, *shape[2:]], values[begin * width:end * width]
    return {name: rows_of(*tensor) if name in names else tensor for name, tensor in tensors.items()}


def packed(program, data):
    """What a document's tokens give is what they give alone, bit by bit; the state is the last document's."""
    options = ("--backward", "--plan", "chunked")
    for op, results, last in (("ssd", ("out.y", "grad.x", "grad.dt", "grad.b", "grad.c"), ("out.h",)),
                              ("sma", ("out.r", "grad.q", "grad.e", "grad.c"), ()),
                              ("attention", ("out.o", "grad.q", "grad.k", "grad.v"), ())):
        tensors, metadata = read(data / f"grad-{op}/packed.safetensors")
        inputs = {name: tensor for name, tensor in tensors.items() if "." not in name or name.startswith("up.")}
        cu, S, chunk = inputs.pop("cu")[1], int(metadata.get("S", 1)), 0
        # Only the last document's state has a gradient that comes in.
        inputs.pop("up.h", None)
        made = program.of(op, {**inputs, "cu": tensors["cu"]}, *options, metadata=metadata)
        tokens = [name for name in inputs if inputs[name][0][:2] == [1, cu[-1]]]
        for begin, end in zip(cu, cu[1:]):
            own = document(inputs, tokens, begin, end)
            chunks = -(-(end - begin) // S)
            own = document(own, [name for name in ("dh", "up.dh") if name in own], chunk, chunk + chunks)
            alone = program.of(op, own, *options, metadata=metadata)
            for name, tensor in document({name: made[name] for name in results}, results, begin, end).items():
                if alone[name] != tensor:
                    raise AssertionError(f"{op}: {name} of the document at {begin} is not what it is alone")
            chunk += chunks
        for name in last:
            if alone[name] != made[name]:
                raise AssertionError(f"{op}: {name} is not that of the last document")
        print(f"  {op}: {len(cu) - 1} documents in a row and alone")


# ---- What is refused ----

def refusals(program):
    needed, _ = scan()
    up = {"up.y": needed["x"]}
    heads = {name: tensor(1, 6, 2, 4) for name in ("q", "k", "v", "up.o")}
    conv = {"x": tensor(1, 6, 3), "weight": tensor(3, 4), "up.y": tensor(1, 6, 3)}
    backward = ("--backward",)
    one, optional = scan(1, 14)
    reads = {"q": tensor(1, 14, 2, 3), "e": tensor(1, 14, 2, 5), "c": tensor(1, 14, 2, 3), "dh": tensor(1, 4, 4, 3, 5)}
    cu = {"cu": whole(0, 5, 14)}
    scan_of = lambda *borders: {**one, "cu": whole(*borders)}
    wrong = [("ssd", tensors, options, None, 1, word) for options in ((), ("--chunk-size", "4")) for tensors, word in (
        (scan_of(1, 14), "begin with 0"), (scan_of(0, 6, 5, 14), "not fall"), (scan_of(0, 15), "at most L"), (scan_of(0, -1), "not fall"),
        (scan_of(0, 0, 0), "are empty"), (scan_of(0), "tensor cu has shape"), ({**needed, "cu": whole(0, 5, 11)}, "B must be 1"),
        ({**one, **cu, "h": tensor(1, 4, 3, 5)}, "h and cu"), ({**one, **cu, "seq": rows(0, 14)}, "seq and cu"),
        ({**one, **cu, "open": tensor(1, 4, 3, 5)}, "open"))]
    wrong += [
        ("sma", {**reads, **cu}, ("--chunk-size", "4"), None, 1, "there are 4 memories"),
        ("sma", {**reads, **cu}, ("--chunk-size", "4", "--first", "1"), None, 1, "there are 4 memories"),
        ("attention", {"q": tensor(1, 6, 2, 4), "k": tensor(1, 8, 2, 4), "v": tensor(1, 8, 2, 4), "cu": whole(0, 2, 6)}, (), None, 1, "C must be L"),
        ("norm", {"x": tensor(1, 14, 8), "weight": tensor(8), **cu}, (), None, 1, "(cu)"),
        ("ssd", scan_of(0, 5, 14), ("--dump-stages", "stages"), None, 1, "--dump-stages"),
        ("ssd", {**needed, **up, "up.dh": tensor(2, 2, 4, 3, 5)}, ("--backward", "--chunk-size", "4"), None, 1, "tensor up.dh has shape"),
        ("argmax", {}, backward, None, 2, "no backward pass"),
        ("no", {}, backward, None, 2, "unknown op"),
        ("ssd", {**needed, **up}, ("--backward", "--dump-stages", "stages"), None, 2, "--dump-stages"),
        ("ssd", needed, backward, None, 1, "up.y is missing"),
        ("ssd", {**needed, "up.y": tensor(2, 11, 4, 4)}, backward, None, 1, "tensor up.y has shape"),
        ("ssd", {**needed, **up, "up.r": up["up.y"]}, backward, None, 1, "no gradient of r"),
        ("ssd", {**needed, **up, "open": tensor(2, 4, 3, 5)}, backward, None, 1, "does not take open"),
        ("conv", {**conv, "tail": tensor(1, 3, 3)}, backward, None, 1, "does not take tail"),
        ("attention", {**heads, "seq": rows(3, 3)}, backward, None, 1, "position 3"),
        ("ssd", {**needed, **up}, backward, {"S": "0"}, 1, "metadata S"),
        ("ssd", {**needed, **up}, backward, {"S": "4.0"}, 1, "metadata S"),
        ("ssd", {**needed, **up}, backward, {"dt_max": "much"}, 1, "metadata dt_max"),
        ("attention", heads, backward, {"scale": "nan"}, 1, "metadata scale"),
    ]
    source, out = program.work / "in.safetensors", program.work / "none.safetensors"
    for op, tensors, options, metadata, status, word in wrong:
        write(source, tensors, metadata)
        ended, text = program.call(op, str(source), str(out), *options)
        if ended != status or word not in text or out.exists():
            raise AssertionError(f"{op} {' '.join(tensors)} {' '.join(options)}: ends with {ended}, not {status} and '{word}': {text}")
    # An option comes before what the file says.
    for key, option, good in (("S", "--chunk-size", "4"), ("dt_max", "--dt-max", "0")):
        program.of("ssd", {**needed, **up}, "--backward", option, good, metadata={key: "wrong"})
    print(f"  {len(wrong)} wrong calls refused")


def main():
    dartlm, data, device = sys.argv[1:]
    random.seed(1)
    with tempfile.TemporaryDirectory() as work:
        program = Program(dartlm, device, pathlib.Path(work))
        try:
            fixtures(program, pathlib.Path(data))
            if device == "cpu":
                differences(program)
                packed(program, pathlib.Path(data))
                refusals(program)
        except NotRun as reason:
            print(reason)
            return SKIPPED
        except AssertionError as wrong:
            print(f"op_backward: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
