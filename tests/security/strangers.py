"""What a stranger may give: a site of HTTP, and the folder of a run."""

import contextlib
import dataclasses
import http.server
import json

from tests.kit.servers import serving
from tests.state.test_checkpoint_flags import FIRST, write_checkpoint
from tftrain.cli import flags
from tftrain.config.train import TrainConfig


@contextlib.contextmanager
def site(pages):
    """Serves pages by path, or by a function of the path; yields the address, and the paths that were asked for."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = pages(self.path) if callable(pages) else pages.get(self.path, pages.get(f"{self.path}/"))
            length, body = body if isinstance(body, tuple) else (len(body or b""), body)
            self.send_response(200 if body is not None else 404)
            is_page = bool(body) and body.startswith(b"<a")
            self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    with serving(Handler) as (host, port):
        yield f"http://{host}:{port}", asked


def links(*names):
    """The page of a folder with files of these names."""
    return "".join(f'<a href="{name}">x</a>' for name in names).encode()


def run_folder(path, *given, **values):
    """Writes a checkpoint without tensors, as of a run with some flags, whose manifest has other values."""
    config = flags.parse(TrainConfig, ["run", *FIRST, *given, f"--output_dir={path}"]).resolve(1)
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    for name, value in values.items():
        section = next(part for part in saved.values() if name in part)
        section[name] = value
    write_checkpoint(path, saved)
    return path
