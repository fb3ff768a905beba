"""Every kernel of the tree is in a case of the corpus, which compilers read."""

import re

from kernel_corpus import sampled_launches

from clnet.opencl.program import kernel_directory

KERNEL = re.compile(
    r"__kernel\s+(?:__attribute__\s*\(\(.*?\)\)\)\s*)?void\s+(\w+)\s*\("
)


def test_every_kernel_is_in_a_case():
    folder = kernel_directory()
    texts = {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*.cl")
    }
    kernels = {(path, name) for path in texts for name in KERNEL.findall(texts[path])}
    assert len(kernels) == sum(text.count("__kernel ") for text in texts.values())
    found = {(launch.source, launch.kernel) for launch in sampled_launches()}
    assert kernels - found == set()
