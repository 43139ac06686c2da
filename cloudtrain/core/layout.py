"""Paths on a node, relative to the user's home there."""

from __future__ import annotations

ROOT = ".cloudtrain"


def cluster_folder(cluster: str) -> str:
    """Everything of the cluster on a node outside the cache; deleted when the node is left."""
    return f"{ROOT}/{cluster}"


def code_folder(cluster: str, digest: str) -> str:
    """Delivered code, never run in place: each run copies it to its work folder."""
    return f"{cluster_folder(cluster)}/code/{digest}"


def runs_folder(cluster: str) -> str:
    return f"{cluster_folder(cluster)}/runs"


def work_folder(cluster: str, run: str, task: str) -> str:
    """Folder of one task for all attempts; the task starts in it (or in `train.dir` below it).

    Each task has its own: two ranks that share one corrupt each other's checkpoints.
    """
    return f"{runs_folder(cluster)}/{run}/{task}/work"


def environment_folder(cluster: str, run: str, task: str) -> str:
    """A task's own layer over the environment of `setup:`: what the task installs stays in it."""
    return f"{runs_folder(cluster)}/{run}/{task}/env"


def attempt_folder(cluster: str, run: str, task: str, attempt: int) -> str:
    """Log, exit code, process group and start time of one attempt of one task."""
    return f"{runs_folder(cluster)}/{run}/{task}/attempt-{attempt}"


def tag(cluster: str, run: str, task: str, attempt: int) -> str:
    """Value of CLOUDTRAIN_TASK in the environment of every process of one attempt of one task."""
    return f"{cluster}/{run}/{task}/{attempt}"
