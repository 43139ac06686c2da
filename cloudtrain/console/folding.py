"""Recognises the lines that TensorFlow's C++ runtime logs about itself, which a terminal hides."""

from __future__ import annotations

import re

_OWN_LOG = re.compile(
    r"WARNING: All log messages before absl::InitializeLog\(\)"
    r"|I\d{4} \d\d:\d\d:\S+ +\d+ [\w./-]+\.(?:cc|cu|h):\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (?:tensorflow|external|third_party|xla)/"
    r"|To enable the following instructions: .* rebuild TensorFlow"
    r"|\S+ .*\.cc:\d+\] Unable to register cu(?:DNN|FFT|BLAS) factory: "
    r"|\S+ .*\.cc:\d+\] computation placer already registered"
    r"|\S+ .*dataset\.cc:\d+\] Input of \S+ will not be optimized because the dataset does not "
    r"|/job:\w+/replica:\d+/task:\d+\s*$"
)
"""Information by the two loggers of TensorFlow (tsl/platform/default/logging.cc in 1.15 to 2.17,
absl's log_format.cc since; read), the three messages of every start that are no fault
(https://github.com/tensorflow/tensorflow/issues/62075), and that a dataset made in Python is not
optimized (framework/dataset.cc; read). The coordination service lists tasks on lines of their own,
below one of those (seen with 2.21). Python's loggers name a .py file."""


def is_own_log(line: str) -> bool:
    """True for a line about TensorFlow's start, never for a warning or an error of a run."""
    return _OWN_LOG.match(line) is not None
