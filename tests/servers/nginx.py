"""Debian's nginx with `examples/deploy/nginx.conf`, installed from Debian's packages where it is missing.

Only what a machine has to differ in is replaced: the port, the certificate, the address of the service, and the places
of nginx's own files.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
from pathlib import Path

from tests import debian
from tests.certificates import write_certificate
from tests.servers import process

SITE = Path(__file__).resolve().parents[2] / "examples/deploy/nginx.conf"
MAIN = Path("/etc/nginx/nginx.conf")
NAME = "private.example.org"
"""The server name in `examples/deploy/nginx.conf`."""


def start(folder: Path, service: str) -> int:
    """Start nginx in front of a service and wait until it accepts connections.

    Args:
        folder: a new folder for all its files; the certificate is in `tls.pem`.
        service: the URL of the service.

    Returns:
        its port on the loopback addresses.

    Raises:
        RuntimeError: nginx is missing and cannot be installed, or it did not start.
    """
    program, port = _program(), process.free_port()
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = write_certificate(folder, NAME)
    replaced = {
        "listen 443 ssl": f"listen {port} ssl",
        f"/etc/ssl/{NAME}.pem": str(certificate),
        f"/etc/ssl/{NAME}.key": str(key),
        "http://127.0.0.1:8080": service,
        "/var/log/nginx/": f"{folder}/",
    }
    (folder / "site.conf").write_text(_replace(SITE.read_text(), replaced))
    main = {
        "/run/nginx.pid": f"{folder}/nginx.pid.own",
        "/var/log/nginx/": f"{folder}/",
        "include /etc/nginx/sites-enabled/*;": f"include {folder}/site.conf;",
        "include /etc/nginx/conf.d/*.conf;": "",
        "include /etc/nginx/modules-enabled/*.conf;": "",  # whose paths are relative to the folder of a package
    }
    text = _replace(MAIN.read_text(), main)
    if os.geteuid():
        text = re.sub(r"^user .*$", "", text, flags=re.MULTILINE)
    else:
        for place in (folder, *folder.parents):  # the workers run as www-data
            if place.stat().st_uid == os.geteuid() and place != Path("/"):
                place.chmod(place.stat().st_mode | 0o011)
    (folder / "nginx.conf").write_text(text)
    command = [program, "-p", folder, "-c", folder / "nginx.conf", "-g", "daemon off;"]
    process.start(folder, "nginx", command, lambda: _answers(port))
    return port


def stop(folder: Path) -> None:
    """Stop the server that was started in *folder*."""
    process.stop(folder, "nginx")


def client_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts the server in *folder*."""
    return ssl.create_default_context(cafile=str(folder / "tls.pem"))


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        return True


def _replace(text: str, replaced: dict[str, str]) -> str:
    for before, after in replaced.items():
        if before not in text:
            raise RuntimeError(f"the configuration of nginx has no {before!r}")
        text = text.replace(before, after)
    return text


def _program() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found:
        return found
    debian.install("nginx", "nginx")
    return _program()
