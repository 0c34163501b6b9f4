"""Damaged .npy files, for which NumPy raises TokenError, TypeError and OverflowError."""

import zipfile

HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
DAMAGED = {
    "TokenError": HEADER.replace("(3,)", "(3,"),
    "TypeError": HEADER.replace("'descr'", "3"),
    "OverflowError": HEADER.replace("3,", f"{10**30},"),
}


def damaged_npy(error):
    """The bytes of an .npy file whose header makes NumPy raise this error."""
    text = DAMAGED[error].encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(24)


def replace_entry(path, name, content):
    """Write a .npz file again with other content of one entry."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, bytes_of_entry in {**entries, name: content}.items():
            archive.writestr(entry, bytes_of_entry)
