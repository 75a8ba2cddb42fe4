"""Simulates card payments, a share of which turn out to be fraud two weeks later.

A day is a pure function of (seed, day); only its labels depend on `today`: they are null until the day is
`RIPE_DAYS` old. An account pays amounts of its own size at its own kinds of shops. Fraud pays more than the
account is used to, rather online and at night, so that the account's past tells more than the payment.
"""

from datetime import date, timedelta

import numpy as np
import pyarrow as pa

from daybreak import ParamsError
from daybreak.examples.simulated_days import Simulated

RIPE_DAYS = 14
HISTORY_DAYS = 60
SHOPS = ("grocer", "fuel", "restaurant", "travel", "electronics", "jewellery", "games", "pharmacy")
USUAL = np.array([0.3, 0.15, 0.2, 0.06, 0.08, 0.03, 0.06, 0.12])
OF_FRAUD = np.array([0.08, 0.05, 0.07, 0.15, 0.3, 0.2, 0.12, 0.03])
COUNTRIES = ("GB", "DE", "FR", "IE", "ES", "US")


class Payments(Simulated):
    """Payments by card, of which `fraud_share` are fraud.

    Args:
        seed: each seed gives other accounts and payments.
        start: first day; 60 days before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
        rows_per_day: payments of an average day.
        num_accounts: accounts that pay.
        fraud_share: of the payments.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start: date | str | None = None,
        today: date | str | None = None,
        rows_per_day: int = 4000,
        num_accounts: int = 1500,
        fraud_share: float = 0.012,
    ) -> None:
        if rows_per_day < 1 or num_accounts < 1:
            raise ParamsError("source has no payments or no accounts; give it at least one of each")
        super().__init__(seed=seed, start=start, today=today, num_days=HISTORY_DAYS)
        self._rows_per_day, self._fraud_share = rows_per_day, fraud_share
        rng = np.random.default_rng([seed, 1])
        self._size = rng.normal(3.0, 0.8, num_accounts)  # mean log of an account's amounts
        self._active = rng.pareto(2.0, num_accounts) + 0.2
        self._home = rng.choice(len(COUNTRIES), num_accounts, p=[0.5, 0.15, 0.1, 0.1, 0.1, 0.05])

    def _rows(self, day: date) -> pa.Table:
        rng = np.random.default_rng([self._seed, 2, day.toordinal()])
        num = 1 + int(rng.poisson(self._rows_per_day * (1.15 if day.weekday() >= 4 else 0.95)))
        account = rng.choice(len(self._size), num, p=self._active / self._active.sum())
        fraud = rng.random(num) < self._fraud_share
        hour = np.where(fraud, rng.normal(2, 4, num), rng.normal(14, 4, num)) % 24
        amount = np.exp(self._size[account] + rng.normal(0, 0.5, num) + fraud * rng.normal(1.2, 0.6, num))
        shop = np.where(
            fraud, rng.choice(len(SHOPS), num, p=OF_FRAUD), rng.choice(len(SHOPS), num, p=USUAL / USUAL.sum())
        )
        abroad = rng.random(num) < np.where(fraud, 0.5, 0.04)
        country = np.where(abroad, rng.integers(0, len(COUNTRIES), num), self._home[account])
        online = rng.random(num) < np.where(fraud, 0.8, 0.3)
        unknown = rng.random(num) < 0.002  # payments whose shop is not told
        order = np.argsort(hour, kind="stable")
        known = day + timedelta(days=RIPE_DAYS) < self._today
        time = np.datetime64(day, "us") + (hour * 3600e6).astype("timedelta64[us]")
        columns = {
            "payment": pa.array([f"{day:%y%m%d}-{number}" for number in range(num)]),
            "account": pa.array([f"A{number:05}" for number in account[order]]),
            "amount": pa.array(np.round(amount[order], 2)),
            "shop": pa.array(np.array(SHOPS, dtype=object)[shop[order]], mask=unknown[order]),
            "country": pa.array(np.array(COUNTRIES, dtype=object)[country[order]]),
            "online": pa.array(online[order]),
            "time": pa.array(time[order]),
            "is_fraud": pa.array(fraud[order].astype(np.int64), mask=np.full(num, not known)),
        }
        return pa.table(columns)
