"""Certificates for the tests of TLS, made by openssl's own command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, PEM files."""

    cert: Path
    key: Path


def make_authority(folder: Path, name: str) -> Identity:
    """One who signs certificates."""
    return _make(folder, name, "-x509", "-addext", "basicConstraints=critical,CA:TRUE")


def sign(folder: Path, name: str, authority: Identity) -> Identity:
    """One whom an authority has signed, for ``localhost``."""
    return _make(
        folder,
        name,
        *("-x509", "-CA", str(authority.cert), "-CAkey", str(authority.key)),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
    )


def channel_credentials(
    authority: Identity, client: Identity | None = None
) -> grpc.ChannelCredentials:
    """A client that trusts an authority, and shows a certificate of its own."""
    if client is None:
        return grpc.ssl_channel_credentials(authority.cert.read_bytes())
    return grpc.ssl_channel_credentials(
        authority.cert.read_bytes(), client.key.read_bytes(), client.cert.read_bytes()
    )


def _make(folder: Path, name: str, *options: str) -> Identity:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = Identity(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-keyout", str(made.key), "-out", str(made.cert)]
    subprocess.run([*command, *options], check=True, capture_output=True)  # noqa: S603
    return made
