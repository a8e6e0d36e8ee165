"""Every package says at its head what it is, what it knows and what it does not; none is
crowded."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "holdfast"
MOST_FILES = 14
PACKAGES = sorted(path.parent for path in SRC.rglob("*/__init__.py"))
FOLDERS = sorted({path.parent for path in [*SRC.rglob("*.py"), *ROOT.glob("tests/unit/**/*.py")]})


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_the_head_of_a_package_says_what_it_knows_and_what_it_does_not(package: Path) -> None:
    head = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    first, blank, *more = [*head.splitlines(), "", ""]
    assert first.endswith((".", "?"))
    assert blank == ""
    assert more[0].startswith("Knows ")
    assert any(line.startswith("Does not know") for line in more)


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_a_package_has_modules_of_its_own(package: Path) -> None:
    assert [path for path in package.rglob("*.py") if path.name != "__init__.py"]


@pytest.mark.parametrize("folder", FOLDERS, ids=by_name)
def test_a_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    files = [path.name for path in folder.glob("*.py") if not path.name.startswith("__")]
    assert len(files) <= MOST_FILES, sorted(files)
