import socket

import pytest

from stratadvisor.errors import UsageError
from stratadvisor.probe.place import first_host, interface_towards, place
from stratadvisor.schema.profile import NicProfile

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "n0",
    "MASTER_PORT": "1234",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "gpu[07-10]",
}


def test_a_process_by_itself_has_no_place() -> None:
    assert place({}) is None
    assert place({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert place({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None
    # A batch script carries SLURM_PROCID too, without being one of several.
    assert place({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) is None


def test_torchrun_gives_every_number() -> None:
    where = place(TORCHRUN)
    assert where is not None
    assert (where.rank, where.local_rank, where.node_rank, where.num_nodes) == (5, 1, 1, 2)
    assert (where.address, where.port, where.store_is_running, where.leads) == ("n0", 1234, True, False)


def test_local_numbers_are_derived_where_a_launcher_leaves_them_out() -> None:
    where = place({"RANK": "6", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "2"})
    assert where is not None
    assert (where.local_rank, where.node_rank, where.num_nodes, where.leads) == (0, 3, 4, True)
    alone = place({"RANK": "1", "WORLD_SIZE": "2"})
    assert alone is not None
    assert (alone.num_nodes, alone.leads) == (1, False)


def test_srun_meets_on_its_first_node_at_a_port_of_the_job() -> None:
    where = place(SRUN)
    assert where is not None
    assert (where.rank, where.node_rank, where.num_nodes, where.address) == (3, 3, 4, "gpu07")
    assert where.store_is_running is False
    other = place({**SRUN, "SLURM_JOB_ID": "78"})
    assert other is not None
    assert 1024 < where.port != other.port
    named = place({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29511"})
    assert named is not None
    assert (named.address, named.port) == ("10.0.0.1", 29511)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu[07,12-15],cpu1", "gpu07"),
        ("a1,a2", "a1"),
        ("node", "node"),
        ("rack[1-2]n[03-04].x,z", "rack1n03.x"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    "environ",
    [
        {**TORCHRUN, "RANK": "9"},
        {**TORCHRUN, "RANK": "x"},
        {**TORCHRUN, "LOCAL_WORLD_SIZE": "3"},
        {name: value for name, value in SRUN.items() if name != "SLURM_NODEID"},
    ],
)
def test_contradicting_variables_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        place(environ)


LOOPBACK = NicProfile(name="lo", kind="loopback", addresses=("127.0.0.1", "127.0.1.1"))
VIRTUAL = NicProfile(name="docker0", kind="virtual", up=True, addresses=("172.17.0.1",))
DOWN = NicProfile(name="eth0", kind="ethernet", up=False, addresses=("192.0.2.9",))
REAL = NicProfile(name="eth9", kind="ethernet", up=True, addresses=("192.0.2.1",))


def test_the_interface_is_that_of_the_route() -> None:
    assert interface_towards("127.0.0.1", 29500, (REAL, LOOPBACK)) == "lo"
    assert interface_towards("127.0.0.1", 29500, (REAL,)) == ""


def test_a_name_that_leads_nowhere_or_to_the_loopback_gives_the_first_real_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nics = (LOOPBACK, VIRTUAL, DOWN, REAL)

    def unresolved(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    assert interface_towards("no-such-host", 29500, nics) == "eth9"
    loopback = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.1.1", 29500))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: loopback)  # what /etc/hosts may say of one's own name
    assert interface_towards("node0", 29500, nics) == "eth9"
    assert interface_towards("node0", 29500, (LOOPBACK, VIRTUAL)) == ""
