"""Macro placement in a pool: the evaluator's own masks, lengths and costs, step by step, and states that resume."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from penstock import native
from penstock.native.floorplan import BlockSpec, create_placement_cost, generate_block, load_environment

COLUMNS, ROWS, MACROS = 9, 8, 5
CELLS = COLUMNS * ROWS


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """An evaluator without anything placed but the ports, and its environment."""
    folder = tmp_path_factory.mktemp("block")
    spec = BlockSpec(hard_macros=MACROS, soft_macros=6, ports=8, columns=COLUMNS, rows=ROWS, hard_share=0.2)
    plc = create_placement_cost(*generate_block(folder, spec), smooth_range=2)
    plc.unplace_all_nodes()
    load_environment(plc, "Floorplan-test-v0", folder / "environment")
    return plc


def ordered(plc):
    hard = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m)]
    return sorted(hard, key=lambda m: -np.prod(plc.get_node_width_height(m)))


def chosen(observation, rng):
    """A cell that is allowed; after an episode's end, when the next step is a reset, any."""
    return np.array([rng.choice(np.flatnonzero(row[:CELLS]) if row[:CELLS].any() else CELLS) for row in observation])


def test_episode_equals_the_evaluator(block):
    """Masks and cells exactly, lengths and costs to 1e-9; the reward is their weighted sum, at the end alone."""
    pool = native.make("Floorplan-test-v0", 1, congestion_weight=0.25)
    rng = np.random.default_rng(4)
    observation, infos = pool.reset(seed=0)
    for _ in range(3):
        cells = []
        block.unplace_all_nodes()
        for macro in ordered(block):
            assert observation[0, :CELLS].tolist() == block.get_node_mask(macro)
            seen = [0, len(cells), 0, *(n for cell in cells for n in (cell % COLUMNS, cell // COLUMNS))]
            assert observation[0, CELLS:].tolist() == seen + [255] * (3 + 2 * MACROS - len(seen))
            cells.append(int(chosen(observation, rng)[0]))
            block.place_node(macro, cells[-1])
            observation, reward, terminated, _, infos = pool.step(np.array([cells[-1]]))
            assert infos["length"][0] == pytest.approx(block.get_wirelength(), rel=1e-9)
            assert terminated[0] == (len(cells) == MACROS)
            assert terminated[0] or (reward[0], infos["density"][0]) == (0.0, -1.0)
        block.place_soft_macros()
        costs = block.get_costs()
        assert (infos["wirelength"][0], infos["density"][0], infos["congestion"][0]) == pytest.approx(costs, rel=1e-9)
        assert reward[0] == pytest.approx(-(costs[0] + costs[1] + 0.25 * costs[2]), rel=1e-9)
        assert not observation[0, :CELLS].any()
        observation, *_ = pool.step(np.array([0]))


def test_gymnasium_checks_the_environment(tmp_path):
    """check_env finds no fault. Its actions know no mask: one small macro may go to every cell."""
    spec = BlockSpec(hard_macros=1, soft_macros=3, ports=4, columns=COLUMNS, rows=ROWS, hard_share=0.005)
    load_environment(create_placement_cost(*generate_block(tmp_path, spec)), "Floorplan-checked-v0", tmp_path / "kept")
    check_env(native.SingleEnv("Floorplan-checked-v0"), skip_render_check=True)


def test_forbidden_cell_is_refused(block):
    """An action that the mask forbids is an error that says so."""
    pool = native.make("Floorplan-test-v0", 2)
    observation, _ = pool.reset(seed=0)
    allowed = int(np.flatnonzero(observation[0, :CELLS])[0])
    with pytest.raises(Exception, match="macro 0 may not be placed on cell 0: the mask says"):
        pool.step(np.array([allowed, 0]))


def test_saved_episode_resumes_unchanged(block):
    """Restored in the middle of an episode, masks, rewards and lengths are those of a pool that was never saved."""
    rng = np.random.default_rng(5)
    pool, other = (native.make("Floorplan-test-v0", 3, num_threads=2) for _ in range(2))
    observation, _ = pool.reset(seed=1)
    for _ in range(MACROS + 3):
        observation, *_ = pool.step(chosen(observation, rng))
    other.reset(seed=9)
    other.restore(pool.save())
    for _ in range(MACROS):
        actions = chosen(observation, rng)
        one, two = pool.step(actions), other.step(actions)
        for left, right in zip(one[:4], two[:4], strict=True):
            assert np.array_equal(left, right)
        assert all(np.array_equal(one[4][key], two[4][key]) for key in one[4])
        observation = one[0]


def test_several_blocks_share_a_pool(tmp_path, block):
    """Each environment has the block, the observation and the masks that its configuration names."""
    spec = BlockSpec(hard_macros=3, soft_macros=4, ports=6, columns=COLUMNS, rows=ROWS, hard_share=0.2, seed=7)
    other = create_placement_cost(*generate_block(tmp_path, spec))
    other.unplace_all_nodes()
    library = load_environment([block, other])
    pool = library.make(3, block=[1, 0, 1])
    block.unplace_all_nodes()
    observation, _ = pool.reset(seed=0)
    assert observation[:, CELLS].tolist() == [1, 0, 1]
    for row, plc in zip(observation, (other, block, other), strict=True):
        assert row[:CELLS].tolist() == plc.get_node_mask(ordered(plc)[0])
    rng = np.random.default_rng(2)
    for _ in range(3):
        observation, _, terminated, *_ = pool.step(chosen(observation, rng))
    assert terminated.tolist() == [True, False, True]
    with pytest.raises(Exception, match="block is 2, but there are 2"):
        library.make(1, block=2).reset(seed=0)


def test_facts_are_the_netlist(block):
    """Edges are the evaluator's adjacency with clustered ports; nodes in placing order come first."""
    facts = native.make("Floorplan-test-v0", 1).environment["facts"]
    assert facts["grid"].tolist() == [COLUMNS, ROWS]
    macros = block.get_macro_indices()
    weights, cells = block.get_macro_and_clustered_port_adjacency()
    whole = np.reshape(weights, (len(macros) + len(cells),) * 2)
    first = [macros.index(macro) for macro in ordered(block)]
    rows = [*first, *(row for row in range(len(whole)) if row not in first)]
    found = np.zeros_like(whole)
    _, one, two, weight = facts["edges"].T
    found[one.astype(int), two.astype(int)] = found[two.astype(int), one.astype(int)] = weight
    assert np.array_equal(found, whole[np.ix_(rows, rows)])
    assert facts["nodes"][:, 1].tolist() == [0] * MACROS + [1] * 6 + [2] * len(cells)
    sizes = [block.get_node_width_height(macros[row]) for row in rows[: len(macros)]]
    assert facts["nodes"][: len(macros), 2:4] == pytest.approx(np.array(sizes) / block.get_canvas_width_height()[0])


def test_processes_may_prepare_one_block_at_once(block, tmp_path):
    """As the members of a gang do on one machine; they share the folder."""

    def prepare(_: int) -> str:
        return load_environment(block, "Floorplan-shared-v0", tmp_path / "kept").environment_ids[0]

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(prepare, range(200))) == {"Floorplan-shared-v0"}
    assert not list(tmp_path.rglob("*.part"))
