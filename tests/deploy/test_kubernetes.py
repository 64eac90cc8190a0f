"""The manifests: they render, the schemas of their kinds hold, and names, ports and paths are those of the code."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from sglang_hooks.settings import read_settings
from sidecar.cli.run import run
from sidecar.config import Config, parse_admin, parse_group
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.manifests import (
    COMPONENTS,
    FOLDER,
    OVERLAYS,
    Object,
    container,
    mounts,
    prefill_templates,
    render,
    templates,
    variables,
)
from tests.deploy.test_container import SIDECAR, project

OLDEST, NEWEST = "1.29", "1.37"
"""1.29 is the first that has native sidecars without being asked to."""

SCHEMAS = Path(__file__).with_name("schemas")

EXPECTED_PODS = {"deployment": 1, "leaderworkerset": 2, "rolebasedgroup": 1}

on_each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def settings_of_the_service() -> set[str]:
    options = [parameter for parameter in run.params if isinstance(parameter, click.Option)]
    return {str(option.envvar) for option in options if option.envvar}


def test_there_is_an_overlay_for_each_kind() -> None:
    assert set(EXPECTED_PODS) == set(OVERLAYS)


@on_each_overlay
def test_kinds_of_kubernetes_hold_to_their_schemas(overlay: str) -> None:
    manifests = render(FOLDER / "overlays" / overlay)
    built_in = [
        manifest for manifest in manifests if manifest["apiVersion"] in {"v1", "apps/v1", "networking.k8s.io/v1"}
    ]
    pods = [_wrapped(pod) for manifest in manifests for pod in templates(manifest)]

    assert pods
    for manifest in [*built_in, *pods]:
        kubernetes_validate.validate(manifest, NEWEST, strict=True)
    for pod in prefill_templates(overlay):
        kubernetes_validate.validate(_wrapped(pod), OLDEST, strict=True)


def _wrapped(pod: Object) -> Object:
    """A kind of Kubernetes' own that is nothing but a pod template."""
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "p"}, "template": pod}


@on_each_overlay
def test_kinds_of_others_hold_to_their_schemas(overlay: str) -> None:
    for manifest in render(FOLDER / "overlays" / overlay):
        schema = SCHEMAS / f"{manifest['apiVersion'].replace('/', '_')}.json"
        if "." in manifest["apiVersion"] and not manifest["apiVersion"].startswith("networking.k8s.io"):
            jsonschema.validate(manifest, json.loads(schema.read_text()))


def test_the_schemas_can_say_no() -> None:
    manifest = json.loads(json.dumps(prefill_templates("deployment")[0]))
    manifest["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(_wrapped(manifest), NEWEST, strict=True)


@on_each_overlay
def test_only_prefill_pods_get_it_and_all_of_them(overlay: str) -> None:
    pods = [pod for manifest in render(FOLDER / "overlays" / overlay) for pod in templates(manifest)]
    with_sidecar = [pod for pod in pods if pod["spec"].get("initContainers")]

    assert len(with_sidecar) == EXPECTED_PODS[overlay]
    assert with_sidecar == prefill_templates(overlay)


@on_each_overlay
def test_it_is_a_native_sidecar_that_restarts_nothing(overlay: str) -> None:
    for pod in prefill_templates(overlay):
        sidecar = container(pod, "pd-sidecar")

        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["args"] == read_dockerfile(SIDECAR)[-1].listed("CMD")
        assert "livenessProbe" not in sidecar
        assert "readinessProbe" not in sidecar
        assert "cpu" not in sidecar["resources"]["limits"], "a throttled sidecar is a late one"


@on_each_overlay
def test_the_probe_asks_what_the_service_answers_where_it_listens(overlay: str) -> None:
    default = Config(socket=Path("/s")).admin
    assert default is not None
    for pod in prefill_templates(overlay):
        sidecar = container(pod, "pd-sidecar")
        (port,) = sidecar["ports"]
        probe = sidecar["startupProbe"]["httpGet"]
        for address in ("10.1.2.3", "fd00::5"):
            admin = parse_admin(variables(sidecar)["PD_SIDECAR_ADMIN"].replace("$(POD_IP)", address))
            assert admin == (address, port["containerPort"])

        assert port["containerPort"] == default[1]
        assert (probe["path"], probe["port"]) == ("/readyz", port["name"])


@on_each_overlay
def test_engine_and_sidecar_meet_at_one_socket_that_both_can_reach(overlay: str) -> None:
    for pod in prefill_templates(overlay):
        sidecar, engine = container(pod, "pd-sidecar"), pod["spec"]["containers"][0]
        path, volume = Path(variables(sidecar)["PD_SIDECAR_SOCKET"]), "pd-sidecar"
        read = read_settings(variables(engine))
        user = sidecar["securityContext"]
        group = parse_group(variables(sidecar)["PD_SIDECAR_SOCKET_GROUP"])

        assert (read.socket, read.embedded, read.disabled) == (str(path), False, False)
        assert str(path) == read_dockerfile(SIDECAR)[-1].environment["PD_SIDECAR_SOCKET"]
        assert mounts(sidecar)[volume] == mounts(engine)[volume] == str(path.parent.parent)
        assert f"{user['runAsUser']}:{user['runAsGroup']}" == read_dockerfile(SIDECAR)[-1].last("USER")
        assert group == user["runAsGroup"]
        assert group in pod["spec"]["securityContext"]["supplementalGroups"]
        assert pod["spec"]["shareProcessNamespace"]


@on_each_overlay
def test_every_variable_is_one_that_the_code_reads(overlay: str) -> None:
    known = settings_of_the_service() | {"PD_SIDECAR_EMBEDDED"}
    for pod in prefill_templates(overlay):
        for found in [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]:
            assert {name for name in variables(found) if name.startswith("PD_SIDECAR_")} <= known


@on_each_overlay
def test_the_plugin_goes_where_python_looks_for_it(overlay: str) -> None:
    for pod in prefill_templates(overlay):
        copier, engine = container(pod, "pd-sidecar-plugin"), pod["spec"]["containers"][0]
        *_, source, target = copier["command"]

        assert f"--target {Path(source).parent if source.endswith('/.') else source}" in " ".join(
            read_dockerfile(SIDECAR)[0].all("RUN")
        ).replace("  ", " ")
        assert mounts(copier)["pd-sidecar-plugin"] == target
        assert mounts(engine)["pd-sidecar-plugin"] == variables(engine)["PYTHONPATH"]


@on_each_overlay
def test_what_the_workload_had_is_still_there(overlay: str) -> None:
    written = yaml.safe_load_all((FOLDER / "overlays" / overlay / "workload.yaml").read_text())
    before = [pod["spec"]["containers"] for manifest in written for pod in templates(manifest)]
    after = [pod["spec"]["containers"] for m in render(FOLDER / "overlays" / overlay) for pod in templates(m)]

    def by_name(pods: list[list[Object]]) -> dict[str, Object]:
        return {found["name"] + str(found.get("args")): found for containers in pods for found in containers}

    kept = by_name(after)
    for name, found in by_name(before).items():
        for key, value in found.items():
            assert _is_in(value, kept[name][key]), (name, key)


def _is_in(before: Any, after: Any) -> bool:
    return all(item in after for item in before) if isinstance(before, list) else bool(before == after)


@on_each_overlay
def test_pods_have_time_to_tell_after_their_engine_has_gone(overlay: str) -> None:
    grace_s = Config(socket=Path("/s")).grace_s
    for pod in prefill_templates(overlay):
        assert pod["spec"]["terminationGracePeriodSeconds"] >= 30 + 2 * grace_s


@pytest.mark.parametrize("overlay", ["deployment", "rolebasedgroup"])
def test_policies_and_monitor_select_pods_that_there_are(overlay: str) -> None:
    manifests = render(FOLDER / "overlays" / overlay)
    pods = [pod.get("metadata", {}).get("labels", {}) for manifest in manifests for pod in templates(manifest)]
    selectors = [m["spec"]["podSelector"]["matchLabels"] for m in manifests if m["kind"] == "NetworkPolicy"]
    (monitor,) = [manifest["spec"] for manifest in manifests if manifest["kind"] == "PodMonitor"]

    assert len(selectors) == 2
    for labels in [*selectors, monitor["selector"]["matchLabels"]]:
        assert [pod for pod in pods if labels.items() <= pod.items()]
    for pod in prefill_templates(overlay):
        assert monitor["podMetricsEndpoints"][0]["port"] == container(pod, "pd-sidecar")["ports"][0]["name"]


def test_images_are_those_of_this_version() -> None:
    for name in ("sidecar", "plugin"):
        (template,) = yaml.safe_load_all((COMPONENTS / name / "pod.yaml").read_text())
        for init in template["template"]["spec"]["initContainers"]:
            assert init["image"] == f"pd-sidecar:{project()['version']}"


@pytest.mark.parametrize("component", ["sidecar", "plugin"])
def test_every_part_of_a_pod_goes_into_every_kind(component: str) -> None:
    """The lists differ by kind and path only, and leave out nothing that pod.yaml has."""
    files = yaml.safe_load((COMPONENTS / component / "kustomization.yaml").read_text())["replacements"]
    parts = [_parts(COMPONENTS / component / file["path"]) for file in files]
    (template,) = yaml.safe_load_all((COMPONENTS / component / "pod.yaml").read_text())

    assert len(files) == len(list((COMPONENTS / component).glob("into-*.yaml")))
    assert all(part == parts[0] for part in parts)
    assert set(_leaves(template["template"])) == set(parts[0])


def _parts(file: Path) -> list[str]:
    """Where in a pod template each replacement writes. One index stands for one value of a list."""
    found = []
    for replacement in yaml.safe_load(file.read_text()):
        source = replacement["source"]["fieldPath"].removeprefix("template.")
        for target in replacement["targets"]:
            (path,) = target["fieldPaths"]
            assert re.sub(r"\.0$|\.\[=65532\]$", "", path).endswith(re.sub(r"\.0$", "", source)), path
            assert target["options"] == {"create": True}
        found.append(source)
    return found


def _leaves(template: Object) -> list[str]:
    spec = template["spec"]
    (engine,) = spec["containers"]
    return [
        *(f"metadata.labels.{name}" for name in template.get("metadata", {}).get("labels", {})),
        *(["spec.shareProcessNamespace"] if "shareProcessNamespace" in spec else []),
        *(["spec.securityContext.supplementalGroups.0"] if "securityContext" in spec else []),
        *(f"spec.initContainers.[name={init['name']}]" for init in spec["initContainers"]),
        *(f"spec.containers.0.env.[name={entry['name']}]" for entry in engine["env"]),
        *(f"spec.containers.0.volumeMounts.[name={mount['name']}]" for mount in engine["volumeMounts"]),
        *(f"spec.volumes.[name={volume['name']}]" for volume in spec["volumes"]),
    ]


def _overlay(folder: Path, kind: str, labels: str, spec: str) -> tuple[Object, ...]:
    """A workload of somebody else's, with the two components."""
    shutil.copytree(COMPONENTS, folder / "components")
    text = f"apiVersion: {kind}\nmetadata: {{name: w, labels: {{pd-sidecar: {labels}}}}}\nspec: {spec}\n"
    (folder / "w").mkdir()
    (folder / "w" / "workload.yaml").write_text(text)
    parts = "[../components/sidecar, ../components/plugin]"
    (folder / "w" / "kustomization.yaml").write_text(f"resources: [workload.yaml]\ncomponents: {parts}\n")
    return render(folder / "w")


POD = "{spec: {containers: [{name: e, image: e}]}}"

OTHER_SHAPES = {
    "statefulset": ("apps/v1\nkind: StatefulSet", "prefill", f"{{template: {POD}}}", 1),
    "leaderworkerset_of_one_template": (
        "leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet",
        "prefill",
        f"{{leaderWorkerTemplate: {{workerTemplate: {POD}}}}}",
        1,
    ),
    "rolebasedgroup_of_leaders_and_workers": (
        "workloads.x-k8s.io/v1alpha2\nkind: RoleBasedGroup",
        "prefill-leaderworker",
        f"{{roles: [{{name: prefill, leaderWorkerPattern: {{template: {POD}}}}}, "
        f"{{name: decode, standalonePattern: {{template: {POD}}}}}]}}",
        1,
    ),
    "decode": ("apps/v1\nkind: Deployment", "decode", f"{{template: {POD}}}", 0),
}


@pytest.mark.parametrize(("kind", "labels", "spec", "pods"), OTHER_SHAPES.values(), ids=OTHER_SHAPES)
def test_other_shapes_of_workloads(tmp_path: Path, kind: str, labels: str, spec: str, pods: int) -> None:
    """None is given a template that it has not."""
    (manifest,) = _overlay(tmp_path, kind, labels, spec)
    found = list(templates(manifest))
    with_sidecar = [pod for pod in found if pod["spec"].get("initContainers")]

    assert len(found) == spec.count(POD)
    assert len(with_sidecar) == pods
    assert all(
        [init["name"] for init in pod["spec"]["initContainers"]] == ["pd-sidecar", "pd-sidecar-plugin"]
        for pod in with_sidecar
    )
