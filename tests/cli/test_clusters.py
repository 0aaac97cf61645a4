"""The files that `--dry-run` prints are those of examples/clusters, and they train.

Hosts are processes on this machine. `srun` and `scontrol` are scripts that do what SLURM does:
start so many tasks, each with its number, and hand a signal on to them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fullgraph.cli import main
from fullgraph.graph.folder import save
from fullgraph.graph.partition import partition
from fullgraph.graph.sources import read
from fullgraph.training.run_folder import RunFolder
from fullgraph.training.snapshot import find
from tests.cli.commands import environment
from tests.training.test_events import TIME

ROOT = Path(__file__).parents[2]
SMALL = "planted:nodes=300,edges=900,classes=3,features=8"
EXAMPLES = {
    "torchrun.sh": ("--launcher", "torchrun", "--hosts", "2", "--max-restarts", "3"),
    "slurm.sbatch": ("--launcher", "slurm", "--hosts", "2"),
    "kubernetes.yaml": ("--launcher", "kubernetes", "--max-restarts", "5"),
    "one machine": (),
}
OPTIONS = ("--layers", "3", "--hidden", "128", "--epochs", "1000", "--checkpoint-every", "10")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all hosts see, with a graph of 4 parts."""
    folder = tmp_path_factory.mktemp("shared")
    save(partition(read(SMALL), 4), folder / "graph.parts")
    return folder


@pytest.fixture
def printed(
    shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """What `fullgraph train` prints with these words; it must not start anything."""

    def call(*words: str, graph: str = "graph.parts", code: int = 0) -> str:
        before = sorted(shared.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["fullgraph", "train", graph, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        assert sorted(shared.rglob("*")) == before
        return err if code else out

    def refuse(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("fullgraph.training.launch.run_workers", refuse)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(shared)
    return call


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_and_docs_are_what_a_dry_run_prints(name: str, printed: Any, shared: Path) -> None:
    own = () if EXAMPLES[name] else ("--threads", "2")
    text = printed(
        "--workers", "4", *OPTIONS, *own, "--out", str(shared / "runs/first"), "--dry-run",
        *EXAMPLES[name], graph=str(shared / "graph.parts"),
    ).replace(str(shared), "/shared")  # fmt: skip
    if EXAMPLES[name]:
        assert text == (ROOT / "examples" / "clusters" / name).read_text()
    assert text.strip() in (ROOT / "docs" / "clusters.md").read_text()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--workers 5 --dry-run", "5 workers cannot share 4 part(s)"),
        ("--dry-run --placement vertex-cut", "was partitioned into parts of nodes"),
        ("--dry-run --launcher pbs", "--launcher must be one of torchrun, slurm, kubernetes"),
        ("--dry-run --workers 3 --hosts 2", "--workers 3 cannot be shared evenly by --hosts 2"),
        ("--dry-run --workers 3 --hosts 0", "cannot be shared evenly by --hosts 0"),
        ("--dry-run --launcher kubernetes --hosts 2", "a pod for each worker; leave --hosts out"),
        ("--dry-run --launcher slurm --overwrite", "--overwrite would remove"),
        ("--dry-run --launcher slurm --max-restarts 2", "--max-restarts is not for slurm"),
        ("--hosts 2", "--hosts and --launcher say what --dry-run prints"),
        ("--dry-run --out graph.parts", "graph.parts exists; choose another --out"),
        ("--dry-run --launcher kubernetes --out /elsewhere/run", "are in no common folder"),
    ],
)
def test_a_dry_run_refuses_what_would_fail(words: str, wanted: str, printed: Any) -> None:
    assert wanted in printed(*words.split(), code=2)


def test_a_graph_that_is_not_partitioned_is_not_read_and_not_for_a_cluster(printed: Any) -> None:
    line = printed("--dry-run", "--threads", "1", "--out", "a b", graph="planted:nodes=9,edges=9")
    assert line == "fullgraph train planted:nodes=9,edges=9 --threads 1 --out 'a b'\n"
    err = printed("--dry-run", "--hosts", "2", "--workers", "2", graph="planted:nodes=9,edges=9",
                  code=2)  # fmt: skip
    assert "fullgraph partition planted:nodes=9,edges=9 --parts 2 --out FOLDER" in err
    for graph, wanted in (("no.npz", "is neither a file"), ("planted:nodes=x", "nodes")):
        assert wanted in printed("--dry-run", graph=graph, code=2)


# What a PyTorchJob of kubeflow.org/v1 takes, of the fields that ours has; no others are allowed.
TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **optional}, "required": [*required],
            "additionalProperties": False}  # fmt: skip


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


AMOUNTS = _object({"cpu": {"type": "string", "pattern": r"^\d+$"},
                   "memory": {"type": "string", "pattern": r"^\d+Gi$"}})  # fmt: skip
CONTAINER = _object(
    {"name": {"const": "pytorch"}, "image": TEXT, "command": _array(TEXT)},
    resources=_object({"requests": AMOUNTS, "limits": AMOUNTS}),
    volumeMounts=_array(_object({"name": TEXT, "mountPath": {"type": "string", "pattern": "^/"}})),
)  # fmt: skip
VOLUME = _object({"name": TEXT, "persistentVolumeClaim": _object({"claimName": TEXT})})
POD = _object({"containers": _array(CONTAINER)}, terminationGracePeriodSeconds=COUNT,
              volumes=_array(VOLUME))  # fmt: skip
REPLICA = _object({"replicas": COUNT, "template": _object({"spec": POD})},
                  restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]})  # fmt: skip
PYTORCH_JOB = _object({
    "apiVersion": {"const": "kubeflow.org/v1"},
    "kind": {"const": "PyTorchJob"},
    "metadata": _object({"name": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"}}),
    "spec": _object(
        {"pytorchReplicaSpecs": _object({"Master": REPLICA}, Worker=REPLICA)},
        nprocPerNode={"type": "string"},
        runPolicy=_object({}, cleanPodPolicy={"enum": ["None", "All", "Running"]},
                          backoffLimit={"type": "integer", "minimum": 0}),
    ),
})  # fmt: skip


@pytest.mark.parametrize("workers", [1, 4])
def test_the_kubernetes_manifest_fits_its_schema_and_has_a_pod_a_worker(
    workers: int, printed: Any, shared: Path
) -> None:
    words = ("--workers", str(workers), "--threads", "6", "--dropout", "0", "--resume")
    text = printed(*words, "--out", "runs/k", "--dry-run", "--launcher", "kubernetes")
    job = yaml.safe_load(text)
    jsonschema.validate(job, PYTORCH_JOB)
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert sum(replica["replicas"] for replica in replicas.values()) == workers
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        spec = replica["template"]["spec"]
        (container,) = spec["containers"]
        assert container["command"] == [
            "fullgraph", "train", str(shared / "graph.parts"), "--dropout", "0.0", "--resume",
            "--out", str(shared / "runs/k"), "--threads", "6",
        ]  # fmt: skip
        assert container["resources"]["limits"]["cpu"] == "6"
        (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
        assert (mount["mountPath"], mount["name"]) == (str(shared), volume["name"])
    job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["container"] = []
    with pytest.raises(jsonschema.ValidationError, match="container"):
        jsonschema.validate(job, PYTORCH_JOB)


SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
tasks=()
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do SLURM_PROCID=$rank "$@" & tasks+=($!); done
# Hosts get a signal at different times; here the last rank long before the first.
trap 'kill -TERM "${tasks[1]}"; sleep 1.5; kill -TERM "${tasks[0]}"' TERM
echo $$ > srun.pid
status=0
for task in "${tasks[@]}"; do
    while kill -0 "$task" 2> /dev/null; do wait "$task"; done
    wait "$task" || status=$?
done
exit "$status"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo 127.0.0.1; echo host1; else echo "$@" >> scontrol.log; fi
"""


def _slurm(folder: Path) -> subprocess.Popen[str]:
    """As sbatch starts the script slurm.sbatch in `folder`: 2 tasks on 2 hosts."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "1",
    }  # fmt: skip
    return _start(["bash", "slurm.sbatch"], folder, slurm, str(programs))


def _start(
    command: list[str], folder: Path, more: dict[str, str], programs: str = "."
) -> subprocess.Popen[str]:
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        command, cwd=folder, env={**environment(), **more, "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def _kill(process: subprocess.Popen[str]) -> None:
    """With all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _lines(out: str) -> dict[str, list[str]]:
    """Messages by who wrote them; every line has a time and a rank, and nothing of a terminal."""
    assert not re.search(r"[^\x20-\x7e\n]", out)
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        match = re.fullmatch(rf"{TIME} (rank \d+) (.*)", line)
        assert match, line
        found.setdefault(match[1], []).append(match[2])
    return found


@pytest.mark.slow
def test_slurm_saves_and_waits_again_when_the_time_is_up_and_torchrun_goes_on(
    printed: Any, shared: Path, tmp_path: Path
) -> None:
    options = ("--workers", "2", "--out", str(shared / "runs/moved"), "--checkpoint-every",
               "1000000", "--dry-run", "--hosts", "2")  # fmt: skip
    script = printed(*options, "--epochs", "1000000", "--launcher", "slurm")
    (tmp_path / "slurm.sbatch").write_text(script)
    folder = RunFolder(shared / "runs" / "moved")
    job = _slurm(tmp_path)
    try:
        deadline = time.monotonic() + 90
        while len(folder.metrics()) < 3:
            assert job.poll() is None, job.communicate()
            assert time.monotonic() < deadline, "training did not start"
            time.sleep(0.1)
        os.kill(int((tmp_path / "srun.pid").read_text()), signal.SIGTERM)
        out, err = job.communicate(timeout=120)
    finally:
        _kill(job)
    assert job.returncode == 130, err
    assert (tmp_path / "scontrol.log").read_text() == "requeue 4711\n"
    done = len(folder.metrics())
    assert folder.result()["status"] == "interrupted"
    assert [path.name for path in find(folder.checkpoints)] == [f"epoch-{done:06d}"]
    said = _lines(out)
    assert said["rank 0"][-2] == f"checkpoint after epoch {done}"
    assert [line.startswith("starting on ") for line in said["rank 1"]] == [True]

    words = ("--epochs", str(done + 3), "--resume", "--json", "--log-json")
    script = printed(*options, *words, "--launcher", "torchrun")
    (tmp_path / "torchrun.sh").write_text(script)
    port = str(20000 + os.getpid() % 20000)
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    agents = [
        _start(["bash", "torchrun.sh"], tmp_path, {**places, "NODE_RANK": str(number)})
        for number in range(2)
    ]
    try:
        outs = [agent.communicate(timeout=120) for agent in agents]
    finally:
        for agent in agents:
            _kill(agent)
    assert [agent.returncode for agent in agents] == [0, 0], outs
    assert json.loads(outs[0][0]) == {"run": str(folder.path), **folder.result()}
    assert outs[1][0] == ""
    events = [[json.loads(line) for line in err.splitlines() if line.startswith("{")]
              for _, err in outs]  # fmt: skip
    assert [(event["event"], event["rank"]) for event in events[0]] == [
        ("start", 0), ("resume", 0), ("epoch", 0), ("epoch", 0), ("epoch", 0), ("checkpoint", 0),
        ("result", 0),
    ]  # fmt: skip
    assert [(event["event"], event["rank"]) for event in events[1]] == [("start", 1)]
    assert [line["epoch"] for line in folder.metrics()] == list(range(1, done + 4))
    result = folder.result()
    assert (result["status"], result["workers"]) == ("finished", 2)
