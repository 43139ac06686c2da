"""Choose a node's boot image and read its requirements."""

from __future__ import annotations

import re
from functools import cached_property
from urllib.parse import urlsplit

from cloudtrain.catalog import gpus
from cloudtrain.core.dataclass import dataclass
from cloudtrain.core.errors import CloudConfigError, NotFoundError, PermissionsError
from cloudtrain.providers.gcp.client import GcpClient, Json
from cloudtrain.providers.gcp.machine_types import Shape

UBUNTU = {
    # https://cloud.google.com/compute/docs/images/os-details#ubuntu_lts
    "ubuntu-22.04": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2204-lts",
    "ubuntu-24.04": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64",
}
DEEP_LEARNING = "deeplearning-platform-release"
_WITH_DRIVER = re.compile(
    r"common-cu(?P<cuda>\d+)-ubuntu-(?P<ubuntu>2204|2404)(?:-nvidia-(?P<driver>\d+))?(?:-py\d+)?"
)
"""https://cloud.google.com/deep-learning-vm/docs/images#listing-versions"""
_FAMILIES = "family eq common-cu.*-ubuntu-2[24]04.*"
"""`filter` for images.list, with a regular expression after `eq`; needed because the project has
thousands of images."""


@dataclass(frozen=True, kw_only=True)
class GcpImage:
    source: str
    """Path in the format of `initializeParams.sourceImage`."""
    disk_gb: int = 0
    """Minimum disk size; 0 if this endpoint does not report it."""
    uefi: bool = False
    gvnic: bool = False
    """True if the image has the driver of Google's own network card."""
    reported: bool = True
    """False if this endpoint does not report the image."""
    exact: str = ""
    """Image to which `source`, possibly a family, resolves; "" if this endpoint does not report it.
    """
    installs_driver: bool = False
    """True if the image installs NVIDIA's driver at its first boot when the metadata requests it.
    """


class Images:
    """Look up images, each only once."""

    def __init__(self, api: GcpClient) -> None:
        self._api = api
        self._known: dict[str, GcpImage] = {}

    def of(self, wanted: str, shape: Shape) -> GcpImage:
        """A node's image. Raises CloudConfigError if it does not exist."""
        if wanted == "auto":
            older = shape.gpus is not None and gpus.is_older(shape.gpus.kind, "Turing")
            serves = shape.has_gpus and not older
            return (self._deep_learning if serves else None) or self._ubuntu()
        if wanted == "deeplearning":
            if self._deep_learning is None:
                raise CloudConfigError(
                    f"{DEEP_LEARNING} has no known Ubuntu image with CUDA",
                    hint="set `image:` to PROJECT/FAMILY",
                )
            return self._deep_learning
        return self._named(wanted)

    def _ubuntu(self) -> GcpImage:
        """Ubuntu 22.04, or 24.04 once Google no longer offers 22.04."""
        first = self._named("ubuntu-22.04")
        if first.reported:
            return first
        second = self._named("ubuntu-24.04")
        return second if second.reported else first

    def exactly(self, path: str) -> GcpImage:
        """This very image. Raises CloudConfigError if it is obsolete, NotFoundError."""
        image = self._api.get(f"image {path}", path)
        state = str((image.get("deprecated") or {}).get("state") or "")
        if state in ("OBSOLETE", "DELETED"):
            raise CloudConfigError(f"{path} is {state}")
        return _image(path, image, installs_driver=f"projects/{DEEP_LEARNING}/" in path)

    def _named(self, wanted: str) -> GcpImage:
        if wanted not in self._known:
            path = UBUNTU.get(wanted) or path_of(wanted, self._api.project)
            try:
                image = self._api.get(f"image {wanted}", path)
            except NotFoundError as error:
                if wanted not in UBUNTU:
                    raise CloudConfigError(error.message, code=error.code) from error
                image = {}  # Google's own exist: an endpoint that does not list them may accept it
            self._known[wanted] = _image(path, image)
        return self._known[wanted]

    @cached_property
    def _deep_learning(self) -> GcpImage | None:
        """The image with the newest CUDA and driver, of Ubuntu 22.04 or else 24.04; None."""
        path = f"projects/{DEEP_LEARNING}/global/images"
        try:
            pages = list(self._api.pages("deep learning images", path, filter=_FAMILIES))
        except (NotFoundError, CloudConfigError, PermissionsError):
            return None  # the endpoint lacks them or the filter, or the organization forbids them
        listed = [image for page in pages for image in page.get("items") or ()]
        best: Json = max(listed, key=_rank, default={})
        if not any(_rank(best)):
            return None
        return _image(f"{path}/family/{best['family']}", best, installs_driver=True)


def _rank(image: Json) -> tuple[bool, int, int]:
    """Rank of a Deep Learning VM image; all zero for one that is not taken, such as any with a
    `deprecated.state` other than ACTIVE, which only announces a deprecation:
    https://cloud.google.com/compute/docs/reference/rest/v1/images"""
    match = _WITH_DRIVER.fullmatch(str(image.get("family", "")))
    if match is None or (image.get("deprecated") or {}).get("state") not in (None, "", "ACTIVE"):
        return False, 0, 0
    return match["ubuntu"] == "2204", int(match["cuda"]), int(match["driver"] or 0)


def path_of(wanted: str, project: str) -> str:
    """The path for a URL, `projects/…`, `family/NAME`, `PROJECT/FAMILY` or an image's name."""
    if "://" in wanted:
        wanted = urlsplit(wanted).path
    found = re.search(r"projects/[^/]+/global/images/.+", wanted)
    if found:
        return found[0]
    first, slash, second = wanted.strip("/").rpartition("/")
    if not slash:
        return f"projects/{project}/global/images/{second}"
    if first in ("family", "global/images/family"):
        return f"projects/{project}/global/images/family/{second}"
    if first == "global/images":
        return f"projects/{project}/global/images/{second}"
    if "/" in first:
        raise CloudConfigError(
            f"image {wanted!r} is invalid",
            hint="use a URL, PROJECT/FAMILY, family/NAME or the name of an image of this project",
        )
    return f"projects/{first}/global/images/family/{second}"


def _image(source: str, image: Json, *, installs_driver: bool = False) -> GcpImage:
    features = {str(f.get("type")) for f in image.get("guestOsFeatures") or ()}
    name = str(image.get("name") or "")
    return GcpImage(
        source=source,
        exact=f"{source.partition('/global/')[0]}/global/images/{name}" if name else "",
        disk_gb=int(image.get("diskSizeGb") or 0),
        uefi="UEFI_COMPATIBLE" in features,
        gvnic="GVNIC" in features,
        reported=bool(image),
        installs_driver=installs_driver,
    )
