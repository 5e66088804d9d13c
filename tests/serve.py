#!/usr/bin/env python3
"""Completions over HTTP: serve.py DARTLM DATA_DIR DEVICE_SPEC [--long].

A small model is trained on text and served. Log-probabilities equal those of `dartlm logits`, text is that of `dartlm generate`, streams are what is
answered in one piece, and 16 clients at once, of which some leave early, get what each gets alone. What must be refused is refused. --long: 64
clients, and 10,000 requests that leave no memory behind in place of 1,200.
"""
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

SAMPLE = ("The quick brown fox jumps over the lazy dog.\n\n    indented = {1: 'é', 22: \"日本\"}\nF\u00fchrer \U0001f600 <|endoftext|> end\n"
          "One server answers many clients, each as if it were alone.\n") * 60
MIB = 1 << 20
REFUSED = {"min_tokens": 1, "use_beam_search": True, "length_penalty": 0.5, "prompt_logprobs": 0, "truncate_prompt_tokens": 1,
           "include_stop_str_in_output": True, "bad_words": ["x"], "allowed_token_ids": [1], "guided_json": {"type": "object"}, "guided_regex": "a",
           "guided_choice": ["a"], "guided_grammar": "a", "structured_outputs": {"regex": "a"}, "skip_special_tokens": False}
LONG = sys.argv[4:] == ["--long"]
CLIENTS, REQUESTS = (64, 10000) if LONG else (16, 1200)


def must(condition, text):
    if not condition:
        raise AssertionError(text)


def same(what, got, wanted):
    must(got == wanted, f"{what}: {str(got)[:300]}, not {str(wanted)[:300]}")


class Server:
    """A running `dartlm serve`."""

    def __init__(self, program, model, device, *options, key=None):
        self.key = key
        environment = {name: value for name, value in os.environ.items() if name != "DARTLM_API_KEY"}
        self.process = subprocess.Popen([program, "serve", "--model", model, "--port", "0", "--device", device, "--cache", "off", *options],
                                        stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        must(line.startswith("serving "), f"the server says {line!r}")
        self.port = int(line.rsplit(":", 1)[1])

    def send(self, method, path, body=None, headers=None):
        """An open connection and its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {**({"Authorization": f"Bearer {self.key}"} if self.key else {}), **(headers or {})}
        connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body), headers)
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, headers=None):
        connection, answer = self.send(method, path, body, headers)
        with connection:
            content = answer.read()
            return answer.status, content, answer

    def get(self, method, path, body=None):
        status, content, _ = self.ask(method, path, body)
        must(status == 200, f"{method} {path} gives {status}: {content[:300]!r}")
        return json.loads(content)

    def complete(self, **body):
        return self.get("POST", "/v1/completions", body)["choices"]

    def refused(self, wanted, word, method, path, body=None, headers=None):
        status, content, answer = self.ask(method, path, body, headers)
        must(status == wanted, f"{method} {path} gives {status}, not {wanted}: {content[:300]!r}")
        error = json.loads(content)["error"]
        must(word in error["message"] and error["code"] == wanted, f"the error says {error}, not '{word}'")
        return error, answer

    def metric(self, name):
        _, content, _ = self.ask("GET", "/metrics")
        return int(next(line.split()[1] for line in content.decode().splitlines() if line.startswith(f"dartlm_{name} ")))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        same("the server's status", self.process.wait(30), 0)
        self.process.stdout.close()


class Connection(http.client.HTTPConnection):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


http.client.HTTPConnection = Connection


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, tensor in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            found[name] = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
    return found


def log_probabilities(program, model, device, work, ids, vocabulary):
    """log_softmax in double precision of what `dartlm logits` gives, row by row."""
    header = json.dumps({"input_ids": {"dtype": "I32", "shape": [len(ids)], "data_offsets": [0, 4 * len(ids)]}}).encode()
    (work / "ids").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(ids)}i", *ids))
    subprocess.run([program, "logits", "--model", model, "--device", device, "--cache", "off", work / "ids", work / "logits"], check=True)
    logits = next(iter(read_tensors(work / "logits").values()))
    rows = [logits[i * vocabulary:(i + 1) * vocabulary] for i in range(len(ids))]
    found = []
    for row in rows:
        most = max(row)
        log_z = most + math.log(sum(math.exp(x - most) for x in row))
        found.append([x - log_z for x in row])
    return found


def check_scores(server, ids, reference, names):
    """The recorded exchanges: echo, max_tokens 0 and 1, numbers of likeliest tokens."""
    for count, most, logprobs in ((len(ids), m, p) for m in (0, 1) for p in (None, 0, 1, 5)):
        body = {"prompt": [ids, ids[:1]], "echo": True, "max_tokens": most, "temperature": 0}
        if logprobs is not None:
            body["logprobs"] = logprobs
        choices = server.complete(**body)
        same("indices", [choice["index"] for choice in choices], [0, 1])
        for choice, prompt in zip(choices, (ids, ids[:1])):
            found = choice["logprobs"]
            if logprobs is None:
                same("no log-probabilities", found, None)
                continue
            for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                same(f"entries of {key}", len(found[key]), len(prompt) + most)
            same("the first entries", (found["token_logprobs"][0], found["top_logprobs"][0]), (None, None))
            same("tokens", found["tokens"][:len(prompt)], [names[i] for i in prompt])
            for place in range(1, len(prompt) + most):
                row, got, top = reference[place - 1], found["token_logprobs"][place], found["top_logprobs"][place]
                own = prompt[place] if place < len(prompt) else max(range(len(row)), key=row.__getitem__)
                must(abs(got - row[own]) < 1e-4, f"place {place}: {got}, not {row[own]}")
                same("the token itself", top[names[own]], got)
                must(len(top) in (logprobs, logprobs + 1) or logprobs == 0, f"{len(top)} likeliest of {logprobs}")
                if logprobs > 0:
                    must(abs(max(top.values()) - max(row)) < 1e-4, f"place {place}: the likeliest has {max(top.values())}, not {max(row)}")
        same("the count", count, len(ids))


def check_text(server, program, model, device):
    prompt = "The quick brown"
    text = server.complete(model="model", prompt=prompt, max_tokens=40, temperature=0)[0]["text"]
    shown = subprocess.run([program, "generate", "--model", model, "--device", device, "--cache", "off", "--prompt", prompt, "-n", "40"], check=True,
                           stdout=subprocess.PIPE).stdout.decode()
    same("text", text + "\n", shown)
    stop = text[len(text) // 2:len(text) // 2 + 3]
    stopped = server.complete(prompt=prompt, max_tokens=40, temperature=0, stop=["never ever", stop])[0]
    same("a stop", (stopped["text"], stopped["finish_reason"]), (text[:text.index(stop)], "stop"))
    check_stop_ids(server, prompt)
    drawn = [server.complete(prompt=prompt, max_tokens=30, temperature=1.2, top_p=0.9, seed=seed)[0]["text"] for seed in (5, 5, 6)]
    must(drawn[0] == drawn[1] != drawn[2], f"drawn texts of seeds 5, 5 and 6: {drawn}")
    same("echo", server.complete(prompt=prompt, max_tokens=40, temperature=0, echo=True)[0]["text"], prompt + text)
    answer = server.get("POST", "/v1/completions", {"prompt": [prompt, "The"], "max_tokens": 3, "temperature": 0, "ignore_eos": True})
    same("usage", answer["usage"]["total_tokens"], answer["usage"]["prompt_tokens"] + 6)
    special = server.get("POST", "/tokenize", {"prompt": "<|endoftext|>", "add_special_tokens": False})["tokens"]
    same("a special token", special, [0])
    must(len(server.get("POST", "/tokenize", {"prompt": "<|endoftext|>", "parse_special": False})["tokens"]) > 1, "parse_special does nothing")
    same("ids and back", server.get("POST", "/detokenize", server.get("POST", "/tokenize", {"prompt": SAMPLE}))["prompt"], SAMPLE)


def check_stop_ids(server, prompt):
    """An answer ends behind the first of these tokens, in one piece and as a stream; a special one has no text."""
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 1, "seed": 11, "logprobs": 0, "ignore_eos": True}
    whole = server.complete(**body)[0]
    names = whole["logprobs"]["tokens"]
    at = next(i for i in range(10, 40) if names[i] not in names[:i])
    ids = [server.get("POST", "/tokenize", {"prompt": name})["tokens"] for name in names[:at + 1] if not name.startswith("bytes:")]
    last, = ids[-1]
    for more in ({"stop_token_ids": [last]}, {"stop_token_ids": [999, last, 998], "ignore_eos": False}):
        stopped = server.complete(**{**body, **more})[0]
        count = len(stopped["logprobs"]["tokens"])
        same("where a token stops", (count, stopped["finish_reason"]), (at + 1, "stop"))
        must(whole["text"].startswith(stopped["text"]) and stopped["text"].endswith(names[at]), f"the text is {stopped['text']!r}")
        connection, answer = server.send("POST", "/v1/completions", {**body, **more, "stream": True})
        with connection:
            events = read_stream(answer)
        same("the stream", "".join(event["choices"][0]["text"] for event in events), stopped["text"])
    for seed in range(200):
        body = {"prompt": "\U0001f600", "max_tokens": 12, "temperature": 1.5, "seed": seed, "logprobs": 0, "ignore_eos": True, "stop_token_ids": [0]}
        stopped = server.complete(**body)[0]
        if stopped["finish_reason"] == "stop":
            same("the last token", stopped["logprobs"]["tokens"][-1], "<|endoftext|>")
            must("<|endoftext|>" not in stopped["text"], f"the text is {stopped['text']!r}")
            return
    raise AssertionError("no end of text in 200 answers")


def check_end(server):
    """An end of text that is chosen counts as a token, and has no text."""
    for seed in range(400):
        body = {"prompt": "\U0001f600", "max_tokens": 12, "temperature": 1.5, "seed": seed, "logprobs": 0}
        choice = server.complete(**body)[0]
        if choice["finish_reason"] == "stop":
            same("the last token", choice["logprobs"]["tokens"][-1], "<|endoftext|>")
            must("<|endoftext|>" not in choice["text"], f"the text is {choice['text']!r}")
            on = server.complete(**body, ignore_eos=True)[0]
            same("tokens without an end", (len(on["logprobs"]["tokens"]), on["finish_reason"]), (12, "length"))
            return
    raise AssertionError("no end of text in 400 answers")


def read_stream(answer):
    events = [line[6:] for line in answer.read().decode().split("\n\n") if line]
    same("the last event", events[-1], "[DONE]")
    return [json.loads(event) for event in events[:-1]]


def check_streams(server):
    for more in ({"temperature": 0}, {"temperature": 1.5, "seed": 3, "echo": True}, {"temperature": 0, "logprobs": 2, "echo": True},
                 {"temperature": 2, "seed": 8, "logprobs": 0, "stop": ["e", "the"]}):
        body = {"prompt": ["The quick", "\U0001f600"], "max_tokens": 50, **more}
        whole = server.complete(**body)
        connection, answer = server.send("POST", "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        with connection:
            same("the type", answer.headers["Content-Type"], "text/event-stream")
            events = read_stream(answer)
        same("usage comes last", (events[-1]["choices"], "usage" in events[-1]), ([], True))
        for index in (0, 1):
            parts = [event["choices"][0] for event in events[:-1] if event["choices"][0]["index"] == index]
            same("streamed text", "".join(part["text"] for part in parts), whole[index]["text"])
            same("the end", [part["finish_reason"] for part in parts], [None] * (len(parts) - 1) + [whole[index]["finish_reason"]])
            for key in whole[index]["logprobs"] or {}:
                streamed = [entry for part in parts for entry in part["logprobs"][key]]
                if key in ("tokens", "text_offset"):
                    same(f"streamed {key}", streamed, whole[index]["logprobs"][key])
                same(f"the number of {key}", len(streamed), len(whole[index]["logprobs"][key]))


def check_shared(server, seed):
    """Prompts that begin alike are computed once up to where they part, and are answered as each is alone."""
    draw = random.Random(seed)
    ids = [draw.randrange(1, 1000) for _ in range(150)]
    more = {"max_tokens": 24, "temperature": 1.1, "ignore_eos": True}
    for count, scores in ((1, {}), (40, {}), (90, {"logprobs": 2}), (150, {"logprobs": 1, "echo": True})):
        prompt, before = ids[:count], server.metric("shared_tokens_total")
        answers = server.get("POST", "/v1/completions", {"prompt": [prompt, prompt[:-1] + [5, 6]], "n": 3, "seed": 70, **more, **scores})
        same("usage", answers["usage"]["prompt_tokens"], 2 * count + 1)
        same("the order", [choice["index"] for choice in answers["choices"]], list(range(6)))
        alone = [server.complete(prompt=part, seed=70 + k, **more, **scores)[0] for part in (prompt, prompt[:-1] + [5, 6]) for k in range(3)]
        compare(f"{count} tokens, n 3", answers["choices"], alone)
        must(len({choice["text"] for choice in answers["choices"][:3]}) == 3, "answers of different seeds are alike")
        shared = server.metric("shared_tokens_total") - before
        must(shared == 0 if count == 1 else 3 * (count - 2) <= shared <= 5 * count, f"{shared} tokens were shared of prompts of {count}")
    text = "One server answers many clients, each as if it were alone. " * 3
    prompts = [text + ending for ending in ("The quick", "The lazy dog", "brown", "x")]
    for own in ({"max_tokens": 1, "echo": True, "logprobs": 3}, {"max_tokens": 0, "echo": True, "logprobs": 0}, {"max_tokens": 9}):
        before = server.metric("shared_tokens_total")
        together = server.complete(prompt=prompts, temperature=0, **own)
        compare("questions about one text", together, [server.complete(prompt=prompt, temperature=0, **own)[0] for prompt in prompts])
        must(server.metric("shared_tokens_total") - before > 100, "nothing was shared")
    best = server.complete(prompt="The", n=2, best_of=2, temperature=0, max_tokens=5)
    same("two likeliest answers", best[0]["text"], best[1]["text"])


def check_mistakes(server):
    completions = "/v1/completions"
    for word, body in (("no tokens", {"prompt": ""}), ("no tokens", {"prompt": []}), ("no tokens", {"prompt": [[1], []]}),
                       ("id 1000", {"prompt": [1000]}), ("id -1", {"prompt": [[-1]]}), ("exceed the 300 tokens", {"prompt": [1] * 300}),
                       ("max_tokens 301", {"prompt": [1], "max_tokens": 301}), ("max_tokens", {"prompt": [1], "max_tokens": -1}),
                       ("with echo", {"prompt": [1], "max_tokens": 0}), ("n must", {"prompt": [1], "n": 0}),
                       ("more than 512 answers", {"prompt": [[1]] * 3, "n": 171}), ("best_of", {"prompt": [1], "n": 2, "best_of": 3}),
                       ("suffix", {"prompt": [1], "suffix": "x"}),
                       ("logit_bias", {"prompt": [1], "logit_bias": {"1": 5}}), ("presence_penalty", {"prompt": [1], "presence_penalty": 0.5}),
                       ("logprobs", {"prompt": [1], "logprobs": 21}), ("temperature", {"prompt": [1], "temperature": -1}),
                       ("top_p", {"prompt": [1], "top_p": "x"}), ("stop", {"prompt": [1], "stop": [""]}), ("stop", {"prompt": [1], "stop": [1]}),
                       ("stop_token_ids", {"prompt": [1], "stop_token_ids": 5}), ("id 1000", {"prompt": [1], "stop_token_ids": [1000]}),
                       ("more than 3", {"prompt": [1], "stop_token_ids": [1, 2, 3, 4]}), ("whole number", {"prompt": [1], "stop_token_ids": ["a"]}),
                       *((key, {"prompt": [1], key: value}) for key, value in REFUSED.items()),
                       ("stream", {"prompt": [1], "stream": 1}), ("come with stream", {"prompt": [1], "stream_options": {}}),
                       ("whole number", {"prompt": [1, "a"]}), ("prompt must be", {"prompt": {"a": 1}}), ("missing", {}),
                       ("513 prompts", {"prompt": [[1]] * 513})):
        server.refused(400, word, "POST", completions, body)
    asks_nothing = {**{key: None for key in REFUSED}, "length_penalty": 1.0, "bad_words": [], "skip_special_tokens": True, "min_tokens": 0}
    server.complete(prompt=[1], max_tokens=1, **asks_nothing)
    server.refused(404, "no model", "GET", "/v1/models/other")
    same("one model", server.get("GET", "/v1/models/model"), server.get("GET", "/v1/models")["data"][0])
    same("the key", server.refused(400, "n must", "POST", completions, {"prompt": [1], "n": 1.5})[0]["param"], "n")
    server.refused(400, "JSON", "POST", completions, b"{")
    server.refused(400, "JSON", "POST", completions, b"")
    server.refused(400, "object", "POST", completions, b"[1]")
    server.refused(400, "JSON", "POST", completions, b'{"prompt":"\xff"}')
    server.refused(400, "deeper", "POST", completions, b'{"prompt":' + b"[" * 1000 + b"]" * 1000 + b"}")
    server.refused(404, "no model", "POST", completions, {"prompt": [1], "model": "other"})
    server.refused(404, "chat templates", "POST", "/v1/chat/completions", {})
    server.refused(404, "/nowhere", "GET", "/nowhere")
    same("what it takes", server.refused(405, "POST", "GET", completions)[1].headers["Allow"], "POST")
    server.refused(403, "Host", "GET", "/health", headers={"Host": "evil.example"})
    server.refused(403, "pages", "POST", completions, {"prompt": [1]}, {"Origin": "http://evil.example"})
    same("its own page", server.ask("GET", "/health", headers={"Origin": f"http://127.0.0.1:{server.port}"})[0], 200)
    server.refused(413, "bytes", "POST", completions, b" " * (33 * MIB))
    server.refused(400, "values", "POST", completions, b'{"prompt":[' + b"1," * 5000000 + b"1]}")
    status, _, _ = server.ask("GET", "/health", headers={"X-Long": "x" * 60000})
    must(400 <= status < 500, f"a header of 60,000 bytes gives {status}")
    body = b'{"prompt":[1],"max_tokens":1}'
    for twice in (b"Host: localhost\r\nHost: evil.example", b"Host: localhost\r\nContent-Length: 29\r\nContent-Length: 2",
                  b"Host: localhost\r\nContent-Length: 29\r\nTransfer-Encoding: chunked",
                  b"Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b"):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.settimeout(60)
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + twice + b"\r\n\r\n" + body)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1000)
            must(answer.startswith(b"HTTP/1.1 400 "), f"{twice} gives {answer}")


def draw_request(draw):
    count, kind = draw.randint(1, 120), draw.randrange(4)
    body = {"prompt": [draw.randrange(1, 1000) for _ in range(count)], "max_tokens": draw.randint(1, 60), "temperature": 0}
    if kind == 1:
        body.update(temperature=1.1, seed=draw.randrange(1 << 40), top_k=draw.choice((0, 50)))
    elif kind == 2:
        body.update(max_tokens=draw.randint(0, 1), echo=True, logprobs=draw.randint(0, 3))
    elif kind == 3:
        body.update(prompt=[body["prompt"], body["prompt"][:count // 2 + 1]], logprobs=1, stop=["e"])
    return body


def compare(body, got, alone):
    for one, other in zip(got, alone, strict=True):
        same(f"the text of {body}", (one["text"], one["finish_reason"]), (other["text"], other["finish_reason"]))
        numbers, wanted = ((choice["logprobs"] or {"token_logprobs": []})["token_logprobs"] for choice in (one, other))
        for x, y in zip(numbers, wanted, strict=True):
            must(x == y or abs(x - y) < 1e-4, f"{body}: a log-probability of {x}, alone {y}")


def check_clients(server, seed):
    """CLIENTS at once, a fifth of their requests is left early."""
    draw = random.Random(seed)
    bodies = [draw_request(draw) for _ in range(4 * CLIENTS)]
    alone = [server.complete(**body) for body in bodies]

    def run(number):
        own = random.Random(seed + number)
        for i in range(number, len(bodies), CLIENTS):
            if own.random() < 0.2:
                with socket.create_connection(("127.0.0.1", server.port)) as leaver:
                    text = json.dumps({**bodies[i], "max_tokens": 150, "echo": False, "ignore_eos": True, "stream": own.random() < 0.5}).encode()
                    leaver.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
                    time.sleep(own.random() * 0.02)
            compare(bodies[i], server.complete(**bodies[i]), alone[i])

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(run, number) for number in range(CLIENTS)]:
            done.result()
    until = time.monotonic() + 10
    while any(server.metric(name) for name in ("waiting", "prefilling", "decoding")):
        must(time.monotonic() < until, "slots are in use though nobody waits")
        time.sleep(0.05)


def check_growth(server):
    """Requests leave no memory behind, whatever became of them."""
    bodies = [{"prompt": [1, 2, 3], "max_tokens": 2, "n": 3}, {"prompt": "The quick", "max_tokens": 3, "logprobs": 5, "echo": True},
              {"prompt": "The", "max_tokens": 3, "stream": True}, {"prompt": [1], "max_tokens": -1},
              {"prompt": ["a"] * 5, "max_tokens": 1, "stop": "b"}]

    def resident():
        lines = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def ask(count):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda i: server.ask("POST", "/v1/completions", bodies[i % len(bodies)])[0], range(count)))
        same("statuses", [status for i, status in enumerate(statuses) if status != (400 if i % len(bodies) == 3 else 200)], [])

    ask(400)
    before = resident()
    ask(REQUESTS)
    must(resident() - before <= 2048, f"{REQUESTS:,} requests left {resident() - before} KiB behind")


def check_crowd(server):
    """Connections that send nothing keep nobody out for as long as a request may take to arrive."""
    idle = []
    try:
        for _ in range(300):
            idle.append(socket.socket())
            idle[-1].setblocking(False)
            idle[-1].connect_ex(("127.0.0.1", server.port))
        begin = time.monotonic()
        same("health", server.ask("GET", "/health")[0], 200)
        must(time.monotonic() - begin < 15, f"beside 300 idle connections it took {time.monotonic() - begin} s")
    finally:
        for connection in idle:
            connection.close()


def check_large(server):
    """Large bodies, side by side, hold up nobody else."""
    text, times, ended = json.dumps({"prompt": "e\u0301\u0327" * 90000}).encode(), [], threading.Event()

    def look():
        while not ended.is_set():
            begin = time.monotonic()
            server.get("GET", "/health")
            times.append(time.monotonic() - begin)

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        looks, begin = pool.submit(look), time.monotonic()
        try:
            answers = [done.result()[0] for done in [pool.submit(server.ask, "POST", "/tokenize", text) for _ in range(8)]]
        finally:
            whole = time.monotonic() - begin
            ended.set()
        looks.result()
    same("statuses", answers, [200] * 8)
    must(max(times) < whole / 10, f"beside 8 large bodies, which took {whole} s, health took {max(times)} s")


def check_answers(program, model, device):
    """Answers that are to be large wait for one another's memory; those of clients that have left do not count."""
    server = Server(program, model, device, "--slots", "1", "--context", "8192")
    body = json.dumps({"prompt": [1], "max_tokens": 8000, "n": 12, "logprobs": 20, "ignore_eos": True}).encode() # about 81 million bytes
    waiting = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(6)]
    for connection in waiting:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    until = time.monotonic() + 30
    while server.metric("waiting") + server.metric("prefilling") + server.metric("decoding") < 72:
        must(time.monotonic() < until, "six requests of 12 answers do not wait")
    server.refused(429, "memory", "POST", "/v1/completions", body)
    for connection in waiting:
        connection.close()
    while server.metric("waiting") + server.metric("prefilling") + server.metric("decoding") > 0:
        must(time.monotonic() < until, "they wait though their clients have left")
    server.complete(prompt=[1], max_tokens=9, n=12, logprobs=20)
    server.end()


def check_loading(program, data, device):
    """SIGTERM ends a server whose model is still being loaded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([program, "serve", "--preset", "dart-130m", "--tokenizer", pathlib.Path(data) / "tokenizer", "--port", str(port),
                           "--device", device, "--cache", "off"], stdout=subprocess.DEVNULL,
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}) as loading: # a thread of that library could take the signal
        status = None
        while status is None and loading.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("GET", "/health")
                status = connection.getresponse().status
            except ConnectionError:
                pass
        loading.send_signal(signal.SIGTERM)
        same("health and what ends the program", (status, loading.wait(60)), (503, -signal.SIGTERM))


def check_limits(program, model, device, work):
    """A key, a queue that is full, a body that does not come, and the end of a server that has work."""
    (work / "key").write_text("s3cret\n", encoding="utf-8")
    server = Server(program, model, device, "--key-file", work / "key", "--slots", "1", "--queue", "1", "--receive-timeout", "1", "--context", "8192",
                    key="s3cret")
    same("health needs no key", server.ask("GET", "/health", headers={"Authorization": ""})[0], 200)
    for wrong in ("", "Bearer ", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret"):
        for path in ("/v1/models", "/metrics", "/nowhere"):
            server.refused(401, "key", "GET", path, headers={"Authorization": wrong})
    same("the model", server.get("GET", "/v1/models")["data"][0]["id"], "model")
    for sent in (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{", b"GET /health HT"):
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.settimeout(10)
            begin = time.monotonic()
            slow.sendall(sent)
            same("the end of a slow request", slow.recv(100), b"")
            must(0.5 < time.monotonic() - begin < 5, f"it came after {time.monotonic() - begin} s")
    long = {"prompt": [1], "max_tokens": 6000, "ignore_eos": True, "temperature": 0}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        running = [pool.submit(server.ask, "POST", "/v1/completions", long)]
        while server.metric("decoding") == 0:
            time.sleep(0.01)
        running.append(pool.submit(server.ask, "POST", "/v1/completions", {**long, "max_tokens": 5}))
        while server.metric("waiting") == 0:
            time.sleep(0.01)
        _, answer = server.refused(429, "waiting", "POST", "/v1/completions", long)
        same("Retry-After", answer.headers["Retry-After"], "1")
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM) # as timeout(1) does: it sends one to the process and one to its group
        while server.ask("GET", "/health", headers={"Authorization": ""})[0] == 200:
            time.sleep(0.01)
        server.refused(503, "stopping", "POST", "/v1/completions", long)
        same("what had been asked is finished", [done.result()[0] for done in running], [200, 200])
    same("the server's status", server.process.wait(30), 0)
    server.process.stdout.close()
    refused = subprocess.run([program, "serve", "--model", model, "--host", "0.0.0.0", "--port", "0"], stderr=subprocess.PIPE, text=True, check=False,
                             env={name: value for name, value in os.environ.items() if name != "DARTLM_API_KEY"})
    must(refused.returncode == 1 and "key is needed" in refused.stderr, f"0.0.0.0 without a key: {refused.stderr}")


def check_second_signal(program, model, device):
    """A second SIGTERM ends a server that has work for long."""
    server = Server(program, model, device, "--slots", "1", "--context", "8192")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, "POST", "/v1/completions",
                            {"prompt": [1], "max_tokens": 8000, "n": 16, "ignore_eos": True, "temperature": 0})
        while server.metric("decoding") == 0:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(2.5)
        must(server.process.poll() is None, "the first SIGTERM ended the server, which had work")
        server.process.send_signal(signal.SIGTERM)
        same("what ends the program", server.process.wait(30), -signal.SIGTERM)
        must(asked.exception() is not None, "a server that ended at once had answered")
    server.process.stdout.close()


def run(program, data, device, work):
    tokenizer, model = pathlib.Path(data) / "tokenizer", work / "model"
    (work / "sample").write_text(SAMPLE, encoding="utf-8")
    subprocess.run([program, "train", "lm", "--tokenizer", tokenizer, "--data", work / "sample", "--length", "32", "--batch-tokens", "256",
                    "--epochs", "1", "--width", "32", "--head-dim", "32", "--state", "8", "--chunk-size", "8", "--lr", "0.01", "--warm-up", "4",
                    "--device", device, "--cache", "off", model], check=True, stdout=subprocess.DEVNULL)
    server = Server(program, model, device, "--context", "300", "--slots", "8", "--budget", "64")
    try:
        same("health", server.get("GET", "/health"), {"status": "ok"})
        same("the end of text", server.get("GET", "/tokenizer_info")["eos_token"], "<|endoftext|>")
        draw = random.Random(time.time_ns())
        ids = [draw.randrange(1000) for _ in range(100)]
        one = server.complete(prompt=list(range(1000)[:299]), max_tokens=0, echo=True, logprobs=0)[0]["logprobs"]["tokens"]
        names = {i: name for i, name in enumerate(one)}
        for first in range(299, 1000, 299):
            some = list(range(first, min(first + 299, 1000)))
            names.update(zip(some, server.complete(prompt=some, max_tokens=0, echo=True, logprobs=0)[0]["logprobs"]["tokens"]))
        twice = [name for name in names.values() if list(names.values()).count(name) > 1]
        must(not "".join(twice).strip(), f"names that stand twice: {twice}") # runs of spaces are added tokens and merged ones
        ids = [i for i in ids if names[i] not in twice]
        must(any(name.startswith("bytes:\\x") for name in names.values()), "no token is named by bytes")
        check_scores(server, ids, log_probabilities(program, model, device, work, ids, 1000), names)
        check_text(server, program, model, device)
        check_end(server)
        check_streams(server)
        check_shared(server, time.time_ns() % 1000000)
        check_mistakes(server)
        seed = time.time_ns() % 1000000
        print(f"  clients of seed {seed}", flush=True)
        check_clients(server, seed)
        if sys.platform == "linux":
            check_growth(server)
        check_large(server)
        check_crowd(server)
        server.end()
        check_answers(program, model, device)
        check_loading(program, data, device)
        check_limits(program, model, device, work)
        check_second_signal(program, model, device)
    finally:
        server.process.kill()


def main():
    with tempfile.TemporaryDirectory() as work:
        try:
            run(*sys.argv[1:4], pathlib.Path(work))
        except AssertionError as wrong:
            print(f"serve: {wrong}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
