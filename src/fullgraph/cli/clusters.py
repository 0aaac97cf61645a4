"""Complete files that start a run on a cluster: what `fullgraph train --dry-run --launcher` prints.

docs/clusters.md says how to use them; those in examples/clusters are printed by this.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from os.path import commonpath

PORT = 29500
THREADS = 8  # of a worker, where the file has to say it and the command does not


@dataclass(frozen=True)
class Cluster:
    """What is to be started.

    ``command``: words of `fullgraph train`, without --threads. ``graph``, ``out``: absolute paths
    in it, which all hosts see. ``threads``: of a worker; None where --threads was not given.
    ``restarts``: how often to bring all workers back after one failed.
    """

    command: list[str]
    graph: str
    out: str
    workers: int
    hosts: int
    threads: int | None = None
    restarts: int = 0

    @property
    def per_host(self) -> int:
        """Workers of a host. Raises ValueError unless hosts have equally many."""
        if self.hosts < 1 or self.workers % self.hosts:
            raise ValueError(
                f"--workers {self.workers} cannot be shared evenly by --hosts {self.hosts}"
            )
        return self.workers // self.hosts


def _lines(words: list[str], indent: str) -> str:
    """A command, an option a line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return f" \\\n{indent}".join(lines)


def torchrun(run: Cluster) -> str:
    """A script for every host."""
    threads = [] if run.threads is None else ["--threads", str(run.threads)]
    restarts = f" --max-restarts {run.restarts}" if run.restarts else ""
    return f"""\
#!/usr/bin/env bash
# {run.workers} workers on {run.hosts} hosts. On each of them, with its number, from 0, and the \
address of host 0:
#   NODE_RANK=0 MASTER_ADDR=host0 bash torchrun.sh
set -euo pipefail

exec torchrun --nnodes {run.hosts} --nproc-per-node {run.per_host}{restarts} \\
    --node-rank "${{NODE_RANK:?the number of this host, from 0}}" \\
    --master-addr "${{MASTER_ADDR:?the address of host 0}}" \\
    --master-port "${{MASTER_PORT:-{PORT}}}" \\
    --no-python {_lines([*run.command, *threads], "    ")}
"""


def slurm(run: Cluster) -> str:
    """An sbatch script. SLURM starts the workers itself, so it pins them and signals them."""
    if run.restarts:
        raise ValueError("--max-restarts is not for slurm: look at the log of a job that failed, "
                         "and submit it again")  # fmt: skip
    resume = """
# Interrupted, as the time is up: wait in the queue again, and go on there.
if [[ $status == 130 ]]; then scontrol requeue "$SLURM_JOB_ID"; fi
"""
    return f"""\
#!/usr/bin/env bash
#SBATCH --job-name=fullgraph
#SBATCH --nodes={run.hosts}
#SBATCH --ntasks-per-node={run.per_host}
#SBATCH --cpus-per-task={run.threads or THREADS}
#SBATCH --mem=32G
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fullgraph-%j.log
# Set --mem, of a host, to what `fullgraph plan` says; --signal leaves two minutes to save.
set -euo pipefail

read -r MASTER_ADDR < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
WORLD_SIZE=$SLURM_NTASKS
LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
export MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE

# Workers end by themselves when one is gone; killed, rank 0 could not save.
status=0
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
    bash -c 'RANK=$SLURM_PROCID exec "$@"' worker \\
    {_lines([*run.command, "--threads"], "    ")} "$SLURM_CPUS_PER_TASK" || status=$?
{resume if "--resume" in run.command else ""}exit "$status"
"""


def kubernetes(run: Cluster) -> str:
    """A PyTorchJob of the Kubeflow training operator, a pod for each worker."""
    threads = run.threads or THREADS
    args = [*run.command, "--threads", str(threads)]
    words = "\n".join(f"                - {json.dumps(word)}" for word in args)
    shared = commonpath([run.graph, run.out])
    if shared == "/":
        raise ValueError(
            f"{run.graph} and {run.out} are in no common folder, which would be the volume that "
            "all pods mount; give --out beside the graph"
        )
    policy = "OnFailure" if run.restarts else "Never"
    worker = f"""
    Worker:
      replicas: {run.workers - 1}
      restartPolicy: {policy}
      template: *worker"""
    return f"""\
# {run.workers} workers, a pod each. Replace the image and the volume claim by yours.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: fullgraph
spec:
  nprocPerNode: "1"
  runPolicy:
    cleanPodPolicy: Running
    backoffLimit: {run.restarts * run.workers}  # counts pods
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: {policy}
      template: &worker
        spec:
          terminationGracePeriodSeconds: 120
          containers:
            - name: pytorch
              image: fullgraph:latest
              command:
{words}
              resources:
                requests: {{cpu: "{threads}", memory: 16Gi}}
                limits: {{cpu: "{threads}", memory: 16Gi}}
              volumeMounts:
                - name: shared
                  mountPath: {json.dumps(shared)}
          volumes:
            - name: shared
              persistentVolumeClaim:
                claimName: shared{worker if run.workers > 1 else ""}
"""


LAUNCHERS = {"torchrun": torchrun, "slurm": slurm, "kubernetes": kubernetes}
