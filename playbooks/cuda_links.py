"""A shell function that links CUDA's libraries in an environment (node/cuda_links.py)."""

from __future__ import annotations

from cloudtrain.core.ship import text

LINK = f"""\
link_cuda() {{  # in the environment $1
    "$1/bin/python" -I - <<'END'
{text("cuda_links.py")}END
}}
"""
