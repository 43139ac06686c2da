"""What this machine remembers of each cluster; never trusted for what exists."""

from cloudtrain.records.folder import Records, home, known, resolve
from cloudtrain.records.lock import Holder

__all__ = ["Holder", "Records", "home", "known", "resolve"]
