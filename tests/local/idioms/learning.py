"""joblib's dask backend under scikit-learn, and XGBoost on Dask."""

import dask.array as da
import joblib
import numpy as np
from dask.distributed import Client
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from xgboost import dask as dxgb

if __name__ == "__main__":
    found = {}
    client = Client(processes=True, n_workers=2, threads_per_worker=1)
    X, y = make_classification(n_samples=600, n_features=6, random_state=3)
    with joblib.parallel_config(backend="dask"):
        search = GridSearchCV(LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, cv=3, n_jobs=-1).fit(X, y)
        found["joblib"] = joblib.Parallel()(joblib.delayed(pow)(n, 2) for n in range(6)) == [0, 1, 4, 9, 16, 25]
    here = GridSearchCV(LogisticRegression(), {"C": [0.01, 0.1, 1.0]}, cv=3).fit(X, y)
    found["search"] = np.allclose(search.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"])
    data = dxgb.DaskDMatrix(client, da.from_array(X, chunks=(150, 6)), da.from_array(y, chunks=150))
    trained = dxgb.train(client, {"objective": "binary:logistic", "max_depth": 3}, data, num_boost_round=5)
    predicted = dxgb.predict(client, trained, data).compute()
    found["xgboost"] = bool(((predicted > 0.5) == y).mean() > 0.9)
    print("result", all(found.values()) or found)
    client.close()
