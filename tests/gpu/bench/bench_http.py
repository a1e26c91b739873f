#!/usr/bin/env python3
"""What HTTP costs on a GPU machine: `tokenring bench` through NGINX and the
module, beside the same load on the engine's ring, by turns.

    bench_http.py BUNDLE OUT.json [options]      BUNDLE: see stack_bundle.sh

Closed loops at 1 to 1,024 streams give output tokens/s and the CPU time that
NGINX's workers and the engine's host threads take for a token.  The time to first
token of many streams at once is that of their prompts; what HTTP adds to it is
therefore measured with an open loop of few requests a second.  Weights are random
(`load_format dummy`), with a text for every token (dummy_model.py).  Writes
OUT.json and, beside it, a page (.md).  Standard library only.
"""
import argparse
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
POCKET = os.path.join(ROOT, "models/pocket")
# Streams: requests of one measurement.  One stream alone is slow, and with many a
# single wave of requests is long enough.
REQUESTS = {1: 4, 16: 48, 64: 192, 256: 512, 1024: 1024}
SIDES = ("ring", "http")
# Open loops: name, more arguments for `tokenring bench`.
OPEN = (("first token only", ["-O", "1", "--arrivals", "constant"]),
        ("among others", ["-O", "64"]))


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("bundle")
    p.add_argument("out")
    p.add_argument("--backend", default="cuda", help="default cuda")
    p.add_argument("--model", default=os.path.join(
        ROOT, "tests/bench/shapes/llama-3-8b"), help="a folder with config.json")
    p.add_argument("--policies", default="full:2,static:1",
                   help="KV policies and how often each is measured")
    p.add_argument("--streams", default="1,16,64,256,1024")
    p.add_argument("--prompt", type=int, default=128, help="tokens")
    p.add_argument("--output", type=int, default=256, help="tokens")
    p.add_argument("--rate", type=float, default=20,
                   help="requests a second of the open loops; 0: none")
    p.add_argument("--seconds", type=float, default=10, help="of an open loop")
    p.add_argument("--workers", type=int, default=4, help="of NGINX")
    p.add_argument("--budget", type=float, default=1e9,
                   help="seconds after which nothing more is begun")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                   help="another setting of the engine")
    return p.parse_args()


# ---- CPU time ----------------------------------------------------------------

def cpu_ns(pid):
    """Nanoseconds on a CPU of each thread of a process, by thread name."""
    threads = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        base = f"/proc/{pid}/task/{tid}"
        try:
            with open(f"{base}/comm", encoding="utf-8") as f:
                name = f.read().strip()
            try:
                with open(f"{base}/schedstat", encoding="utf-8") as f:
                    ns = int(f.read().split()[0])
            except FileNotFoundError:  # ticks of 10 ms
                with open(f"{base}/stat", encoding="utf-8") as f:
                    fields = f.read().rpartition(")")[2].split()
                ns = (int(fields[11]) + int(fields[12])) * 10 ** 9 \
                    // os.sysconf("SC_CLK_TCK")
        except (FileNotFoundError, ProcessLookupError):
            continue
        threads[name] = threads.get(name, 0) + ns
    return threads


def less(after, before):
    out = {k: v - before.get(k, 0) for k, v in after.items()}
    return {k: v for k, v in out.items() if v > 0}


# ---- the stack -----------------------------------------------------------------

def dummy_model(config, where):
    """A folder for load_format dummy whose tokenizer has a text for every id."""
    subprocess.run([sys.executable, os.path.join(HERE, "dummy_model.py"), config,
                    POCKET, where], check=True)
    return where


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stack:
    """An engine and an NGINX before it, in a folder of their own."""

    def __init__(self, args, directory, model, policy):
        self.args = args
        self.dir = directory
        self.bin = os.path.join(os.path.abspath(args.bundle), "bin")
        self.socket = os.path.join(directory, "engine.sock")
        self.port = free_port()
        self.engine = self.nginx = None
        self.start_engine(model, policy)
        self.start_nginx()

    def start_engine(self, model, policy):
        args = self.args
        most = max(REQUESTS)
        settings = {
            "model": model, "load_format": "dummy", "backend": args.backend,
            "socket": self.socket, "kv_policy": policy, "max_num_seqs": most,
            "max_model_len": args.prompt + args.output + 128,
            "max_batch_tokens": 4096, "max_queue": 4 * most,
            "log_level": "notice",
            # the ring alone is one channel for all streams, and each may need
            # its longest record in the two steps under way
            "channel_ring": "16m",
        }
        if args.backend == "cuda":
            settings["cuda_library"] = os.environ["TR_CUDA_LIBRARY"]
            settings["swap_memory"] = "1g"
        settings.update(s.split("=", 1) for s in args.set)
        conf = os.path.join(self.dir, "engine.conf")
        with open(conf, "w", encoding="utf-8") as f:
            f.writelines(f"{k} {v}\n" for k, v in settings.items())
        begin = time.time()
        with open(os.path.join(self.dir, "engine.log"), "ab") as log:
            self.engine = subprocess.Popen(
                [os.path.join(self.bin, "tokenring-engine"), "-c", conf],
                stderr=log)
        while not os.path.exists(self.socket):
            if self.engine.poll() is not None or time.time() > begin + 180:
                raise RuntimeError("the engine did not start:\n"
                                   + self.log("engine.log"))
            time.sleep(0.05)
        self.start_s = time.time() - begin

    def start_nginx(self):
        d = self.dir
        conf = os.path.join(d, "nginx.conf")
        temp = "\n".join(f"    {n}_temp_path {d}/temp_{n};" for n in (
            "client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(conf, "w", encoding="utf-8") as f:
            f.write(f"""
load_module {self.bin}/../module/ngx_http_tokenring_module.so;
{"user root;" if os.getuid() == 0 else ""}
worker_processes {self.args.workers};
worker_rlimit_nofile 65536;
daemon off;
pid {d}/nginx.pid;
error_log {d}/nginx.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    keepalive_requests 1000000;
{temp}
    tokenring_engine main unix:{self.socket};
    server {{
        listen 127.0.0.1:{self.port} backlog=4096;
        location / {{
            tokenring_queue_timeout 10m; # as long as the ring waits
            tokenring_pass main;
        }}
    }}
}}
""")
        self.nginx = subprocess.Popen([
            os.environ.get("TR_NGINX",
                           os.path.join(self.bin, "../sbin/nginx")),
            "-e", f"{d}/nginx.log", "-p", d, "-c", conf])
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.time() + 30
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/v1/models").read()
                break
            except OSError as e:
                if self.nginx.poll() is not None or time.time() > end:
                    raise RuntimeError(f"NGINX: {e}\n{self.log('nginx.log')}") \
                        from e
                time.sleep(0.05)

    def workers(self):
        pid = self.nginx.pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            return [int(x) for x in f.read().split()]

    def cpu(self):
        gateway = {}
        for pid in self.workers():
            gateway[pid] = sum(cpu_ns(pid).values())
        return gateway, cpu_ns(self.engine.pid)

    def log(self, name):
        with open(os.path.join(self.dir, name), encoding="utf-8") as f:
            return "".join(f.readlines()[-30:])

    def stop(self):
        for child, sign in ((self.nginx, signal.SIGTERM),
                            (self.engine, signal.SIGTERM)):
            if child is not None and child.poll() is None:
                child.send_signal(sign)
                try:
                    child.wait(40)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()

    def load(self, side, more):
        """One run of `tokenring bench`; its figures, and CPU time a token."""
        args = self.args
        out = os.path.join(self.dir, "bench.json")
        where = ["-e", self.socket] if side == "ring" else ["--url", self.url]
        before = self.cpu()
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run(
            [os.path.join(self.bin, "tokenring"), "bench", *where,
             "-P", str(args.prompt), "-O", str(args.output), *more,
             "--json", out], capture_output=True, text=True, timeout=280,
            check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        after = self.cpu()
        try:
            with open(out, encoding="utf-8") as f:
                result = json.load(f)
        except OSError as e:
            raise RuntimeError(f"tokenring bench: {run.stderr}") from e
        os.unlink(out)
        if result["bad"]:
            raise RuntimeError(f"{side}: {result['errors']}")
        tokens = result["output_tokens"]
        seconds = result["seconds"]
        engine = less(after[1], before[1])
        return {
            "requests": result["good"], "seconds": seconds,
            "tokens_per_s": result["output_tokens_per_s"],
            "ttft_ms": result["ttft_ms"], "tpot_ms": result["tpot_ms"],
            "inter_token_ms": result["inter_token_ms"],
            "gateway_us": sum(less(after[0], before[0]).values())
            / tokens / 1e3,
            "engine_us": sum(engine.values()) / tokens / 1e3,
            "engine_threads_us": {k: v / tokens / 1e3
                                  for k, v in sorted(engine.items())},
            "client_cpu": (used.ru_utime - own.ru_utime + used.ru_stime
                           - own.ru_stime) / seconds,
        }


# ---- measuring -------------------------------------------------------------------

def median(values):
    values = sorted(values)
    n = len(values)
    return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2


def alternate(stack, turn, more):
    """One measurement of each side, now this one first, now the other."""
    order = SIDES if turn % 2 == 0 else SIDES[::-1]
    got = {side: stack.load(side, more) for side in order}
    return [got[side] for side in SIDES]


def measure(stack, args, rounds, over):
    """Pairs (ring, http) by case; `over()` is true when time is up."""
    cases = {}
    streams = [int(s) for s in args.streams.split(",")]
    alternate(stack, 0, ["-c", "64", "-N", "64", "-O", "16"])  # warm up
    for turn in range(rounds):
        for i, n in enumerate(streams):
            if not over():
                cases.setdefault(f"{n}", []).append(alternate(
                    stack, turn + i, ["-c", str(n), "-N", str(
                        REQUESTS.get(n, 2 * n))]))
                progress(f"{n} streams", cases[f"{n}"][-1])
        for i, (name, more) in enumerate(OPEN if args.rate else ()):
            if not over():
                cases.setdefault(name, []).append(alternate(
                    stack, turn + i, ["--rate", str(args.rate), "-d",
                                      str(args.seconds), *more]))
                progress(name, cases[name][-1])
    return cases


def progress(name, pair):
    print(f"  {name}: " + ", ".join(
        f"{side} {r['tokens_per_s']:.0f} tokens/s, TTFT "
        f"{r['ttft_ms']['p50']:.2f} ms, client {100 * r['client_cpu']:.0f}% of "
        "a core" for side, r in zip(SIDES, pair)), file=sys.stderr, flush=True)


def summary(pairs):
    """Medians over the rounds of one case."""
    def of(side, get):
        return median([get(pair[side]) for pair in pairs])

    ratios = [http["tokens_per_s"] / ring["tokens_per_s"]
              for ring, http in pairs]
    added = [http["ttft_ms"]["p50"] - ring["ttft_ms"]["p50"]
             for ring, http in pairs]
    row = {"rounds": len(pairs), "ratio": median(ratios),
           "ratios": ratios, "added_ttft_ms": median(added),
           "gateway_us": of(1, lambda r: r["gateway_us"])}
    for i, side in enumerate(SIDES):
        row[side] = {
            "tokens_per_s": of(i, lambda r: r["tokens_per_s"]),
            "ttft_ms": of(i, lambda r: r["ttft_ms"]["p50"]),
            "inter_token_ms": of(i, lambda r: r["inter_token_ms"]["p50"]),
            "tpot_ms": of(i, lambda r: r["tpot_ms"]["p50"]),
            "engine_us": of(i, lambda r: r["engine_us"]),
            "client_cpu": of(i, lambda r: r["client_cpu"]),
        }
    return row


# ---- the report ------------------------------------------------------------------

def lines_of(policy, rows, args):
    out = [f"{policy}: {args.prompt} tokens in, {args.output} out, closed loop",
           f"{'':16}   output tokens/s           TTFT p50, ms"
           "        ITL p50, ms   CPU us/token",
           f"{'streams':16} {'ring':>8} {'HTTP':>8} {'ratio':>6}"
           f" {'ring':>8} {'HTTP':>8} {'added':>6} {'ring':>6} {'HTTP':>6}"
           f" {'NGINX':>6} {'engine':>6} {'(ring)':>6}"]
    for name, row in rows.items():
        a, b = row["ring"], row["http"]
        note = ""
        if name.isdigit():
            note = "" if row["ratio"] >= 0.97 else "  ratio below 0.97"
        elif not row["added_ttft_ms"] < 1:
            note = "  adds 1 ms or more"
        out.append(
            f"{name:16} {a['tokens_per_s']:8.1f} {b['tokens_per_s']:8.1f}"
            f" {row['ratio']:6.3f} {a['ttft_ms']:8.2f} {b['ttft_ms']:8.2f}"
            f" {row['added_ttft_ms']:6.2f} {a['inter_token_ms']:6.2f}"
            f" {b['inter_token_ms']:6.2f} {row['gateway_us']:6.1f}"
            f" {b['engine_us']:6.1f} {a['engine_us']:6.1f}{note}")
    if args.rate:
        out.append(f"open loop, {args.rate:g} requests/s: \"{OPEN[0][0]}\" evenly "
                   f"spaced, \"{OPEN[1][0]}\" Poisson, 64 tokens out")
    return out


def said(command):
    try:
        return subprocess.run(command, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def here_or_there(path):
    """A file as one names it in the repository, or without its place."""
    if path.startswith(ROOT + os.sep):
        return os.path.relpath(path, ROOT)
    return os.path.basename(path) if path.startswith("/") else path


def about(bundle):
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        cpu = re.search(r"model name\s*: (.*)", f.read())
    with open(os.path.join(bundle, "commit"), encoding="utf-8") as f:
        commit = f.read().strip()  # of the programs; there may be no git
    gpu = said(["nvidia-smi", "--query-gpu=name,driver_version",
                "--format=csv,noheader"])
    return {
        "command": "tests/gpu/bench/bench_http.py " + " ".join(
            here_or_there(a) for a in sys.argv[1:]),
        "commit": commit,
        "hardware": f"{gpu or 'no GPU'}; {os.cpu_count()} cores of "
        f"{cpu.group(1) if cpu else os.uname().machine}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def page_of(file, facts, lines):
    """The page beside the figures; notes that somebody wrote stay."""
    page = re.sub(r"\.json$", "", file) + ".md"
    notes = ""
    if os.path.exists(page):
        with open(page, encoding="utf-8") as f:
            text = f.read()
        if "\n## Notes\n" in text:
            notes = text[text.index("\n## Notes\n"):]
    with open(page, "w", encoding="utf-8") as f:
        f.write("# The stack on a GPU: HTTP beside the engine's ring\n\n"
                + "".join(f"- {k}: {v}\n" for k, v in facts.items())
                + "\n```\n" + "\n".join(lines) + "\n```\n" + notes)


def main():
    args = arguments()
    begin = time.time()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    facts = about(args.bundle)
    data, lines = {}, []
    failed = 0

    def over():
        return time.time() - begin > args.budget

    with tempfile.TemporaryDirectory(prefix="tokenring-http-") as top:
        model = dummy_model(args.model, os.path.join(top, "model"))
        for want in args.policies.split(","):
            policy, _, rounds = want.partition(":")
            if over():
                lines.append(f"{policy}: left out, time was up")
                continue
            directory = os.path.join(top, policy)
            os.mkdir(directory)
            stack = None
            try:
                stack = Stack(args, directory, model, policy)
                print(f"{policy}: engine ready in {stack.start_s:.1f} s",
                      file=sys.stderr, flush=True)
                cases = measure(stack, args, int(rounds or 1), over)
                rows = {k: summary(v) for k, v in cases.items()}
                data[policy] = {"rows": rows, "rounds": cases}
                lines += lines_of(policy, rows, args) + [""]
            except RuntimeError as e:
                failed = 1
                lines.append(f"{policy}: FAILED: {e}")
            finally:
                if stack is not None:
                    stack.stop()
    lines.append(f"NGINX: {args.workers} workers; CPU time of them, and of all "
                 "the engine's threads, for a token; (ring): without HTTP")
    print("\n".join(lines))
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump({**facts, "options": {k: here_or_there(v) if isinstance(v, str)
                                        else v for k, v in vars(args).items()},
                   "results": data}, f, indent=1)
        f.write("\n")
    page_of(args.out, facts, lines)
    sys.exit(failed)


if __name__ == "__main__":
    main()
