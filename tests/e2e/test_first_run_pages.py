"""The first-run pages of each cloud: their `cloudtrain` commands run as they stand there, against
the cloud's stand-in with booted nodes, and print the words below them.

What cannot be here is replaced: TensorFlow, which nodes would download, by a script without it, and
the bucket by a folder. The run on a GPU is left out.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import CloudError
from tests.standins.cloud import DESCRIPTIONS, running
from tests.standins.nodes import Nodes, unavailable
from tests.support.cloud_user import READY
from tests.support.project import DATA, ROOT, Project
from tests.support.recorded import answers, classified, refusals

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(rf"{BLOCK.pattern}|`(cloudtrain (?:gc|[^`]*\.yaml[^`]*))`", BLOCK.flags)
NOT_HERE = "cloudtrain run gpu.yaml"
DONE_BY_HAND: dict[tuple[str, str], dict[str, Any]] = {
    ("azure", "--deep"): {"unregistered": []},
    ("aws", "gpu.yaml"): {"account_plan": "PAID"},
    ("azure", "gpu.yaml"): {"quotas": {}},
    ("gcp", "gpu.yaml"): {"quotas": {}},
}
"""What the page has a reader do in the account before a command with that word."""


ALSO = {
    ("gcp", "cloudtrain plan gpu.yaml"): "price      0.56 $/hour in us-central1",
    ("aws", "cloudtrain plan gpu.yaml"): "price      0.57 $/hour in us-east-1",
    ("azure", "cloudtrain plan gpu.yaml"): "price      0.66 $/hour in southcentralus",
    ("aws", "cloudtrain check first.yaml"): "this account is on the Free plan, which may launch",
}
"""What a command of the page of all clouds prints on one of them, as that one's page says."""


def page(cloud: str) -> str:
    """The cloud's own page, and the one of all clouds, with which it goes on."""
    own, common = (ROOT / "docs" / f"first-run{of}.md" for of in (f"-{cloud}", ""))
    return own.read_text("utf-8") + common.read_text("utf-8").replace("CLOUD", cloud)


def steps(cloud: str) -> Iterator[tuple[list[str], list[str]]]:
    """Commands of each block, or within a line, with the words of the block that follows."""
    found = [*STEP.findall(page(cloud)), ("", "", "")]
    for (kind, text, inline), follows in itertools.pairwise(found):
        if kind == "sh" or inline not in ("", NOT_HERE):
            lines = [line for line in text.splitlines() if re.match("cloudtrain |sed ", line)]
            words = follows[1].splitlines() if follows[0] == "text" else []
            yield lines or [inline] * bool(inline), words


@pytest.mark.timeout(600)
@pytest.mark.sweep(1)
@pytest.mark.parametrize("cloud", READY)
def test_every_command_of_a_first_run_page_prints_what_it_says(cloud: str, tmp_path: Path) -> None:
    if reason := unavailable():
        pytest.skip(reason)
    project = Project(tmp_path / "project")
    (text,) = [text for kind, text in BLOCK.findall(page(cloud)) if kind == "yaml"]
    text = text.replace('setup: {tensorflow: "2.21"}\n', "")
    text = text.replace("command: python ", "command: python3 ")  # TensorFlow's brings `python`
    text = re.sub(r"store: \S+", f"store: {project.store.as_uri()}", text)
    (project.folder / "first.yaml").write_text(text)
    (project.folder / "train.py").write_bytes((DATA / "rank.py").read_bytes())
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cloudtrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cloudtrain "$@"\n')
    (tools / "cloudtrain").chmod(0o755)
    path = project.environment["PATH"]
    project.environment |= {"PATH": f"{tools}:{path}", "CLOUDTRAIN_CACHE": str(tmp_path / "cache")}
    record = tmp_path / "record.jsonl"
    project.environment["CLOUDTRAIN_RECORD"] = str(record)
    ran = 0
    with Nodes() as nodes, running(cloud, nodes=nodes) as account:
        project.environment.update(account.environment)
        if cloud == "aws":
            account.set(account_plan="FREE")  # as of an account made today
        if cloud == "gcp":
            project.environment["GOOGLE_CLOUD_PROJECT"] = str(DESCRIPTIONS[cloud].project)
            # A project made today, and a zone that is full.
            new = {"GPUS_ALL_REGIONS": 0, "NVIDIA_T4_GPUS": 0}
            account.set(quotas=new, capacity={"us-central1-a": 0})
        if cloud == "azure":
            # A free trial made today, without its size in the first region.
            account.set(
                unregistered=["Microsoft.Compute", "Microsoft.Network", "Microsoft.DevTestLab"],
                restricted=["eastus/Standard_D2s_v5"],
                quotas={"cores": 4, "lowPriorityCores": 0, "standardNCASv3_T4Family": 0},
            )
        for commands, words in steps(cloud):
            for command in commands:
                for (name, word), facts in DONE_BY_HAND.items():
                    if name == cloud and word in command:
                        account.set(**facts)
                done = subprocess.run(
                    ["bash", "-euc", re.sub("^cloudtrain down .*", r"\g<0> --yes", command)],
                    cwd=project.folder,
                    env=project.environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                said = done.stdout + done.stderr
                assert done.returncode == 0, f"{command}\n{said}"
                assert [line for line in words if line not in said] == [] or (
                    command != commands[-1]
                ), (command, said)
                assert ALSO.get((cloud, command), "") in said, (command, said)
                if ">policy.json" in command:  # from here on, these are all of one's rights
                    account.set(granted=json.loads((project.folder / "policy.json").read_text()))
                ran += 1
        assert account.holdings() == []
    assert ran >= 14
    project_id = DESCRIPTIONS[cloud].project
    assert "PRIVATE KEY" not in record.read_text()
    assert not project_id or project_id not in record.read_text()
    assert {answer.cloud for answer in answers(record)} == {cloud}
    for refusal in refusals(answers(record)):
        assert type(classified(*refusal)) is not CloudError, refusal
    assert (project.folder / "first.html").is_file()
    assert list((project.folder / "results").rglob("chief0.txt"))


@pytest.mark.parametrize("cloud", READY)
def test_a_first_run_page_has_every_step_and_the_names_of_the_code(cloud: str) -> None:
    text = page(cloud)
    for command in ("plan", "check", "run", "fetch", "report", "cost", "ls --cloud", "gpus"):
        assert f"cloudtrain {command}" in text, command
    for words in ("cloudtrain down", "cloudtrain gc", "first-real-run.md", "tutorial.md"):
        assert words in text
    for (name, _), words in ALSO.items():
        assert name != cloud or words in text
    quota = importlib.import_module(f"cloudtrain.providers.{cloud}.quota")
    source = Path(str(quota.__file__)).read_text("utf-8")
    names = {"gcp": ["GPUS_ALL_REGIONS"], "aws": ["L-DB2E81BA", "G and VT"], "azure": []}[cloud]
    for name in names:
        assert name in source, name
        assert name in text, name
