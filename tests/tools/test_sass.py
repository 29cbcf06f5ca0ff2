"""What bench/sass.py reads in listings of nvdisasm and reports of ptxas; and, where nvcc is installed, of kernels."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent import futures
from pathlib import Path
from unittest import mock

from support import ROOT, Limited

sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests")]
import sass  # noqa: E402
from chosen import chosen, touched  # noqa: E402

LADDERS = sorted(path for path in (ROOT / "kernels/rungs/cuda").iterdir() if path.is_dir())
TOOLS = sass.toolkit()
WITH_NVCC = unittest.skipIf(TOOLS is None, "nvcc is not installed")
WITH_BOTH = unittest.skipIf(TOOLS is None or TOOLS.disassembler is None, "nvcc or nvdisasm is not installed")

# The loop of kernels/rungs/cuda/matvec/2_warp.cu, by nvcc 13.0.88 for sm_90, with what comes before and after it.
WARP = """
    ULDC UR7, c[0x0][0x248]
    HFMA2.MMA R8, -RZ, RZ, 0, 0
    @P0 BRA `(.L_x_1)
.L_x_2:
    IMAD.MOV.U32 R5, RZ, RZ, R11
    IMAD.MOV.U32 R6, RZ, RZ, R10
    LDG.E R5, desc[UR4][R4.64]
    LDG.E R6, desc[UR4][R6.64]
    IADD3 R9, R9, 0x20, RZ
    IADD3 R10, P1, R10, 0x80, RZ
    ISETP.GE.AND P0, PT, R9, UR7, PT
    IADD3 R4, P2, R4, 0x80, RZ
    IMAD.X R7, RZ, RZ, R7, P1
    IADD3.X R11, RZ, R11, RZ, P2, !PT
    FFMA R8, R5, R6, R8
    @!P0 BRA `(.L_x_2)
.L_x_1:
    FADD R9, R6, R9
    STG.E desc[UR6][R2.64], R9
    EXIT
.L_x_3:
    BRA `(.L_x_3)
    NOP
"""

# And of 3_wide_loads.cu.
WIDE_LOADS = """
.L_x_2:
    IMAD.MOV.U32 R4, RZ, RZ, R14
    MOV R5, R17
    IMAD.MOV.U32 R8, RZ, RZ, R16
    MOV R9, R19
    LDG.E.128 R4, desc[UR6][R4.64]
    LDG.E.128 R8, desc[UR6][R8.64]
    VIADD R13, R13, 0x20
    IADD3 R14, P2, R14, 0x200, RZ
    IADD3 R16, P1, R16, 0x200, RZ
    ISETP.GE.AND P0, PT, R13, UR4, PT
    IMAD.X R17, RZ, RZ, R17, P2
    IADD3.X R19, RZ, R19, RZ, P1, !PT
    FMUL R15, R5, R9
    FFMA R15, R4, R8, R15
    FFMA R6, R6, R10, R15
    FFMA R7, R7, R11, R6
    FADD R12, R7, R12
    @!P0 BRA `(.L_x_2)
    EXIT
"""

# Both rings wait in a small loop: the first before its loads; the second elsewhere, and so from its beginning.
WAITS = """
    BSSY B0, `(.L_end)
.L_outer:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [R17+UR12], R4
    @!P3 BRA `(.L_wait)
.L_arrived:
    @P0 BRA `(.L_skip)
    LDS.128 R8, [R8]
    IDP.4A.S8.S8 R4, R8, R4, RZ
    BRA.DIV UR4, `(.L_diverged)
    SHFL.BFLY PT, R3, R20, 0x10, 0x1f
.L_exchanged:
.L_copy:
    UBLKCP.S.G [UR10], [UR6], UR5
    @!PT LDS RZ, [RZ]
    LDL R0, [R1+0x4]
    @P0 BRA.U.ANY `(.L_copy)
.L_skip:
    BRA.U UP0, `(.L_outer)
    CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)
    BSYNC B0
.L_wait:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P3, [R17+UR12], R4
    @!P3 BRA `(.L_wait)
    BRA `(.L_arrived)
.L_diverged:
    WARPSYNC.COLLECTIVE R5, `(.L_alone)
.L_alone:
    FFMA R1, R1, R1, R1
    BRA `(.L_exchanged)
.L_end:
    @P0 EXIT
    STG.E desc[UR6][R2.64], R9
    RET.REL.NODEC R8 `(.L_outer)
$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath:
    FFMA R1, R1, R1, R1
"""


PAGES = {"matvec": "matrix-vector"}  # of ladders with another name
COLUMNS = {"registers": "registers", "bytes of shared memory": "shared_bytes", "instructions": "instructions",
           "in the inner loop": "loop_instructions", "multiplications there": "multiplications",
           "a lane's multiplications there": "multiplications"}


def shown(kernel, column):
    """A figure as a page shows it; "" where nvdisasm is missing."""
    if column in COLUMNS:
        return f"{kernel.get(COLUMNS[column]) or 0:,}" if COLUMNS[column] in kernel else ""
    of = kernel.get("loaded_bytes", 0) / 4 if column.endswith("number") else kernel.get("multiplications", 0)
    return format((kernel["loop_instructions"] or kernel["instructions"]) / of, ".2f") if of else ""


def rows_of(page):
    """{rung or rung: kernel: {column: figure}} of the table with registers; with nvdisasm's columns if it is there."""
    table = next(table for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE) if "| registers |" in table.splitlines()[0])
    lines = [[re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cell.strip()) for cell in line.strip("|").split("|")] for line in table.splitlines()]
    columns = [column for column in lines[0][1:] if (column in COLUMNS or column.startswith("instructions per"))
               and (TOOLS.disassembler or COLUMNS.get(column) in ("registers", "shared_bytes"))]
    return {line[0]: {column: line[lines[0].index(column)].replace("–", "0") for column in columns} for line in lines[2:]}


def listing(body, symbol="kernel"):
    """`body` as nvdisasm -c writes it."""
    lines = [f'\t.section\t.text.{symbol},"ax",@progbits', f"        .type {symbol},@function", f"{symbol}:"]
    for number, line in enumerate(body.strip("\n").splitlines()):
        predicate = re.match(r"\s+(@\S+) ", line)
        text = line.replace(predicate[1], "") if predicate else line
        lines.append(line if line.endswith(":") else
                     f"        /*{16 * number:04x}*/    {predicate[1] if predicate else '':>8} {text.strip()} ;")
    return "\n".join(lines) + "\n"


def counted(body):
    return sass.count(sass.read_listing(listing(body))["kernel"])


class Listings(Limited):
    def test_the_inner_loop_is_counted(self):
        self.assertEqual(counted(WARP), {"instructions": 18, "loop_instructions": 12, "loads": 2, "loaded_bytes": 8,
                                         "shared_loads": 0, "multiplications": 1, "spill_accesses": 0})

    def test_16_bytes_a_lane_take_fewer_instructions_per_byte(self):
        warp, wide = counted(WARP), counted(WIDE_LOADS)
        self.assertEqual((wide["loads"], wide["loaded_bytes"], wide["multiplications"]), (2, 32, 4))
        self.assertLess(wide["loop_instructions"] / wide["loaded_bytes"], 0.4 * warp["loop_instructions"] / warp["loaded_bytes"])

    def test_loops_that_only_wait_and_code_for_rare_cases_do_not_count(self):
        # The loop is that of .L_outer, with .L_wait and .L_copy. What follows .L_diverged does not count.
        self.assertEqual(counted(WAITS), {"instructions": 21, "loop_instructions": 15, "loads": 0, "loaded_bytes": 0,
                                          "shared_loads": 1, "multiplications": 4, "spill_accesses": 1})

    def test_of_loops_side_by_side_the_one_that_multiplies_most_counts_and_of_nested_ones_the_inner(self):
        def loop(name, work, inside=""):
            inside = inside and f"    MOV R8, R9\n{inside}"
            return f".L_{name}:\n{inside}    {work}\n    @P0 BRA `(.L_{name})\n"

        multiply, load, load_shared = "FFMA R1, R2, R3, R1", "LDG.E.64 R1, desc[UR4][R2.64]", "LDS.U16 R1, [R2]"
        few, many = loop("few", multiply, 9 * "    FADD R1, R1, R1\n"), loop("many", f"{multiply}\n    {multiply}")
        for code, expected in [
                (few + many, (3, 2)), (many + few, (3, 2)),  # not the longest
                (loop("outer", multiply, few + many), (3, 2)),
                (loop("outer", multiply, loop("copy", load)), (5, 1)),  # what only loads is no loop beside one that multiplies
                (loop("one", load) + loop("two", f"{load}\n    {load}"), (3, 0)),
                (loop("outer", load, loop("inner", load_shared)), (2, 0)),
                (loop("first", multiply) + loop("second", f"{multiply}\n    NOP"), (2, 1)),  # of equals the first
                (loop("first", f"{multiply}\n    {load}") + loop("second", f"{multiply}\n    {load}\n    {load}"), (4, 1)),
                (loop("first", f"{multiply}\n    {multiply}\n    {load_shared}") + loop("second", f"{multiply}\n    {load}"), (3, 1)),
                (loop("constants", "LDC.64 R2, c[0x0][0x210]"), (0, 0))]:
            with self.subTest(code):
                figures = counted(code + "    EXIT")
                self.assertEqual((figures["loop_instructions"], figures["multiplications"]), expected)

    def test_loads_have_widths_and_instructions_multiply_for_each_lane(self):
        for opcode, width in [("LDG.E.U8", 1), ("LDG.E.U16.CONSTANT", 2), ("LDGSTS.E", 4), ("LDS", 4), ("LDG.E.64.CONSTANT", 8),
                              ("LDGSTS.E.BYPASS.LTC128B.128", 16), ("LDSM.16.M88", 4), ("LDSM.16.MT88.2", 8), ("LDSM.16.M88.4", 16)]:
            with self.subTest(opcode):
                self.assertEqual(sass.Instruction("", opcode, "R4, [R6]").width(), width)
        for opcode, operands, multiplications in [
                ("FMUL.FTZ", "R1, R2, R3", 1), ("HMMA.16816.F32.BF16", "R4, R8, R12, R4", 64), ("IDP.4A.S8.S8", "R4, R8, R4, RZ", 4),
                ("HFMA2.BF16_V2", "R1, R2, R3, R4", 2), ("HFMA2.MMA", "R8, -RZ, RZ, 0, 0", 0), ("IMAD", "R1, R2, R3, R4", 0)]:
            with self.subTest(opcode):
                self.assertEqual(sass.Instruction("", opcode, operands).multiplications(), multiplications)

    def test_only_wanted_kernels_are_read(self):
        text = listing(WARP, "first") + '\t.section\t.nv.info,"",@"SHT"\n' + listing(WIDE_LOADS, "second") + "        /*no instruction*/\n"
        self.assertEqual([*sass.read_listing(text)], ["first", "second"])
        self.assertEqual([*sass.read_listing(text, {"second"})], ["second"])


class Reports(Limited):
    REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3onePf' for 'sm_90'
ptxas info    : Function properties for _Z3onePf
    800 bytes stack frame, 796 bytes spill stores, 800 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16464 bytes smem
ptxas info    : Compiling entry function '_Z3twoPf' for 'sm_90'
ptxas info    : Function properties for _Z3twoPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""

    def test_registers_spills_and_shared_memory_are_read(self):
        self.assertEqual(sass.read_report(self.REPORT), {
            "_Z3onePf": {"registers": 255, "spilled_bytes": 796, "shared_bytes": 16464},
            "_Z3twoPf": {"registers": 12, "spilled_bytes": 0, "shared_bytes": 0}})

    def test_names_are_those_of_the_emulation(self):
        for name, short in [("void staircase::cuda::multiply_one_row<32, (staircase::DType)2, staircase::cuda::StoreRow>(float const*)",
                             "multiply_one_row<32, (DType)2, StoreRow>"),
                            ("staircase::rungs::gpu_matvec::(anonymous namespace)::multiply(staircase::rungs::gpu_matvec::Matvec)",
                             "multiply")]:
            self.assertEqual(sass.short_name(name), short)

    def test_what_is_missing_is_named(self):
        self.assertRegex(sass.missing(None), "^nvcc, which comes with the CUDA toolkit, would add")
        self.assertRegex(sass.missing(sass.Toolkit("nvcc", None, "c++filt")), "^nvdisasm, .* would add instructions")
        self.assertEqual(sass.missing(sass.Toolkit("nvcc", "nvdisasm", "c++filt")), "")

    def test_nvdisasm_may_be_on_the_path_or_a_package_of_python(self):
        with tempfile.TemporaryDirectory() as name:
            place = Path(name, "nvidia/cu13/bin")
            place.mkdir(parents=True)
            (place / "nvdisasm").write_text("#!/bin/sh\n")
            (place / "nvdisasm").chmod(0o755)
            spec = mock.Mock(submodule_search_locations=[str(place.parents[1])])
            which = shutil.which
            with mock.patch.object(sass.shutil, "which", lambda program, path=None:
                                   which(program, path=str(place)) if program == "nvdisasm" and str(place) in path.split(":")
                                   else None if program == "nvdisasm" else f"/bin/{program}"):
                for found, expected in ((spec, str(place / "nvdisasm")), (None, None)):
                    with mock.patch.object(sass.importlib.util, "find_spec", lambda _, found=found: found):
                        self.assertEqual(sass.toolkit(), sass.Toolkit("/bin/nvcc", expected, "/bin/c++filt"))


@WITH_NVCC
class Compiled(Limited):
    LIMIT = 280

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def compiled(self, text):
        file = self.folder / "kernels" / "own.cu"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return sass.compiled(file, "sm_90", TOOLS, self.folder)

    def test_an_array_that_does_not_fit_into_registers_is_seen_spilling(self):
        # 1,024 threads share 65,536 registers: 64 each.
        kernels = """
template <int kNumbers>
__device__ void turn_around(const float* x, float* y) {
  float own[kNumbers];
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) own[i] = x[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kNumbers; ++i) y[i * 1024 + threadIdx.x] = own[kNumbers - 1 - i];
}
namespace {
__global__ __launch_bounds__(1024) void few(const float* x, float* y) { turn_around<20>(x, y); }
__global__ __launch_bounds__(1024) void many(const float* x, float* y) { turn_around<200>(x, y); }
}
void start(float* x) { few<<<1, 1024>>>(x, x); many<<<1, 1024>>>(x, x); }
"""
        few, many = self.compiled(kernels)
        self.assertEqual((few["kernel"], many["kernel"]), ("few", "many"))
        self.assertEqual(few["spilled_bytes"], 0)
        self.assertLess(few["registers"], 64)
        self.assertEqual(many["registers"], 64)
        self.assertGreater(many["spilled_bytes"], 4 * (200 - 64))

    def test_a_result_is_kept_until_a_file_changes(self):
        text = "__global__ void one(float* x) { x[threadIdx.x] = 1.0f; }\n"
        first = self.compiled(text)
        with mock.patch.object(sass.subprocess, "run", wraps=subprocess.run) as started:
            file = self.folder / "kernels/own.cu"
            self.assertEqual(sass.compiled(file, "sm_90", TOOLS, self.folder), first)
            self.assertFalse([call for call in started.call_args_list if "-cubin" in call.args[0]])
            self.compiled(text.replace("one", "other"))
            self.assertTrue([call for call in started.call_args_list if "-cubin" in call.args[0]])

    def test_an_error_is_one_sentence(self):
        with self.assertRaisesRegex(sass.Failure, "^nvcc cannot compile own.cu for sm_90: .*error.*unknown"):
            self.compiled("__global__ void one(float* x) { x[0] = unknown; }\n")

    def test_no_rung_spills_and_its_page_has_its_figures(self):
        for ladder in LADDERS:
            if not (chosen(f"sass {ladder.name}", 6) or touched(ladder.relative_to(ROOT))):
                continue
            page = (ROOT / f"docs/kernels/gpu-{PAGES.get(ladder.name, ladder.name.replace('_', '-'))}.md").read_text(encoding="utf-8")
            named = re.search(r"\bby\s+(nvcc [\d.]+) for (sm_\d+)\b", page)
            rows, has_same_compiler = rows_of(page), sass.versions(TOOLS, "sm_90").startswith(f"{named[1]},")
            files = sorted(ladder.glob("[0-9]*.cu"))
            with futures.ThreadPoolExecutor(max_workers=2) as side_by_side:
                results = side_by_side.map(lambda file: sass.compiled(file, named[2], TOOLS, self.folder), files)
            for file, kernels in zip(files, results):
                for kernel in kernels:
                    name = file.stem.replace("_", "-") + (f": {kernel['kernel']}" if len(kernels) > 1 else "")
                    with self.subTest(f"{ladder.name}/{name}"):
                        self.assertEqual(kernel["spilled_bytes"], 0)
                        self.assertLessEqual(kernel["registers"], 128)
                        if has_same_compiler and kernel["kernel"] != "round_x":  # not of the page's matrix
                            self.assertEqual(rows[name], {column: shown(kernel, column) for column in rows[name]})

    # What counters.cpp counts for a token of GPT-2 124M, and of a model with gated products and shared heads.
    DECODING = ("multiply_one_row<32, 3, 1, 6, __nv_bfloat16, StoreQueryKeyValue>", "attend_split<1, 8, __nv_bfloat16>",
                "multiply_one_row<32, 3, 1, 6, __nv_bfloat16, StoreRow>", "multiply_one_row<128, 3, 1, 6, __nv_bfloat16, StoreRow>",
                "multiply_one_row<32, 2, 2, 5, signed char, StoreRow>", "multiply_one_row<32, 1, 4, 5, Int4Pair, StoreRow>",
                "multiply_one_row<32, 3, 1, 5, __nv_bfloat16, StoreGated>", "attend_split<1, 8, Int4Byte>",
                "multiply_on_tensor_cores<1, 256, __nv_bfloat16, StoreRow>", "multiply_on_tensor_cores<1, 256, signed char, StoreRow>",
                "multiply_on_tensor_cores<1, 256, Int4Pair, StoreRow>", "attend_split<4, 8, __nv_bfloat16>",
                "attend_split<1, 4, signed char>")

    def test_no_kernel_of_decoding_spills(self):
        includes = "".join(f'#include "kernels/cuda/{name}.cuh"\n' for name in ("attend_split", "matvec", "rows_on_tensor_cores"))
        kernels = ",\n".join(f"(void*){name}" for name in self.DECODING)
        compiled = self.compiled(f"{includes}using namespace staircase::cuda;\nvoid* kernels[] = {{\n{kernels}}};\n")
        self.assertEqual({kernel["kernel"] for kernel in compiled}, set(self.DECODING))
        for kernel in compiled:
            with self.subTest(kernel["kernel"]):
                self.assertEqual(kernel["spilled_bytes"], 0)
                self.assertLessEqual(kernel["registers"], 168 if kernel["kernel"] == "attend_split<4, 8, __nv_bfloat16>" else 128)

    @WITH_BOTH
    def test_rungs_with_wide_loads_have_a_quarter_of_the_loads(self):
        warp, wide = (sass.compiled(ROOT / f"kernels/rungs/cuda/matvec/{name}.cu", "sm_90", TOOLS, self.folder)[0]
                      for name in ("2_warp", "3_wide_loads"))
        self.assertEqual(wide["loads"] / wide["loaded_bytes"], warp["loads"] / warp["loaded_bytes"] / 4)
        self.assertLess(wide["loop_instructions"] / wide["loaded_bytes"], warp["loop_instructions"] / warp["loaded_bytes"] / 2)


if __name__ == "__main__":
    unittest.main()
