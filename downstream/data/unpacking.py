"""Archives from the web, unpacked so that they can do no harm and a stop costs nothing."""
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from backbones.download import CHUNK, Meter, Refused, check_space

from ..errors import UserError, shown

BOMB = 100  # times its size is more than an archive of images or annotations unpacks to
LEAST = 1 << 20  # bytes that any archive may unpack to
BLOCK = 512  # bytes that a file counts for at least, as in a .tar: ten million empty ones are much
LONGEST = 1 << 16  # bytes of a name in a .tar, and of all else that is said of a file
SAYING = {tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
          tarfile.SOLARIS_XHDTYPE}  # entries that say something of the next one


class Member(NamedTuple):
    """What an archive holds: ``open()`` reads it."""
    name: str
    size: int
    is_file: bool
    is_folder: bool
    open: object


class Header(tarfile.TarInfo):
    """What a .tar says of a file: tarfile reads it at once, however long it claims to be."""

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        header = super().frombuf(buf, encoding, errors)
        if header.type in SAYING and header.size > LONGEST:
            raise UserError(f'it has a name, or a note on a file, of {header.size:,} bytes')
        if header.type == tarfile.GNUTYPE_SPARSE:
            header.refuse_holes()
        return header

    def refuse_holes(self, *_):
        raise UserError(f'it holds {self.name!r}, a file with holes (sparse), whose list of holes '
                        'may be endless')

    _proc_gnusparse_10 = refuse_holes  # such a file's other form; it has no name of its own


def members(archive: Path) -> Iterator[Member]:
    """All that a .zip or a .tar(.gz) holds, in its order; those of a tar are to be read at once."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                yield Member(info.filename, info.file_size,
                             kind in (0, stat.S_IFREG) and not info.is_dir(),
                             info.is_dir(), lambda info=info, file=file: file.open(info))
    else:
        with tarfile.open(archive, 'r|*', tarinfo=Header) as file:
            for info in file:
                yield Member(info.name, info.size, info.isreg(), info.isdir(),
                             lambda info=info, file=file: file.extractfile(info))


def place(member: Member, into: Path, strip: str, flat: bool) -> Path | None:
    """Where a member goes; None for a folder and for what is no part of the data.

    Raises:
        UserError: it is a link or a device, or would go anywhere else.
    """
    path = PurePosixPath(member.name)
    if (path.is_absolute() or '..' in path.parts or '\\' in member.name or '\0' in member.name
            or ':' in member.name.partition('/')[0]):
        raise UserError(f'it holds {member.name!r}, which would go outside of its folder')
    if member.is_folder:
        return None
    if not path.name:
        raise UserError('it holds a file without a name')
    if not member.is_file:
        raise UserError(f'it holds {member.name!r}, which is a link or a device')
    if path.parts[0] == '__MACOSX' or path.name.startswith('._'):
        return None
    if strip:
        if path.parts[:1] != (strip, ):
            return None
        path = path.relative_to(strip)
        if not path.name:
            raise UserError(f'it holds {strip!r}, which should be a folder')
    return into / (path.name if flat else path)


def unpack(archive: Path, into: Path, strip: str = '', flat: bool = False) -> int:
    """Unpack an archive; what is there already is left. Returns how many files it has.

    A file is written under another name first: under its own it is whole.

    Args:
        archive: a .zip or a .tar(.gz).
        into: the folder for what it holds.
        strip: a folder in front of all that is wanted.
        flat: leave all folders out.

    Raises:
        UserError: it is no archive, is damaged or not whole, holds what could do harm (a path that
            leads elsewhere, a link, far more than its size), or there is no room.
    """
    limit = max(BOMB * archive.stat().st_size, LEAST)
    try:
        if zipfile.is_zipfile(archive):
            wanted = [(member, target) for member in members(archive)
                      if (target := place(member, into, strip, flat))]
            check_total(sum(room(member) for member, _ in wanted), limit)
            into.mkdir(parents=True, exist_ok=True)
            total = sum(member.size for member, target in wanted if not is_there(member, target))
            check_space(into, total)
        else:
            total = None
        count = done = taken = 0
        with Meter(f'unpacking {archive.name}', total, bytes=True) as meter:
            for member in members(archive):
                target = place(member, into, strip, flat)
                if target is None:
                    continue
                count += 1
                taken += room(member)
                check_total(taken, limit)
                if is_there(member, target):
                    continue
                if total is None:
                    check_space(archive.parent, member.size)
                target.parent.mkdir(parents=True, exist_ok=True)
                with member.open() as source:
                    write(source, target, member.size)
                done += member.size
                meter.to(done)
    except Refused as error:
        raise UserError(f'{archive} cannot be unpacked: {error}') from None
    except UserError as error:
        raise UserError(f'{archive} is not unpacked: {error}') from None
    except OSError as error:
        raise UserError(f'{archive} cannot be unpacked: {error}') from None
    except Exception as error:  # damaged bytes make the readers stumble in any way
        words = shown(str(error) or type(error).__name__)
        raise UserError(f'{archive} is damaged, or not whole, or no archive ({words}): delete it, '
                        'and the same command fetches it again') from None
    return count


def is_there(member: Member, target: Path) -> bool:
    return target.is_file() and target.stat().st_size == member.size


def room(member: Member) -> int:
    return max(member.size, BLOCK)


def check_total(size: int, limit: int):
    if size > limit:
        raise UserError(f'it would unpack to {size:,} bytes and more, over {BOMB} times its own '
                        'size: no archive of a data set does')


def write(source: IO[bytes], target: Path, size: int):
    """Copy into a file that has its name only when it is whole."""
    part = target.with_name(f'{target.name}.part')
    try:
        with part.open('wb') as file:
            shutil.copyfileobj(source, file, CHUNK)
        if part.stat().st_size != size:
            raise EOFError(f'{target.name} ends early')
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
