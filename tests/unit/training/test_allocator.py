"""Memory that tensors free stays for the next ones."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
import threading

import torch

from oscbench.training.allocator import reuse_freed_memory

reuse_freed_memory()

def work():
    for _ in range(10):
        pieces = [torch.ones(16 << 20) for _ in range(3)]  # 64 MiB each

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

work()
print(faults())
"""


def test_the_same_memory_again_costs_few_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    fetched_anew = 60 * 16_384  # pieces, and pages of 4 KiB in each
    assert int(done.stdout) < fetched_anew / 4
