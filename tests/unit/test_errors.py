"""What an error tells, and that it is made anew rather than changed."""

import pytest

from cloudtrain.errors import CapacityError, CloudError, NodesError, StepFailed


def test_a_copy_has_the_class_and_the_facts_and_the_first_error_stays_as_it_was() -> None:
    first = CapacityError("no T4", hint="elsewhere", scope="region", code="STOCKOUT")
    copy = first.copy_with(message="m-chief0: no T4", in_group=True)
    assert type(copy) is CapacityError
    assert (str(copy), copy.message, copy.hint) == (
        "m-chief0: no T4",
        "m-chief0: no T4",
        "elsewhere",
    )
    assert (copy.scope, copy.code, copy.in_group, copy.exit_code) == ("region", "STOCKOUT", True, 3)
    assert (str(first), first.message, first.in_group) == ("no T4", "no T4", False)


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("m-chief0", "failed", step="base", step_exit_code=3, last_lines=("a", "b")),
        NodesError({"a": CloudError("x", hint="h"), "b": KeyError("y")}),
    ],
)
def test_an_error_that_is_made_of_more_than_words_is_copied_with_all_of_it(
    error: StepFailed | NodesError,
) -> None:
    copy = error.copy_with(hint="again")
    assert vars(copy) == {**vars(error), "hint": "again"}
    assert str(copy) == str(error)


def test_a_copy_has_no_cause_of_its_own() -> None:
    with pytest.raises(CloudError) as caught:
        raise CloudError("refused") from OSError("reset")
    assert caught.value.copy_with(hint="again").__cause__ is None
