"""Creates a layer: an environment that has the packages of another one below it, and keeps what is
installed into it for itself.

Python finds a virtual environment by pyvenv.cfg beside the folder of its executable, so a layer is
a copy of that file, of the links to the interpreter and of the console scripts, and a .pth file
with the packages below (docs.python.org/3/library/site.html, read 2026-11-22). Nothing is
installed: it takes milliseconds.
"""

import glob
import os
import re
import shutil
import stat
import sys

BELOW = ".below"
"""File in a layer: the environment below it."""

PTH = "_cloudtrain_below.pth"

TENSORFLOW = ("tensorflow", "tensorflow_cpu", "tensorflow_gpu")
"""One TensorFlow has one of these names; packages that depend on another one must find it too."""

STACKS_PTH, STACKS = "_cloudtrain_stacks.pth", "_cloudtrain_stacks.py"
STACKS_SOURCE = '''\
"""On signal 47, Python itself writes its stacks into a file of the task's; the program runs on.

Imported when Python starts. faulthandler writes them without running Python code
(docs.python.org/3/library/faulthandler.html); the signal, a real-time one of glibc's (34 to 64,
signal(7)), is hardly used, and is sent only to a process that catches it and has this very file
open (task_dispatch.sh).
"""


def register():
    import faulthandler
    import fcntl
    import os

    place = os.environ.get("CLOUDTRAIN_STACKS")
    if not place:
        return
    low = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Not one of the numbers that a program's own files get.
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 200)
    finally:
        os.close(low)
    faulthandler.register(47, file=high, all_threads=True, chain=False)


try:
    register()
except Exception:
    pass  # a limit of files, a system without it: no stacks
'''

LONGEST = 127
"""Bytes of a `#!` line that every Linux reads (before 5.1: BINPRM_BUF_SIZE 128)."""


def packages(environment: str) -> str:
    """Its site-packages folder. Raises OSError if there is none."""
    found = glob.glob(os.path.join(glob.escape(environment), "lib", "python3.*", "site-packages"))
    if len(found) != 1:
        raise OSError("no virtual environment in " + environment)
    return found[0]


def chain(environment: str) -> "list[str]":
    """The environment and all below it, top first."""
    found = [environment]
    while os.path.exists(os.path.join(found[-1], BELOW)):
        with open(os.path.join(found[-1], BELOW)) as file:
            found.append(file.read())
    return found


def create(folder: str, below: str) -> None:
    """Create the layer, unless it is there over the same environment. A killed call leaves none."""
    if os.path.exists(folder):
        if chain(folder)[1:2] == [below]:
            return
        shutil.rmtree(folder)
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    beneath = packages(below)
    own = os.path.join(new, os.path.relpath(beneath, below))
    os.makedirs(own)
    os.mkdir(os.path.join(new, "bin"))
    if os.path.islink(os.path.join(below, "lib64")):
        os.symlink("lib", os.path.join(new, "lib64"))
    shutil.copyfile(os.path.join(below, "pyvenv.cfg"), os.path.join(new, "pyvenv.cfg"))
    with open(os.path.join(own, PTH), "w") as file:
        file.write(f"import site; site.addsitedir({beneath!r})\n")
    for name, text in ((STACKS_PTH, "import _cloudtrain_stacks\n"), (STACKS, STACKS_SOURCE)):
        with open(os.path.join(own, name), "w") as file:
            file.write(text)
    for program in os.listdir(os.fsencode(os.path.join(below, "bin"))):
        add_program(
            os.fsdecode(program), os.path.join(new, "bin"), os.path.join(below, "bin"), folder
        )
    name_tensorflow(own, [packages(each) for each in chain(below)])
    with open(os.path.join(new, BELOW), "w") as file:
        file.write(below)
    os.rename(new, folder)


def add_program(name: str, new: str, old: str, folder: str) -> None:
    """Whatever is in `bin` of the environment below: console scripts must run with the layer's
    Python, or `pip` would install below; anything else is a link to what is there."""
    made, original = os.path.join(new, name), os.path.join(old, name)
    if os.path.islink(original):
        target = os.readlink(original)
        os.symlink(target if os.path.isabs(target) or "/" not in target else original, made)
        return
    if name == "__pycache__":  # of installed .py programs; the layer's own are written beside it
        return
    text = script_of(original)
    if name.lower().startswith("activate"):
        text = text.replace(os.fsencode(os.path.dirname(old)), os.fsencode(folder))
    else:
        text = with_interpreter(text, old, os.path.join(folder, "bin")) or b""
    if not text:
        os.symlink(original, made)
        return
    with open(made, "wb") as file:
        file.write(text)
    os.chmod(made, os.stat(original).st_mode)


def script_of(path: str) -> bytes:
    """The content of a file that may be a script; nothing of others, large and unreadable ones."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_size >= 100000:
        return b""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


# The second form is pip's, for paths that are long or have spaces: sh, and a string for Python.
SCRIPT = re.compile(
    rb"#!(?P<short>/[^\n]*)/(?P<name>python[0-9.]*)\n"
    rb"|#!/bin/sh\n'''exec' \"?(?P<long>/[^\n]*?)/(?P<other>python[0-9.]*)\"?"
    rb" \"\$0\" \"\$@\"\n' '''\n"
)


def with_interpreter(text: bytes, old: str, new: str) -> "bytes | None":
    """A console script of Python in `old`, for that in `new`; None for any other file."""
    found = SCRIPT.match(text)
    if not found:
        return None
    folder, name = found["short"] or found["long"], found["name"] or found["other"]
    unquoted = re.sub(rb'\\([\\"$`])', rb"\1", folder)
    if os.path.realpath(unquoted) != os.fsencode(os.path.realpath(old)):
        return None
    python = os.fsencode(new) + b"/" + name
    if len(python) + 3 <= LONGEST and not re.search(rb"[\s\"']", python):
        line = b"#!" + python + b"\n"
    else:
        quoted = re.sub(rb'([\\"$`])', rb"\\\1", python)
        line = b"#!/bin/sh\n'''exec' \"" + quoted + b'" "$0" "$@"\n' + b"' '''\n"
    return line + text[found.end() :]


def name_tensorflow(own: str, below: "list[str]") -> None:
    """Record the other names of the TensorFlow below as installed in its version: a package that
    requires `tensorflow` would otherwise bring a second one, over `tensorflow-cpu`."""
    found: dict[str, str] = {}
    for name in TENSORFLOW:
        for folder in below:
            for path in glob.glob(os.path.join(glob.escape(folder), name + "-*.dist-info")):
                found.setdefault(name, os.path.basename(path)[len(name) + 1 : -len(".dist-info")])
    for name in TENSORFLOW:
        if found and name not in found:
            record(own, name, next(iter(found.values())))


def record(own: str, name: str, version: str) -> None:
    folder = f"{name}-{version}.dist-info"
    os.mkdir(os.path.join(own, folder))
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        "INSTALLER": "cloudtrain\n",
        "RECORD": listed(folder),
    }
    for each, text in files.items():
        with open(os.path.join(own, folder, each), "w") as file:
            file.write(text)


LENT = "cloudtrain, lent\n"
"""Installer in the record of a package that is below: uv sees what the layer's own folder has."""


def lend(folder: str) -> None:
    """Record what is below as installed in the layer, for an installer that replaces it there."""
    own = packages(folder)
    there = {package_of(path) for path in glob.glob(os.path.join(glob.escape(own), "*.dist-info"))}
    for below in chain(folder)[1:]:
        for path in glob.glob(os.path.join(glob.escape(packages(below)), "*.dist-info")):
            made = os.path.join(own, os.path.basename(path))
            about = os.path.join(path, "METADATA")
            if package_of(path) in there or not os.path.exists(about):
                continue
            there.add(package_of(path))
            os.mkdir(made)
            shutil.copyfile(about, os.path.join(made, "METADATA"))
            for each, text in (("INSTALLER", LENT), ("RECORD", listed(os.path.basename(path)))):
                with open(os.path.join(made, each), "w") as file:
                    file.write(text)


def package_of(path: str) -> str:
    """Package of a .dist-info folder, whose name older installers wrote as the package itself does
    (packaging.python.org, "Recording installed projects")."""
    return re.sub("[-_.]+", "-", os.path.basename(path).partition("-")[0]).lower()


def take_back(folder: str) -> None:
    """Remove the records that `lend` wrote, as far as they are still there."""
    own = glob.escape(packages(folder))
    for path in glob.glob(os.path.join(own, "*.dist-info", "INSTALLER")):
        with open(path) as file:
            if file.read() == LENT:
                shutil.rmtree(os.path.dirname(path))


def listed(folder: str) -> str:
    """A RECORD of the files of a record alone."""
    return "".join(f"{folder}/{each},,\n" for each in ("METADATA", "INSTALLER", "RECORD"))


def main() -> None:
    """FOLDER BELOW: create the layer. `lend` or `take-back` FOLDER."""
    what, last = sys.argv[1:3]
    if what in ("lend", "take-back"):
        (lend if what == "lend" else take_back)(os.path.abspath(last))
    else:
        create(os.path.abspath(what), os.path.abspath(last))


if __name__ == "__main__":
    main()
