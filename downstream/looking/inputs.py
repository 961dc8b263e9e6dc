"""What a person names to be predicted: images, folders, patterns, videos."""
import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ..data.checks import some
from ..data.files import IMAGES
from ..errors import UserError

VIDEOS = '.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv'


@dataclass(frozen=True)
class Input:
    """An image or a video.

    Attributes:
        name: its path below the folder that was named, or its file name; what is written about it
            is called so.
    """
    path: Path
    name: str

    @property
    def video(self) -> bool:
        return self.path.suffix.lower() in VIDEOS

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).with_suffix('').as_posix()

    @property
    def state(self) -> list[int]:
        """Another one means that the file was changed."""
        status = self.path.stat()
        return [status.st_size, status.st_mtime_ns]


def find_inputs(sources: list[str]) -> list[Input]:
    """All images and videos of files, folders (with those in them) and patterns such as 'a/*.jpg'.

    Raises:
        UserError: there is none, or two that would be written under the same name.
    """
    found = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = [Input(file, file.relative_to(path).as_posix()) for file in
                      sorted(path.rglob('*')) if file.suffix.lower() in IMAGES + VIDEOS]
            if not inside:
                raise UserError(f'the folder {source} holds no images or videos '
                                f'({", ".join(IMAGES + VIDEOS)})')
        elif path.is_file():
            inside = [Input(path, path.name)]
        else:
            inside = [Input(Path(file), Path(file).name) for file in
                      sorted(glob.glob(source, recursive=True)) if Path(file).is_file()]
            if not inside:
                raise UserError(f'there is no image, video or folder {source}')
        strange = [str(entry.path) for entry in inside
                   if entry.path.suffix.lower() not in IMAGES + VIDEOS]
        if strange:
            raise UserError(f'{some(strange)}: not called as images or videos are '
                            f'({", ".join(IMAGES + VIDEOS)})')
        found.update({entry.path.resolve(): entry for entry in inside})
    stems = {}
    for entry in found.values():
        other = stems.setdefault(entry.stem, entry)
        if other is not entry:
            raise UserError(f'{other.path} and {entry.path} would both be written as {entry.stem}: '
                            'name a folder that holds both, or give each an -o of its own')
    return list(found.values())


class Video:
    """A video's frames, by OpenCV; its sound is not read.

    Attributes:
        count: the number of frames, as the file says; some files do not know exactly.
        rate: frames a second.

    Raises:
        UserError: OpenCV cannot read it, not even its first frame.
    """

    def __init__(self, path: Path):
        self.capture = cv2.VideoCapture(str(path))
        self.count = max(int(self.capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        self.rate = self.capture.get(cv2.CAP_PROP_FPS) or 25.
        there, self.first = self.capture.read()
        if not there:
            self.capture.release()
            raise UserError(f'video {path} cannot be read: it is damaged, no video, or of a kind '
                            'that this OpenCV does not decode')
        self.size = self.first.shape[1::-1]  # width, height

    def __iter__(self) -> Iterator[np.ndarray]:
        """Each frame, (H, W, 3) RGB uint8."""
        there, frame = True, self.first
        while there:
            yield np.ascontiguousarray(frame[..., ::-1])
            there, frame = self.capture.read()
        self.capture.release()


class VideoFile:
    """A video that is written frame by frame, and has its name when it is whole.

    MPEG-4 in .mp4; where OpenCV does not have that, Motion JPEG in .avi.

    Raises:
        UserError: OpenCV has neither.
    """

    def __init__(self, stem: Path, rate: float, size: tuple[int, int]):
        stem.parent.mkdir(parents=True, exist_ok=True)
        for suffix, code in ('.mp4', 'mp4v'), ('.avi', 'MJPG'):
            self.path = stem.with_name(f'{stem.name}{suffix}')
            self.part = stem.with_name(f'{stem.name}.part{suffix}')
            self.writer = cv2.VideoWriter(
                str(self.part), cv2.VideoWriter_fourcc(*code), rate, size)
            if self.writer.isOpened():
                return
        raise UserError(f'{stem}: this OpenCV can write neither MPEG-4 nor Motion JPEG videos; '
                        '--no-pictures writes the results alone')

    def add(self, frame: np.ndarray):
        self.writer.write(np.ascontiguousarray(frame[..., ::-1]))

    def close(self):
        self.writer.release()
        self.part.replace(self.path)
