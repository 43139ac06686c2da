"""Finds what a task made or changed in its code and in the home of its node, by records of what was
there before it.

Imports nothing of node/: it runs as text where a checkpoint is put (artifacts/checkpoints.py).
"""

import os
import stat
import sys

TYPE_CHECKING = False  # `typing` and `re` take longer to import than all the rest
if TYPE_CHECKING:
    import typing

BEFORE = "before"
"""Record of the delivered code as the task found it; these four are beside its work folder."""

HOME_BEFORE = "before.home"
"""Record of the home as the task found it."""

HOME_AFTER = "after.home"
"""Link to the record of the home as the next run on this node found it."""

RESTORED = "restored"
"""Record of a checkpoint that was put into the work folder."""

LATEST = ".latest"
"""Link in the folder of all runs to the task that worked in this home last."""

_CACHES = """
__pycache__ .git .hg .svn .cache .ipynb_checkpoints .pytest_cache .mypy_cache .ruff_cache .eggs .tox
.nox node_modules tensorflow_datasets
"""
CACHES = frozenset(_CACHES.encode().split())
"""Folders that can be made again, wherever they are."""

_OF_HOME = """
.Xauthority .ansible .aws .azure .bash_history .bash_logout .bashrc .boto .bundle .cargo .cloudtrain
.conda .condarc .config .cupy .cursor-server .docker .dotnet .gem .gitconfig .gnupg .gradle .gsutil
.huggingface .ipython .java .julia .jupyter .kaggle .keras .kube .lesshst .local .m2 .mamba
.matplotlib .npm .nv .nvm .pip .profile .pyenv .python_history .rustup .ssh
.sudo_as_admin_successful .theano .torch .triton .viminfo .vscode-remote .vscode-server .wget-hsts
.zprofile .zsh_history .zshenv .zshrc anaconda3 mambaforge micromamba miniconda3 miniforge3
nltk_data scikit_learn_data snap tensorflow_datasets
"""
OF_HOME = frozenset(_OF_HOME.encode().split())
"""Settings, credentials, caches and downloaded data that programs keep in a home."""

CACHED = (b".pyc", b".pyo", b".whl", b".egg-info", b".dist-info")


def main() -> None:
    """`restored TASK FOLDER`: record a checkpoint that was put into that folder."""
    _, task, folder = sys.argv[1:]
    place = os.fsencode(task)
    work = os.path.realpath(os.path.join(place, b"work"))
    below = os.path.realpath(os.path.join(work, os.fsencode(folder)))
    prefix = os.path.relpath(below, work) + b"/"
    keep(os.path.join(place, RESTORED.encode()), below, prefix=prefix)


def begin(task: bytes, home: bytes) -> None:
    """Record the code as the task finds it, and its home, if that is given."""
    keep(os.path.join(task, BEFORE.encode()), os.path.join(task, b"code"))
    if home:
        begin_home(task, home)


def begin_home(task: bytes, home: bytes) -> None:
    """Record the home, once for all attempts, and tell the run before that its time is over. Safe
    to kill at any point and to repeat: the link to the latest comes last."""
    record = os.path.join(task, HOME_BEFORE.encode())
    if not os.path.exists(record):
        keep(record, home, OF_HOME)
    runs = os.path.dirname(os.path.dirname(task))
    latest = os.path.join(runs, LATEST.encode())
    own = os.path.relpath(task, runs)
    before = os.readlink(latest) if os.path.islink(latest) else own
    if before == own:
        link(own, latest)
        return
    earlier = os.path.join(runs, before)
    link(os.path.relpath(record, earlier), os.path.join(earlier, HOME_AFTER.encode()))
    link(own, latest)


def link(target: bytes, path: bytes) -> None:
    """Create or replace a link."""
    new = path + b".new"
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(target, new)
    os.replace(new, path)


def keep(
    record: bytes, top: bytes, apart: "typing.Collection[bytes]" = (), prefix: bytes = b""
) -> None:
    """Record names and stamps in a folder, each with a NUL. What cannot be read has no stamp."""
    new = record + b".new"
    with open(new, "wb") as file:

        def write(path: bytes, facts: bytes) -> None:
            file.write(prefix + path + b"\0" + facts + b"\0")

        for path, facts in files(top, apart, miss=lambda path, error: write(path, b"")):
            write(path, stamp(facts))
    os.replace(new, record)


def kept(record: bytes) -> "dict[bytes, bytes] | None":
    """Stamps by path; None without a record."""
    try:
        with open(record, "rb") as file:
            parts = file.read().split(b"\0")
    except OSError:
        return None
    return dict(zip(parts[::2], parts[1::2]))  # noqa: B905 - Python 3.6


def stamp(facts: os.stat_result) -> bytes:
    return b"%d/%d/%d" % (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)


def files(
    top: bytes,
    apart: "typing.Collection[bytes]" = (),
    covered: "typing.Collection[bytes]" = (),
    miss: "typing.Callable[[bytes, OSError], None]" = lambda path, error: None,
) -> "typing.Iterator[tuple[bytes, os.stat_result]]":
    """List files and links below a folder, without caches, environments of Python, other file
    systems, names in `apart` at the top, and folders in `covered`."""
    waiting = [b""]
    device = None  # type: int | None
    while waiting:
        folder = waiting.pop()
        try:
            device = os.stat(top).st_dev if device is None else device
            with os.scandir(os.path.join(top, folder)) as found:
                entries = list(found)
        except OSError as error:
            miss(folder, error)
            continue
        names = {entry.name for entry in entries}
        if folder and names & {b"pyvenv.cfg", b"conda-meta"}:
            continue
        for entry in entries:
            name = entry.name
            if name in CACHES or name.endswith(CACHED) or (not folder and name in apart):
                continue
            path = folder + b"/" + name if folder else name
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError as error:
                miss(path, error)
                continue
            if stat.S_ISDIR(facts.st_mode):
                if path not in covered and facts.st_dev == device:
                    waiting.append(path)
            elif stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode):
                yield path, facts
