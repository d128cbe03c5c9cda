#!/usr/bin/env bash
# Environments of a cluster's node, from the locks beside this file, by the kind of worker that they are for:
#   install-node.sh train-torch=gpu train-jax=gpu-jax                a GPU node: Ray runs in the first
#   install-node.sh --beside train-jax=head bench-vllm=cpu           the head: none of them is Ray's own, and `head` is Ray's own
#   install-node.sh --ray FOLDER ...                                 Ray's environment is there already (images)
# ~/crossmesh-venv runs Ray and has the head's lock; ~/crossmesh-<kind> is the environment of each kind, so that CROSSMESH_PYTHON_<KIND> is
# one path on all nodes. Ray wants one minor version of Python in a cluster, 3.12; the CPU lock and the harness's are for 3.11, and what runs
# in them are processes of their own, not Ray's.
set -euo pipefail
locks="$(cd "$(dirname "$0")" && pwd)"
uv_version="$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' "$locks/cpu.txt")"
torch="$(sed -n 's/^\(torch==[0-9.]*\)$/\1/p' "$locks/overrides-cpu.txt")"

install() { # folder lock
    local python=3.12
    case "$2" in cpu | lm-eval) python=3.11 ;; esac
    test -x "$1/bin/python" || ~/uv/bin/uv venv -q --seed --python "$python" "$1"
    # The CPU lock leaves torch out: its CPU build is not in the registry that the hashes are of.
    test "$2" != cpu || ~/uv/bin/uv pip install -q --python "$1/bin/python" --no-deps --torch-backend cpu "$torch"
    ~/uv/bin/uv pip install -q --python "$1/bin/python" --no-deps --require-hashes -r "$locks/$2.txt"
}

ray=~/crossmesh-venv
own=yes
while [ $# -gt 0 ]; do
    case "$1" in
        --ray) ray="$2" && shift 2 ;;
        --beside) own=no && shift ;;
        *) break ;;
    esac
done

python3 -c 'import ensurepip' 2>/dev/null || { # Ubuntu's Python comes without it.
    sudo apt-get update -qq && sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv
}
test -x ~/uv/bin/uv || { python3 -m venv ~/uv && ~/uv/bin/pip install -q "uv==$uv_version"; }
install "$ray" head
mkdir -p ~/.local/bin # Which login shells have in their PATH: `ray down` calls `ray stop` by its name.
ln -sfn "$ray/bin/ray" ~/.local/bin/ray
for pair in "$@"; do
    if [ "${pair#*=}" = head ]; then
        ln -sfn "$ray" ~/"crossmesh-${pair%%=*}"
    elif [ "$own" = yes ]; then
        own=no
        install "$ray" "${pair#*=}"
        ln -sfn "$ray" ~/"crossmesh-${pair%%=*}"
    else
        install ~/"crossmesh-${pair%%=*}" "${pair#*=}"
    fi
done
