"""Contract tests that any plugin can be run through: by `gateway plugin check`, and by one line in the plugin's own tests.

```python
async def test_keeps_the_contract() -> None:
    assert broken(await check("office_hours:OfficeHours")) == []
```

Nothing is made up: a real store, a real account with a token, and the installed plugins that provide what is required.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gateway.config import schema
from gateway.contract.declared import declared
from gateway.contract.finding import Finding
from gateway.contract.trial import Trial
from gateway.loading import plugin_class
from gateway.testing import services

__all__ = ["Finding", "broken", "check"]

CONFIGURATION: Final = """
channels: {check: {base_url: "http://127.0.0.1:9/v1"}}
models: {m: {input: 1, output: 2, max_output_tokens: 100, channels: [check]}}
groups: {default: {}}
"""


async def check(
    use: str,
    settings: Mapping[str, object] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    url: str | None = None,
) -> list[Finding]:
    """Every promise that a plugin makes by being one, and whether it keeps it. A second or less.

    `use` and `settings` are what stands in the YAML. `headers` go with every request, beside the token of an account.
    The store is the one at `url`, an empty one, or one started for the hook.
    Raises `ValueError` where `use` names no plugin, and `Misconfigured` where the settings do not fit it.
    """
    kind = plugin_class(use)
    findings = list(declared(kind))
    if broken(finding for finding in findings if finding.check in ("hooks", "facts")):
        return findings
    with TemporaryDirectory() as folder:
        (Path(folder) / "gateway.yaml").write_text(CONFIGURATION)
        loaded = schema.load(Path(folder) / "gateway.yaml", {})
        async with services(Path(folder), url, loaded.config) as given:
            await given.store.accounts.create("check")
            await given.store.wallet.credit("check", "opening", 1_000_000_000)
            token = (await given.store.tokens.create("check")).token
            sent = {
                "authorization": f"Bearer {token}",
                **{name.lower(): text for name, text in (headers or {}).items()},
            }
            return findings + await Trial(kind, settings or {}, given, sent).run()


def broken(findings: Iterable[Finding]) -> list[str]:
    """What did not pass, a line each."""
    return [f"{finding.check}: {finding.text}" for finding in findings if not finding.passed]
