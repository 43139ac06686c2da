"""Notes of `plan` and `check` on buckets that a run's command or variables name."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from cloudtrain.config.location import place_in_file
from cloudtrain.config.requirements import lines
from cloudtrain.core.bucket_uris import BucketUri, uris_of
from cloudtrain.core.cloud import Cloud, cloud_of, clouds
from cloudtrain.core.model import ClusterConfig

READ_BY_TENSORFLOW = ("gs",)
"""Schemes that TensorFlow's wheels open by themselves: those of 2.18 and 2.21 know gs://, but
neither s3:// nor Azure's (tf.io.gfile tried on 2026-11-21).
"""
SINCE = (2, 18)
"""First release of which that is known."""

INSTEAD = (
    "list input under `data:` and write `{data.NAME}`, write output to `{output}`, which lands in "
    "artifacts.store"
)


def bucket_notes(config: ClusterConfig) -> tuple[str, ...]:
    """Return a note for each field that names buckets which the nodes may not be able to use.

    None on machines that are not rented: scripts have their own credentials there.
    """
    cloud = cloud_of(config.provider)
    if cloud is None:
        return ()
    found = []
    for field, group in groupby(uris_of(config), key=lambda each: each.field):
        uris = tuple(group)
        lacking = _unread(config, uris)
        if lacking:
            found.append(f"{at_field(config, field)}{_no_library(lacking)}; or {INSTEAD}")
        rest = [each for each in uris if each not in lacking]
        if config.identity is None and rest:
            found.append(f"{at_field(config, field)}{_no_identity(cloud, rest)}")
        elif config.identity is not None:
            foreign = [each for each in rest if each.scheme not in cloud.bucket_schemes]
            found += [f"{at_field(config, field)}{_foreign(cloud, foreign)}"] if foreign else []
    return tuple(found)


def unusable(config: ClusterConfig) -> tuple[str, ...]:
    """Return a text for each field with URIs that nothing on the nodes can open: TensorFlow's
    wheels do not know them, and the config installs nothing else.
    """
    found = []
    for field, group in groupby(uris_of(config), key=lambda each: each.field):
        lacking = _unread(config, tuple(group))
        if lacking:
            found.append(f"{at_field(config, field)}{_no_library(lacking)}; or {INSTEAD}")
    return tuple(found)


def _unread(config: ClusterConfig, uris: Iterable[BucketUri]) -> tuple[BucketUri, ...]:
    """Those that nothing can open; none if the config installs more than TensorFlow."""
    setup = config.setup
    if cloud_of(config.provider) is None or _release(setup.tensorflow or "") < SINCE:
        return ()
    more = config.setup.run or setup.requirements or lines(config)
    if more or not (config.image == "auto" or config.image.startswith("ubuntu-")):
        return ()
    return tuple(each for each in uris if each.scheme not in READ_BY_TENSORFLOW)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def _no_library(uris: Iterable[BucketUri]) -> str:
    schemes = sorted({each.scheme for each in uris})
    return (
        f"{_shown(uris)}: TensorFlow does not know {' or '.join(f'{s}://' for s in schemes)}, and "
        "nothing else is installed: add the script's library to setup.packages (tensorflow-io, "
        "boto3, adlfs, …)"
    )


def _no_identity(cloud: Cloud, uris: Iterable[BucketUri]) -> str:
    own = any(each.scheme in cloud.bucket_schemes for each in uris)
    way = f"; or set `identity:` to {cloud.identity.word}" if own and cloud.identity else ""
    return (
        f"{_shown(uris)}: nodes have no identity, so scripts can use only public buckets or a key "
        f"from `secrets:`: {INSTEAD}{way}"
    )


def _foreign(cloud: Cloud, uris: Iterable[BucketUri]) -> str:
    schemes = {each.scheme for each in uris}
    titles = [one.title for one in clouds() if schemes & set(one.bucket_schemes)]
    return (
        f"{_shown(uris)}: `identity:` is known to {cloud.title} alone, not to "
        f"{' or '.join(titles)}: {INSTEAD}"
    )


def _shown(uris: Iterable[BucketUri]) -> str:
    return ", ".join(each.uri for each in uris)


def at_field(config: ClusterConfig, field: str) -> str:
    """Beginning of a note, with the place of its field: `gcp.yaml:9: train.command: `."""
    place = place_in_file(config, field)
    return f"{field}: " if place == "the config" else f"{place}: {field}: "
