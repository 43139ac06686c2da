"""What is done beside a running attempt, on real nodes, without TensorFlow."""

from __future__ import annotations

import pytest

from tests.support.project import Project

EVALUATE = """
seen=
until [ "$seen" = 'model_checkpoint_path: "ckpt-20"' ]; do
    new=$(cat ckpt/checkpoint 2>/dev/null) || continue
    [ "$new" = "$seen" ] || { echo "scores ${new##* }"; touch "$SCORED"; }
    seen=$new
done
"""

COMMAND = "if [ {role} = evaluator ]; then sh evaluate.sh; else python3 rank.py {slowly}; fi"


def evaluated(project: Project, steps: str, **artifacts: str) -> list[str]:
    """The checkpoints that an evaluator on a node of its own came to see."""
    (project.code / "evaluate.sh").write_text(EVALUATE)
    config = project.config(
        nodes={"chief": {}, "worker": {"count": 1}, "evaluator": {}},
        train={
            "command": COMMAND.replace("{slowly}", steps),
            "evaluator_grace": "20s",
            "env": {"SCORED": str(project.shared() / "scored")},
        },
        artifacts=artifacts,
    )
    done = project.cloudtrain("run", config)
    assert done.returncode == 0, done.stderr
    assert "failed after" not in done.stderr
    return [line.split()[-1] for line in done.stdout.splitlines() if "│ scores" in line]


@pytest.mark.sweep(1, of="evaluators")
def test_an_evaluator_gets_the_last_checkpoint_of_the_chief_as_soon_as_it_has_ended(
    project: Project,
) -> None:
    assert evaluated(project, "--steps 20") == ['"ckpt-20"']


@pytest.mark.sweep(1, of="evaluators")
def test_an_evaluator_gets_the_chiefs_checkpoints_while_it_trains(project: Project) -> None:
    seen = evaluated(project, '--steps 20 --hold 10 "$SCORED"', every="1s")
    assert seen[-1] == '"ckpt-20"'
    assert len(seen) > 1, "the chief takes its eleventh step after the first score"
