"""The files of deploy/ agree with the gateway: queries name metrics that exist, configurations load, commands start."""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import aiohttp
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from yamllint import linter
from yamllint.config import YamlLintConfig

from gateway.chain import loading
from gateway.config import schema
from gateway.config.channel import Channel
from gateway.config.schema import Port
from gateway.domain.catalogue import Catalogue
from gateway.metrics.registry import FAMILIES, Metrics
from gateway.metrics.shared import SharedNumbers
from gateway.serve.serve import SINK_STOP_S
from tests.cli.processes import Served, children, demo_in, free_port, kill, serving, worker_of
from tests.metrics.scrape import scrape as scraped

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
ADMIN_TOKEN = "an-admin-token-of-31-characters"
GIVEN = {"GATEWAY_REDIS": "redis://store:6379", "GATEWAY_DATABASE": "", "OPENAI_API_KEY": "key"}
STYLE = "{extends: default, rules: {line-length: {max: 132}, comments-indentation: disable}}"

DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())

Samples = dict[str, list[dict[str, str]]]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


TIDY = [
    file for file in sorted(DEPLOY.rglob("*.yaml")) if file.parent.name != "templates"
]  # those are of Helm's language


@pytest.mark.parametrize("file", TIDY, ids=lambda file: file.name)
def test_yaml_is_tidy(file: Path) -> None:
    assert [str(problem) for problem in linter.run(file.read_text(), YamlLintConfig(STYLE))] == []


# Metrics, dashboard, alerts.


def queries() -> Iterator[tuple[str, str]]:
    """Yield every expression of the dashboard and of the alerts, with its title there."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query = re.sub(
                r"\$(model|channel|group|instance)\b", ".*", target["expr"].replace("$__rate_interval", "1m")
            )
            yield f"{panel['id']} {panel['title']}", query
    for group in documents("alerts.yaml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def parts(node: Any) -> Iterator[Any]:
    """Yield an expression and all its parts."""
    yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(node, name, None)) is not None:
            yield from parts(inner)
    for inner in getattr(node, "args", None) or ():
        yield from parts(inner)


async def written(log: Path, word: str) -> None:
    """Wait until the log has a line with `word`."""
    while word not in await asyncio.to_thread(log.read_text):
        await asyncio.sleep(0.05)


async def provoke(served: Served, file: Path, good: str) -> str:
    """Cause everything that is counted, and return the metrics."""
    ask = {"model": "demo-words", "stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    url = f"{served.base_url}/chat/completions"
    log = file.parent / "serve.log"
    async with aiohttp.ClientSession() as client:
        for headers, body, status in (
            (served.headers, ask, 200),
            ({"Authorization": "Bearer wrong"}, ask, 401),
            (served.headers, {**ask, "model": "failing"}, 502),
        ):
            async with client.post(url, json=body, headers=headers) as answer:
                assert answer.status == status, await answer.text()
        statuses = [502]
        while statuses[-1] != 503:  # the channel fails until it is not called any more
            async with client.post(url, json={**ask, "model": "failing"}, headers=served.headers) as answer:
                statuses.append(answer.status)
        assert set(statuses) == {502, 503}
        for text, word in (("plugins: [", "reload_refused"), (f"{good}\n", '"reloaded"')):
            await asyncio.to_thread(file.write_text, text)
            await written(log, word)
        kill(worker_of(served.pid))
        await written(log, "child_died")
        async with client.post(url, json=ask, headers=served.headers) as answer:
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        (store,) = [pid for pid, line in children(served.pid).items() if "store.sock" in line]
        os.kill(store, signal.SIGSTOP)
        async with client.post(url, json=ask, headers=served.headers) as answer:
            assert answer.status == 503
        os.kill(store, signal.SIGCONT)
        admin = re.search(r"admin: (\S+)", good)
        assert admin is not None
        async with client.get(
            f"http://{admin[1]}/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        ) as answer:
            assert (answer.status, answer.content_type) == (200, "text/plain")
            return await answer.text()


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """Return the labels of every series, by the sample's name, of a gateway in which everything that is counted has happened."""

    async def run() -> str:
        file = demo_in(tmp_path_factory.mktemp("deploy"), admin=f"127.0.0.1:{free_port()}")
        failing = "  failing: {free: true, channels: [nobody]}\ngroups:"
        nobody = f"  nobody: {{base_url: http://127.0.0.1:{free_port()}/v1}}\nmodels:"
        good = file.read_text().replace("models:", nobody, 1).replace("groups:", failing, 1)
        good += f"alerts: {{webhook: 'http://127.0.0.1:{free_port()}/'}}\n"
        file.write_text(good)
        async with serving(file) as served:
            text = await provoke(served, file, good)
            assert await served.stop() == 0
            return text

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GATEWAY_ADMIN_TOKEN", ADMIN_TOKEN)
        text = asyncio.run(run())
    samples: Samples = {"up": [{"job": "sluicegate", "instance": ""}]}  # Prometheus' own
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append({**sample.labels, "instance": "", "job": ""})
    return samples


@pytest.mark.skipif(sys.platform != "linux", reason="the gateway is watched through /proc")
@pytest.mark.parametrize(("name", "query"), list(queries()), ids=lambda text: text)
def test_a_query_names_metrics_and_labels_that_the_gateway_exports(scrape: Samples, name: str, query: str) -> None:
    nodes = list(parts(promql_parser.parse(query)))
    selectors = [node for node in nodes if isinstance(node, promql_parser.VectorSelector)]
    assert selectors, name
    for selector in selectors:
        series = scrape.get(selector.name or "", [])
        assert series, f"{name}: the gateway exports no {selector.name}"
        for matcher in selector.matchers.matchers:
            values = {labels.get(matcher.name, "") for labels in series}
            if matcher.op == promql_parser.MatchOp.NotEqual:
                assert all(matcher.name in labels for labels in series), f"{name}: no label {matcher.name}"
                continue
            assert any(re.fullmatch(matcher.value, value) for value in values), f"{name}: {matcher.name}={values}"
        for node in nodes:
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                assert set(node.modifier.labels) <= series[0].keys(), f"{name}: {selector.name} has no such label"


def test_the_dashboard_has_six_figures_and_four_rows_and_each_query_is_of_what_is_chosen(scrape: Samples) -> None:
    panels = DASHBOARD["panels"]
    assert [panel["type"] for panel in panels[:7]] == ["stat"] * 6 + ["row"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Traffic",
        "Upstreams",
        "Money",
        "Gateway",
    ]
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "model", "channel", "group", "instance"}
    for name in variables.keys() - {"datasource"}:
        metric, label = re.findall(r"label_values\((\w+), (\w+)\)", variables[name]["query"])[0]
        assert label == name and all(name in labels for labels in scrape[metric])
    for panel in panels:
        for target in panel.get("targets", ()):
            for name, chosen in re.findall(r"sluicegate_(\w+)\{([^}]*)\}", target["expr"]):
                family = FAMILIES.get(name) or FAMILIES[re.sub("_(total|bucket)$", "", name)]
                labels = {"instance", *family.labels} & variables.keys()
                assert set(re.findall(r"=~\"\$(\w+)\"", chosen)) == labels, target["expr"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert places == sorted(set(places), key=lambda place: (place[1], place[0]))


def test_an_alert_about_a_channel_counts_no_requests_that_no_channel_could_serve() -> None:
    of_channels = [query for name, query in queries() if name == "UpstreamFails"]
    assert ['outcome=~"upstream_.*",channel!="none"' in query for query in of_channels] == [True]


def test_an_alert_that_pages_for_what_lasts_is_not_about_what_is_over() -> None:
    """A rate is above 0 for as long as its window after the last failure."""
    for group in documents("alerts.yaml")[0]["groups"]:
        for rule in group["rules"]:
            window = re.search(r"rate\(.*\[(\d+)m]\)\) > 0$", rule["expr"])
            lasts = re.fullmatch(r"(\d+)m", rule.get("for", ""))
            assert not (window and lasts) or int(window[1]) < int(lasts[1]), rule["alert"]


def test_a_counter_whose_increase_an_alert_reads_is_there_from_the_start() -> None:
    """Else it begins at 1, and the first event is no increase."""
    shared, config = SharedNumbers(), schema.Config(channels={"fake": Channel("http://127.0.0.1:1/v1")})
    Metrics(shared, Catalogue(config))
    samples = scraped(shared)
    queries = re.findall(
        r'increase\(sluicegate_(\w+)(?:\{(\w+)=~?"([^"]+)"\})?\[', (DEPLOY / "alerts.yaml").read_text()
    )
    assert len(queries) >= 6
    for metric, label, values in queries:
        found = {dict(labels).get(label) for name, labels in samples if name == metric}
        assert found >= (set(values.split("|")) if values else {None}), metric


def test_every_metric_is_on_the_dashboard_or_in_an_alert(scrape: Samples) -> None:
    shown = " ".join(query for _, query in queries())
    assert [name for name in FAMILIES if f"sluicegate_{name}" not in shown] == []
    assert [name for name in FAMILIES if not any(sample.startswith(f"sluicegate_{name}") for sample in scrape)] == []


def test_the_guide_has_every_metric_with_its_labels() -> None:
    text = (DEPLOY / "monitoring.md").read_text()
    for name, family in FAMILIES.items():
        suffix = "_total" if family.kind == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in family.labels)
        assert f"| `{name}{suffix}` | {labels} | {family.help} |" in text


def test_every_log_line_that_an_alert_names_is_written() -> None:
    code = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    text = (DEPLOY / "alerts.yaml").read_text()
    events = {word for line in re.findall(r"look for ([a-z_, ]+)", text) for word in re.findall(r"\w+_\w+", line)}
    assert len(events) >= 4
    assert [event for event in events if f'"{event}"' not in code] == []


def test_the_guide_says_what_to_do_for_every_alert() -> None:
    rows = re.findall(r"^\| (`.*`) \| \S", (DEPLOY / "monitoring.md").read_text(), flags=re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    rules = [rule["alert"] for group in documents("alerts.yaml")[0]["groups"] for rule in group["rules"]]
    assert [name for name in rules if name not in described] == []


# Proxy, systemd, image, compose, Kubernetes.


def test_the_configuration_of_the_containers_is_good() -> None:
    loaded = schema.load(DEPLOY / "gateway.yaml", GIVEN)
    loading.build(loaded)
    assert (loaded.config.listen, loaded.config.admin) == ("0.0.0.0:8080", "0.0.0.0:9090")


def _is_told(directive: str, table: str) -> bool:
    return f"`{directive}" in table or directive in ("proxy_set_header", "proxy_pass", "proxy_temp_path")


def test_the_gateway_decides_before_a_limit_of_nginx_does() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    directives = dict(re.findall(r"^\s*(\w+) ([^;{]+);", text, flags=re.MULTILINE))
    seconds = {name: int(value[:-1]) for name, value in directives.items() if re.fullmatch(r"\d+s", value)}
    channels = schema.load(DEPLOY / "gateway.yaml", GIVEN).config.channels.values()
    port = Port()
    assert directives["client_max_body_size"] == "0"
    assert seconds["client_header_timeout"] >= port.head_timeout
    assert seconds["client_body_timeout"] > port.body_timeout
    assert seconds["proxy_send_timeout"] > port.body_timeout
    assert seconds["send_timeout"] > max(channel.timers.write_stall for channel in channels)
    assert seconds["proxy_read_timeout"] > max(channel.timers.total for channel in channels)
    assert seconds["keepalive_timeout"] < port.idle_timeout
    assert directives["proxy_http_version"] == "1.1"
    table = (DEPLOY / "network.md").read_text().partition("## Reverse proxies")[2]
    assert [name for name in directives if name.startswith("proxy_") and not _is_told(name, table)] == []
    assert directives["proxy_buffering"] == directives["gzip"] == "off"
    assert directives["proxy_next_upstream"] == "error timeout", (
        "with `non_idempotent`, a request is sent and charged twice"
    )
    assert "proxy_set_header X-Forwarded-For $remote_addr;" in text, "nothing that a caller sent"
    assert not {"authorization", "$request ", "$args", "$request_body"} & set(re.split(r"['\s]", text.lower()))


def test_caddy_closes_idle_connections_before_the_gateway_does() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "Caddyfile").read_text())
    assert int(re.findall(r"keepalive (\d+)s", text)[0]) < Port().idle_timeout
    assert "flush_interval" not in text, "the gateway would not notice that a caller left"
    assert "timeout" not in text


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / name).read_text())
    return parser


def test_the_service_waits_for_a_drain_and_is_not_restarted_with_a_wrong_file() -> None:
    service = unit("sluicegate.service")["Service"]
    assert int(service["TimeoutStopSec"]) > Port().drain + SINK_STOP_S
    assert (service["Type"], service["KillMode"], service["RestartPreventExitStatus"]) == ("notify", "mixed", "2")
    assert "-HUP" in service["ExecReload"]
    assert unit("sluicegate.service")["Unit"]["StartLimitIntervalSec"] == "0", "any other failure may pass"


def test_the_image_is_built_of_what_is_there_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source for line in re.findall(r"^COPY ([^-].*) \S+$", text, flags=re.MULTILINE) for source in line.split()
    ]
    assert "gateway" in copied
    assert set(copied) == allowed
    assert all((ROOT / source).exists() for source in copied)
    assert re.findall(r"^USER (\w+)$", text, flags=re.MULTILINE) == ["10001"]


@pytest.mark.skipif(sys.platform != "linux", reason="the gateway is watched through /proc")
async def test_the_health_check_of_the_image_passes_only_while_the_gateway_serves(tmp_path: Path) -> None:
    check = re.search(r"CMD (\[\"python\".*\])", (DEPLOY / "Dockerfile").read_text())
    assert check is not None
    port = free_port()
    command = [sys.executable, *(part.replace("8080", str(port)) for part in json.loads(check[1])[1:])]
    assert (await asyncio.to_thread(subprocess.run, command, capture_output=True)).returncode != 0
    async with serving(demo_in(tmp_path, port=port)) as served:
        assert (await asyncio.to_thread(subprocess.run, command, capture_output=True)).returncode == 0
        assert await served.stop() == 0


def test_compose_mounts_files_that_exist_and_its_store_keeps_acknowledged_writes() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    binds = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    files = [bind for bind in binds if bind.startswith("./") and bind != "./tls"]
    assert files
    assert all((DEPLOY / bind).exists() for bind in files)
    assert "appendonly yes" in services["valkey"]["command"][-1]
    assert "noeviction" in services["valkey"]["command"][-1]
    assert "ports" not in services["valkey"]
    assert all(port.startswith("127.0.0.1:") for port in services["gateway"]["ports"]), (
        "only TLS is reached from outside"
    )
    assert int(services["gateway"]["stop_grace_period"].rstrip("s")) > Port().drain + SINK_STOP_S
    loaded = schema.load(DEPLOY / "gateway.yaml", GIVEN).config
    front = services["nginx"]["networks"]["front"]["ipv4_address"]
    assert loaded.port.trusted_proxies == (front,)
    (subnet,) = compose["networks"]["front"]["ipam"]["config"]
    assert ip_address(front) in ip_network(subnet["subnet"])
    assert ip_address(front) not in ip_network(subnet["ip_range"]), "another container could have it"
    assert set(services["gateway"]["networks"]) == {"front", "store"}
    given = set(re.findall(r"\$\{(\w+)\}", (DEPLOY / "gateway.yaml").read_text()))
    assert given <= services["gateway"]["environment"].keys()


def test_every_heading_that_a_file_refers_to_is_in_its_page() -> None:
    named = [
        each for file in DEPLOY.rglob("*.yaml") for each in re.findall(r'([a-z]+\.md), "([^"]+)"', file.read_text())
    ]
    assert len(named) >= 3
    for page, heading in named:
        assert re.search(rf"^#+ {re.escape(heading)}$", (DEPLOY / page).read_text(), flags=re.MULTILINE), (
            page,
            heading,
        )


NOT_HERE = ("useradd", "python3 -m venv", "/opt/sluicegate/bin/pip", "systemctl")


def commands() -> list[str]:
    section = (ROOT / "deploy" / "install.md").read_text().partition("## systemd")[2]
    block = re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def moved(text: str, folder: Path) -> str:
    """Return a text with its absolute paths below `folder`."""
    return re.sub(r"(?<![\w.])/(etc|usr|var|opt)(?=/)", rf"{folder}/\1", text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a root folder in which the commands have been run that make files."""
    for name in ("etc/systemd/system", "usr/local/sbin", "var/lib/sluicegate", "opt/sluicegate/bin"):
        (tmp_path / name).mkdir(parents=True)
    here = [line for line in commands() if not line.startswith(NOT_HERE)]
    assert len(here) == len(commands()) - 5
    script = moved("\n".join(here), tmp_path).replace(" -g sluicegate", "")
    done = subprocess.run(["sh", "-ec", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path


def test_the_commands_leave_a_configuration_that_loads_with_the_environment_file(machine: Path) -> None:
    environment = machine / "etc/sluicegate/environment"
    assert environment.stat().st_mode & 0o777 == 0o600
    given = dict(line.split("=", 1) for line in environment.read_text().splitlines())
    config = schema.load(machine / "etc/sluicegate/gateway.yaml", given).config
    assert str(config.data_path) == str(machine / "var/lib/sluicegate/data")
    unit = (machine / "etc/systemd/system/sluicegate.service").read_text()
    for path in ("/etc/sluicegate/environment", "/etc/sluicegate/gateway.yaml", "/opt/sluicegate/bin/gateway"):
        assert path in unit


def test_the_script_runs_commands_as_the_service_does(machine: Path) -> None:
    script = machine / "usr/local/sbin/sluicegate"
    script.write_text(moved(script.read_text().replace("#!/bin/sh", "#!//bin/sh"), machine))
    runuser = machine / "opt/runuser"
    runuser.write_text('#!/bin/sh\necho "$@"\necho "$OPENAI_API_KEY $GATEWAY_CONFIG"\npwd\n')
    runuser.chmod(0o755)
    search = {"PATH": f"{runuser.parent}:{os.environ['PATH']}"}
    done = subprocess.run([script, "account", "list"], env=search, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"-u sluicegate -- {machine}/opt/sluicegate/bin/gateway account list",
        f"KEY {machine}/etc/sluicegate/gateway.yaml",
        f"{machine}/var/lib/sluicegate",
    ]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_accepts_the_units(machine: Path) -> None:
    folder = machine / "etc/systemd/system"
    unit = folder / "sluicegate.service"
    unit.write_text(unit.read_text().replace("/opt/sluicegate/bin/gateway", "/bin/true"))
    files = [str(unit), str(folder / "sluicegate.socket")]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


LOCKS = sorted((ROOT / "deploy").glob("*.lock"))
KNOWN_STARTERS = {"coverage", "setuptools"}
"""Tools whose `.pth` files run code: coverage measures processes that tests start, setuptools stands in for distutils."""


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_locked_version_is_exact_and_has_a_hash(lock: Path) -> None:
    entries = re.split(r"\n(?=\S)", lock.read_text().strip())
    assert len(entries) > 30 or lock.name == "pip.lock"
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    locked = (ROOT / "deploy/requirements-dev.lock").read_text().lower()
    names = [re.split(r"[\[<>=; ]", requirement)[0].lower() for requirement in wanted]
    assert [name for name in names if f"{name}==" not in locked] == []


def test_no_installed_package_runs_code_at_every_start_of_python() -> None:
    starters = {
        distribution.name
        for distribution in distributions()
        for file in distribution.files or ()
        if file.suffix == ".pth"
        and any(line.startswith("import") for line in Path(str(file.locate())).read_text().splitlines())
    }
    assert starters <= KNOWN_STARTERS
