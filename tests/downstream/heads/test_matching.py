"""Mask2Former's matching in mixed precision."""
from pathlib import Path

import pytest
import torch
from mmdet.registry import TASK_UTILS
from mmengine import Config
from mmengine.structures import InstanceData

from downstream.heads.matching import FullPrecisionAssigner

CONFIGS = Path(__file__).resolve().parents[3] / 'configs'


def matcher(name, **change):
    cfg = Config.fromfile(CONFIGS / f'{name}.py', import_custom_modules=False)
    train_cfg = cfg.model.train_cfg or cfg.model.decode_head.train_cfg
    return TASK_UTILS.build({**train_cfg.assigner, **change}), train_cfg.num_points


@pytest.mark.parametrize('name', ['mask2former_focalnet_l_ade20k_160k',
                                  'mask2former_focalnet_l_coco_panoptic_100e'])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_matches_as_in_float32(name, dtype):
    """Queries that see nothing, of images full of one class: costs beyond float16's 65,504."""
    torch.manual_seed(0)
    ours, points = matcher(name)
    assert type(ours) is FullPrecisionAssigner
    upstream, _ = matcher(name, type='mmdet.HungarianAssigner')
    predicted = InstanceData(scores=torch.randn(6, 4).to(dtype),
                             masks=(torch.randn(6, points) - 9).to(dtype))
    objects = InstanceData(labels=torch.tensor([1, 2]),
                           masks=torch.stack([torch.ones(points), torch.zeros(points)]))
    expected = upstream.assign(predicted.to(torch.float32), objects).gt_inds
    assert sorted(expected.tolist()) == [0, 0, 0, 0, 1, 2]
    with torch.autocast('cpu', dtype=dtype):
        assert ours.assign(predicted, objects).gt_inds.equal(expected)
        if dtype is torch.float16:
            with pytest.raises(ValueError, match='infeasible'):  # what ours is there for
                upstream.assign(predicted, objects)
