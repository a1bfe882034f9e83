"""Ranks of PyTorch that have met and exchanged a number: the first one writes when that was."""

import time

import torch
from torch import distributed

if __name__ == "__main__":
    begun = time.time()
    distributed.init_process_group("gloo")
    ones = torch.ones(1)
    distributed.all_reduce(ones)
    assert int(ones) == distributed.get_world_size()
    if not distributed.get_rank():
        from first_line import write

        write(begun, usable := time.time(), [usable])
    distributed.destroy_process_group()
