"""Reads the code as delivery does: a folder to its last byte, a private repository with its
submodules and files in Git LFS.
"""

from __future__ import annotations

from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import code as code_playbook
from cloudtrain.playbooks import git_needs


def code(config: ClusterConfig) -> str:
    """What is delivered, in words. Raises CloudtrainError for what cannot be."""
    source = code_playbook.resolve(config)
    if isinstance(source, code_playbook.FolderCode):
        return str(source.root)
    if isinstance(source, code_playbook.PrivateCode):
        source.archive.make()
        return f"{config.code.git} at {source.digest[:10]}, fetched by this machine"
    if isinstance(source, code_playbook.GitCode):
        git_needs.refuse_unreadable(config, source.url, source.digest)
        return f"{config.code.git} at {source.digest[:10]}, fetched by each node"
    return "none"
