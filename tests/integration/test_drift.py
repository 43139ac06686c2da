"""A changed config on a real local cluster: what needs no new node takes effect in the next run."""

from __future__ import annotations

from tests.support.drift_parts import User, cloudtrain, user

__all__ = ["user"]


def test_what_the_next_run_reads_takes_effect_by_itself(user: User) -> None:
    user.write(
        train={"command": "echo other", "env": {"A": "1"}, "max_restarts": 3},
        artifacts={"paths": ["x/**"]},
        setup={"packages": ["numpy"]},
        limits={"max_price": 90, "idle": "3h"},
        placement=["us-west1", "us-east4"],
    )
    done = user.up()
    assert done.exit_code == 0, done.stderr
    assert user.background == ["idle"]
    assert cloudtrain("plan", "deep.yaml", "--json").stdout.count("says") == 0
