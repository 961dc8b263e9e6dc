"""Predictions of many images and videos into a folder; what was done before is not done again.

The folder then has pictures/ and the results of :mod:`downstream.scoring.submissions`. A journal in
it, one JSON line an image, says what is done: a run that was stopped goes on there.
"""
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.layouts import DETECTION, PANOPTIC, SEGMENTATION
from ..data.panoptic import encode_segments
from ..errors import UserError
from ..progress import Progress
from ..saving import write_whole
from ..scoring.submissions import (
    LABELS,
    SEGMENTS,
    categories,
    category_ids,
    rows_of,
    save_labels,
    write_detections,
    write_panoptic,
)
from .inputs import Input, Video, VideoFile
from .predictor import Predictor

JOURNAL = 'journal.jsonl'


class Journal:
    """What is done: a line of what is predicted, then a line for each input and frame.

    Args:
        settings: what the results depend on.
        fresh: forget what was done.

    Attributes:
        done: {name: state of its file} of the inputs that are whole.

    Raises:
        UserError: the folder has results of other settings.
    """

    def __init__(self, folder: Path, settings: dict, inputs: list[Input], fresh: bool):
        self.path = folder / JOURNAL
        self.done, kept = {}, []
        if self.path.is_file() and not fresh:
            before, lines = self.read()
            changed = [key for key in settings if before.get(key) != settings[key]]
            if changed:
                raise UserError(f'{folder} has predictions of another command ('
                                + ', '.join(f'{key}: {before.get(key)}' for key in changed)
                                + '); name another folder, or repeat them with --fresh')
            states = {entry.name: entry.state for entry in inputs}
            done = {line['name']: line['state'] for line in lines if 'state' in line}
            # Inputs that this command does not name stay; changed ones are done again.
            self.done = {name: state for name, state in done.items()
                         if states.get(name, state) == state}
            kept = [line for line in lines if line['name'] in self.done]
        write_whole(self.path, ''.join(f'{json.dumps(line)}\n' for line in [settings, *kept]))
        self.file = self.path.open('a')

    def read(self) -> tuple[dict, list[dict]]:
        """The settings, and the lines; a last one that was cut off counts as not there."""
        lines = []
        for text in self.path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
        return (lines[0], lines[1:]) if lines else ({}, [])

    def add(self, **line):
        self.file.write(f'{json.dumps(line)}\n')
        self.file.flush()


class Output:
    """Predicts inputs and writes what is found into a folder.

    Args:
        batch: so many images, or frames of a video, at a time.
        score_thr: boxes of a lower score are not drawn; the results have all.
        pictures: whether to draw.
        values: segmentation: the values of the classes in label maps.
        settings: what else the results depend on, such as the checkpoint.
    """

    def __init__(self, predictor: Predictor, folder: Path, batch: int = 1, score_thr: float = 0.3,
                 pictures: bool = True, values: np.ndarray | None = None,
                 settings: dict | None = None):
        self.predictor, self.folder, self.batch = predictor, folder, batch
        self.score_thr, self.pictures, self.values = score_thr, pictures, values
        self.settings = {**(settings or {}), 'pictures': pictures, 'score_thr': score_thr}
        self.ids = category_ids(predictor.classes)
        self.notes = []

    def run(self, inputs: list[Input], fresh: bool = False) -> dict[str, str]:
        """Predict what is not done yet. Returns {file that was skipped: why}.

        Raises:
            UserError: the folder has results of other settings.
        """
        self.journal = Journal(self.folder, self.settings, inputs, fresh)
        missing = [entry for entry in inputs if entry.name not in self.journal.done]
        self.skipped = {}
        with Progress(total=len(inputs), initial=len(inputs) - len(missing), unit='images',
                      desc='predicting', smoothing=0.1, leave=True) as self.bar:
            for videos, group in itertools.groupby(missing, lambda entry: entry.video):
                if videos:
                    for entry in group:
                        self.video(entry)
                else:
                    self.images(list(group))
        self.journal.file.close()
        self.finish()
        return self.skipped

    def skip(self, entry: Input, error: UserError):
        self.skipped[str(entry.path)] = str(error)
        self.bar.update()

    def images(self, entries: list[Input]):
        for start in range(0, len(entries), self.batch):
            prepared, whole = [], []
            for entry in entries[start:start + self.batch]:
                try:
                    prepared.append(self.predictor.prepare(entry.path))
                    whole.append(entry)
                except UserError as error:
                    self.skip(entry, error)
            for entry, found in zip(whole, self.predictor.predict(prepared), strict=True):
                if self.pictures:
                    path = self.folder / 'pictures' / f'{entry.stem}.jpg'
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(found.draw(self.score_thr)).save(path, quality=92)
                self.journal.add(name=entry.name, state=entry.state,
                                 **self.write(found, entry.name))
                self.bar.update()

    def video(self, entry: Input):
        try:
            video = Video(entry.path)
        except UserError as error:
            return self.skip(entry, error)
        self.bar.total += max(video.count - 1, 0)
        drawn = (VideoFile(self.folder / 'pictures' / entry.stem, video.rate, video.size)
                 if self.pictures else None)
        number = 0
        for frames in batched(video, self.batch):
            for found in self.predictor.predict([self.predictor.prepare(f) for f in frames]):
                if drawn:
                    drawn.add(found.draw(self.score_thr))
                self.journal.add(name=entry.name,
                                 **self.write(found, f'{entry.stem}/{number:06}.png'))
                number += 1
                self.bar.update()
        if drawn:
            drawn.close()
        if number < video.count:
            self.bar.total -= video.count - number
            self.notes.append(f'{entry.path}: {number} frames could be read; the file says that it '
                              f'has {video.count}')
        self.journal.add(name=entry.name, state=entry.state)
        return None

    def write(self, found, name: str) -> dict:
        """Write an image's label map or segments; returns what its line has of it."""
        height, width = found.image.shape[:2]
        line = dict(image=dict(file_name=name, width=width, height=height))
        png = Path(name).with_suffix('.png')
        if self.predictor.kind == SEGMENTATION:
            save_labels(self.folder / LABELS / png, found.labels, self.values)
        elif self.predictor.kind == PANOPTIC:
            content, line['segments'] = encode_segments(found.encoded, self.ids)
            path = self.folder / SEGMENTS / png
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        else:
            line['rows'] = rows_of(found.boxes, found.scores, found.labels, found.masks, self.ids)
        return line

    def finish(self):
        """Write the JSON of all that is in the journal."""
        if self.predictor.kind == SEGMENTATION:
            return
        lines = [line for line in self.journal.read()[1] if 'image' in line]
        images = [line['image'] for line in lines]
        for image, number in zip(images, image_ids(images), strict=True):
            image['id'] = number
        kinds = categories(self.predictor.meta, self.ids)
        if self.predictor.kind == DETECTION:
            write_detections(self.folder, [
                dict(image_id=line['image']['id'], **row) for line in lines
                for row in line['rows']], images, kinds)
        else:
            write_panoptic(self.folder, images, [line['segments'] for line in lines], kinds)


def image_ids(images: list[dict]) -> list[int]:
    """COCO's own ids, where all files are called by numbers as COCO's are; otherwise from 1."""
    stems = [Path(image['file_name']).stem for image in images]
    if all(stem.isdecimal() for stem in stems) and len({int(stem) for stem in stems}) == len(stems):
        return [int(stem) for stem in stems]
    return list(range(1, len(images) + 1))


def batched(items, size: int) -> Iterator[list]:
    items = iter(items)
    while part := list(itertools.islice(items, size)):
        yield part
