"""Tasks and their addresses."""

from collections.abc import Mapping

from cloudtrain.core.run_record import Task


def tasks_of(counts: Mapping[str, int], port: int = 8900) -> tuple[Task, ...]:
    return tuple(
        Task(role=role, index=index, node=f"mnist-{role}{index}", port=port)
        for role, count in counts.items()
        for index in range(count)
    )


def addresses_of(tasks: tuple[Task, ...]) -> dict[str, str]:
    return {task.node: f"10.0.0.{number}" for number, task in enumerate(tasks, 1)}
