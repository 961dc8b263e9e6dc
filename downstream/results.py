"""What ``tools/test.py --out`` writes for segmentation (detection has mmdet's DumpDetResults)."""
from mmengine.evaluator import DumpResults
from mmengine.registry import METRICS


@METRICS.register_module()
class DumpSegResults(DumpResults):
    """Dump the predicted label maps, without the logits: 150 floats a pixel fill any disk."""

    def process(self, data_batch, predictions):
        kept = [{key: value for key, value in prediction.items()
                 if key not in ('seg_logits', 'gt_sem_seg')} for prediction in predictions]
        super().process(data_batch, kept)
