"""Which runs are in the files of records, kept up to date by reading only what is new."""

from hookline.records import catalog as module
from hookline.records import read_runs
from hookline.records.catalog import RunCatalog
from tests.backtest.recording import commands, record


def ids(folder):
    return {run.id for run in read_runs(folder)}


def test_new_runs_are_found_and_their_places_are_where_they_begin(tmp_path):
    catalog = RunCatalog([tmp_path / "nothing", tmp_path])
    assert catalog.runs() == {}
    for _ in range(3):
        record(tmp_path, commands("ls"))
        assert set(catalog.runs()) == ids(tmp_path)
    for id, place in catalog.runs().items():
        line = place.file.read_bytes()[place.position :].partition(b"\n")[0]
        assert line.startswith(b'["run",0,')
        assert id.encode() in line
    assert catalog.find("run_nothing") is None


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    catalog = RunCatalog([tmp_path])
    record(tmp_path, commands("ls"))
    decoded = []
    decode = module.decode_run
    monkeypatch.setattr(module, "decode_run", lambda line: decoded.append(line) or decode(line))
    catalog.runs()
    catalog.runs()
    record(tmp_path, commands("ls"))
    catalog.runs()
    assert len(decoded) == 2


def test_a_deleted_file_takes_its_runs_with_it(tmp_path):
    catalog = RunCatalog([tmp_path])
    record(tmp_path, commands("ls"))
    (place,) = catalog.runs().values()
    place.file.unlink()
    assert catalog.runs() == {}


def test_a_line_that_is_being_written_or_damaged_is_no_run(tmp_path):
    record(tmp_path, commands("ls"))
    (known,) = ids(tmp_path)
    (file,) = tmp_path.glob("*.moments")
    whole = next(line for line in file.read_bytes().splitlines() if line.startswith(b'["run",0,'))
    catalog = RunCatalog([tmp_path])
    with file.open("ab") as stream:
        stream.write(b'["run",0,{}]\n' + whole.replace(known.encode(), b"run_later"))
    assert set(catalog.runs()) == {known}
    with file.open("ab") as stream:
        stream.write(b"\n")
    assert set(catalog.runs()) == {known, "run_later"}
