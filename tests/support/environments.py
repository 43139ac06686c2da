"""Virtual environments with pip, in a tenth of a second: `python -m venv` takes three of CPU time,
for it installs pip from a wheel and compiles it.

pip is installed by `python -m venv` once per Python and machine, into this user's cache. An
environment here has links to it: whatever pip does there is real, and changes that environment
alone. Nothing may upgrade pip in one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote

import platformdirs

from tests.support.project import ROOT

UV = Path(sys.executable).with_name("uv")
"""That of this environment (pyproject.toml, `dev`)."""


def uv_folder() -> Path:
    """A folder for PATH that has uv alone: nodes of this machine need not fetch it."""
    link = ROOT / "build" / "uv" / "uv"
    if not link.exists() and UV.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            link.symlink_to(UV)
    return link.parent


def create(folder: Path, python: str = sys.executable) -> None:
    """As `python -m venv folder`."""
    subprocess.run([_quick(python), "-m", "venv", folder], check=True)


def quick_python(place: Path, python: str = sys.executable) -> Path:
    """A program that is this Python, but for `-m venv FOLDER`: that makes such an environment."""
    place.symlink_to(_quick(python))
    return place


@cache
def _quick(python: str) -> Path:
    """Of the interpreter behind a version manager's shim or an environment."""
    real = Path(_said(python, "import sys; print(sys._base_executable)"))
    folder = Path(os.environ.get("CLOUDTRAIN_CACHE") or platformdirs.user_cache_dir("cloudtrain"))
    version = _said(python, "import sys; print('%d.%d.%d' % sys.version_info[:3])")
    recipe = f"{zlib.crc32(f'{_SCRIPT}{real}'.encode()):08x}"
    made = folder / "tests" / f"pip-of-python-{version}-{recipe}"
    made.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{made}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            half = Path(f"{made}.half")
            shutil.rmtree(half, ignore_errors=True)
            subprocess.run([real, "-m", "venv", half], check=True, stdin=subprocess.DEVNULL)
            script = _SCRIPT.format(real=quote(str(real)), made=quote(str(made)))
            (half / "quick").write_text(script)
            (half / "quick").chmod(0o755)
            half.rename(made)
    return made / "quick"


def _said(python: str, code: str) -> str:
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


_SCRIPT = """\
#!/bin/sh
[ "$1 $2 $#" = "-m venv 3" ] || exec {real} "$@"
{real} -m venv --without-pip "$3" || exit
PATH=$PATH:/usr/bin:/bin
cd "$3" && python=$PWD/bin/python || exit
ln -s {made}/lib/python3*/site-packages/* lib/python3*/site-packages/ || exit
for script in {made}/bin/pip*; do
    script=bin/${{script##*/}}
    case $python in
        *" "*) printf '#!/bin/sh\\n%s "%s" "$0" "$@"\\n%s\\n' "'''exec'" "$python" "' '''";;
        *) echo "#!$python";;
    esac >"$script"
    echo 'import sys; from pip._internal.cli.main import main; sys.exit(main())' >>"$script"
    chmod 755 "$script"
done
"""
"""Its scripts of pip begin as pip's own do."""
