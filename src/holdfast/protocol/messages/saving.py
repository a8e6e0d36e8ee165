"""Checkpoints: which versions are saved, by whom, and whether it worked."""

from dataclasses import dataclass

from holdfast.protocol.fields import (
    Hash,
    Label,
    Layer,
    Number,
    PartFile,
    PartName,
    Seconds,
    Sha256,
    StageNumber,
    Step,
    WorkerName,
)
from holdfast.protocol.records import SaveRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveAt:
    """coordinator -> worker: which versions are saved. All rules so far; only their end is new."""

    rules: list[SaveRule]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOnce:
    """coordinator -> member: save this version as well. Takes effect aside.

    Who has come past it already does nothing, unless it was the last one.
    """

    step: Step
    writers: dict[StageNumber, WorkerName]  # stage -> who writes its part; others: as ever


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPart:
    """worker -> coordinator: its layers of a checkpoint are on disk."""

    worker: WorkerName
    step: Step
    directory: PartName  # as in Assign
    layers: list[Number]
    digests: dict[PartFile, Sha256]  # file -> sha256
    sizes: dict[PartFile, Number]  # file -> bytes
    hashes: dict[Layer, Hash]  # as in StateHashes
    state: dict[Label, Label | None]  # what is not a tensor, e.g. the LR schedule's
    took_s: Seconds
    copy_s: Seconds  # of that: for a copy beside the training; 0: it was taken before


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFailed:
    """worker -> coordinator: its part could not be written, although it was tried again."""

    worker: WorkerName
    step: Step
    reason: str  # one line


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHashes:
    """worker -> coordinator, from every holder that writes no part: replicas must agree."""

    worker: WorkerName
    step: Step  # optimizer steps that the state has had
    hashes: dict[Layer, Hash]  # layer -> hash of parameters, buffers, optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """coordinator -> worker: a checkpoint is whole. No log of a step before it is of use."""

    step: Step


SaveMessage = SaveAt | SaveOnce | CheckpointPart | PartFailed | StateHashes | Sealed
