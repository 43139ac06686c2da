"""Which strategy takes which roles, and what each provider needs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloudtrain.cluster.plan import make_plan
from cloudtrain.config import from_json, load, to_json
from cloudtrain.core.errors import ConfigError
from cloudtrain.core.model import ClusterConfig, Host, NodeGroup


def read(folder: Path, text: str) -> ClusterConfig:
    (folder / "c.yaml").write_text(text)
    return load(folder / "c.yaml", {})


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]


def cluster(strategy: str, nodes: str = "", more: str = "provider: local") -> str:
    return f"{more}\nstrategy: {strategy}\n" + (f"nodes: {nodes}\n" if nodes else "")


@pytest.mark.parametrize(
    ("strategy", "nodes", "expected"),
    [
        ("multi_worker_mirrored", "{chief: , worker: {count: 3}}", {"chief": 1, "worker": 3}),
        ("multi_worker_mirrored", "{chief: }", {"chief": 1}),
        ("multi_worker_mirrored", "{chief: false, worker: {count: 2}}", {"worker": 2}),
        ("multi_worker_mirrored", "{chief: , evaluator: }", {"chief": 1, "evaluator": 1}),
        ("parameter_server", "{chief: , worker: , ps: }", {"chief": 1, "worker": 1, "ps": 1}),
        ("mirrored", "", {"chief": 1}),
        ("one_device", "{worker: }", {"worker": 1}),
        ("horovod", "{worker: {count: 4}}", {"worker": 4}),
        ("custom", "{chief: , reader2x: {count: 5}}", {"chief": 1, "reader2x": 5}),
    ],
)
def test_each_strategy_takes_its_roles(
    tmp_path: Path, strategy: str, nodes: str, expected: dict[str, int]
) -> None:
    found = read(tmp_path, cluster(strategy, nodes)).nodes
    assert {role: group.count for role, group in found.items()} == expected


MWM = "strategy multi_worker_mirrored has no such role: "
ROLE_NAME = "a role's name has up to 15 lower-case letters and digits, starts with a letter"


@pytest.mark.parametrize(
    ("strategy", "nodes", "expected"),
    [
        ("multi_worker_mirrored", "", "nodes: is missing"),
        (
            "multi_worker_mirrored",
            "{worker: }",
            "nodes.chief: is missing: one node must be the chief",
        ),
        ("multi_worker_mirrored", "{chief: false}", "nodes.worker: is missing: without a chief"),
        (
            "multi_worker_mirrored",
            "{chief: , ps: }",
            f"nodes.ps: {MWM}with a ps, the chief would wait",
        ),
        ("multi_worker_mirrored", "{chief: , wroker: }", f"nodes.wroker: {MWM}did you mean 'work"),
        (
            "multi_worker_mirrored",
            "{chief: {count: 2}}",
            "nodes.chief.count: at most one chief is allowed",
        ),
        ("multi_worker_mirrored", "{chief: , evaluator: {count: 2}}", "nodes.evaluator.count: at"),
        ("multi_worker_mirrored", "{master: , worker: }", "nodes.master: TensorFlow 2 has no role"),
        ("parameter_server", "{worker: , ps: }", "nodes.chief: is missing: a parameter_server job"),
        ("parameter_server", "{chief: false, worker: , ps: }", "nodes.chief: is missing"),
        ("parameter_server", "{chief: , ps: }", "nodes.worker: is missing"),
        ("parameter_server", "{chief: , worker: , ps: false}", "nodes.ps: is missing"),
        ("mirrored", "{chief: , worker: }", "nodes: strategy mirrored runs on one node"),
        ("central_storage", "{worker: {count: 2}}", "nodes: strategy central_storage runs on one"),
        ("horovod", "{chief: , worker: }", "nodes.chief: strategy horovod has no such role"),
        ("horovod", "", "nodes: is missing"),
        ("tpu", "", "nodes: is missing"),
        ("custom", "", "nodes: is missing"),
        ("custom", "{chief: false}", "nodes: lists no nodes"),
        ("custom", "{worker1: }", f"nodes.worker1: {ROLE_NAME}"),
        ("custom", "{Reader: }", f"nodes.Reader: {ROLE_NAME}"),
        ("custom", "{abcdefghijklmnop: }", f"nodes.abcdefghijklmnop: {ROLE_NAME}"),
        ("custom", "{chief: 3}", "nodes.chief: must be a mapping such as {count: 2}, or false"),
        ("custom", "3", "nodes: must be a mapping"),
    ],
)
def test_what_tensorflow_cannot_start_with_is_refused(
    tmp_path: Path, strategy: str, nodes: str, expected: str
) -> None:
    [problem] = problems(tmp_path, cluster(strategy, nodes))
    assert problem.partition(": ")[2].startswith(expected)


def test_a_nodes_name_always_fits_the_clouds() -> None:
    longest_name, longest_role, last_index = 30, 15, len("999")
    assert longest_name + len("-") + longest_role + last_index <= 63


@pytest.mark.parametrize("provider", ["gcp", "aws", "azure"])
def test_a_cloud_needs_a_placement(tmp_path: Path, provider: str) -> None:
    text = cluster("mirrored", more=f"provider: {provider}")
    assert problems(tmp_path, text) == [
        f"c.yaml: placement: is missing: provider {provider} needs a zone or region"
    ]
    assert read(tmp_path, text + "placement: [a]\n").placement == ("a",)


def test_what_is_required_is_named_without_a_line(tmp_path: Path) -> None:
    assert problems(tmp_path, "train: {port: 2000}\n") == [
        "c.yaml: provider: is missing",
        "c.yaml: strategy: is missing",
        "c.yaml:1: train.command: is missing",
    ]


def test_only_the_provider_differs_between_a_rehearsal_and_a_cloud(tmp_path: Path) -> None:
    text = """\
project: p
placement: [us-east4-c]
network: {private: true}
image: deeplearning
strategy: multi_worker_mirrored
nodes: {chief: {machine: n1-standard-8, accelerator: T4:1, disk_gb: 100, spot: true}}
endpoints: {storage: "http://localhost:1"}
limits: {max_price: 20}
"""
    cloud, here = (read(tmp_path, f"provider: {name}\n{text}") for name in ("gcp", "local"))
    assert cloud.nodes == here.nodes
    assert here.provider == "local"


def test_a_bucket_is_made_only_where_one_is_named(tmp_path: Path) -> None:
    text = cluster("mirrored") + "artifacts: {create: true}\n"
    assert problems(tmp_path, text) == ["c.yaml:3: artifacts.store: is missing: `create` needs it"]


def test_encryption_and_who_pays_are_asked_of_stores_that_know_them(tmp_path: Path) -> None:
    text = cluster("mirrored")
    stored = "artifacts: {store: %s, encryption: %s}\n"
    paid = "data: {digits: {from: %s, requester_pays: true}}\n"
    right = text + stored % ("s3://bucket/x", "aws:kms:alias/train") + paid % "s3://bucket/d"
    config = read(tmp_path, right)
    assert config.artifacts.encryption == "aws:kms:alias/train"
    assert config.data["digits"].requester_pays
    wrong = text + stored % ("gs://bucket/x", "aws:kms") + paid % "az://account/container/d"
    assert problems(tmp_path, wrong) == [
        "c.yaml:3: artifacts.encryption: is for an s3:// `store`: others encrypt by themselves",
        "c.yaml:4: data.digits.requester_pays: is for gs:// and s3:// data",
    ]
    (unknown,) = problems(tmp_path, text + stored % ("s3://bucket/x", "kms"))
    assert unknown.endswith("must be none, AES256, aws:kms or aws:kms:KEY, not 'kms'")


def test_code_comes_from_one_place(tmp_path: Path) -> None:
    local = cluster("mirrored")
    assert problems(tmp_path, local + "code: {git: 'https://x/y.git', path: .}\n") == [
        "c.yaml:3: code.path: conflicts with `git`: use one of the two"
    ]
    assert problems(tmp_path, local + "code: {path: ., ref: main}\n") == [
        "c.yaml:3: code.ref: requires `git`: it is a branch, tag or commit of it"
    ]


@pytest.mark.parametrize(
    "url", ["--upload-pack=x", "ext::sh -c id", "https://me:hunter2@x/y", "https://hunter2@x/y", ""]
)
def test_git_urls_that_run_or_show_something_are_refused(tmp_path: Path, url: str) -> None:
    [problem] = problems(tmp_path, cluster("mirrored") + f"code:\n  git: '{url}'\n")
    assert problem.startswith("c.yaml:4: code.git: ")
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    "store",
    ["gs://bkt", "s3://my-b/p q/ü", "az://account1/container/p", "file:///a b", "file:///x#y?z"],
)
def test_stores_of_every_kind_are_read(tmp_path: Path, store: str) -> None:
    text = cluster("mirrored") + f"artifacts:\n  store: '{store}'\n"
    assert read(tmp_path, text).artifacts.store == store


@pytest.mark.parametrize(
    "store",
    ["/tmp/x", "file://", "file:///", "file://x/y", "gs://", "az://acc", "http://x", "gs:///p",
     "file:///a/../b"],
)  # fmt: skip
def test_other_stores_are_refused(tmp_path: Path, store: str) -> None:
    text = cluster("mirrored") + f"artifacts:\n  store: '{store}'\n"
    [problem] = problems(tmp_path, text)
    assert problem.startswith("c.yaml:4: artifacts.store: must ")


@pytest.mark.parametrize("port", ["1023", "65001", "0x22d", "-1", "8900.0", "1e4", "٣٠٠٠", "010"])
def test_ports_outside_the_range_are_refused(tmp_path: Path, port: str) -> None:
    text = cluster("mirrored") + f"train: {{command: x, port: {port}}}\n"
    assert problems(tmp_path, text) == [
        f"c.yaml:3: train.port: must be a whole number from 1024 to 65000, not '{port}'"
    ]


def test_ports_must_not_count_past_the_last(tmp_path: Path) -> None:
    text = cluster("custom", "{a: {count: 600}}") + "train: {command: x, port: 65000}\n"
    assert problems(tmp_path, text) == [
        "c.yaml:4: train.port: needs ports up to 65599 for all nodes; the highest port is 65535"
    ]


@pytest.mark.parametrize("value", ["0", "-5m", "5x", "inf", "nan", "1e3", "", "off", "9999d", "[]"])
def test_a_duration_is_a_positive_time(tmp_path: Path, value: str) -> None:
    text = cluster("mirrored") + f"train:\n  command: x\n  grace: '{value}'\n"
    [problem] = problems(tmp_path, text)
    assert problem.startswith("c.yaml:5: train.grace: must be ")


def test_an_estimators_evaluator_needs_a_chief(tmp_path: Path) -> None:
    text = """provider: local
strategy: multi_worker_mirrored
nodes: {chief: false, worker: {count: 2}, evaluator: {}}
train: {command: x, tf_config: estimator}
"""
    assert problems(tmp_path, text) == [
        "c.yaml:4: train.tf_config: estimator: the evaluator of tf.estimator needs a `chief` among "
        "the nodes"
    ]
    assert read(tmp_path, text.replace("chief: false, ", "chief: {}, ")).train.command == "x"


@pytest.mark.parametrize("field", ["dir", "checkpoints"])
@pytest.mark.parametrize("value", ["/x", "../x", "a/../../x", "~", "~/x", "-x", "a\\tb"])
def test_folders_on_a_node_stay_inside(tmp_path: Path, field: str, value: str) -> None:
    text = cluster("mirrored") + f'train:\n  command: x\n  {field}: "{value}"\n'
    [problem] = problems(tmp_path, text)
    assert problem.startswith(f"c.yaml:5: train.{field}: must ")


def test_checkpoints_need_a_folder_of_their_own(tmp_path: Path) -> None:
    for value in (".", "./", "./."):
        text = cluster("mirrored") + f"train: {{command: x, checkpoints: {value}}}\n"
        [problem] = problems(tmp_path, text)
        assert "must name a folder of its own" in problem


def test_odd_values_are_refused_before_a_shell_sees_them(tmp_path: Path) -> None:
    text = cluster("mirrored") + (
        "image: -x\n"
        'project: "a\\nb"\n'
        'train: {command: "a\\0b"}\n'
        "setup: {packages: [-r x], python: python3, run: ['']}\n"
        "network: {ssh_from: everywhere}\n"
        "endpoints: {compute: 'ftp://x', auth: 'http://[x'}\n"
    )
    assert [line.split(": ")[1] for line in problems(tmp_path, text)] == [
        "image",
        "project",
        "train.command",
        "setup.python",
        "setup.packages[0]",
        "setup.run[0]",
        "network.ssh_from",
        "endpoints.compute",
        "endpoints.auth",
    ]


# ── provider: hosts ──────────────────────────────────────────────────────────

TWO = "{chief: , worker: }"
LIST = """\
provider: hosts
strategy: multi_worker_mirrored
hosts:
  - {address: 10.0.0.1, role: chief, user: me, key: k, port: 2200}
  - {address: b.example, role: worker}
"""


def test_hosts_give_the_nodes(tmp_path: Path) -> None:
    config = read(tmp_path, LIST)
    assert config.hosts == (
        Host(address="10.0.0.1", role="chief", user="me", key="k", port=2200),
        Host(address="b.example", role="worker"),
    )
    assert config.nodes == {"chief": NodeGroup(), "worker": NodeGroup()}
    assert read(tmp_path, LIST + f"nodes: {TWO}\n").nodes == config.nodes


def test_hosts_and_nodes_must_agree(tmp_path: Path) -> None:
    assert problems(tmp_path, LIST + "nodes:\n  chief:\n  worker: {count: 2}\n") == [
        "c.yaml:8: nodes.worker.count: `nodes` has 2 of role worker, `hosts` has 1"
    ]


def test_hosts_are_checked_like_nodes(tmp_path: Path) -> None:
    assert problems(tmp_path, LIST.replace("role: worker", "role: ps")) == [
        "c.yaml:3: hosts: strategy multi_worker_mirrored has no such role: with a ps, the chief "
        "would wait forever (ps is for parameter_server)"
    ]
    assert problems(tmp_path, LIST.replace("address: b", "adress: b")) == [
        "c.yaml:5: hosts[1].address: is missing",
        "c.yaml:5: hosts[1].adress: unknown field: did you mean 'address'?",
    ]
    assert problems(tmp_path, cluster("mirrored", more="provider: hosts")) == [
        "c.yaml: hosts: is missing: provider hosts needs a list of {address, user, key, role}, "
        "or the path of an INI [cluster] file"
    ]


INI = """\
provider: hosts
strategy: parameter_server
hosts: my cluster.ini
train: {command: x}
"""


def test_an_ini_file_gives_hosts_and_the_port(tmp_path: Path) -> None:
    ini = "[cluster]\nps=[::1]:2222\nchief=10.0.0.1:2222\nworker=b:2222, c:2222\n d:2222\n"
    (tmp_path / "my cluster.ini").write_text(ini)
    config = read(tmp_path, INI)
    assert [(host.role, host.address, host.port) for host in config.hosts] == [
        ("chief", "10.0.0.1", 22),
        ("worker", "b", 22),
        ("worker", "c", 22),
        ("worker", "d", 22),
        ("ps", "::1", 22),
    ]
    assert config.train.port == 2222
    assert {node.port for node in make_plan(config).nodes} == {2222}, "each host has its own"
    assert read(tmp_path, INI.replace("x}", "x, port: 3333}")).train.port == 3333


def test_hosts_with_one_address_count_their_ports_up_and_no_others(tmp_path: Path) -> None:
    listed = "[{address: a, role: chief}, {address: A, role: worker}, {address: b, role: worker},"
    listed += " {address: b, role: ps}]"
    config = read(tmp_path, cluster("parameter_server", more=f"provider: hosts\nhosts: {listed}"))
    assert [node.port for node in make_plan(config).nodes] == [8900, 8901, 8900, 8901]


@pytest.mark.parametrize(
    ("ini", "expected"),
    [
        ("chief=a:1\n", "my cluster.ini:1: has text before its [cluster] line"),
        ("[cluster]\nchief=a:1\nchief=b:1\n", "my cluster.ini:3: has chief twice"),
        ("[cluster]\n[cluster]\n", "my cluster.ini:2: has [cluster] twice"),
        (
            "[cluster]\nnonsense\n",
            "my cluster.ini:2: is not a valid INI file: expected [cluster] and lines",
        ),
        ("[other]\n", "my cluster.ini: has no [cluster] section"),
        ("[cluster]\n", "my cluster.ini: cluster: lists no hosts"),
        (
            "[cluster]\nchief=a:2222\nworker=b:x\nps=c:2222",
            "my cluster.ini:3: worker: must be a list",
        ),
        (
            "[cluster]\nchief=a:2000\nworker=b:2001\nps=c:2000",
            "my cluster.ini: cluster: has different ",
        ),
        (b"\xff", "c.yaml:3: hosts: cannot read 'my cluster.ini': it is not UTF-8 text"),
        (None, "c.yaml:3: hosts: cannot read 'my cluster.ini': No such file or directory"),
    ],
)
def test_an_ini_files_problems_name_its_own_lines(
    tmp_path: Path, ini: str | bytes | None, expected: str
) -> None:
    if ini is not None:
        data = ini if isinstance(ini, bytes) else ini.encode()
        (tmp_path / "my cluster.ini").write_bytes(data)
    [problem] = problems(tmp_path, INI)
    assert problem.startswith(expected)


def test_an_ini_files_master_is_told_to_be_the_chief(tmp_path: Path) -> None:
    (tmp_path / "my cluster.ini").write_text("[cluster]\nmaster=a:2222\nworker=b:2222\nps=c:2222")
    assert problems(tmp_path, INI) == [
        "c.yaml:3: hosts: TensorFlow 2 has no role 'master': use 'chief' (`strategy: custom` "
        "allows it, for TensorFlow 1's Estimator)"
    ]


def test_a_master_of_tensorflow_1_is_sent_to_the_strategy_that_has_it(tmp_path: Path) -> None:
    text = cluster("parameter_server", "{master: {}, worker: {}, ps: {}}")
    (problem,) = problems(tmp_path, text + 'setup: {tensorflow: "1.15"}\n')
    assert "nodes.master: TensorFlow 1's 'master' needs `strategy: custom`" in problem


# ── resources of the account ─────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "field", "value", "words"),
    [
        ("azure", "resource_group", "ml (eu)", "must be the name of an existing resource group"),
        ("azure", "resource_group", "/subscriptions/x", "must be the name of an existing"),
        ("aws", "resource_group", "ml", "is not for AWS, which has no such thing"),
        ("gcp", "disk_key", "disks", "must be the resource name of a Cloud KMS key, such as"),
        ("aws", "disk_key", "my key", "must be the ID, alias or ARN of a KMS key"),
        ("azure", "disk_key", "disks", "must be the resource id, or GROUP/NAME, of a disk enc"),
        ("local", "disk_key", "alias/x", "is only for a cloud, not for provider local"),
        ("local", "resource_group", "ml", "is only for a cloud, not for provider local"),
    ],
)
def test_a_resource_of_the_account_is_named_as_its_cloud_names_it(
    tmp_path: Path, provider: str, field: str, value: str, words: str
) -> None:
    here = {**HERE, "local": "provider: local\n"}[provider]
    text = cluster("one_device", "{chief: }", f"{here}\n{field}: '{value}'")
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(f"c.yaml:3: {field}: {words}")


@pytest.mark.parametrize(
    ("provider", "key"),
    [
        ("gcp", "projects/k/locations/global/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1"),
        ("gcp", "projects/example.com:k/locations/{region}/keyRings/r/cryptoKeys/k"),
        ("aws", "alias/team/disks"),
        ("aws", "mrk-0123456789abcdef0123456789abcdef"),
        ("aws", "arn:aws-cn:kms:{region}:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"),
        ("azure", "keys/disks-{region}"),
    ],
)
def test_a_key_for_disks_may_be_of_each_region(tmp_path: Path, provider: str, key: str) -> None:
    text = cluster("one_device", "{chief: }", f"{HERE[provider]}\ndisk_key: '{key}'")
    config = read(tmp_path, text)
    assert config.disk_key == key
    assert config.disk_key_in("r1") == key.replace("{region}", "r1")


NSG = "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/nets/providers/"
NSG += "Microsoft.Network/networkSecurityGroups/training"


@pytest.mark.parametrize(
    ("provider", "network", "read_as"),
    [
        ("gcp", "{subnet: s, firewall: own}", None),
        ("gcp", "{subnet: s, firewall: existing}", ()),
        ("gcp", "{vpc: corp, firewall: [a, b]}", ("a", "b")),
        ("aws", "{vpc: vpc-0123456789abcdef0, firewall: sg-01234567}", ("sg-01234567",)),
        ("azure", f"{{subnet: /x, firewall: {NSG}}}", (NSG,)),
    ],
)
def test_an_existing_firewall_is_named_as_its_cloud_names_it(
    tmp_path: Path, provider: str, network: str, read_as: tuple[str, ...] | None
) -> None:
    text = cluster("one_device", "{chief: }", f"{HERE[provider]}\nnetwork: {network}")
    config = read(tmp_path, text)
    assert config.network.firewall == read_as
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("provider", "network", "at", "words"),
    [
        ("gcp", "{subnet: s, vpc: v}", "vpc", "conflicts with `subnet`, which is in one"),
        ("gcp", "{firewall: a}", "firewall", "needs `vpc` or `subnet`: it belongs to an existing"),
        ("azure", "{firewall: existing}", "firewall", "needs `subnet`: it belongs"),
        ("aws", "{vpc: vpc-01234567, firewall: existing}", "firewall", "every node of AWS needs"),
        ("aws", "{vpc: corp}", "vpc", "must be the ID of a VPC, such as vpc-"),
        ("aws", "{subnet: s, firewall: default}", "firewall", "must be the ID of a security group"),
        ("azure", "{vpc: corp}", "vpc", "is not for Azure, which has no such thing"),
        (
            "azure",
            "{subnet: /x, firewall: nsg}",
            "firewall",
            "must be the resource id of a network",
        ),
        ("azure", f"{{subnet: /x, firewall: [{NSG}, {NSG}]}}", "firewall", "at most 1 on Azure"),
        ("gcp", "{subnet: s, firewall: []}", "firewall", "lists none: `existing` attaches none"),
        ("local", "{vpc: corp}", "vpc", "is only for a cloud, not for provider local"),
    ],
)
def test_what_is_wrong_with_an_existing_network_is_told_at_its_line(
    tmp_path: Path, provider: str, network: str, at: str, words: str
) -> None:
    here = {**HERE, "local": "provider: local\n"}[provider]
    text = cluster("one_device", "{chief: }", f"{here}\nnetwork: {network}")
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(f"c.yaml:3: network.{at}: {words}")


# ── proxies ──────────────────────────────────────────────────────────────────


def test_nodes_may_have_a_proxy_and_exceptions_from_it(tmp_path: Path) -> None:
    network = "{http_proxy: 'http://proxy.office:3128/', no_proxy: [.office.example, 10.9.0.0/16]}"
    text = cluster("one_device", "{chief: }", f"{HERE['gcp']}\nnetwork: {network}")
    config = read(tmp_path, text)
    assert config.network.http_proxy == "http://proxy.office:3128"
    assert config.network.no_proxy == (".office.example", "10.9.0.0/16")


@pytest.mark.parametrize(
    ("provider", "network", "at", "words"),
    [
        ("gcp", "{http_proxy: 'http://me:secret@proxy:1'}", "http_proxy", "contains a user: every"),
        ("gcp", "{http_proxy: proxy.office}", "http_proxy", "must be http://HOST:PORT, not"),
        ("gcp", "{http_proxy: 'http://p:1/x?y'}", "http_proxy", "must be http://HOST:PORT"),
        ("gcp", "{no_proxy: [x]}", "no_proxy", "needs `http_proxy`: it lists exceptions"),
        ("gcp", "{http_proxy: 'http://p:1', no_proxy: ['a b']}", "no_proxy[0]", "must be a host"),
        ("local", "{http_proxy: 'http://p:1'}", "http_proxy", "is for rented nodes: with provider"),
    ],
)
def test_what_is_wrong_with_a_proxy_is_told_at_its_line(
    tmp_path: Path, provider: str, network: str, at: str, words: str
) -> None:
    here = {**HERE, "local": "provider: local\n"}[provider]
    text = cluster("one_device", "{chief: }", f"{here}\nnetwork: {network}")
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(f"c.yaml:3: network.{at}: {words}")
    assert "secret" not in problem


# ── tags ─────────────────────────────────────────────────────────────────────


def tagged(provider: str, tags: str) -> str:
    here = {**HERE, "local": "provider: local\n"}[provider]
    return cluster("one_device", "{chief: }", f"{here}\ntags:\n  {tags}")


@pytest.mark.parametrize(
    ("provider", "tags", "read_as"),
    [
        ("gcp", "team: vision", {"team": "vision"}),
        ("gcp", "éq: 'ça'", {"éq": "ça"}),
        ("gcp", "no: yes", {"no": "yes"}),
        ("aws", "'Cost Center': 47:11/x@y", {"Cost Center": "47:11/x@y"}),
        ("aws", "Team: ", {"Team": ""}),
        ("azure", "'Cost Center': 'a<b>?'", {"Cost Center": "a<b>?"}),
    ],
)
def test_tags_are_texts_as_their_cloud_takes_them(
    tmp_path: Path, provider: str, tags: str, read_as: dict[str, str]
) -> None:
    assert read(tmp_path, tagged(provider, tags)).tags == read_as


@pytest.mark.parametrize(
    ("provider", "tags", "words"),
    [
        ("gcp", "Team: vision", "a tag on GCP must have up to 63 lower-case letters"),
        ("gcp", "team: Vision", "a tag on GCP must have up to 63 lower-case letters"),
        ("gcp", f"team: {'v' * 64}", "a tag on GCP must have up to 63"),
        ("aws", "'aws:team': vision", "AWS reserves names that begin so"),
        ("aws", "Name: mine", "is set by cloudtrain, to the node's name"),
        ("aws", "'te#am': vision", "a tag on AWS must have letters, digits, spaces"),
        ("azure", "'te/am': vision", "a tag on Azure must have no `<>%&"),
        ("gcp", "goog-team: vision", "reserves names that begin so"),
        ("azure", "windowsteam: vision", "Azure reserves names that begin so"),
        ("aws", "cloudtrain-owner: me", "names that begin with cloudtrain are reserved"),
        ("azure", "Cloudtrain-owner: me", "names that begin with cloudtrain are reserved"),
    ],
)
def test_a_tag_that_the_cloud_would_refuse_is_refused_at_its_line(
    tmp_path: Path, provider: str, tags: str, words: str
) -> None:
    (problem,) = problems(tmp_path, tagged(provider, tags))
    assert re.match(r"c\.yaml:4: tags\.[^:]+(:team)?: ", problem)
    assert words in problem


def test_azure_takes_no_two_tags_that_differ_in_case_alone(tmp_path: Path) -> None:
    tags = "team: a\n  Team: b"
    assert read(tmp_path, tagged("aws", tags)).tags == {"team": "a", "Team": "b"}
    assert problems(tmp_path, tagged("azure", tags)) == [
        "c.yaml:5: tags.Team: is the same tag as `team` on Azure"
    ]


def test_a_cloud_has_room_for_so_many_tags(tmp_path: Path) -> None:
    tags = "\n  ".join(f"t{number}: x" for number in range(41))
    assert len(read(tmp_path, tagged("gcp", tags)).tags) == 41
    (problem,) = problems(tmp_path, tagged("aws", tags))
    assert problem == "c.yaml:3: tags: has 41 tags: AWS has room for 39"


def test_tags_are_only_for_clouds(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, tagged("local", "team: vision"))
    assert "tags: is only for a cloud that has tags: provider local has none" in problem


def test_tags_beside_candidates_must_be_valid_on_each_of_their_clouds(tmp_path: Path) -> None:
    text = cluster(
        "one_device",
        "{chief: }",
        "any_of:\n  - {provider: aws, placement: [us-east-1a]}\n"
        "  - {provider: gcp, placement: [us-east4-c]}\ntags: {Team: vision}",
    )
    (problem,) = problems(tmp_path, text)
    assert problem.startswith("c.yaml:4: tags.Team: a tag on GCP must have")


# ── identity ─────────────────────────────────────────────────────────────────

HERE = {
    "gcp": "provider: gcp\nplacement: [us-east4-c]",
    "aws": "provider: aws\nplacement: [us-east-1a]",
    "azure": "provider: azure\nplacement: [eastus]",
}
AZURE_ID = (
    "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/ids/providers/"
    "Microsoft.ManagedIdentity/userAssignedIdentities/trainer"
)


def identified(provider: str, identity: str) -> str:
    return cluster("one_device", "{chief: }", f"{HERE[provider]}\nidentity: {identity}")


@pytest.mark.parametrize(
    ("provider", "identity"),
    [
        ("gcp", "trainer@my-project.iam.gserviceaccount.com"),
        ("gcp", "123-compute@developer.gserviceaccount.com"),
        ("gcp", "trainer@my-project.example.com.iam.gserviceaccount.com"),
        ("aws", "trainer"),
        ("aws", "arn:aws-cn:iam::123456789012:instance-profile/ml/trainer"),
        ("azure", "ids/trainer"),
        ("azure", AZURE_ID),
    ],
)
def test_an_identity_is_named_as_its_cloud_names_it(
    tmp_path: Path, provider: str, identity: str
) -> None:
    assert read(tmp_path, identified(provider, identity)).identity == identity


@pytest.mark.parametrize("nothing", ["none", "None", "off", "", "~"])
def test_no_identity_is_the_default(tmp_path: Path, nothing: str) -> None:
    assert read(tmp_path, identified("gcp", nothing)).identity is None


@pytest.mark.parametrize(
    ("provider", "identity", "words"),
    [
        ("gcp", "trainer", "must be the e-mail address of a service account, such as trainer@"),
        ("gcp", "me@example.com", "must be the e-mail address of a service account"),
        ("aws", "arn:aws:iam::123456789012:role/trainer", "must be the name or ARN of an instance"),
        ("azure", "trainer", "must be the resource id, or GROUP/NAME, of a user-assigned managed"),
    ],
)
def test_another_form_is_refused_at_its_line(
    tmp_path: Path, provider: str, identity: str, words: str
) -> None:
    (problem,) = problems(tmp_path, identified(provider, identity))
    assert problem.startswith(f"c.yaml:3: identity: {words}")


def away(provider: str, section: str, more: str = "") -> str:
    return cluster("one_device", "{chief: }", f"{HERE[provider]}\naway: {section}{more}")


@pytest.mark.parametrize(
    ("provider", "identity"),
    [("gcp", "desk@my-project.iam.gserviceaccount.com"), ("aws", "desk"), ("azure", "ids/desk")],
)
def test_the_desk_has_an_identity_of_its_own(tmp_path: Path, provider: str, identity: str) -> None:
    config = read(tmp_path, away(provider, f"{{identity: {identity}}}"))
    assert (config.away.identity, config.identity) == (identity, None)


@pytest.mark.parametrize(
    ("section", "more", "words"),
    [
        ("{machine: m5.large}", "", "away.identity: is missing: the name or ARN of an instance"),
        ("{identity: a/b}", "", "away.identity: must be the name or ARN of an instance profile"),
        ("{identity: desk}", "\nidentity: desk", "away.identity: is also `identity`, which every"),
    ],
)
def test_a_desk_without_an_identity_of_its_own_is_refused(
    tmp_path: Path, section: str, more: str, words: str
) -> None:
    (problem,) = problems(tmp_path, away("aws", section, more))
    assert problem.startswith(f"c.yaml:3: {words}")


def test_machines_that_are_not_rented_have_no_desk(tmp_path: Path) -> None:
    text = cluster("one_device", "{chief: }", "provider: local\naway: {identity: desk}")
    assert problems(tmp_path, text) == [
        "c.yaml:2: away: is only for a cloud: provider local rents no machine"
    ]


def test_machines_that_are_not_rented_take_no_identity(tmp_path: Path) -> None:
    text = cluster("one_device", "{chief: }", "provider: local\nidentity: trainer")
    assert problems(tmp_path, text) == [
        "c.yaml:2: identity: is only for a cloud: with provider local a script has the credentials "
        "of the machine that it runs on"
    ]


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        ("{image: 'it:1', tensorflow: 2.17}", "setup.tensorflow: conflicts with `image`"),
        ("{image: 'it:1', run: [true]}", "setup.run: conflicts with `image`"),
        ("{image: 'it:1', requirements: r.txt}", "setup.requirements: conflicts with `image`"),
        ("{image: 'It:1'}", "setup.image: must be an image's name in lower case"),
        ("{registry_user: me}", "setup.registry_user: requires `image`"),
        ("{image: 'it:1', registry_password: X}", "setup.registry_password: names no entry"),
    ],
)
def test_an_image_is_the_whole_environment(tmp_path: Path, setup: str, words: str) -> None:
    text = cluster("one_device", "{chief: }") + f"setup: {setup}\n"
    assert any(words in line for line in problems(tmp_path, text))


@pytest.mark.parametrize("strategy", ["horovod", "tpu"])
def test_a_strategy_that_installs_its_own_library_takes_no_image(
    tmp_path: Path, strategy: str
) -> None:
    text = cluster(strategy, "{worker: {count: 2}}") + "setup: {image: it}\n"
    assert any("setup.image: does not work with" in line for line in problems(tmp_path, text))
