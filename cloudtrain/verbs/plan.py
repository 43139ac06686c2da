"""`cloudtrain plan`: every node, TF_CONFIG and command as they would be; offline."""

from __future__ import annotations

from typing import Any

from cloudtrain.model import ClusterConfig, Run
from cloudtrain.plan import deciding, make_plan, tasks
from cloudtrain.playbooks import tensorflow
from cloudtrain.training.launch import Site, launch


def plan_json(config: ClusterConfig) -> dict[str, Any]:
    """The plan as one JSON document. Addresses that only `up` brings stand as `<node name>`."""
    plan = make_plan(config)
    run = Run(
        id="RUN",
        cluster=config.name,
        command=config.train.command,
        tasks=tasks(plan),
        state="starting",
        created=0.0,
    )
    site = Site(
        addresses={node.name: f"<{node.name}>" for node in plan.nodes},
        work={node.name: f"<work of {node.name}>" for node in plan.nodes},
    )
    nodes = []
    for node, task in zip(plan.nodes, run.tasks, strict=True):
        values = launch(config, run, task, site)
        nodes.append(
            {
                "name": node.name,
                "role": node.role,
                "index": node.index,
                "machine": node.machine,
                "accelerator": str(node.accelerator) if node.accelerator else None,
                "disk_gb": node.disk_gb,
                "spot": node.spot,
                "port": node.port,
                "command": values.command,
                "tf_config": values.environment.get("TF_CONFIG"),
            }
        )
    return {
        "name": config.name,
        "provider": config.provider,
        "strategy": config.strategy,
        "placement": list(config.placement),
        "nodes": nodes,
        "deciding": sorted(deciding(run.tasks, config)),
        "notes": [note for note in (tensorflow.keras_note(config),) if note],
        "store": config.artifacts.store,
        "price_per_hour": 0.0 if config.provider in ("local", "hosts") else None,
    }
