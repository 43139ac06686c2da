"""Names that lie on nodes and in stores, where every version must find those of every other."""

AGENT_LOCK = "keeping"
"""Beside a task's work folder, as the next four: held by the agent as long as it lives."""

AGENT_LOG = "keeper.log"

LANDED = "landed"
"""What the client has told the agent of its last landing."""

UPLOAD_LOCK = "sending"
"""One uploader at a time, and the later one wins."""

WORK = "work"

NOTICE = "notice"
"""In an attempt's folder: when the cloud said that it takes the node, in Unix time."""

ARCHIVES = "parcels"
"""Folder below a run's prefix in the store. Not the name of a task: those end with their index."""

ARCHIVE_TAKEN = ".taken"
"""The end of the name of a mark beside an archive that there was no right to delete."""

ARCHIVED_WORK, ARCHIVED_LOGS = "work/", "logs/"
"""What the names of an archive's members begin with."""

ABOUT = ".cloudtrain/parcel.json"
"""The last member of an archive: what each file was."""
