"""``holdfast simulate``: flags that would do nothing, and values that cannot be, are one line."""

import itertools

import pytest

from holdfast.cli.main import main

WORLD = "--mtbf 1h --days 0.1"
JOB = "--costs F=1,B=1,W=1 --pipelines 2 --stages 2 --microbatches 2 --policies holdfast"


def complaint(words, capsys):
    assert main(["simulate", *words.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("words", "flag", "hint"),
    [
        (f"{JOB} --trace recycle --repair 5m", "--repair", "without --trace"),
        (f"{JOB} --trace recycle --notice 5m", "--notice", "without --trace"),
        (f"{JOB} --trace recycle --rack 4", "--rack", "without --trace"),
        (f"{JOB} --trace recycle --failures rack", "--failures", "without --trace"),
        (f"{JOB} --trace recycle --maintenance 1h", "--maintenance", "without --trace"),
        (f"{JOB} --trace aws-p3 --seed 3", "--seed", "names the machines that go"),
        (f"{JOB} --repair 5m", "--repair", "--mtbf"),
        (f"{JOB} --notice 5m", "--notice", "--mtbf"),
        (f"{JOB} --maintenance 1h --notice 5m", "--notice", "--mtbf"),
        (f"{JOB} --failures weibull", "--failures", "--mtbf"),
        (f"{JOB} --seed 3", "--seed", "--mtbf"),
        (f"{JOB} --boot 3s", "--boot", "no machine comes"),
        (f"{JOB} {WORLD} --rack 4", "--rack", "--failures rack"),
        (f"{JOB} --maintenance 3d", "--maintenance", "the run lasts 1d"),
        (f"{JOB} {WORLD} --jobs 2", "--jobs", "--hunt"),
        (f"{JOB} {WORLD} --flops 1e12", "--flops", "--model"),
        (f"{JOB} {WORLD} --utilisation 0.5", "--utilisation", "--model"),
        (f"{JOB} {WORLD} --gpu-memory 40", "--gpu-memory", "--model"),
        (f"{JOB} {WORLD} --link 1", "--link", "--model"),
        (f"--from runs/a --flops 1e12 {WORLD}", "--flops", "--model"),
        (f"--from runs/a --microbatches 4 {WORLD}", "--microbatches", "without --from"),
        (f"{JOB} {WORLD} --constant oobleck.regroup_s=3", "--constant", "holdfast"),
        (f"{JOB} {WORLD} --optimise", "--policies", "without --optimise"),
        (f"--machines 8 {WORLD} --optimise --html a.html", "--html", "without --optimise"),
        (f"--machines 8 {WORLD} --optimise --picture a.svg", "--picture", "without --optimise"),
        (f"--machines 8 {WORLD} --optimise --constant holdfast.logs=0", "--constant", "several"),
        (f"--machines 8 {WORLD} --optimise --constant oobleck.regroup_s=3", "--constant", "hold"),
        ("--hunt 3 --machines 8", "--machines", "--hunt, --seed, --jobs alone"),
        ("--hunt 3 --json", "--json", "--hunt, --seed, --jobs alone"),
        ("--hunt 3 --world a.txt", "--hunt", "--world alone"),
        ("--world a.txt --seed 3", "--seed", "--world alone"),
        ("--world a.txt --slow", "--slow", "--world alone"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(words, flag, hint, capsys):
    said = complaint(words, capsys)
    assert flag in said
    assert "no effect" in said
    assert hint in said


NUMBERS = ("0", "-1", "nan", "inf", "1e400", "")
TIMES = ("-1", "nan", "inf", "1e3", "3 weeks", "1e400s", "")
FLAGS = {
    "--machines": (*NUMBERS, "1.5", "999999999"),
    "--pipelines": (*NUMBERS, "1.5", "999999999"),
    "--stages": (*NUMBERS, "1.5", "999999999"),
    "--microbatches": (*NUMBERS, "1.5", "999999999"),
    "--workers-a-machine": (*NUMBERS, "3", "999999999"),
    "--days": NUMBERS,
    "--flops": NUMBERS,
    "--utilisation": NUMBERS,
    "--gpu-memory": (*NUMBERS, "0.001"),
    "--link": NUMBERS,
    "--price": ("-1", "nan", "inf", "x"),
    "--seed": ("-1", "nan", "1.5", "9" * 40),
    "--mtbf": ("0", *TIMES),
    "--repair": TIMES,
    "--notice": TIMES,
    "--boot": TIMES,
    "--maintenance": ("0", *TIMES),
    "--rack": NUMBERS,
    "--failures": ("comet", ""),
    "--model": ("7t", ""),
    "--policies": ("", "comet", "holdfast,holdfast", ","),
    "--constant": ("", "x", "holdfast.detect_s=nan", "holdfast.detect_s=-1", "comet.x=1"),
    "--picture": ("a.gif", ""),
    "--costs": ("", "F=-1", "F=nan", "F", "F=1e400"),
}


@pytest.mark.parametrize(
    ("flag", "value"), [(f, v) for f, values in FLAGS.items() for v in values], ids=str
)
def test_a_value_that_cannot_be_is_said_in_one_line(flag, value, capsys):
    usual = {"--model": "350m", "--machines": "8", "--stages": "2", "--mtbf": "1h", "--days": "0.1"}
    usual |= {"--policies": "holdfast", flag: value}
    if flag == "--costs":
        del usual["--model"]
    if flag == "--rack":
        usual["--failures"] = "rack"
    if flag in ("--workers-a-machine", "--pipelines"):
        usual["--pipelines"] = value if flag == "--pipelines" else "1"
    words = [f"{name}={given}" for name, given in usual.items()]
    assert main(["simulate", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert flag in lines[0] or "expected" in lines[0]


def files(tmp_path):
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "other.csv").write_text("a;b\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text("no event\n")
    (tmp_path / "quiet").mkdir()
    (tmp_path / "quiet" / "events.jsonl").write_text("")


@pytest.mark.parametrize(
    "words",
    [
        f"{JOB} --trace DIR",
        f"{JOB} --trace DIR/none.csv",
        f"{JOB} --trace DIR/bytes.csv",
        f"{JOB} --trace DIR/other.csv",
        f"{JOB} --trace DIR/empty.csv",
        f"{JOB} --trace recycle --days 2",
        "--from DIR",
        "--from DIR/none",
        "--from DIR/other.csv",
        "--from DIR/run",
        "--from DIR/quiet",
        "--world DIR",
        "--world DIR/other.csv",
        f"{JOB} {WORLD} --export DIR",
        f"{JOB} {WORLD} --export DIR/none/a.csv",
        f"{JOB} {WORLD} --html DIR/none/a.html",
        f"{JOB} {WORLD} --picture DIR/none/a.png",
    ],
)
def test_a_file_that_cannot_be_used_is_said_in_one_line(words, tmp_path, capsys):
    files(tmp_path)
    said = complaint(words.replace("DIR", str(tmp_path)), capsys)
    assert str(tmp_path) in said or "recycle" in said


PAIRS = ("--trace recycle", "--mtbf 1h", "--model 350m", "--from nowhere", "--costs F=1")


@pytest.mark.parametrize("pair", [*itertools.combinations(PAIRS, 2)][::3], ids=" ".join)
def test_no_pair_of_flags_is_a_traceback(pair, capsys):
    main(["simulate", *" ".join(pair).split(), *["--machines", "8", "--policies", "spares"]])
    assert len(capsys.readouterr().err.splitlines()) <= 1
