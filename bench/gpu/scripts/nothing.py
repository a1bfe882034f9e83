"""Connect, and end: for runs whose verdict on the wire is all that is wanted."""

import hpcml

with hpcml.connect() as client:
    print("workers:", len(client.scheduler_info(n_workers=-1)["workers"]))
