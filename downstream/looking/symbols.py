"""How operations become ONNX's, where torch's tracing exporter has none or a wrong one for them.

Imported, it registers them; :class:`NonMaxSuppression` is used as a function.
"""
import torch
from torch.onnx import register_custom_op_symbolic, symbolic_helper

OPSET = 18
INT64 = 7  # of onnx.TensorProto


def numbers(g, *values):
    return g.op('Constant', value_t=torch.tensor(values))


def unflatten(g, x, dim, sizes):
    """torch's own takes the sizes of the example for those of any image, in what follows."""
    rank = symbolic_helper._get_tensor_rank(x)
    dim = symbolic_helper._get_const(dim, 'i', 'dim') % rank
    shape = g.op('Shape', x)
    if symbolic_helper._is_packed_list(sizes):
        middle = [g.op('Reshape', g.op('Cast', size, to_i=INT64), numbers(g, 1))
                  for size in symbolic_helper._unpack_list(sizes)]
    else:
        middle = [sizes]
    before = [g.op('Slice', shape, numbers(g, 0), numbers(g, dim), numbers(g, 0))] if dim else []
    after = [g.op('Slice', shape, numbers(g, dim + 1), numbers(g, rank),
                  numbers(g, 0))] if dim < rank - 1 else []
    return g.op('Reshape', x, g.op('Concat', *before, *middle, *after, axis_i=0))


def floor_divide(g, a, b):
    """torch's own rounds towards zero. This one is for whole numbers, such as sizes."""
    return g.op('Div', g.op('Sub', a, g.op('Mod', a, b)), b)


def matrix_transpose(g, x):
    rank = symbolic_helper._get_tensor_rank(x)
    return g.op('Transpose', x, perm_i=[*range(rank - 2), rank - 1, rank - 2])


for name, symbol in dict(unflatten=unflatten, floor_divide=floor_divide,
                         mT=matrix_transpose).items():
    register_custom_op_symbolic(f'aten::{name}', symbol, OPSET)


class NonMaxSuppression(torch.autograd.Function):
    """mmcv's nms, and ONNX's operation of the same result in the graph.

    ``apply(boxes (N, 4), scores (N, ), iou_threshold, score_threshold, at_most)`` gives the
    numbers of the boxes that are kept, by falling score, (K, ) int64.
    """

    @staticmethod
    def forward(ctx, boxes, scores, iou_threshold, score_threshold, at_most):
        from mmcv.ops import nms
        there = (scores > score_threshold).nonzero()[:, 0]
        if not len(there):
            return there
        return there[nms(boxes[there], scores[there], iou_threshold)[1][:at_most]]

    @staticmethod
    def symbolic(g, boxes, scores, iou_threshold, score_threshold, at_most):
        kept = g.op('NonMaxSuppression', g.op('Unsqueeze', boxes, numbers(g, 0)),
                    g.op('Unsqueeze', scores, numbers(g, 0, 1)), numbers(g, at_most),
                    numbers(g, float(iou_threshold)), numbers(g, float(score_threshold)))
        # (K, 3): image, class, box
        return g.op('Squeeze', g.op('Slice', kept, numbers(g, 2), numbers(g, 3), numbers(g, 1)),
                    numbers(g, 1))
