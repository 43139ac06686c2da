"""What the tests of `cloudtrain import` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from cloudtrain.checks.script_code import strategy_in_code
from cloudtrain.cluster.plan import make_plan
from cloudtrain.commands.plan import PlanReport, plan_report
from cloudtrain.config import load
from cloudtrain.importers import Imported, Options, import_job


class Desk:
    """A folder with a source and its code, and what `import` makes of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def imported(
        self,
        source: str | None,
        submit: str | None = None,
        *,
        file: str = "config.yaml",
        provider: str | None = None,
        strategy: str | None = None,
    ) -> Imported:
        """Import, and prove that `plan` accepts the result in this folder."""
        options = Options(
            here=self.folder,
            folder=self.folder,
            base=self.folder,
            provider=provider,
            strategy=strategy,
            strategy_in_code=strategy_in_code,
        )
        data = None if source is None else source.encode()
        found = import_job(data, file, submit, options)
        self.plan(found)
        return found

    def plan(self, found: Imported) -> PlanReport:
        path = self.folder / "imported.yaml"
        path.write_text(found.text, encoding="utf-8")
        return plan_report(make_plan(load(path)))


def tree(found: Imported) -> dict[str, object]:
    """The YAML as any other program reads it."""
    read = yaml.safe_load(found.text)
    assert isinstance(read, dict)
    return read


def lost(found: Imported) -> list[str]:
    """What could not be mapped, as stderr has it."""
    return [str(problem) for problem in found.unmapped]
