"""Asks the package index which Pythons a TensorFlow has wheels for, where no table knows it: by
pip, which has the node's indexes, proxies and certificates.

    newer_release.py VERSION FIRST LAST PACKAGE [COMPANION …]

Prints the Pythons between FIRST and LAST, the newest first (`3.13 3.12`), and a line
`without NAME<2.23` for each COMPANION that has no release of the same minor version.
"""

import platform
import re
import subprocess
import sys

MINORS = range(10, 18)
"""Those that may have wheels of a release after 2.21, the first without Python 3.9."""
SECONDS = 120


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def fits(found: str, wanted: str) -> bool:
    """`2.22` means any patch of it, as in a requirement."""
    return found == wanted or (wanted.count(".") == 1 and minor(found) == wanted)


def number(version: str) -> "list[int]":
    return [int(part) for part in re.findall(r"\d+", version)]


def begin(package: str, python: str, pre: bool) -> "subprocess.Popen[str]":
    """`pip index versions` (since pip 21.2) downloads no package."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions"]
    command += [package, "--python-version", python, "--only-binary", ":all:", "--no-input"]
    command += ["--pre"] if pre else []
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )


def listed(query: "subprocess.Popen[str]") -> "tuple[list[str], str]":
    """All versions, and what pip said instead if there are none."""
    out, err = query.communicate(timeout=SECONDS)
    found = re.search(r"^Available versions: (.*)$", out, re.MULTILINE)
    lines = [line for line in err.splitlines() if line.strip()]
    telling = [line for line in lines if "experimental command" not in line]
    return (found.group(1).split(", ") if found else []), (telling or [""])[0].strip()


def refuse(text: str, hint: str) -> None:
    sys.stderr.write(f"{text}\nhint: {hint}\n")
    sys.exit(1)


def main() -> None:
    version, first, last, package = sys.argv[1:5]
    if package == "tensorflow-cpu" and platform.machine() != "x86_64":
        package = "tensorflow"
    pre = "rc" in version
    pythons = [f"3.{each}" for each in reversed(MINORS)]
    begun = [(python, begin(package, python, pre)) for python in pythons]
    answers = [(python, *listed(query)) for python, query in begun]
    versions = sorted({each for _, found, _ in answers for each in found}, key=number)
    if not versions:
        why = next((message for _, _, message in answers if message), "no answer")
        refuse(
            f"TensorFlow {version} is not known, and the package index has no {package}: {why}",
            "can the node reach the index? set another setup.tensorflow otherwise",
        )
    having = [python for python, found, _ in answers if any(fits(v, version) for v in found)]
    if not having:
        refuse(
            f"TensorFlow {version} is not on the package index ({package}); "
            f"the newest there is {versions[-1]}",
            f'set `setup.tensorflow: "{minor(versions[-1])}"`',
        )
    wanted = [each for each in having if number(first)[:2] <= number(each) <= number(last)[:2]]
    if not wanted:
        refuse(
            f"TensorFlow {version} has wheels for Python {', '.join(reversed(having))}, "
            "not for setup.python",
            f'set `setup.python: "{having[0]}"`',
        )
    print(" ".join(wanted))
    for name, query in [(name, begin(name, wanted[0], pre)) for name in sys.argv[5:]]:
        found, _ = listed(query)
        if not any(fits(each, minor(version)) for each in found):
            major, least = number(version)[:2]  # `2.22.1` → `2.23`
            print(f"without {name}<{major}.{least + 1}")


if __name__ == "__main__":
    main()
