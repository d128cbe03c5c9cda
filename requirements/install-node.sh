#!/usr/bin/env bash
# Environments of a cluster's node, from the locks beside this file, by the kind of worker that they are for:
#   install-node.sh                                     the head
#   install-node.sh train-torch=gpu train-jax=gpu-jax   a GPU node
# ~/crossmesh-venv runs Ray and has the first lock; ~/crossmesh-<kind> is the environment of each kind, so that CROSSMESH_PYTHON_<KIND> is
# one path on all nodes. Everything is Python 3.12: Ray wants one minor version in a cluster.
set -euo pipefail
locks="$(cd "$(dirname "$0")" && pwd)"
python=3.12
uv_version="$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' "$locks/cpu.txt")"

install() { # folder lock
    test -x "$1/bin/python" || ~/uv/bin/uv venv -q --seed --python "$python" "$1"
    ~/uv/bin/uv pip install -q --python "$1/bin/python" --no-deps --require-hashes -r "$locks/$2.txt"
}

python3 -c 'import ensurepip' 2>/dev/null || { # Ubuntu's Python comes without it.
    sudo apt-get update -qq && sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
}
test -x ~/uv/bin/uv || { python3 -m venv ~/uv && ~/uv/bin/pip install -q "uv==$uv_version"; }
install ~/crossmesh-venv head
first=yes
for pair in "$@"; do
    if [ "$first" = yes ]; then
        first=no
        install ~/crossmesh-venv "${pair#*=}"
        ln -sfn ~/crossmesh-venv ~/"crossmesh-${pair%%=*}"
    else
        install ~/"crossmesh-${pair%%=*}" "${pair#*=}"
    fi
done
