"""The check of compiled kernels finds a descriptor that one of two branches does not set."""

from __future__ import annotations

import pytest

from baton_testing.kernels.machine_code import find_unset_descriptors

BRANCHES = """
        .section        .text._kernel,"ax",@progbits
.text._kernel:
_kernel:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   USHF.R.U32.HI UR17, URZ, 0x4, UR16 ;
        {common}
        /*0020*/               @P0 BRA `(.L_x_9) ;
        /*0030*/                   UIADD3.64 UR14, UR17, 0x2, URZ ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, R100, gdesc[UR12], R24, gsb0 ;
        /*0050*/                   BRA `(.L_x_7) ;
.L_x_9:
        {other}
        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, R100, gdesc[UR12], R24, gsb0 ;
.L_x_7:
        /*0080*/                   EXIT ;
"""
SET = "/*0060*/                   UIADD3.64 UR14, UR17, 0x2, URZ ;"


def code_of(common: str = "", other: str = "") -> str:
    return BRANCHES.replace("{common}", common).replace("{other}", other)


def test_a_descriptor_that_one_branch_sets_is_missing_on_the_other() -> None:
    """Found: ptxas 12.8 made this of experts in MXFP4 with up to 128 columns inside."""
    (product,) = find_unset_descriptors(code_of())
    assert product.startswith("HGMMA.64x128x16")
    assert product.endswith("UR14, UR15 not set")


@pytest.mark.parametrize("code", [code_of(common=SET), code_of(other=SET)], ids=["before", "in both"])
def test_a_descriptor_that_every_path_sets_is_fine(code: str) -> None:
    assert find_unset_descriptors(code) == []


def test_half_of_a_descriptor_is_not_enough() -> None:
    (product,) = find_unset_descriptors(code_of(other=SET.replace("UIADD3.64", "UIADD3")))
    assert product.endswith("UR15 not set")


def test_a_loop_that_sets_a_descriptor_at_its_end_has_not_set_it_the_first_time() -> None:
    code = """
_kernel:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;
        /*0020*/                   ULDC.64 UR4, c[0x0][0x208] ;
        /*0030*/                   ULDC.64 UR6, c[0x0][0x210] ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/                   EXIT ;
"""
    (product,) = find_unset_descriptors(code)
    assert product.endswith("UR4, UR5, UR6, UR7 not set")
    assert find_unset_descriptors("") == []
