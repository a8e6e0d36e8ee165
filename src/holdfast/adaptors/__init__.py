"""Models of other libraries, and any ``nn.Module``, as the list of layers that can be cut.

Knows torch modules, traced graphs, and the decoders of ``transformers`` by their names.
Does not know jobs, stages or workers.
"""
