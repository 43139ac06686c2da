"""Local records of each cluster; never trusted for what exists."""

from cloudtrain.state.folder import Records, home, known_clusters, resolve
from cloudtrain.state.lock import LockHolder

__all__ = ["LockHolder", "Records", "home", "known_clusters", "resolve"]
