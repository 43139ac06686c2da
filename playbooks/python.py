"""Checks that the node has a Python for our own code there (node/); installs nothing."""

from __future__ import annotations

from cloudtrain.core.shell import Step
from cloudtrain.core.ship import check_python


def steps() -> tuple[Step, ...]:
    """`base` installs it on the clouds' machines; elsewhere the error says what to install."""
    return (Step(name="python3", run=check_python(), unless=check_python()),)
