"""Creates the work folder of a task from the delivered code, once, and prints its absolute path.

Arguments: WORK SOURCE DIR HOME OWN BELOW, and for a shared folder NAME TARGET RECORD. `WORK` is a
link to DIR in a copy of the code SOURCE (none: an empty folder), created last: an interrupted copy
has none. What is in the copy and in HOME is recorded, and OWN is a layer over the environment BELOW
(each "" for none). The link NAME in the work folder and the record beside it lead to TARGET.
"""

import os
import sys

from cloudtrain.node import changes

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    import typing

REFUSED = 3
"""Exit code for what the user's code or config is to blame for."""


def main() -> None:
    work, source, dir, home, own, below, *link = sys.argv[1:]
    try:
        if not os.path.exists(work):
            create(work, source, dir, home, link)
        os.makedirs(work + "/output", exist_ok=True)
        if own:
            from cloudtrain.node import layer

            layer.create(os.path.abspath(own), os.path.abspath(below))
        os.write(1, os.fsencode(os.path.realpath(work)) + b"\n")
    except OSError as error:
        sys.exit(f"{error.filename or work}: {error.strerror or error}")


def create(work: str, source: str, dir: str, home: str, link: "typing.Sequence[str]") -> None:
    task = os.path.dirname(work)
    code = task + "/code"
    os.makedirs(task, exist_ok=True)
    if os.path.lexists(code):
        run("rm", "-rf", code)
    if source:
        run("cp", "-a", source, code)
    else:
        os.mkdir(code)
    if not os.path.isdir(os.path.join(code, dir)):
        refuse(f"train.dir: no folder {dir} in the code")
    if link:  # a link is read, and never followed: its server may be gone
        name, target, record = link
        place = os.path.join(code, dir, name)
        if os.path.lexists(place) and not os.path.islink(place):
            refuse(f"shared: the code has a {name} of its own: choose another name")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        changes.link(os.fsencode(target), os.fsencode(place))
        changes.link(os.fsencode(target), os.fsencode(f"{task}/{record}"))
    # What the task finds here: the rest of what is there at its end, it has made or changed.
    changes.begin(os.fsencode(task), os.fsencode(home))
    changes.link(os.fsencode(f"code/{dir}"), os.fsencode(work))


def run(*command: str) -> None:
    spawn = getattr(os, "posix_spawnp", None)  # it copies no memory for that; from Python 3.8 on
    if spawn is None:
        code = os.spawnvp(os.P_WAIT, command[0], command)
    else:
        code = os.waitpid(spawn(command[0], command, os.environ), 0)[1]
    if code:
        sys.exit(1)  # it has said why


def refuse(why: str) -> None:
    sys.stderr.write(why + "\n")
    sys.exit(REFUSED)
