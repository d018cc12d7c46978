#!/usr/bin/env python3
"""Plays a short story with the release binary, and writes it as an animated picture of a terminal.

    scripts/picture.py FILE.svg

The story happens in a network namespace of its own, which needs root and unshare: a proxy for two endpoints, killed
under load, its rules flushed, and a question to it. Answers, counts and the log are those of the run; the commands that
start and kill the proxy are drawn, with fewer flags than they have.
"""
import html
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SWITCHYARD = Path(__file__).resolve().parent.parent / "target/release/switchyard"
PODS = ["10.244.1.4", "10.244.1.5"]
MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.0.17, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-x2k, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.4], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.244.1.5], nodeName: node-1, conditions: {ready: true}}
- {addresses: [10.244.2.6], nodeName: node-2, conditions: {ready: false}}
"""
COLUMNS, ROWS, LINE, WIDTH, MARGIN = 104, 27, 19, 8.1, 16


class Pod(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"pod {self.connection.getsockname()[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Load(threading.Thread):
    """Opens one connection after the other."""

    def __init__(self):
        super().__init__(daemon=True)
        self.served = self.failed = 0

    def run(self):
        while True:
            try:
                with socket.create_connection(("10.96.0.17", 80), 2):
                    self.served += 1
            except OSError:
                self.failed += 1
            time.sleep(0.0005)


class Story:
    """Lines with the seconds at which they appear."""

    def __init__(self):
        self.now, self.lines = 0.5, []

    def add(self, text, kind="o", pause=0.05):
        for line in text.rstrip("\n").split("\n"):
            self.lines.append((self.now, line[:COLUMNS], kind))
            self.now += pause

    def command(self, text, shown=None, wait=1.6):
        """Runs a command by the shell, and shows what it prints, or `shown` of that."""
        self.add("$ " + text, "c", 0.6)
        ran = subprocess.run(text, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if ran.returncode:
            sys.exit(f"{text}: {ran.stdout}")
        self.add(shown(ran.stdout) if shown else ran.stdout)
        self.add("")
        self.now += wait


def play():
    for argument in [["link", "set", "lo", "up"], ["route", "add", "10.96.0.0/16", "dev", "lo"]]:
        subprocess.run(["ip", *argument], check=True)
    for pod in PODS:
        subprocess.run(["ip", "address", "add", f"{pod}/32", "dev", "lo"], check=True)
        server = http.server.ThreadingHTTPServer((pod, 8080), Pod)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    story, load = Story(), Load()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        os.environ["PATH"] = f"{SWITCHYARD.parent}:{os.environ['PATH']}"
        Path("manifests").mkdir()
        Path("manifests/cart.yaml").write_text(MANIFEST)
        log = Path("log")

        def start():
            flags = ["--manifests=manifests", "--hostname-override=node-1", "--local-socket=socket"]
            proxy = subprocess.Popen(["switchyard", *flags], stderr=log.open("w"))
            until(lambda: subprocess.run(["curl", "-sf", "127.0.0.1:10256/readyz"], stdout=subprocess.DEVNULL).returncode == 0)
            return proxy

        story.add("$ switchyard --manifests manifests &", "c", 0.9)
        proxy = start()
        story.command("for i in 1 2 3 4; do curl -s http://10.96.0.17/; done")
        load.start()
        story.add("$ kill -9 $(pidof switchyard)", "c", 0.8)
        before, begun = load.served, time.monotonic()
        proxy.kill()
        proxy.wait()
        time.sleep(1.0)
        served, seconds = load.served - before, time.monotonic() - begun
        story.add(f"# dead for {seconds:.1f} s: {served:,} new connections, {load.failed} failed", "n", 1.8)
        story.add("$ switchyard --manifests manifests &", "c", 0.6)
        proxy = start()
        story.add(f"# back: {load.failed} failed", "n", 1.8)
        story.add("")
        lines = re.compile(r'^[WI]\S+ \S+ +\d+ \S+\] (.*)$', re.M)
        before = load.failed
        story.command("nft flush chain ip kube-proxy services", lambda _: repaired(log, lines))
        # A connection of that moment fails by then.
        time.sleep(2.5)
        story.add(f"# repaired: {load.failed - before} connections failed meanwhile", "n", 1.8)
        story.add("")
        story.command("switchyard explain shop/cart --local-socket=socket", wait=6)
        proxy.send_signal(signal.SIGTERM)
        proxy.wait()
    return story


def until(is_done, seconds=10):
    for _ in range(seconds * 20):
        if is_done():
            return
        time.sleep(0.05)
    sys.exit(f"something did not happen in {seconds} s")


def repaired(log, lines):
    """Waits until the log names who changed the rules, and what was repaired."""
    found = []

    def is_done():
        found[:] = [line for line in lines.findall(log.read_text()) if "another program" in line]
        return any("Repaired" in line for line in found)

    until(is_done)
    return "\n".join(found)


def draw(story):
    """Returns an animation that shows each line from its time on, and scrolls."""
    end = story.now
    percent = lambda at: f"{100 * at / end:.2f}%"
    rules, texts, scrolls = [], [], ["0%{transform:none}"]
    for number, (at, line, kind) in enumerate(story.lines):
        hidden = number + 1 - ROWS
        if hidden > 0:
            scrolls.append(f"{percent(at)}{{transform:translateY({-hidden * LINE}px)}}")
        if line:
            rules.append(f"@keyframes k{number}{{0%{{opacity:0}}{percent(at)},100%{{opacity:1}}}}#l{number}{{animation-name:k{number}}}")
            texts.append(f'<text id="l{number}" class="{kind}" y="{(number + 1) * LINE}">{html.escape(line)}</text>')
    width, height = round(COLUMNS * WIDTH + 2 * MARGIN), ROWS * LINE + 2 * MARGIN
    last = scrolls[-1].split("{", 1)[1].rstrip("}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>Switchyard is killed under load, its rules are flushed, and it explains a Service</title>
<style>
text{{font:13.5px/1 ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#c9d1d9;white-space:pre}}
.c{{fill:#fff;font-weight:bold}}.n{{fill:#7ee787}}
text{{animation:{end:.1f}s step-end infinite}}#s{{animation:s {end:.1f}s step-end infinite}}
@keyframes s{{{"".join(scrolls)}}}
{chr(10).join(rules)}
@media (prefers-reduced-motion){{text,#s{{animation:none}}#s{{{last}}}}}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg x="{MARGIN}" y="{MARGIN - 4}" width="{width - 2 * MARGIN}" height="{ROWS * LINE + 8}"><g id="s">
{chr(10).join(texts)}
</g></svg>
</svg>
"""


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        Path(sys.argv[2]).write_text(draw(play()))
    else:
        script, target = Path(__file__).resolve(), Path(sys.argv[1]).resolve()
        sys.exit(subprocess.run(["unshare", "--net", sys.executable, script, "--inside", target]).returncode)
