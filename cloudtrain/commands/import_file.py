"""`cloudtrain import FILE`: reads another tool's description of a training into a config."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.checks.script_code import strategy_in_code
from cloudtrain.config import refuse_url
from cloudtrain.core.cloud import providers
from cloudtrain.core.errors import UsageError
from cloudtrain.importers import Imported, Options, import_job
from cloudtrain.importers.source_files import LARGEST
from cloudtrain.importers.submit_line import WHERE, config_of
from cloudtrain.training.strategies import STRATEGIES


def import_file(
    file: Path | None,
    *,
    submit: str | None = None,
    output: Path | None = None,
    provider: str | None = None,
    strategy: str | None = None,
    force: bool = False,
) -> Imported:
    """The config that FILE, a submit line or both describe; written to `output` if given. Without
    FILE, the file of the submit line's `--config` is read, if it names one. Raises UsageError for
    an existing `output` unless `force`, ConfigError for an invalid FILE."""
    for what, value, known in (
        ("provider", provider, [row.name for row in providers()]),
        ("strategy", strategy, list(STRATEGIES)),
    ):
        if value is not None and value not in known:
            raise UsageError(f"unknown {what} {value!r}", hint=f"use one of {', '.join(known)}")
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} already exists", hint="pass --force to replace it")
    named = config_of(submit) if submit is not None and file is None else None
    file = Path(named) if named and Path(named).is_file() else file
    here = Path.cwd()
    options = Options(
        here=here,
        folder=file.absolute().parent if file else here,
        base=output.absolute().parent if output else here,
        provider=provider,
        strategy=strategy,
        strategy_in_code=strategy_in_code,
    )
    data = _read(file) if file else None
    found = import_job(data, str(file) if file else WHERE, submit, options)
    if output is not None:
        try:
            output.write_text(found.text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}") from None
    return found


def _read(path: Path) -> bytes:
    refuse_url(path)
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise UsageError(f"cannot read {path}: {why}") from None
    if len(data) > LARGEST:
        raise UsageError(f"cannot read {path}: it is larger than {LARGEST >> 20} MB")
    return data
