"""Lets PyPI's torchvision, which is built for CUDA, be imported beside torch for CPUs. Only for tests.

On the path of the test's processes (`PYTHONPATH`). The compiled half of torchvision cannot be loaded, and the Python
half stops at the first operator of it that it looks for. Declaring these is enough: nothing here calls them.
"""

import importlib.abc
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _declare()


def _declare() -> None:
    import torch

    if "+cpu" not in torch.__version__:
        return
    # Kept alive by the module: operators vanish with their library.
    global library
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _BeforeTorchvision())
