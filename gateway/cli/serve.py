"""Processes and their folder: `serve`, `init` and `fake-upstream`."""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.base.errors import Misconfigured, cannot_listen
from gateway.cli.common import ConfigOption, JsonOption, found, print_fields, print_json, print_table, store_of
from gateway.config.document import named
from gateway.config.schema import Config, load
from gateway.runtime.data_folder import has_store, make_data_folder
from gateway.store.pepper import ensure

DEFAULT_THRESHOLDS: Final = (700, 10, 10)
"""Of Python's garbage collector."""


def serve(
    config: ConfigOption = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="Number of worker processes; the default is `workers:` of the file."),
    ] = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C.

    Example: `gateway serve --config config/demo.yaml`
    """
    import gc

    from gateway.serve.serve import serve as run

    gc.set_threshold(*DEFAULT_THRESHOLDS)
    run(found(config), workers)


FILES: Final = {
    "pepper": "what tokens are checked with: keep a copy, without it every token is void",
    "store.lock": "the embedded store",
    "admin.token": "the token of the admin port",
    "alerts.secret": "what alerts are signed with",
}


def init(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Make the data folder, the pepper, the admin token and an empty store. What is there stays as it is.

    `gateway serve` makes the same at its first start; all other commands make none. Run it as the user that the gateway runs as.

    Example: `gateway init --config /etc/sluicegate/gateway.yaml`
    """
    path = named(config)
    if path is None:
        raise Misconfigured(
            "there is no gateway.yaml here: write one, or pass --config; to try the demo: gateway serve --config config/demo.yaml"
        )
    settings = load(path).config
    folder = settings.data_path
    before = _present(folder)
    was_there = folder.is_dir()
    make_data_folder(folder)
    _make_files(settings)
    asyncio.run(_make_store(settings))
    made = [] if was_there else [str(folder)]
    made += [str(folder / name) for name in _present(folder) if name not in before]
    result: dict[str, Any] = {"config": str(path), "data": str(folder), "made": made}
    result["present"] = [str(folder / name) for name in before]
    if as_json:
        print_json(result)
    else:
        _print(path, folder, made, result["present"])


def _present(folder: Path) -> list[str]:
    return [name for name in FILES if (folder / name).exists()]


def _make_files(settings: Config) -> None:
    from gateway.admin.actions.links import token_of
    from gateway.alerts.signature import secrets_of

    if settings.admin is not None:
        token_of(settings)
    if settings.alerts is not None:
        secrets_of(settings)
    if not has_store(settings):
        (settings.data_path / "store.lock").touch(mode=0o600)


async def _make_store(settings: Config) -> None:
    async with store_of(settings) as store:
        await ensure(store.client, settings.data_path)
        await store.tokens.check_pepper()


def _print(path: Path, folder: Path, made: list[str], present: list[str]) -> None:
    if made:
        print_fields({f"made {each}": FILES.get(Path(each).name, "the data folder") for each in made})
    if present:
        print_fields({f"there was {each}": FILES[Path(each).name] for each in present})
    if made and os.geteuid() == 0:
        typer.echo(f"\nAll of it belongs to root. For a gateway that runs as another user: chown -R USER {folder}")
    file = shlex.quote(str(path))
    typer.echo(
        f"\nNext:\n  gateway check --config {file}\n  gateway serve --config {file}\n"
        f"  gateway account create alice --credit 5.00 --config {file}\n  gateway token create alice --config {file}"
    )


def fake_upstream(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for any free one.")] = 8089,
    mode: Annotated[str, typer.Option(help="How to answer, or to misbehave; `--modes` lists the modes.")] = "words",
    pace: Annotated[float, typer.Option(min=0, help="Seconds before each event.")] = 0.04,
    modes: Annotated[bool, typer.Option("--modes", help="List the modes and exit.")] = False,
) -> None:
    """Run an OpenAI-compatible upstream that can misbehave on purpose, until Ctrl-C.

    Example: `gateway fake-upstream --port 8089 --mode stall`
    """
    from gateway.fake_upstream import MODES, FakeUpstream

    if modes:
        print_table(("mode", "what it does"), MODES.items(), empty="")
        return
    if mode not in MODES:
        raise typer.BadParameter(f"there is no mode `{mode}`; `--modes` lists them", param_hint="--mode")

    async def serve() -> None:
        try:
            async with FakeUpstream(host=host, port=port, mode=mode, pace_s=pace) as upstream:
                typer.echo(f"{mode}: {upstream.base_url}")
                await asyncio.Event().wait()
        except OSError as error:
            raise Misconfigured(f"{cannot_listen(f'{host}:{port}', error)}; change --port") from None

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
