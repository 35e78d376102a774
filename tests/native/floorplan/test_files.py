"""Netlists, placements and Bookshelf files, read and written, and what is said of those that are none."""

import codecs
import gzip
import random
import re

import pytest

from penstock.native._floorplan import Evaluator
from penstock.native.floorplan import (
    BlockFileError,
    BlockSpec,
    PlacementCost,
    create_placement_cost,
    generate_block,
    import_bookshelf,
    open_placement,
    read_blockages,
)

from ...support.environments.blocks import ariane, macro, needs_ariane, node, pin, port, read

SMALL = BlockSpec(hard_macros=2, soft_macros=2, ports=2, nets_per_macro=1, columns=5, rows=4)
NODES = port("p", 1, 2, "A/i") + macro("A", 4, 2, 5, 6) + pin("A/i", "A", 1, 1)

BOOKSHELF = {
    "nodes": """UCLA nodes 1.0
# made by hand
NumNodes : 4
NumTerminals : 1
a 4 2
b 6 2
M 10 6
pad 0 0 terminal
""",
    "nets": """UCLA nets 1.0
NumNets : 2
NumPins : 5
NetDegree : 3 n0
    a I : 1 0.5
    M O : -3 2
    b I
NetDegree : 2
    pad B : 0 0
    a O : -2 -1
""",
    "pl": """UCLA pl 1.0
a 100 10 : N
b 110 12 : N
M 120 10 : FN
pad 98 9 : N /FIXED
""",
    "scl": """UCLA scl 1.0
NumRows : 2
CoreRow Horizontal
 Coordinate : 10
 Height : 2
 Sitewidth : 1
 Sitespacing : 1
 SubrowOrigin : 98 NumSites : 40
End
CoreRow Horizontal
 Coordinate : 12
 Height : 2
 Sitewidth : 1
 SubrowOrigin : 98 NumSites : 40
End
""",
}


def bookshelf(folder, **changed):
    for ending, text in {**BOOKSHELF, **changed}.items():
        (folder / f"block.{ending}").write_text(text, encoding="utf-8")
    return folder / "block"


def test_netlist_that_is_written_reads_back_as_the_same(tmp_path):
    """Nodes, sinks, sizes, offsets, weights and positions survive, through gzip too; the same block, the same bytes."""
    netlist, initial = generate_block(tmp_path / "a", SMALL)
    first = open_placement(netlist, initial)
    first.save_netlist(tmp_path / "again.pb.txt.gz")
    second = PlacementCost(tmp_path / "again.pb.txt.gz")
    second.save_netlist(tmp_path / "third.pb.txt")
    assert gzip.decompress((tmp_path / "again.pb.txt.gz").read_bytes()) == (tmp_path / "third.pb.txt").read_bytes()
    second.apply_comments(first.placement_comments(initial))
    second.restore_placement(initial)
    assert second.evaluate() == first.evaluate()
    again, also = generate_block(tmp_path / "b", SMALL)
    assert (again.read_bytes(), also.read_text().split("\n", 2)[2]) == (
        netlist.read_bytes(),
        initial.read_text().split("\n", 2)[2],
    )


def test_saved_placement_opens_under_the_same_settings(tmp_path):
    """Canvas, grids, routes, smoothing, threshold and blockages stand in the header, positions with six digits."""
    plc = PlacementCost(generate_block(tmp_path, SMALL)[0])
    plc.set_canvas_size(400.125, 399)
    plc.set_placement_grid(7, 5)
    plc.set_congestion_grid(9, 8)
    plc.set_routes_per_micron(11.5, 12.25)
    plc.set_macro_routing_allocation(1.5, 2.5)
    plc.set_congestion_smooth_range(2)
    plc.set_overlap_threshold(0.004)
    plc.create_blockage(0, 1.5, 20, 30, 0.1)
    plc.set_block_name("some-block")
    plc.fix_node_coord(0)
    plc.save_placement(tmp_path / "saved.plc", "two\nlines")
    plc.restore_placement(tmp_path / "saved.plc")  # rounded as they were written
    again = open_placement(tmp_path / "netlist.pb.txt", tmp_path / "saved.plc")
    again.save_placement(tmp_path / "again.plc", "two\nlines")
    assert (tmp_path / "again.plc").read_text() == (tmp_path / "saved.plc").read_text()
    assert again.evaluate() == plc.evaluate()
    assert again.is_node_fixed(0)
    assert again.get_block_name() == "some-block"


@pytest.mark.parametrize("routes", [0.0004, 0.0145, 11.2359, 12.5, 1e-9])
def test_routes_are_saved_with_all_their_digits(tmp_path, routes):
    """A search's result has the costs that the search had, however fine the numbers."""
    plc = PlacementCost(generate_block(tmp_path, SMALL)[0])
    plc.set_routes_per_micron(routes, 3 * routes)
    plc.set_macro_routing_allocation(routes / 3, routes / 7)
    plc.save_placement(tmp_path / "saved.plc")
    plc.restore_placement(tmp_path / "saved.plc")
    again = open_placement(tmp_path / "netlist.pb.txt", tmp_path / "saved.plc")
    assert again.get_routes_per_micron() == (routes, 3 * routes)
    assert again.get_macro_routing_allocation() == (routes / 3, routes / 7)
    assert again.evaluate() == plc.evaluate()


@pytest.mark.parametrize("square", [True, False])
def test_saved_placement_says_whether_soft_macros_are_square(tmp_path, square):
    """And which gap hard macros need: a placement has no sizes, so its header does."""
    netlist = macro("M0", 4, 4, 5, 5) + macro("Grp_0", 8, 2, 15, 15) + port("P", 0, 0, "Grp_0")
    plc = read(tmp_path, netlist)
    plc.set_canvas_size(20, 20)
    plc.set_placement_grid(10, 10)
    if square:
        plc.make_soft_macros_square()
        plc.set_macro_macro_spacing(0.1, 0.25)
    plc.save_placement(tmp_path / "saved.plc")
    again = open_placement(tmp_path / "netlist.pb.txt", tmp_path / "saved.plc")
    assert again.get_node_width_height(again.get_node_index("Grp_0")) == ((4, 4) if square else (8, 2))
    assert again.get_macro_macro_spacing() == ((0.1, 0.25) if square else (0, 0))
    assert again.evaluate() == plc.evaluate()
    assert ("Soft macros : square" in (tmp_path / "saved.plc").read_text()) == square
    costs = {name: plc.evaluate()[f"{name}_cost"] for name in ("wirelength", "density", "congestion")}
    assert again.header_costs(tmp_path / "saved.plc") == pytest.approx(costs, abs=5e-5)


def test_comments_that_look_like_settings_are_none(tmp_path):
    """Users' text, in names and below their heading, and comments between nodes change no setting."""
    plc = open_placement(*generate_block(tmp_path, SMALL))
    plc.set_congestion_smooth_range(2)
    plc.set_project_name("one\n# Smoothing factor : 9")
    settings = ["Columns : 7  Rows : 9", "Width : 5  Height : 5", "Smoothing factor : 3", "Blockage : 0 0 9 9 0.5"]
    saved, unlike = tmp_path / "saved.plc", "\n".join([*settings, "Overlap threshold : -1"])
    plc.save_placement(saved, unlike)
    saved.write_text(saved.read_text() + "".join(f"# {line}\n" for line in settings))
    again = open_placement(tmp_path / "netlist.pb.txt", saved)
    again.save_placement(tmp_path / "again.plc", unlike)
    header, _, _ = saved.read_text().partition("# Project")
    assert (tmp_path / "again.plc").read_text().startswith(header)
    assert (again.get_grid_num_columns_rows(), again.get_congestion_smooth_range()) == ((5, 4), 2.0)
    assert again.get_blockages() == []


@needs_ariane
def test_ariane133_is_read_and_written_to_the_byte():
    """Counts are the published ones, and the placement's lines come out as they went in."""
    plc = open_placement(ariane("netlist.pb.txt.gz"), ariane("initial.plc"))
    counts = (plc.get_node_count(), plc.get_ports_count(), plc.get_hard_macros_count(), plc.get_soft_macros_count())
    assert counts == (19887, 495, 133, 782)
    assert (plc.get_hard_macro_pins_count(), plc.get_soft_macro_pins_count()) == (7847, 10630)
    assert (plc.get_net_count(), plc.get_total_net_weight()) == (12422, 22584)
    lines = [line for line in ariane("initial.plc").read_text().splitlines() if not line.startswith("#")]
    assert plc._plc_lines().splitlines() == lines


def test_netlist_format_variants(tmp_path):
    """Other blocks, comments, lists, attributes in any order, upper and lower case; metadata has no index."""
    text = (
        'meta { a: [1, 2] b { c: "}" } } version: 3\n# Block : some_name\n'
        + node("__metadata__", soft_macro_area_bloating_ratio=2.0)
        + 'node { attr { value { placeholder: "Macro" } key: "type" } name: "Grp_x" input: ["A/i", "nobody"],\n'
        + ' attr { key: "width" value { f: 2 } } attr { key: "height" value: { f: .5e1 } } device: "x" }\n'
        + NODES
    )
    plc = read(tmp_path, text)
    assert [plc.get_node_type(i) for i in range(-1, 5)] == ["", "MACRO", "PORT", "MACRO", "MACRO_PIN", ""]
    assert plc.is_node_soft_macro(0)
    assert not plc.is_node_placed(0)
    assert plc.get_fan_outs_of_node(0) == []
    assert plc.get_fan_outs_of_node(1) == [3]
    assert plc.netlist_comments()["block"] == "some_name"
    (tmp_path / "one").write_text(NODES)
    (tmp_path / "two").write_text(macro("B", 1, 1, 0, 0))
    assert PlacementCost(f"{tmp_path}/one,{tmp_path}/two").get_node_name(3) == "B"


def test_escaped_bytes_of_a_netlist_are_read(tmp_path):
    """Protocol buffers' text has bytes beyond ASCII in octal; comments and doubled backslashes stay."""
    escaped = NODES.replace('"p"', r'"\160\303\251\x41\042\12\r"', 1).replace('"A"', r'"A\\101"')
    plc = read(tmp_path, '# "\\377"\n' + escaped)
    assert plc.get_node_name(0) == 'p\u00e9A"\n\r'
    assert plc.get_node_name(1) == r"A\101"
    plc.save_netlist(tmp_path / "again.pb.txt")
    assert PlacementCost(tmp_path / "again.pb.txt").get_node_name(0) == 'p\u00e9A"\n\r'
    with pytest.raises(
        BlockFileError, match=r"netlist\.pb\.txt:2: found .*, expected a text whose escapes are bytes of UTF"
    ):
        read(tmp_path, '\nnode { name: "\\377" }')
    with pytest.raises(BlockFileError, match=r"netlist\.pb\.txt:1: found 'q\" }', expected one of n, t"):
        read(tmp_path, 'node { name: "\\q" }')


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("node {\n name: 3 }", 2, "the node's name in quotes"),
        ("node {\n name: 'a'\n", 3, "the closing '}' of the node"),
        ("nod\ne", 2, "behind a name"),
        ("\n\n}", 3, "a block: node { ... }"),
        ("\n" + node("a", type="thing"), 2, "port, macro, macro_pin or stdcell"),
        (node("a", x=1.0), 1, "port, macro, macro_pin or stdcell"),
        (node("a", type="MACRO", width=1.0), 1, "width and height"),
        (node("a", type="macro_pin"), 1, "macro_name"),
        (pin("a", "none", 0, 0), 1, "the name of a macro"),
        (NODES + port("p", 0, 0), 25, "each name once"),
        (port("a", 0.0, 0).replace("0.0", "nan"), 4, "a finite number"),
        (node("a", type="MACRO", width=1, height=1, orientation="Q"), 1, "N, FN, S, FS, E, FE, W or FW"),
        ("# Columns : 0  Rows : 3\n", 1, "from 1 to 1024"),
        ("# Width : 5  Height : -1\n", 1, "um"),
    ],
)  # fmt: skip
def test_malformed_netlist_is_refused_by_file_and_line(text, where, expected, tmp_path):
    """The message names file and line, says what was found and what was expected."""
    with pytest.raises(BlockFileError, match=re.escape(f"netlist.pb.txt:{where}: ")) as refused:
        read(tmp_path, text)
    assert expected in str(refused.value)
    assert "found" in str(refused.value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("0 1 2 -", "five values"),
        ("9 1 2 - 0", "an index from 0 to 2".replace("an", "a node's")),
        ("2 1 2 - 0", "this is a pin's"),
        ("1 1 inf N 0", "two finite numbers"),
        ("1 1 2 Q 0", "an orientation"),
        ("1 1 2 N 2", "0 or 1"),
        ("0 3 3 - 0", "each node once"),
    ],
)
def test_malformed_placement_is_refused_by_file_and_line(line, expected, tmp_path):
    """The message names file and line and what was expected, and the placement is as it was."""
    plc = read(tmp_path, NODES)
    (tmp_path / "bad.plc").write_text(f"# Columns : 3  Rows : 3\n0 7 7 - 1\n{line}\n")
    with pytest.raises(BlockFileError, match=r"bad\.plc:3: found") as refused:
        plc.restore_placement(tmp_path / "bad.plc")
    assert expected in str(refused.value)
    assert plc.get_node_location(0) == (1.0, 2.0)


def test_other_files_are_refused_by_name(tmp_path):
    """A file that is not there, that is no text, or that is half a gzip file; blockages of another form."""
    (tmp_path / "bytes").write_bytes(b"node\n\xff")
    (tmp_path / "half.gz").write_bytes(gzip.compress(NODES.encode())[:40])
    (tmp_path / "blockages").write_text("0 0 1 1\n\n1 2 3\n")
    for name, message in (("none", "cannot be read"), ("bytes", ":2: found the byte 0xff"), ("half.gz", "damaged")):
        with pytest.raises(BlockFileError, match=message):
            PlacementCost(tmp_path / name)
    with pytest.raises(BlockFileError, match="blockages:3: found '1 2 3', expected four numbers"):
        read_blockages(tmp_path / "blockages")
    (tmp_path / "blockages").write_text("0 0 nan 1\n")
    with pytest.raises(BlockFileError, match="blockages:1: found '0 0 nan 1', expected four numbers"):
        read_blockages(tmp_path / "blockages")


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path):
    """Editors on Windows write one; netlists, placements and Bookshelf files are read as without one."""
    netlist, initial = generate_block(tmp_path, SMALL)
    plain = open_placement(netlist, initial)
    stem = bookshelf(tmp_path)
    imported = open_placement(*import_bookshelf(stem, tmp_path / "plain"))
    for file in (netlist, initial, *(stem.with_suffix(f".{ending}") for ending in BOOKSHELF)):
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert open_placement(netlist, initial).evaluate() == plain.evaluate()
    assert open_placement(*import_bookshelf(stem, tmp_path / "marked")).evaluate() == imported.evaluate()
    netlist.write_bytes(codecs.BOM_UTF8 + b"node\n\xff")
    with pytest.raises(BlockFileError, match=":2: found the byte 0xff"):
        PlacementCost(netlist)


def test_names_of_bookshelf_may_have_colons_and_number_signs(tmp_path):
    """Nodes keep the wirelength that they have under plain names, beside comments and keywords without spaces."""
    plain = open_placement(*import_bookshelf(bookshelf(tmp_path), tmp_path / "plain"))
    named = {
        ending: re.sub(r"(?m)^( *)(a|M|pad) ", lambda found: f"{found[1]}{found[2]}:1#2 ", text)
        .replace("NumNodes : ", "NumNodes:")
        .replace("NetDegree : ", "NetDegree:")
        .replace(" N\n", " N# as it was\n")
        for ending, text in BOOKSHELF.items()
    }
    plc = open_placement(*import_bookshelf(bookshelf(tmp_path, **named), tmp_path / "named"))
    assert plc.get_node_name(plc.get_node_index("M:1#2")) == "M:1#2"
    assert plc.get_node_type(plc.get_node_index("pad:1#2")) == "PORT"
    assert plc.evaluate() == plain.evaluate()
    unknown = BOOKSHELF["nets"].replace("b I", "b#1 I")
    with pytest.raises(BlockFileError, match=r"block\.nets:7: .* expected the name of a node"):
        import_bookshelf(bookshelf(tmp_path, nets=unknown), tmp_path / "out")


def test_bookshelf_wirelength_is_kept(tmp_path):
    """Pins keep their offsets, turned with their macro; positions move with the canvas; pads are fixed."""
    plc = open_placement(*import_bookshelf(bookshelf(tmp_path), tmp_path / "out"))
    assert plc.get_canvas_width_height() == (40.0, 4.0)
    a, m, b, pad = (100 + 2, 10 + 1), (120 + 5, 10 + 3), (110 + 3, 12 + 1), (98, 9)
    first = [(a[0] + 1, a[1] + 0.5), (m[0] + 3, m[1] + 2), b]
    second = [pad, (a[0] - 2, a[1] - 1)]
    hpwl = sum(max(p[i] for p in net) - min(p[i] for p in net) for net in (first, second) for i in (0, 1))
    assert plc.get_wirelength() == hpwl
    assert plc.is_node_soft_macro(plc.get_node_index("Grp_a"))
    assert plc.is_node_fixed(plc.get_node_index("pad"))
    assert plc.get_node_type(plc.get_node_index("pad")) == "PORT"
    assert plc.get_macro_orientation(plc.get_node_index("M")) == "FN"


def test_standard_cells_of_bookshelf_are_mirrored_with_their_pins(tmp_path):
    """A soft macro has no orientation, so that its pins are stored as they lie."""
    turned = BOOKSHELF["pl"].replace("a 100 10 : N", "a 100 10 : FS")
    plc = open_placement(*import_bookshelf(bookshelf(tmp_path, pl=turned), tmp_path / "out"))
    a, m, b, pad = (100 + 2, 10 + 1), (120 + 5, 10 + 3), (110 + 3, 12 + 1), (98, 9)
    first = [(a[0] + 1, a[1] - 0.5), (m[0] + 3, m[1] + 2), b]
    second = [pad, (a[0] - 2, a[1] + 1)]
    hpwl = sum(max(p[i] for p in net) - min(p[i] for p in net) for net in (first, second) for i in (0, 1))
    assert plc.get_wirelength() == hpwl


@pytest.mark.parametrize("line", ["a 100 10 : W", "M 120 10 : E"])
def test_quarter_turns_of_bookshelf_are_refused(tmp_path, line):
    """Width and height would change places, and with them the centre and every pin."""
    name = line.split()[0]
    turned = "\n".join(line if each.startswith(f"{name} ") else each for each in BOOKSHELF["pl"].splitlines())
    with pytest.raises(BlockFileError, match=rf"{name} has the orientation [EW], which exchanges its width and height"):
        import_bookshelf(bookshelf(tmp_path, pl=turned), tmp_path / "out")


def test_a_pad_of_bookshelf_may_have_any_orientation(tmp_path):
    """It is a point: nothing of it is turned, whatever length its file gives it."""
    nodes = BOOKSHELF["nodes"].replace("pad 0 0 terminal", "pad 3 0 terminal")
    turned = BOOKSHELF["pl"].replace("pad 98 9 : N", "pad 98 9 : W")
    plc = open_placement(*import_bookshelf(bookshelf(tmp_path, nodes=nodes, pl=turned), tmp_path / "out"))
    assert plc.get_node_type(plc.get_node_index("pad")) == "PORT"


def test_a_row_of_bookshelf_may_have_several_parts(tmp_path):
    """The canvas covers all of them."""
    parts = "SubrowOrigin : 98 NumSites : 15\n SubrowOrigin : 123 NumSites : 15"
    scl = BOOKSHELF["scl"].replace("SubrowOrigin : 98 NumSites : 40", parts)
    plc = open_placement(*import_bookshelf(bookshelf(tmp_path, scl=scl), tmp_path / "out"))
    assert plc.get_canvas_width_height() == (40.0, 4.0)


def test_blockages_of_a_header_replace_those_of_the_netlist(tmp_path):
    """As all its other settings do, in a finished placement and in an episode."""
    netlist, placement = tmp_path / "netlist.pb.txt", tmp_path / "initial.plc"
    netlist.write_text("# Blockage : 0 0 1 1 0.5\n" + NODES)
    head = "# Columns : 10  Rows : 10\n# Width : 20  Height : 20\n"
    for blockage, expected in (("# Blockage : 0 0 2 2 0.99\n", [0, 0, 2, 2, 0.99]), ("", [0, 0, 1, 1, 0.5])):
        placement.write_text(f"{head}{blockage}1 5 6 N 0\n")
        for opened in (open_placement(netlist, placement), create_placement_cost(netlist, placement)):
            assert [list(each) for each in opened.get_blockages()] == [expected]


def test_malformed_bookshelf_files_are_refused_by_file_and_line(tmp_path):
    """Each of the four files, with the line where it goes wrong."""
    for ending, old, new, message in (
        ("nodes", "b 6 2", "b 6", r"block\.nodes:6: found 'b 6', expected name width height"),
        ("nets", "b I", "c I", r"block\.nets:7: .* expected the name of a node"),
        ("nets", "NetDegree : 3", "NetDegree : 4", r"block\.nets:8: .* 1 more pins"),
        ("pl", "110 12 : N", "110 x : N", r"block\.pl:3: .* two numbers"),
        ("scl", " Height : 2", "", r"block\.scl:9: .* before the End of a row"),
    ):
        stem = bookshelf(tmp_path, **{ending: BOOKSHELF[ending].replace(old, new, 1)})
        with pytest.raises(BlockFileError, match=message):
            import_bookshelf(stem, tmp_path / "out")


TOKENS = ["{", "}", '"', "\\", "#", "\n", "node", "attr", "f:", "1e39", "-1", "nan", "0", ":",
          "# Width : 1  Height : 2\n",
          "# Columns : 7  Rows : 9\n", "\x00", "\xe9", "macro_pin", "Grp", " ", "[", "<", "'"]  # fmt: skip


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        near = min(to, at + rng.randint(0, 30))
        kind = rng.randrange(4)
        if kind == 0:
            text = text[:at] + text[near:]
        elif kind == 1:
            text = text[:at] + rng.choice(TOKENS) + text[at:]
        elif kind == 2:
            text = text[:at] + text[at:near] + text[at:]
        else:
            text = text[:at] + chr(rng.randrange(256)) + text[at + 1 :]
    return text


def test_ten_thousand_mutated_files_give_an_error_or_a_result(tmp_path):
    """Netlists, placements and Bookshelf files with random damage are refused by name or read, and then evaluate."""
    rng = random.Random(1)
    netlist, initial = generate_block(tmp_path, SMALL)
    good = open_placement(netlist, initial)
    text, plc = netlist.read_text(), re.sub(r"# [^:]*\n", "", initial.read_text())
    outcomes = {"read": 0, "refused": 0, "unnamed": 0}

    def attempt(name: str, use) -> None:
        try:
            use()
            outcomes["read"] += 1
        except BlockFileError as error:
            outcomes["refused" if name in str(error) else "unnamed"] += 1

    def restored(content: str) -> None:
        other = PlacementCost(good)
        other.apply_comments(other._read_plc(content, "bad"))
        other._restore(content, "bad")
        other.get_costs()

    def imported(ending: str, content: str) -> None:
        import_bookshelf(bookshelf(tmp_path, **{ending: content}), tmp_path / "out")

    for _ in range(5500):
        attempt("bad", lambda: Evaluator([("bad", mutated(text, rng))]).get_costs())
    for _ in range(4000):
        attempt("bad", lambda: restored(mutated(plc, rng)))
    for _ in range(500):
        ending = rng.choice(list(BOOKSHELF))
        attempt("block.", lambda ending=ending: imported(ending, mutated(BOOKSHELF[ending], rng)))
    assert outcomes["read"] + outcomes["refused"] == 10_000, outcomes
    assert min(outcomes["read"], outcomes["refused"]) > 1000, outcomes


def test_a_folder_is_answered_with_the_netlist_in_it(tmp_path):
    """Blocks come as folders, and commands take their files."""
    with pytest.raises(BlockFileError, match="is a folder, expected a file; check the path"):
        create_placement_cost(tmp_path)
    (tmp_path / "netlist.pb.txt.gz").touch()
    with pytest.raises(BlockFileError, match=r"did you mean .*/netlist\.pb\.txt\.gz\?"):
        create_placement_cost(tmp_path)
