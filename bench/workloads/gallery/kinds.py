"""What the generators draw: a class per kind of data set, its columns, and the truth that an estimator should find."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.floating[Any]]


class Kind:
    """A data set's distribution; a subclass says its columns and draws blocks of rows.

    Parameters
    ----------
    seed
        For what all rows share: centres, coefficients. Rows have generators of their own.
    """

    name: ClassVar[str]

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed

    def schema(self) -> pa.Schema:
        """Return names and types of the columns."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        """Return so many rows, an array per column; None stands for a missing value."""
        raise NotImplementedError

    def truth(self) -> dict[str, Any]:
        """Return what was put into the data, in JSON's types."""
        return {}

    def row_bytes(self) -> dict[str, int]:
        """Return the bytes in memory of a row, by column; text is taken as 16."""
        return {field.name: field.type.bit_width // 8 if pa.types.is_primitive(field.type) else 16
                for field in self.schema()}  # fmt: skip


class Features(Kind):
    """Columns x0, x1 … of one float type."""

    def __init__(self, *, seed: int = 0, features: int = 8, dtype: str = "float64") -> None:
        super().__init__(seed=seed)
        self.features, self.dtype = features, dtype

    def schema(self) -> pa.Schema:
        return pa.schema([(f"x{number}", pa.from_numpy_dtype(np.dtype(self.dtype))) for number in range(self.features)])

    def columns(self, rows: Floats) -> dict[str, Any]:
        """Return the features as columns."""
        return {f"x{number}": rows[:, number].astype(self.dtype) for number in range(self.features)}

    def truth(self) -> dict[str, Any]:
        return {"features": self.features, "dtype": self.dtype}


class Blobs(Features):
    """Gaussian blobs with centres that keep their distance and a spread of 0.6 … 1.4 each."""

    name = "blobs"

    def __init__(self, *, seed: int = 0, features: int = 8, dtype: str = "float64", centres: int = 8) -> None:
        super().__init__(seed=seed, features=features, dtype=dtype)
        rng = np.random.default_rng(seed)
        chosen = rng.uniform(-10, 10, (1, features))
        while len(chosen) < centres:  # the best of 32 candidates each
            candidates = rng.uniform(-10, 10, (32, features))
            distances = ((candidates[:, None, :] - chosen[None, :, :]) ** 2).sum(axis=2).min(axis=1)
            chosen = np.vstack([chosen, candidates[distances.argmax()]])
        self.centres, self.spreads = chosen, rng.uniform(0.6, 1.4, centres)

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        label = rng.integers(len(self.centres), size=rows)
        noise = rng.standard_normal((rows, self.features)) * self.spreads[label, None]
        return self.columns(self.centres[label] + noise)

    def truth(self) -> dict[str, Any]:
        return {**super().truth(), "centres": self.centres.tolist(), "spreads": self.spreads.tolist()}


class Regression(Features):
    """Normal features of unequal scale, and y = x · coefficients + intercept + noise; some coefficients are zero."""

    name = "regression"

    def __init__(self, *, seed: int = 0, features: int = 8, dtype: str = "float64", noise: float = 1.0) -> None:
        super().__init__(seed=seed, features=features, dtype=dtype)
        rng = np.random.default_rng(seed)
        self.scales, self.noise = rng.uniform(0.5, 2.0, features), noise
        self.coefficients, self.intercept = rng.uniform(-5, 5, features), float(rng.uniform(-5, 5))
        self.coefficients[3::4] = 0.0

    def schema(self) -> pa.Schema:
        return super().schema().append(pa.field("y", pa.from_numpy_dtype(np.dtype(self.dtype))))

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        x = rng.standard_normal((rows, self.features)) * self.scales
        y = x @ self.coefficients + self.intercept + rng.standard_normal(rows) * self.noise
        return {**self.columns(x), "y": y.astype(self.dtype)}

    def truth(self) -> dict[str, Any]:
        known = {"coefficients": self.coefficients.tolist(), "intercept": self.intercept, "noise": self.noise}
        return {**super().truth(), "target": "y", **known}


class Classification(Features):
    """Blobs, two for each class, so that no straight line parts the classes; y is the class, 0 … classes-1."""

    name = "classification"

    def __init__(self, *, seed: int = 0, features: int = 8, dtype: str = "float64", classes: int = 3) -> None:
        super().__init__(seed=seed, features=features, dtype=dtype)
        self.classes = classes
        self.blobs = Blobs(seed=seed, features=features, centres=2 * classes)

    def schema(self) -> pa.Schema:
        return super().schema().append(pa.field("y", pa.int32()))

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        label = rng.integers(2 * self.classes, size=rows)
        x = self.blobs.centres[label] + 2 * rng.standard_normal((rows, self.features))
        return {**self.columns(x), "y": (label % self.classes).astype("int32")}

    def truth(self) -> dict[str, Any]:
        return {**super().truth(), "target": "y", "classes": self.classes, "centres": self.blobs.centres.tolist()}


class Moons(Kind):
    """Pairs of half-moons that no straight line parts, in a share of uniform noise; label is the moon, -1 noise."""

    name = "moons"
    SPREAD = 0.06  # of a moon's line; a moon's radius is 1

    def __init__(self, *, seed: int = 0, pairs: int = 3, noise: float = 0.03, dtype: str = "float64") -> None:
        super().__init__(seed=seed)
        self.pairs, self.noise, self.dtype = pairs, noise, dtype

    def schema(self) -> pa.Schema:
        coordinate = pa.from_numpy_dtype(np.dtype(self.dtype))
        return pa.schema([("x0", coordinate), ("x1", coordinate), ("label", pa.int32())])

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        label = rng.integers(2 * self.pairs, size=rows)
        angle, lower = rng.uniform(0, np.pi, rows), label % 2 == 1
        across = np.where(lower, 1 - np.cos(angle), np.cos(angle)) + 4.0 * (label // 2)
        up = np.where(lower, 0.5 - np.sin(angle), np.sin(angle))
        x = np.column_stack([across, up]) + rng.standard_normal((rows, 2)) * self.SPREAD
        stray = rng.random(rows) < self.noise
        x[stray] = rng.uniform([-1.5, -1.25], [4 * self.pairs - 1.5, 1.75], (rows, 2))[stray]
        x = x.astype(self.dtype)
        return {"x0": x[:, 0], "x1": x[:, 1], "label": np.where(stray, -1, label).astype("int32")}

    def truth(self) -> dict[str, Any]:
        return {"label": "label", "clusters": 2 * self.pairs, "noise": self.noise, "dtype": self.dtype}


class Taxi(Kind):
    """Trips shaped like New York's taxi records, with missing, impossible and mistyped values among them.

    Parameters
    ----------
    zones
        Zones of the town; the n-th is picked in proportion to 1/n (Zipf).
    noise
        The share of rows with something impossible: a fifth each for every one of :attr:`FAULTS`.
    """

    name = "taxi"
    FAULTS = ("negative fare", "no distance", "dropoff before pickup", "absurd distance", "no fare")
    FIRST, SECONDS = np.datetime64("2025-01-01", "us"), 365 * 86_400
    PAYMENTS = ("card", "cash", "no charge", "dispute")

    def __init__(self, *, seed: int = 0, zones: int = 265, noise: float = 0.02) -> None:
        super().__init__(seed=seed)
        self.zones, self.noise = zones, noise
        weights = 1 / np.arange(1, zones + 1)
        self.steps = np.cumsum(weights / weights.sum())

    def schema(self) -> pa.Schema:
        moments = [("pickup", pa.timestamp("us")), ("dropoff", pa.timestamp("us"))]
        counts = [("passenger_count", pa.float64()), ("trip_distance", pa.float64())]
        places = [("pickup_zone", pa.int32()), ("dropoff_zone", pa.int32()), ("payment", pa.string())]
        money = [("fare", pa.float64()), ("tip", pa.float64()), ("total", pa.float64())]
        return pa.schema([*moments, *counts, *places, *money])

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        hours = np.concatenate([np.full(6, 0.35), np.full(10, 1.0), np.full(5, 1.6), np.full(3, 0.9)])
        hour = rng.choice(24, size=rows, p=hours / hours.sum())
        start = rng.integers(self.SECONDS // 86_400, size=rows) * 86_400 + hour * 3_600 + rng.integers(3_600, size=rows)
        distance = np.round(rng.lognormal(0.6, 0.85, rows), 2) + 0.1
        duration = np.maximum(distance / rng.normal(11, 2, rows).clip(4) * 3_600, 60).astype("int64")
        fare = np.round(3 + 2.2 * distance + duration / 150, 2)
        payment = rng.choice(len(self.PAYMENTS), size=rows, p=(0.7, 0.26, 0.03, 0.01))
        tip = np.round(np.where(payment == 0, fare * rng.normal(0.2, 0.05, rows).clip(0), 0), 2)
        passengers = rng.choice(7, size=rows, p=(0.01, 0.7, 0.16, 0.05, 0.03, 0.03, 0.02)).astype("float64")
        passengers[rng.random(rows) < 0.03] = np.nan
        fault = np.where(rng.random(rows) < self.noise, rng.integers(len(self.FAULTS), size=rows), -1)
        fare = np.select([fault == 0, fault == 4], [-fare, np.nan], fare)
        distance = np.select([fault == 1, fault == 3], [0.0, distance * 10_000], distance)
        stop = np.where(fault == 2, start - duration, start + duration)
        zones = [np.searchsorted(self.steps, rng.random(rows)).clip(max=self.zones - 1) + 1 for _ in range(2)]
        return {
            "pickup": self.FIRST + start * np.timedelta64(1_000_000, "us"),
            "dropoff": self.FIRST + stop * np.timedelta64(1_000_000, "us"),
            "passenger_count": passengers, "trip_distance": np.round(distance, 2),
            "pickup_zone": zones[0], "dropoff_zone": zones[1], "payment": np.array(self.PAYMENTS)[payment],
            "fare": fare, "tip": tip, "total": np.round(fare + tip, 2),
        }  # fmt: skip

    def truth(self) -> dict[str, Any]:
        return {"zones": self.zones, "faults": dict.fromkeys(self.FAULTS, self.noise / len(self.FAULTS))}


class Counts(Kind):
    """Documents: how often each word w0, w1 … is in one, frequent words first; y is the topic, 0 … classes-1."""

    name = "counts"

    def __init__(self, *, seed: int = 0, words: int = 200, classes: int = 6) -> None:
        super().__init__(seed=seed)
        rng = np.random.default_rng(seed)
        self.words, self.classes = words, classes
        chances = np.exp(0.6 * rng.standard_normal((classes, words))) / (np.arange(words) + 3)  # Zipf's law, by topic
        self.chances = chances / chances.sum(axis=1, keepdims=True)
        self.shares = rng.dirichlet(np.full(classes, 8.0))  # topics are not equally frequent

    def schema(self) -> pa.Schema:
        return pa.schema([*((f"w{number}", pa.int16()) for number in range(self.words)), ("y", pa.int32())])

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        label = rng.choice(self.classes, size=rows, p=self.shares)
        length = rng.integers(5, 60, size=rows)[:, None]
        counts = np.zeros((rows, self.words), "int16")
        for topic, chances in enumerate(self.chances):
            chosen = label == topic
            counts[chosen] = rng.poisson(length[chosen] * chances)
        return {**{f"w{number}": counts[:, number] for number in range(self.words)}, "y": label.astype("int32")}

    def truth(self) -> dict[str, Any]:
        return {
            "target": "y",
            "classes": self.classes,
            "shares": self.shares.tolist(),
            "chances": self.chances.tolist(),
        }


class Table(Kind):
    """A table as people keep it: numbers and text with gaps, cities of which some are rare, and a label in words."""

    name = "table"
    COLOURS, LABELS = ("red", "green", "blue", "black", "white"), ("low", "middle", "high")

    def __init__(self, *, seed: int = 0, cities: int = 30) -> None:
        super().__init__(seed=seed)
        self.cities = [f"city {number:03}" for number in range(cities)]
        shares = 1 / (np.arange(cities) + 1.0) ** 2  # the last ones are rare
        self.shares = shares / shares.sum()

    def schema(self) -> pa.Schema:
        numbers = [("amount", pa.float64()), ("age", pa.int64())]
        return pa.schema([*numbers, ("city", pa.string()), ("colour", pa.string()), ("label", pa.string())])

    def draw(self, rng: np.random.Generator, rows: int) -> dict[str, Any]:
        amount, age = rng.lognormal(3, 1, rows), rng.integers(18, 90, rows).astype("float64")
        city = np.array(self.cities, dtype=object)[rng.choice(len(self.cities), rows, p=self.shares)]
        label = np.array(self.LABELS, dtype=object)[np.digitize(amount * rng.uniform(0.8, 1.25, rows), (12, 40))]
        colour = np.array(self.COLOURS, dtype=object)[rng.integers(len(self.COLOURS), size=rows)]
        amount[rng.random(rows) < 0.03], age[rng.random(rows) < 0.02] = np.nan, np.nan
        city[rng.random(rows) < 0.01] = None
        return {"amount": amount, "age": age, "city": city, "colour": colour, "label": label}

    def truth(self) -> dict[str, Any]:
        return {"target": "label", "cities": self.cities, "shares": self.shares.tolist()}


KINDS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        Blobs,
        Regression,
        Classification,
        Moons,
        Taxi,
        Counts,
        Table,
    )
}
