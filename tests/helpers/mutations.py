"""Seeded damage to files of every format, and the check that a damaged file loads or is refused in one sentence."""

import random
import sys
import warnings
from collections import Counter
from pathlib import Path

import valuefit as vf
from helpers.log_files import WRITERS, steps
from valuefit.messages import RowError

MEMORY_LIMIT = 1 << 26  # bytes, passed to load


def mutate(content, rng):
    """The content with a few bytes changed, removed, repeated or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        kind, place = rng.randrange(8), rng.randrange(len(data))
        if kind <= 2:
            data[place] ^= 1 << rng.randrange(8)
        elif kind <= 4:
            data[place] = rng.choice((0, 255, rng.randrange(256)))
        elif kind == 5:
            del data[place : place + rng.randrange(1, 40)]
        elif kind == 6:
            start = rng.randrange(len(data))
            data[place:place] = data[start : start + rng.randrange(1, 40)]
        elif rng.random() < 0.3:
            del data[place:]
    return bytes(data)


def outcome(source):
    """ "loaded" or "refused"; raises whatever else a damaged file may cause, and AssertionError for a bad message."""
    try:
        vf.load(source, limit=MEMORY_LIMIT)
    except (ValueError, OSError) as error:
        own = type(error) in (ValueError, RowError) or isinstance(
            error, OSError
        )  # not a UnicodeDecodeError, which is a ValueError
        if not own or not str(error).isprintable() or not 20 < len(str(error)) < 1000:
            raise AssertionError(f"The message is not one of ours: {error!r}") from error
        return "refused"
    return "loaded"


def outcomes(kind, folder, count):
    """Counts of outcomes of `count` damaged copies of one log in a format of `WRITERS`, or "folder"."""
    source = vf.save(vf.load(steps()), folder / "log") if kind == "folder" else WRITERS[kind](steps(), folder)
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    files += [path for path in files if path.name == "main_data.hdf5"] * 3  # metadata are soon refused
    counts = Counter()
    for seed in range(count):
        rng = random.Random(seed)
        path = rng.choice(files)
        content = path.read_bytes()
        path.write_bytes(mutate(content, rng))
        try:
            counts[outcome(source)] += 1
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}, {path.name}: {error!r}") from error
        finally:
            path.write_bytes(content)
    return counts


def damaged_histograms(folder):
    """Counts of outcomes of a Parquet file whose level histograms have another length than the schema requires."""
    path = WRITERS["parquet with lists"](steps(), folder)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    headers = (0x16, 0x26, 0x36, 0x46)  # of lists of one to four integers in Thrift
    counts = Counter()
    for place in range(footer, len(content) - 8):
        for header in headers if content[place] in headers else ():
            path.write_bytes(content[:place] + bytes([header]) + content[place + 1 :])
            counts[outcome(path)] += 1
    return counts


if __name__ == "__main__":
    warnings.simplefilter("error")
    kind, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    print(dict(damaged_histograms(folder) if kind == "histograms" else outcomes(kind, folder, count)))
