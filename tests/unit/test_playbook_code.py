"""The code playbook: its step as a value, digests and ignore files."""

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.artifacts.download import mark_as_fetched
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ArtifactRules
from cloudtrain.core.shell import Step, script
from cloudtrain.playbooks import code, folder, scripts
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


def test_what_is_left_out_is_named_with_the_line_and_the_way_to_deliver_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".git/config": "",
            ".gitignore": "# ours\n*.csv\n",
            "src/.gitignore": "data/\n",
            "src/.cloudtrainignore": "notes.txt\n",
            "src/data/train.csv": "",
            "src/sub/x.csv": "",
            "src/sub/.gitignore": "cache\n",
            "src/sub/cache": "",
            "src/notes.txt": "",
        },
    )
    left_out = folder.listing(config(tmp_path), tmp_path / "src").left_out
    assert [(each.path, each.why, each.way) for each in left_out] == [
        ("data/", ".gitignore:1 `data/`", "add `!data/` to .cloudtrainignore"),
        (
            "notes.txt",
            ".cloudtrainignore:1 `notes.txt`",
            "remove that line, or add `!` and its path below it",
        ),
        ("sub/cache", "sub/.gitignore:1 `cache`", "add `!cache` to sub/.cloudtrainignore"),
        ("sub/x.csv", "../.gitignore:2 `*.csv`", "add `!sub/x.csv` to .cloudtrainignore"),
    ]


KEYS = {
    ".env": "BATCH=64",
    "conf/id_rsa": "x",
    "conf/gcp.json": '{"type": "service_account", "private_key": "x"}',
    "deploy": "-----BEGIN OPENSSH PRIVATE KEY-----\nx",
}
NO_KEYS = {"train.py": "TOKEN = 'x'", "conf/model.json": "{}", ".env.example": "", "id_rsa.pub": ""}


def test_files_of_keys_are_not_delivered_until_our_ignore_file_names_them(tmp_path: Path) -> None:
    """A `!` line of git's says that a file is tracked, not that each node is to have it."""
    write(tmp_path / "src", {**KEYS, **NO_KEYS, ".gitignore": "*.env\n!.env\n"})
    source = code.resolve(config(tmp_path, path="src"))
    assert set(names(tmp_path)) == {*NO_KEYS, ".gitignore"}
    assert code.keys_note(source) == (
        "code: not delivered, as it looks like keys: .env (a file of keys by its name), "
        "conf/gcp.json (has a Google credential in it), conf/id_rsa (a file of keys by its "
        "name), deploy (has a "
        "private key in it); add `!.env` to .cloudtrainignore to deliver it"
    )
    (tmp_path / "src" / ".cloudtrainignore").write_text("!.env\n!conf/*\n!deploy\n")
    assert set(names(tmp_path)) == {*KEYS, *NO_KEYS, ".gitignore", ".cloudtrainignore"}
    assert code.keys_note(code.resolve(config(tmp_path, path="src"))) == ""


def test_files_of_keys_are_not_delivered_of_a_repository_that_this_machine_reads(
    tmp_path: Path,
) -> None:
    write(tmp_path, {**KEYS, **NO_KEYS, ".cloudtrainignore": "!deploy\n"})
    keys: list[folder.LeftOut] = []
    with tarfile.open(tmp_path.parent / "packed.tar", "w") as tar:
        code._add(tar, tmp_path, keys)
        packed = {
            member.name.removeprefix("code/") for member in tar.getmembers() if member.isreg()
        }
    assert packed == {*NO_KEYS, ".cloudtrainignore", "deploy"}
    assert {each.path for each in keys} == {*KEYS} - {"deploy"}


def test_each_way_to_deliver_what_is_left_out_does(tmp_path: Path) -> None:
    files = {".gitignore": "data/\n*.csv\nsub/deep/*\n", "sub/.gitignore": "cache\n"}
    there = {
        ".env": "",
        "data/a": "",
        "b.csv": "",
        "sub/deep/c": "",
        "sub/cache": "",
        "sub/run.json": "{}",
    }
    write(tmp_path / "src", files | there | {"sub/manifest.json": "{}", "sub/d": ""})
    for _ in range(9):
        left_out = folder.listing(config(tmp_path), tmp_path / "src").left_out
        if not left_out:
            break
        _, line, file = left_out[0].way.replace("`", "|").split("|")
        place = tmp_path / "src" / file.removeprefix(" to ")
        with place.open("a") as opened:
            opened.write(f"{line}\n")
    assert set(there) <= set(names(tmp_path))


def test_what_this_program_wrote_is_no_code_and_does_not_change_its_id(tmp_path: Path) -> None:
    write(tmp_path / "src", {"a.py": "1"})
    before = code.resolve(config(tmp_path, path="src")).digest
    page = "<!DOCTYPE html>\n<html><head><title>Run 20261126-101500-abcd of mnist: succeeded"
    write(
        tmp_path / "src",
        {
            "results/.cloudtrain-fetched": "",
            "results/chief0/log": "",
            "runs/R/run.json": "{}",
            "runs/R/manifest.json": "{}",
            "runs/R/chief0/model": "",
            "report.html": page,
            ".cloudtrain-schema.json": "{}",
            "store/R2/chief0/part": "",
        },
    )
    wanted = replace(
        config(tmp_path, path="src"), artifacts=ArtifactRules(store=f"file://{tmp_path}/src/store")
    )
    assert code.resolve(wanted).digest == before
    left_out = folder.listing(wanted, tmp_path / "src").left_out
    assert {each.path: each.why for each in left_out} == {
        ".cloudtrain-schema.json": "written by cloudtrain",
        "report.html": "the report of a run",
        "results/": "fetched from a run",
        "runs/R/": "a run in a store",
        "store/": "artifacts.store",
    }
    write(tmp_path / "src", {"index.html": "<html><title>Run</title>", "sub/run.json": "{}"})
    assert {"index.html", "sub/run.json"} <= set(names(tmp_path))


def test_fetch_marks_its_folder_or_what_it_puts_beside_files_of_the_user(tmp_path: Path) -> None:
    write(tmp_path / "src", {"a.py": "1"})
    mark_as_fetched(tmp_path / "src" / "results", ["chief0", "worker0"])
    mark_as_fetched(tmp_path / "src", ["chief0"])
    mark_as_fetched(tmp_path / "src" / "results", ["chief0"])
    write(tmp_path / "src", {"results/chief0/m": "", "chief0/m": ""})
    assert names(tmp_path) == ["a.py"]


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
