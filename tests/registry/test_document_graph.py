"""Walking a graph: everything that can be reached, once, and again only where it is reached more strongly."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.registry.document_graph import DocumentEdge, edges, walk

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
nodes = st.sampled_from("pqrstuvw")
graphs = st.dictionaries(nodes, st.lists(nodes, max_size=3))
weighted = st.dictionaries(nodes, st.lists(st.tuples(nodes, st.integers(0, 2)), max_size=3))


@settings(max_examples=200)
@given(st.lists(nodes, max_size=3), graphs)
def test_everything_that_can_be_reached_comes_once(starts: list[str], graph: dict[str, list[str]]) -> None:
    result = list(walk(starts, lambda item: graph.get(item, [])))
    expected = set(starts)
    for _ in range(8):
        expected |= {further for entry in expected for further in graph.get(entry, [])}
    assert len(result) == len(set(result)) and set(result) == expected


@settings(max_examples=200)
@given(st.lists(st.tuples(nodes, st.integers(0, 2)), max_size=3), weighted)
def test_each_node_is_reached_at_the_strength_of_its_strongest_way(
    starts: list[tuple[str, int]], graph: dict[str, list[tuple[str, int]]]
) -> None:
    """A way is as strong as its weakest step."""

    def further(step: tuple[str, int]) -> list[tuple[str, int]]:
        return [(node, min(step[1], strength)) for node, strength in graph.get(step[0], [])]

    result = list(walk(starts, further, key=lambda step: step[0], rank=lambda step: step[1]))
    expected: dict[str, int] = {}
    for least in (0, 1, 2):
        reached = {node for node, strength in starts if strength >= least}
        for _ in range(8):
            reached |= {
                node for entry in reached for node, strength in graph.get(entry, []) if strength >= least
            }
        expected.update(dict.fromkeys(reached, least))
    assert {
        node: max(strength for value, strength in result if value == node) for node, _ in result
    } == expected
    for node in expected:
        times = [strength for value, strength in result if value == node]
        assert times == sorted(set(times))


def test_all_that_one_start_leads_to_comes_before_the_next_start() -> None:
    graph = {"a": ["b"], "b": ["c"]}
    assert list(walk(["a", "d"], lambda item: graph.get(item, []))) == ["a", "b", "c", "d"]


def test_edges_are_found_at_any_depth_and_the_malformed_passed_over() -> None:
    value = {
        "parents": [{"component": A, "bytes": 3}],
        "payload": {"file": {"blob": B, "bytes": 7}},
        "log": {"blob": C, "bytes": "many"},
        "blob": "sha256:short",
        "component": [A],
        "text": B,
    }
    assert set(edges(value)) == {
        DocumentEdge("component", A, None),
        DocumentEdge("blob", B, 7),
        DocumentEdge("blob", C, None),
    }
    assert list(edges("sha256:text")) == list(edges(None)) == []
