"""`cloudtrain attend`: supervises a detached run; users meet it as `logs -f` and `train`."""

from __future__ import annotations

from cloudtrain.cluster.billing_notice import report_billed_on_failure
from cloudtrain.cluster.lease import holding_lease
from cloudtrain.cluster.session import Handle, open_session, recorded_config
from cloudtrain.commands.spent_budget import down_when_spent
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.core.wait_limits import LOCK_HANDED_OVER
from cloudtrain.runs.supervise import supervise_run as attend_run
from cloudtrain.state import Records
from cloudtrain.state.lock import ATTEND


def attend(name: str, *, console: Console, wait: float = LOCK_HANDED_OVER) -> Run | None:
    """Supervise the cluster's active run to its end and return it; None if there is none."""
    records = Records(name)
    with records.lock(ATTEND, wait=wait):
        run = records.active_run()
        if run is None:
            return None
        handle = Handle(recorded_config(records))
        with (
            holding_lease(handle, ATTEND, console, must=False),
            down_when_spent(handle, console),
            open_session(handle, console) as session,
            report_billed_on_failure(session),
        ):
            return attend_run(session, run)
