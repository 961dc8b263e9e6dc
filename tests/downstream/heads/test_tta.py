"""Masks merged from several views."""
import numpy as np
import pytest
import torch
from commands import weights_of
from mmengine.structures import InstanceData

from downstream import Predictor
from downstream.errors import UserError
from downstream.heads.tta import MaskTTAModel

pytestmark = pytest.mark.usefixtures('elsewhere')
IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
CASCADE = '''
model['type'] = 'CascadeRCNN'
head = model['roi_head']
head.update(type='CascadeRoIHead', num_stages=2, stage_loss_weights=[1, 1],
            bbox_head=[dict(head['bbox_head'], bbox_coder=dict(coder, target_stds=[0.01] * 4))] * 2)
'''


def config_of(detection, views: str, extra: str = ''):
    """The tiny Mask R-CNN's, with masks merged over the views, each a list of transforms."""
    path = detection.with_name(f'views{len(views)}.py')
    text = detection.read_text() + extra + f'''
tta_model = dict(type='MaskTTAModel', tta_cfg=dict(nms=nms, max_per_img=5))
tta_pipeline = [load[0], dict(type='TestTimeAug', transforms=[
    {views}, [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)], [pack]])]
'''
    path.write_text(text)
    return path


SAME = "[dict(type='Resize', scale=(64, 64)), dict(type='Resize', scale=(64, 64))]"
LARGER = "[dict(type='Resize', scale=(64, 64)), dict(type='Resize', scale=(96, 96))]"


def test_twice_the_same_view_is_that_view(detection):
    config = config_of(detection, SAME)
    config.write_text(config.read_text().replace(
        "dict(type='RandomFlip', prob=1.)], [pack]", "dict(type='RandomFlip', prob=0.)], [pack]"))
    weights = weights_of(config, seed=1)
    once = Predictor.from_checkpoint(config, weights, 'cpu')(IMAGE)
    merged = Predictor.from_checkpoint(config, weights, 'cpu', tta=True)(IMAGE)
    assert len(once) > 1 and 0 < once.masks.mean() < 1
    np.testing.assert_allclose(merged.boxes, once.boxes, atol=1e-3)
    np.testing.assert_allclose(merged.scores, once.scores, atol=1e-6)
    assert (merged.masks == once.masks).mean() > 0.9999  # a border pixel, by rounding


@pytest.mark.parametrize('views', [SAME, LARGER])
def test_the_mirrored_image_has_the_mirrored_masks(detection, views):
    """In every view, whatever its size: else boxes or masks would be of another place."""
    config = config_of(detection, views)
    model = Predictor.from_checkpoint(config, weights_of(config, seed=1), 'cpu', tta=True)
    one, other = model([IMAGE, np.ascontiguousarray(IMAGE[:, ::-1])], batch_size=2)
    assert len(one) > 1 and 0 < one.masks.mean() < 1
    mirrored = np.stack([64 - other.boxes[:, 2], other.boxes[:, 1], 64 - other.boxes[:, 0],
                         other.boxes[:, 3]], 1)
    order = np.lexsort(one.boxes.round(1).T), np.lexsort(mirrored.round(1).T)
    np.testing.assert_allclose(one.boxes[order[0]], mirrored[order[1]], atol=1e-2)
    assert (one.masks[order[0]] == other.masks[order[1]][:, :, ::-1]).mean() > 0.999


def test_the_mean_of_the_views(detection, monkeypatch):
    """By hand: 0.9 in one view and 0.3 in another is a mask, 0.6 and 0.3 is none."""
    config = config_of(detection, SAME)
    model = Predictor.from_checkpoint(config, weights_of(config, seed=1), 'cpu', tta=True)
    calls = iter([0.9, 0.3, 0.9, 0.3])

    def views(self, maps, metas, boxes):
        total = sum(map(len, boxes))
        masks = torch.full((total, 2, 28, 28), next(calls))
        masks[:, :, :14] -= 0.3  # the upper half
        return masks

    monkeypatch.setattr(MaskTTAModel, 'masks_in_view', views)
    result = model(IMAGE)
    whole = [(x1, y1, x2, y2) for x1, y1, x2, y2 in result.boxes if x2 - x1 > 8 and y2 - y1 > 8]
    assert whole
    for (x1, y1, x2, y2), mask in zip(result.boxes, result.masks, strict=True):
        if x2 - x1 > 8 and y2 - y1 > 8:
            x, top, bottom = int((x1 + x2) / 2), int(y1 + (y2 - y1) / 4), int(y2 - (y2 - y1) / 4)
            assert mask[bottom, x] and not mask[top, x]


def test_a_cascade(detection):
    """Its stages' masks are averaged, as without views."""
    config = config_of(detection, SAME, CASCADE)
    text = config.read_text().replace('rcnn=dict(assigner', 'rcnn=[dict(assigner').replace(
        'mask_size=28, pos_weight=-1))', 'mask_size=28, pos_weight=-1)] * 2)').replace(
        "dict(type='RandomFlip', prob=1.)], [pack]", "dict(type='RandomFlip', prob=0.)], [pack]")
    config.write_text(text)
    weights = weights_of(config, seed=1)
    once = Predictor.from_checkpoint(config, weights, 'cpu')(IMAGE)
    merged = Predictor.from_checkpoint(config, weights, 'cpu', tta=True)(IMAGE)
    np.testing.assert_allclose(merged.boxes, once.boxes, atol=1e-3)
    assert once.masks.any() and (merged.masks == once.masks).mean() > 0.9999


def test_nothing_found(detection):
    config = config_of(detection, LARGER)
    model = Predictor.from_checkpoint(config, weights_of(config, seed=1), 'cpu', tta=True)
    model.model.module.roi_head.test_cfg.score_thr = 1.
    result = model(IMAGE)
    assert len(result) == 0 and result.masks.shape == (0, 64, 64)


def test_without_masks_it_is_mmdets(detection):
    config = config_of(detection, LARGER, "model['type'] = 'FasterRCNN'\n"
                       "del model['roi_head']['mask_head'], "
                       "model['roi_head']['mask_roi_extractor']\n")
    model = Predictor.from_checkpoint(config, weights_of(config, seed=1), 'cpu', tta=True)
    assert model(IMAGE).masks is None


def test_other_masks_are_refused():
    class Other(torch.nn.Module):
        with_mask, test_step = True, None

    with pytest.raises(UserError, match='merges the masks of Mask R-CNN .* the model is Other'):
        MaskTTAModel(module=Other())


def test_boxes_alone_are_said_to_be(detection):
    """A config of one's own with mmdet's class."""
    model = Predictor.from_checkpoint(detection, weights_of(detection, seed=1), 'cpu', tta=True,
                                      allow_partial=True)
    assert 'boxes only' in model.notes[0] and 'MaskTTAModel' in model.notes[0]
    assert model(IMAGE).masks is None


def test_instance_data_stays(detection):
    """What mmdet's masks come in: bool, in the image's own size."""
    config = config_of(detection, LARGER)
    model = Predictor.from_checkpoint(config, weights_of(config, seed=1), 'cpu', tta=True)
    _, _, inputs = model.prepare(np.zeros((40, 72, 3), np.uint8))
    with model.in_scope(), torch.no_grad():
        from mmengine.dataset import pseudo_collate
        sample, = model.model.test_step(pseudo_collate([inputs]))
    assert isinstance(sample.pred_instances, InstanceData)
    assert sample.pred_instances.masks.shape[1:] == (40, 72)
