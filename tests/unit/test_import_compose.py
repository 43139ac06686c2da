"""A compose file with TF_CONFIG becomes local nodes that `plan` accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from cloudtrain.core.errors import ConfigError
from tests.support.import_parts import Desk, lost, tree

PS_CLUSTER = {
    "chief": ["chief:2222"],
    "worker": ["worker0:2222", "worker1:2222"],
    "ps": ["ps0:2222"],
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def tf_config(role: str, index: int, cluster: object = PS_CLUSTER) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})


def compose(cluster: dict[str, list[str]], listed: bool = False, **service: object) -> str:
    """A service for each task of the cluster, all with the same keys."""
    services = {}
    for role, hosts in cluster.items():
        for index in range(len(hosts)):
            text = tf_config(role, index, cluster)
            environment = [f"TF_CONFIG={text}"] if listed else {"TF_CONFIG": text}
            services[f"{role}{index}"] = {"command": "python t.py", **service} | {
                "environment": environment
            }
    return yaml.safe_dump({"services": services}, width=1000, sort_keys=False)


TWO = {"worker": ["a:2222", "b:2222"]}


@pytest.mark.parametrize("listed", [False, True])
def test_each_service_with_tf_config_is_a_task(desk: Desk, listed: bool) -> None:
    found = desk.imported(compose(PS_CLUSTER, listed), file="docker-compose.yml")
    assert tree(found)["nodes"] == {
        "chief": {"count": 1},
        "worker": {"count": 2},
        "ps": {"count": 1},
    }
    assert (found.config.provider, found.config.strategy) == ("local", "parameter_server")
    assert (found.config.train.port, found.config.train.command) == (2222, "python t.py")
    assert lost(found) == []


def test_without_a_chief_worker_0_is_it(desk: Desk) -> None:
    assert tree(desk.imported(compose(TWO)))["nodes"] == {"chief": False, "worker": {"count": 2}}


def test_an_evaluator_is_not_in_the_cluster(desk: Desk) -> None:
    whole = yaml.safe_load(compose({"chief": ["c:1111"], "worker": ["w:1111"]}))
    alone = {"TF_CONFIG": tf_config("evaluator", 0, {"evaluator": ["e:1111"]})}
    whole["services"]["e"] = {"command": "python t.py", "environment": alone}
    found = desk.imported(yaml.safe_dump(whole))
    assert set(found.config.nodes) == {"chief", "worker", "evaluator"}


def test_another_service_and_a_missing_task_are_named(desk: Desk) -> None:
    whole = yaml.safe_load(compose(PS_CLUSTER))
    del whole["services"]["worker1"]
    whole["services"]["board"] = {"image": "tensorboard"}
    found = desk.imported(yaml.safe_dump(whole, width=1000))
    assert [line.split(": ", 2)[1:] for line in lost(found)] == [
        [
            "services.chief0.environment.TF_CONFIG",
            "lists worker 1, which is no service of this file",
        ],
        ["services.board", "has no TF_CONFIG: it becomes no node"],
    ]


def test_commands_that_differ_by_role_index_and_hosts_are_one_with_placeholders(
    desk: Desk,
) -> None:
    whole = yaml.safe_load(compose(PS_CLUSTER))
    hosts = ",".join(PS_CLUSTER["worker"])
    for name, service in whole["services"].items():
        service["command"] = [
            "python", "t.py", f"--job_name={name[:-1]}", "--task_index", name[-1],
            "--worker_hosts", hosts, "--index_of_run=7",
        ]  # fmt: skip
    found = desk.imported(yaml.safe_dump(whole, width=1000))
    assert found.config.train.command == (
        "python t.py --job_name={role} --task_index {index} --worker_hosts {worker.hosts}"
        " --index_of_run=7"
    )
    assert lost(found) == []


def test_a_command_that_differs_by_role_is_one_for_each_role(desk: Desk) -> None:
    whole = yaml.safe_load(compose(PS_CLUSTER))
    whole["services"]["ps0"]["command"] = "python serve.py"
    whole["services"]["worker1"]["command"] = "python other.py"
    found = desk.imported(yaml.safe_dump(whole, width=1000))
    assert found.config.train.command == "python t.py"
    assert dict(found.config.train.commands) == {"ps": "python serve.py"}
    assert "its command is not that of worker's other tasks: python other.py" in lost(found)[0]


def test_of_several_images_the_first_one_is_used_and_the_other_named(desk: Desk) -> None:
    whole = yaml.safe_load(compose(PS_CLUSTER, image="tensorflow/tensorflow:2.12.0"))
    whole["services"]["worker0"]["image"] = "tensorflow/tensorflow:2.11.0"
    found = desk.imported(yaml.safe_dump(whole, width=1000, sort_keys=False))
    assert found.config.setup.image == "docker://tensorflow/tensorflow:2.12.0"
    assert "tensorflow:2.11.0 is not used: `setup:` is the same for all" in lost(found)[0]


def test_the_image_that_a_build_makes_is_not_pulled(desk: Desk) -> None:
    desk.write({"Dockerfile": "FROM tensorflow/tensorflow:2.11.0\nCOPY t.py /srv/\n", "t.py": ""})
    made = compose(TWO, build=".", image="mine/it:1", command="python /srv/t.py")
    found = desk.imported(made)
    assert found.config.setup.image == "docker://tensorflow/tensorflow:2.11.0"
    assert "mine/it" not in found.text


def test_build_workdir_and_copy_are_the_code(desk: Desk) -> None:
    desk.write(
        {
            "app/Dockerfile": "FROM tensorflow/tensorflow:2.11.0\nWORKDIR /srv/sub\n"
            "COPY src /srv\nRUN pip install numpy\n",
            "app/src/sub/t.py": "",
        }
    )
    found = desk.imported(compose(TWO, build={"context": "./app"}, command="python /srv/sub/t.py"))
    assert tree(found)["code"] == {"path": "app/src"}
    assert found.config.train.dir == "sub"
    assert found.config.train.command == "python t.py"
    assert found.config.setup.image == "docker://tensorflow/tensorflow:2.11.0"
    assert found.config.setup.packages == ("numpy",)
    assert lost(found) == []


def test_requirements_and_the_package_of_the_image_are_those_of_the_code(desk: Desk) -> None:
    desk.write(
        {
            "Dockerfile": "FROM tensorflow/tensorflow:2.11.0\nWORKDIR /srv\nCOPY . .\n"
            "RUN pip install -r ./requirements.txt && pip3 install -e .\n",
            "requirements.txt": "numpy\n",
            "setup.py": "",
            "t.py": "",
        }
    )
    found = desk.imported(compose(TWO, build="."))
    assert tree(found)["setup"] == {
        "tensorflow": "2.11.0",
        "requirements": "code:requirements.txt",
        "install": ["."],
    }
    assert lost(found) == []


def test_a_mounted_folder_is_the_code_and_other_volumes_are_named(desk: Desk) -> None:
    desk.write({"src/t.py": ""})
    found = desk.imported(
        compose(
            TWO,
            image="tensorflow/tensorflow:2.12.0",
            working_dir="/work",
            volumes=["./src:/work", "data:/data:ro"],
        )
    )
    assert tree(found)["code"] == {"path": "src"}
    assert lost(found) == [
        "config.yaml:8: services.worker0.volumes[1]: data at /data: nodes share no volume:"
        " deliver it by `code:` or `data:`"
    ]


def test_variables_are_interpolated_as_compose_does(desk: Desk) -> None:
    desk.write({"v.env": "# comment\nexport FROM_FILE='a # b'\nBATCH=1\nX=\"q\\n$Y\" # c\nPASS\n"})
    whole = yaml.safe_load(compose({"chief": ["c:2222"]}, env_file=["v.env", "none.env"]))
    whole["services"]["chief0"]["environment"] |= {
        "BATCH": "${BATCH:-64}",
        "BARE": "$BARE",
        "DOLLAR": "$$HOME $${X}",
        "SHELL_OWN": None,
        "NEEDED": "${NEEDED:?set it}",
        "WANDB_API_KEY": "${MY_KEY}",
        "HF_TOKEN": "abc",
    }
    found = desk.imported(yaml.safe_dump(whole, width=1000))
    assert tree(found)["train"]["env"] == {  # type: ignore[index]
        "FROM_FILE": "a # b",
        "BATCH": "${BATCH:-64}",
        "X": "q\n${Y:-}",
        "PASS": "${PASS:-}",
        "BARE": "${BARE:-}",
        "DOLLAR": "$HOME $${X}",
        "SHELL_OWN": "${SHELL_OWN:-}",
        "NEEDED": "${NEEDED:-FILL_IN_NEEDED}",
    }
    assert dict(found.config.secrets) == {"WANDB_API_KEY": "MY_KEY", "HF_TOKEN": "HF_TOKEN"}
    assert [line.split(": ", 2)[2] for line in lost(found)] == [
        "cannot read none.env: write its variables under train.env",
        "looks like a secret: export HF_TOKEN; its value is not copied",
    ]
    assert "abc" not in found.text


def test_a_command_keeps_its_words_and_its_variables(desk: Desk) -> None:
    command = """python t.py --a "b c" --e ${E:-3} --h $$HOME"""
    found = desk.imported(compose({"chief": ["c:2222"]}, command=command))
    assert found.config.train.command == "python t.py --a 'b c' --e 3 --h '$HOME'"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("${COMMAND}", "python t.py --layers 64 32"),
        ("python t.py $EXTRA", "python t.py"),
        ("python t.py ${LAYERS} \"${LAYERS}\" '$LAYERS'", "python t.py 64 32 '64 32' '64 32'"),
        (["python", "t.py", "$LAYERS", "$EXTRA"], "python t.py '64 32' ''"),
        ("python t.py --out=$NAME/x", "python t.py --out=m/x"),
        ("python t.py ${NONE:-a 'b c'} ${NAME:-other}", "python t.py a 'b c' m"),
        ("python t.py ${NONE:-${NAME}}", "python t.py m"),
        ("sh -c 'python t.py $LAYERS $$HOME'", "python t.py 64 32 $HOME"),
    ],
)
def test_a_variable_is_split_where_compose_splits_it(
    desk: Desk, command: object, expected: str
) -> None:
    desk.write({".env": "COMMAND=python t.py --layers 64 32\nLAYERS='64 32'\nEXTRA=\nNAME=m\n"})
    found = desk.imported(compose({"chief": ["c:2222"]}, command=command))
    assert found.config.train.command.strip() == expected


def test_the_environment_wins_over_composes_own_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write({".env": "LAYERS=8\nMY_TOKEN=s3cret\n"})
    monkeypatch.setenv("LAYERS", "16 4")
    found = desk.imported(compose({"chief": ["c:2222"]}, command="python t.py $LAYERS $MY_TOKEN"))
    assert found.config.train.command == 'python t.py 16 4 "${MY_TOKEN}"'  # of the node's shell
    assert found.config.secrets == {"MY_TOKEN": "MY_TOKEN"}
    assert "s3cret" not in found.text
    assert "looks like a secret: export MY_TOKEN; its value is not copied" in lost(found)[0]


@pytest.mark.parametrize(
    "service",
    [
        {"runtime": "nvidia"},
        {"gpus": "all"},
        {
            "deploy": {
                "resources": {
                    "reservations": {
                        "devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
                    }
                }
            }
        },
    ],
)
def test_gpus_are_an_accelerator_on_a_cloud(desk: Desk, service: dict[str, object]) -> None:
    source = compose({"chief": ["c:2222"], "worker": ["w:2222"]}, **service)
    found = desk.imported(source, provider="aws")
    assert {str(group.accelerator) for group in found.config.nodes.values()} == {"T4:1"}
    assert "nodes.worker.accelerator" in found.fill_in
    assert "set nodes.chief.accelerator to KIND:1" in lost(desk.imported(source))[0]


def test_what_nodes_do_not_need_is_not_named_and_the_rest_is(desk: Desk) -> None:
    found = desk.imported(
        compose(
            {"chief": ["c:2222"]},
            depends_on=["x"],
            networks=["n"],
            ports=["2222:2222"],
            container_name="c",
            restart="on-failure:2",
            shm_size="1g",
            secrets=["s"],
        )
    )
    assert found.config.train.max_restarts == 2
    assert [line.split(": ")[1] for line in lost(found)] == [
        "services.chief0.secrets",
        "services.chief0.shm_size",
    ]


@pytest.mark.parametrize("host", ["localhost", "c"])
def test_ports_that_differ_and_ports_of_other_programs_are_named(desk: Desk, host: str) -> None:
    cluster = {"worker": [f"{host}:2222", f"{host}:2223"]}
    published = ["2222:2222", "127.0.0.1:8888:8888/tcp", {"target": 6006, "published": 80}]
    found = desk.imported(compose(cluster, ports=published))
    assert tree(found)["train"] == {"command": "python t.py"}
    said = [line.split(": ", 2)[2] for line in lost(found)]
    assert said[0] == "has different ports (2222, 2223): cloudtrain chooses them"
    assert [text.partition(" ")[0] for text in said[1:]] == ["8888", "6006"]


def test_another_build_and_its_arguments_are_named(desk: Desk) -> None:
    whole = yaml.safe_load(compose(TWO, build={"context": ".", "args": {"N": "1"}}))
    whole["services"]["worker1"]["build"] = "./other"
    desk.write({"Dockerfile": "FROM tensorflow/tensorflow:2.11.0\nCOPY . /a\n", "t.py": ""})
    said = [line.split(": ", 1)[1] for line in lost(desk.imported(yaml.safe_dump(whole)))]
    assert said == [
        "services.worker0.build.args.N: not mapped: the Dockerfile's own default is used",
        "services.worker1.build: another folder than services.worker0.build.context:"
        " all nodes have one code",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("not json", "is no JSON"),
        ("[1]", 'has no "task" or no "cluster"'),
        ('{"cluster": {"worker": ["a:1"]}}', 'has no "task"'),
        ('{"cluster": {}, "task": {"type": "worker", "index": "x"}}', '"type" and "index"'),
    ],
)
def test_a_broken_tf_config_is_refused_at_its_line(desk: Desk, text: str, error: str) -> None:
    source = f"services:\n  a:\n    environment:\n      TF_CONFIG: {json.dumps(text)}\n"
    with pytest.raises(ConfigError) as caught:
        desk.imported(source)
    assert str(caught.value).startswith("config.yaml:4: services.a.environment.TF_CONFIG: ")
    assert error in str(caught.value)


def test_services_with_different_clusters_are_refused(desk: Desk) -> None:
    whole = yaml.safe_load(compose(TWO))
    other = tf_config("worker", 1, {"worker": ["a:2222", "z:2222"]})
    whole["services"]["worker1"]["environment"]["TF_CONFIG"] = other
    with pytest.raises(ConfigError, match=r"has another cluster than services\.worker0"):
        desk.imported(yaml.safe_dump(whole, width=1000))


def test_a_compose_file_without_tf_config_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"services: has no service with TF_CONFIG"):
        desk.imported("services: {web: {image: nginx}}\n")
