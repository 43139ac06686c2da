"""The images of a cluster: chosen once, and the same for a node that is made again weeks later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cloudtrain.errors import CloudConfigError, NotFoundError
from cloudtrain.model import Plan
from cloudtrain.protocols import Journal

T = TypeVar("T")


def pinned(
    plan: Plan,
    key: str,
    journal: Journal,
    *,
    choose: Callable[[], T],
    exact: Callable[[str], T],
    id_of: Callable[[T], str],
) -> T:
    """The image that the record has for `key`, or the one that is chosen now, which the journal
    then keeps before a node is made of it; `id_of` "": nothing to keep.

    Raises CloudConfigError for one that is on record and not to be had any more.
    """
    known = plan.images.get(key)
    if known is None:
        chosen = choose()
        if id_of(chosen):
            journal("image", key=key, id=id_of(chosen))
        return chosen
    try:
        return exact(known)
    except (CloudConfigError, NotFoundError) as error:
        name = plan.config.name
        raise CloudConfigError(
            f"{known}, the image that {name} was made with, is gone: {error.message}",
            hint=f"`cloudtrain down {name}` and `up` make all nodes of today's image; or name "
            "an image in `image:` and exchange them by `cloudtrain up --replace`",
            code=error.code,
        ) from error
