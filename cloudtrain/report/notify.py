"""`notify`: a message at a run's end and when its cluster is taken down, from whoever attends.

It is recorded before it is sent, so that it is sent once, whoever ends the run; a process of its
own sends and retries, so that no run waits for it or fails by it (send_notice.py)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal

from cloudtrain.config.env_file import secret_of
from cloudtrain.core import moments, own_python
from cloudtrain.core.errors import CloudtrainError
from cloudtrain.core.events import NoticeSent
from cloudtrain.core.model import ClusterConfig
from cloudtrain.core.network import host_of, is_loopback
from cloudtrain.core.protocols import Console
from cloudtrain.core.run_record import Run
from cloudtrain.state import Records

Kind = Literal["end", "failed", "budget", "idle"]
LOG = "notices.log"
SPENT = "has spent its budget (limits.budget)"


def run_ended(records: Records, config: ClusterConfig, run: Run, text: str, to: Console) -> None:
    """Tell of the end of a run; `text`: why it failed, or empty."""
    kind: Kind = "end" if run.state == "succeeded" else "failed"
    words = f"{run.cluster}: run {run.id} {run.state}" + (f": {text}" if text else "")
    facts = {"run": run.id, "state": run.state, "exit_code": run.exit_code, "artifacts": run.store}
    _notify(records, config, kind, run.id, words, facts, to)


def cluster_ended(
    records: Records, config: ClusterConfig, kind: Kind, why: str, to: Console
) -> None:
    """Tell that the cluster was taken down for its budget, or as it was idle."""
    _notify(records, config, kind, f"{moments.now():.0f}", f"{records.name} {why}: down", {}, to)


def _notify(
    records: Records,
    config: ClusterConfig,
    kind: Kind,
    of: str,
    text: str,
    facts: Mapping[str, Any],
    console: Console,
) -> None:
    name, command = getattr(config.notify, kind), config.notify.command
    notice = NoticeSent(kind=kind, of=of)
    try:
        if not (name or command) or notice.is_in(records.events()):
            return
        url = secret_of(config, name, f"notify.{kind}").reveal() if name else ""
        given = {"event": kind, "cluster": records.name, "text": text, **facts}
        headers, body = message(url, given) if url else ({}, "")
        records.journal(notice)
        order = {
            "what": f"{kind} {of}",
            "url": url,
            "headers": headers,
            "body": body,
            "command": shlex.split(command or ""),
            "given": json.dumps(given),
            "folder": str(config.folder if config.folder.is_dir() else records.folder),
        }
        _send(records.folder / LOG, json.dumps(order))
    except (CloudtrainError, OSError, ValueError) as error:
        console.warn(f"notify.{kind}: not sent: {error}")


def _send(log: Path, order: str) -> None:
    with log.open("ab") as file:
        log.chmod(0o600)
        process = subprocess.Popen(
            own_python.program(str(Path(__file__).with_name("send_notice.py"))),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=own_python.NEUTRAL,
        )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(order.encode())
    process.returncode = 0  # nobody waits for it


_FORMS: tuple[tuple[str, Callable[[str], dict[str, Any]]], ...] = (
    (r"hooks\.slack(-gov)?\.com", lambda text: {"text": escape(text, quote=False)}),
    (r".+\.(logic\.azure\.com|webhook\.office\.com|powerplatform\.com)", lambda text: _card(text)),
    (
        r"(.+\.)?discord(app)?\.com",
        lambda text: {"content": text[:2000], "allowed_mentions": {"parse": []}},
    ),
)
"""Services that read a form of their own, in which no word of a log calls people (`@everyone`).
Teams: MicrosoftDocs/msteams-docs, how-to/add-incoming-webhook.md; Slack: docs.slack.dev, incoming
webhooks, formatting; Discord: docs.discord.com, resources/webhook; read 2026-11-27, and none was
asked."""


def message(url: str, given: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Headers and body for the service at `url`. Raises ValueError, without the URL, for one that
    is not https."""
    try:
        host = host_of(url.partition("?")[0])
    except ValueError:
        raise ValueError("its value is no https:// URL") from None
    is_sent = re.fullmatch("[!-~]+", url) and (host.scheme == "https" or is_loopback(host.name))
    if not is_sent:
        raise ValueError("its value is no https:// URL")
    text = str(given["text"])
    if re.fullmatch(r"ntfy\..+|.+\.ntfy\..+", host.name):  # binwiederhier/ntfy, docs/publish.md
        title = f"cloudtrain: {given['cluster']} {given['event']}"
        return {"Content-Type": "text/plain; charset=utf-8", "Title": title}, text
    form = next((form for name, form in _FORMS if re.fullmatch(name, host.name)), None)
    return {"Content-Type": "application/json"}, json.dumps(form(text) if form else dict(given))


def _card(text: str) -> dict[str, Any]:
    card = {
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [{"type": "TextBlock", "text": text, "wrap": True}],
    }
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "content": card}]}
