"""Something done by another user of this machine, who really is one."""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

_NOBODY = 65534


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")


def as_nobody(act: Callable[[], Any]) -> Any:
    """What ``act`` returns, as JSON, in a process of another user. It has our modules loaded."""
    needs_root()
    ours, theirs = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            os.write(theirs, json.dumps(act()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(theirs)
    with open(ours) as said:
        text = said.read()
    assert os.waitpid(pid, 0)[1] == 0, "the other user failed"
    return json.loads(text)
