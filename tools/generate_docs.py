"""Generates configs/schema.json, the fields of docs/config.md, the tables of docs/machines.md and
docs/internals/states.md, and the permissions to paste in docs/aws.md, docs/azure.md and
docs/gcp.md.

Run it after a change of cloudtrain/config/*sections.py, of cloudtrain/catalog, of
cloudtrain/runs/state_table.py, of a `Retry(…)` or a wait, or of a cloud's facts.py, permissions.py
or the tables beside them: python tools/generate_docs.py
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cloudtrain.catalog import availability, cuda, gpus
from cloudtrain.config.candidates import LISTS
from cloudtrain.config.section import Kind, Section, rows
from cloudtrain.config.sections import ConfigFile, section_at
from cloudtrain.core.cloud import clouds
from cloudtrain.core.model import Provisioning
from cloudtrain.providers.aws import permissions as aws
from cloudtrain.providers.azure import permissions as azure
from cloudtrain.providers.gcp import permissions as gcp
from cloudtrain.providers.gcp.ssh_service import PERMISSIONS as IAP
from cloudtrain.runs import state_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tools.config_schema import defaults, meanings, schema  # noqa: E402

SCHEMA = ROOT / "configs" / "schema.json"
PAGE = ROOT / "docs" / "config.md"
STATES = ROOT / "docs" / "internals" / "states.md"
MACHINES = ROOT / "docs" / "machines.md"
WIDTH = 120
WORDS = re.compile(r"(?:`[^`]*`|!?\[[^\]]*\]\([^)\s]*\)|\S)+")
"""Texts that a line break may not divide: code, links, words."""
BEGIN, END = "<!-- made by tools/generate_docs.py: begin -->\n", "<!-- end -->\n"


EFFECTS: dict[Kind, str] = {
    "next run": "the next `train` reads it",
    "live": "`up` applies it to the existing nodes",
    "replace": "existing nodes stay as created: `up` and `train` refuse the file, `up --replace` "
    "recreates the nodes that differ",
    "down first": "it describes another cluster: `up` refuses the file until `down`",
}


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def page(now: str) -> str:
    """The page with its tables regenerated."""
    return between(now, tables())


def machines(now: str) -> str:
    return between(now, gpu_table() + code_table() + toolkit_table() + sold_list())


def states(now: str) -> str:
    """The page of states with its tables and drawings regenerated."""
    lines = ["\n## Steps, in their order\n"]
    lines += [f"- `{step}`: {meaning}" for step, meaning in state_table.STEPS.items()]
    lines += ["\n## What is seen\n"]
    lines += [f"- {name}: {', '.join(words)}" for name, words in seen_values().items()]
    for command in state_table.RULES:
        lines += [f"\n## `{command}`\n", *state_rules(command)]
        lines += ["", *state_drawing(command)] if command == "down" else []
    lines += ["\n## Waits\n"]
    lines += map(item, waits())
    lines += ["\n## Retry policies\n", *map(item, policies())]
    return between(now, "\n".join(lines) + "\n")


def waits() -> Iterable[str]:
    """Each limit of a wait in core/retry.py: its constant and its docstring."""
    source = (ROOT / "cloudtrain" / "core" / "retry.py").read_text("utf-8")
    for one, after in pairwise(ast.parse(source).body):
        if isinstance(one, ast.Assign) and isinstance(after, ast.Expr):
            name, text = (
                ast.unparse(one.targets[0]),
                " ".join(ast.literal_eval(after.value).split()),
            )
            if text.startswith("Until "):
                limit = default_of(eval(ast.unparse(one.value)), "duration").strip("`")
                yield f"`{name}`, {limit}: {text.removeprefix('Until ').rstrip('.')}"


def policies() -> Iterable[str]:
    """Each named `Retry` of the product: its constant and its arguments."""
    for folder in (ROOT / "cloudtrain", ROOT / "providers", ROOT / "playbooks"):
        for path in sorted(folder.rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body:
                call = getattr(node, "value", None)
                if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Retry"):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    module = path.relative_to(ROOT).as_posix().removeprefix("cloudtrain/")
                    given = ", ".join(map(ast.unparse, [*call.args, *call.keywords]))
                    yield f"`{module.removesuffix('.py')}.{ast.unparse(targets[0])}`: `{given}`"


def seen_values() -> dict[str, tuple[str, ...]]:
    hints = get_type_hints(state_table.Seen)
    return {name: tuple(f"`{word}`" for word in get_args(hints[name])) for name in hints}


def state_rules(command: state_table.Command) -> list[str]:
    lines = []
    for rule in state_table.RULES[command]:
        seen = [f"{name} {' or '.join(getattr(rule, name))}" for name in seen_values()]
        seen = [text for name, text in zip(seen_values(), seen, strict=True) if getattr(rule, name)]
        lines.append(item(f"{', '.join(seen) or 'else'}: `{rule.step}`, {rule.why}", "1. "))
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
    head = "| GPU | GB | compute capability | TFLOP/s, float16 | GB/s to another GPU |"
    lines = [f"\n{head}", "|---|---|---|---|---|"]
    for row in (each for each in gpus.GPUS if not gpus.is_older(each.kind, "Pascal")):
        given = (f"{row.rate.tflops:g}", f"{row.rate.link:g}") if row.rate else ("–", "–")
        facts = [row.kind, f"{row.memory_gb}", f"{row.architecture} {number(row.capability)}"]
        lines.append(f"| {' | '.join([*facts, *given])} |")
    rates = (row.rate.source for row in gpus.GPUS if row.rate)
    sources = [*(row.source for row in gpus.GPUS), *rates]
    return "\n".join([*lines, "", cited(sources)]) + "\n"


def code_table() -> str:
    lines = ["\n| TensorFlow from | has code for | compiles from |", "|---|---|---|"]
    since: dict[str, str] = {}
    for row in gpus.DEVICE_CODE:
        binary = ", ".join(map(number, row.binary))
        since.setdefault(f"{binary} | {number(row.ptx)} |", number(row.since))
    lines += [f"| {release} | {cells}" for cells, release in since.items()]
    return "\n".join([*lines, "", cited(row.source for row in gpus.DEVICE_CODE)]) + "\n"


def sold_list() -> str:
    """A line for each way of selling and cloud, with the machines sold so; a refusal names what
    stands for a retired one."""
    ways: dict[tuple[str, str], list[str]] = {}
    rows = [(each, row) for each in clouds() for row in each.families]
    for cloud, row in (each for each in rows if not each[1].gone(each[1].read)):
        how = f"until {row.retired}" if row.retired else ", ".join(row.markets)
        why = "ARM" if row.arm else row.unfit
        how = f"{how}; {why}" if why else how
        instead = availability.equivalent(cloud, row)
        shown = f"{row.shown} ({row.kind}{f', instead {instead}' if instead else ''})"
        ways.setdefault((cloud.name, how), []).append(shown)
    lines = [item(f"{cloud}, {how}: {', '.join(rows)}") for (cloud, how), rows in ways.items()]
    sources = [row.source for cloud in clouds() for row in cloud.families]
    return "\n".join(["", *lines, "", cited(sources)]) + "\n"


def toolkit_table() -> str:
    """CUDA, the oldest driver and the main libraries of each TensorFlow."""
    lines = ["\n| TensorFlow from | CUDA | oldest driver |", "|---|---|---|"]
    lines += [f"| {number(row.since)} | {row.cuda} | {row.driver} |" for row in cuda.TOOLKITS]
    lines += ["", *newer_drivers()]
    lines += ["\n| TensorFlow | CUDA runtime | cuDNN | NCCL |", "|---|---|---|---|"]
    alike: dict[str, list[str]] = {}
    for row in cuda.LIBRARIES:
        pinned = dict(split(line) for line in row.packages)
        cells = [pinned.get(name, "–") for name in ("cuda-runtime", "cudnn", "nccl")]
        alike.setdefault(" | ".join(cells), []).append(number(row.release))
    lines += [f"| {', '.join(releases)} | {cells} |" for cells, releases in alike.items()]
    lines += [""]
    for each in cuda.DRIVERS:
        name = f"{each.branch}-server{'-open' if each.open else ''}"
        lines.append(f"- {each.since} and later get the driver `{name}`.")
    rows = (*cuda.TOOLKITS, *cuda.LIBRARIES, *cuda.DRIVERS)
    return "\n".join([*lines, "", cited(row.source for row in rows)]) + "\n"


def newer_drivers() -> Iterator[str]:
    """A line for the generations of GPUs with releases that need a newer driver than others."""
    alike: dict[str, list[str]] = {}
    for architecture, kind in {row.architecture: row.kind for row in gpus.GPUS}.items():
        needed: dict[str, list[str]] = {}
        for release, (_, driver) in cuda.needed(kind).items():
            if gpus.fit(kind, release) != "none" and cuda.oldest_driver(release, kind) == driver:
                needed.setdefault(driver, []).append(release)
        found = [f"{driver} for {', '.join(releases)}" for driver, releases in needed.items()]
        alike.setdefault("; ".join(found), []).append(architecture)
    for text, architectures in alike.items():
        if text:
            words = "the driver compiles code, and must be at least"
            yield item(f"{', '.join(architectures)}: {words} {text}.")


def split(line: str) -> tuple[str, str]:
    """`nvidia-cudnn-cu12==9.3.0.75` → cudnn, 9.3.0.75."""
    package, _, version = line.partition("==")
    return package.removeprefix("nvidia-").rpartition("-")[0], version


def number(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def cited(sources: Iterable[str]) -> str:
    """The sources, each once; the code has the day on which each was read."""
    links: dict[str, list[str]] = {}
    words = []
    for source in dict.fromkeys(sources):
        if source.startswith("http"):
            links.setdefault(source.split("/")[2], []).append(source)
        else:
            words.append(source)
    named = [
        f"{host} {', '.join(f'[{number}]({url})' for number, url in enumerate(urls, 1))}"
        for host, urls in links.items()
    ]
    return wrapped(f"Sources: {'; '.join([*named, *words])}.")


def item(text: str, mark: str = "- ") -> str:
    return wrapped(text, mark, " " * len(mark))


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """The text in lines of at most WIDTH letters, unless a link alone is longer."""
    lines = [first]
    for word in WORDS.findall(text):
        begun = lines[-1] not in (first, rest)
        mark = re.match(r"([-+*#>|=]+|\d+[.)])$", word)
        if begun and not mark and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(rest)
            begun = False
        lines[-1] += f" {word}" if begun else word
    return "\n".join(lines)


def tables() -> str:
    text = table("The file", ConfigFile)
    for name in ConfigFile.names():
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
    """Effect of a change of each field: equal ones are one line."""
    lines = ["\n## A changed file\n", "Effect of a change on a running cluster:\n"]
    changes = {row.name: row.change for row in rows(ConfigFile)}
    for kind, meaning in EFFECTS.items():
        notes = dict.fromkeys(each.note for each in changes.values() if each.kind == kind)
        lines += [item(f"**{kind}**: {meaning}.")]
        for note in notes:
            alike = (kind, note)
            names = [name for name, each in changes.items() if (each.kind, each.note) == alike]
            shown = ", ".join(f"`{name}`" for name in shortened(names, [*changes]))
            lines.append(item(f"{shown}{': ' + note if note else ''}", "    - "))
    return "\n".join(lines) + "\n"


def shortened(names: list[str], fields: list[str]) -> list[str]:
    """The names, with `train.*` in the place of all fields of `train`."""
    sections = dict.fromkeys(name.rpartition(".")[0] for name in names)
    whole = {
        section: {name for name in fields if name.rpartition(".")[0] == section}
        for section in sections
        if section
    }
    whole = {section: every for section, every in whole.items() if every <= set(names)}
    short = [
        f"{section}.*" if (section := name.rpartition(".")[0]) in whole else name for name in names
    ]
    return list(dict.fromkeys(short))


def table(title: str, section: type[Section]) -> str:
    known = defaults(section.of)
    whole = schema()
    place = whole if section is ConfigFile else whole["$defs"][section.__name__]
    lines = [f"\n### {title}\n", wrapped(" ".join(f"{section.__doc__}".split())), ""]
    alike: dict[str, list[str]] = {}
    said = meanings(section)
    for name, field in section.by_key().items():
        kind = type_of(place["properties"][name]).replace(" | ", ", ")
        default = default_of(known.get(name), kind)
        facts = [] if kind == "section" else [kind]
        facts += [f"default {default}"] if default not in ("–", "off") else []
        shown = f" ({'; '.join(facts)})" if facts else ""
        alike.setdefault(said[field.name], []).append(f"`{name}`{shown}")
    lines += [item(f"{', '.join(names)}: {meaning}") for meaning, names in alike.items()]
    return "\n".join(lines) + "\n"


def type_of(node: dict[str, Any]) -> str:
    if "title" in node:
        return str(node["title"])
    if "anyOf" in node:
        kinds = [type_of(kind) for kind in node["anyOf"] if kind != {"type": "null"}]
        return ", ".join(dict.fromkeys(kinds))
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
    prose_and_code = re.split(r"(^```.*?^```)", PERMISSIONS[cloud](), flags=re.M | re.S)
    for number in range(0, len(prose_and_code), 2):
        lines = prose_and_code[number].split("\n")
        prose_and_code[number] = "\n".join(map(wrapped, lines))
    return between(now, "".join(prose_and_code))


def permissions_of_aws() -> str:
    parts = (
        ("", aws.policy()),
        ("\nWith a role by which AWS ends the nodes (below), also:\n\n", aws.policy_of_schedules()),
        (
            "\nWith [`identity:`](#an-identity-for-scripts), also the following; the second and "
            "third statement are only for `check`:\n\n",
            aws.policy_of_identity(),
        ),
        (
            "\nWith `network.ssh_proxy: ssm` ([private-nodes.md](private-nodes.md)), also the "
            "following; the last statement is only for `check`:\n\n",
            aws.policy_of_sessions(),
        ),
    )
    found = "".join(f"{words}```json\n{aws.text(each)}```\n" for words, each in parts)
    return (
        f"{found}\nWith [`network.firewall:`](companies.md#networks), the first policy is enough "
        f"without {listed(aws.OF_GROUPS)}. In China ARNs begin with `arn:aws-cn:`, in GovCloud "
        "with `arn:aws-us-gov:`. `cloudtrain check --policy FILE` prints one policy for what a "
        "file uses, in its partition.\n"
    )


def permissions_of_gcp() -> str:
    role = f"title: cloudtrain\nstage: GA\nincludedPermissions:\n{dashed(gcp.ROLE)}"
    shell = (
        "gcloud iam roles create cloudtrain --project=PROJECT --file=role.yaml\n"
        "gcloud projects add-iam-policy-binding PROJECT \\\n"
        "  --member=user:YOU@example.com --role=projects/PROJECT/roles/cloudtrain"
    )
    networks, firewalls = (
        listed([f"compute.{each}" for each in names]) for names in (gcp.NETWORKS, gcp.FIREWALLS)
    )
    return (
        f"```yaml\n{role}```\n\n```sh\n{shell}\n```\n\n"
        f"With [`identity:`](#an-identity-for-scripts), also {listed(gcp.WITH_IDENTITY)} in the "
        f"role, and {listed(gcp.ON_IDENTITY)} on the service account alone "
        "(`roles/iam.serviceAccountUser` has both). `check` reads the policies of its buckets if "
        "you have `storage.buckets.getIamPolicy`.\n\n"
        f"With `network.ssh_proxy: iap`, also {listed(IAP)} "
        "(roles/iap.tunnelResourceAccessor), for the account that gcloud uses "
        "([private-nodes.md](private-nodes.md)).\n\n"
        "With an existing network ([`network.subnet` or `network.vpc`](companies.md#networks)), "
        f"the role is enough without {networks}; with `network.firewall` also without "
        f"{firewalls}. On the subnetwork, also in the host project of a Shared VPC, you "
        f"then need {listed([*gcp.ON_SUBNET, gcp.ON_SUBNET_PUBLIC])} (`roles/compute.networkUser`) "
        "and `compute.subnetworks.get`, for `network.vpc` also `compute.subnetworks.list`.\n\n"
        f"`strategy: tpu` needs these, too:\n\n```yaml\n{dashed(gcp.TPU_MORE)}```\n"
    )


def permissions_of_azure() -> str:
    shell = (
        "az role definition create --role-definition role.json\n"
        "az role assignment create --role cloudtrain --assignee YOU@example.com \\\n"
        "  --scope /subscriptions/SUBSCRIPTION"
    )
    group = "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP"
    in_group = azure.role("cloudtrain in a group", group, azure.IN_GROUP)
    return (
        f"```json\n{json.dumps(azure.role(), indent=1)}\n```\n\n```sh\n{shell}\n```\n\n"
        f"With [`identity:`](#an-identity-for-scripts), also {listed(azure.ON_IDENTITY)} on that "
        "identity alone (Managed Identity Operator has both). `check` reads the role assignments "
        "of its storage accounts if you have `Microsoft.Authorization/roleAssignments/read`.\n\n"
        f"With `network.ssh_proxy.bastion`, also {listed(azure.WITH_BASTION)} on its network, and "
        "Reader on the VMs and their network interfaces ([private-nodes.md](private-nodes.md)).\n"
        "\nWith [`provisioning: {reservation: …}`](#capacity-reservations), also "
        f"{listed(azure.ON_RESERVATION)} on that group (the first one on the subscription, if you "
        "name the group without its resource group).\n"
        "\nWith an image that has [a purchase plan](companies.md#images-with-a-purchase-plan), "
        f"`check` reads its terms if you have `{azure.ON_TERMS}`.\n\n"
        "With [`resource_group:`](companies.md#a-resource-group), this role on that group is "
        f"enough:\n\n```json\n{json.dumps(in_group, indent=1)}\n```\n"
    )


def listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def dashed(names: Sequence[str]) -> str:
    return "".join(f"- {name}\n" for name in names)


PERMISSIONS = {
    "aws": permissions_of_aws,
    "azure": permissions_of_azure,
    "gcp": permissions_of_gcp,
}


if __name__ == "__main__":
    SCHEMA.write_text(schema_text(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for cloud in clouds():
        its_page = ROOT / "docs" / f"{cloud.name}.md"
        text = permissions(cloud.name, its_page.read_text(encoding="utf-8"))
        its_page.write_text(text, encoding="utf-8")
    STATES.write_text(states(STATES.read_text(encoding="utf-8")), encoding="utf-8")
    MACHINES.write_text(machines(MACHINES.read_text(encoding="utf-8")), encoding="utf-8")
