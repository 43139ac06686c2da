"""Local records of each cluster; never trusted for what exists."""

from cloudtrain.state.folder import Records, home, known_clusters, resolve
from cloudtrain.state.lock import LockHolder, command_shown

__all__ = ["LockHolder", "Records", "command_shown", "home", "known_clusters", "resolve"]
