"""`fetch` writes what the run's tasks have made, and nothing over files of the user's."""

import hashlib
from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.artifacts.download import download_run
from cloudtrain.artifacts.manifest import RECORDS, Manifest
from cloudtrain.artifacts.run_index import RECORD
from cloudtrain.core.errors import StoreError
from cloudtrain.core.model import Artifact
from cloudtrain.core.paths import FETCHED, FETCHED_FILES
from cloudtrain.report.landed import FACTS, PAGE
from cloudtrain.stores import open_store
from tests.support.landing_parts import RUN, Heard, write_manifest

TASKS = ("chief0", "worker0")


def land(folder: Path, files: dict[str, str], run: str = RUN) -> None:
    """A store with a run's manifest as anybody who may write there could have written it."""
    store = open_store(folder.as_uri())
    found = {}
    for path, text in files.items():
        data = text.encode()
        with suppress(StoreError):  # a name that is a folder's, too
            store.upload(f"{run}/{path}", [data])
        digest = hashlib.sha256(data).hexdigest()
        found[path] = Artifact(path=path, size=len(data), sha256=digest)
    write_manifest(store, Manifest(run=run, files=found, complete=True))


def fetch(folder: Path, here: Path, run: str = RUN, *, overwrite: bool = False) -> str:
    """What it failed with; empty if it did not."""
    store = open_store(folder.as_uri())
    try:
        download_run(run, store, here, Heard(), tasks=TASKS, overwrite=overwrite)
    except StoreError as error:
        return "\n".join(filter(None, [error.message, error.hint]))
    return ""


def there(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_text() for path in files}
    return {path: text for path, text in found.items() if Path(path).name[:19] != FETCHED}


HOSTILE = [".git/hooks/pre-commit", ".bashrc", "train.py", ".ssh/authorized_keys", "logs", "chief"]
HOSTILE += ["chief1/x", "Chief0/x", "manifest.json", FETCHED_FILES, ".partial/x", "worker0"]
GOOD = {"chief0/output/model": "m", "chief0/.cache/dot": "d", "logs/chief0.log": "l"}
GOOD |= {"worker0/_home/x": "h", "worker0/_code/y": "c", **dict.fromkeys(RECORDS, "r")}


def test_only_names_of_the_runs_tasks_and_records_are_written(tmp_path: Path) -> None:
    assert {RECORD, PAGE, FACTS} == RECORDS
    here = tmp_path / "here"
    (here / ".git/hooks").mkdir(parents=True)
    (here / ".bashrc").write_text("mine")
    for name in HOSTILE:
        land(tmp_path / "store" / name.replace("/", "_"), {**GOOD, name: "evil"})
        said = fetch(tmp_path / "store" / name.replace("/", "_"), here, overwrite=True)
        assert said.startswith(f"{name}: no task of the run has this name: not written"), name
        assert there(here) == {**GOOD, ".bashrc": "mine"}


@pytest.mark.parametrize("name", ["chief0/output/model", "logs/chief0.log", "report.html"])
def test_a_file_of_the_users_is_replaced_on_request_alone(tmp_path: Path, name: str) -> None:
    land(tmp_path / "store", GOOD)
    here = tmp_path / "here"
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text("mine")
    for _ in range(2):
        assert fetch(tmp_path / "store", here) == (
            f"{name}: another file is there, which no earlier fetch wrote: not replaced\n"
            "name another folder, or replace it with --overwrite"
        )
        assert there(here) == {**GOOD, name: "mine"}
    assert fetch(tmp_path / "store", here, overwrite=True) == ""
    assert there(here) == GOOD


def test_a_file_that_is_damaged_fails_alone_in_its_batch(tmp_path: Path) -> None:
    files = {f"chief0/output/{number:02}": f"text {number}" for number in range(40)}
    land(tmp_path / "store", files)
    (tmp_path / "store" / RUN / "chief0/output/07").write_text("another")
    (tmp_path / "here/chief0/output").mkdir(parents=True)
    (tmp_path / "here/chief0/output/09").write_text("the user's")
    said = fetch(tmp_path / "store", tmp_path / "here")
    assert said.count("differs from what landed") == said.count("not replaced") == 1
    good = {path: text for path, text in files.items() if path[-2:] not in ("07", "09")}
    assert there(tmp_path / "here") == {**good, "chief0/output/09": "the user's"}


def test_a_later_run_replaces_what_fetch_itself_wrote(tmp_path: Path) -> None:
    """Also beside files of the user's, and what is there with the same bytes is no reason."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "train.py").write_text("mine")
    (here / "chief0").mkdir()
    (here / "chief0/same").write_text("s")
    later = "20261122-062404-k3f9"
    land(tmp_path / "store", {**GOOD, "chief0/same": "s"})
    land(tmp_path / "store", {**dict.fromkeys(GOOD, "2"), "chief0/new": "n"}, later)
    assert fetch(tmp_path / "store", here) == ""
    assert fetch(tmp_path / "store", here, later) == ""
    mine = {"train.py": "mine", "chief0/same": "s"}
    assert there(here) == {**dict.fromkeys(GOOD, "2"), "chief0/new": "n", **mine}


def test_a_folder_that_an_earlier_version_fetched_into_is_fetched_into_again(
    tmp_path: Path,
) -> None:
    land(tmp_path / "store", GOOD)
    here = tmp_path / "here"
    (here / "chief0/output").mkdir(parents=True)
    (here / FETCHED).write_text("")
    (here / "chief0/output/model").write_text("of an earlier run")
    assert fetch(tmp_path / "store", here) == ""
    assert there(here) == GOOD


@pytest.mark.parametrize("place", ["chief0", "chief0/output", ".partial", "chief0/output/model"])
def test_no_link_in_the_folder_is_followed(tmp_path: Path, place: str) -> None:
    land(tmp_path / "store", GOOD)
    here, private = tmp_path / "here", tmp_path / "private"
    private.mkdir()
    (private / "model").write_text("mine")
    (here / place).parent.mkdir(parents=True)
    (here / place).symlink_to(private / "model" if place.endswith("model") else private)
    assert "not written" in fetch(tmp_path / "store", here) or place.endswith("model")
    assert there(private) == {"model": "mine"}
    assert (here / place).is_symlink()
    if place.endswith("model"):
        assert fetch(tmp_path / "store", here, overwrite=True) == ""
        assert there(private) == {"model": "mine"}
        assert there(here) == GOOD
