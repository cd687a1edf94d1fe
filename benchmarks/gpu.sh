#!/usr/bin/env bash
# Where a step stands on one GPU: bash benchmarks/gpu.sh [PYTHON]. Meant for under five minutes; needs no network.
# A random model of 0.5B parameters in bfloat16: a step's stages against the device's rates, the log-prob step's memory
# and speed against its textbook form, tokens per second of the engines that are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${1:-python}
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
ENGINES=transformers
if "$PYTHON" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)'; then ENGINES="transformers vllm"; fi

date -u +%F
"$PYTHON" -c 'import torch; print(torch.cuda.get_device_name(), "torch", torch.__version__)'
"$PYTHON" -m benchmarks.made "$FOLDER/model" "$FOLDER/train.jsonl"
"$PYTHON" -m benchmarks.roofline --model "$FOLDER/model" --data "$FOLDER/train.jsonl" --dtype bfloat16 \
  --prompts 16 --response 256 --micro 32 --rounds 3
"$PYTHON" -m benchmarks.memory --device cuda --layers 2
"$PYTHON" -m benchmarks.memory --device cuda --layers 2 --grad
# shellcheck disable=SC2086
"$PYTHON" -m benchmarks.rollout --model "$FOLDER/model" --dtype bfloat16 --tokens 256 --engines $ENGINES
