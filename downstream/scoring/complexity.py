"""What models cost: parameters, multiply-adds and the activations that training keeps.

At the papers' input sizes: one image of 1280 x 800 for detection, 2048 x 512 for segmentation.
Multiply-adds are counted once, norms and interpolations as mmengine's counter does.
"""
import contextlib
import io
import resource
import time

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

SIZES = dict(mmdet=(800, 1280), mmseg=(512, 2048))  # height, width
PROPOSALS, MASKS = 1000, 100  # that a two-stage detector looks at when it is tested
# Their attention reads where maps end from a tensor, which has no values on the meta device.
NEED_VALUES = 'ReleasedDINO', 'Mask2Former', 'Mask2FormerHead'
PARAMS_TOLERANCE, FLOPS_TOLERANCE = 0.005, 0.015


def counted(*, inputs: float = 0, outputs: float = 0):
    """A counter of operations that do so many flops an element of their input or output."""
    def count(*args, out_val, **kwargs) -> int:
        out = out_val[0] if isinstance(out_val, tuple | list) else out_val
        # FlopCounterMode counts a multiply-add twice, which is taken back below.
        return int(2 * (inputs * args[0].numel() + outputs * out.numel()))
    count._get_raw = True
    return count


aten = torch.ops.aten
COUNTERS = {
    # Attention fused for the CPU is the one that torch's counter forgets.
    aten._scaled_dot_product_flash_attention_for_cpu:
        lambda q, k, v, *args, **kwargs: sdpa_flop_count(q, k, v),
    # What it does not count at all, as mmengine's does.
    aten.native_layer_norm: counted(inputs=5),
    aten.native_group_norm: counted(inputs=5),
    aten.native_batch_norm: counted(inputs=2),
    aten._native_batch_norm_legit_no_training: counted(inputs=2),
    aten.cudnn_batch_norm: counted(inputs=2),
    aten.upsample_bilinear2d: counted(outputs=4),
    aten._adaptive_avg_pool2d: counted(inputs=1),
    aten.grid_sampler_2d: counted(outputs=4),
}


def build(cfg: Config, device: str) -> nn.Module:
    """An experiment's model with random weights."""
    if 'custom_imports' in cfg:
        import_modules_from_strings(**cfg.custom_imports)
    init_default_scope(cfg.default_scope)
    backbone = {**cfg.model.backbone, 'init_cfg': None}
    # Upstream's backbones read values while they are built.
    model = MODELS.build({**cfg.model, 'backbone': backbone})
    return model.eval().to(device)


def forward(model: nn.Module, images: Tensor):
    """A test image's way through the model, (1, 3, H, W), up to where boxes are sorted out."""
    from mmdet.structures import DetDataSample
    size = tuple(images.shape[2:])
    sample = DetDataSample(metainfo=dict(
        img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size,
        scale_factor=(1., 1.)))
    if type(getattr(model, 'decode_head', None)).__name__ == 'Mask2FormerHead':
        return model.decode_head(model.extract_feat(images), [sample])  # mmseg forgets the sample
    return model(images, [sample], mode='tensor')


def fix_proposals(model: nn.Module):
    """Let a two-stage detector's heads look at a fixed number of regions, each once a stage.

    So does get_flops of mmdet 2.x, from which the papers have their numbers; in mmdet 3.x a cascade
    also computes the masks of all boxes of all stages, which no test does. RoIAlign, counted by
    none of them, is left out: it cannot run on the meta device.
    """
    roi_head = getattr(model, 'roi_head', None)
    if not roi_head:
        return
    rpn = model.rpn_head
    learned = type(rpn).__name__ == 'EmbeddingRPNHead'
    if not learned:
        dense = rpn.forward
        rpn.predict = lambda x, *_, **__: dense(x)

    def stages(kind):
        part = getattr(roi_head, f'{kind}_head', None)
        parts = part if isinstance(part, nn.ModuleList) else [part] if part else []
        extractor = getattr(roi_head, f'{kind}_roi_extractor', None)
        first = extractor[0] if isinstance(extractor, nn.ModuleList) else extractor
        return parts, first

    def forward(x, proposals, *args):
        for kind, count in (('bbox', PROPOSALS), ('mask', MASKS)):
            parts, extractor = stages(kind)
            queries = proposals[0].features[None] if learned else None  # (1, N, C)
            for part in parts:
                regions = x[0].new_zeros(queries.shape[1] if learned else count,
                                         extractor.out_channels,
                                         *extractor.roi_layers[0].output_size)
                if learned:
                    queries = part(regions, queries)[2]
                else:
                    part(regions)

    roi_head.forward = forward


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """What backbone and neck keep for their backward pass, without checkpointing, in float32."""
    model.train()
    for module in model.modules():
        if getattr(module, 'use_checkpoint', False):
            module.use_checkpoint = False
    ours = {p.untyped_storage()._cdata for p in model.parameters()}
    sizes = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in ours:
            sizes[storage._cdata] = tensor, storage.nbytes()  # kept: its number stays taken
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model.extract_feat(images)
    model.eval()
    return sum(size for _, size in sizes.values())


def complexity(cfg: Config) -> dict:
    """The cost of an experiment's model.

    Returns:
        dict with 'params' and 'flops' (multiply-adds of one test image, in numbers), 'parts' (the
        parameters of backbone, neck and heads), 'activations' (bytes that backbone and neck keep
        for one training image in float32, without checkpointing), 'input' ((H, W) of that image).
    """
    size = SIZES[cfg.default_scope]
    needs_values = any(name in str(cfg.model) for name in NEED_VALUES)
    with contextlib.redirect_stdout(io.StringIO()):
        model = build(cfg, 'cpu')
        parts = {name: sum(p.numel() for p in part.parameters())
                 for name, part in model.named_children() if any(True for _ in part.parameters())}
        params = sum(p.numel() for p in model.parameters())
        fix_proposals(model)
        counter = FlopCounterMode(display=False, custom_mapping=COUNTERS)
        model = model if needs_values else model.to('meta')
        with torch.no_grad(), counter:
            forward(model, torch.zeros(1, 3, *size, device='cpu' if needs_values else 'meta'))
        activations = saved_bytes(model.to('meta'), torch.zeros(1, 3, *size, device='meta'))
    return dict(params=params, flops=counter.get_total_flops() // 2, parts=parts,
                activations=activations, input=size)


def measure(cfg: Config, images: int) -> tuple[float, float]:
    """Images a second, and peak memory in GiB, of this machine's device on test images."""
    device = get_device()
    model = build(cfg, device)
    x = torch.rand(1, 3, *SIZES[cfg.default_scope], device=device)
    with torch.no_grad():
        forward(model, x)  # the first is slower
        wait = torch.cuda.synchronize if device == 'cuda' else (lambda: None)
        wait()
        start = time.monotonic()
        for _ in range(images):
            forward(model, x)
        wait()
    seconds = time.monotonic() - start
    peak = (torch.cuda.max_memory_allocated() if device == 'cuda'
            else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return images / seconds, peak / 2**30


def differences(cost: dict, published: dict) -> list[str]:
    """Where a cost is not what is printed."""
    found = []
    for key, unit, tolerance in (('params', 1e6, PARAMS_TOLERANCE),
                                 ('flops', 1e9, FLOPS_TOLERANCE)):
        if (printed := published.get(key)) is not None:
            # Printed with so many digits, it may stand for anything that rounds to it.
            rounding = 0.5 * 10.**-len(str(printed).partition('.')[2])
            ours = cost[key] / unit
            if abs(ours - printed) > tolerance * printed + rounding:
                found.append(f'{key} {ours:.1f}, printed {printed} ({ours / printed - 1:+.1%})')
    return found
