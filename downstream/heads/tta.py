"""Test-time augmentation of instance segmentation: mmdet's merges boxes only."""
import torch
from mmdet.models.roi_heads import CascadeRoIHead, SparseRoIHead, StandardRoIHead
from mmdet.models.test_time_augs import DetTTAModel
from mmdet.structures.bbox import bbox2roi, bbox_flip
from mmengine.registry import MODELS

from ..errors import UserError

FLIPPED = dict(horizontal=(3, ), vertical=(2, ), diagonal=(2, 3))  # dimensions of (N, C, h, w)


@MODELS.register_module()
class MaskTTAModel(DetTTAModel):
    """mmdet's DetTTAModel, same arguments, for masks too.

    The boxes of all views are merged by NMS, as there. The mask head then looks at each merged box
    in each view, and the mean of its probabilities is the mask: the way of mmdet 2's
    ``aug_test_mask`` and of Detectron2's ``GeneralizedRCNNWithTTA``.

    A detector without a mask head is tested as by DetTTAModel.

    Raises:
        UserError: the masks come from something else than Mask R-CNN's or Cascade Mask R-CNN's
            head.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        head = getattr(self.module, 'roi_head', None)
        if not self.module.with_mask:
            return
        if not isinstance(head, (StandardRoIHead, CascadeRoIHead)) or isinstance(
                head, SparseRoIHead):
            raise UserError('tta_model.type=MaskTTAModel merges the masks of Mask R-CNN and Cascade'
                            f' Mask R-CNN; the model is {type(self.module).__name__}')

    def test_step(self, data: dict) -> list:
        """The samples of a batch of images, {'inputs': [view], 'data_samples': [view]}, merged."""
        if not self.module.with_mask:
            return super().test_step(data)
        detector, views = self.module, []
        for i in range(len(data['inputs'])):
            view = {key: value[i] for key, value in data.items()}
            batch = detector.data_preprocessor(view, False)
            samples = batch['data_samples']
            maps = detector.extract_feat(batch['inputs'])
            found = detector.roi_head.predict_bbox(
                maps, [sample.metainfo for sample in samples],
                detector.rpn_head.predict(maps, samples, rescale=False),
                rcnn_test_cfg=detector.roi_head.test_cfg, rescale=True)
            views.append((maps, detector.add_pred_to_datasample(samples, found)))
        metas = [[sample.metainfo for sample in samples] for _, samples in views]
        merged = self.merge_preds(list(zip(*(samples for _, samples in views), strict=True)))
        boxes = [sample.pred_instances.bboxes for sample in merged]  # of the original images
        masks = torch.stack([self.masks_in_view(maps, view, boxes) for (maps, _), view in
                             zip(views, metas, strict=True)]).mean(0)  # (all boxes, classes, h, w)
        self.paste(merged, masks.split([len(b) for b in boxes]))
        return merged

    def masks_in_view(self, maps, metas: list[dict], boxes: list):
        """(all boxes, classes, h, w) probabilities, turned back to the original's sides."""
        head, rois = self.module.roi_head, []
        for meta, found in zip(metas, boxes, strict=True):
            if meta['flip']:
                found = bbox_flip(found, meta['ori_shape'], meta['flip_direction'])
            rois.append(found * found.new_tensor(meta['scale_factor']).repeat(2))
        rois = bbox2roi(rois)
        stages = range(head.num_stages) if isinstance(head, CascadeRoIHead) else [None]
        masks = torch.stack([
            (head._mask_forward(maps, rois) if stage is None else
             head._mask_forward(stage, maps, rois))['mask_preds'].sigmoid()
            for stage in stages]).mean(0)
        return torch.cat([
            part.flip(FLIPPED[meta['flip_direction']]) if meta['flip'] else part
            for part, meta in zip(masks.split([len(b) for b in boxes]), metas, strict=True)])

    def paste(self, merged: list, masks):
        """Put (N, H, W) masks into the samples."""
        head = self.module.roi_head.mask_head
        head = head[0] if isinstance(head, torch.nn.ModuleList) else head
        for sample, probabilities in zip(merged, masks, strict=True):
            head.predict_by_feat(
                (probabilities, ), [sample.pred_instances],
                [dict(ori_shape=sample.ori_shape, scale_factor=(1., 1.))],
                rcnn_test_cfg=self.module.roi_head.test_cfg, rescale=True, activate_map=True)
