"""The compiled modules do what the same Python code does, on random answers.

Some thousand reads in the usual run, and `FUZZ_SECONDS=600 pytest tests/fuzz` compares for ten minutes. See also
`python -m tests.fuzz.compare`.
"""

from __future__ import annotations

import sys
import time

import pytest

from gateway.base.compiled import WHY_PURE
from tests.fuzz.compare import compare
from tests.fuzz.test_fuzz import SECONDS

READS = 4000


@pytest.mark.skipif(bool(WHY_PURE), reason=WHY_PURE)
def test_both_do_the_same() -> None:
    compared, _ = compare(sys.maxsize, time.time_ns(), SECONDS) if SECONDS else compare(READS, seed=1)
    assert compared >= (0 if SECONDS else READS)
