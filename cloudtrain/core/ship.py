"""Sends our own code to a node and runs it there, as text: nothing is installed.

All code that runs on nodes is in node/, and is sent only from here: a module, with its imports, on
the stdin of the Python that runs it; a shell script in its own command line."""

from __future__ import annotations

import re
from functools import cache

from cloudtrain.core import paths
from cloudtrain.core.dataclass import dataclass, field
from cloudtrain.core.shell import Command, script

PACKAGE = "cloudtrain.node"

NO_PYTHON = "python3 not found (nodes need 3.6 or newer): sudo apt-get install python3"
OLD_PYTHON = "python3 is %d.%d, but nodes need 3.6 or newer: install a newer python3"

# -I: no module of the current folder or of the user can replace a standard one.
# The shims of pyenv and asdf (in a folder `shims`) are scripts that search for the interpreter:
# 0.12 to 0.17 s with pyenv, 0.01 s without (2026-11-22; github.com/pyenv/pyenv, "Shims").
_FIND = f"""\
python=$(command -v python3) || {{ echo "{NO_PYTHON}" >&2; exit 127; }}
case $python in */shims/*) [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3;; esac
"""
_EXEC = 'exec "$python" -I -S -c "$@"\n'
START = _FIND + _EXEC
_STARTED = script(START).arguments[:3]

IS_NEW = f"""\
import sys
if sys.version_info < (3, 6):
    sys.exit("{OLD_PYTHON}" % sys.version_info[:2])
"""

# Debian's python3 is a link to python3.11: its name tells as much as its start, 11 ms of CPU. `-ef`
# is of dash, bash, BusyBox and POSIX.1-2024.
_BY_NAME = """\
for minor in 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
    [ ! "$python" -ef "${python%/*}/python3.$minor" ] || exit 0
done 2>/dev/null
"""

# For any Python 3. The modules are an argument, or the first bytes of stdin, of which the rest
# belongs to the program. A module is compiled when it is imported, and what was imported before
# `main` is kept, as in a `.pyc`: compiling takes half of a short program's time. It is kept in a
# home of this user, by the texts' digest and Python's version, and nowhere else.
# Imports nothing: `json` takes as long as the start of Python. Garbage is not looked for while
# modules load, nor at the end of a program without threads: a fifth of a short one's time.
BOOT = f"""\
{IS_NEW}
import gc, marshal, os
gc.disable()
main, digest, source = sys.argv[1:4]
del sys.argv[1:4]
if source.isdigit():
    left, text = int(source), b""
    while left:
        data = os.read(0, left)
        if not data:
            sys.exit("the program was received only in part")
        text += data
        left -= len(data)
    source = text.decode("ascii")
home = os.environ.get("HOME", "")
kept = "%s/.cache/cloudtrain/code/%s-%x" % (home, digest, sys.hexversion)
texts, codes = {{}}, {{}}
try:
    with open(kept, "rb") as file:
        if os.fstat(file.fileno()).st_uid == os.geteuid():
            texts = marshal.loads(file.read())
except (OSError, EOFError, ValueError, TypeError):
    pass
is_kept = bool(texts)
if not is_kept:
    texts = eval(source)
class Sent:
    def find_spec(self, name, path=None, target=None):
        if name in texts:
            return type(sys.__spec__)(name, self, is_package=not texts[name])
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        if isinstance(texts[name], str):
            codes[name] = compile(texts[name], name, "exec")
        exec(codes[name] if name in codes else marshal.loads(texts[name]), module.__dict__)
sys.meta_path.insert(0, Sent())
__import__(main)
if not is_kept:
    new = kept + os.urandom(8).hex()
    try:
        if os.stat(home).st_uid == os.geteuid():
            os.makedirs(os.path.dirname(kept), mode=0o700, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                of = {{name: marshal.dumps(codes[name]) for name in codes if texts[name]}}
                marshal.dump(dict(texts, **of), file)
            os.replace(new, kept)
    except OSError:
        try:
            os.unlink(new)
        except OSError:
            pass
getattr(gc, "freeze", gc.collect)()
gc.enable()
sys.modules[main].main()
if "threading" not in sys.modules:
    sys.stdout.flush()
    os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A command and the beginning of its stdin; the program's own input follows it."""

    command: Command
    source: bytes = field(repr=False)


def program(module: str, *arguments: str) -> Program:
    """Run `main()` of a module of node/ with the node's own Python."""
    source, digest = _source(module)
    command = script(START, BOOT, _name(module), digest, str(len(source)), *arguments)
    return Program(command=command, source=source.encode("ascii"))


def whole(module: str, *arguments: str) -> Command:
    """Same as `program`, all in the command: for programs whose stdin is not theirs alone, or that
    are a part of a script."""
    source, digest = _source(module)
    return script(START, BOOT, _name(module), digest, source, *arguments)


def _name(module: str) -> str:
    return f"{PACKAGE}.{module}"


@cache
def _source(module: str) -> tuple[str, str]:
    """Texts of a module and all that it may import, and their digest."""
    from hashlib import sha256

    source = ascii(_texts(module))
    return source, sha256(source.encode("ascii")).hexdigest()[:32]


def _texts(module: str) -> dict[str, str]:
    """Texts of a module and all that it may import, by name."""
    texts = {"cloudtrain": "", PACKAGE: ""}
    _add(module, texts)
    return texts


def _add(module: str, texts: dict[str, str]) -> None:
    """Add a module and all that it may import."""
    own = texts[f"{PACKAGE}.{module}"] = text(f"{module}.py")
    for names in _IMPORTS.findall(own):
        for name in names.split(", "):
            if f"{PACKAGE}.{name}" not in texts:
                _add(name, texts)


_IMPORTS = re.compile(rf"^ *from {re.escape(PACKAGE)} import (.+)$", re.MULTILINE)


def text_of(command: Command) -> tuple[str, ...]:
    """The text and the arguments of a program that START runs, for a Python that runs already;
    nothing for any other command."""
    is_one = command.arguments[:3] == _STARTED
    return command.arguments[4:] if is_one else ()


def resident() -> Command:
    """The Python that runs further programs, one after the other: node/resident.py."""
    return script(START, f"{IS_NEW}\n{inline('resident')}")


def check_python() -> Command:
    """Fails, naming what to install, if a node's Python cannot run node/."""
    return script(_FIND + _BY_NAME + _EXEC, IS_NEW)


def from_variable(variable: str) -> str:
    """Code for `python -c` that runs a module whose text, as `text` gives it, is in an environment
    variable. For tasks, whose stdin is empty and whose command users read."""
    return f"import os; exec(os.environ.pop('{variable}'))"


def inline(module: str) -> str:
    """Text for `python -c` that runs `main()` of a module of node/ without imports of others."""
    return text(f"{module}.py") + "\nmain()\n"


@cache
def text(name: str) -> str:
    return (paths.PACKAGE / "node" / name).read_text("utf-8")
