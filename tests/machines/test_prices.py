"""The list of prices is shown whole, and read anew from a server that speaks the provider's JSON."""

import logging

import pytest

from daybreak import cli
from daybreak.contract.errors import JobError, ParamsError
from daybreak.machines import pricelist, prices
from daybreak.machines.catalog import rented
from tests.machines.billing import Billing, serving, sku

CHIPS = [
    sku("TpuV6e running in Iowa", 2.5, group="TPU"),
    sku("TpuV6e attached to Spot Preemptible VMs running in Iowa", 0.6, usage="Preemptible"),
    sku("TpuV5e running in Iowa", 700.0, group="TPU"),
    sku("TpuV5e attached to Spot Preemptible VMs running in Iowa", 0.3, usage="Preemptible"),
    sku("TPU7x running in Americas", 12.0, group="TPU"),
]
L4 = [
    sku("Nvidia L4 GPU running in Americas", 0.56, group="GPU"),
    sku("G2 Instance Core running in Americas", 0.025),
    sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
]
L4_ON_VERTEX = [
    sku("Vertex AI: Training/Pipelines on NVIDIA L4 in Iowa", 0.67),
    sku("Vertex AI: Training/Pipelines on G2 Instance Core in Iowa", 0.029),
    sku("Vertex AI: Training/Pipelines on G2 Instance RAM in Iowa", 0.0034, unit="GiBy.h"),
    sku("Vertex AI: Training/Pipelines management fee on NVIDIA L4 in Iowa", 0.07),
    sku("Vertex AI: Training/Pipelines management fee on G2 Instance Core in Iowa", 0.004),
    sku("Vertex AI: Training/Pipelines Management fee on G2 Instance RAM in Iowa", 0.0005, unit="GiBy.h"),
    sku("Vertex AI: Online/Batch Prediction management fee on NVIDIA L4 in Iowa", 7.0),
    sku("Vertex AI: Training/Pipelines on SSD backed PD Capacity", 0.1955, unit="GiBy.mo"),
]
V6E = ("ct6e-standard-1t", "us-central1", "on-demand")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.setenv(prices.KEY, "a-key")
    return tmp_path


def price(kept, key):
    return next(p for p in pricelist.prices(kept) if p.key == key)


def test_prices_are_read_page_by_page_and_go_before_the_shipped_ones(home):
    kept = home / pricelist.REFRESHED
    assert price(kept, V6E).usd_per_hour == 2.7
    with serving(Billing(skus=CHIPS, page_size=2)) as api:
        refreshed = prices.refresh(kept, url=api.url)
    assert len(api.asked) == 3 + 1  # of Compute Engine and Vertex AI
    # v6e on-demand and spot, v5e spot, in three sizes; TPU7x; all in us-central1
    assert len(refreshed.accepted) == 10
    assert price(kept, V6E).usd_per_hour == 2.5
    assert price(kept, V6E).source == "Cloud Billing Catalog API"
    machine = next(m for m in rented(kept) if (m.name, m.region) == V6E[:2])
    assert (machine.usd_per_hour, machine.spot_usd_per_hour) == pytest.approx((2.5 * 1.15, 0.6 + 0.15 * 2.5))


def test_what_was_refused_keeps_its_old_price_and_is_told(home, caplog):
    with serving(Billing(skus=CHIPS)) as api, caplog.at_level(logging.INFO):
        assert cli.main(["prices", "--refresh", "--url", api.url]) == 0
    refused = [r.message for r in caplog.records if r.message.startswith("refused: ")]
    assert len(refused) == 3
    assert (
        "ct5lp-hightpu-1t in us-central1, on-demand: 700 dollars an hour is 583 times the 1.2" in refused[0]
    )
    assert (
        price(home / pricelist.REFRESHED, ("ct5lp-hightpu-1t", "us-central1", "on-demand")).usd_per_hour
        == 1.2
    )
    assert "10 prices are in " in caplog.text


def test_a_price_in_a_region_where_the_machine_is_not_offered_does_not_offer_it(home):
    kept = home / pricelist.REFRESHED
    elsewhere = sku("TpuV6e running in Dallas", 2.0, regions=("asia-south1", "us-central1"), group="TPU")
    with serving(Billing(skus=[elsewhere])) as api:
        prices.refresh(kept, url=api.url)
    assert "asia-south1" not in kept.read_text()
    kept.write_text(kept.read_text() + "a2-highgpu-1g,asia-south1,on-demand,0.01,somebody,2026-11-21,,\n")
    assert rented(kept) and not [m for m in rented(kept) if m.region == "asia-south1"]


def test_a_second_look_keeps_what_only_the_first_one_told(home):
    kept = home / pricelist.REFRESHED
    for chips in (CHIPS[:1], CHIPS[4:]):
        with serving(Billing(skus=chips)) as api:
            prices.refresh(kept, url=api.url)
    assert price(kept, V6E).usd_per_hour == 2.5
    assert price(kept, ("tpu7x-standard-4t", "us-central1", "on-demand")).usd_per_hour == 48


@pytest.mark.slow
def test_an_answer_of_come_again_is_asked_again(home):
    with serving(Billing(skus=CHIPS, failures=[503, 429])) as api:
        assert prices.refresh(home / pricelist.REFRESHED, url=api.url).accepted


def test_without_a_key_nothing_is_asked(home, monkeypatch):
    monkeypatch.delenv(prices.KEY)
    with (
        serving(Billing(skus=CHIPS)) as api,
        pytest.raises(ParamsError, match="CLOUD_BILLING_API_KEY is not set"),
    ):
        prices.refresh(home / pricelist.REFRESHED, url=api.url)
    assert api.asked == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"key": "another"}, r"answers 400: API key not valid\. Please pass a valid key\.; prices stay"),
        ({"body": b"<html>busy</html>"}, "answers something that is not a JSON object; prices stay"),
        ({"failures": [503] * 9}, "answers 503: try again; prices stay"),
        ({"failures": [302]}, "answers 302"),
    ],
)
def test_what_the_server_says_instead_is_told_without_the_key_and_nothing_is_written(
    home, changes, sentence, monkeypatch
):
    monkeypatch.setattr(prices, "RETRIES", 1)
    kept = home / pricelist.REFRESHED
    with serving(Billing(skus=CHIPS, **changes)) as api, pytest.raises(JobError, match=sentence) as caught:
        prices.refresh(kept, url=api.url)
    assert "a-key" not in str(caught.value)
    assert "a-key" not in "".join(api.asked)
    assert not kept.exists()


def test_an_address_that_is_none_is_told(home, caplog):
    assert cli.main(["prices", "--refresh", "--url", "nonsense"]) == 78
    assert "--url nonsense is not an address; write it as https://cloudbilling.googleapis.com" in caplog.text


def test_a_server_that_is_not_there_is_told(home, monkeypatch):
    monkeypatch.setattr(prices, "RETRIES", 0)
    with serving(Billing(skus=[])) as api:
        pass
    with pytest.raises(JobError, match=r"does not answer: ConnectionError; prices stay, try again"):
        prices.refresh(home / pricelist.REFRESHED, url=api.url)


def test_pages_that_never_end_are_noticed(home):
    endless = b'{"skus": [], "nextPageToken": "again"}'
    with serving(Billing(skus=[], body=endless)) as api, pytest.raises(JobError, match="the same page again"):
        prices.refresh(home / pricelist.REFRESHED, url=api.url)


def test_the_list_shows_every_price_with_its_date_and_source(home, capsys):
    assert cli.main(["prices"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["machine", "device", "region", "rented"]
    assert lines[0].split()[:5] == ["local", "here", "here", "owned", "0.0000"]
    at = lines.index("")
    assert at == 1 + len(pricelist.prices())
    assert "  cpu: assumed per core; not measured" in lines[at:]
    assert cli.main(["prices", "--machine", "tpu*"]) == 0
    shown = capsys.readouterr().out
    assert "on-demand  –          –       –    –   not known, and not planned; daybreak" in shown


def test_a_machine_that_nobody_knows_is_told(home, caplog):
    assert cli.main(["prices", "--machine", "b9-*"]) == 78
    assert "no machine is named b9-* in *; leave both out to see all there are" in caplog.text


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            "g2-standard-4,us-central1,spot,-0.4,me,2026-01-01",
            r"line 2: usd_per_hour of g2-standard-4 is -0.4, which is not a valid price; fix it",
        ),
        ("g2-standard-4,us-central1,spot,nan,me,2026-01-01", r"is nan, which is not a valid price"),
        ("g2-standard-4,us-central1,spot,cheap,me,2026-01-01", r"line 2: could not convert .*'cheap'; fix"),
        ("g2-standard-4,us-central1,spot,0.4,me,soon", r"line 2: Invalid isoformat string: 'soon'; fix"),
        ("g2-standard-4,us-central1,spot", r"line 2 does not have one cell for each of name,region,"),
        ("g2-standard-4,us-central1,lease,0.4,me,2026-01-01", r"strategy is 'lease'; it is one of on-demand"),
    ],
)
def test_a_price_that_was_written_wrong_is_told_with_its_line_and_column(home, row, sentence):
    kept = home / "prices.csv"
    kept.write_text(f"{','.join(pricelist.COLUMNS)}\n{row}\n")
    with pytest.raises(ParamsError, match=sentence):
        rented(kept)


def test_a_file_of_other_columns_is_told(home):
    kept = home / "prices.csv"
    kept.write_text("machine,usd\n")
    with pytest.raises(ParamsError, match="does not have the columns name,region,strategy"):
        pricelist.prices(kept)


def test_prices_survive_their_file():
    text = pricelist.as_table(pricelist.prices())
    assert tuple(pricelist.read(text, source="it")) == pricelist.prices()


def test_a_fee_is_shown_with_its_source_and_what_is_only_inferred_is_marked(home, capsys):
    assert cli.main(["prices", "--machine", "a3-highgpu-8g", "--region", "us-*1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split()[2:8] for line in lines[1:7]]
    assert cells[0] == ["us-central1", "on-demand", "101.0074", "88.4900", "12.5174", "2026-07-30"]
    assert cells[2] == ["us-central1", "flex-start", "51.4951", "38.3201", "13.1750", "2025-08-15"]
    assert cells[3] == ["us-west1", "on-demand", "101.7635", "88.4900", "13.2735", "inferred"]
    assert "  H100: inferred: 15 % are listed for A3 in us-central1, 2026-11-22" in lines
    assert lines[-1].startswith("a job's boot disk comes on top: 0.0536 for 200 GiB")


def test_fees_are_read_from_the_list_of_vertex_and_replace_those_that_were_inferred(home):
    kept = home / pricelist.REFRESHED
    with serving(Billing(skus=L4, vertex_skus=L4_ON_VERTEX, page_size=2)) as api:
        refreshed = prices.refresh(kept, url=api.url)
    assert not refreshed.refused
    fees = {p.key: p.fee for m in rented(kept) for p in m.prices}
    spot, on_demand = (fees["g2-standard-4", "us-central1", way] for way in ("spot", "on-demand"))
    assert spot.usd_per_hour == pytest.approx(0.07 + 4 * 0.004 + 16 * 0.0005)
    assert on_demand.usd_per_hour == pytest.approx(
        0.67 + 4 * 0.029 + 16 * 0.0034 - (0.56 + 4 * 0.025 + 16 * 0.003)
    )
    assert not spot.inferred and "Cloud Billing Catalog API, 20" in spot.source
    assert fees["g2-standard-4", "us-east4", "spot"].inferred
    kept_keys = [price.key for price in pricelist.read(kept.read_text(), source="it")]
    assert kept_keys == [price.key for price in refreshed.accepted]


def test_a_fee_that_cannot_be_is_refused_and_the_fee_stays(home):
    kept = home / pricelist.REFRESHED
    dear = [{**sku("Vertex AI: Training/Pipelines management fee on TpuV6e in Iowa", 700.0)}]
    with serving(Billing(skus=[], vertex_skus=dear)) as api:
        refreshed = prices.refresh(kept, url=api.url)
    assert refreshed.refused[0] == (
        "ct6e-standard-1t in us-central1, spot: a fee of 700 dollars an hour is 25926% of 2.7; "
        "the fee stays as it was"
    )
    assert not refreshed.accepted


def test_a_home_of_the_release_before_goes_on_with_its_prices_and_gets_the_fees(home):
    kept = home / "prices.csv"
    kept.write_text(
        "name,region,strategy,usd_per_hour,source,dated\n"
        "g2-standard-4,us-central1,on-demand,0.8,Cloud Billing Catalog API,2026-11-20\n"
    )
    machine = next(m for m in rented(kept) if (m.name, m.region) == ("g2-standard-4", "us-central1"))
    assert machine.usd_per_hour == pytest.approx(0.8 * 1.15)
    assert machine.price_source("on-demand").source == (
        "Cloud Billing Catalog API; $0.12 of it for its fee: inferred: 15 % are listed for A3 in "
        "us-central1, 2026-11-22"
    )
