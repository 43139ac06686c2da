"""Asks for known vulnerabilities of the packages that cloudtrain needs, in the versions installed
here, which a desk installs too: `make audit`.

pip-audit ends with 0 where the service does not know a package, or where it is a mirror without
this knowledge: that is said here, and is no success.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from cloudtrain.away.desk_cluster import pinned_requirements  # noqa: E402

EXTRAS = ("gcp", "aws", "azure", "prices", "tensorboard", "report")
SECONDS = 300


def main(words: Sequence[str]) -> int:
    """`words`: the command that runs pip-audit. Returns 1 if a package has a vulnerability."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "requirements.txt")
        file.write_text("".join(f"{line}\n" for line in pinned_requirements(EXTRAS)), "ascii")
        asked = [*words, "--format", "json", "--no-deps", "--disable-pip", "-r", str(file)]
        try:
            done = subprocess.run(
                asked, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            found = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            words_of_it = getattr(error, "msg", None) or str(error)
            print(f"not audited: {words[0]} gave no answer ({words_of_it})")
            return 0
    lines, code = verdict(found)
    print("\n".join(lines))
    return code


def verdict(found: Mapping[str, Any]) -> tuple[list[str], int]:
    """Text on pip-audit's document, and the exit code."""
    packages = found["dependencies"]
    bad = [
        f"{each['name']} {each['version']}: {one['id']}"
        + (f", fixed in {', '.join(one['fix_versions'])}" if one.get("fix_versions") else "")
        for each in packages
        for one in each.get("vulns", ())
    ]
    skipped = [each["name"] for each in packages if "skip_reason" in each]
    known = len(packages) - len(skipped)
    if not known:
        return [f"not audited: the service knows none of {len(packages)} packages"], 0
    lines = [*bad, f"{known} of {len(packages)} packages audited, {len(bad)} vulnerabilities"]
    if skipped:
        lines.append(f"not audited, as the service does not know them: {', '.join(skipped)}")
    return lines, 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
