"""Launchers of several ranks: a port of its own for each copy of a program, and whether there are other hosts."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from diagnose.program.rendezvous import held_port, names_several_hosts, with_own_port


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("torchrun --nproc-per-node 2 t.py", "torchrun --standalone --nproc-per-node 2 t.py"),
        ("torchrun --nnodes=1 --nproc-per-node 2 t.py", "torchrun --standalone --nnodes=1 --nproc-per-node 2 t.py"),
        ("torchrun --nnodes 1:1 t.py", "torchrun --standalone --nnodes 1 t.py"),
        ("torchrun t.py --node-rank 1", "torchrun --standalone t.py --node-rank 1"),
        ("torchrun t.py --master_port 1", "torchrun --standalone t.py --master_port 7"),
        ("srun -n1 torchrun -m trainer --rdzv-id 7", "srun -n1 torchrun -m trainer --rdzv-id 7"),
        ("srun -n1 torchrun -m trainer --lr 7", "srun -n1 torchrun --standalone -m trainer --lr 7"),
        ("torchrun --nnodes 2 --node-rank 0 t.py", "torchrun --nnodes 2 --node-rank 0 t.py"),
        ("torchrun --nnodes=1:4 t.py", "torchrun --standalone --nnodes=1 t.py"),
        (
            "torchrun --nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint head.cluster:29400 t.py --nnodes 1:4",
            "torchrun --standalone --nnodes 1 --rdzv-backend c10d --rdzv-endpoint head.cluster:29400 t.py --nnodes 1:4",
        ),
        ("torchrun --nnodes=1 --nproc-per-node=gpu t.py", "torchrun --standalone --nnodes=1 --nproc-per-node=gpu t.py"),
        ("torchrun --standalone t.py", "torchrun --standalone t.py"),
        ("torchrun --rdzv-backend c10d t.py", "torchrun --rdzv-backend c10d t.py"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run --standalone t.py"),
        ("python3 -u -m torch.distributed.launch t.py", "python3 -u -m torch.distributed.launch --standalone t.py"),
        ("torchrun --master_port 29501 t.py", "torchrun --master_port 7 t.py"),
        ("torchrun --master-port=29501 t.py", "torchrun --master-port=7 t.py"),
        ("torchrun --rdzv-endpoint=localhost:29400 t.py", "torchrun --rdzv-endpoint=localhost:7 t.py"),
        ("torchrun --rdzv_endpoint head.cluster:29400 t.py", "torchrun --rdzv_endpoint head.cluster:29400 t.py"),
        ("accelerate launch --num_processes 2 t.py", "accelerate launch --main_process_port 7 --num_processes 2 t.py"),
        ("accelerate launch --main_process_port 1 t.py", "accelerate launch --main_process_port 7 t.py"),
        ("deepspeed t.py --deepspeed", "deepspeed --master_port 7 t.py --deepspeed"),
        ("python t.py --port 1", "python t.py --port 1"),
    ],
)
def test_launchers_get_a_port_of_their_own(words: str, expected: str) -> None:
    assert with_own_port(words.split(), {}, 7)[0] == expected.split()


def test_a_launcher_that_the_environment_tells_where_to_meet_is_left_alone() -> None:
    words = ["torchrun", "t.py"]
    assert with_own_port(words, {"PET_RDZV_BACKEND": "c10d"}, 7)[0] == words


def test_copies_share_what_slurm_has_allocated() -> None:
    assert with_own_port(["srun", "-n2", "python", "t.py"], {}, 7)[1] == {"SLURM_OVERLAP": "1"}
    assert with_own_port(["mpirun", "-n", "2", "python", "t.py"], {}, 7)[1] == {}


def test_a_port_that_the_environment_names_is_replaced() -> None:
    before: Mapping[str, str] = {"MASTER_PORT": "29500", "MASTER_ADDR": "localhost"}
    assert with_own_port(["python", "t.py"], before, 7)[1] == {"MASTER_PORT": "7", "MASTER_ADDR": "localhost"}


def test_a_held_port_is_kept_from_all_but_a_store_until_it_is_let_go() -> None:
    distributed = pytest.importorskip("torch.distributed")
    with held_port() as port, held_port() as other:
        assert port != other
        with pytest.raises(OSError, match="in use"), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
        store = distributed.TCPStore("127.0.0.1", port, 1, True)  # as init_process_group makes it
        store.set("key", "value")
        assert store.get("key") == b"value"
        del store
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", other))


@pytest.mark.parametrize(
    ("words", "several"),
    [
        ("torchrun --nnodes 2 --node-rank 0 train.py", True),
        ("python -m torch.distributed.run --nnodes=2:4 train.py", True),
        ("python -m torch.distributed.run --nnodes=1:4 train.py", False),
        ("accelerate launch --num_machines 2 train.py", True),
        ("accelerate launch --multi_gpu train.py", False),
        ("deepspeed --num_nodes=2 train.py", True),
        ("deepspeed --num_gpus 4 train.py", False),
        ("srun -N2 -n 8 python train.py", True),
        ("srun -N 2 python train.py", True),
        ("srun --nodes=2-4 python train.py", True),
        ("srun -N1 -n 4 python train.py", False),
        ("srun -n 4 python train.py -N 2", False),
        ("mpirun -np 4 python train.py", False),
        ("mpirun -n 4 -N 2 python train.py", False),
        ("torchrun -m package.train --nodes 2", False),
        ("torchrun --nnodes 1 --nproc-per-node 8 train.py --num_nodes 2", False),
        ("torchrun --nnodes=1:1 train.py", False),
        ("torchrun train.py --num_nodes 2", False),
        ("torchrun --nproc-per-node 2 train.py", False),
    ],
)
def test_a_launcher_says_whether_it_waits_for_other_hosts(words: str, several: bool) -> None:
    assert names_several_hosts(words.split(), {}) is several


@pytest.mark.parametrize(
    ("words", "variables", "several"),
    [
        ("srun python train.py", {"SLURM_NNODES": "2"}, True),
        ("srun -N1 python train.py", {"SLURM_NNODES": "2"}, False),
        ("srun torchrun --nnodes=1 train.py", {"SLURM_NNODES": "2"}, True),
        ("torchrun train.py", {"SLURM_NNODES": "2"}, False),
        ("torchrun train.py", {"PET_NNODES": "2"}, True),
        ("torchrun train.py", {"PET_NNODES": "1:2"}, False),
    ],
)
def test_the_environment_says_it_where_the_words_do_not(words: str, variables: dict[str, str], several: bool) -> None:
    assert names_several_hosts(words.split(), variables) is several
