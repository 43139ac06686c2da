"""A file that somebody has altered in the store is no copy of what a node holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.artifacts.land import land_files
from cloudtrain.core.errors import StoreError
from tests.support.landing_parts import RUN, Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    cluster.write("chief0", "output/model", "weights 1")
    cluster.write("worker0", "output/log", "step 9")
    return cluster


def test_one_of_the_same_size_is_found_and_landed_again_before_its_node_goes(
    cluster: Cluster,
) -> None:
    cluster.land()
    assert cluster.unlanded() == ()
    (cluster.folder / RUN / "chief0/output/model").write_text("weights 2")
    assert cluster.unlanded() == (f"{RUN}/chief0/output/model",)

    manifest = land_files(cluster.landing(), cluster.run, cluster.nodes, certain=True)
    assert manifest.complete
    assert cluster.landed()["chief0/output/model"] == b"weights 1"
    assert cluster.unlanded() == ()
    (warning,) = cluster.console.warned
    assert warning.endswith("altered there: chief0/output/model")


def test_one_that_cannot_be_read_is_an_error_and_not_a_copy(cluster: Cluster) -> None:
    cluster.land()

    def refused(path: str) -> object:
        if path.endswith("model"):
            raise StoreError("input/output error")
        return download(path)

    download = cluster.store.download
    cluster.store.download = refused  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreError, match="input/output error"):
        cluster.unlanded()
