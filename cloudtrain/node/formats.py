"""Names on nodes and in stores, which never change: every version finds what another wrote."""

AGENT_LOCK = "keeping"
"""Lock of the agent, held as long as it lives. These four are beside a task's work folder."""

AGENT_LOG = "keeper.log"

LANDED = "landed"
"""The client's report to the agent about its last landing."""

UPLOAD_LOCK = "sending"
"""Lock of the uploader: only one runs at a time, and the latest wins."""

WORK = "work"

SHARED, SHARED_BY_OTHER = "shared", "shared-by-other"
"""Link beside a task's work folder to the run's part of the cluster's shared folder: of the task
that lands it, and of every other one."""

IN_HOME, IN_CODE = "_home/", "_code/"
"""Prefixes of names in the node's home, and in the code outside `train.dir`."""

NOTICE = "notice"
"""File in an attempt's folder with the Unix time at which the node's end was announced: by the
cloud's preemption notice, or with a second word, `shutdown` or `lifetime`."""

ARCHIVES = "parcels"
"""Folder of archives below a run's prefix in the store; no task's name, which end in an index."""

ARCHIVE_TAKEN = ".taken"
"""Suffix of a mark beside an archive that could not be deleted for lack of permission."""

ARCHIVED_WORK, ARCHIVED_LOGS = "work/", "logs/"
"""Prefixes of the names of an archive's members."""

METRICS = ".metrics"
"""Suffix of the metrics, beside the log of the same attempt."""

ABOUT = ".cloudtrain/parcel.json"
"""The last member of an archive: its index."""

OVER_MARK, END_MARK = "over", "end"
"""Ends of the names of an agent's marks, beside the archives: its task has ended; its machine ends
itself. Both are of an attempt: `chief0.1.end`."""
