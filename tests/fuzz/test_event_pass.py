"""The compiled path of events does what the Python code does, on random answers.

Some thousand reads in the usual run, and `FUZZ_SECONDS=600 pytest tests/fuzz` compares for ten minutes. See also
`python -m tests.fuzz.compare`.
"""

from __future__ import annotations

import sys
import time

import pytest

from gateway.proxy import event_pass
from tests.fuzz.compare import compare
from tests.fuzz.test_fuzz import SECONDS

READS = 4000


@pytest.mark.skipif(bool(event_pass.WHY_PURE), reason=event_pass.WHY_PURE)
def test_both_paths_do_the_same() -> None:
    done = compare(sys.maxsize, time.time_ns(), SECONDS) if SECONDS else compare(READS, seed=1)
    assert done.taken > done.reads / 3, "most of what is compared takes the compiled path"
