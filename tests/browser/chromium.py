"""A headless Chromium, driven over its debugging pipe: no port, no driver program, no further package."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
KEYS = {
    "ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Escape": 27, "Enter": 13,
    "Home": 36, "End": 35,
}  # fmt: skip


def find_chromium():
    """Return the browser's path: CHROMIUM from the environment, or the first of the usual names; or None."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page.

    Attributes:
        errors: what the page's console complained about.
        requests: addresses that the page asked for.
    """

    def __init__(self, path, profile):
        self.errors, self.requests = [], []
        self._number, self._rest = 0, b""
        self._session = None
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()

        def ends():  # by way of numbers that are in nobody's way
            os.dup2(read_end, 1000)
            os.dup2(write_end, 1001)
            os.dup2(1000, 3)
            os.dup2(1001, 4)

        self._process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=ends, close_fds=False,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self):
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def send(self, method, seconds=60.0, **parameters):
        """Send one command and return its result."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            message = self._receive(deadline)
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def open(self, address, width=1280, height=900, mobile=False):
        """Load a page and wait until its script says that it is ready."""
        self.errors.clear()
        self.requests.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.send("Page.navigate", url=address)
        self.wait("document.documentElement.dataset.ready !== undefined")

    def evaluate(self, expression):
        """Return the value of a JavaScript expression, awaited."""
        found = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]["exception"].get("description", found)
        return found["result"].get("value")

    def wait(self, expression, seconds=30.0):
        """Wait until an expression is true."""
        code = (
            "new Promise((done, fail) => { const end = Date.now() + %d; const look = () => { let held = false; "
            "try { held = Boolean(%s); } catch (error) { held = false; } "
            "if (held) done(true); else if (Date.now() > end) done(false); else setTimeout(look, 20); }; look(); })"
        )
        assert self.evaluate(code % (int(seconds * 1000), expression)), f"never true: {expression}; {self.errors}"

    def press(self, key, shift=False):
        """Press one key."""
        text = {"text": key} if len(key) == 1 else {}
        code = KEYS[key] if key in KEYS else ord(key.upper())
        shared = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **shared, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", **shared)

    def type(self, text):
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def put(self, selector, value):
        """Set an input or select as a person would, events included."""
        self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)}); "
            f"found.value = {json.dumps(value)}; "
            "for (const kind of ['input', 'change']) found.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def click(self, selector):
        """Click the middle of an element."""
        self.point(selector)
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def show(self, selector, block="start"):
        """Scroll to an element."""
        options = json.dumps({"block": block, "behavior": "instant"})
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({options})")

    def point(self, selector):
        """Move the pointer over the middle of an element."""
        self.show(selector, "center")
        x, y = self._middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file, whole=False):
        """Write a picture of the window, or of the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(file, "wb") as out:
            out.write(base64.b64decode(shot["data"]))

    def _middle(self, selector):
        code = f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect(); "
        return self.evaluate(code + "return [box.x + box.width / 2, box.y + box.height / 2]; })()")

    def _receive(self, deadline):
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            ready = select.select([self._read], [], [], max(left, 0))[0]
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser ended"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _note(self, message):
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"].get("exception", {}).get("description", str(about)))
        elif method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in about["args"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.errors.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
