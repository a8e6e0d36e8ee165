"""Layers that are built but not held: a worker builds the whole model and needs a part of it.

While a job makes its model, what is done to each parameter is noted, with the state of the random
generator. Beyond a limit the memory of parameters is given back, those first that were written
longest ago. ``hold`` does the same to a parameter once more, to the same bits. A parameter into
which other tensors flow, or that is looked at from outside of torch, stays as it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter
from typing_extensions import TypeIs

from holdfast.host.heap import trim

LIMIT_BYTES = 256 << 20  # of parameters that are held while a model is made
_LEAST_BYTES = 1 << 20  # of a parameter that is worth it
_RECIPE = "_holdfast_recipe"
aten = torch.ops.aten

_OVERWRITE = {aten.normal_, aten.uniform_, aten.zero_, aten.fill_}
_CHANGE = _OVERWRITE | {aten.mul_, aten.add_, aten.sub_, aten.div_, aten.clamp_, aten.erfinv_}
_BLANK = {aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided}
_MAKE = {aten.zeros, aten.ones, aten.full, aten.rand, aten.randn}
_ESCAPES = {
    *(Tensor.numpy, Tensor.__array__, Tensor.tolist, Tensor.__dlpack__, Tensor.data_ptr),
    *(Tensor.untyped_storage, Tensor.storage, Tensor._typed_storage, Tensor.share_memory_),
    *(Tensor.__deepcopy__, Tensor.__reduce_ex__),
}


class _Written(NamedTuple):
    """One operation on memory that nothing else flows into."""

    function: Callable[..., Any]
    place: tuple[Any, ...]  # offset, size and stride of what it wrote to
    dtype: torch.dtype
    arguments: tuple[tuple[Any, ...], dict[str, Any]]  # without the tensor
    generator: Tensor | None  # its state, if it drew


class Recipe:
    """How a parameter's memory came to hold what it holds."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._storage, self.num_bytes = storage, storage.nbytes()
        self._written: list[_Written] = []
        self._stays = False

    @property
    def is_held(self) -> bool:
        return self._storage.nbytes() > 0

    def belongs_to(self, tensor: Tensor) -> bool:
        return _place(tensor) == int(self._storage._cdata)

    def note(self, written: _Written, *, is_all_new: bool) -> None:
        self._written = [written] if is_all_new else [*self._written, written]

    def covers(self, tensor: Tensor) -> bool:
        return tensor.is_contiguous() and tensor.nbytes == self.num_bytes

    def stay(self) -> None:
        """As it is, from now on."""
        self.hold()
        self._stays, self._written = True, []

    def release(self) -> None:
        if not self._stays and self._storage.resizable():  # else somebody has its address
            self._storage.resize_(0)

    def open(self) -> None:
        """To be written as a whole."""
        self._storage.resize_(self.num_bytes)

    def hold(self) -> None:
        if self.is_held:
            return
        self.open()
        with torch.no_grad(), _disable_current_modes(), _generator_as_it_is():
            for written in self._written:
                self._write(written)

    def _write(self, written: _Written) -> None:
        if written.generator is not None:
            torch.set_rng_state(written.generator)
        target = torch.empty(0, dtype=written.dtype).set_(self._storage, *written.place)
        args, kwargs = written.arguments
        if written.function.overloadpacket in _MAKE:  # type: ignore[attr-defined]
            target.copy_(written.function(*args, **kwargs))
        else:
            written.function(target, *args, **kwargs)


def hold(layers: Iterable[nn.Module]) -> None:
    """All parameters of the layers, as they were made."""
    for recipe in _recipes(layers):
        recipe.hold()


@contextmanager
def held(layer: nn.Module) -> Iterator[None]:
    """For a while; what was held before stays."""
    gone = [recipe for recipe in _recipes([layer]) if not recipe.is_held]
    hold([layer])
    try:
        yield
    finally:
        for recipe in gone:
            recipe.release()


def without_address(tensor: Tensor) -> Tensor:
    """For numpy: memory that it has looked at cannot be given back."""
    return tensor.detach().clone() if hasattr(tensor, _RECIPE) else tensor


def hold_only(layers: Sequence[nn.Module], mine: Collection[int]) -> None:
    """Those with these numbers, for good: they are trained from now on."""
    own = _recipes(layers[number] for number in mine)
    kept = set(map(id, own))
    others = [recipe for recipe in _recipes(layers) if id(recipe) not in kept]
    for recipe in others:
        recipe.release()
    if others:
        trim()  # a stage's sums are too large for the gaps
    for recipe in own:
        recipe.stay()


def _recipes(layers: Iterable[nn.Module]) -> list[Recipe]:
    parameters = (parameter for layer in layers for parameter in layer.parameters())
    found = ((parameter, getattr(parameter, _RECIPE, None)) for parameter in parameters)
    return [recipe for p, recipe in found if recipe is not None and recipe.belongs_to(p)]


@contextmanager
def sparing(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """Around the making of a model."""
    kitchen = _Kitchen(limit_bytes)
    hook = register_module_parameter_registration_hook(kitchen.register)
    with ExitStack() as stack:
        stack.callback(hook.remove)
        stack.enter_context(_Noting(kitchen))
        stack.enter_context(_Watching(kitchen))
        yield


class _Kitchen:
    """The recipes of the model that is being made, by the place of their memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._recipes: OrderedDict[int, Recipe] = OrderedDict()  # written longest ago: first
        self._may_go: set[int] = set()  # memory of parameters
        self._held_bytes = 0
        self._gap_bytes = 0  # given back to the heap, not yet to the system

    def register(self, module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        recipe = None if parameter is None else self.recipe_of(parameter)
        if parameter is not None and recipe is not None:
            self._may_go.add(_place(parameter))
            setattr(parameter, _RECIPE, recipe)

    def recipe_of(self, tensor: Tensor) -> Recipe | None:
        return self._recipes.get(_place(tensor)) if _is_plain(tensor) else None

    def begin(self, tensor: Tensor) -> Recipe:
        with torch._C.DisableTorchFunction():
            recipe = Recipe(tensor.untyped_storage())
        self._recipes[_place(tensor)] = recipe
        self._held_bytes += recipe.num_bytes
        return recipe

    def hold(self, recipe: Recipe, *, is_all_new: bool = False) -> None:
        if not recipe.is_held:
            recipe.open() if is_all_new else recipe.hold()
            self._held_bytes += recipe.num_bytes

    def forget(self, tensor: Tensor) -> None:
        """It stays as it is from now on."""
        recipe = self._recipes.pop(_place(tensor))
        self._held_bytes -= recipe.num_bytes if recipe.is_held else 0
        recipe.stay()

    def make_room(self, newest: Tensor) -> None:
        self._recipes.move_to_end(_place(newest))
        for place, recipe in self._recipes.items():
            if self._held_bytes <= self._limit_bytes:
                break
            if recipe.is_held and place in self._may_go:
                recipe.release()
                freed = 0 if recipe.is_held else recipe.num_bytes
                self._held_bytes -= freed
                self._gap_bytes += freed
        if self._gap_bytes > self._limit_bytes // 4:
            self._gap_bytes = 0
            trim()


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kitchen: _Kitchen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kitchen = kitchen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
        packet, kitchen = func.overloadpacket, self._kitchen
        known = [tensor for tensor in given if kitchen.recipe_of(tensor) is not None]
        if kwargs.get("generator") is None and len(given) == len(known) == 1 and packet in _CHANGE:
            return self._change(func, given[0], args[1:], kwargs)
        for tensor in known if packet not in _BLANK else ():
            recipe = kitchen.recipe_of(tensor)
            assert recipe is not None
            kitchen.hold(recipe)
        drawn = _generator(func)
        made = func(*args, **kwargs)
        for tensor in _written_by(func, args, kwargs):
            if kitchen.recipe_of(tensor) is not None:
                kitchen.forget(tensor)
        is_made = packet in _BLANK or (packet in _MAKE and kwargs.get("generator") is None)
        if is_made and _is_plain(made) and made.nbytes >= _LEAST_BYTES:
            recipe = kitchen.begin(made)
            if packet in _MAKE:
                recipe.note(_written(func, made, args, kwargs, drawn), is_all_new=True)
        return made

    def _change(self, func: Any, tensor: Tensor, args: tuple[Any, ...], kwargs: Any) -> Any:
        recipe = self._kitchen.recipe_of(tensor)
        assert recipe is not None
        is_all_new = func.overloadpacket in _OVERWRITE and recipe.covers(tensor)
        self._kitchen.hold(recipe, is_all_new=is_all_new)
        note = _written(func, tensor, args, kwargs, _generator(func))
        recipe.note(note, is_all_new=is_all_new)
        func(tensor, *args, **kwargs)
        self._kitchen.make_room(tensor)
        return tensor


class _Watching(TorchFunctionMode):
    """Whoever takes the memory itself is not seen any more."""

    def __init__(self, kitchen: _Kitchen) -> None:
        super().__init__()
        self._kitchen = kitchen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _ESCAPES and self._kitchen.recipe_of(args[0]) is not None:
            self._kitchen.forget(args[0])
        return func(*args, **(kwargs or {}))


def _place(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _is_plain(value: object) -> TypeIs[Tensor]:
    kind = type(value) in (Tensor, nn.Parameter)
    return kind and value.is_cpu and value.layout is torch.strided  # type: ignore[attr-defined]


def _generator(func: Any) -> Tensor | None:
    drawing = torch.Tag.nondeterministic_seeded in func.tags
    return torch.get_rng_state() if drawing else None


@contextmanager
def _generator_as_it_is() -> Iterator[None]:
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


def _written(
    func: Any, tensor: Tensor, args: tuple[Any, ...], kwargs: Any, drawn: Tensor | None
) -> _Written:
    place = (tensor.storage_offset(), tensor.size(), tensor.stride())
    return _Written(func, place, tensor.dtype, (args, kwargs), drawn)


def _written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    places = func._schema.arguments
    names = {place.name: place for place in places}
    pairs = [*zip(places, args, strict=False), *((names[n], v) for n, v in kwargs.items())]
    for place, value in pairs:
        if place.alias_info is not None and place.alias_info.is_write:
            yield from (each for each in tree_iter(value) if isinstance(each, Tensor))
