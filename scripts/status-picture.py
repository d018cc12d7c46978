#!/usr/bin/env python3
"""Checks the status page of the release binary in headless Chromium, and writes a picture of it.

    scripts/status-picture.py FILE.png

The proxy serves the examples in a network namespace of its own, which needs root and unshare; another program deletes its
table, so that the page has something to say. The page is looked at on a phone and on a desk, light and dark: it must have
its parts, fit the width, follow the colours of the system, run nothing, and ask for nothing but itself.
"""
import base64
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
from picture import SWITCHYARD, until

ROOT = Path(__file__).resolve().parent.parent
PAGE = "http://127.0.0.1:10249/status"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
# What nftables mode cannot do, for the part of the page that says so.
UNUSUAL = """
apiVersion: v1
kind: Service
metadata: {name: queue, namespace: shop, annotations: {switchyard/lb-algorithm: least-connections}}
spec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}
"""
PARTS = [
    "Is anything wrong?",
    "How fast?",
    "Who touched our rules?",
    "Connection tracking",
    "Where does it go?",
    "What is not served as it asks?",
]
LOOKS = [(390, 844, "light"), (390, 844, "dark"), (1120, 800, "light"), (1120, 800, "dark")]
# The connections to addresses of the examples.
CONNECTIONS = {"10.96.0.10": 12, "10.96.0.30": 5, "10.96.0.40": 3}
# The looks that the picture shows, side by side.
SHOWN = [LOOKS[0], LOOKS[3]]
FACTS = """({
  title: document.title, h1: document.querySelector("h1").textContent, text: document.body.innerText,
  parts: [...document.querySelectorAll("section h2")].map(e => e.textContent),
  rows: [...document.querySelectorAll("section")].map(e => e.querySelectorAll("dt").length),
  active: document.querySelectorAll("script, iframe, object, embed, img, link, form").length,
  overflow: document.documentElement.scrollWidth - innerWidth,
  cut: [...document.querySelectorAll("h1, dt, dd")].filter(e => e.scrollWidth > e.clientWidth + 1).length,
  columns: getComputedStyle(document.querySelector("main")).gridTemplateColumns.split(" ").length,
  back: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
})"""


class Browser:
    """A browser that is led by its protocol for developers, over two pipes."""

    def __init__(self, directory):
        (commands, self.to), (self.answers, answers) = os.pipe(), os.pipe()

        def pipes():
            # The browser reads from 3 and writes to 4, which may be among those of this process.
            high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, f"--user-data-dir={directory}"], preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(commands)
        os.close(answers)
        self.number, self.rest, self.events, self.session = 0, b"", [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ["Page", "Network", "Runtime", "Log"]:
            self.ask(f"{part}.enable")

    def read(self):
        while b"\0" not in self.rest:
            part = os.read(self.answers, 1 << 20)
            part or sys.exit("the browser ended")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.number:
                return message["result"] if "result" in message else sys.exit(f"{method}: {message}")
            self.events.append(message)

    def open(self, url):
        self.events.clear()
        self.ask("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.read())

    def show(self, width, height, colours):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])

    def value(self, script):
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"]["value"]

    def picture(self):
        return self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]


def check(browser, look):
    """Looks at the page, and returns its facts and a picture."""
    browser.show(*look)
    browser.open(PAGE)
    facts = browser.value(FACTS)
    asked = [event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
    complaints = [event for event in browser.events if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
    for fact, is_so in {
        f"asks for {asked}": set(asked) == {PAGE},
        f"the browser complains: {complaints}": not complaints,
        f"has the parts {facts['parts']}": facts["parts"] == PARTS and all(facts["rows"]),
        f"is called {facts['title']}": facts["title"] == "node-1 - Switchyard",
        f"begins with {facts['h1']}": facts["h1"].startswith("node-1 serves ") and facts["h1"].endswith("nothing is wrong."),
        "does not name who deleted the table": "nft (process " in facts["text"],
        "does not have the reason": "least-connections" in facts["text"],
        "does not have the connections": "12 entries, " in facts["text"],
        f"has {facts['active']} active elements": facts["active"] == 0,
        f"is {facts['overflow']} pixels too wide, or cuts {facts['cut']} texts": facts["overflow"] <= 0 and facts["cut"] == 0,
        f"has {facts['columns']} columns": (facts["columns"] == 1) == (look[0] < 600),
        f"has {facts['ink']} on {facts['back']}": contrast(facts["ink"], facts["back"]) >= 7,
        "has the other colours": (luminance(facts["back"]) < 0.5) == (look[2] == "dark"),
    }.items():
        is_so or sys.exit(f"the page at {look}: {fact}")
    return browser.picture()


def luminance(colour):
    """The relative luminance of `rgb(...)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def connect(address):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex((address, 80))
    return client


def status():
    try:
        with urllib.request.urlopen(f"{PAGE}?format=json") as answer:
            return json.load(answer)
    except OSError:
        return {}


def play(target):
    for line in [
        "link set lo up",
        "link add pods type veth peer name far",
        "link set pods up",
        "link set far up",
        "address add 192.168.10.1/24 dev pods",
        "route add 10.0.0.0/8 dev pods",
    ]:
        subprocess.run(["ip", *line.split()], check=True)
    with tempfile.TemporaryDirectory() as directory:
        manifests = Path(directory, "manifests")
        manifests.mkdir()
        for file in (ROOT / "examples").glob("*.yaml"):
            shutil.copy(file, manifests)
        (manifests / "queue.yaml").write_text(UNUSUAL)
        flags = [f"--manifests={manifests}", "--hostname-override=node-1", "--proxy-mode=nftables", "--local-socket="]
        flags.append("--conntrack-services-period=10s")
        proxy = subprocess.Popen([SWITCHYARD, *flags], stderr=subprocess.DEVNULL)
        browser = Browser(Path(directory, "profile"))
        try:
            until(lambda: status().get("lastSync"))
            subprocess.run(["nft", "delete", "table", "ip", "kube-proxy"], check=True)
            until(lambda: status().get("lastDrift"))
            # Nobody answers, which connection tracking counts all the same.
            clients = [connect(address) for address, count in CONNECTIONS.items() for _ in range(count)]
            # The next count is up to a period away.
            until(lambda: any(one["to"] == "default/web" for one in status().get("destinations") or []), seconds=30)
            pictures = {look: check(browser, look) for look in LOOKS}
            images = [f'<img src="data:image/png;base64,{pictures[look]}">' for look in SHOWN]
            browser.show(sum(look[0] for look in SHOWN) + 16, 100, "light")
            page = f'<body style="margin:0;background:#12161c;display:flex;gap:16px;align-items:start;width:max-content">{"".join(images)}'
            browser.open("data:text/html," + urllib.parse.quote(page))
            target.write_bytes(base64.b64decode(browser.picture()))
        finally:
            for process in (browser.process, proxy):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    CHROMIUM or sys.exit("neither chromium nor chromium-headless-shell is installed")
    if sys.argv[1] == "--inside":
        play(Path(sys.argv[2]))
    else:
        script, target = Path(__file__).resolve(), Path(sys.argv[1]).resolve()
        sys.exit(subprocess.run(["unshare", "--net", sys.executable, script, "--inside", target]).returncode)
