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

from actors._faust.setup import LOST_CHANGELOG, MISSING_OFFSET, MOVED_OFFSET, STATE_SNAPSHOT
from actors.cli import cli
from tests.documents import ROOT

CHART = ROOT / "docs" / "ops" / "chart"
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
TOOLS = ROOT / ".local" / "deploy"
KUBERNETES = "1.31"
OF_KUBERNETES = {"POD_NAME"}
SECRETS = {"QUERY_TOKENS", "ADMIN_TOKENS", "WORKER_SECRET"}
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
    ours = {
        STATE_SNAPSHOT,
        MISSING_OFFSET,
        MOVED_OFFSET,
        LOST_CHANGELOG,
        *SECRETS,
        *(f"{name}_FILE" for name in SECRETS),
    }
    return ours | {setting.env_name for setting in Settings.SETTINGS.values() if setting.env_name}


@pytest.mark.parametrize("file", [CHART / "templates" / "statefulset.yaml", CHART / "values.yaml", PAGE])
def test_the_environment_has_real_settings_only(file: Path) -> None:
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", file.read_text())) - OF_KUBERNETES - {"SPARK_REPLAY_JARS"}
    assert named
    assert named <= settings_of_the_environment()


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
    assert made["ScaledObject", "shop"]["spec"]["scaleTargetRef"]["name"] == stateful["metadata"]["name"]
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
        ("replicas=1", "set replicas to 2 or more, or standbys to 0"),
        ("broker=kafka:9092", "does not match pattern '^kafka://'"),
        ("autoscaling.enabled=true", "autoscaling.bootstrapServers: host:port"),
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
