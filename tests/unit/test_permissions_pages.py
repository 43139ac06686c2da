"""Each cloud's page has the rights to paste that its driver knows."""

from __future__ import annotations

import pytest

from cloudtrain.cloud import clouds
from tests.unit.test_config_page import ROOT, generate


@pytest.mark.parametrize("cloud", [cloud.name for cloud in clouds()])
def test_the_rights_to_paste_are_current(cloud: str) -> None:
    text = (ROOT / "docs" / f"{cloud}.md").read_text(encoding="utf-8")
    assert text == generate().permissions(cloud, text), "run: python tools/generate_docs.py"
