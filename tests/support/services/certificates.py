"""Certificates of servers of environments, made by OpenSSL as docs/socket.md makes them, and by an authority."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256")
LOOPBACK = "subjectAltName=IP:127.0.0.1,DNS:localhost"


@dataclass(frozen=True)
class Certificate:
    """The paths of a certificate and its key."""

    certificate: str
    key: str

    @property
    def tls(self) -> tuple[str, str]:
        """Return both, as a server takes them."""
        return self.certificate, self.key


def self_signed(folder: Path, name: str, hosts: str = LOOPBACK) -> Certificate:
    """Make a certificate that vouches for itself."""
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem"))
    _openssl(
        *("req", "-x509", *_NEW_KEY, "-days", "30", "-subj", "/CN=environments", "-addext", hosts),
        *("-keyout", made.key, "-out", made.certificate),
    )
    return made


def signed(folder: Path, name: str, authority: Certificate) -> Certificate:
    """Make a certificate of loopback that another one has signed."""
    made, request = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem")), folder / f"{name}.csr"
    extensions = folder / f"{name}.extensions"
    extensions.write_text(f"{LOOPBACK}\nbasicConstraints=critical,CA:FALSE\n")
    _openssl("req", "-new", *_NEW_KEY, "-subj", "/CN=environments", "-keyout", made.key, "-out", str(request))
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", authority.certificate, "-CAkey", authority.key),
        *("-CAcreateserial", "-sha256", "-days", "30", "-extfile", str(extensions), "-out", made.certificate),
    )
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=150)
