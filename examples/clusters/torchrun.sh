#!/usr/bin/env bash
# 4 workers on 2 hosts. On each of them, with its number, from 0, and the address of host 0:
#   NODE_RANK=0 MASTER_ADDR=host0 bash torchrun.sh
set -euo pipefail

exec torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 3 \
    --node-rank "${NODE_RANK:?the number of this host, from 0}" \
    --master-addr "${MASTER_ADDR:?the address of host 0}" \
    --master-port "${MASTER_PORT:-29500}" \
    --no-python fullgraph train /shared/graph.parts \
    --layers 3 \
    --hidden 128 \
    --epochs 1000 \
    --checkpoint-every 10 \
    --resume \
    --out /shared/runs/first
