"""Draws a page of HTML as a PNG, as Chromium shows it: the pictures of pages in docs/.

python tools/page_picture.py build/quickstart/run/report.html docs/report_page.png --width=1200 --height=1230
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

COLOURS = 64  # a page has few; a file of docs/ is small


def main() -> None:
    """Draws the page that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="the page of HTML")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--width", type=int, default=1400, help="of the window, in pixels (default 1400)")
    parser.add_argument("--height", type=int, default=1100, help="of the window, in pixels (default 1100)")
    parser.add_argument("--dark", action="store_true", help="in the dark scheme")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as profile:
        command = chromium(Path(profile))
        if not command:
            sys.exit("there is no Chromium: `make setup CHROMIUM=1` installs it")
        command += [f"--window-size={args.width},{args.height}", f"--screenshot={args.picture.resolve()}"]
        command += ["--force-dark-mode"] if args.dark else []
        subprocess.run([*command, args.page.resolve().as_uri()], check=True, capture_output=True, timeout=120)
    Image.open(args.picture).convert("RGB").quantize(COLOURS, dither=0).save(args.picture, optimize=True)


def chromium(profile: Path) -> list[str]:
    """Returns the command of Chromium without a window, with its settings in a folder; [] if it is not installed."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        return []
    command = [program, "--headless", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    command.append(f"--user-data-dir={profile}")
    return command + (["--no-sandbox"] if os.getuid() == 0 else [])  # Chromium's sandbox does not start as root.


if __name__ == "__main__":
    main()
