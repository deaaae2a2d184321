"""The documents agree with the code: examples run, files exist, every command, error code and public name is there."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main

import gateway
import gateway.testing
from gateway.base.errors import Misconfigured
from gateway.chain import loading
from gateway.chain.checks import exposure_of
from gateway.chat.request import Body
from gateway.cli.commands import program
from gateway.config import schema
from tests import reference
from tests.test_architecture import layer_of, package_of

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "gateway/request.svg"
GUIDES = tuple(f"gateway/docs/{path.name}" for path in sorted((ROOT / "gateway/docs").glob("*.md")))
BOOKS = {
    folder: tuple(
        f"{folder}/{path.name}" for path in sorted((ROOT / folder).glob("*.md")) if path.name != "REFERENCE.md"
    )
    for folder in ("deploy", "plugins")
}
"""The guides of operators and authors, by their folders."""
PAGES = ("README.md", *GUIDES, "gateway/README.md", *BOOKS["deploy"], *BOOKS["plugins"])
DOCUMENTS = (*PAGES, "tests/bench/README.md", "tests/bench/PROFILE.md")
MOST_WORDS = 22
"""Of a page's sentences, in the mean."""
CORE_ALONE = {
    *("answer_tier", "answer_usage", "calls", "charged", "check_body", "drop_body"),
    *("drop_values", "hooks", "kept", "notes", "on_stop"),
    *("request_id", "serve_by", "settle_pending", "stopped", "texts"),
}
"""Of an exchange, what plugins have no use for."""


def text_of(document: str) -> str:
    """Return the text of a document, or of all pages of a folder."""
    return "\n".join((ROOT / file).read_text() for file in BOOKS.get(document, (document,)))


def blocks(document: str, language: str) -> list[str]:
    """Return the fenced blocks of a language in a document, or in all pages of a folder."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(document), flags=re.DOTALL)


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence: a row, a heading and a block is none, an item of a list is one of its own."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "#", "<")))
    text = re.sub(r"\n\s*(?:[-*]|\d+\.) |\n\s*\n", ". ", text)
    return [words for each in re.split(r"(?<=[.!?])\s+", text) if len(words := re.findall(r"\S*[A-Za-z]\S*", each)) > 1]


def named(file: str) -> dict[str, str]:
    """Return the Python blocks by the file name in the comment that they begin with."""
    return {block.partition("\n")[0].removeprefix("# "): block for block in blocks(file, "python")}


def pictured() -> list[str]:
    """Return the packages and modules that the picture names, from top to bottom and left to right."""
    return re.findall(r'<tspan class="m"[^>]*>(\w+)</tspan>', PICTURE.read_text())


def test_the_picture_names_packages_that_exist_in_the_order_of_the_imports() -> None:
    names = pictured()
    for name in names:
        assert (ROOT / "gateway" / name / "__init__.py").exists() or (ROOT / f"gateway/{name}.py").exists(), name
    layers = [layer_of(package_of(f"gateway.{name}")) for name in names]
    assert layers == sorted(layers, reverse=True)


def test_every_package_that_a_request_passes_is_in_the_picture() -> None:
    modules = ", ".join(f"plugins.{file.stem}" for file in (ROOT / "plugins").glob("[a-z]*.py"))
    code = f"import sys, gateway.server.gateway, {modules}; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    imported = {name.split(".")[1] for name in run.stdout.split() if name.startswith("gateway.")}
    passed = {name for name in imported if (ROOT / "gateway" / name).is_dir()} | {"chain"}
    assert {"server", "proxy", "store", "usage"} <= passed
    assert passed - set(pictured()) == set()


def test_the_picture_is_small_and_has_the_shipped_plugins_in_their_order() -> None:
    text = PICTURE.read_text()
    assert len(text.encode()) <= 6 * 1024
    chain = [entry.label for entry in schema.load(ROOT / "config/demo.yaml").config.plugins]
    assert re.findall(r'<text class="p"[^>]*>([\w-]+)</text>', text) == chain
    assert 'src="gateway/request.svg"' in (ROOT / "README.md").read_text()


def test_the_way_without_make_is_what_make_does() -> None:
    installed = (ROOT / "deploy/install.sh").read_text().partition("serve)\n")[2].partition(";;")[0]
    pip = " && ".join(
        re.sub("^run_pip ", ".venv/bin/pip install ", line.strip()) for line in installed.strip().splitlines()
    )
    (served,) = re.findall(r"^\t\$\(BIN\)/(gateway serve .*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    (shown,) = [block for block in blocks("README.md", "sh") if "python3 -m venv" in block]
    assert shown.splitlines() == ["python3 -m venv .venv", pip, f".venv/bin/{served}"]


@pytest.mark.parametrize("file", DOCUMENTS)
def test_every_file_that_a_document_names_exists(file: str) -> None:
    text = (ROOT / file).read_text()
    folders = "gateway|plugins|config|deploy|docs|tests"
    paths = set(re.findall(rf"(?<![\w./-])(?:{folders})/[\w./-]*\w", text))
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [link for link in sorted(links) if not ((ROOT / file).parent / link).exists()] == []
    modules = set(re.findall(r"python -m (tests[\w.]+)", text))
    assert [name for name in modules if find_spec(name) is None] == []


def test_the_way_of_a_request_names_files_and_packages_that_exist() -> None:
    text = (ROOT / "gateway/README.md").read_text()
    files = re.findall(r"`([a-z_]+/[a-z_/]+\.(?:py|lua))`", text)
    assert len(files) > 20
    assert [file for file in files if not (ROOT / "gateway" / file).exists() and not (ROOT / file).exists()] == []
    table = text.partition("## The packages")[2].partition("## Ten")[0]
    named = {
        name for row in re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert named == {path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py")}
    assert len(text.splitlines()) <= 80


def anchors(file: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_of_a_document_leads_to_a_file_and_a_heading(document: str) -> None:
    for name, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text_of(document)):
        file = (ROOT / document).parent / name if name else ROOT / document
        assert file.exists(), name
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), f"{name}#{anchor}"


@pytest.mark.parametrize("document", PAGES)
def test_a_page_is_short_and_so_are_its_sentences(document: str) -> None:
    text = text_of(document)
    assert len(text.splitlines()) <= (150 if document == "README.md" else 200)
    lengths = list(map(len, sentences(text)))
    assert sum(lengths) <= MOST_WORDS * len(lengths), f"{sum(lengths) / len(lengths):.1f} words in the mean"


def test_the_example_plugins_and_their_tests_run(tmp_path: Path) -> None:
    for name, text in named("plugins").items():
        (tmp_path / name).write_text(text)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "asyncio_mode=auto",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert "22 passed" in run.stdout, run.stdout + run.stderr


def with_chain(tmp_path: Path, chain: str) -> schema.Loaded:
    (tmp_path / "office_hours.py").write_text(named("plugins")["office_hours.py"])
    file = tmp_path / "gateway.yaml"
    file.write_text(chain)
    return schema.load(file)


def test_the_example_chain_is_accepted(tmp_path: Path) -> None:
    (chain,) = blocks("plugins", "yaml")
    built = loading.build(with_chain(tmp_path, chain))
    hours = built.entries[2].plugin
    assert (hours.opens, hours.closes) == (9, 17)  # type: ignore[attr-defined]


def test_the_example_above_auth_is_refused_with_the_documented_cure(tmp_path: Path) -> None:
    (chain,) = blocks("plugins", "yaml")
    lines = chain.replace("  - use: auth\n", "").replace(
        "  - use: rate-limit\n", "  - use: auth\n  - use: rate-limit\n"
    )
    with pytest.raises(Misconfigured) as refused:
        loading.build(with_chain(tmp_path, lines))
    cure = str(refused.value).partition("plugins[1]: ")[2]
    assert cure
    assert cure in text_of("plugins")


def test_the_line_about_the_lowest_balance_is_what_the_demo_prints() -> None:
    loaded = schema.load(ROOT / "config/demo.yaml")
    printed = str(exposure_of(loaded.config, loading.build(loaded)))
    assert printed in text_of("deploy")


def test_the_export_as_csv_names_fields_of_a_record() -> None:
    (command,) = re.findall(r"gateway usage export .*?'\[(.*?)\]", text_of("deploy"))
    assert {field.strip(" .") for field in command.split(",")} <= set(gateway.Record.__struct_fields__)


def codes(tree: ast.AST) -> set[str]:
    """Return the second arguments of all calls of `Refused` and of the helper that makes a 502."""
    place = {"Refused": 1, "failed": 1}
    return {
        argument.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in place
        for argument in call.args[1:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_the_first_page_of_a_guide_leads_to_all_others() -> None:
    assert [file for file in GUIDES if f"({file})" not in text_of("README.md")] == []
    for folder, files in BOOKS.items():
        index = (ROOT / folder / "README.md").read_text()
        assert [file for file in files if not file.endswith("README.md") and f"({Path(file).name})" not in index] == []


def test_every_error_code_is_in_the_guide_for_callers() -> None:
    sources = [*(ROOT / "gateway").rglob("*.py"), *(ROOT / "plugins").glob("*.py")]
    found = set().union(*(codes(ast.parse(source.read_text())) for source in sources))
    assert {"token_missing", "model_not_found", "upstream_unreachable", "service_unavailable"} <= found
    text = (ROOT / "gateway/docs/callers.md").read_text()
    assert sorted(code for code in found if f"`{code}`" not in text) == []


def test_every_error_code_is_met_by_a_test() -> None:
    pages = ROOT / "gateway/admin/pages"  # whose errors are pages, without a code
    sources = [each for each in (ROOT / "gateway").rglob("*.py") if not each.is_relative_to(pages)]
    found = set().union(
        *(codes(ast.parse(source.read_text())) for source in [*sources, *(ROOT / "plugins").glob("*.py")])
    )
    tests = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(code for code in found if f'"{code}"' not in tests) == []


def test_every_command_and_subcommand_is_in_the_guide() -> None:
    text = (ROOT / "gateway/docs/commands.md").read_text()
    command = typer.main.get_command(program())
    for name, noun in command.commands.items():  # type: ignore[attr-defined]
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `gateway {name}`")]
        assert [verb for verb in getattr(noun, "commands", ()) if verb not in row] == []


@pytest.mark.parametrize("file", ["README.md", "gateway/docs/money.md", "plugins", "deploy"])
def test_the_commands_in_a_document_exist_with_their_options(file: str) -> None:
    text = "\n".join(blocks(file, "sh")).replace("\\\n", " ")
    lines = [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]
    commands = [line for line in lines if any(word.rpartition("/")[2] == "gateway" for word in line)]
    assert len(commands) >= 2
    for line in commands:
        words = line[next(index for index, word in enumerate(line) if word.rpartition("/")[2] == "gateway") + 1 :]
        command = typer.main.get_command(program())
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
        assert not hasattr(command, "commands") or words[0].startswith("-"), line
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_the_configurations_in_the_documents_load(tmp_path: Path) -> None:
    (whole,) = blocks("README.md", "yaml")
    environment = {"OPENAI_API_KEY": "key", "CLICKHOUSE_USER": "user", "CLICKHOUSE_PASSWORD": "password"}
    for part in ("", *blocks("deploy", "yaml")):
        file = tmp_path / "gateway.yaml"
        own_port = part.startswith("port:") or "\nport:" in part
        file.write_text((whole.partition("\n")[2] if own_port else whole) + part)
        loading.build(schema.load(file, environment))


def test_every_hook_is_in_the_plugin_guide() -> None:
    from gateway.chain.plugin import Plugin

    text = text_of("plugins")
    hooks = [name for name in vars(Plugin) if name in ("start", "stop") or name.startswith("on_")]
    assert len(hooks) == 8
    assert [hook for hook in hooks if f"{hook}(" not in text] == []


def test_every_public_name_is_in_the_plugin_guide() -> None:
    text = text_of("plugins")
    rows = re.findall(r"^\| `(\w+)` \| \S", text, flags=re.MULTILINE)
    assert [name for name in gateway.__all__ if rows.count(name) != 1] == []


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "run `python -m tests.reference`"


def test_every_name_for_tests_is_in_the_plugin_guide() -> None:
    text = text_of("plugins")
    assert [name for name in gateway.testing.__all__ if not re.search(rf"`(async )?{name}\b", text)] == []


def test_the_guide_has_every_field_of_an_exchange_and_no_other() -> None:
    text = text_of("plugins").partition("## Exchange")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", text, flags=re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}
    fields = {name for name in dir(gateway.Exchange) if not name.startswith("_")}
    assert fields - listed <= CORE_ALONE
    assert listed <= fields


def test_the_guide_names_everything_that_a_body_offers() -> None:
    text = text_of("plugins")
    offered = {"model", "stream", "max_tokens", "n", "messages", "size"}
    assert offered <= set(Body.__struct_fields__)
    offered |= {"prompt_tokens_estimate", "prompt_tokens_bound", "top"}
    assert [name for name in offered if not hasattr(Body, name) or f"`.{name}`" not in text] == []


def test_every_example_plugin_is_in_the_guide_with_the_codes_it_refuses_with() -> None:
    text = text_of("plugins")
    modules = sorted((ROOT / "plugins/examples").glob("[a-z]*.py"))
    assert len(modules) == 7
    for module in modules:
        tree = ast.parse(module.read_text())
        class_name = module.stem.title().replace("_", "")
        (row,) = [line for line in text.splitlines() if f"`plugins.examples.{module.stem}:{class_name}`" in line]
        assert [code for code in codes(tree) if f"`{code}`" not in row] == []
        assert len(module.read_text().splitlines()) <= 60
