"""Models of the papers, by name: sizes as published (GPT-3, Megatron, BERT)."""

from collections.abc import Mapping

from holdfast.errors import Argument, ConfigError
from holdfast.simulator.costs.transformer import Transformer

_ALL = (
    Transformer(name="bert-large", parameters=340e6, layers=24, hidden=1024, sequence=512),
    Transformer(name="gpt2", parameters=1.5e9, layers=48, hidden=1600, sequence=1024),
    Transformer(name="350m", parameters=355e6, layers=24, hidden=1024),
    Transformer(name="2.7b", parameters=2.7e9, layers=32, hidden=2560),
    Transformer(name="3.5b", parameters=3.5e9, layers=30, hidden=3072),
    Transformer(name="6.7b", parameters=6.7e9, layers=32, hidden=4096),
    Transformer(name="18b", parameters=18.4e9, layers=40, hidden=6144, gpus_a_worker=8),
    Transformer(name="39b", parameters=39.1e9, layers=48, hidden=8192, gpus_a_worker=8),
    Transformer(name="76b", parameters=76.1e9, layers=60, hidden=10240, gpus_a_worker=8),
    Transformer(name="145b", parameters=145.6e9, layers=80, hidden=12288, gpus_a_worker=8),
)
PRESETS: Mapping[str, Transformer] = {model.name: model for model in _ALL}


def preset(name: str) -> Transformer:
    if name.lower() not in PRESETS:
        raise ConfigError(Argument("model", name), f": expected one of {', '.join(PRESETS)}")
    return PRESETS[name.lower()]
