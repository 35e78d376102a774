"""The list of what can be made here: every id in it can be, and what is missing is named with what installs it."""

import subprocess
import sys

import pytest

from penstock import native
from penstock.native.registry.families import families


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
def test_every_family_is_listed_with_ids_that_can_be_made():
    """The first id of each that is installed makes a pool, which restores as the list says."""
    for family in families():
        assert family.installed or (not family.ids and family.install)
        for name in family.ids[:1]:
            pool = native.make(name, 1)
            assert pool.restores_by_replay == (family.restored == "replay"), name
            pool.close()


def test_ids_of_this_package_come_once_and_gymnasiums_twin_by_its_prefix():
    """`CartPole-v1` is stepped here, and `gymnasium/CartPole-v1` by Gymnasium; nobody lists an id twice."""
    ids = [name for family in families() for name in family.ids]
    assert len(ids) == len(set(ids))
    assert {"CartPole-v1", "gymnasium/CartPole-v1", "Ant-v5", "gymnasium/Ant-v5"} <= set(ids)
    assert not [name for name in ids if name.startswith("penstock/")]


@pytest.mark.parametrize(
    ("pattern", "first"),
    [("cartpole", "CartPole-v1"), ("CARTPOLE-V1", "CartPole-v1"), ("cart*v1", "CartPole-v1"), ("*/cart*", None)],
)
def test_a_pattern_is_part_of_an_id_or_a_files_pattern(pattern: str, first: str | None):
    """Capitals do not matter, and families without a match are left out."""
    found = families(pattern)
    assert all(family.ids for family in found)
    own = [family.ids[0] for family in found if family.name == "Penstock"]
    assert own == ([] if first is None else [first])


def test_a_missing_package_is_no_error():
    """Its family is listed without ids, with the command that installs it."""
    code = (
        "import sys; sys.modules.update(minatar=None, ale_py=None)\n"
        "from penstock.native.registry.families import families\n"
        "for family in families():\n"
        "    print(family.name, family.installed, len(family.ids), family.install, sep=';')\n"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert "MinAtar;False;0;pip install 'penstock-rl[minatar]'" in lines
    assert "Atari;False;0;pip install 'penstock-rl[atari]'" in lines


def test_penstocks_own_box2d_is_listed_with_what_builds_it():
    """It is a distribution of its own: listed as missing where it is not installed, whoever else brings its ids."""
    code = (
        "import sys; sys.modules.update(penstock_box2d=None)\n"
        "from penstock.native.registry.families import families\n"
        "one = next(family for family in families() if family.name == 'Box2D')\n"
        "print(one.installed, one.ids, one.install, one.restored, one.note, sep=';')\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    said = "False;();pip install --no-build-isolation native/packages/box2d;state;penstock-box2d: LunarLander-v3 and"
    assert done.stdout.startswith(said)


def test_ids_that_a_package_registers_can_be_made_in_a_process_that_has_not_listed_them():
    """Listing imports packages, which register ids; `make` alone must do the same by the id."""
    pytest.importorskip("ale_py")
    name = next(family for family in families() if family.name == "Gymnasium, ale_py").ids[0]
    code = f"from penstock import native; native.make({name!r}, 1, one_array=True).close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
