"""Models as ONNX files: :func:`export`.

The graph takes one image (1, 3, H, W), float32 RGB in 0..255, already resized as the experiment
resizes; H and W are free. Normalising and padding are inside, so that whoever runs it cannot get
them wrong; what was resized how is in the file's metadata, with the class names.

It is traced (``torch.onnx.export(dynamo=False)``): ``torch.export`` with free sizes takes over a
minute for the smallest FocalNet, because it proves every size's divisibility by symbols. Tracing
would take a size that the code computes in Python for a constant, so each file is run at sizes
other than the example's and compared before it counts as written.
"""
import copy
import json
import logging
import math
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.layouts import SEGMENTATION
from ..errors import UserError
from ..training.checkpoints import bare

OPSET = 18
SIZES = (320, 416), (352, 288)  # of the example, and of the comparison with PyTorch
TOLERANCE = 1e-3  # see `difference`
# Among scores that are nearly equal, rounding decides: a few results change places.
TOLERANCE_ON_IMAGES = 0.02


# -- what is exported --------------------------------------------------------------------------

class Prepared(nn.Module):
    """Normalise and pad as the model's data preprocessor does, then go on.

    Raises:
        UserError: the preprocessor does something else besides.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        pre = model.data_preprocessor
        self.model = with_free_pooling(model)
        self.divisor, self.value = pad_of(pre)
        mean, std = ((pre.mean, pre.std) if getattr(pre, '_enable_normalize', False) else
                     (torch.zeros(3, 1, 1), torch.ones(3, 1, 1)))
        self.register_buffer('mean', mean.detach().clone().float())
        self.register_buffer('std', std.detach().clone().float())
        # The graph takes RGB, as everybody but OpenCV has it.
        self.rgb = bool(getattr(pre, '_channel_conversion', getattr(pre, 'channel_conversion', 0)))

    def prepare(self, image: Tensor) -> Tensor:
        image = ((image if self.rgb else image.flip(1)) - self.mean) / self.std
        if self.divisor == 1:
            return image
        return F.pad(image, (0, -image.shape[3] % self.divisor, 0, -image.shape[2] % self.divisor),
                     value=self.value)


class BackboneGraph(Prepared):
    """The backbone's maps."""
    inputs = ('image', )

    def __init__(self, model):
        super().__init__(model)
        self.model = self.model.backbone
        self.outputs = None  # known once it has run

    def forward(self, image):
        return tuple(self.model(self.prepare(image)))


class SegmentorGraph(Prepared):
    """An encoder-decoder of mmseg, such as UPerNet, to the class of each pixel.

    ``size``, (2, ) int64, are the H and W of the label map that is wanted: as in mmseg, the
    scores are resized to the original image's, and then compared.
    """
    inputs, outputs = ('image', 'size'), ('labels', )

    def forward(self, image, size):
        head = self.model.decode_head
        scores = head(self.model.extract_feat(self.prepare(image)))
        for target in (image.shape[2], image.shape[3]), (size[0], size[1]):
            scores = F.interpolate(scores, size=target, mode='bilinear',
                                   align_corners=head.align_corners)
            # mmseg's two steps: to the image that the model saw, then to the original one
        if scores.shape[1] == 1:
            return (scores.sigmoid() > head.threshold)[:, 0].long()
        return scores.argmax(1)  # (1, H, W)


class RetinaNetGraph(Prepared):
    """RetinaNet to boxes in pixels of the input, their scores and classes, by falling score."""
    inputs, outputs = ('image', ), ('boxes', 'scores', 'labels')

    def forward(self, image):
        head, cfg = self.model.bbox_head, self.model.test_cfg
        scores, deltas = head(self.model.extract_feat(self.prepare(image)))
        anchors = head.prior_generator.grid_priors(
            [level.shape[2:] for level in scores], dtype=image.dtype, device=image.device)
        classes = head.cls_out_channels
        found = []
        for level in zip(scores, deltas, anchors, strict=True):
            score, delta, anchor = level
            score = score[0].permute(1, 2, 0).reshape(-1).sigmoid()  # place, anchor, class
            delta = delta[0].permute(1, 2, 0).reshape(-1, 4)
            # A level may have fewer than nms_pre: the rest are of a score that nothing passes.
            top, place = F.pad(score, (0, cfg.nms_pre), value=-1.).topk(cfg.nms_pre)
            place = torch.where(top < 0, 0, place)
            box = torch.div(place, classes, rounding_mode='floor')
            found.append((head.bbox_coder.decode(anchor[box], delta[box]), top, place % classes))
        boxes, scores, labels = map(torch.cat, zip(*found, strict=True))
        boxes = within(boxes, image)
        sides = boxes[:, 2:] - boxes[:, :2]
        scores = torch.where((sides > cfg.min_bbox_size).all(1), scores, -1.)
        return suppressed(boxes, scores, labels, cfg)


class DETRGraph(Prepared):
    """DETR to boxes in pixels of the input, their scores and classes, by falling score."""
    inputs, outputs = ('image', ), ('boxes', 'scores', 'labels')

    def forward(self, image):
        model = self.model
        feat = model.extract_feat(self.prepare(image))[-1]
        # One image: nothing is padded but to the divisor, and nothing is masked.
        mask = torch.zeros_like(feat[:, 0])
        if self.divisor != 1:
            ones = F.pad(torch.zeros_like(image[:, :1]), (
                0, -image.shape[3] % self.divisor, 0, -image.shape[2] % self.divisor), value=1.)
            mask = F.interpolate(ones, size=feat.shape[2:])[:, 0]
        positions = model.positional_encoding(mask.bool()).flatten(2).transpose(1, 2)
        mask = mask.flatten(1).bool() if self.divisor != 1 else None
        memory = model.encoder(query=feat.flatten(2).transpose(1, 2), query_pos=positions,
                               key_padding_mask=mask)
        query_pos = model.query_embedding.weight[None]
        states = model.decoder(query=torch.zeros_like(query_pos), key=memory, value=memory,
                               query_pos=query_pos, key_pos=positions, key_padding_mask=mask)
        scores, boxes = (each[-1][0] for each in model.bbox_head(states))
        scores, labels = scores.softmax(-1)[:, :-1].max(-1)
        top, kept = scores.topk(min(model.test_cfg.get('max_per_img', len(query_pos[0])),
                                    len(query_pos[0])))
        boxes, labels = boxes[kept], labels[kept]
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        size = torch._shape_as_tensor(image)[2:].flip(0).repeat(2).to(boxes.dtype)
        return within(torch.cat([centre - half, centre + half], 1) * size, image), top, labels


def within(boxes: Tensor, image: Tensor) -> Tensor:
    """Clip (N, 4) boxes to the image, whose size is free."""
    size = torch._shape_as_tensor(image)[2:].flip(0).repeat(2).to(boxes.dtype)  # W, H, W, H
    return torch.minimum(boxes.clamp(min=0), size)


def suppressed(boxes, scores, labels, cfg):
    """mmcv's batched_nms: boxes of other classes are moved apart, and never meet."""
    from .symbols import NonMaxSuppression
    apart = boxes + (labels.to(boxes.dtype) * (boxes.max() + 1))[:, None]
    kept = NonMaxSuppression.apply(apart, scores, cfg.nms.iou_threshold, cfg.score_thr,
                                   cfg.max_per_img)
    return boxes[kept], scores[kept], labels[kept]


class FreeAdaptivePool(nn.Module):
    """Adaptive average pooling to a fixed grid from a map of any size, by two matrix products.

    ONNX has no such operation, and torch's exporter writes one window size, of the example.
    """

    def __init__(self, grid: int):
        super().__init__()
        self.grid = grid

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, C, grid, grid)."""
        height, width = torch._shape_as_tensor(x)[2:].unbind()
        return self.means(height, x) @ x @ self.means(width, x).transpose(0, 1)

    def means(self, length: Tensor, like: Tensor) -> Tensor:
        """(grid, length): row i averages floor(i L / grid) to ceil((i + 1) L / grid)."""
        i = torch.arange(self.grid, device=like.device)
        start = torch.div(i * length, self.grid, rounding_mode='floor')[:, None]
        end = torch.div((i + 1) * length + self.grid - 1, self.grid, rounding_mode='floor')[:, None]
        place = torch.arange(length, device=like.device)[None]
        inside = (place >= start) & (place < end)
        return inside.to(like.dtype) / (end - start).to(like.dtype)


def with_free_pooling(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size not in (1, (1, 1)):
                grid = child.output_size
                if not isinstance(grid, int):
                    if grid[0] != grid[1]:
                        raise UserError(f'adaptive pooling to {grid}: only square grids are '
                                        'exported')
                    grid = grid[0]
                setattr(module, name, FreeAdaptivePool(grid))
    return model


def pad_of(pre) -> tuple[int, float]:
    """What a data preprocessor pads one test image to a multiple of, and with."""
    if hasattr(pre, 'pad_size_divisor'):  # mmdet's
        return pre.pad_size_divisor, pre.pad_value
    test = getattr(pre, 'test_cfg', None) or {}
    if test.get('size'):
        raise UserError('the experiment pads test images to a fixed size, which a graph of free '
                        'sizes cannot')
    return test.get('size_divisor') or 1, getattr(pre, 'pad_val', 0)


# -- what can be exported ----------------------------------------------------------------------

def graph_of(model: nn.Module, backbone_only: bool = False) -> Prepared:
    """The part of a model that is exported, in eval mode, without gradients.

    Raises:
        UserError: the method cannot be exported; the message says why.
    """
    model = bare(model)
    if backbone_only:
        graph = BackboneGraph(model)
    else:
        name = type(model).__name__
        graphs = {'EncoderDecoder': SegmentorGraph, 'RetinaNet': RetinaNetGraph, 'DETR': DETRGraph}
        if name not in graphs:
            why = next((REASONS[base.__name__] for base in type(model).__mro__
                        if base.__name__ in REASONS), UNKNOWN)
            raise UserError(f'{name} cannot be exported end to end: {why}. --backbone-only '
                            'exports its backbone')
        check_method(name, model)
        graph = graphs[name](model)
    return graph.eval().requires_grad_(False)


UNKNOWN = 'its way from maps to results is not written as a graph here (UPerNet, RetinaNet and ' \
          'DETR are)'
ROIS = 'ONNX has no RoIAlign over a pyramid: pooling each box from its own level, and the ' \
       'second stage on a free number of boxes, are not written as a graph here'
REASONS = {
    'MaskRCNN': ROIS, 'CascadeRCNN': ROIS, 'SparseRCNN': ROIS,
    'DINO': 'ONNX has no deformable attention: it would be thousands of gathers, which are not '
            'written as a graph here',
    'Mask2Former': 'its pixel decoder has deformable attention, which ONNX has not',
}


def check_method(name: str, model: nn.Module):
    if name == 'RetinaNet':
        head = model.bbox_head
        if type(head).__name__ != 'RetinaHead' or not head.use_sigmoid_cls:
            raise UserError(f'RetinaNet with a {type(head).__name__}: only a RetinaHead of '
                            'sigmoid scores is exported')
        if model.test_cfg.nms.get('type', 'nms') != 'nms':
            raise UserError(f'NMS of the kind {model.test_cfg.nms.type}: ONNX has plain NMS only')
    if name == 'EncoderDecoder' and model.test_cfg.mode != 'whole':
        raise UserError(f'a test in the mode {model.test_cfg.mode!r}: only \'whole\' is one graph '
                        '(--cfg-options model.test_cfg.mode=whole)')
    if name == 'DETR' and model.bbox_head.loss_cls.use_sigmoid:
        raise UserError('DETR with sigmoid scores: only softmax is exported')


# -- exporting ---------------------------------------------------------------------------------

def export(predictor, path, backbone_only: bool = False, values=None) -> bool:
    """Write a predictor's model, with what it takes to use it, and compare it with PyTorch.

    Args:
        predictor: a ``Predictor`` on the CPU, without test-time augmentation.
        path: of the ONNX file.
        backbone_only: the backbone's maps instead of results.
        values: segmentation: the values of the classes in label maps, for the metadata.

    Returns:
        Whether there was anything to compare: an untrained detector finds nothing in noise.

    Raises:
        UserError: the method cannot be exported, onnx is not installed, or the file's results
            are not the model's.
    """
    onnx = need('onnx')
    need('onnxruntime')
    path = Path(path)
    resize = None if backbone_only else resize_of(predictor.rest.transforms)
    with predictor.in_scope():
        graph = graph_of(predictor.model, backbone_only)
        part = path.with_suffix('.part')  # it has its name once it was compared
        try:
            trace(graph, part)
            model = onnx.load(part)
            described = describe(predictor, graph, resize, backbone_only, values)
            onnx.helper.set_model_props(model, {
                key: json.dumps(value) for key, value in described.items()})
            onnx.checker.check_model(model)
            onnx.save(model, part)
            compared = check_sizes(graph, part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return compared


def trace(graph: Prepared, path: Path):
    """Trace at the first of SIZES and write the file."""
    from . import symbols  # noqa: F401  registers
    inputs = example(graph, sizes_of(graph)[0])
    with torch.no_grad(), calm():
        if isinstance(graph, BackboneGraph):
            graph.outputs = tuple(f'map{i}' for i in range(len(graph(*inputs))))
        free = {name: {2: 'height', 3: 'width'} for name in graph.inputs if name == 'image'}
        for name in graph.outputs:
            if name.startswith('map'):
                free[name] = {2: f'{name}_height', 3: f'{name}_width'}
            else:
                free[name] = {1: 'H', 2: 'W'} if name == 'labels' and 'size' in graph.inputs \
                    else {0: 'objects'}
        try:
            torch.onnx.export(graph, inputs, str(path), dynamo=False, opset_version=OPSET,
                              input_names=list(graph.inputs), output_names=list(graph.outputs),
                              dynamic_axes=free)
        except torch.onnx.errors.OnnxExporterError as error:
            raise UserError('the model cannot be exported: '
                            + str(error).strip().splitlines()[-1]) from None


def example(graph: Prepared, size: tuple[int, int], seed: int = 0) -> tuple[Tensor, ...]:
    image = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(seed)) * 255
    return (image, torch.tensor(size) + 5) if 'size' in graph.inputs else (image, )


def check_sizes(graph: Prepared, path: Path) -> bool:
    """Raise UserError unless the file gives what the module gives, at two sizes.

    Returns whether there was anything to compare: an untrained detector finds nothing in noise.
    """
    session = open_session(path)
    something = False
    for seed, size in enumerate(sizes_of(graph)):
        inputs = example(graph, size, seed)
        with torch.no_grad():
            wanted = [np.asarray(out) for out in as_tuple(graph(*inputs))]
        try:
            found = run(session, graph.inputs, inputs)
        except Exception as error:
            raise UserError(f'{path} does not run on an image of {size}: '
                            f'{str(error).splitlines()[0][:300]}') from None
        worst = difference(graph.outputs, wanted, found)
        if not worst < TOLERANCE:
            raise UserError(f'{path} gives something else than PyTorch on an image of {size}: '
                            f'{worst:.2g}, more than {TOLERANCE}. The file is not to be used')
        something |= all(map(len, wanted))
    return something


def sizes_of(graph: Prepared) -> tuple[tuple[int, int], ...]:
    """Of the example, and of the comparison: such that each of LocalViT-Swin's windows moves."""
    more = max(0, least_side(graph.model) - 225)
    return tuple((height + more, width + more) for height, width in SIZES)


def least_side(model: nn.Module) -> int:
    """What an image's sides must have for the graph to hold.

    LocalViT on Swin shifts no windows along a side of one window only, and whether it does is
    decided at the export.
    """
    windows = [32 * part.window_size + 1 for part in model.modules()
               if type(part).__name__ == 'LocalViTSwin']
    return max(windows, default=1)


def difference(names, wanted, found) -> float:
    """How far results are from those wanted.

    Maps: the largest difference over the largest value. Labels of pixels: the share that differ.
    Objects: the share, of either, that have no counterpart of the same class, its score within
    0.001 and its box within half a pixel.
    """
    if 'boxes' not in names:
        return max(apart(a, b) for a, b in zip(wanted, found, strict=True))
    (boxes, scores, labels), others = wanted, found
    if len(boxes) == 0 or len(others[0]) == 0:
        return float(len(boxes) != len(others[0]))
    near = (np.abs(boxes[:, None] - others[0][None]).max(-1) < 0.5) \
        & (np.abs(scores[:, None] - others[1][None]) < 1e-3) & (labels[:, None] == others[2][None])
    return 1 - min(near.any(1).mean(), near.any(0).mean())


def apart(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind in 'iu':
        return float((a != b).mean())
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-12))


def as_tuple(out):
    return out if isinstance(out, tuple) else (out, )


def run(session, names, inputs) -> list[np.ndarray]:
    return session.run(None, {name: np.asarray(each) for name, each in
                              zip(names, inputs, strict=True)})


def open_session(path, threads: int | None = None):
    """An onnxruntime session on the CPU, with torch's number of threads."""
    runtime = need('onnxruntime')
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.log_severity_level = 3  # its warnings are about names of sizes
    return runtime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])


def need(package: str):
    try:
        return __import__(package)
    except ImportError:
        raise UserError(f'{package} is not installed: pip install "downstream-backbones[export]", '
                        'or pip install onnx onnxruntime') from None


@contextmanager
def calm():
    """Without the tracer's warnings: what they fear, check_sizes looks at."""
    level = logging.getLogger('torch.onnx').level
    logging.getLogger('torch.onnx').setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.getLogger('torch.onnx').setLevel(level)


# -- what the file says of itself --------------------------------------------------------------

def describe(predictor, graph: Prepared, resize: dict | None, backbone_only: bool,
             values=None) -> dict:
    """The metadata: JSON values by name (docs/export.md)."""
    flat = dict(mean=graph.mean.flatten().tolist(), std=graph.std.flatten().tolist())
    if not graph.rgb:  # they are in the model's order, BGR; the graph takes RGB all the same
        flat = {key: value[::-1] for key, value in flat.items()}
    kind = 'backbone' if backbone_only else predictor.kind
    return dict(kind=kind, classes=list(predictor.classes),
                palette=[list(color) for color in predictor.meta['palette']],
                channels='RGB', **flat, normalised_inside=True, pad_divisor=graph.divisor,
                least_side=least_side(graph.model), resize=resize,
                values=None if values is None else np.asarray(values).tolist())


def resize_of(steps) -> dict | None:
    """How the experiment resizes a test image: ``scale`` (width, height) and ``keep_ratio``.

    Raises:
        UserError: the pipeline has a step that whoever runs the file would not know of.
    """
    resize = None
    for step in steps:
        name = type(step).__name__
        if name in ('Resize', 'FixScaleResize') and step.scale is not None and resize is None:
            if name == 'FixScaleResize' or step.interpolation != 'bilinear':
                raise UserError(f'the test pipeline\'s {step} is not one that the file can tell of')
            resize = dict(scale=list(step.scale), keep_ratio=bool(step.keep_ratio))
        elif not name.startswith(('Pack', 'Load')):
            raise UserError(f'the test pipeline has the step {name}, which is not exported: '
                            'loading, one resizing and packing alone are')
    return resize




# -- comparing on images -----------------------------------------------------------------------

def compare(predictor, exported, images) -> list[str]:
    """Two predictors on images: a line for each, of how far apart they are, and of their times.

    Args:
        predictor: the PyTorch model's.
        exported: the file's (``onnx_model.OnnxPredictor``).
        images: their files.

    Raises:
        UserError: results are further apart than TOLERANCE_ON_IMAGES.
    """
    lines, wrong = [], []
    for image in images:
        took = []
        for each in predictor, exported:
            prepared = [each.prepare(image)]
            each.predict(prepared)  # the first of a size is slower
            start = time.perf_counter()
            result, = each.predict(prepared)
            took.append((result, 1000 * (time.perf_counter() - start)))
        (wanted, torch_ms), (found, onnx_ms) = took
        if predictor.kind == SEGMENTATION:
            share = apart(wanted.labels, found.labels)
            said = f'{100 * share:.3f} % of the pixels have another class'
        else:
            share = difference(('boxes', ), *([r.boxes, r.scores, r.labels]
                                              for r in (wanted, found)))
            said = f'{len(wanted)} objects, {len(found)} in the file, {100 * share:.1f} % differ'
        lines.append(f'{image}: {said}; PyTorch {torch_ms:.0f} ms, onnxruntime {onnx_ms:.0f} ms')
        if not share <= TOLERANCE_ON_IMAGES:
            wrong.append(lines[-1])
    if wrong:
        raise UserError('the file gives something else than PyTorch: ' + '; '.join(wrong))
    return lines
