"""Small wheels, written here, and the digest of an environment."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path


def wheel(
    folder: Path, name: str, version: str = "1.0", *requires: str, tag: str = "py3-none-any"
) -> Path:
    """A wheel of a module `name`, and a command of that name that prints where both run from."""
    told = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    extras = {found for line in requires for found in re.findall(r"extra == '([^']+)'", line)}
    needs += "".join(f"Provides-Extra: {extra}\n" for extra in sorted(extras))
    files = {
        f"{name}.py": f"import sys\nVERSION = {version!r}\n\n"
        "def main():\n    print(VERSION, sys.prefix)\n",
        f"{told}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{told}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{told}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
    }
    files[f"{told}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{told}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(place, "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
    return place


def digest(environment: Path) -> str:
    """Of paths, contents and links; not of what Python caches while it runs."""
    found = hashlib.sha256()
    for path in sorted(environment.rglob("*")):
        if "__pycache__" in path.parts or path.is_dir():
            continue
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        found.update(f"{path.relative_to(environment)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()
