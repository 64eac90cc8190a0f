"""A real engine that can have no sidecar serves as stock does, and says so."""

from tests.e2e.conftest import ended_before_decode
from tests.pair.running import running_pair
from tests.pair.side import PairSpec
from tests.pair.traffic import Client, Order

TIMEOUT_S = 10


async def test_a_sidecar_that_cannot_start_leaves_stock_and_one_log_line() -> None:
    """A path below a file: nobody can make the directory."""
    socket = "/proc/version/pd-sidecar/s"
    spec = PairSpec.of(plugin=True, timeout_s=TIMEOUT_S, env={"PD_SIDECAR_SOCKET": socket})
    with running_pair(spec, "no-sidecar") as pair:
        async with Client(pair) as client:
            sent = client.send(Order(text="d" * 500))
            assert (await sent.prefill).is_good
            assert (await sent.decode).is_good
            order = await ended_before_decode(client)
            decode = await client.send_decode(order)
            report = (await client.server_info("prefill"))["internal_states"][0]["pd_sidecar"]
        log = pair.prefill.log.read_text()

    assert decode.took_s > TIMEOUT_S / 2
    assert log.count("pd-sidecar: no sidecar at") == 1
    assert "Not a directory" in log
    assert report["stream"]["failures"] > 0
    assert not report["stream"]["connected"]
    assert report["faults"] == {}
