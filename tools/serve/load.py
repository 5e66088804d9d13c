#!/usr/bin/env python3
"""Measures a running `dartlm serve`: load.py URL [--clients 64] [--seconds 10] [--prompt 16:256] [--tokens 64:512] [--stream] [--seed 1].

Every client sends one request after another, prompts of random ids and answers of random lengths. Printed are tokens a second between the first and
the last second, by the server's own counters, and how long requests took.
"""
import argparse
import http.client
import json
import os
import random
import statistics
import threading
import time
import urllib.parse


def ask(connection, method, path, body=None):
    key = os.environ.get("DARTLM_API_KEY")
    connection.request(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
    return content


def counters(connection):
    lines = ask(connection, "GET", "/metrics").decode().splitlines()
    return time.monotonic(), {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


def client(address, options, number, until, times, failures):
    draw = random.Random(options.seed * 100003 + number)
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        while time.monotonic() < until:
            prompt = [draw.randrange(options.ids) for _ in range(draw.randint(*options.prompt))]
            body = {"prompt": prompt, "max_tokens": draw.randint(*options.tokens), "temperature": 0.8, "seed": draw.randrange(1 << 31),
                    "ignore_eos": True, "stream": options.stream}
            begin = time.monotonic()
            ask(connection, "POST", "/v1/completions", json.dumps(body))
            times.append(time.monotonic() - begin)
    except Exception as wrong: # told at the end, whatever it is
        failures.append(f"client {number}: {wrong}")


def main():
    def span(text):
        least, most = text.split(":")
        return int(least), int(most)
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--prompt", type=span, default=(16, 256))
    parser.add_argument("--tokens", type=span, default=(64, 512))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    address = urllib.parse.urlsplit(options.url).netloc
    watch = http.client.HTTPConnection(address, timeout=120)
    options.ids = json.loads(ask(watch, "GET", "/tokenizer_info"))["vocab_size"]
    times, failures, until = [], [], time.monotonic() + options.seconds
    threads = [threading.Thread(target=client, args=(address, options, number, until, times, failures)) for number in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(min(2.0, options.seconds / 4)) # all slots are in use
    begin, before = counters(watch)
    time.sleep(max(0.1, until - time.monotonic()))
    end, after = counters(watch)
    for thread in threads:
        thread.join()
    rates = {name: (after[f"dartlm_{name}_tokens_total"] - before[f"dartlm_{name}_tokens_total"]) / (end - begin) for name in ("generated", "prompt")}
    times.sort()
    shares = {name: after[f'dartlm_busy_seconds_total{{for="{name}"}}'] - before[f'dartlm_busy_seconds_total{{for="{name}"}}']
              for name in ("prefill", "join", "decode")}
    print(f"{rates['generated']:.0f} tokens/s generated, {rates['prompt']:.0f} of prompts; {len(times)} requests of {options.clients} clients, "
          f"median {statistics.median(times) if times else 0:.3f} s, longest {times[-1] if times else 0:.3f} s")
    print("  of the time: " + ", ".join(f"{name} {seconds / (end - begin):.0%}" for name, seconds in shares.items()))
    for failure in failures[:5]:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
