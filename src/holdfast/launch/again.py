"""How a script that is started again finds out where to go on."""

# For ``python -c``, with a directory or an address: succeeds if there is a checkpoint.
HAS_CHECKPOINT = "import sys; from holdfast.storage.stores import find; find(sys.argv[1])"
