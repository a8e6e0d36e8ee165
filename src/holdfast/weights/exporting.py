"""A run's model as others read it: its parameters and persistent buffers, by their own names."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from holdfast.errors import Argument, CheckpointError, ConfigError
from holdfast.observability.text import listed, size
from holdfast.storage.contents import Checkpoint
from holdfast.storage.manifest import sync_directory, sync_file
from holdfast.storage.remote.reading import all_at
from holdfast.storage.stores import all_checkpoints, find, part_folder
from holdfast.weights.files import weights_in
from holdfast.weights.naming import OwnNames, own_names
from holdfast.weights.writing import Named, Wrote, write_dcp, write_hf, write_safetensors

Format = Literal["safetensors", "hf", "dcp"]
_OURS = ("*.safetensors", "*.safetensors.index.json", "*config.json", "*.distcp", ".metadata")


def export(
    run: str | Path,
    to: Format = "safetensors",
    out: str | Path | None = None,
    *,
    step: int | None = None,
    force: bool = False,
    say: Callable[[str], object] = lambda line: None,
    job: str = "",
    ema: bool = False,
) -> Path:
    """Write the model of a run for others; returns the new folder.

    ``run``: a run's directory, one of its checkpoints, or an address (``"s3://bucket/run"``).
    ``to``: ``"safetensors"``, ``"hf"`` (what ``from_pretrained`` loads; for models of
    ``transformers``) or ``"dcp"`` (``torch.distributed.checkpoint``). ``out``: None:
    ``RUN/exports/STEP-FORMAT``. ``step``: None: the newest checkpoint. ``force``: replace an export
    that is there. ``say`` is told how far it is. ``job``: if its file is elsewhere now. ``ema``:
    the average of the weights that ``train.ema`` has kept, instead of the weights.
    """
    if to not in get_args(Format):
        raise ConfigError(Argument("to", to), f": expected {', '.join(get_args(Format))}")
    checkpoint = _checkpoint(run, step)
    names = own_names(checkpoint, job)
    return export_checkpoint(checkpoint, to, out, names, force=force, say=say, ema=ema)


def export_checkpoint(
    checkpoint: Checkpoint,
    to: Format,
    out: str | Path | None,
    names: OwnNames,
    *,
    force: bool = False,
    say: Callable[[str], object] = lambda line: None,
    ema: bool = False,
) -> Path:
    """``names``: of the model, which may be other than those of the checkpoint."""
    if checkpoint.origin.settings.get("device", {}).get("emulate"):
        raise ConfigError(
            f"{checkpoint.directory}: was trained on emulated devices, which train a stand-in: "
            "there is no model of the job"
        )
    config = names.config
    if to == "hf" and config is None:
        raise ConfigError(
            f"{checkpoint.directory}: is of a list of layers, which no class of transformers "
            "loads; export it with ",
            Argument("to", "safetensors"),
        )
    if ema and not checkpoint.origin.settings.get("train", {}).get("ema"):
        raise ConfigError(
            Argument("ema", True),
            f": {checkpoint.directory} has no average of the weights; train with train.ema=0.999",
        )
    place = _place(checkpoint, f"{to}-ema" if ema else to, out)
    with _new_folder(place, force=force) as folder:
        wrote = _progress(_check_room(checkpoint, folder), say)
        tensors = _tensors(checkpoint, names, average=ema)
        if to == "dcp":
            write_dcp(folder, tensors, wrote)
        elif config is not None and to == "hf":
            write_hf(folder, tensors, wrote, config)
        else:
            write_safetensors(folder, tensors, wrote)
    return place


# --- what ---


def _checkpoint(run: str | Path, step: int | None) -> Checkpoint:
    newest = find(run)
    if step is None or newest.step == step:
        return newest
    known = {one.step: one for one in _all_of_run(run, newest)}
    if step not in known:
        steps = listed([str(number) for number in known])
        raise CheckpointError(
            Argument("step", step), f": {run} has no such checkpoint, but those of step {steps}"
        )
    return known[step]


def _all_of_run(run: str | Path, newest: Checkpoint) -> list[Checkpoint]:
    """The newest first."""
    if str(run).rstrip("/") == newest.directory:  # one is named, and not the run
        return [newest]
    found = all_at(newest.address) if newest.address else all_checkpoints(run)
    return found[::-1]


def _tensors(checkpoint: Checkpoint, names: OwnNames, *, average: bool) -> Named:
    """By layer. Twins of a tied parameter may have one name: they are equal."""
    seen = set[str]()
    for part in checkpoint.parts:
        with part_folder(checkpoint, part) as folder:
            stored = weights_in(folder, part, average=average)
            for key in sorted(stored, key=_by_layer):
                name = names.of(key)
                if name not in seen:
                    seen.add(name)
                    yield name, stored[key].get()


def _by_layer(key: str) -> tuple[int, str]:
    number, _, path = key.partition(".")
    return int(number), path


def _progress(total_bytes: int, say: Callable[[str], object]) -> Wrote:
    done_bytes = 0

    def wrote(num_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += num_bytes
        of_all = f" of {size(total_bytes)}" if total_bytes else ""
        say(f"{size(done_bytes)}{of_all} written")

    return wrote


# --- where ---


def _place(checkpoint: Checkpoint, to: str, out: str | Path | None) -> Path:
    if out is not None:
        return Path(os.path.abspath(out))
    if checkpoint.run_dir is None:
        raise ConfigError(
            f"{checkpoint.directory}: is no directory; say where to write with ", Argument("out")
        )
    return checkpoint.run_dir / "exports" / f"step-{checkpoint.step:08d}-{to}"


@contextmanager
def _new_folder(place: Path, *, force: bool) -> Iterator[Path]:
    """It has its name when all of it is on disk, and not before."""
    _check_free(place, force=force)
    folder = place.with_name(f"{place.name}.partial")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield folder
        _put(folder, place)
    except (OSError, SafetensorError, CheckpointException) as why:
        raise ConfigError(
            f"{place}: cannot be written ({_reason(why)}); make room, or choose another place "
            "with ",
            Argument("out"),
        ) from why
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_free(place: Path, *, force: bool) -> None:
    if not os.path.lexists(place):
        return
    if not force:
        raise ConfigError(
            f"{place}: exists; choose another place with ",
            Argument("out"),
            ", or replace it with ",
            Argument("force", True),
        )
    others = [path for path in place.iterdir() if not any(path.match(one) for one in _OURS)]
    if others:
        raise ConfigError(
            f"{place}: holds {others[0].name}, which is of no export, and is not replaced; choose "
            "another place with ",
            Argument("out"),
        )


def _check_room(checkpoint: Checkpoint, folder: Path) -> int:
    """Bytes that will be written; 0: not known, as the parts have yet to be fetched."""
    if checkpoint.address:
        return 0
    needed = 0
    for part in checkpoint.parts:
        stored = weights_in(Path(checkpoint.directory) / part.directory, part)
        needed += sum(one.num_bytes for one in stored.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{folder.parent}: has {size(free)} free, and the model takes {size(needed)}; make "
            "room, or choose another place with ",
            Argument("out"),
        )
    return needed


def _put(folder: Path, place: Path) -> None:
    for path in folder.iterdir():
        sync_file(path)
    sync_directory(folder)
    replaced = place.with_name(f"{place.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if os.path.lexists(place):
        place.rename(replaced)
    folder.rename(place)
    sync_directory(place.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _reason(why: BaseException) -> str:
    if isinstance(why, CheckpointException):  # it holds what went wrong, once for each rank
        why = next((each for each, _ in why.failures.values()), why)
    if isinstance(why, OSError) and why.strerror:
        return why.strerror
    [*_, last] = str(why).strip().splitlines() or [type(why).__name__]
    return last
