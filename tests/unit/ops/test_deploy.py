"""The Helm chart, and the scaffold's Dockerfile: real settings, and what Helm, Kubernetes' schemas and hadolint say."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from faust.types.settings.settings import Settings

from actors import App
from actors._faust.settings.sources import OWN_VARIABLES
from actors._faust.setup import Setup
from actors.cli import cli
from actors.declare.names import group_of
from actors.declare.options import SECRETS
from actors.web import health, metrics
from actors.web.access.settings import own_address
from tests.documents import ROOT

CHART = ROOT / "docs" / "ops" / "chart"
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
TOOLS = ROOT / ".local" / "deploy"
KUBERNETES = "1.31"
OF_KUBERNETES = {"POD_NAME"}
FULL: dict[str, Any] = {
    "env": {"QUERY_TOKENS_FILE": "/run/tokens/query"},
    "secrets": ["shop-worker"],
    "secretFiles": {"shop-tokens": "/run/tokens"},
    "image": {"pullSecrets": ["registry"]},
    "volume": {"storageClass": "fast"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "state", "operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "tokenSecret": {"name": "shop-tokens", "key": "query"},
    },
    "networkPolicy": {"from": [{"namespaceSelector": {}}], "egress": [{"ports": [{"port": 9092, "protocol": "TCP"}]}]},
    "autoscaling": {"enabled": True, "topic": "orders", "bootstrapServers": "kafka:9092", "authentication": "kafka"},
}

real_tools = pytest.mark.nightly


def settings_of_the_environment() -> set[str]:
    ours = {name.upper() for name in (*OWN_VARIABLES, *(f"{secret}_file" for secret in SECRETS))}
    return ours | {setting.env_name for setting in Settings.SETTINGS.values() if setting.env_name}


@pytest.mark.parametrize("file", [CHART / "templates" / "statefulset.yaml", CHART / "values.yaml", PAGE])
def test_the_environment_has_real_settings_only(file: Path) -> None:
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", file.read_text())) - OF_KUBERNETES
    named -= {"SPARK_REPLAY_JARS", "FAUST_ACTORS_COMPILE"}
    assert named
    assert named <= settings_of_the_environment()


def template(name: str) -> str:
    return (CHART / "templates" / f"{name}.yaml").read_text()


def test_the_autoscaler_reads_the_consumer_group_of_the_workers() -> None:
    ((form, value),) = re.findall(
        r'consumerGroup: \{\{ printf "(.+)" \$\.Values\.(\w+) \| quote }}\n', template("autoscaling")
    )
    assert (form % "shop", value) == (group_of("shop"), "appId")
    assert f"`{group_of('shop')}` for `appId=shop`" in PAGE.read_text()
    assert (CHART / "values.yaml").read_text().count(f" {group_of('ID')} ") == 1


def test_the_environment_of_the_chart_takes_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = re.findall(r"- name: ([A-Z_]+)", template("statefulset"))
    given = {
        "CONSUMER_GROUP_INSTANCE_ID": "shop-0",
        "NODE_CANONICAL_URL": "http://shop-0.shop.prod.svc:7000",
        "BROKER_URL": "kafka://broker:9000",
        "APP_DATADIR": str(tmp_path),
        "WEB_BIND": "0.0.0.0",
        "WEB_PORT": "7000",
        "TABLE_STANDBY_REPLICAS": "1",
    }
    assert set(named) - OF_KUBERNETES == set(given)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    setup = Setup(App("shop", broker="kafka://other:9092", datadir="elsewhere", web_port=6066))
    conf = setup.app.conf
    assert (setup.instance_id, own_address(setup.app)) == ("shop-0", given["NODE_CANONICAL_URL"])
    assert (setup.connection.bootstrap, conf.web_bind, conf.web_port) == (("broker:9000",), "0.0.0.0", 7000)
    assert setup.folder.is_relative_to(tmp_path)
    assert setup.placement_rules().standbys == 1


def test_every_name_that_the_chart_sets_is_refused_in_env() -> None:
    """Of a name that is there twice the last value counts, or the first: an upgrade changed nothing."""
    text = template("statefulset")
    names = set(re.findall(r"- name: ([A-Z_]+)", text))
    refused = re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', text)
    assert sorted(refused) == sorted(names)
    values = re.findall(r'"(?:[A-Z_]+)" "the value ([\w.]+)"', text)
    assert [f"{{{{ .Values.{value} | quote }}}}" in text for value in values] == [True] * 3


def test_the_page_says_how_to_grow_the_volumes() -> None:
    stateful = template("statefulset")
    assert "- metadata:\n        name: data\n" in stateful
    page = PAGE.read_text()
    assert "kubectl delete pvc data-shop-0" in page
    assert "kubectl delete statefulset shop --cascade=orphan" in page
    # The claims of a StatefulSet have the labels of its selector.
    assert "app.kubernetes.io/instance" in (CHART / "templates" / "_names.tpl").read_text()
    assert "-l app.kubernetes.io/instance=shop" in page


def test_what_kubernetes_and_prometheus_ask_is_served() -> None:
    probes = re.findall(r"(\w+)Probe:\n +httpGet: \{path: (\S+), port: web}", template("statefulset"))
    assert [kind for kind, _ in probes] == ["startup", "liveness", "readiness"]
    routes = health.health_pages(App("shop")).router.resources()
    assert {path for _, path in probes} <= {f"{health.PREFIX}{route.canonical}" for route in routes}
    assert re.findall(r"port: (\w+)\n +path: (\S+)", template("monitor")) == [("web", metrics.PAGE)]


def test_each_port_is_the_web_servers() -> None:
    texts = {name: template(name) for name in ("statefulset", "services", "network", "monitor")}
    assert re.findall(r"- name: WEB_PORT\n +value: (.*) \| quote }}", texts["statefulset"]) == ["{{ .Values.web.port"]
    assert "- {name: web, containerPort: {{ .Values.web.port }}}" in texts["statefulset"]
    used = re.findall(r"\b(?:port|targetPort|containerPort): ([^,}\s]+(?: \.\S+)?)", "".join(texts.values()))
    assert len(used) >= 9
    assert set(used) == {"web", "{{ .Values.web.port"}
    assert yaml.safe_load((CHART / "values.yaml").read_text())["web"]["port"] == App("shop").conf.web_port


def test_the_schema_has_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


def compare(values: dict[str, Any], schema: dict[str, Any]) -> None:
    assert set(values) == set(schema["properties"]) - {"global"}
    assert schema["additionalProperties"] is False
    for name, value in values.items():
        if "properties" in schema["properties"][name] and value:
            compare(value, schema["properties"][name])


def tool(name: str) -> str:
    found = TOOLS / name
    if not found.exists():
        pytest.skip(f"{name} isn't there: `make deploy-tools`")
    return str(found)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@cache
def _rendered(values: str) -> str:
    folder = ("template", "shop", CHART, "--namespace", "prod", "--kube-version", KUBERNETES)
    done = subprocess.run(
        [tool("helm"), *map(str, folder), "-f", "-"], input=values, capture_output=True, text=True, check=True
    )
    return done.stdout


def rendered(**values: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Give what the chart makes, by kind and name."""
    made = list(yaml.safe_load_all(_rendered(json.dumps(values))))
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in made}
    assert len(by_name) == len(made)
    return by_name


@real_tools
@pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
def test_helm_and_the_schemas_of_kubernetes_find_no_fault(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    linted = run(tool("helm"), "lint", "--strict", CHART, "-f", tmp_path / "values.yaml")
    assert linted.returncode == 0, linted.stdout
    made = tmp_path / "made.yaml"
    made.write_text(_rendered(json.dumps(values)))
    validated = run(tool("venv/bin/kubernetes-validate"), "--strict", "-k", KUBERNETES, made)
    assert validated.returncode == 0, validated.stdout + validated.stderr
    kinds = re.findall(r"passed for resource (\w+)/", validated.stdout + validated.stderr)
    assert sorted(kinds) == ["networkpolicy", "poddisruptionbudget", "service", "service", "statefulset"]


@real_tools
def test_everything_selects_the_workers() -> None:
    made = rendered(**FULL)
    stateful = made["StatefulSet", "shop"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    services = [made["Service", name]["spec"] for name in ("shop", "shop-web")]
    selectors = [
        stateful["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget", "shop"]["spec"]["selector"]["matchLabels"],
        made["NetworkPolicy", "shop"]["spec"]["podSelector"]["matchLabels"],
        *(service["selector"] for service in services),
    ]
    assert all(selector == labels for selector in selectors)
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for service in services for port in service["ports"]} <= ports
    scaled = made["ScaledObject", "shop"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == stateful["metadata"]["name"]
    assert scaled["triggers"][0]["metadata"]["consumerGroup"] == group_of("shop")
    assert "replicas" not in stateful["spec"]
    assert rendered()["StatefulSet", "shop"]["spec"]["replicas"] == 2


@real_tools
def test_a_worker_is_named_by_its_ordinal_and_writes_to_its_volumes_only() -> None:
    made = rendered(**FULL)
    stateful = made["StatefulSet", "shop"]["spec"]
    pod = stateful["template"]["spec"]
    [container] = pod["containers"]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["CONSUMER_GROUP_INSTANCE_ID"] == "$(POD_NAME)"
    assert given["NODE_CANONICAL_URL"] == f"http://$(POD_NAME).{stateful['serviceName']}.prod.svc:6066"
    assert ("Service", stateful["serviceName"]) in made
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}
    assert writable == {given["APP_DATADIR"], "/tmp"}
    assert {one["metadata"]["name"] for one in stateful["volumeClaimTemplates"]} | {
        one["name"] for one in pod["volumes"]
    } == {one["name"] for one in container["volumeMounts"]}


@real_tools
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("env.BROKER_URL=kafka://b:9092", "env.BROKER_URL is set by the value broker: take it out of env"),
        ("env.APP_DATADIR=/x", "env.APP_DATADIR is set by the chart alone: take it out of env"),
        ("replicas=1", "set replicas to 2 or more, or standbys to 0"),
        ("broker=kafka:9092", "does not match pattern '^kafka://'"),
        ("autoscaling.enabled=true", "autoscaling.bootstrapServers: host:port"),
        ("autoscaling.enabled=true,autoscaling.minReplicas=1", "set autoscaling.minReplicas to 2 or more"),
    ],
)
def test_a_wrong_value_is_refused(setting: str, says: str) -> None:
    done = run(tool("helm"), "template", "shop", CHART, "--kube-version", KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert says in done.stderr


@real_tools
def test_hadolint_finds_no_fault_in_the_dockerfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["init", "shop"]).exit_code == 0
    done = run(tool("venv/bin/hadolint"), tmp_path / "shop" / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
