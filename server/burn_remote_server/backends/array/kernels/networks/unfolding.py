"""Windows of images as columns (im2col), PyTorch's ``unfold``."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import check_rank
from burn_remote_server.backends.array.kernels.networks.correlation import AXES, WindowColumns
from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, Kernel, Shape
from burn_remote_server.backends.array.kernels.networks.windows import Windows

__all__ = ["Unfolding"]


class Unfolding(WindowColumns):
    """The windows of ``x`` ``[batch, channels, height, width]``; taps in the padding are 0.

    The output is ``[batch, channels * taps, windows]``: all taps of the first channel come first.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"Unfold4d": self.unfold4d}

    def unfold4d(
        self,
        x: Array,
        *,
        kernel_size: Shape,
        stride: Shape,
        padding: Shape,
        dilation: Shape,
        out: TensorSpec,
    ) -> Array:
        """Return a column for each window."""
        check_rank("Unfold4d", "x", x, 4, AXES[2])
        windows = Windows.of("Unfold4d", x.shape[2:], kernel_size, stride, padding, dilation)
        columns = self.xp.zeros(out.shape, x.dtype)
        if not x.size or not columns.size:
            return columns
        for block, part in self._columns(x, windows, 1):
            images = slice(block.first_image, block.last_image)
            columns[images, :, block.first : block.last] = part[:, 0]
        return columns
