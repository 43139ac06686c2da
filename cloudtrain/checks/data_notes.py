"""Notes of `plan` on `data:`, which need no query."""

from __future__ import annotations

from cloudtrain.core.model import ClusterConfig


def data_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Notes on `data:` that need no query."""
    found = []
    for name, source in config.data.items():
        if not source.shard:
            continue
        roles = (source.role,) if source.role else ("chief", "worker")
        ranks = sum(config.nodes[role].count for role in roles if role in config.nodes)
        others = [role for role in config.nodes if role not in roles]
        alone = f"; {', '.join(others)} get none of it" if others else ""
        found.append(
            f"data.{name}: each of {ranks} nodes ({', '.join(roles)}) gets 1 of every {ranks} files"
            f"{alone}: the script must not shard it again (AutoShardPolicy.OFF)"
        )
    if config.data:
        names = ", ".join(config.data)
        found.append(f"data ({names}): size and transfer cost are known after `check`")
    return tuple(found)
