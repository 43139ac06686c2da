"""Generates configs/schema.json, the tables of docs/config.md, docs/machines.md and docs/states.md,
and the permissions to paste in docs/aws.md, docs/azure.md and docs/gcp.md.

Run it after a change of cloudtrain/config/sections.py, of cloudtrain/catalog, of
cloudtrain/runs/state_table.py, or of a cloud's facts.py, families.py or permissions.py:
python tools/generate_docs.py
"""

from __future__ import annotations

import json
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cloudtrain.catalog import availability, cuda, gpu_rates, gpus
from cloudtrain.config import schema
from cloudtrain.config.candidates import LISTS
from cloudtrain.config.section import KINDS, Section, defaults, rows
from cloudtrain.config.sections import ConfigFile, section_at
from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import Provisioning
from cloudtrain.core.wait_limits import WAITS
from cloudtrain.runs import state_table

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "configs" / "schema.json"
PAGE = ROOT / "docs" / "config.md"
STATES = ROOT / "docs" / "states.md"
MACHINES = ROOT / "docs" / "machines.md"
BEGIN, END = "<!-- made by tools/generate_docs.py: begin -->\n", "<!-- end -->\n"


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def page(now: str) -> str:
    """The page with its tables regenerated."""
    return between(now, tables())


def machines(now: str) -> str:
    generated = gpu_table() + rate_table() + code_table() + toolkit_table() + library_table()
    generated += sold_table()
    return between(now, generated)


def states(now: str) -> str:
    """The page of states with its tables and drawings regenerated."""
    lines = ["\n## Steps, in their order\n", "| step | |", "|---|---|"]
    lines += [f"| `{step}` | {meaning} |" for step, meaning in state_table.STEPS.items()]
    lines += ["\n## What is seen\n", "| | values |", "|---|---|"]
    lines += [f"| {name} | {', '.join(words)} |" for name, words in seen_values().items()]
    for command in state_table.RULES:
        lines += [f"\n## `{command}`\n", *state_rows(command), "", *state_drawing(command)]
    lines += [
        "\n## Waits\n",
        "| `cloudtrain/core/wait_limits.py` | at most | until | then |",
        "|---|---|---|---|",
    ]
    for name, wait in WAITS.items():
        limit = default_of(wait, "duration")
        lines.append(f"| `{name}` | {limit} | {wait.until} | {wait.then} |")
    return between(now, "\n".join(lines) + "\n")


def seen_values() -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(state_table.Seen)
    return {name: tuple(f"`{word}`" for word in get_args(hints[name])) for name in hints}


def state_rows(command: state_table.Command) -> list[str]:
    columns = list(seen_values())
    lines = [f"| {' | '.join(columns)} | next step | because |", "|---" * (len(columns) + 2) + "|"]
    for rule in state_table.RULES[command]:
        cells = [", ".join(getattr(rule, name)) for name in columns]
        lines.append(f"| {' | '.join(cells)} | `{rule.step}` | {rule.why} |")
    return lines


def state_drawing(command: state_table.Command) -> list[str]:
    """Its rules as a flowchart: from question to question until one is answered with yes."""
    lines = ["```mermaid", "flowchart TD"]
    rules = state_table.RULES[command]
    for number, rule in enumerate(rules):
        asked = [
            f"{name}: {' or '.join(getattr(rule, name))}"
            for name in seen_values()
            if getattr(rule, name)
        ]
        again = rule.step not in state_table.LAST
        lines.append(f'  s{number}["{rule.step}"]')
        if asked:
            lines.append(f'  q{number}{{"{"<br>".join(asked)}"}} -->|yes| s{number}')
        if asked and number + 1 < len(rules):
            later = rules[number + 1]
            last = not any(getattr(later, name) for name in seen_values())
            lines.append(f"  q{number} -->|no| {'s' if last else 'q'}{number + 1}")
        if again:
            lines.append(f"  s{number} -.->|look again| q0")
    return [*lines, "```"]


def between(now: str, generated: str) -> str:
    before, _, rest = now.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}{generated}{END}{after}"


def gpu_table() -> str:
    lines = ["\n| GPU | memory, GB | architecture | compute capability | source |"]
    lines.append("|---|---|---|---|---|")
    for row in gpus.GPUS:
        facts = [row.kind, f"{row.memory_gb}", row.architecture, number(row.capability)]
        lines.append(f"| {' | '.join([*facts, cited(row.source, row.read)])} |")
    return "\n".join(lines) + "\n"


def rate_table() -> str:
    head = "| GPU | TFLOP/s, float16 | GB/s to another GPU, one way | source |"
    lines = [f"\n{head}", "|---|---|---|---|"]
    for row in gpu_rates.RATES:
        source = cited(row.source, row.read)
        lines.append(f"| {row.kind} | {row.tflops:g} | {row.link:g} | {source} |")
    return "\n".join(lines) + "\n"


def code_table() -> str:
    head = "| TensorFlow from | has code for | compiled at first use from | source |"
    lines = [f"\n{head}", "|---|---|---|---|"]
    for row in gpus.DEVICE_CODE:
        binary = ", ".join(map(number, row.binary))
        source = cited(row.source, row.read)
        lines.append(f"| {number(row.since)} | {binary} | {number(row.ptx)} | {source} |")
    return "\n".join(lines) + "\n"


def sold_table() -> str:
    lines = ["\n| cloud | machines | GPU | sold | instead | source |", "|---|---|---|---|---|---|"]
    for cloud, row in [(each, row) for each in clouds() for row in each.families]:
        how = f"until {row.retired}" if row.retired else ", ".join(row.markets) or "no longer"
        why = "ARM" if row.arm else row.unfit
        how = f"{how}; {why}" if why else how
        cells = [cloud.name, row.shown, row.kind, how, availability.equivalent(cloud, row)]
        lines.append(f"| {' | '.join(cells)} | {cited(row.source, row.read)} |")
    return "\n".join(lines) + "\n"


def toolkit_table() -> str:
    lines = ["\n| TensorFlow from | CUDA | oldest driver | source |", "|---|---|---|---|"]
    for row in cuda.TOOLKITS:
        source = cited(row.source, row.read)
        lines.append(f"| {number(row.since)} | {row.cuda} | {row.driver} | {source} |")
    lines += ["\n| GPU from | installed driver | source |", "|---|---|---|"]
    for each in cuda.DRIVERS:
        name = f"{each.branch}-server{'-open' if each.open else ''}"
        lines.append(f"| {each.since} | `{name}` | {cited(each.source, each.read)} |")
    return "\n".join(lines) + "\n"


def library_table() -> str:
    """A column for each set of releases with the same packages, a row for each package."""
    sets: dict[tuple[str, ...], list[cuda.Libraries]] = {}
    for row in cuda.LIBRARIES:
        sets.setdefault(row.packages, []).append(row)
    heads = [f"{number(rows[0].release)}–{number(rows[-1].release)}" for rows in sets.values()]
    heads = [head.split("–")[0] if len(set(head.split("–"))) == 1 else head for head in heads]
    lines = [f"\n| package | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    pinned = [dict(split(line) for line in packages) for packages in sets]
    for name in dict.fromkeys(name for each in pinned for name in each):
        lines.append(f"| {name} | {' | '.join(each.get(name, '–') for each in pinned)} |")
    sources = [cited(rows[0].source, rows[0].read) for rows in sets.values()]
    lines.append(f"| source | {' | '.join(sources)} |")
    return "\n".join(lines) + "\n"


def split(line: str) -> tuple[str, str]:
    """`nvidia-cudnn-cu12==9.3.0.75` → cudnn, 9.3.0.75."""
    package, _, version = line.partition("==")
    return package.removeprefix("nvidia-").rpartition("-")[0], version


def number(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def cited(source: str, read: date) -> str:
    words = f"[{source.split('/')[2]}]({source})" if source.startswith("http") else source
    return f"{words}, {read.isoformat()}"


def tables() -> str:
    text = table("The file", ConfigFile)
    for name in ConfigFile.model_fields:
        section = section_at((name,))
        if section and name != "ordered":  # as any_of
            title = ANY_OF if name in LISTS else name + section.below
            text += table(f"`{title}`", section)
            for field in section.by_key() if name not in LISTS else ():
                inner = section_at((name, field))
                text += table(f"`{title}.{field}`", inner) if inner else ""
    return text + effects()


ANY_OF = "any_of[]` and `ordered[]"


def effects() -> str:
    """Effect of a change of each field."""
    lines = ["\n## A changed file\n"]
    lines += ["Effect of a change on a running cluster, by field:\n"]
    lines += [f"- **{kind}**: {meaning}." for kind, meaning in KINDS.items()]
    lines += [""]
    lines += ["| field | effect | |", "|---|---|---|"]
    found = rows(ConfigFile)
    lines += [f"| `{row.name}` | {row.change.kind} | {row.change.note} |" for row in found]
    return "\n".join(lines) + "\n"


def table(title: str, section: type[Section]) -> str:
    known = defaults(section.of)
    whole = schema()
    place = whole if section is ConfigFile else whole["$defs"][section.__name__]
    lines = [f"\n### {title}\n", f"{section.__doc__}\n"]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in section.by_key().items():
        kind = type_of(place["properties"][name])
        default = default_of(known.get(name), kind)
        kind = kind.replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def type_of(node: dict[str, Any]) -> str:
    if "title" in node:
        return str(node["title"])
    if "anyOf" in node:
        kinds = [type_of(kind) for kind in node["anyOf"] if kind != {"type": "null"}]
        return " | ".join(dict.fromkeys(kinds))
    if "$ref" in node:
        return "section"
    if node["type"] == "array":
        return f"list of {type_of(node['items'])}"
    return "mapping" if node["type"] == "object" else str(node["type"])


def default_of(value: Any, kind: str) -> str:
    if kind == "section" or value in (None, (), {}, ""):
        return "off" if kind.endswith("off") else "–"
    if isinstance(value, Provisioning):
        value = value.market
    if kind.startswith("duration"):
        unit, size = next((u, s) for u, s in (("h", 3600), ("m", 60), ("s", 1)) if value % s == 0)
        return f"`{value // size:.0f}{unit}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`" if isinstance(value, tuple) else f"`{value}`"


def permissions(cloud: str, now: str) -> str:
    """A cloud's page with the permissions that its driver needs, to paste."""
    module = import_module(f"cloudtrain.providers.{cloud}.permissions")
    return between(now, module.block())


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for cloud in clouds():
        its_page = ROOT / "docs" / f"{cloud.name}.md"
        text = permissions(cloud.name, its_page.read_text(encoding="utf-8"))
        its_page.write_text(text, encoding="utf-8")
    STATES.write_text(states(STATES.read_text(encoding="utf-8")), encoding="utf-8")
    MACHINES.write_text(machines(MACHINES.read_text(encoding="utf-8")), encoding="utf-8")
