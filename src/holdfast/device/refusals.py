"""What a device refuses: said in one line, with what can be done about it."""

import re

import torch

from holdfast.errors import NotDeterministic, OutOfDeviceMemory

_NOT_DETERMINISTIC = re.compile(r"(.+?) does not have a deterministic implementation")


def explained(worker: str, why: BaseException) -> BaseException:
    """What torch raises then, in our words; anything else as it is."""
    raised: Exception
    if isinstance(why, torch.OutOfMemoryError):
        raised = _out_of_memory(worker, why)
    elif found := _NOT_DETERMINISTIC.match(str(why)):
        raised = _not_deterministic(found[1])
    else:
        return why
    for note in getattr(why, "__notes__", []):
        raised.add_note(note)
    return raised


def _out_of_memory(worker: str, why: BaseException) -> OutOfDeviceMemory:
    wanted = str(why).partition("\n")[0].strip()
    return OutOfDeviceMemory(
        f"the device of worker {worker} is out of memory ({wanted.rstrip('.')}{_in_use()}): set a "
        "smaller Job.microbatch_size, stage.checkpoint_activations=true or more stages"
    )


def _not_deterministic(operation: str) -> NotDeterministic:
    return NotDeterministic(
        f"{operation} has no deterministic kernel on this device: compute it in another way, "
        "or give up equal bits with torch.use_deterministic_algorithms(False) in the job file"
    )


def _in_use() -> str:
    found = torch.accelerator.current_accelerator()
    if found is None:
        return ""
    module = torch.get_device_module(found)
    used, total = module.memory_allocated(), module.mem_get_info()[1]
    return f"; {used / 2**30:.2f} of {total / 2**30:.2f} GiB in use"
