"""Where a worker of another machine listens, and what others are told to call."""

import pytest

from holdfast.cli.worker import own_network
from holdfast.config import NetworkConfig

OF_RUN = NetworkConfig(listen="10.0.0.1", advertise="launcher.example", tls="on")


@pytest.mark.parametrize(
    ("own_host", "listen", "advertise", "expected"),
    [
        ("10.0.0.7", "", "", ("10.0.0.7", "")),  # the card that leads to the run
        ("fd77::7", "", "", ("fd77::7", "")),
        ("10.0.0.7", "192.168.3.7", "", ("192.168.3.7", "")),  # another card for tensors
        ("10.0.0.7", "0.0.0.0", "", ("0.0.0.0", "10.0.0.7")),  # nobody can call all of them
        ("fd77::7", "::", "node7", ("::", "node7")),
        ("10.0.0.7", "", "node7", ("10.0.0.7", "node7")),
    ],
)
def test_it_listens_on_the_card_that_leads_to_the_run_unless_told(
    own_host, listen, advertise, expected
):
    found = own_network(OF_RUN, own_host, listen, advertise)
    assert (found.listen, found.advertise) == expected
    assert found.tls == OF_RUN.tls


def test_on_the_machine_of_a_run_on_loopback_it_is_as_the_run_says():
    of_run = NetworkConfig()
    assert own_network(of_run, "127.0.0.1", "", "") == of_run
