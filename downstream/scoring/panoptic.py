"""Panoptic quality (Kirillov et al., arXiv 1801.00868) from pip's packages alone.

mmdet's own metric asks for panopticapi, which is on no package index. This one reads the same
files; the score comes from hotcoco, which follows panopticapi.
"""
import json
import tempfile
from pathlib import Path

from hotcoco import panoptic
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.registry import METRICS
from prettytable import PrettyTable

from ..data.panoptic import encode_segments
from ..errors import UserError


@METRICS.register_module()
class PanopticQuality(BaseMetric):
    """PQ, SQ and RQ in percent, of all classes, of things (_th) and of stuff (_st).

    A predicted segment is right where it and a true one of its class overlap by more than half
    (intersection over union). SQ is the mean overlap of those, RQ their F1 score, PQ the product,
    a class at a time; then the mean over the classes that occur. (arXiv 1801.00868, section 4.)

    Args:
        ann_file: COCO's panoptic JSON, ground truth.
        seg_prefix: the folder of its PNG maps.
        classwise: print a table of all classes too.
        outfile_prefix: where to leave the predictions in COCO's format, PREFIX.json and
            PREFIX/*.png, as COCO's test server takes them. None: nowhere.

    Raises:
        UserError: the images predicted are not those of ``ann_file``, or its classes not the data
            set's.
    """

    default_prefix = 'coco_panoptic'

    def __init__(self, ann_file: str, seg_prefix: str, classwise: bool = False,
                 outfile_prefix: str | None = None, **kwargs):
        super().__init__(**kwargs)
        self.ann_file, self.seg_prefix = ann_file, seg_prefix
        self.classwise, self.outfile_prefix = classwise, outfile_prefix
        categories = json.loads(Path(ann_file).read_text())['categories']
        self.ids = {category['name']: category['id'] for category in categories}
        self.names = {category['id']: category['name'] for category in categories}

    def process(self, data_batch, data_samples):
        """Encode predictions: as PNG in memory, which any process can hand to the first one."""
        classes = self.dataset_meta['classes']
        for sample in data_samples:
            seg = sample['pred_panoptic_seg']['sem_seg'][0].cpu().numpy()  # (H, W)
            png, segments = encode_segments(seg, [self.ids[name] for name in classes])
            self.results.append(dict(
                image_id=sample['img_id'], file_name=f'{Path(sample["img_path"]).stem}.png',
                segments_info=segments, png=png))

    def compute_metrics(self, results: list) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(self.outfile_prefix or Path(folder) / 'predictions')
            prefix.mkdir(parents=True, exist_ok=True)
            whose = {}
            for result in results:
                name = result['file_name']
                if whose.setdefault(name, result['image_id']) != result['image_id']:
                    # images of one name in two folders
                    result['file_name'] = f'{Path(name).stem}_{result["image_id"]}.png'
                (prefix / result['file_name']).write_bytes(result.pop('png'))
            annotations = prefix.with_name(f'{prefix.name}.json')
            annotations.write_text(json.dumps(dict(annotations=results)))
            evaluation = panoptic.PanopticEval(
                self.ann_file, annotations, gt_folder=self.seg_prefix, pred_folder=prefix)
            try:
                evaluation.evaluate()
            except (OSError, ValueError) as error:
                raise UserError(f'the predictions cannot be scored against {self.ann_file} and '
                                f'{self.seg_prefix}: {error}') from None
        print_log('\n'.join(['Panoptic quality:', *evaluation.summary_lines()]), 'current')
        if self.classwise:
            self.print_classes(evaluation.results()['per_class'])
        return {name: 100 * value for name, value in
                zip(panoptic.METRIC_NAMES, evaluation.stats, strict=True)}

    def print_classes(self, scores: dict):
        table = PrettyTable(['class', 'PQ', 'SQ', 'RQ', 'right', 'spurious', 'missed'], align='r')
        table.align['class'] = 'l'
        for category, score in scores.items():
            counts = [score['tp'], score['fp'], score['fn']]
            table.add_row([self.names[int(category)], *(
                f'{100 * score[key]:.1f}' if any(counts) else '' for key in ('pq', 'sq', 'rq')),
                *counts])
        print_log(f'Each class:\n{table}', 'current')
