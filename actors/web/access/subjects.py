"""The names in a client's certificate, as settings and logs have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
}


def subjects(certificate: Mapping[str, Any]) -> list[str]:
    """Give a certificate's names: the whole subject first, as `CN=ops,O=Example`, then `CN=ops`, `DNS:…`, `URI:…`.

    Args:
        certificate: as `SSLSocket.getpeercert` gives it; one that was verified.
    """
    parts = [
        f"{SHORT.get(kind, kind)}={_escaped(value)}"
        for names in reversed(certificate.get("subject", ()))
        for kind, value in names
    ]
    common = [part for part in parts if part.startswith("CN=")]
    others = [f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ())]
    return [",".join(parts), *common, *others]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")
