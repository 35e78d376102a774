"""Names of what a flow run shows."""

from penstock.flows.display.naming import artifact_key


def test_runs_have_artifacts_of_their_own():
    """Prefect allows fewer characters than names of runs; keys of two runs never meet."""
    keys = [artifact_key(name, "stages") for name in ("a-b", "a.b", "a_b", "a--b", "a-.b")]
    assert keys[0] == "a-b-stages"
    assert len(set(keys)) == len(keys)
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for key in keys)
