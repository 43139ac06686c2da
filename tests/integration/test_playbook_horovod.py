"""The horovod playbook: what is refused, what the build is told, and what a crash leaves.

pip is a stand-in here: the real one, on Horovod's source, is in test_horovod.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.core.errors import StepFailed
from cloudtrain.core.model import ClusterConfig
from cloudtrain.playbooks import horovod, nvidia, tensorflow
from cloudtrain.playbooks.apply import apply
from tests.support.horovod_parts import config
from tests.support.nodes_here import HereTransport, Remembered, node

# ── on a node ────────────────────────────────────────────────────────────────

PIP = """\
#!/bin/sh
# The environment's Python, as far as the build uses it.
case "$*" in
    "-I -c"*) echo tf2.15.1-cp311;;
    *" wheel "*)
        echo "$*" >>"$LOG"
        env | grep -E '^(HOROVOD|MAKEFLAGS|CMAKE)' | sort >>"$LOG"
        while [ "$1" != -w ]; do shift; done
        mkdir -p "$2"
        touch "$2/horovod-0.28.1-half"
        [ ! -e "$LOG.fails" ] || { rm "$LOG.fails"; echo "c++: killed" >&2; exit 1; }
        mv "$2/horovod-0.28.1-half" "$2/horovod-0.28.1-cp311.whl";;
    *" install "*) shift 2; echo "$*" >>"$LOG";;
esac
"""

HOROVODRUN = """\
#!/bin/sh
printf '    [X] TensorFlow\\n    [ ] PyTorch\\n    [X] Gloo\\n'
[ -e "$(dirname "$LOG")/without-nccl" ] || printf '    [X] NCCL\\n'
"""


class Rig:
    """A node whose pip tells what it was told, and builds in no time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.tools = folder / "tools"
        self.tools.mkdir()
        for tool in ("g++", "make", "cmake"):
            self.tool(tool, "exit 0")
        found = "sh env grep sort touch mkdir mv cat sed rm dirname nproc awk flock ls tail test"
        for name in found.split():
            (self.tools / name).symlink_to(Path("/usr/bin") / name)

    def tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.tools / name).chmod(0o755)

    def up(self, wanted: ClusterConfig) -> list[str]:
        """The playbook, on an environment that was just made; what was done, or was there."""
        home = self.folder / "homes" / node().name
        folder = tensorflow.bin_folder(wanted, node())
        assert folder is not None
        (home / folder).mkdir(parents=True, exist_ok=True)
        for name, text in (("python", PIP), ("horovodrun", HOROVODRUN)):
            (home / folder / name).write_text(text)
            (home / folder / name).chmod(0o755)
        stage = Remembered()
        environ = {"PATH": str(self.tools), "LOG": str(self.log)}
        transport = HereTransport(self.folder / "homes", environ)
        apply(lambda one: horovod.steps(wanted, one), [node()], transport, stage)
        return [text for _, text in stage.lines]

    @property
    def told(self) -> list[str]:
        return self.log.read_text().splitlines()

    @property
    def wheels(self) -> list[str]:
        place = self.folder / "homes" / node().name / node().cache / "wheels"
        return sorted(str(path.relative_to(place)) for path in place.glob("*/*"))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def local(gpus: int = 0, **setup: Any) -> ClusterConfig:
    """No apt: the tools of a machine that is not ours are looked for alone."""
    return config(provider="hosts", gpus=gpus, **setup)


def test_it_is_built_for_tensorflow_and_gloo_alone_where_there_is_no_mpi(rig: Rig) -> None:
    rig.up(local())
    pip, *built, installed = rig.told
    assert "--no-cache-dir" in pip  # it may hold a wheel for another TensorFlow
    assert [line for line in built if not line.startswith("MAKEFLAGS=-j")] == [
        "CMAKE_POLICY_VERSION_MINIMUM=3.5",
        "HOROVOD_WITHOUT_MPI=1",
        "HOROVOD_WITHOUT_MXNET=1",
        "HOROVOD_WITHOUT_PYTORCH=1",
        "HOROVOD_WITH_GLOO=1",
        "HOROVOD_WITH_TENSORFLOW=1",
    ]
    assert rig.wheels == ["horovod-0.28.1-tf2.15.1-cp311/horovod-0.28.1-cp311.whl"]
    assert installed.split()[-1] == f".cache/cloudtrain/wheels/{rig.wheels[0]}"


def test_the_mpi_that_is_there_is_built_in_and_another_mpi_is_another_wheel(rig: Rig) -> None:
    rig.tool("mpicxx", "exit 0")
    rig.tool("mpirun", "echo 'mpirun (Open MPI) 4.1.4'; echo more")
    rig.up(local())
    assert "HOROVOD_WITH_MPI=1" in rig.told
    assert "HOROVOD_WITHOUT_MPI=1" not in rig.told
    assert rig.wheels == ["horovod-0.28.1-tf2.15.1-cp311-mpi4.1.4/horovod-0.28.1-cp311.whl"]


def test_gpus_talk_over_nccl_where_the_node_has_cudas_compiler_and_nccl(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = rig.folder / "machine"
    monkeypatch.setattr(nvidia, "ROOT", str(root))
    for folder, release in (("cuda", "13.0"), ("cuda-12.9", "12.9")):
        compiler = root / f"usr/local/{folder}/bin/nvcc"
        compiler.parent.mkdir(parents=True)
        compiler.write_text(f"#!/bin/sh\necho 'Cuda tools, release {release}, V{release}.1'\n")
        compiler.chmod(0o755)
    rig.up(local(gpus=2))
    assert not [line for line in rig.told if "NCCL" in line]

    header = root / "usr/local/nccl2/include/nccl.h"
    header.parent.mkdir(parents=True)
    header.touch()
    rig.log.unlink()
    rig.up(local(gpus=2, packages=("six",)))
    assert [
        line for line in rig.told if line.startswith(("HOROVOD_GPU", "HOROVOD_CUDA", "HOROVOD_NC"))
    ] == [
        f"HOROVOD_CUDA_HOME={root}/usr/local/cuda-12.9",  # TensorFlow 2.15 has 12.2
        "HOROVOD_GPU_OPERATIONS=NCCL",
        f"HOROVOD_NCCL_HOME={root}/usr/local/nccl2",
    ]
    assert {Path(wheel).parent.name for wheel in rig.wheels} == {
        "horovod-0.28.1-tf2.15.1-cp311",
        "horovod-0.28.1-tf2.15.1-cp311-nccl-cuda12",
    }
    (rig.folder / "without-nccl").touch()
    with pytest.raises(StepFailed, match="this Horovod is built without NCCL"):
        rig.up(local(gpus=2, packages=("attrs",)))


def test_the_second_time_nothing_is_done(rig: Rig) -> None:
    rig.up(local())
    rig.log.unlink()
    assert rig.up(local()) == []
    assert not rig.log.exists()


def test_another_environment_takes_the_wheel_that_is_there(rig: Rig) -> None:
    rig.up(local())
    rig.log.unlink()
    (rig.tools / "g++").unlink()
    rig.up(local(packages=("six",)))
    (installed,) = rig.told
    assert installed.split()[-1] == f".cache/cloudtrain/wheels/{rig.wheels[0]}"


def test_a_build_that_was_cut_off_is_made_again_from_nothing(rig: Rig) -> None:
    rig.log.with_name("log.fails").touch()
    with pytest.raises(StepFailed, match=r"c\+\+: killed"):
        rig.up(local())
    rig.up(local())
    assert rig.wheels == ["horovod-0.28.1-tf2.15.1-cp311/horovod-0.28.1-cp311.whl"]


def test_a_machine_without_a_compiler_is_told_what_to_install(rig: Rig) -> None:
    (rig.tools / "g++").unlink()
    (rig.tools / "cmake").unlink()
    with pytest.raises(StepFailed) as caught:
        rig.up(local())
    assert "the node lacks g++ cmake" in str(caught.value)
    assert caught.value.hint == "install it there: sudo apt-get install g++ make cmake"
