"""The job as a worker loads it: at its start, and again when its layers are used up or given away.

Each time it must be the same job. Knows nothing of stages in training.
"""

import sys
from collections.abc import Callable

import torch

from holdfast.bundle.unpacking import import_folders
from holdfast.data.batches import Batches
from holdfast.device.choosing import CPU, open_device
from holdfast.device.processor import PROCESSOR, Device
from holdfast.errors import ConfigError
from holdfast.job import Job
from holdfast.job_call import load_job
from holdfast.job_reference import Reference
from holdfast.models.emulated import emulated_job
from holdfast.protocol import messages
from holdfast.protocol.spec import WorkerSpec
from holdfast.runtime.job.bit_changers import before_loading, check_bits
from holdfast.runtime.job.torch_settings import SettingsWatch
from holdfast.runtime.job.traits import check_unchanged, check_validation, job_traits
from holdfast.runtime.stage.measure import measure_layers
from holdfast.runtime.stage.named_tensors import (
    hash_of_built,
    hash_of_each,
    live_tensors,
    names_of_each,
)
from holdfast.runtime.stage.precision import Precision
from holdfast.runtime.stage.seeding import DRAWING
from holdfast.runtime.stage.sparing import sparing
from holdfast.schedule.cut import stage_ranges
from holdfast.weights.naming import named_by
from holdfast.weights.place import on_this_machine
from holdfast.weights.starting import StartingWeights


class JobLoader:
    """``warn`` is told of what the job does that it should not do."""

    def __init__(self, spec: WorkerSpec, warn: Callable[[str], None]) -> None:
        self._spec, self._config, self._warn = spec, spec.config, warn
        self.traits: dict[str, str] = {}  # as it was first loaded
        self.hashes: dict[int, str] = {}  # of the layers as they were first built
        self._built: dict[int, str] = {}  # of what of them is in no checkpoint
        self.warnings: list[str] = []
        self.weights: StartingWeights | None = None  # None: parameters are as the job makes them
        self.device: Device = PROCESSOR  # until the job is loaded, which may bring another one
        self.settings = self._watch()

    def load(self) -> Job:
        with DRAWING:
            before_loading(self._config)
            self._open_folders()
            with sparing():
                job = load_job(
                    self._spec.job,
                    self._config.train.seed,
                    self._spec.job_sha256,
                    self._config.job.args,
                )
            check_validation(job, self._config)
            self._open_device()
            self.settings = self._watch()  # what is set while loading is told by the fingerprint
            if self._config.device.emulate:
                torch.manual_seed(self._config.train.seed)
                job = emulated_job(max(len(job.layers), self._config.parallel.stages))
            else:
                self.warnings = check_bits(job, self._config)
        traits = job_traits(job, self._spec.job, self._spec.job_sha256)
        if self._config.job.weights and not self._spec.resumed:
            traits[messages.WEIGHTS] = self._open_weights(job).digest()
        self.traits = self.traits or traits
        check_unchanged(str(self._spec.worker), self.traits, traits)
        if not self.hashes:
            layers = dict(enumerate(job.layers))
            self.hashes, self._built = hash_of_each(layers), hash_of_built(layers)
        return job

    def load_again(self, assign: messages.Assign) -> Job:
        """The layers have been trained, or given away, since they were first built."""
        job = self.load()
        stage = stage_ranges(assign.cut, len(job.layers))[assign.stage]
        layers = {number: job.layers[number] for number in stage}
        now = hash_of_built(layers) if assign.checkpoint else hash_of_each(layers)
        before = self._built if assign.checkpoint else self.hashes
        for number, found in now.items():
            if found != before[number]:
                raise ConfigError(
                    f"layer {number} differs from how worker {self._spec.worker} had built it "
                    "before: the job must build the same layers every time. Seed all it draws "
                    "at random"
                )
        return job

    def _open_weights(self, job: Job) -> StartingWeights:
        """Looked at as a whole once; a stage reads its own when it is built."""
        if self.weights is None:
            settings = self._config.job
            path = on_this_machine(settings.weights, Reference.parse(self._spec.job).root)
            weights = StartingWeights(
                path,
                job.weight_names,
                strict=settings.weights_strict,
                own=named_by(job.own_names),
            )
            layers = dict(enumerate(job.layers))
            misfit = weights.check(live_tensors(layers), names_of_each(layers))
            self.warnings += [misfit] if misfit else []
            self.weights = weights
        return self.weights

    def measured(self, job: Job) -> messages.LayerCosts:
        with DRAWING:
            precision = Precision.of(self._config.train.precision, self.device.kind)
            far = self.device is not PROCESSOR  # whose memory is a limit
            batches = self.batches(job)
            found = measure_layers(job, batches, precision, device=self.device, sized=far)
        self.settings.check("a layer or Job.data")
        return messages.LayerCosts(worker=str(self._spec.worker), **found._asdict())

    def batches(self, job: Job) -> Batches:
        config = self._config
        return Batches(
            job,
            config.train.seed,
            config.parallel.microbatches,
            retries=config.data.retries,
            pause_s=config.data.pause_s,
        )

    def _open_folders(self) -> None:
        """Folders that the launcher's path had, if the job came from there in a bundle."""
        for folder in import_folders(Reference.parse(self._spec.job).root.resolve()):
            if folder not in sys.path:
                sys.path.insert(0, folder)

    def _open_device(self) -> None:
        """Of those that the job brings, too; the same one each time."""
        settings = self._config.device
        if self.device is PROCESSOR and settings.real_kind != CPU:
            self.device = open_device(settings.real_kind, settings.index, self._spec.slot)

    def _watch(self) -> SettingsWatch:
        exact = self._config.gradients.mode == "exact"
        return SettingsWatch(exact=exact, say=self._warn, device=self.device)
