"""Gives back what a model took, on the compute thread."""

import gc
import sys


def return_memory() -> None:
    """Let go of what only forgotten objects hold, and of what torch keeps for the next ones.

    Called when nobody refers to a model any more.
    """
    frozen = gc.get_freeze_count() > 0
    # What was frozen once it was loaded, the model among it, is passed over otherwise.
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
