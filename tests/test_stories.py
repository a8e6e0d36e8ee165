"""What the coordinator does, told in tests/stories; ``HOLDFAST_REWRITE=1`` writes them anew."""

import os
from pathlib import Path

import pytest

from helpers.stories import BadStory, Scene, dumps, parse, played
from helpers.story_world import Story

FILES = sorted(Path(__file__).with_name("stories").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_happens_as_the_story_tells(path):
    told = path.read_text()
    happened = dumps(played(parse(told), Story().do))
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(happened)
        return
    assert happened == told, "run again with HOLDFAST_REWRITE=1 and look at what has changed"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_story_says_first_what_it_is_about(path):
    assert path.read_text().startswith("# ")


TOLD = "# Why.\n\none\ntwo words\n----\nthis\nthat\n\n# More.\nthree\n----\n(nothing)\n"


def test_a_story_that_is_read_and_written_is_the_same():
    scenes = parse(TOLD)
    assert scenes[0] == Scene(("# Why.", ""), ("one", "two words"), ("this", "that"))
    assert dumps(scenes) == TOLD


def test_what_happens_now_takes_the_place_of_what_happened():
    again = played(parse(TOLD), lambda command: [f"did {command}"])
    assert [scene.happened for scene in again] == [("did one", "did two words"), ("did three",)]


def test_when_nothing_happens_the_story_says_so():
    assert dumps(played(parse("wait\n----\n"), lambda command: [])) == "wait\n----\n(nothing)\n"


@pytest.mark.parametrize("text", ["----\nx\n", "start 2x2\n", "start 2x2\n----\n\n# and then?\n"])
def test_what_is_no_story_is_refused(text):
    with pytest.raises(BadStory):
        parse(text)


@pytest.mark.parametrize("line", ["fly 1.0", "_say x", "do x", "step 1"])
def test_a_command_that_there_is_not_is_refused(line):
    with pytest.raises(BadStory):
        Story().do(line)


def test_nobody_who_is_not_there_can_be_killed():
    story = Story()
    story.do("start 2x2")
    with pytest.raises(BadStory, match=r"there is no worker 7\.7"):
        story.do("kill 7.7")
