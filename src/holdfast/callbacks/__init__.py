"""Code of the user that is called while a run goes on, and some that is ready-made.

Knows events, and what became of a run so far.
Does not know who trains, or how: it is called beside the training and holds up nobody.
"""

from holdfast.callbacks.callback import Callback, RunSoFar
from holdfast.callbacks.csv_logger import CsvLogger
from holdfast.callbacks.tensorboard_logger import TensorBoardLogger

__all__ = ["Callback", "CsvLogger", "RunSoFar", "TensorBoardLogger"]
