"""The desktop example under Xvfb on lavapipe, with the validation layer: its picture, and quitting at any moment.

    desktop.py WITH_VULKAN PROGRAM HEADLESS_PROGRAM DATA_DIR [--driver NAME] [--quits N] [--first SEED] [--within MS] [--write]

(PROGRAM none: there is none.)

The picture of a window and of the program without one must be that of DATA_DIR/desktop.png, and without state memories it must not. PROGRAM
then runs --quits times (8), presses random keys and quits at a random moment --within 1500 ms, drawn by seeds from --first (1) on. Any message of the
layer fails.
--write makes the stored picture anew. --driver (lavapipe) is one of tools/with-vulkan.sh; of another one only the quits run.
"""
import argparse
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

# Of 255, in any colour of any pixel. Everything but the map is drawn in whole pixels of given colours. In the map a colour is 226 sqrt(weight) at
# most; weights differ between devices by roundings of f32, about 1e-5 of a weight, and where a weight w is small, sqrt(w + 1e-7) - sqrt(w) is at
# most 3e-4: below 0.1 of a level. One level more for rounding to 8 bits, and one for drivers that round it otherwise.
TOLERANCE = 2
TOKENS = 288
MESSAGES = re.compile(r"Validation (Error|Warning|Performance)|SYNC-HAZARD")


def skip(why):
    print(f"NOT RUN: {why}")
    sys.exit(77)


def read_ppm(path):
    data = path.read_bytes()
    match = re.match(rb"P6\n(\d+) (\d+)\n255\n", data)
    width, height = int(match[1]), int(match[2])
    pixels = data[match.end():]
    assert len(pixels) == 3 * width * height, f"{path} has {len(pixels)} bytes of pixels"
    return width, height, pixels


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def write_png(path, picture):
    """8 bits RGB, no filters."""
    width, height, pixels = picture
    rows = b"".join(b"\0" + pixels[3 * width * y:3 * width * (y + 1)] for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def read_png(path):
    """What write_png wrote."""
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    size = struct.unpack(">I", data[33:37])[0]
    assert data[37:41] == b"IDAT", f"{path} was not written by this test"
    rows = zlib.decompress(data[41:41 + size])
    return width, height, b"".join(rows[(3 * width + 1) * y + 1:(3 * width + 1) * (y + 1)] for y in range(height))


def differences(a, b):
    """The largest difference, and how many bytes differ by more than the tolerance."""
    assert a[:2] == b[:2], f"pictures of {a[:2]} and {b[:2]}"
    apart = [abs(x - y) for x, y in zip(a[2], b[2]) if x != y]
    return max(apart, default=0), sum(d > TOLERANCE for d in apart)


class Server:
    """An X server of its own."""

    def __init__(self):
        if shutil.which("Xvfb") is None:
            skip("there is no Xvfb; tools/setup.sh --test installs it")
        reads, writes = os.pipe()
        self.process = subprocess.Popen(["Xvfb", "-displayfd", str(writes), "-screen", "0", "1280x800x24", "-nolisten", "tcp"], pass_fds=[writes],
                                        stderr=subprocess.DEVNULL)
        os.close(writes)
        with os.fdopen(reads) as answer:
            number = answer.readline().strip()
        if number == "":
            skip("Xvfb does not start")
        self.display = f":{number}"

    def stop(self):
        self.process.terminate()
        self.process.wait()


def run(options, program, arguments, display=None):
    environment = dict(os.environ)
    environment.pop("DISPLAY", None)
    environment.pop("WAYLAND_DISPLAY", None)
    if display is not None:
        environment["DISPLAY"] = display
    result = subprocess.run([options.with_vulkan, options.driver, "--validation", "--", program, *arguments], env=environment, text=True, timeout=300,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode == 125:
        skip(result.stdout.strip().splitlines()[-1])
    line = " ".join(arguments)
    if result.returncode != 0 or MESSAGES.search(result.stdout):
        print(result.stdout)
        sys.exit(f"{pathlib.Path(program).name} {line}: status {result.returncode}, or a message of the validation layer")


def compare_pictures(options, server, folder, common):
    stored_path = options.data / "desktop.png"
    pictures = {}
    for name, program, more in [("window", options.program, []), ("headless", options.headless, ["--headless"]),
                                ("no memories", options.headless, ["--headless", "--no-memories"])]:
        file = folder / "picture.ppm"
        run(options, program, [*common, *more, "--screenshot", str(file)], server.display if name == "window" else None)
        pictures[name] = read_ppm(file)
    if options.write:
        write_png(stored_path, pictures["window"])
    stored = read_png(stored_path)
    for name, picture in pictures.items():
        largest, beyond = differences(picture, stored)
        print(f"{name}: largest difference {largest}, {beyond} beyond {TOLERANCE}")
        if name == "no memories":
            assert beyond > 1000, "a picture without state memories passes for one with them"
        elif beyond > 0:
            shutil.copy(file, "desktop-differs.ppm")
            sys.exit(f"{name}: the picture differs from {stored_path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("with_vulkan")
    parser.add_argument("program")
    parser.add_argument("headless")
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--driver", default="lavapipe")
    parser.add_argument("--quits", type=int, default=8)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--within", type=int, default=1500)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.program == "none":
        skip("built without GLFW; tools/setup.sh --test installs it")
    server = Server()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        common = ["--model", str(options.data / "mqar-dart"), "--state", str(folder / "desktop.state"), "--tokens", str(TOKENS)]
        try:
            if options.driver == "lavapipe":
                compare_pictures(options, server, folder, common)
            for seed in range(options.first, options.first + options.quits):
                together = ["--together", "200"] if seed % 2 == 0 else ["--run"]
                run(options, options.program, [*common, *together, "--seed", str(seed), "--random-quit", str(options.within)], server.display)
            print(f"{options.driver}: {options.quits} quits at random moments within {options.within} ms, seeds from {options.first} on")
        finally:
            server.stop()


main()
