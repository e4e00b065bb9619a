"""One rule per operation: how the labels of its inputs move to its outputs, and which it unites or freezes."""

from nestling.reading.rules import contraction, elementwise, lookups, norms, parts, recurrent, reductions, shapes
from nestling.reading.trace import Call, Result, Rule

__all__ = ["Call", "Rule", "default_rules"]


def default_rules() -> dict[str, Rule]:
    """The rules by the name of their operation, without the namespace and the final underscore of in-place forms."""
    return _RULES.copy()


def _new_values(call: Call) -> Result:
    """A tensor with new values, with only its dtype from another: one number per example, say, that drops paths."""
    return call.output([])


def _no_output(call: Call) -> None:
    """An assertion or a query of sizes: no output has labels."""


_RULES: dict[str, Rule] = {
    **dict.fromkeys(elementwise.UNARY, elementwise.unary),
    **dict.fromkeys(elementwise.NARY, elementwise.nary),
    **dict.fromkeys(("new_empty", "new_zeros", "new_ones", "new_full"), _new_values),
    "add": elementwise.add,
    "prelu": elementwise.prelu,
    "_prelu_kernel": elementwise.nary,
    "glu": elementwise.glu,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), contraction.convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), contraction.transposed_convolution),
    "convolution": contraction.any_convolution,
    "linear": contraction.linear,
    **dict.fromkeys(("matmul", "mm", "bmm"), contraction.matmul),
    "addmm": contraction.addmm,
    "einsum": contraction.einsum,
    "batch_norm": norms.batch_norm,
    "instance_norm": norms.batch_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), norms.layer_norm),
    "group_norm": norms.group_norm,
    "permute": shapes.permute,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims"), shapes.transpose),
    **dict.fromkeys(("t", "mT", "adjoint", "numpy_T"), shapes.matrix_transpose),
    **dict.fromkeys(("movedim", "moveaxis"), shapes.movedim),
    **dict.fromkeys(("squeeze", "unsqueeze"), shapes.squeeze_or_unsqueeze),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), shapes.expand),
    **dict.fromkeys(
        ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "reshape_as", "view_as"), shapes.reshape
    ),
    **dict.fromkeys(("cat", "concat", "concatenate"), parts.cat),
    "stack": parts.stack,
    "chunk": parts.chunk,
    **dict.fromkeys(("split", "split_with_sizes", "tensor_split", "unsafe_split"), parts.split),
    "unbind": parts.unbind,
    "select": parts.select,
    "slice": parts.slice_,
    "narrow": parts.narrow,
    **dict.fromkeys(parts.PADS, parts.pad),
    "repeat": parts.repeat,
    "pixel_shuffle": shapes.pixel_shuffle,
    "pixel_unshuffle": shapes.pixel_unshuffle,
    **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), shapes.channel_shuffle),
    **dict.fromkeys(reductions.REDUCTIONS, reductions.reduce),
    **dict.fromkeys(reductions.POOLS, reductions.pool),
    **dict.fromkeys(reductions.ALONG, reductions.along_axis),
    **dict.fromkeys(("flip", "roll"), reductions.rearrange),
    "scaled_dot_product_attention": lookups.attention,
    "embedding": lookups.embedding,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent.recurrent),
    "index": lookups.index,
    **dict.fromkeys(("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size"), _no_output),
    **dict.fromkeys(("sym_size", "sym_numel", "sym_stride"), _no_output),
}
