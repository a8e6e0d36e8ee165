"""What the pages show is run: files, commands, and what they print, up to numbers.

HOLDFAST_REWRITE=1 refreshes the transcripts; see ``helpers/sessions.py``.
"""

import re

import pytest

from helpers import runs
from helpers.pages import DOCS, PAGES, README, blocks, name_of, transcripts
from helpers.sessions import Session, shape
from helpers.wide import wide

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(1800)]

TUTORIAL = DOCS / "tutorial.md"
RECORDED = [
    page
    for page in PAGES
    if any(
        b.command[1] in ("train", "watch") and "--help" not in b.command for b in transcripts(page)
    )
]


@pytest.mark.parametrize("page", list(map(wide, RECORDED)), ids=name_of)
def test_what_a_page_shows_is_what_happens(page, tmp_path):
    session = Session(page, tmp_path)
    session.play()
    if page == README:
        session.run(["python", "train.py"])  # the same run, from Python
    assert len(session.sums()) <= 1, "runs that should agree do not"


def test_pages_with_recorded_runs_are_found():
    assert {README, TUTORIAL} < set(RECORDED)


def test_the_job_of_the_tutorial_ends_with_the_same_bits_in_threads(tmp_path):
    files = [block for block in blocks(TUTORIAL, "python") if block.title]
    for block in files:
        (tmp_path / block.title).write_text(block.body)
    job, kill = tmp_path / "job.py", ["--fault", "kill 1.0 @ 3.B1"]
    numbers = {"steps": 5, "microbatches": 8}
    calm = runs.finished(runs.threads(job, tmp_path / "calm", **numbers))
    killed = runs.threads(job, tmp_path / "killed", *runs.layout("2x2"), *kill, **numbers)
    assert runs.finished(killed).summary["faults_fired"] == kill[1:]
    runs.assert_same_result(calm, killed)


@pytest.mark.wide
@pytest.mark.parametrize("words", [["follow.py"], ["-m", "pytest", "test_job.py"]], ids=" ".join)
def test_the_guide_to_python_runs(words, tmp_path):
    session = Session(DOCS / "guides" / "from-python.md", tmp_path)
    session.play()
    for block in blocks(README, "python"):
        (tmp_path / block.title).write_text(block.body)
    assert re.search("worker 1.0 was lost|1 passed", session.run(["python", *words]))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("step 3/50  loss 4.3436  1,729 tokens/s", "step 41/50  loss 2.1  17 tokens/s"),
        ("1 operation done again", "12 operations done again"),
        (f"parameters sha256 {'0a' * 32}", f"parameters sha256 {'f1' * 32}"),
    ],
)
def test_lines_that_differ_in_numbers_have_one_shape(shown, printed):
    assert shape(shown) == shape(printed)


def test_lines_that_say_something_else_have_another_shape():
    assert shape("worker 1.0 lost in step 5") != shape("worker 1.0 joined in step 5")
    assert shape("same parameters: True") != shape("same parameters: False")
