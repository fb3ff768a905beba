"""Pictures of a built site's pages on a phone and a desktop, in both colours.

    python docs/screenshots.py site pictures

Chromium, or Chrome, draws them without a window. A page wider than its screen is
a fault: a line names it, and the exit status is 1.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PAGES = (
    "index", "tutorials/digits", "textbook/05_all_compute_units", "studies/peers",
    "reference/networks",
)
WIDTHS = {"phone": 500, "desktop": 1300}  # Chromium has no narrower window
HEIGHT = 2400
DARK = "--blink-settings=preferredColorScheme=0"
MEASURE = (
    "<script>addEventListener('load', () => { document.body.dataset.wide = "
    "document.documentElement.scrollWidth })</script>"
)


def browser() -> str | None:
    """Return the path of a browser, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next(filter(None, map(shutil.which, names)), None)


def run(found: str, width: int, page: Path, *options: str) -> str:
    """Return what the browser prints when it shows a page."""
    with tempfile.TemporaryDirectory() as profile:
        return subprocess.run(
            [
                found, "--headless", "--no-sandbox", "--disable-gpu",
                f"--user-data-dir={profile}", f"--window-size={width},{HEIGHT}",
                "--hide-scrollbars", *options, page.as_uri(),
            ],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout


def wide(found: str, width: int, page: Path) -> int:
    """Return the width in pixels that a page needs in a window."""
    copy = page.with_name(f"{page.stem}.measured.html")
    copy.write_text(page.read_text("utf-8") + MEASURE, "utf-8")
    try:
        shown = run(found, width, copy, "--dump-dom")
    finally:
        copy.unlink()
    measured = re.search(r'data-wide="(\d+)"', shown)
    return int(measured[1]) if measured else width


def main(site: Path, out: Path) -> int:
    """Draw the pages, and return the exit status."""
    found = browser()
    if found is None:
        print("no Chromium is installed")
        return 1
    out.mkdir(parents=True, exist_ok=True)
    faults = 0
    for name in PAGES:
        page = (site / f"{name}.html").resolve()
        for screen, width in WIDTHS.items():
            for colour, options in (("light", ()), ("dark", (DARK,))):
                file = out / f"{page.stem}-{screen}-{colour}.png"
                run(found, width, page, f"--screenshot={file}", *options)
            if (needed := wide(found, width, page)) > width:
                print(f"{name}: {needed} pixels wide on a {screen} of {width}")
                faults += 1
    print(f"{len(PAGES) * len(WIDTHS) * 2} pictures in {out}, {faults} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
