"""TF_CONFIG: tells each task of a run about the cluster and its own place in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.run_record import Task
from cloudtrain.training.strategies import strategy_of

TRAINING_ROLES = frozenset({"chief", "worker"})


def tf_config_for(
    config: ClusterConfig, tasks: Sequence[Task], addresses: Mapping[str, str], me: Task
) -> str | None:
    """TF_CONFIG of `me` as configured; None for none. `train.tf_config: true` gives one even to a
    single task, for scripts that require it."""
    if not wants_tf_config(config):
        return None
    within = for_estimator(config)
    if config.train.tf_config is True:
        return _text(tasks, addresses, me, within)
    return tf_config(tasks, addresses, me, within)


def for_estimator(config: ClusterConfig) -> bool:
    """True if the evaluator is one of `tf.estimator`, which sees the others' cluster. TensorFlow 1
    has no other one. From 2.0 to 2.15, the last with tf.estimator, the config says so: one of
    tf.distribute is aborted with the others' collectives if it sees them."""
    version = config.setup.tensorflow or ""
    return config.train.tf_config == "estimator" or version.startswith("1.")


def wants_tf_config(config: ClusterConfig) -> bool:
    """True if a run of this config has TF_CONFIG: by strategy, unless the config says otherwise."""
    if config.train.tf_config == "auto":
        return strategy_of(config).tf_config
    return bool(config.train.tf_config)


def tf_config(
    tasks: Sequence[Task], addresses: Mapping[str, str], me: Task, within: bool = False
) -> str | None:
    """JSON text for `me`, one of `tasks`; `addresses` has each node's host by name. None for the
    only training task of a run without ps: TensorFlow would look for peers. The evaluator is in no
    other task's cluster, and its own contains only itself, or, `within`, only the others."""
    training = [task for task in tasks if task.role in TRAINING_ROLES]
    others = [task for task in tasks if task.role not in TRAINING_ROLES | {"evaluator"}]
    if training == [me] and not others:
        return None
    return _text(tasks, addresses, me, within)


def _text(tasks: Sequence[Task], addresses: Mapping[str, str], me: Task, within: bool) -> str:
    # An Estimator's evaluator requires a chief in its cluster, and that it is not in it itself
    # (tensorflow_estimator 2.15, run_config.py, `_validate_task_type_and_task_id`).
    alone = me.role == "evaluator" and not within
    others = [task for task in tasks if task.role != "evaluator"]
    # In the same order everywhere: TF's own roles first, others by name.
    members = [me] if alone else sorted(others, key=lambda task: task.rank)
    cluster: dict[str, list[str]] = {}
    # A role without nodes is omitted: `"ps": []` makes workers crash with SIGSEGV.
    for task in members:
        cluster.setdefault(task.role, []).append(target(addresses[task.node], task.port))
    return json.dumps({"cluster": cluster, "task": {"type": me.role, "index": me.index}})


def target(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
