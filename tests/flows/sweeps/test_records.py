"""Records of a sweep: the first one counts, other settings are refused, and alterations are found."""

import pytest

from penstock.flows.sweeps.grid import run_grid
from penstock.flows.sweeps.records import SweepRecords
from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import ConfigError, CorruptObjectError, LeaseHeldError, LeaseLostError
from penstock.storage.runs.lease_state import LEASE
from penstock.storage.runs.run import list_runs
from penstock.storage.stores.open import open_store


def test_the_first_decision_counts(tmp_path):
    """A later one of the same name changes nothing, and the store lists no run of that name."""
    records = SweepRecords(str(tmp_path), "rates")
    assert records.keep("rungs/00.json", {"stages": 1}) == {"stages": 1}
    assert records.keep("rungs/00.json", {"stages": 2}) == {"stages": 1}
    assert records.read("rungs/01.json") is None
    assert list_runs(open_store(tmp_path)) == []


def test_other_settings_are_refused(tmp_path):
    """The message names what differs, with both values."""
    records = SweepRecords(str(tmp_path), "rates")
    for _ in range(2):
        records.begin("search", {"seed": 1, "space": {"a": [1, 2]}})
    with pytest.raises(ConfigError, match="seed was 1, is 2"):
        records.begin("search", {"seed": 2, "space": {"a": [1, 2]}})
    with pytest.raises(ConfigError, match='method was "search", is "halve"'):
        records.begin("halve", {"seed": 1, "space": {"a": [1, 2]}})


def test_an_altered_record_is_refused(tmp_path):
    """It is not taken for a decision."""
    records = SweepRecords(str(tmp_path), "rates")
    records.keep("rungs/00.json", {"stages": 1})
    (tmp_path / ".sweeps/rates/rungs/00.json").write_text('{"stages": 2')
    with pytest.raises(CorruptObjectError, match="altered"):
        records.read("rungs/00.json")


def test_a_grid_takes_no_other_sweeps_name(tmp_path):
    """Its table would replace that of the other one; a grid itself may go on with further values."""
    records = SweepRecords(str(tmp_path), "rates")
    assert run_grid("rates", records, [], 1, lambda rows: None) == []
    assert run_grid("rates", records, [], 1, lambda rows: None) == []
    SweepRecords(str(tmp_path), "tpe").begin("search", {"seed": 1})
    with pytest.raises(ConfigError, match='method was "search", is "sweep"'):
        run_grid("tpe", SweepRecords(str(tmp_path), "tpe"), [], 1, lambda rows: None)


def test_a_sweep_that_is_under_way_is_not_started_again(tmp_path):
    """Both would train the same runs; once the first has ended, the second goes on with its records."""
    first, second = (SweepRecords(str(tmp_path), "rates") for _ in range(2))
    said = r"sweep 'rates' in .* is under way: .* by sweep rates"
    with first.held(), pytest.raises(LeaseHeldError, match=said), second.held():
        pass
    with second.held():
        assert second.read("rungs/00.json") is None
    assert list_runs(open_store(tmp_path)) == []


def test_a_flow_that_stood_still_decides_nothing_more(tmp_path):
    """Another one has taken the sweep meanwhile: its records are the ones that count."""
    records = SweepRecords(str(tmp_path), "rates")
    with records.held():
        lease = parse_json(records.store.read(LEASE))
        taken = {**lease, "generation": lease["generation"] + 1, "token": "0" * len(lease["token"])}
        records.store.write(LEASE, [canonical_json(taken)])
        records._keeper.renew()
        with pytest.raises(LeaseLostError):
            records.keep("rungs/00.json", {"kept": []})
        assert records.read("rungs/00.json") is None
