"""Contract tests for any plugin: run by `gateway plugin check`, or by one line in the plugin's own tests.

There are no mocks: the store is real, the request carries the token of a real account, and the facts that the plugin
requires come from installed plugins. Imports `testing` and what lies below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gateway.chain.loading import plugin_class
from gateway.config import schema
from gateway.plugin_kit.checks import PluginTrial
from gateway.plugin_kit.declared import declared
from gateway.plugin_kit.finding import MODEL, Finding
from gateway.testing import services

__all__ = ["Finding", "broken", "check"]

CONFIGURATION: Final = f"""
channels: {{check: {{base_url: "http://127.0.0.1:9/v1"}}}}
models: {{m: {{input: 1, output: 2, max_output_tokens: 100, channels: [{{use: check, model: {MODEL}}}]}}}}
groups: {{default: {{}}}}
store: {{timeout: 10}}  # a busy machine is no mistake of the plugin
"""


async def check(
    use: str,
    settings: Mapping[str, object] | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
    url: str | None = None,
) -> list[Finding]:
    """Return a finding for each promise that a plugin makes. Takes a second or less.

    The test of a plugin needs one line: `assert broken(await check("office_hours:OfficeHours")) == []`.

    `use` and `settings` are what the YAML has under `use:` and `with:`. `headers` are sent with every request, in addition to the
    token of an account, and `body` has fields of its body. The store is the one at `url`, which must be empty, or else one that is
    started for this call. Raises `ValueError` if `use` names no plugin, and `Misconfigured` if it does not accept the settings.
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
            return findings + await PluginTrial(kind, settings or {}, given, sent, body or {}).run()


def broken(findings: Iterable[Finding]) -> list[str]:
    """Return one line for each finding that did not pass."""
    return [f"{finding.check}: {finding.text}" for finding in findings if not finding.passed]
