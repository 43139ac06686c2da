"""The code playbook: its step as a value, digests and ignore files."""

import os
from pathlib import Path

import pytest

from cloudtrain.errors import ConfigError
from cloudtrain.playbooks import code, scripts
from cloudtrain.shell import script
from cloudtrain.step import Step
from tests.support.code_parts import config, names, write

# ── a folder ─────────────────────────────────────────────────────────────────


def test_the_step_of_a_folder_as_a_value(tmp_path: Path) -> None:
    write(tmp_path / "src", {"train.py": "print(1)\n"})
    source = code.resolve(config(tmp_path, path="src"))
    assert source.digest == "374ff137971feb02"
    assert isinstance(source, code.FolderCode)
    (step,) = code.steps(source, "mnist")
    assert step == Step(
        name="code 374ff13797",
        run=script(scripts.FOLDER, ".cloudtrain/mnist/code/374ff137971feb02"),
        unless=script(scripts.CODE_THERE, ".cloudtrain/mnist/code/374ff137971feb02"),
        stdin=source.archive.chunks,
    )


def test_no_code_section_is_no_step(tmp_path: Path) -> None:
    source = code.resolve(config(tmp_path))
    assert (source.digest, code.steps(source, "mnist")) == ("none", ())


def test_the_digest_tells_content_name_mode_and_kind_but_not_time(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a": "1", "b": "2"})
    wanted = config(tmp_path, path="src")
    seen = [code.resolve(wanted).digest]
    os.utime(src / "a", (1, 1))
    (src / "empty").mkdir()
    assert code.resolve(wanted).digest == seen[0]
    changes = [
        lambda: (src / "a").write_text("3"),
        lambda: (src / "a").rename(src / "c"),
        lambda: (src / "c").chmod(0o755),
        lambda: ((src / "b").unlink(), (src / "b").symlink_to("c")),
        lambda: ((src / "b").unlink(), (src / "b").write_text("c")),
    ]
    for change in changes:
        change()  # type: ignore[no-untyped-call]
        seen.append(code.resolve(wanted).digest)
    assert len(set(seen)) == len(seen)


def test_ignore_files_are_honoured_as_git_does(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git/config": "",
            ".gitignore": "*.log\nnode_modules/\n/src/top\n",
            "src/.gitignore": "/data/*\n!/data/keep\nbuild/\n[z-a]\n!\n\\\n",
            "src/.cloudtrainignore": "*.h5\n",
            "src/top": "",
            "src/inner/top": "",
            "src/a.log": "",
            "src/a.py": "",
            "src/a.h5": "",
            "src/data/keep": "",
            "src/data/big": "",
            "src/build/x": "",
            "src/logs/.gitignore": "!*.log\n",
            "src/logs/b.log": "",
            "src/inner/.git/objects": "",
            "src/sub/.git": "gitdir: elsewhere",
            "src/node_modules/m.js": "",
        },
    )
    assert names(tmp_path) == [
        ".cloudtrainignore",
        ".gitignore",
        "a.py",
        "data/keep",
        "inner/top",
        "logs/.gitignore",
        "logs/b.log",
    ]


def test_a_folder_that_git_ignores_but_the_user_names_is_delivered(tmp_path: Path) -> None:
    write(tmp_path, {".git/config": "", ".gitignore": "src/\n", "src/a.py": ""})
    assert names(tmp_path) == ["a.py"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"code\.path: .*/nowhere is not a folder"):
        code.resolve(config(tmp_path, path="nowhere"))


def test_far_too_much_is_refused_with_the_biggest_place(tmp_path: Path) -> None:
    src = write(tmp_path / "src", {"a.py": "", "data/x": "", "data/y": "", "z": ""})
    for name, size in {"data/x": 6 * 10**8, "data/y": 6 * 10**8, "z": 7 * 10**8}.items():
        os.truncate(src / name, size)
    with pytest.raises(
        ConfigError, match=r"has 1\.9 GB to deliver to every node, 1\.2 GB of it in data"
    ):
        code.resolve(config(tmp_path, path="src"))


# ── git ──────────────────────────────────────────────────────────────────────


def test_the_step_of_a_commit_as_a_value() -> None:
    source = code.GitCode(url="https://example.org/x.git", digest="c0ffee" * 6 + "c0ff")
    (step,) = code.steps(source, "mnist")
    folder = f".cloudtrain/mnist/code/{source.digest}"
    assert step == Step(
        name="code c0ffeec0ff",
        run=script(scripts.GIT, folder, source.url, source.digest, "", ""),
        unless=script(scripts.CODE_THERE, folder),
    )
