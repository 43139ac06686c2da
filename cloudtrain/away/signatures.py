"""Signed text in a store, by Ed25519: exactly the bytes that were signed are read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.core.codec import decode
from cloudtrain.core.errors import CredentialsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ORDER = b"cloudtrain order 1\n"
STATE = b"cloudtrain desk state 1\n"
ANSWER = b"cloudtrain desk answer 1\n"
DESK_KEY = b"cloudtrain desk key 1\n"
"""Before what is signed: no signature for one purpose means anything for another."""

NOT_SIGNED = "not signed by this run's controller"


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key pair; `path` is the file of the private half (PEM, mode 0600)."""

    path: Path
    _private: Ed25519PrivateKey = field(repr=False)

    @property
    def public(self) -> str:
        """`ssh-ed25519 AAAA…`"""
        from cryptography.hazmat.primitives import serialization

        return (
            self._private.public_key()
            .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            .decode("ascii")
        )

    def sign(self, purpose: bytes, text: str) -> str:
        """The signature in base64. Raises UnicodeEncodeError for text that is not ASCII."""
        return base64.b64encode(self._private.sign(purpose + text.encode("ascii"))).decode("ascii")


def load_key(path: Path, what: str) -> SigningKey:
    """Read the private key, of PKCS 8 or OpenSSH. Raises CredentialsError naming the file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_ssh_private_key,
    )

    try:
        data = path.read_bytes()
        read = load_ssh_private_key if b"OPENSSH PRIVATE KEY" in data else load_pem_private_key
        private = read(data, password=None)
        if isinstance(private, Ed25519PrivateKey):
            return SigningKey(path, private)
        fault = "it is not an Ed25519 key"
    except OSError as error:
        fault = error.strerror or str(error)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        fault = "it is not an unencrypted private key in PEM"
    raise CredentialsError(f"the {what} {path} cannot be read: {fault}")


def is_signed(public_keys: Sequence[str], purpose: bytes, text: str, signature: str) -> bool:
    """True if one of the keys has signed exactly this text for this purpose."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    for each in public_keys:
        try:
            public = load_ssh_public_key(each.encode("ascii"))
            if isinstance(public, Ed25519PublicKey):
                message = purpose + text.encode("ascii")
                public.verify(base64.b64decode(signature, validate=True), message)
                return True
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, binascii.Error):
            continue
    return False


@dataclass(frozen=True, kw_only=True)
class _Signed:
    signed: str
    signature: str


def signed_text(key: SigningKey | None, purpose: bytes, text: str) -> bytes:
    """The text with its signature, as JSON; without a key the bare text."""
    if key is None:
        return text.encode("ascii")
    document = _Signed(signed=text, signature=key.sign(purpose, text))
    return json.dumps(asdict(document)).encode("ascii")


def read_signed(public_keys: Sequence[str], purpose: bytes, data: bytes) -> tuple[object, bool]:
    """The JSON value in the text, and whether one of the keys has signed it. Earlier versions
    wrote it without a signature. Raises ValueError, RecursionError.
    """
    found = json.loads(data)
    if not isinstance(found, dict) or "signed" not in found:
        return found, False
    whole = decode(_Signed, found)
    return json.loads(whole.signed), is_signed(public_keys, purpose, whole.signed, whole.signature)
