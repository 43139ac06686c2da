"""Which files make one complete checkpoint, by the names that TensorFlow gives them."""

from __future__ import annotations

import pytest

from cloudtrain.artifacts.checkpoint_parts import prefixes, torn_checkpoint, whole_set

INDEX, ONE = "c/k-5.index", "c/k-5.data-00000-of-00001"
TWO = ("c/k-5.data-00000-of-00002", "c/k-5.data-00001-of-00002")
OLD = ("c/k-5-00000-of-00002", "c/k-5-00001-of-00002")


@pytest.mark.parametrize("names", [(INDEX, ONE), (INDEX, *TWO), OLD, ("c/k-5",)])
def test_a_complete_set_is_found_among_other_files(names: tuple[str, ...]) -> None:
    others = ("c/k-5.meta", "c/checkpoint", "c/k-50.index", "c/k-50.data-00000-of-00001", "c/k-4")
    assert whole_set("c/k-5", {*names, *others}) == frozenset(names)


@pytest.mark.parametrize(
    "names",
    [
        (INDEX,),
        (ONE,),
        (INDEX, TWO[0]),
        (INDEX, TWO[1]),
        (INDEX, ONE, *TWO),
        (OLD[1],),
        ("c/k-5.meta",),
        ("c/k-5.index.tempstate1", ONE),
        (INDEX, "c/k-5.data-00000-of-00000"),
        (),
    ],
)
def test_a_torn_set_is_none(names: tuple[str, ...]) -> None:
    assert whole_set("c/k-5", names) is None


STATE = b"""model_checkpoint_path: "k-5"
all_model_checkpoint_paths: "k-4"
all_model_checkpoint_paths: "k-5"
"""


def test_the_newest_checkpoint_comes_first_and_absolute_names_are_beside_the_file() -> None:
    assert prefixes("c/d/checkpoint", STATE) == ("c/d/k-5", "c/d/k-4")
    absolute = STATE.replace(b'"k', b'"/root/work/c/k')
    assert prefixes("c/checkpoint", absolute) == ("c/k-5", "c/k-4")
    assert prefixes("checkpoint", STATE) == ("k-5", "k-4")
    assert prefixes("c/checkpoint", b'model_checkpoint_path: "../../etc/k"\n') == ()
    assert prefixes("c/checkpoint", b"\xff\0 anything") == ()


def test_a_landed_folder_is_torn_only_if_some_files_of_the_newest_are_there() -> None:
    def torn(*names: str) -> str | None:
        return torn_checkpoint({"checkpoint", *names}, lambda path: STATE)

    assert torn("k-5.meta", "k-4.index", "k-4.data-00000-of-00001") == "k-5"
    assert torn("k-5.meta", "k-5.index", "k-5.data-00000-of-00001") is None
    assert torn("weights.npz") is None
