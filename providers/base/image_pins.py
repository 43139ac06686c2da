"""Pin a cluster's images: each is chosen once, so that a node recreated weeks later gets the same
image."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudtrain.core.errors import CloudConfigError, NotFoundError
from cloudtrain.core.events import ImageChosen
from cloudtrain.core.model import Plan
from cloudtrain.core.protocols import Journal

T = TypeVar("T")


def pinned_image(
    plan: Plan,
    key: str,
    journal: Journal,
    *,
    choose: Callable[[], T],
    exact: Callable[[str], T],
    id_of: Callable[[T], str],
) -> T:
    """The recorded image for `key`, or one that is chosen now.

    A new choice is recorded before a node is created from it, unless `id_of` returns "". Raises
    CloudConfigError if the recorded image no longer exists."""
    known = plan.images.get(key)
    if known is None:
        chosen = choose()
        if id_of(chosen):
            journal(ImageChosen(key=key, id=id_of(chosen)))
        return chosen
    try:
        return exact(known)
    except (CloudConfigError, NotFoundError) as error:
        name = plan.config.name
        raise CloudConfigError(
            f"{known}, the image of {name}, no longer exists: {error.message}",
            hint=f"run `cloudtrain down {name}` and `up` to use today's image for all nodes, or "
            "set `image:` and run `cloudtrain up --replace`",
            code=error.code,
        ) from error
