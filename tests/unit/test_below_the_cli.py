"""Below ``cli/`` nothing prints, handles a signal or names a flag. Checked in the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "holdfast"
FILES = [path for path in sorted(SRC.rglob("*.py")) if "cli" not in path.relative_to(SRC).parts]
FLAG = "--"
ALLOWED = {  # file -> what is found there, and why it has to be
    # The words that start our own agent process, which is a sub-command.
    "control/io/agents/agent_process.py": {
        "flag --connect",
        "flag --generation",
        "flag --certificate",
        "flag --try-for",
    },
    # A process of its own, forked from one that has handlers.
    "data/loader_process.py": {"signal.signal"},
    "launch/keeping.py": {"flag --ticket", "flag --slots", "flag --advertise", "flag --name"},
    # The words of programs, and scripts that others run.
    "launch/slurm/slurm_cluster.py": {
        *("flag --nodes=", "flag --ntasks=", "flag --ntasks-per-node=1", "flag --no-kill"),
        *("flag --kill-on-bad-exit=0", "flag --wait=0", "flag --overlap", "flag --cpu-bind=none"),
        *("flag --mpi=none", "flag --input=all", "flag --unbuffered"),
    },
    "launch/slurm/script.py": {
        *("flag --run-dir", "flag --cluster", "flag --machines"),
        *("flag --start-with", "flag --listen", "flag --job-name={name}", "flag --nodes={nodes}"),
        *("flag --ntasks-per-node=1", "flag --no-kill", "flag --requeue", "flag --output={log}"),
        *("flag --open-mode=append", "flag --signal=B:TERM@{notice_s}"),
    },
    "launch/k8s/pods.py": {
        *("flag --machines", "flag --start-with", "flag --listen", "flag --set", "flag --resume"),
        *("flag --secret-file", "flag --run-dir", "flag --slots", "flag --ticket", "flag --name"),
        "flag --advertise",
    },
    # Colours of a style sheet.
    "simulator/answers/page.py": {
        *("flag --text:", "flag --faint:", "flag --line:", "flag --ours:", "flag --mark:"),
        "flag --back:",
    },
    # In a process of its own, or in one of a worker, where nobody else could do it.
    "runtime/worker/stacks.py": {"signal.signal"},
    # In the command that is being started: a signal that waits must not be lost in between.
    "watch/command.py": {"signal.signal"},
    # What the user's own function has printed.
    "job_call.py": {"sys.stdout.write"},
}


def docstrings(tree: ast.AST) -> set[int]:
    """Ids of texts that stand alone: nobody is shown them."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def faults(tree: ast.AST) -> Iterator[str]:
    silent = docstrings(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print" | "input" as name)):
                yield name
            case ast.Call() if called(node) in ("signal.signal", "traceback.print_exc"):
                yield called(node)
            case ast.Call() if called(node).startswith(("sys.stdout.write", "sys.stderr.write")):
                yield called(node)
            case ast.Constant(value=str(text)) if id(node) not in silent:
                yield from (f"flag {word}" for word in text.split() if is_flag(word))


def is_flag(word: str) -> bool:
    word = word.lstrip("('\"")
    return word.startswith(FLAG) and word[len(FLAG) :][:1].isalpha()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_nothing_below_the_command_line_prints_handles_signals_or_names_flags(path):
    found = set(faults(ast.parse(path.read_text())))
    assert found <= ALLOWED.get(str(path.relative_to(SRC)), set())


@pytest.mark.parametrize(
    "wrong",
    [
        "print(1)",
        "sys.stderr.write('x')",
        "signal.signal(1, None)",
        "raise ConfigError(f'--run-dir {x}: no')",
        "say('give more (--steps)')",
    ],
)
def test_what_is_looked_for_would_be_found(wrong):
    assert set(faults(ast.parse(wrong)))


def test_every_exception_is_still_needed():
    for name, expected in ALLOWED.items():
        assert set(faults(ast.parse((SRC / name).read_text()))) >= expected, name
