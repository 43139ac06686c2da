"""Prints what an environment's Python would import, as the lock of a run: `{"python": "3.11.2",
"packages": ["numpy==1.26.4", "mine @ git+https://…@COMMIT", …]}`.

It reads names of folders alone, which takes a millisecond; for importlib.metadata Python would open
a hundred files. Names are those of the wheels, which `pip freeze` prints, too
(packaging.python.org/en/latest/specifications/recording-installed-packages). The environment's own
Python runs it, from 3.6.
"""

import json
import os
import re
import sys

INFO = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+?)(-py\d.*)?[.](dist|egg)-info")


def origin(folder: str) -> "str | None":
    """Origin of a package that came from no index: "" for a folder or file of this machine;
    None for an index. https://packaging.python.org/en/latest/specifications/direct-url/"""
    try:
        with open(folder + "/direct_url.json") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return None
    url, vcs = str(told.get("url", "")), told.get("vcs_info") or {}
    if not url.startswith(("https://", "http://", "ssh://")) or "@" in url.split("/")[2]:
        return ""  # also one with a user or password
    if "?" in url:
        return ""  # a permission, such as a presigned URL's
    inside = "#subdirectory=" + told["subdirectory"] if told.get("subdirectory") else ""
    plain = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs.get("commit_id") else url
    return plain + inside


def is_other_name(name: str, folder: str) -> bool:
    """True for a record under which a layer has another TensorFlow (layer.name_tensorflow)."""
    if not name.startswith("tensorflow"):
        return False
    try:
        with open(folder + "/INSTALLER") as file:
            return file.read() == "cloudtrain\n"
    except OSError:
        return False


def installed(path: "list[str]") -> "list[str]":
    """The first of each name, as `import` would find it."""
    found = {}  # type: dict[str, str]
    for place in path:
        try:
            names = os.listdir(place or "/nowhere")
        except OSError:
            continue
        for entry in names:
            parts = INFO.fullmatch(entry)
            if parts is None:
                continue
            name = re.sub(r"[-_.]+", "-", parts.group("name")).lower()
            if name not in found and not is_other_name(name, place + "/" + entry):
                url = origin(place + "/" + entry)
                line = name + ("==" + parts.group("version") if url is None else " @ " + url)
                found[name] = line if url != "" else ""
    return sorted(filter(None, found.values()))


def main() -> None:
    python = "{}.{}.{}".format(*sys.version_info)
    print(json.dumps({"python": python, "packages": installed(sys.path)}))


if __name__ == "__main__":
    main()
