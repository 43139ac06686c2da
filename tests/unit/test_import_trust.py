"""`import` reads what a source names below its own folder alone, and repeats no key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloudtrain.commands.import_file import import_file
from cloudtrain.core.errors import UsageError
from cloudtrain.importers import Imported
from cloudtrain.importers.source_files import LARGEST, below, text_of
from tests.support.import_parts import Desk, lost
from tests.unit.test_import_compose import TWO, compose

SECRET = "hunter2-hunter2"
TOKEN = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A project of somebody else's, and private files of the user's around it."""
    private = tmp_path / "private"
    private.mkdir()
    lines = f"FROM python:3.11\nRUN pip install {SECRET}\nX={SECRET}\nENV Y={SECRET}\n"
    for name in ("file", "Dockerfile", "setup.py"):
        (private / name).write_text(lines)
    (private / "main.py").write_text("")
    desk = Desk(tmp_path / "project")
    desk.write({"Dockerfile": "FROM python:3.11\nCOPY . /app\nCMD python /app/t.py\n", "t.py": ""})
    return desk


def said(desk: Desk, found: Imported) -> str:
    """All that `import` wrote and said; nothing of it is private."""
    text = "\n".join([found.text, *lost(found)])
    assert SECRET not in text
    assert str(found.config.code.path or ".").partition("/")[0] != ".."
    return text


OUTSIDE = ["../private", "../../..", "/etc", "link", "sub/../../private"]


@pytest.mark.parametrize("context", OUTSIDE)
def test_a_context_outside_of_the_folder_is_no_code(desk: Desk, context: str) -> None:
    (desk.folder / "link").symlink_to("../private")
    found = desk.imported(compose(TWO, build={"context": context}))
    assert f"{context} is outside of {desk.folder}, or a link: not read" in said(desk, found)
    assert "code.path" in found.fill_in


@pytest.mark.parametrize("name", ["../private/file", "{private}/file", "link", "linked/file"])
@pytest.mark.parametrize("key", ["dockerfile", "env_file", "volume"])
def test_no_file_outside_of_the_folder_is_read(desk: Desk, name: str, key: str) -> None:
    private = desk.folder.parent / "private"
    (desk.folder / "link").symlink_to(private / "file")
    (desk.folder / "linked").symlink_to(private)
    name = name.format(private=private)
    if key == "dockerfile":
        found = desk.imported(compose(TWO, build={"context": ".", "dockerfile": name}))
        assert f"has no {name} here" in said(desk, found)
    elif key == "env_file":
        found = desk.imported(compose(TWO, env_file=[name]))
        assert f"cannot read {name}" in said(desk, found)
    else:
        place = name.rpartition("/")[0] or name
        found = desk.imported(compose(TWO, volumes=[f"{place}:/app"], working_dir="/app"))
        assert "nodes share no volume" in said(desk, found)


def test_what_an_image_copies_comes_from_the_folder_alone(desk: Desk) -> None:
    (desk.folder / "link").symlink_to("../private")
    copies = "COPY link /app\nCOPY ../private/* /app/\nCOPY lin* /app/\nADD ../private /app\n"
    desk.write({"Dockerfile": f"FROM python:3.11\n{copies}CMD python /app/main.py\n"})
    text = said(desk, desk.imported(compose(TWO, build={"context": "."})))
    for word in ("link", "../private/*", "lin*", "../private"):
        assert f"{word} is not in {desk.folder.resolve()}: not mapped" in text


@pytest.mark.parametrize("name", ["Dockerfile", "setup.py", ".env"])
def test_what_stands_beside_the_file_is_read_unless_it_is_a_link(desk: Desk, name: str) -> None:
    (desk.folder / name).unlink(missing_ok=True)
    (desk.folder / name).symlink_to(desk.folder.parent / "private" / "file")
    desk.write({"pkg/__init__.py": ""})
    submit = "gcloud ai-platform jobs submit training j --region us-east1 --module-name t"
    for found in (
        desk.imported(None, f"{submit} --package-path pkg"),
        desk.imported(None, f"{submit} --master-image-uri gcr.io/p/i --scale-tier basic"),
        desk.imported(compose(TWO, build=".")),
    ):
        said(desk, found)


def test_lines_that_are_no_instructions_and_keys_are_not_repeated(desk: Desk) -> None:
    """A Dockerfile of the folder may be any other file of it."""
    lines = f"PRIVATE={SECRET}\nkey {SECRET}\nRUN curl -H {TOKEN} x\nENV A={TOKEN} HF_TOKEN=abc\n"
    desk.write({"notes": f"{lines}LABEL x\nRUN pip install git+https://me:{SECRET}@h/x\n"})
    text = said(desk, desk.imported(compose(TWO, build={"context": ".", "dockerfile": "notes"})))
    assert "notes:1: is no instruction of a Dockerfile" in text
    assert "notes:2: is no instruction of a Dockerfile" in text
    assert "looks like a secret: export A; its value is not copied" in text
    assert TOKEN not in text
    assert "abc" not in text


def test_a_large_file_a_pipe_and_a_device_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * (LARGEST + 1))
    (tmp_path / "whole").write_text("x" * LARGEST)
    os.mkfifo(tmp_path / "pipe")
    assert len(text_of(tmp_path, "whole")) == LARGEST
    for name in ("large", "pipe"):
        with pytest.raises(ValueError, match=r"too large|no file"):
            text_of(tmp_path, name)
    assert below(tmp_path, "a/../b") == tmp_path / "b"
    assert below(tmp_path, tmp_path) == tmp_path
    assert below(tmp_path, "..") is None
    with pytest.raises(UsageError, match="larger than 1 MB"):
        import_file(tmp_path / "large")
