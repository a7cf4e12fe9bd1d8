#!/usr/bin/env bash
# Written by stratadvisor "0.1.0" for plan "PLAN_DIGEST" ("fsdp2"). README.md tells how to use it.
#
# bash launch.sh [options of train_ray.py]
# Variables: PYTHON, RAY_ADDRESS (a running cluster), STRATADVISOR_RUN_DIR

set -euo pipefail

here="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
bundle="$(CDPATH='' cd -- "$here/../.." && pwd)"
if [[ ! -f $bundle/train_config.json ]]; then
    printf 'launch.sh: %s is not the bundle; leave this folder where it was written\n' "$bundle" >&2
    exit 2
fi
export STRATADVISOR_RUN_DIR="${STRATADVISOR_RUN_DIR:-$bundle/run}"
export PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" "$here/train_ray.py" "$@"
