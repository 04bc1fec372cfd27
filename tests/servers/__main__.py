"""`python -m tests.servers start|stop [NAME...]`: start or stop servers for trials in build/servers; default: all."""

from __future__ import annotations

import argparse
import importlib
import shutil
from pathlib import Path

from tests.servers import NAMES

FOLDER = Path("build/servers").absolute()


def main() -> None:
    """Start or stop servers, and print their URLs."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("action", choices=["start", "stop"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no server {unknown.pop()!r}; there are {', '.join(NAMES)}")
    for name in arguments.names or NAMES:
        server = importlib.import_module(f"tests.servers.{name}")
        server.stop(FOLDER / name)
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        if arguments.action == "start":
            (FOLDER / name).mkdir(parents=True)
            print(f"{name}: {server.start(FOLDER / name)}", flush=True)


if __name__ == "__main__":
    main()
