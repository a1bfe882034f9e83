"""Data-parallel training in PyTorch (DDP) with checkpoints: one rank per GPU, or several on each CPU node.

    hpcml submit --nodes 2 --gpus-per-node 4 --ranks gpu --until-done --time 4:00:00 ddp.py
On a laptop: hpcml submit --site local --ranks 2 ddp.py, or torchrun --nproc-per-node 2 ddp.py.
"""

import os

import torch
import torch.distributed as dist

import hpcml

STEPS, BATCH = 300, 64  # total steps; rows per rank in each step
gpu = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # this node has a GPU for each rank
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
dist.init_process_group("nccl" if gpu else "gloo", device_id=device if gpu else None)
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same rows and first weights on all ranks
features = torch.randn(20_000, 8).to(device)  # replace them with your own data, in float32
target = torch.sin(features[:, :1]) + features[:, 1:2] * features[:, 2:3]
net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(device)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def mean_loss():  # of all rows; each rank computes a part of the sum
    errors = (net(features[rank::ranks]) - target[rank::ranks]).detach().pow(2)
    sums = torch.tensor([errors.sum(), len(errors)], device=device)
    dist.all_reduce(sums)
    assert sums[1] == len(features), "the ranks did not have all rows"
    return float(sums[0] / sums[1])


state = {"ranks": ranks, "step": 0, "before": mean_loss()}
if path := hpcml.run.saved("state.pt"):  # the newest complete checkpoint; None at the start of the run
    state, weights, moments = torch.load(path, map_location=device)
    net.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    print(f"continues after step {state['step']}")
while state["step"] < STEPS:
    chosen = torch.Generator().manual_seed(state["step"] * ranks + rank)  # different rows on each rank
    rows = torch.randint(len(features), (BATCH,), generator=chosen).to(device)
    optimizer.zero_grad()
    (model(features[rows]) - target[rows]).pow(2).mean().backward()  # averages the gradients of all ranks
    optimizer.step()
    state["step"] += 1
    if state["step"] % 10 == 0:
        stop = torch.tensor(float(hpcml.run.should_stop()), device=device)
        dist.all_reduce(stop)  # all ranks must stop after the same step
        if rank == 0 and (stop or state["step"] % 100 == 0):
            hpcml.run.save("state.pt", lambda path: torch.save((state, net.state_dict(), optimizer.state_dict()), path))
        if stop:
            dist.destroy_process_group()
            hpcml.run.stop()  # status 92: --until-done starts the next attempt
after = mean_loss()
dist.destroy_process_group()
if rank == 0:
    torch.save(net.state_dict(), hpcml.run.out / "network.pt")
    print(f"loss {state['before']:.3f}, then {after:.3f} after {STEPS} steps on {ranks} ranks")
