"""Reads a requirements file of the delivered code: its lines, and the bounds that still apply."""

import hashlib
import os
import re
import sys

NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
INCLUDE = re.compile(r"\s*(?:-r\s*|--requirement(?:\s+|=))(.+?)\s*(?:\s#.*)?$")
CONSTRAINT = re.compile(r"\s*(-c\s*|--constraint(?:\s+|=))(.+?)\s*(?:\s#.*)?$")
LOCAL = re.compile(r"\s*(-e\b|--editable\b|\.|/|file:|\S+\s*@\s*file:|\S+\.(whl|tar\.gz|zip)\b)")
TENSORFLOW = {"tensorflow", "tensorflow-cpu", "tensorflow-gpu"}


def package(line: str) -> str:
    """Package name: `"Tensorflow_CPU>=2"` → `"tensorflow-cpu"`; empty for anything else."""
    found = NAME.match(line)
    if not found or "://" in line.split("@")[0] or LOCAL.match(line):
        return ""
    return re.sub(r"[-_.]+", "-", found.group(1)).lower()


def lines(path: str, outer: "tuple[str, ...]" = ()) -> "list[str]":
    """Its lines with those of included files; paths of constraints become absolute. Raises OSError
    for an unreadable file.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    found = []
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        include, constraint = INCLUDE.match(line), CONSTRAINT.match(line)
        folder = os.path.dirname(path)
        if include:
            inner = os.path.join(folder, include.group(1))
            if inner not in (path, *outer):
                found += lines(inner, (path, *outer))
        elif constraint:
            found.append("-c " + os.path.join(folder, constraint.group(2)))
        elif line.strip() and not line.lstrip().startswith("#"):
            found.append(line.strip())
    return found


def bounds(own: "list[str]", given: "list[str]") -> "list[str]":
    """The bounds of this TensorFlow without those of packages that are listed; TensorFlow itself is
    never replaced.
    """
    listed = {package(line) for line in own} - TENSORFLOW
    return [line for line in given if package(line) not in listed]


def main() -> None:
    """FILE BOUNDS CODE OUT: write OUT.lines and OUT.bounds; print a key of what would be installed,
    with the digest CODE if something of the code itself is.
    """
    path, bounds_file, code, out = sys.argv[1:5]
    try:
        own = lines(path)
        with open(bounds_file, encoding="utf-8") as file:
            left = bounds(own, file.read().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        sys.exit("{} cannot be read: {}".format(path, getattr(error, "strerror", None) or error))
    for name, text in (("lines", own), ("bounds", left)):
        with open(out + "." + name, "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in text))
    depends = any(LOCAL.match(line) or CONSTRAINT.match(line) for line in own)
    key = repr((own, left, code if depends else ""))
    print(hashlib.sha256(key.encode()).hexdigest()[:12])


if __name__ == "__main__":
    main()
