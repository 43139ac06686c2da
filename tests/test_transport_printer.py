"""The dry run."""

from __future__ import annotations

from cloudtrain.model import Node
from cloudtrain.protocols import Completed, Transport
from cloudtrain.shell import command
from cloudtrain.transports.printer import PrinterTransport

NODE = Node(
    name="mnist-chief0",
    role="chief",
    index=0,
    state="running",
    address="127.0.0.1",
    internal="127.0.0.1",
)


def test_every_command_is_printed_as_a_shell_would_read_it_and_none_runs() -> None:
    lines: list[str] = []
    transport: Transport = PrinterTransport(lines.append)
    completed = transport.run(NODE, command("echo", "a b", "$HOME"))
    transport.ask(NODE, "kill -0 1")
    with transport.forward(NODE, 6006) as port:
        assert port == 6006
    transport.close()
    assert completed == Completed(exit_code=0, stdout=b"", stderr=b"")
    assert lines == [
        "mnist-chief0: echo 'a b' '$HOME'",
        "mnist-chief0: kill -0 1",
        "mnist-chief0: forward 127.0.0.1:6006",
    ]


def test_what_goes_to_stdin_is_not_shown() -> None:
    lines: list[str] = []
    PrinterTransport(lines.append).run(NODE, command("sh"), stdin=b"export TOKEN=secret\n")
    assert lines == ["mnist-chief0: sh < …"]


def test_answers_can_be_given() -> None:
    def answer(node: Node, line: str) -> Completed:
        return Completed(exit_code=1, stdout=line.encode(), stderr=b"no")

    transport = PrinterTransport(lambda _: None, answer=answer)
    got: list[bytes] = []
    completed = transport.run(NODE, command("test", "-e", "x"), on_stdout=got.append)
    assert completed == Completed(exit_code=1, stdout=b"", stderr=b"no")
    assert got == [b"test -e x"]
    assert transport.ask(NODE, "true").exit_code == 1
