"""The worker of `tests.bench.phases`: a quiet worker whose functions are seen by the hook in the folder `PHASES`.

From SIGUSR2 on its timers are slow and the hook is there; from SIGWINCH on the phases are written down.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tests.bench import quiet_worker

FOLDER = Path(os.environ["PHASES"])
sys.path.insert(0, str(FOLDER))
import phases  # type: ignore[import-not-found] # noqa: E402

slow_down = quiet_worker.slow_down


def begin(*_: object) -> None:
    slow_down()
    phases.use(*json.loads((FOLDER / "phases.json").read_text()))


if __name__ == "__main__":
    signal.signal(signal.SIGWINCH, lambda *_: phases.arm())
    quiet_worker.slow_down = begin
    quiet_worker.main()
