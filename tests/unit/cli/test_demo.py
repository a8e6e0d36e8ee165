"""``holdfast demo``: what it says and what it refuses. It is run in tests/multiprocess."""

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.report.demo import FAULTS, Report
from holdfast.observability.events import StepFinished, encode_event
from holdfast.observability.log import EVENTS_FILE

ROOT = Path(__file__).parents[3]
FOUND = {"subject": "0.1", "step": 23, "cause": "slow computation", "factor": 4.0, "since": 20}
TIMES = {"seconds_to_resume": 0.078, "redone": 8}
DEATH = {"step": 53, "cause": "death", "workers": ["1.0"], **TIMES}
CALM = {"parameters_sha256": "a" * 64}
DISTURBED = {
    "parameters_sha256": "a" * 64,
    "faults_fired": list(FAULTS),
    "diagnoses": [FOUND],
    "switches": [{"step": 26, "cause": "re-plan"}],
    "recoveries": [DEATH],
}


@pytest.fixture
def run_dir(tmp_path):
    """Steps take 0.1 s, and 0.4 s while one is slow and not planned around."""
    lines = [
        encode_event(
            StepFinished(
                **{"at_s": 0.0, "step": step, "loss": 1.0, "gradient_norm": None, "tokens": 1},
                took_s=0.4 if 20 <= step < 26 else 0.1,
            )
        )
        for step in range(70)
    ]
    (tmp_path / EVENTS_FILE).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_report_says_what_was_found_and_how_fast_training_was(run_dir, capsys):
    assert Report().compare(CALM, DISTURBED, run_dir)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "3 of 3 faults fired: join @ 58; kill 1.0 @ 54.B2; slow 0.1 @ 21-40 x4.0",
        "step 24, slow computation: 0.1 takes 4.00 x as long since step 21",
        "from step 27 on another plan (re-plan), without a stop",
        "  before                         10.00 steps/s",
        "  slow, not yet planned around    2.50 steps/s",
        "  slow, planned around           10.00 steps/s",
        "  after                          10.00 steps/s",
        "step 54, death of 1.0: went on after 0.078 s, 8 operations done again",
        f"undisturbed  sha256 {'a' * 64}",
        f"disturbed    sha256 {'a' * 64}",
        "The parameters are the same, bit for bit.",
    ]


@pytest.mark.parametrize(
    "changes",
    [{"parameters_sha256": "b" * 64}, {"faults_fired": FAULTS[:2]}, {"diagnoses": []}],
    ids=["other parameters", "a fault that did not fire", "nobody found slow"],
)
def test_a_demo_that_shows_nothing_is_an_error(changes, run_dir, capsys):
    assert not Report().compare(CALM, DISTURBED | changes, run_dir)
    assert "NOT as expected" in capsys.readouterr().out


def test_what_was_said_is_in_the_file(tmp_path, capsys):
    report = Report()
    report.say("one line")
    report.write(tmp_path / "report.md")
    assert "one line\n" in (tmp_path / "report.md").read_text()


def test_a_directory_with_something_in_it_is_refused_and_kept(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["demo", str(tmp_path)]) == 2
    assert f"{tmp_path}: is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_job_of_the_demo_is_the_example():
    packed = ROOT / "src" / "holdfast" / "models" / "tiny_gpt.py"
    assert packed.read_text() == (ROOT / "examples" / "tiny_gpt.py").read_text()
