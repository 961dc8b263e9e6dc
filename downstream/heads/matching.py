"""Matching of predictions with objects that holds in mixed precision."""
import torch
from mmdet.models.task_modules.assigners import AssignResult, HungarianAssigner
from mmdet.registry import TASK_UTILS
from mmengine.structures import InstanceData


@TASK_UTILS.register_module()
class FullPrecisionAssigner(HungarianAssigner):
    """mmdet's HungarianAssigner, its costs computed in float32 whatever precision a step has.

    Mask2Former's cost of a mask is a sum over 12,544 points. Under float16 mmdet computes it as a
    product of matrices in float16, where a confident query that is wrong about most of an image
    passes the largest number, 65,504: when all are, the matching fails. Mask2Former's own matcher
    leaves mixed precision too.
    """

    def assign(self, pred_instances: InstanceData, gt_instances: InstanceData,
               img_meta: dict | None = None, **kwargs) -> AssignResult:
        """As HungarianAssigner's."""
        with torch.autocast(gt_instances.labels.device.type, enabled=False):
            return super().assign(pred_instances.to(torch.float32), gt_instances, img_meta,
                                  **kwargs)
