"""The command line lets numpy sort without AVX-512 on the processors where that is slow, and nowhere else."""

from __future__ import annotations

import importlib.metadata
import os
import sys

import pytest

from discreet.cli import _avoid_slow_sort

_VARIABLE = "NPY_DISABLE_CPU_FEATURES"
_ZEN_4 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 avx512f avx512dq\n"


class _Distribution:
    """A numpy whose wheel has a tag."""

    def __init__(self, tag):
        self._tag = tag

    def read_text(self, name):
        return {"WHEEL": f"Tag: cp311-cp311-{self._tag}\n"}[name]


@pytest.mark.parametrize(
    ("processor", "tag", "environment", "expected"),
    [
        pytest.param(_ZEN_4, "manylinux_2_28_x86_64", {}, "X86_V4 AVX512_ICL", id="Zen 4"),
        pytest.param(_ZEN_4.replace("avx512f ", ""), "manylinux_2_28_x86_64", {}, None, id="Zen 3"),
        pytest.param(_ZEN_4.replace(": 25", ": 26"), "manylinux_2_28_x86_64", {}, None, id="Zen 5"),
        pytest.param(_ZEN_4.replace("AuthenticAMD", "GenuineIntel"), "manylinux_2_28_x86_64", {}, None, id="Intel"),
        pytest.param(None, "macosx_14_0_arm64", {}, None, id="no such file"),
        pytest.param(_ZEN_4, "linux_x86_64", {}, None, id="numpy built here"),
        pytest.param(_ZEN_4, "manylinux_2_28_x86_64", {_VARIABLE: "AVX512_ICL"}, "AVX512_ICL", id="already set"),
        pytest.param(_ZEN_4, "manylinux_2_28_x86_64", {"NPY_ENABLE_CPU_FEATURES": "X86_V4"}, None, id="enabled"),
    ],
)
def test_avx512_is_disabled_on_zen_4(monkeypatch, tmp_path, processor, tag, environment, expected):
    """Only there, only before numpy is imported, only for a wheel that works without, and never against the user."""
    variables = dict(environment)
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(importlib.metadata, "distribution", {"numpy": _Distribution(tag)}.__getitem__)
    path = tmp_path / "cpuinfo"
    if processor is not None:
        path.write_text(processor)
    _avoid_slow_sort(path)
    assert variables == environment  # numpy is imported here
    monkeypatch.delitem(sys.modules, "numpy")
    _avoid_slow_sort(path)
    assert variables.get(_VARIABLE) == expected
