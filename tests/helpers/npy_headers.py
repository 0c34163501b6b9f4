"""Damaged .npy files, for which NumPy raises TokenError, TypeError and OverflowError."""

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
