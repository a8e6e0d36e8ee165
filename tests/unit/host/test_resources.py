"""What a machine says of itself. GPUs are read from a driver's files, made up here."""

import os

import pytest

from holdfast.host.resources import devices, memory_bytes

ALL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1073741824\n", 1 << 30), ("max\n", ALL), (f"{4 * ALL}\n", ALL), ("nonsense", ALL)],
)
def test_a_container_has_no_more_memory_than_its_limit(tmp_path, limit, expected):
    (tmp_path / "memory.max").write_text(limit)
    assert memory_bytes(tmp_path) == expected


def test_without_a_limit_all_of_the_machine_counts(tmp_path):
    assert memory_bytes(tmp_path) == ALL


def test_gpus_are_called_as_their_driver_calls_them(tmp_path):
    for number, text in enumerate(["Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n", "IRQ: 6\n"]):
        folder = tmp_path / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(text)
    assert devices(tmp_path) == ["cpu", "NVIDIA H100 80GB HBM3", "GPU"]


def test_without_a_driver_there_is_the_processor(tmp_path):
    assert devices(tmp_path) == ["cpu"]
