# What bundle.sh and stack_bundle.sh share: a folder of programs with the
# libraries that they are linked with, and an archive of it.  To be sourced.
# shellcheck shell=sh

# libraries OUT PROGRAM..: into OUT/lib, but what the C and C++ compilers bring,
# which is that machine's own
libraries() {
    to=$1/lib
    shift
    mkdir -p "$to"
    for program in "$@"; do
        ldd "$program" | awk '$3 ~ /^\// { print $3 }'
    done | sort -u | grep -Ev "/(ld-linux[^/]*|lib($MACHINE))\.so" |
        while read -r lib; do cp -L "$lib" "$to"; done
}
MACHINE='c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+'

# reference_blas OUT: where only a GPU computes, the plain BLAS does in place of
# OpenBLAS, whose kernels for every processor are a third of the archive
reference_blas() {
    for lib in blas openblas gfortran quadmath gomp; do
        rm -f "$1/lib/lib$lib".so*
    done
    reference=$(find /usr/lib -path '*/blas/libblas.so.3' | head -n 1)
    cp -L "$reference" "$1/lib/libblas.so.3"
    echo 'void openblas_set_num_threads(int n) { (void) n; }' |
        ${CC:-gcc} -shared -fPIC -Wl,-soname,libopenblas.so.0 \
            -Wl,--no-as-needed -o "$1/lib/libopenblas.so.0" \
            -x c - -x none "$1/lib/libblas.so.3"
}

# pack ARCHIVE DIR [NAME..]: DIR, or what is named in it, as ARCHIVE.  The filter
# for machine code and a long dictionary make it a tenth smaller than xz does.
pack() {
    archive=$1
    base=$(basename "$2")
    parent=$(dirname "$2")
    shift 2
    [ $# -gt 0 ] || set -- .
    for name in "$@"; do echo "$base/$name"; done |
        tar -C "$parent" --owner=0 --group=0 -c -T - |
        xz --x86 --lzma2=preset="${XZ_PRESET:-9}",dict=96MiB >"$archive"
    du -sh "$archive"
}
