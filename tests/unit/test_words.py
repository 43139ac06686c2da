"""Lists of names in messages."""

import paramiko
import pytest

from cloudtrain.core.paths import some
from cloudtrain.ssh.ssh_proxy import in_words


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d"], "a, b, c and 1 more"),
        (dict.fromkeys("abcde"), "a, b, c and 2 more"),
    ],
)
def test_the_first_names_are_listed_and_the_rest_counted(names: list[str], text: str) -> None:
    assert some(names) == text


def test_how_many_are_listed_can_be_chosen() -> None:
    assert some("abc", 1) == "a and 2 more"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            paramiko.SSHException("Error reading SSH protocol banner"),
            "what listens there is no SSH",
        ),
        (paramiko.SSHException("No existing session"), "the server closed the connection"),
        (
            paramiko.SSHException("Incompatible ssh peer (no acceptable host key)"),
            "it shares no al",
        ),
        (EOFError(), "the connection was closed"),
        (OSError(113, "No route to host"), "No route to host"),
        (paramiko.SSHException("something new"), "something new"),
    ],
)
def test_paramikos_words_are_not_shown(error: Exception, text: str) -> None:
    assert in_words(error).startswith(text)
