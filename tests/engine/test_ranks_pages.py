"""Page safety on real bytes: transfers copy from prefill's pool to decode's, late if the test holds them."""

import pytest

from tests.engine.ranks.company import Fork, gathered
from tests.engine.ranks.scene import Raise, Scene
from tests.engine.ranks.spec import PAGES, Layout

pytestmark = pytest.mark.engine

FIRST, SECOND = 4716, 4717
TOKENS = 12


def decode_pages_only_for(scene: Scene, tokens: int) -> None:
    scene.decode.occupy(PAGES - tokens)


def serve_from_another_prefill(scene: Scene, fork: Fork, rid: str, room: int) -> None:
    """Decode takes the freed pages for a request of another prefill server, which fills them at once."""
    with gathered(fork, Layout()) as others:
        scene.decode.meet(others)
        others.admit(rid, room, TOKENS)
        scene.decode.shake(room, TOKENS, company=others)
        others.iterate(times=5)
        others.each("settled")


@pytest.mark.parametrize("fault", ["", "is done while it writes"])
def test_decode_reuses_pages_only_when_every_rank_has_stopped_writing(raised: Raise, fork: Fork, fault: str) -> None:
    """A is aborted while rank 1 still writes it. An eager notice lets decode give A's pages to B, and B's KV is wrong
    when the late write comes."""
    scene = raised(fault=fault)
    decode_pages_only_for(scene, TOKENS)
    scene.ranks[1].hold()
    scene.admit("a", FIRST, TOKENS)
    scene.ranks.iterate(times=2)
    scene.ranks[1].begun(1)
    scene.ranks[0].settled()
    scene.ranks.abort("a")
    scene.ranks.iterate(times=2)
    scene.deliver()

    if fault:
        serve_from_another_prefill(scene, fork, "b", SECOND)
        assert scene.decode.holds("b", SECOND)
        scene.ranks.each("let_go")
        scene.ranks.each("settled")
        assert not scene.decode.holds("b", SECOND)
        return

    assert not scene.decode.reserve(SECOND, TOKENS)
    scene.ranks.each("let_go")
    scene.play()
    scene.deliver()
    serve_from_another_prefill(scene, fork, "b", SECOND)
    assert scene.decode.holds("b", SECOND)


@pytest.mark.parametrize("plugin", [True, False], ids=["plugin", "stock"])
def test_prefill_reuses_source_pages_only_when_they_are_read(raised: Raise, plugin: bool) -> None:
    """A is aborted between chunks while its first is still being read. Stock gives its pages to B at once, and the
    reader sends B's KV for A's."""
    scene = raised(plugin=plugin)
    scene.ranks.each("occupy", PAGES - 16)
    scene.ranks.each("hold")
    scene.admit("a", FIRST, TOKENS)
    scene.ranks.iterate(times=2)
    scene.ranks[0].begun(1)
    scene.ranks[1].begun(1)
    scene.ranks.abort("a")
    scene.admit("b", SECOND, TOKENS)
    scene.ranks.iterate(times=4)

    scene.ranks.each("let_go")
    scene.ranks.each("settled")
    first_chunk = list(enumerate(scene.decode.pages[FIRST].tolist()))[:4]
    assert all(scene.decode.is_of("a", *each) for each in first_chunk) == plugin
    assert all(scene.decode.is_of("b", position + 8, page) for position, page in first_chunk) != plugin

    scene.play()
    assert scene.decode.holds("b", SECOND)


def one_transfer_fails(scene: Scene) -> None:
    """Rank 1's, while rank 0 still writes."""
    scene.ranks.each("hold")
    scene.admit("a", FIRST, TOKENS)
    scene.ranks.iterate(times=2)
    scene.ranks[0].begun(1)
    scene.ranks[1].begun(1)
    scene.ranks[1].let_go(-1)
    scene.ranks[1].settled()
    scene.ranks.iterate(times=3)


@pytest.mark.parametrize("fault", ["", "tells a failure at once"])
def test_a_transfer_error_on_one_rank_is_not_told_while_the_other_writes(raised: Raise, fork: Fork, fault: str) -> None:
    """Stock's worker tells decode of it at once, with the same harm as an eager notice."""
    scene = raised(fault=fault)
    decode_pages_only_for(scene, TOKENS)
    one_transfer_fails(scene)
    scene.deliver()
    if fault:
        serve_from_another_prefill(scene, fork, "b", SECOND)
        scene.ranks[0].let_go()
        scene.ranks[0].settled()
        assert not scene.decode.holds("b", SECOND)
        return

    assert not scene.decode.reserve(SECOND, TOKENS)

    scene.ranks[0].let_go()
    scene.play()
    scene.deliver()
    serve_from_another_prefill(scene, fork, "b", SECOND)
    assert scene.decode.holds("b", SECOND)


def test_a_transfer_error_without_a_sidecar_is_told_by_stock(raised: Raise) -> None:
    """And harms as it does without the plugin."""
    scene = raised()
    scene.ranks.each("lose_sidecar")
    one_transfer_fails(scene)

    assert scene.decode.ranks[1].hear() == (FIRST, 0, 1)
    scene.ranks[0].let_go()
    scene.play()
