"""Links CUDA's libraries that pip installed into the folders where TensorFlow looks for them.

TensorFlow opens them by name, and the dynamic linker searches the folders listed in the opening
library: 2.21 omits cuSOLVER's, and no GPU is found
(https://github.com/tensorflow/tensorflow/issues/112973); before 2.14 none of pip's is listed. A
library in none of these folders is linked into each. Run by the environment's Python; idempotent.
"""

import glob
import mmap
import os
import struct
import sysconfig

place = sysconfig.get_path("platlib")
tensorflow = os.path.join(place, "tensorflow")


def searched(library: str) -> "list[str]":
    """The folders of RPATH and RUNPATH in an ELF file's dynamic section."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        if elf[:6] != b"\x7fELF\x02\x01":
            return []
        (start,) = struct.unpack_from("<Q", elf, 32)
        size, count = struct.unpack_from("<HH", elf, 54)
        parts = [struct.unpack_from("<IIQQQQQQ", elf, start + size * n) for n in range(count)]
        entries = []  # type: list[tuple[int, int]]
        for kind, _, at, _, _, length, _, _ in parts:
            if kind == 2:
                entries += struct.iter_unpack("<qQ", elf[at : at + length // 16 * 16])
        tables = [value for tag, value in entries if tag == 5]
        paths = []
        for name in (value for tag, value in entries if tag in (15, 29)):
            for kind, _, at, address, _, length, _, _ in parts:
                if kind == 1 and address <= tables[0] < address + length:
                    text = tables[0] - address + at + name
                    paths += elf[text : elf.find(b"\0", text)].decode().split(":")
    here = os.path.dirname(library)
    return [
        os.path.normpath(path.replace("$ORIGIN", here).replace("${ORIGIN}", here)) for path in paths
    ]


def opens(library: str) -> bool:
    """True if the library contains TensorFlow's loader of CUDA: dlopen searches its folders."""
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(b"Could not load dynamic library") != -1


def loaders() -> "list[str]":
    found = glob.glob(tensorflow + "/libtensorflow*.so*")
    found += glob.glob(tensorflow + "/python/_pywrap_tensorflow_internal.so")
    found = [path for path in found if os.path.getsize(path)]
    for path in sorted(found, key=os.path.getsize):
        if opens(path):
            return [path]
    return found


def folders() -> "list[str]":
    own = os.path.join(place, "nvidia") + os.sep
    paths = {path for library in loaders() for path in searched(library) if os.path.isdir(path)}
    return sorted(path for path in paths if path.startswith(own)) or [tensorflow]


def link() -> bool:
    libraries = glob.glob(os.path.join(place, "nvidia/*/lib/*.so*"))
    real = {os.path.basename(each): each for each in libraries if not os.path.islink(each)}
    into, linked = folders(), False
    for name, path in sorted(real.items()):
        if any(os.path.exists(os.path.join(folder, name)) for folder in into):
            continue
        for folder in into:
            new = os.path.join(folder, name + ".cloudtrain")
            if os.path.lexists(new):
                os.unlink(new)
            os.symlink(os.path.relpath(path, folder), new)
            os.rename(new, os.path.join(folder, name))
        linked = True
    return linked


def main() -> None:
    if os.path.isdir(tensorflow) and os.path.isdir(os.path.join(place, "nvidia")):
        if link():
            print("linking CUDA's libraries to where TensorFlow looks for them")
        # TensorFlow before 2.14 cannot find libdevice; XLA and Keras's optimizers need it.
        compiler = os.path.join(place, "nvidia", "cuda_nvcc")
        versions = [path.split("-")[-2] for path in glob.glob(place + "/tensorflow-*.dist-info")]
        old = any(tuple(map(int, each.split(".")[:2])) < (2, 14) for each in versions)
        flags = os.path.join(place, "cloudtrain_xla.pth")
        if old and os.path.exists(compiler + "/nvvm/libdevice") and not os.path.exists(flags):
            with open(flags, "w") as file:
                flag = "--xla_gpu_cuda_data_dir=" + compiler
                file.write(f"import os; os.environ.setdefault('XLA_FLAGS', {flag!r})\n")


if __name__ == "__main__":
    main()
