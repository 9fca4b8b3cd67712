"""The files of deploy/ for containers and services: their commands run, in their environment, against a real server."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from configparser import ConfigParser
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
import yaml

from tests.deploy.locked_server import PASSWORD, environment_of, locked, mounted, url_of
from tests.pages import DOCS, PROJECT, blocks, follow
from tests.ports import free_port
from tests.postgres import Server

__all__ = ["locked"]

pytestmark = pytest.mark.one_database

DEPLOY = PROJECT / "deploy"
UNIT = DEPLOY / "systemd" / "runner@.service"
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
(DEPLOYMENT, BUDGET) = yaml.safe_load_all((DEPLOY / "kubernetes" / "runner.yaml").read_text())
POD = DEPLOYMENT["spec"]["template"]["spec"]
(KEDA_LOGIN, SCALED) = yaml.safe_load_all((DEPLOY / "kubernetes" / "keda.yaml").read_text())
(TRIGGER,) = SCALED["spec"]["triggers"]
WAIT_SECONDS = 60.0


class Container:
    """A command of a file, started with its environment in a folder of the test.

    Args:
        environment: the environment of the file, with the folder of secrets of the test.
    """

    def __init__(self, folder: Path, command: list[str], environment: dict[str, str], **options: Any) -> None:
        self.folder, self.environment = folder, environment_of(folder, **environment)
        self.log = folder / "log"
        with self.log.open("ab") as log:
            program = shutil.which(command[0], path=self.environment["PATH"])
            self.process = subprocess.Popen(
                [program or command[0], *command[1:]],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **options,
            )

    def succeed(self) -> None:
        assert self.process.wait(WAIT_SECONDS) == 0, self.log.read_text()

    def drain(self, seconds: float) -> None:
        """End it as a service manager does, and require that it finishes its task within the time of the file."""
        subprocess.run(["runner", "submit", "shop.hold"], cwd=self.folder, env=self.environment, check=True)
        until((self.folder / "started").exists, self.log)
        self.process.terminate()
        until(lambda: "draining" in self.log.read_text(), self.log)
        (self.folder / "go").touch()
        assert self.process.wait(seconds) == 0, self.log.read_text()


def until(condition: Callable[[], object], log: Path) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def states(server: Server) -> set[str]:
    with psycopg.connect(server.url("shop")) as connection:
        rows = connection.execute("SELECT handler, state FROM task_history ORDER BY id DESC LIMIT 1").fetchall()
    return {f"{handler} {state}" for handler, state in rows}


@pytest.mark.slow
def test_the_programs_of_compose_log_in_work_and_drain(locked: Server, tmp_path: Path) -> None:
    services, port = COMPOSE["services"], free_port()
    (tmp_path / "db_password.txt").write_text(f"{PASSWORD}\n")
    secrets = mounted(
        tmp_path, **{name: (tmp_path / each["file"]).read_text() for name, each in COMPOSE["secrets"].items()}
    )

    def start(name: str) -> Container:
        service = services[name]
        assert service["secrets"] == ["tasktui_password"]
        url = service["environment"]["TASKTUI_URL"].replace("@db/", f"@127.0.0.1:{locked.port}/")
        command = [word.replace(":9464", f":{port}") for word in service["command"]]
        # Only root may mount at /run/secrets; the variable names the same folder elsewhere.
        return Container(tmp_path, command, {"TASKTUI_URL": url, "TASKTUI_SECRETS_DIR": str(secrets)})

    start("migrate").succeed()
    runner = start("runner")
    kind, *check = [word.replace(":9464", f":{port}") for word in services["runner"]["healthcheck"]["test"]]
    assert kind == "CMD"
    healthy = [sys.executable, *check[1:]]
    until(lambda: subprocess.run(healthy, capture_output=True, check=False).returncode == 0, runner.log)
    runner.drain(float(services["runner"]["stop_grace_period"].removesuffix("s")))
    assert states(locked) == {"shop.hold succeeded"}
    database = services["db"]
    assert database["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/tasktui_password"
    assert services["runner"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["depends_on"]["db"]["condition"] == "service_healthy"


@pytest.mark.slow
def test_the_containers_of_kubernetes_log_in_answer_probes_and_drain(locked: Server, tmp_path: Path) -> None:
    (first,), (main,) = POD["initContainers"], POD["containers"]
    secrets, port = mounted(tmp_path, tasktui_url=url_of(locked), tasktui_password=PASSWORD), free_port()
    service = {"SHOP_RUNNER_SERVICE_HOST": "10.0.0.1", "TASKTUI_PORT": "tcp://10.0.0.1:80"}  # of older manifests

    def start(container: dict[str, Any]) -> Container:
        (folder,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "secrets"]
        environment = {each["name"]: each["value"].replace(folder, str(secrets)) for each in container["env"]}
        command = [word.replace("0.0.0.0:9464", f"127.0.0.1:{port}") for word in container["args"]]
        return Container(tmp_path, command, environment | service)

    migrations = [start(first), start(first)]  # two pods start at the same time
    for migration in migrations:
        migration.succeed()
    runner = start(main)
    assert [each["containerPort"] for each in main["ports"]] == [9464]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = main[probe]["httpGet"]["path"]
        until(partial(answers, f"http://127.0.0.1:{port}{path}"), runner.log)
    runner.drain(float(POD["terminationGracePeriodSeconds"]))
    assert states(locked) == {"shop.hold succeeded"}


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
def test_the_user_of_the_image_can_read_the_new_password(tmp_path: Path) -> None:
    create = commands("Compose", "openssl").partition("\n")[0]
    follow(create, tmp_path, environment_of(tmp_path))
    file = tmp_path / COMPOSE["secrets"]["tasktui_password"]["file"]
    assert re.fullmatch(r"[0-9a-f]{48}\n", file.read_text())
    assert file.stat().st_mode & 0o777 == 0o444


def test_the_pod_is_locked_down_and_waits_longer_than_a_drain() -> None:
    assert POD["terminationGracePeriodSeconds"] >= 36
    assert (POD["enableServiceLinks"], POD["automountServiceAccountToken"]) == (False, False)
    assert POD["securityContext"]["runAsNonRoot"]
    for container in POD["initContainers"] + POD["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in POD["volumes"]}
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels == BUDGET["spec"]["selector"]["matchLabels"]


@pytest.mark.skipif(not shutil.which("kubernetes-validate"), reason="needs the group deploy of packages")
def test_the_manifest_fits_the_schemas_of_kubernetes() -> None:
    command = ["kubernetes-validate", "--strict", str(DEPLOY / "kubernetes" / "runner.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_keda_counts_the_running_and_the_ready_tasks(locked: Server, tmp_path: Path) -> None:
    environment = {"TASKTUI_URL": url_of(locked), "TASKTUI_PASSWORD": PASSWORD}
    Container(tmp_path, ["runner", "migrate"], environment).succeed()
    password = [each["key"] for each in KEDA_LOGIN["spec"]["secretTargetRef"] if each["parameter"] == "password"]
    assert password == ["tasktui_password"]
    assert SCALED["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    metadata = TRIGGER["metadata"]
    assert TRIGGER["authenticationRef"]["name"] == KEDA_LOGIN["metadata"]["name"]
    url = f"host=127.0.0.1 port={locked.port} user={metadata['userName']} dbname={metadata['dbName']}"
    with psycopg.connect(url, password=PASSWORD, autocommit=True) as connection:
        before = connection.execute(metadata["query"]).fetchall()
        for _ in range(3):
            connection.execute("INSERT INTO task(handler) VALUES ('nowhere.now')")
        connection.execute("INSERT INTO task(handler, run_at) VALUES ('nowhere.late', now() + interval '1 day')")
        after = connection.execute(metadata["query"]).fetchall()
        connection.execute("DELETE FROM task WHERE handler LIKE 'nowhere.%'")
    assert after[0][0] - before[0][0] == 3
    assert len(after) == len(after[0]) == 1
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA reads texts"


def commands(section: str, program: str) -> str:
    """The commands of a section of the page, from the block that begins with a program."""
    (found,) = [each.text for each in blocks(DOCS / "deploy.md", "text", section) if each.text.startswith(program)]
    return found


def drop_in() -> str:
    """The file that the page adds to the unit."""
    return commands("systemd", "mkdir").partition("<<'END'\n")[2].partition("END\n")[0]


class Unit(ConfigParser):
    """A unit of systemd, whose names may be there twice."""

    def __init__(self) -> None:
        super().__init__(interpolation=None, strict=False, delimiters=("=",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.read(UNIT)


@pytest.mark.slow
def test_the_unit_of_systemd_logs_in_reports_and_drains(locked: Server, tmp_path: Path) -> None:
    service = Unit()["Service"]
    credential, _, source = service["LoadCredential"].partition(":")
    secrets = mounted(tmp_path, **{credential: PASSWORD})
    assert Path(source).is_absolute()
    variables = dict(each.split("=", 1) for each in shlex.split(service["Environment"]))
    variables = {name: value.replace("%d", str(secrets)) for name, value in variables.items()}
    variables["TASKTUI_URL"] = variables["TASKTUI_URL"].replace("db.example.org", f"127.0.0.1:{locked.port}")
    Container(tmp_path, ["runner", "migrate"], variables).succeed()
    listen, _, address = drop_in().partition("\nEnvironment=")[2].strip().partition("=")
    assert address.replace("%i", "1") == "127.0.0.1:9461"
    variables[listen] = address = f"127.0.0.1:{free_port()}"
    command = shlex.split(service["ExecStart"])
    assert Path(command[0]).is_absolute()
    limits = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": f"{int(service['WatchdogSec']) * 1_000_000}"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(WAIT_SECONDS)
        manager.bind(limits["NOTIFY_SOCKET"])
        runner = Container(tmp_path, [Path(command[0]).name, *command[1:]], variables | limits)
        received = ""
        while "READY=1" not in received or "WATCHDOG=1" not in received:
            received += manager.recv(4096).decode()
        assert answers(f"http://{address}/readyz")
        runner.drain(float(service["TimeoutStopSec"]))
        while "STOPPING=1" not in received:
            received += manager.recv(4096).decode()
    assert states(locked) == {"shop.hold succeeded"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_unit_and_rates_its_exposure_below_3(tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", str(UNIT)]
    rated = subprocess.run(command, capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout[-300:] + rated.stderr
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/srv/shop/.venv/bin/runner", "/bin/true"))
    folder = tmp_path / f"{UNIT.name}.d"
    folder.mkdir()
    (folder / "probes.conf").write_text(drop_in())
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.slow
def test_the_procfile_runs_on_a_platform_with_a_database_url(locked: Server, tmp_path: Path) -> None:
    lines = dict(line.split(": ", 1) for line in (DEPLOY / "Procfile").read_text().splitlines())
    login = url_of(locked).replace("shop@", "shop:correct%20horse@")
    for name in ("release", "worker"):
        command = lines[name].replace("sslmode=require", "sslmode=disable")  # the server of the tests has no TLS
        command += " --until-idle" if name == "worker" else ""
        Container(tmp_path, ["bash", "-c", command], {"DATABASE_URL": login}).succeed()


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their arguments."""
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line and not line.startswith("#")]  # type: ignore[misc]


@pytest.mark.slow
def test_the_command_of_the_image_runs_without_home_and_user(locked: Server, tmp_path: Path) -> None:
    found = dict(instructions())
    assert re.fullmatch(r"\d+:\d+", found["USER"])
    port = free_port()
    command = [word.replace("0.0.0.0:9464", f"127.0.0.1:{port}") for word in json.loads(found["CMD"])]
    environment = {"TASKTUI_URL": url_of(locked), "TASKTUI_PASSWORD": PASSWORD}
    variables = dict(each.split("=", 1) for each in found["ENV"].split())
    Container(tmp_path, ["runner", "migrate"], environment).succeed()
    runner = Container(tmp_path, command, environment | variables)
    until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), runner.log)
    runner.drain(40)
    requirements = (DEPLOY / "docker" / "requirements.txt").read_text().split()
    assert requirements == ["tasktui[console,postgres]"]
    copied = [words.split()[0] for name, words in instructions() if name == "COPY"]
    assert copied == ["requirements.txt", "shop"]


@pytest.mark.skipif(not shutil.which("hadolint"), reason="needs the group deploy of packages")
def test_hadolint_has_no_complaint() -> None:
    command = ["hadolint", str(DEPLOY / "docker" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_page_shows_each_file() -> None:
    shown = re.findall(r"<!-- file (\S+) -->", (DOCS / "deploy.md").read_text())
    assert [name for name in shown if not (PROJECT / name).is_file()] == []
    folders = ("docker", "kubernetes", "systemd")
    files = [file for folder in folders for file in (DEPLOY / folder).iterdir() if file.name != "requirements.txt"]
    assert sorted(shown) == sorted(str(file.relative_to(PROJECT)) for file in [*files, DEPLOY / "Procfile"])
