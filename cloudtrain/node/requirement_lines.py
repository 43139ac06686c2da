"""Reads requirements files as pip does: on the user's machine, and those of the delivered code on
a node, with the bounds that still apply."""

import codecs
import os
import re
import sys

NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
OTHER_FILE = re.compile(r"\s*(?:(-r|-c)\s*|--(requirement|constraint)(?:\s+|=))(\S.*?)\s*$")
"""A line with the path of another file. pip's own: req_file.py of pip 25."""
COMMENT = re.compile(r"(?:^|\s)#.*$")
LOCAL = re.compile(
    r"\s*(-e\b|--editable\b|\.|/|file:|\S+\s*@\s*file:|(?![^\s/]*://)[^\s@;]+\.(whl|tar\.gz|zip)\b)"
)
TENSORFLOW = {"tensorflow", "tensorflow-cpu", "tensorflow-gpu"}
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
CODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


def package(line: str) -> str:
    """Package name: `"Tensorflow_CPU>=2"` → `"tensorflow-cpu"`; empty for anything else."""
    found = NAME.match(line)
    if not found or "://" in line.split("@")[0] or LOCAL.match(line):
        return ""
    return re.sub(r"[-_.]+", "-", found.group(1)).lower()


def decoded(data: bytes) -> str:
    """The text of a file in any encoding that editors and shells write: with a byte order mark
    (also PowerShell's UTF-16), a coding line, UTF-8, else Latin-1."""
    for mark, encoding in MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    encodings = ["utf-8"]
    for line in data.splitlines()[:2]:
        named = CODING.match(line)
        if named:
            encodings.insert(0, named.group(1).decode("ascii", "replace"))
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            pass
    return data.decode("latin-1")


def numbered(text: str) -> "list[tuple[int, int, str]]":
    """Logical lines with their first and last number; those that a `\\` ends are joined as pip
    does. Without comments, which may leave them empty."""
    found: list[tuple[int, int, str]] = []
    first, parts = 0, []  # type: int, list[str]
    for number, line in enumerate(text.splitlines(), 1):
        first = first or number
        comment = COMMENT.match(line.lstrip()) is not None
        if line.endswith("\\") and not comment:
            parts.append(line[:-1])
            continue
        parts.append(" " + line if comment and parts else line)
        found.append((first, number, COMMENT.sub("", " ".join(parts)).strip()))
        first, parts = 0, []
    if parts:
        found.append((first, len(text.splitlines()), COMMENT.sub("", " ".join(parts)).strip()))
    return found


def other_file(line: str) -> "tuple[str, str] | None":
    """`-r FILE` → ("-r", "FILE"), in any spelling; None for another line, or a URL."""
    found = OTHER_FILE.match(line)
    if not found or "://" in found.group(3):
        return None
    kind = found.group(1) or "-" + found.group(2)[0]
    return kind, found.group(3).strip("\"'")


def lines(path: str, outer: "tuple[str, ...]" = ()) -> "list[str]":
    """Its lines with those of included files; constraints have absolute paths. Raises OSError."""
    with open(path, "rb") as file:
        text = decoded(file.read())
    found = []
    for _, _, line in numbered(text):
        other = other_file(line)
        inner = os.path.join(os.path.dirname(path), other[1]) if other else ""
        if other and other[0] == "-r":
            if inner not in (path, *outer):
                found += lines(inner, (path, *outer))
        elif other:
            found.append("-c " + inner)
        elif line:
            found.append(line)
    return found


def rewrite(path: str, outer: "tuple[str, ...]" = ()) -> None:
    """Write it and those that it names in UTF-8: pip reads others by version and language."""
    with open(path, "rb") as file:
        data = file.read()
    text = decoded(data)
    if data != text.encode("utf-8", "replace"):
        with open(path, "wb") as changed:
            changed.write(text.encode("utf-8", "replace"))
    for _, _, line in numbered(text):
        other = other_file(line)
        inner = os.path.join(os.path.dirname(path), other[1]) if other else path
        if inner not in (path, *outer):
            rewrite(inner, (path, *outer))


def bounds(own: "list[str]", given: "list[str]") -> "list[str]":
    """The bounds of this TensorFlow on packages that are not listed; none replaces itself."""
    listed = {package(line) for line in own} - TENSORFLOW
    return [line for line in given if package(line) not in listed]


def main() -> None:
    """FILE BOUNDS CODE OUT: write OUT.bounds, and OUT.marks of what the file asks of installers;
    print a key of what would be installed, with the digest CODE if something of the code itself is.
    FILE alone: rewrite it."""
    import hashlib  # slow to import, and `plan` needs none

    if len(sys.argv) == 2:
        rewrite(sys.argv[1])
        return
    path, bounds_file, code, out = sys.argv[1:5]
    try:
        own = lines(path)
        with open(bounds_file, encoding="utf-8") as file:
            left = bounds(own, file.read().splitlines())
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror or error}")
    marks = [
        ("hashes", any(re.search(r"\s--hash[=\s]|^--require-hashes\b", line) for line in own)),
        ("pre", "--pre" in own),
    ]
    with open(out + ".marks", "w", encoding="utf-8") as file:
        file.write("".join(name + "\n" for name, is_set in marks if is_set))
    with open(out + ".bounds", "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in left))
    depends = any(LOCAL.match(line) or line.startswith("-c ") for line in own)
    key = repr((own, left, code if depends else ""))
    print(hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:12])


if __name__ == "__main__":
    main()
