import pytest

from stratadvisor.errors import UsageError
from stratadvisor.probe.place import first_host, place

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


def test_mpirun_leaves_the_numbering_of_nodes_to_the_first_one() -> None:
    base = {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "n0"}
    first = place({**base, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    other = place({**base, "OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    third = place({**base, "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert first is not None
    assert other is not None
    assert third is not None
    assert [(p.node_rank, p.num_nodes, p.leads) for p in (first, other, third)] == [
        (0, 3, True),
        (None, 3, True),
        (None, 3, False),
    ]
    assert (other.address, other.port, other.store_is_running) == ("n0", 29500, False)


def test_intel_mpi_is_known_by_its_own_names() -> None:
    where = place(
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1", "MASTER_ADDR": "n0"}
    )
    assert where is not None
    assert (where.node_rank, where.num_nodes, where.leads) == (None, 2, True)


def test_a_pod_is_a_node_with_or_without_torchrun() -> None:
    operator = {"RANK": "1", "WORLD_SIZE": "2", "PET_NNODES": "2", "PET_NODE_RANK": "1", "MASTER_ADDR": "job-master-0"}
    for environ in (
        operator,
        {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-master-0", "PET_MASTER_PORT": "29400"},
        {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "job-master-0"},
        {"NNODES": "2", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "job-master-0"},
    ):
        where = place(environ)
        assert where is not None
        assert (where.node_rank, where.num_nodes, where.leads, where.address) == (1, 2, True, "job-master-0")
    # torchrun inside the pod sets its own numbers, and they count
    inside = place({**operator, **TORCHRUN})
    assert inside is not None
    assert (inside.node_rank, inside.local_rank) == (1, 1)


def test_a_step_over_a_heterogeneous_job_counts_all_components() -> None:
    """As Slurm 22.05 sets them for `salloc -N2 -n2 : -N1 -n1 srun --het-group=0,1`, and for `--het-group=1`."""
    job = {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "1",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "h[1-2]",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "h3",
    }
    step = {"SLURM_PROCID": "2", "SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3"}
    where = place({**job, **step, "SLURM_STEP_NODELIST": "h[1-3]"})
    assert where is not None
    assert (where.node_rank, where.num_nodes, where.address, where.leads) == (2, 3, "h1", True)
    step = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}
    assert place({**job, **step, "SLURM_STEP_NODELIST": "h3"}) is None


@pytest.mark.parametrize(
    "environ",
    [
        {"NNODES": "2", "NODE_RANK": "1"},
        {"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "n0"},
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        {
            "OMPI_COMM_WORLD_RANK": "8",
            "OMPI_COMM_WORLD_SIZE": "10",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
            "MASTER_ADDR": "n0",
        },
    ],
)
def test_what_does_not_tell_where_or_how_many_is_refused_with_a_way_out(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        place(environ)
    assert caught.value.hint or "contradict" in str(caught.value)
