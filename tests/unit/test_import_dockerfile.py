"""What a Dockerfile copies, sets and installs is in the config, or named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.import_parts import Desk, lost, tree

JOB = """kind: TFJob
metadata: {name: job}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: tensorflow, image: me/job:1%s}]}}
"""
FROM = "FROM tensorflow/tensorflow:2.12.0\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def placed(desk: Desk, dockerfile: str, *files: str, job: str = "") -> tuple[str, str, str, str]:
    """code.path, train.dir, PYTHONPATH and the command."""
    desk.write({"Dockerfile": dockerfile, **dict.fromkeys(files, "")})
    found = desk.imported(JOB % job)
    train = found.config.train
    path = tree(found)["code"]["path"]  # type: ignore[index]
    return path, train.dir, train.env.get("PYTHONPATH", ""), train.command


def named(desk: Desk) -> list[str]:
    """What was not mapped of the Dockerfile: line and text."""
    said = [line.partition("/Dockerfile:") for line in lost(desk.imported(JOB % ""))]
    return [after for _, found, after in said if found]


def test_a_package_keeps_its_name(desk: Desk) -> None:
    found = placed(
        desk,
        f"{FROM}WORKDIR /root\nCOPY multi-worker/trainer/ trainer/\n"
        'ENTRYPOINT ["python", "-m", "trainer.task"]\n',
        "multi-worker/trainer/task.py",
        "multi-worker/trainer/__init__.py",
        "other/x.py",
    )
    assert found == ("multi-worker", ".", "", "python -m trainer.task")
    assert named(desk) == []


def test_a_module_from_elsewhere_is_imported_from_where_it_is(desk: Desk) -> None:
    found = placed(
        desk,
        f"{FROM}WORKDIR /app\nCOPY official/mnist/train.py .\n"
        "ADD official/utils/mnist_utils.py ./\nADD common /app/common\nCMD python train.py\n",
        "official/mnist/train.py",
        "official/utils/mnist_utils.py",
        "common/__init__.py",
        "big/data.bin",
    )
    assert found == (".", "official/mnist", "../utils:../..", "python train.py")
    assert named(desk) == []


def test_requirements_that_are_copied_first_are_those_of_the_code(desk: Desk) -> None:
    docker = (
        f"{FROM}WORKDIR /app\nCOPY requirements.txt /tmp/req.txt\n"
        "RUN pip install --no-cache-dir -r /tmp/req.txt\nCOPY src/ .\n"
        'CMD ["python", "/app/t.py"]\n'
    )
    desk.write({"requirements.txt": "numpy\n"})
    desk.write({"Dockerfile": docker, "src/t.py": ""})
    found = desk.imported(JOB % "")
    assert tree(found)["code"] == {"path": "src"}
    assert tree(found)["setup"]["requirements"] == "requirements.txt"  # type: ignore[index]
    assert found.config.train.command == "python t.py"
    assert named(desk) == []


def test_a_program_outside_the_working_folder_starts_in_its_own(desk: Desk) -> None:
    found = placed(
        desk,
        f"{FROM}ADD . /var/tf_mnist\n"
        'ENTRYPOINT ["python", "/var/tf_mnist/mnist.py", "--data=/var/tf_mnist/digits"]\n',
        "mnist.py",
        "digits/0.png",
    )
    assert found == (".", ".", "", "python mnist.py --data=digits")


def test_a_program_in_a_folder_of_another_name_is_found_there(desk: Desk) -> None:
    docker = f"{FROM}WORKDIR /app\nCOPY code /app/src\nCMD python src/t.py --x src/t.txt\n"
    assert placed(desk, docker, "code/t.py") == ("code", ".", "", "python t.py --x src/t.txt")
    docker = docker.replace("CMD python src/t.py --x src/t.txt", 'CMD ["python", "src/t.py"]')
    assert placed(desk, docker, "code/t.py") == ("code", ".", "", "python t.py")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("COPY data.csv /data/digits.csv", "data.csv as /data/digits.csv: put it there in"),
        ("COPY t.py /srv/t.py", "t.py as /srv/t.py: the code has it as t.py"),
        ("COPY missing.py .", "missing.py is not in "),
        ("ADD https://host/digits.npz /data/", "https://host/digits.npz is not mapped: bring it"),
        ("ADD data.tar.gz /data/", "data.tar.gz is not unpacked: deliver its content"),
        ("COPY --from=build /out /app/out", "it comes from another stage or image"),
    ],
)
def test_a_copy_that_no_folder_reproduces_is_named(desk: Desk, line: str, said: str) -> None:
    desk.write({"data.csv": "", "data.tar.gz": "", "code/t.py": ""})
    source = line.replace("COPY t.py", "COPY code/t.py")
    desk.write({"Dockerfile": f"{FROM}WORKDIR /app\nCOPY code .\n{source}\nCMD python t.py\n"})
    found = desk.imported(JOB % "")
    assert tree(found)["code"] == {"path": "code"}
    assert len(named(desk)) == 1
    assert named(desk)[0].startswith("4: ")
    assert said.replace("t.py as", "code/t.py as") in named(desk)[0]


def test_only_the_last_stage_runs(desk: Desk) -> None:
    found = placed(
        desk,
        f"{FROM.strip()} AS base\nWORKDIR /app\nENV A=1\n"
        "FROM golang:1.20 AS tool\nWORKDIR /go\nCOPY tool.go .\nENV B=2\n"
        "FROM base\nCOPY src/*.py ./\nCMD python a.py\n",
        "src/a.py",
        "src/b.py",
        "tool.go",
    )
    assert found == ("src", ".", "", "python a.py")
    assert desk.imported(JOB % "").config.train.env == {"A": "1"}


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        ("ENV PATH=/opt/tool/bin:${PATH}", 'export PATH=/opt/tool/bin:"$PATH" && python t.py'),
        ("ENV PATH /app/bin:$PATH", 'export PATH="$PWD"/bin:"$PATH" && python t.py'),
        ('ENV PATH=/a:$PATH\nENV PATH="$PATH:/b c"',
         "export PATH=/a:\"$PATH\":'/b c' && python t.py"),
        ("ARG D=/x\nENV LD_LIBRARY_PATH=$D/lib:$LD_LIBRARY_PATH",
         'export LD_LIBRARY_PATH=/x/lib:"$LD_LIBRARY_PATH" && python t.py'),
        ("ENV PYTHONPATH=/app/lib:$PYTHONPATH", "python t.py"),
        ("ENV PATH=/opt/bin", "python t.py"),
    ],
)  # fmt: skip
def test_a_variable_that_extends_the_nodes_own_is_exported(
    desk: Desk, lines: str, command: str
) -> None:
    desk.write({"t.py": "", "bin/x": "", "lib/m.py": ""})
    desk.write({"Dockerfile": f"{FROM}WORKDIR /app\nCOPY . .\n{lines}\nCMD python t.py\n"})
    found = desk.imported(JOB % "")
    assert found.config.train.command == command
    assert not {"PATH", "LD_LIBRARY_PATH"} & set(found.config.train.env)
    assert found.config.train.env.get("PYTHONPATH") == ("lib" if "PYTHONPATH" in lines else None)
    assert bool(named(desk)) == lines.endswith("=/opt/bin")


def test_variables_of_the_file_are_filled_in_and_those_of_the_image_named(desk: Desk) -> None:
    desk.write(
        {
            "t.py": "",
            "Dockerfile": "ARG TF=2.11.0\nFROM tensorflow/tensorflow:${TF}\nARG N=3\nWORKDIR /app\n"
            "ENV HOME_DIR=$NOT_KNOWN/x EPOCHS=${N} DATA=/app/digits\nENV API_KEY=s3cret\n"
            "COPY . .\nRUN apt-get install -y libfoo${N}; pip install 'a==1;python_version<\"4\"'\n"
            "CMD python t.py\n",
            "digits/x": "",
        }
    )
    found = desk.imported(JOB % "")
    assert found.config.setup.tensorflow == "2.11.0"
    assert found.config.train.env == {"EPOCHS": "3", "DATA": "digits"}
    assert found.config.setup.run == ("sudo apt-get install -y libfoo3",)
    assert found.config.setup.packages == ('a==1;python_version<"4"',)
    assert "s3cret" not in found.text
    assert [line.split(": ", 2)[2] for line in named(desk)] == [
        "$NOT_KNOWN in it is the image's own: write HOME_DIR under train.env",
        "looks like a secret: export API_KEY; its value is not copied",
    ]


@pytest.mark.parametrize(
    "image", ["python:3.11", "python:3.11.4-slim", "docker.io/library/python:3.11"]
)
def test_an_image_of_python_is_its_version(desk: Desk, image: str) -> None:
    docker = f"FROM {image}\nCOPY . /a\nRUN pip install tensorflow==2.15.0\nWORKDIR /a\n"
    desk.write({"t.py": "", "Dockerfile": f"{docker}CMD python t.py\n"})
    found = desk.imported(JOB % "")
    assert (found.config.setup.python, found.config.setup.tensorflow) == ("3.11", "2.15.0")
    assert named(desk) == []
