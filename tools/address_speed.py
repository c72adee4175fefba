"""Prints how fast a run trains on data at an address whose every request takes 50 ms, beside the same data on the disk.

    python tools/address_speed.py --data_dir=data/tiny

The server is one of HTTP on this machine. Runs on the disk and at the address take turns, and the fastest of each
counts, which other work on the machine has disturbed least. "no cache" reads each record by a request of its own, as a
run does with records beyond --cache_gb.
"""

import argparse
import functools
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CONFIG = "configs/tiny.flags"


class Slow(http.server.SimpleHTTPRequestHandler):
    """Serves ranges of the files of a folder, each after a while."""

    protocol_version, seconds = "HTTP/1.1", 0.05

    def send_head(self):
        """Sends the head of a file or a range, and then the range itself."""
        time.sleep(self.seconds)
        path, wanted = Path(self.translate_path(self.path)), self.headers.get("Range")
        if wanted is None or not path.is_file():
            return super().send_head()
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        with open(path, "rb") as file:
            file.seek(first)
            content = file.read(last - first + 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{path.stat().st_size}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    def end_headers(self):
        """Says that there are ranges."""
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_):
        """Prints nothing."""


def seconds_of_steps(data_dir: str, steps: int, *flags: str) -> float:
    """Returns the seconds that a run took from its second step to its last, batches included."""
    with tempfile.TemporaryDirectory() as folder:
        data = [f"--data_dir={data_dir}", f"--output_dir={folder}/run", f"--cache_dir={folder}/cache"]
        options = [f"--max_steps={steps}", "--log_every=5", "--eval_every=-1", "--checkpoint_minutes=0", *flags]
        command = [sys.executable, "-m", "tftrain.run", f"--flagfile={CONFIG}", *data, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in Path(folder, "run/metrics.jsonl").read_text().splitlines()]
    return sum(row["step_time_s"] for row in rows if "loss" in row) / sum("loss" in row for row in rows)


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="a folder of tftrain.prepare")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    settings = parser.parse_args()
    handler = functools.partial(Slow, directory=os.path.abspath(settings.data_dir))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = "http://{}:{}".format(*server.server_address)
    cases = {
        "disk": (settings.data_dir,),
        "address": (address,),
        "address, no cache": (address, "--cache_gb=0"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(settings.turns):
        for name, (data_dir, *flags) in cases.items():
            seconds[name].append(seconds_of_steps(data_dir, settings.steps, *flags))
    disk = min(seconds["disk"])
    print("| data | s a step | of the speed on the disk |\n| --- | --- | --- |")
    for name, times in seconds.items():
        print(f"| {name} | {min(times):.4f} | {disk / min(times):.1%} |")


if __name__ == "__main__":
    main()
