"""A device without enough memory: said in one line, with what can be done about it."""

import torch

from holdfast.errors import OutOfDeviceMemory


def explained(worker: str, why: BaseException) -> BaseException:
    """What torch raises when a device is full, in our words; anything else as it is."""
    if not isinstance(why, torch.OutOfMemoryError):
        return why
    wanted = str(why).partition("\n")[0].strip()
    raised = OutOfDeviceMemory(
        f"the device of worker {worker} is out of memory ({wanted.rstrip('.')}{_in_use()}): set a "
        "smaller Job.microbatch_size, stage.checkpoint_activations=true or more stages"
    )
    for note in getattr(why, "__notes__", []):
        raised.add_note(note)
    return raised


def _in_use() -> str:
    found = torch.accelerator.current_accelerator()
    if found is None:
        return ""
    module = torch.get_device_module(found)
    used, total = module.memory_allocated(), module.mem_get_info()[1]
    return f"; {used / 2**30:.2f} of {total / 2**30:.2f} GiB in use"
