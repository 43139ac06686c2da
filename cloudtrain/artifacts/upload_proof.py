"""Proves that a node's files reach the store: one small file, uploaded as artifacts are."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor

from cloudtrain.artifacts.inventory import Wanted, take_inventory
from cloudtrain.artifacts.sync import store_files
from cloudtrain.artifacts.upload import Upload
from cloudtrain.core.errors import CloudtrainError, StepFailed, StoreError
from cloudtrain.core.model import Node
from cloudtrain.core.protocols import ArtifactStore, Transport
from cloudtrain.core.shell import script


def prove_upload(
    node: Node, folder: str, store: ArtifactStore, key: str, transport: Transport
) -> str:
    """Have a node write a file in `folder` and upload it as `key`; read and delete it from here.

    Returns in words how it came and where it is, if it could not be deleted. Raises StoreError,
    NodeError.
    """
    word = secrets.token_hex(32)
    done = transport.run(node, script('mkdir -p "$1" && printf %s "$2" >"$1/proof"', folder, word))
    if done.exit_code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise StepFailed(node.name, f"cannot write in {folder}: {said}")
    listed = take_inventory(node, folder, Wanted(patterns=("proof",)), transport)
    try:
        with ThreadPoolExecutor(1) as pool:
            upload = Upload(transport=transport, store=store, pool=pool)
            arrived, detour = store_files(node, folder, {key: listed.files[0]}, upload)
        if not arrived or b"".join(store.download(key)) != word.encode():
            raise StoreError(f"{store.uri}/{key} is not what {node.name} uploaded")
    finally:
        left = _deleted(store, key)
    signed = "by the node, with a request signed here"
    way = detour or (signed if store.presigner else "through this machine")
    return f"{len(word)} bytes {way}; read back and {left or 'deleted'}"


def _deleted(store: ArtifactStore, key: str) -> str:
    """Delete the file; "" once it is gone, else where it is left and why."""
    try:
        store.delete(key)
    except CloudtrainError as error:
        return f"left as {store.uri}/{key}: {error.message}"
    return ""
