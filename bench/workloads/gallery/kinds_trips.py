"""Taxi trips, as a city would publish them: numbers with gaps, categories, a time, and a fare with outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from gallery.kinds import KINDS, Kind

BOROUGHS = ("Bronx", "Brooklyn", "Manhattan", "Queens", "Staten Island")
PAYMENTS = ("card", "cash", "no charge")
START = np.datetime64("2024-01-01T00:00:00")
YEAR = 366 * 86_400  # seconds
MISSING = 0.06  # of the passenger counts and of the payments; twice as many tolls


class Trips(Kind):
    """Taxi trips with gaps: distance, passengers, tolls, borough, payment, pickup time and the fare to predict."""

    name = "trips"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        rng = np.random.default_rng([seed, 7])
        self.per_mile = float(rng.uniform(2.2, 2.8))
        self.surcharges = rng.uniform(-1.5, 4.0, len(BOROUGHS)).round(2)
        self.night, self.rush, self.noise = 2.5, 0.35, 1.5

    def schema(self) -> pa.Schema:
        return pa.schema([
            ("pickup", pa.timestamp("us")), ("borough", pa.string()), ("payment", pa.string()),
            ("passengers", pa.float64()), ("distance", pa.float64()), ("tolls", pa.float64()), ("fare", pa.float64()),
        ])  # fmt: skip

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        seconds = rng.integers(YEAR, size=rows)
        hour, day = seconds // 3_600 % 24, seconds // 86_400 % 7  # the first day is a Monday
        borough = rng.choice(len(BOROUGHS), rows, p=[0.08, 0.22, 0.5, 0.17, 0.03])
        distance = rng.lognormal(0.9, 0.7, rows).clip(0.2, 60)
        tolls = np.where(rng.random(rows) < 0.1 + 0.01 * distance, 6.94, 0.0)
        night = (hour >= 20) | (hour < 6)
        rush = (day < 5) & (hour >= 16) & (hour < 20)
        fare = 3 + self.per_mile * distance * (1 + self.rush * rush) + self.surcharges[borough] + self.night * night
        fare = fare + tolls + rng.normal(0, self.noise, rows)
        passengers = rng.choice([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], rows, p=[0.7, 0.15, 0.05, 0.03, 0.04, 0.03])
        payment = np.array(PAYMENTS, dtype=object)[rng.choice(3, rows, p=[0.7, 0.27, 0.03])]
        passengers[rng.random(rows) < MISSING] = np.nan
        tolls[rng.random(rows) < 2 * MISSING] = np.nan
        payment[rng.random(rows) < MISSING] = None
        pickup, named = START + seconds.astype("timedelta64[s]"), np.array(BOROUGHS, dtype=object)[borough]
        return {"pickup": pickup, "borough": named,
                "payment": payment, "passengers": passengers, "distance": distance.round(2), "tolls": tolls,
                "fare": fare.round(2)}  # fmt: skip

    def truth(self) -> dict[str, Any]:
        surcharges = dict(zip(BOROUGHS, self.surcharges.tolist(), strict=True))
        return {"target": "fare", "per_mile": self.per_mile, "surcharges": surcharges, "night": self.night,
                "rush": self.rush, "noise": self.noise}  # fmt: skip


KINDS[Trips.name] = Trips
