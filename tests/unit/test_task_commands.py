"""What is refused before a task command is sent, and in an answer."""

from __future__ import annotations

import pytest

from cloudtrain.core.errors import NodeError
from cloudtrain.core.protocols import Completed
from cloudtrain.runs import task_commands


@pytest.mark.parametrize("garbage", [b"", b"login: \n", b"running x\n", b"- 1 S 0 a\n"])
def test_an_answer_that_is_none_is_an_error_naming_the_node(garbage: bytes) -> None:
    completed = Completed(exit_code=127, stdout=garbage, stderr=b"sh: not found")
    for parse in (task_commands.parse_start, task_commands.parse_status, task_commands.parse_stop):
        with pytest.raises(NodeError, match=r"n: invalid answer to .*127.*sh: not found"):
            parse("n", completed)


def test_a_command_with_a_nul_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        task_commands.start("f", tag="t", work="w", command="a\0b", environment={})
