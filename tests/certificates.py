"""Certificates for tests: an authority that the test trusts, one that it doesn't, and what they signed."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

HERE = "127.0.0.1"


class Authority:
    """Signs certificates and writes them into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ca = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def certificate(
        self,
        name: str,
        *,
        organization: str | None = None,
        hosts: Sequence[str] = (HERE, "localhost"),
        ends: datetime | None = None,
    ) -> tuple[Path, Path]:
        """Give the files of a certificate for `CN=name`, a server here or a client, and of its key."""
        leaf = self._ca.issue_cert(
            *hosts,
            common_name=name,
            organization_name=organization,
            organization_unit_name="Tests",
            not_after=ends,
        )
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(_pkcs8(leaf.private_key_pem.bytes()))
        return certificate, key

    def keystore(self, name: str) -> Path:
        """Give one file with a key and its certificate, as a Kafka broker takes it."""
        certificate, key = self.certificate(name)
        both = self.folder / f"{name}.keystore.pem"
        both.write_bytes(key.read_bytes() + certificate.read_bytes())
        return both

    def trust(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Give a client's context that trusts this authority alone, with a certificate of its own if one is given."""
        context = ssl.create_default_context(cafile=str(self.file))
        if client is not None:
            context.load_cert_chain(*client)
        return context


def _pkcs8(pem: bytes) -> bytes:
    key = serialization.load_pem_private_key(pem, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
