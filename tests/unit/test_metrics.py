"""Samples of a node: what is read back, and what of a compromised node's is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.core import metrics
from cloudtrain.core.metrics import GpuSample
from cloudtrain.node import sampler

LINE = (
    b'{"time":1700000000.5,"cpu":12.5,"memory":[1000,4000],"gpus":[[91,10,16],[-1,0,16]],'
    b'"network":[5,6],"disk":[7,8]}'
)


def test_a_line_is_a_sample_with_units_as_documented() -> None:
    sample = metrics.parse_sample(LINE)
    assert sample is not None
    assert (sample.time, sample.cpu, sample.memory_used) == (1700000000.5, 12.5, 1000)
    assert sample.gpus[0] == GpuSample(utilization=91.0, memory_used=10, memory_total=16)
    assert sample.gpus[1].utilization is None
    assert (sample.received, sample.sent, sample.disk_read, sample.disk_written) == (5, 6, 7, 8)


def test_what_the_sampler_writes_is_read_back() -> None:
    before = sampler.counters()
    line = sampler.line(before, sampler.counters(), [[3, 1, 2]])
    sample = metrics.parse_sample(line)
    assert sample is not None
    assert sample.memory_total > sample.memory_used > 0
    assert sample.gpus == (GpuSample(utilization=3.0, memory_used=1, memory_total=2),)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        LINE[:-5],
        LINE.replace(b"12.5", b"101"),
        LINE.replace(b"12.5", b"NaN"),
        LINE.replace(b"12.5", b"true"),
        LINE.replace(b"12.5", b'"12.5"'),
        LINE.replace(b"[91,10,16]", b"[91,10]"),
        LINE.replace(b"[91,10,16]", b"7"),
        LINE.replace(b"[5,6]", b"[5,-6]"),
        b"[" * 100_000,
    ],
)
def test_an_impossible_line_is_no_sample(broken: bytes) -> None:
    assert metrics.parse_sample(broken) is None


@given(st.binary() | st.text().map(str.encode))
def test_no_line_of_a_node_ends_the_reader(line: bytes) -> None:
    metrics.parse_sample(line)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=5
)


@given(st.dictionaries(st.sampled_from([*json.loads(LINE), "other"]), JSON))
def test_no_object_of_a_node_ends_the_reader(facts: dict[str, object]) -> None:
    metrics.parse_sample(json.dumps({**json.loads(LINE), **facts}).encode())


def test_the_latest_samples_are_the_whole_ones_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "chief0.1.metrics.jsonl"
    later = LINE.replace(b"1700000000.5", b"1700000002.5")
    file.write_bytes(LINE + b"\n" + later + b"\n" + LINE[:20])
    assert [each.time for each in metrics.latest_samples(file)] == [1700000000.5, 1700000002.5]
    file.write_bytes((LINE + b"\n") * 2000 + later + b"\n")
    latest = metrics.latest_samples(file)
    assert 300 < len(latest) < 600
    assert latest[-1].time == 1700000002.5


def test_without_a_file_there_is_no_sample(tmp_path: Path) -> None:
    assert metrics.latest_samples(tmp_path / "none") == []
    assert metrics.read_samples(tmp_path / "none") == []


def test_samples_get_rarer_as_their_file_grows_so_that_a_week_takes_few_megabytes() -> None:
    size, now, line = 0, 0.0, 160
    while now < 7 * 24 * 3600:
        now += sampler.interval(size)
        size += line
    assert sampler.interval(0) == 2.0
    assert size < 7 << 20
