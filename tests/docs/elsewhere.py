"""Commands of the docs that are not executed by tests/docs: what shows that they work instead.

A command of the docs is executed in a sandbox, or it stands here. Patterns are those of fnmatch.
"""

CI = ".ci/run"
RELEASE = "tests/e2e/test_release.py"
SYSTEMD = "tests/e2e/test_systemd.py::test_the_engine_brings_its_sidecar_along_and_is_let_in"
IMAGE = "tests/e2e/test_container.py::test_the_commands_are_those_of_the_file"
ENGINE_IMAGE = "tests/deploy/test_container.py::test_the_engine_image_takes_the_wheel_of_this_version"
OVERLAYS = "tests/deploy/test_kubernetes.py::test_there_is_an_overlay_for_each_kind"

ELSEWHERE: dict[str, str] = {
    # What CI runs: the line stands in that file.
    "make test": CI,
    "make e2e": CI,
    # What a test runs: file::function.
    "make release": f"{RELEASE}::test_the_release_is_what_is_built_from_the_commit",
    "pip install pd-sidecar": f"{RELEASE}::test_into_an_engine_the_base_adds_itself_and_nothing_else",
    "pip install 'pd-sidecar[[]service]'": f"{RELEASE}::test_the_service_adds_one_package_to_an_engine",
    "pip install 'pd-sidecar[[]service,otel]'": f"{RELEASE}::test_tracing_adds_only_what_sglangs_own_extra_does",
    "pip uninstall pd-sidecar": f"{RELEASE}::test_the_base_works_without_the_service_and_goes_without_a_trace",
    "pd-sidecar run *": "tests/shell/test_process.py::sidecar",
    "pd-sidecar status --watch*": "tests/shell/test_cli.py::test_watch_goes_on_until_it_is_interrupted",
    "python -m tests.pair *": "tests/e2e/test_ends.py::pair",
    # The guide to systemd is followed to the letter, in a root of its own (tests/deploy/booted.py).
    "python3 -m venv /opt/pd-sidecar": SYSTEMD,
    "/opt/pd-sidecar/bin/pip install *": SYSTEMD,
    "install -D *": SYSTEMD,
    "systemd-sysusers": SYSTEMD,
    "systemd-tmpfiles --create *": SYSTEMD,
    "systemctl *": SYSTEMD,
    # Nothing here builds images: the commands of the file are run one by one.
    "docker build --file deploy/container/Dockerfile *": IMAGE,
    "docker build --file deploy/container/Dockerfile.engine *": ENGINE_IMAGE,
    "kubectl kustomize deploy/kubernetes/overlays/*": OVERLAYS,
    # What is only ever run by hand, and why.
    "make demo*": "by hand: 10 minutes; tests/e2e plays the same scenarios",
    "make matrix*": "by hand: 20 minutes; make e2e plays a cover of it",
    "make stress": "by hand: 30 minutes",
    "make bench": "by hand: its figures need a machine of its own",
    "make fuzz*": "by hand: as long as you like; tests/fuzz replays what it found",
    "make machines": "by hand: 20 minutes; tests/core runs the same machines for less long",
    "make orders": "by hand: 10 minutes; tests/orders runs a twentieth of them",
    "make fmt": "by hand: it rewrites the sources; make test checks the same",
}

BY_HAND = "by hand: "
"""There are few of these, and there is a reason for each."""

RUN_HERE = ("pd-sidecar", "curl", "kill")
"""Programs that a command is executed with in the sandbox. Whatever else the docs tell people to type has to be listed
above: nothing else is run on the word of a document.
"""
