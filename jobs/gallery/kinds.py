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


KINDS: dict[str, Any] = {kind.name: kind for kind in (Blobs, Regression, Classification, Moons)}
