"""The program `dartlm` as tests start it: on a device, without its cache."""
import subprocess


class Program:
    def __init__(self, path, device):
        self.path, self.device = path, ["--device", device, "--cache", "off"]

    def call(self, *arguments, source=b""):
        done = subprocess.run([self.path, *map(str, arguments)], input=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        return done.returncode, done.stdout, done.stderr.decode(errors="replace")

    def must(self, *arguments, source=b""):
        status, out, err = self.call(*arguments, source=source)
        if status != 0:
            raise AssertionError(f"{' '.join(map(str, arguments))} ends with {status}: {err}")
        return out

    def refused(self, wanted, word, *arguments, source=b""):
        status, _, err = self.call(*arguments, source=source)
        if status != wanted or word not in err:
            raise AssertionError(f"{' '.join(map(str, arguments))} ends with {status}, not {wanted} and '{word}': {err}")
