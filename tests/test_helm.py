"""The Helm chart renders manifests that Kubernetes takes, and that agree with the gateway and with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from gateway.chain import loading
from gateway.config import schema
from gateway.config.channel import Timers
from gateway.metrics.registry import FAMILIES
from gateway.serve.serve import SINK_STOP_S
from tests import helm
from tests.test_deploy import DEPLOY, GIVEN, parts

CHART = DEPLOY / "helm"
KINDS = {
    *("ConfigMap", "Service", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy"),
    "HorizontalPodAutoscaler",
}
ALL: dict[str, Any] = {
    "autoscaling": {"prometheus": "http://prometheus-operated.monitoring.svc:9090", "max": 20},
    "monitoring": {"monitor": True, "namespace": "watch"},
    "ingress": {"host": "gateway.example.com"},
    "secret": "keys",
    "environment": {"OTHER_KEY": "other"},
    "config": {"port": {"drain": 900}},
}


def by_kind(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the manifests by their kinds; of the two services, the one for callers."""
    return {each["kind"]: each for each in reversed(helm.template(CHART, values))}


def pod_of(manifests: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = manifests["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_what_is_not_asked_for_is_not_made() -> None:
    assert by_kind().keys() == KINDS
    assert by_kind(ALL).keys() == KINDS - {"HorizontalPodAutoscaler"} | {"ScaledObject", "ServiceMonitor", "Ingress"}


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_each_manifest_has_the_schema_of_kubernetes(values: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate (72 MB of schemas)")
    for manifest in helm.template(CHART, values):
        if manifest["kind"] not in ("ServiceMonitor", "ScaledObject"):  # these are of operators
            validate.validate(manifest, "1.34", strict=True)


def test_the_file_in_it_starts_a_gateway(tmp_path: Path) -> None:
    config = by_kind()["ConfigMap"]["data"]["gateway.yaml"]
    (tmp_path / "gateway.yaml").write_text(config)
    loaded = schema.load(tmp_path / "gateway.yaml", GIVEN)
    loading.build(loaded)
    manifests = by_kind()
    _, container = pod_of(manifests)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert [f"0.0.0.0:{ports[name]}" for name in ("http", "admin")] == [loaded.config.listen, loaded.config.admin]
    named = {variable["name"] for variable in container["env"]}
    assert GIVEN.keys() | {"GATEWAY_PEPPER", "GATEWAY_ADMIN_TOKEN"} == named
    assert set(re.findall(r"\$\{(\w+)\}", config)) <= named
    assert loaded.config.data.startswith(tuple(each["mountPath"] for each in container["volumeMounts"]))
    assert loaded.config.port.drain is not None and loaded.config.port.drain > Timers().total
    assert "replicas" not in manifests["StatefulSet"]["spec"], "it would undo the autoscaler at every upgrade"


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_a_pod_has_the_time_that_its_streams_need(values: dict[str, Any]) -> None:
    manifests = by_kind(values)
    pod, container = pod_of(manifests)
    drain = yaml.safe_load(manifests["ConfigMap"]["data"]["gateway.yaml"])["port"]["drain"]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > before + drain + SINK_STOP_S
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"/readyz", "/healthz"}
    assert container["args"][-2:] == ["--workers", "1"]


def test_what_scales_and_scrapes_the_pods_names_what_there_is() -> None:
    manifests, other = by_kind(), by_kind(ALL)
    scale, keda = manifests["HorizontalPodAutoscaler"]["spec"], other["ScaledObject"]["spec"]
    metric = scale["metrics"][0]["pods"]
    assert metric["metric"]["name"].removeprefix("sluicegate_") in FAMILIES
    (rule,) = yaml.safe_load((DEPLOY / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["as"] == metric["metric"]["name"] == rule["seriesQuery"].partition("{")[0]
    (trigger,) = keda["triggers"]
    query = parts(promql_parser.parse(trigger["metadata"]["query"]))
    (selector,) = [node for node in query if isinstance(node, promql_parser.VectorSelector)]
    assert selector.name == metric["metric"]["name"]
    assert trigger["metadata"]["threshold"] == metric["target"]["averageValue"] == "1000"
    assert keda["scaleTargetRef"] == scale["scaleTargetRef"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"], scale["maxReplicas"]) == (3, 20, 12)
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scale["behavior"]
    monitor, _ = other["ServiceMonitor"]["spec"], pod_of(other)
    (endpoint,) = monitor["endpoints"]
    services = [each for each in helm.template(CHART, ALL) if each["kind"] == "Service"]
    assert all(monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items() for each in services)
    assert [endpoint["port"] in {port["name"] for port in each["spec"]["ports"]} for each in services] == [False, True]
    assert all(each["metadata"]["labels"][monitor["jobLabel"]] == "sluicegate" for each in services), (
        "alerts.yaml names it"
    )
    assert endpoint["authorization"]["credentials"] == {"name": "keys", "key": "metrics-token"}, "not the admin token"


@pytest.mark.parametrize("values", [{}, ALL], ids=["default", "all"])
def test_everything_is_about_the_same_pods(values: dict[str, Any]) -> None:
    manifests = by_kind(values)
    labels = manifests["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert manifests["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    secrets = {each["valueFrom"]["secretKeyRef"]["name"] for each in pod_of(manifests)[1]["env"]}
    assert secrets == {values.get("secret", "sluicegate")}
    ports = [rule["ports"] for rule in manifests["NetworkPolicy"]["spec"]["ingress"]]
    assert ports == [[{"port": "http"}], [{"port": "admin"}]]


def test_the_ingress_streams_as_the_proxy_of_compose_does() -> None:
    manifests = by_kind(ALL)
    ingress = manifests["Ingress"]
    proxy = dict(re.findall(r"^\s*(\w+) ([^;{]+);", (DEPLOY / "nginx.conf").read_text(), flags=re.MULTILINE))
    given = {key.partition("/")[2]: value for key, value in ingress["metadata"]["annotations"].items()}
    for name in ("proxy-buffering", "proxy-request-buffering", "proxy-next-upstream"):
        assert given[name] == "off"
    assert int(given["proxy-read-timeout"]) == int(proxy["proxy_read_timeout"].rstrip("s"))
    assert given["proxy-body-size"] == proxy["client_max_body_size"]
    assert {rule["host"] for rule in ingress["spec"]["rules"]} == {*ingress["spec"]["tls"][0]["hosts"]}
    backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    service = manifests["Service"]
    assert (backend["name"], backend["port"]["name"]) == (
        service["metadata"]["name"],
        service["spec"]["ports"][0]["name"],
    )


def test_the_schema_of_values_has_each_value_and_no_other() -> None:
    """Helm refuses a value that it does not have, such as one that is misspelt."""
    schema_of_values = json.loads((CHART / "values.schema.json").read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert schema_of_values.keys() - {"global"} == values.keys()
    for name, each in schema_of_values.items():
        if each.get("additionalProperties") is False:
            assert each["properties"].keys() == values[name].keys(), name
    assert ALL.keys() <= values.keys()


def test_the_templates_keep_to_the_part_of_the_language_that_is_rendered_here() -> None:
    top = {"Values": {"a": {"b": 1}, "list": [1, 2]}, "Release": {"Name": "r"}}
    assert helm.render("x {{ .Values.a.b }}{{- if .Values.list }}\ny{{- else }}n{{- end }}", top) == "x 1\ny"
    assert (
        helm.render("{{- range $k, $v := .Values.a }}{{ $k }}={{ add $v 2 }}{{- end }}{{/* a comment */}}", top)
        == "b=3"
    )
    assert (
        helm.render("{{- range .Values.list }}[{{ . }}{{ $.Release.Name | quote }}]{{- end }}", top) == '[1"r"][2"r"]'
    )
    assert helm.render("{{- toYaml .Values.a | nindent 2 }}", top) == "\n  b: 1"
    for wrong in ("{{ include `x` . }}", "{{ .Values.a | upper }}", "{{- end }}", "{{ .Values.a -}}"):
        with pytest.raises(SyntaxError):
            helm.render(wrong, top)
