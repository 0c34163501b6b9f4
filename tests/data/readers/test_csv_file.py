"""CSV files: ends of lines and long headers."""

import numpy as np

import valuefit as vf


def test_csv_lines_may_end_as_on_old_macs(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"obs,reward,done\r0.5,1,0\r1.5,2,1\r")
    np.testing.assert_array_equal(vf.load(tmp_path / "log.csv").reward, [1.0, 2.0])


def test_csv_column_names_may_be_long(tmp_path):
    (tmp_path / "log.csv").write_text(f"obs,reward,done,{'x' * 200_000}\n0.5,1,1,7\n")
    assert len(vf.load(tmp_path / "log.csv")) == 1
