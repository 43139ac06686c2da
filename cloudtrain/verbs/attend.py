"""`cloudtrain attend`: what a detached run is handed to; users meet it as `logs -f` and `train`."""

from __future__ import annotations

from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.lease import leased
from cloudtrain.model import Run
from cloudtrain.protocols import Console
from cloudtrain.records import Records
from cloudtrain.training.attend import attend as attend_run
from cloudtrain.training.background import DOING
from cloudtrain.verbs.billed import what_is_billed_is_told


def attend(name: str, *, console: Console, wait: float = 30.0) -> Run | None:
    """The active run of the cluster at its end; None where there is none."""
    records = Records(name)
    with records.lock(DOING, wait=wait):
        run = records.active_run()
        if run is None:
            return None
        handle = Handle(recorded_config(records))
        with (
            leased(handle, DOING, console, must=False),
            open_session(handle, console) as session,
            what_is_billed_is_told(session),
        ):
            return attend_run(session, run)
