#!/usr/bin/env python3
"""What models cost: parameters, multiply-adds and the activations that training keeps.

    tools/complexity.py configs/maskrcnn_focalnet_t_1x.py
    tools/complexity.py --all --check       # compare with what the papers print

At the papers' input sizes: one image of 1280 x 800 for detection, 2048 x 512 for segmentation.
Multiply-adds are counted once, norms and interpolations as mmengine's counter does.
"""
import in_venv

# isort: split
import argparse
import contextlib
import io
import logging
import resource
import time
import warnings
from pathlib import Path

import results
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from downstream.errors import UserError, one_message

CONFIGS = in_venv.ROOT / 'configs'
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


@one_message('nothing was written; run the same command again')
def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('configs', nargs='*', type=Path, metavar='CONFIG')
    parser.add_argument('--all', action='store_true', help='every experiment of the metafile')
    parser.add_argument('--check', action='store_true',
                        help='fail where the cost is not what is printed, and the metafile does '
                        'not say why')
    parser.add_argument('--write', action='store_true', help='write the costs into the metafile')
    parser.add_argument('--measure', type=int, metavar='N', default=0,
                        help='time N images on this machine, with peak memory')
    args = parser.parse_args(argv)
    if bool(args.configs) == args.all:
        parser.error('name configs, or give --all')
    ledger = results.load()
    configs = [in_venv.ROOT / entry['Config'] for entry in ledger['Models']]
    if not args.all:
        configs = args.configs
    for config in configs:
        if not config.is_file():
            raise UserError(f'there is no config file {config}')
    warnings.simplefilter('ignore')
    logging.disable(logging.WARNING)
    costs = {}  # by model: experiments differ in their data and schedules alone
    unexplained, begin = [], time.monotonic()
    for number, config in enumerate(configs, 1):
        cfg = Config.fromfile(config, import_custom_modules=False)
        model = str(cfg.model)
        cost = costs[model] = costs.get(model) or complexity(cfg)
        entry = results.find(ledger, config)
        notes = differences(cost, results.published_cost(entry)) if entry else []
        if notes and entry.get('Discrepancy'):
            notes.append('explained in the metafile')
        elif notes or (args.check and entry is None):
            unexplained.append(config.stem)
        if args.write and entry:
            results.set_cost(entry, cost)
        line = (f'{config.stem:42} {cost["params"] / 1e6:7.2f} M  {cost["flops"] / 1e9:7.1f} G  '
                f'{cost["activations"] / 2**30:6.2f} GiB')
        if args.measure:
            speed, peak = measure(cfg, args.measure)
            line += f'  {speed:.3f} images/s, peak {peak:.1f} GiB'
        eta = (time.monotonic() - begin) / number * (len(configs) - number)
        print(f'{number:3}/{len(configs)} {line}  {"; ".join(notes)} (eta {eta:.0f} s)', flush=True)
        if len(configs) == 1:
            height, width = cost['input']
            print(f'one image of {width} x {height}; parameters: ' + ', '.join(
                f'{name} {count / 1e6:.2f} M' for name, count in cost['parts'].items()))
    if args.write:
        results.save(ledger)
    if args.check and unexplained:
        raise UserError('not as printed, or not in the metafile, without an explanation there '
                        f'(Discrepancy): {", ".join(unexplained)}')


if __name__ == '__main__':
    main()
