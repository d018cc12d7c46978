#!/bin/sh
# Runs a command on another kernel: in a virtual machine with the distribution's kernel (of Debian 12: 6.1), and
# with the files of this machine, of which the command sees everything and changes nothing.
#
#   run.sh COMMAND [ARGUMENT ...]
#
# The command has the environment and the working directory of the caller; its output comes out of standard
# output, and its exit status is that of run.sh. There is no network but what the command makes. Cargo takes
# run.sh as a runner: it builds programs as usual, and each runs in a machine of its own.
#
#   VM_SECONDS   the time after which the machine is ended (3600); the exit status is 124 then
#   BOOT_SECONDS the time after which a machine that has not begun the command is ended and booted again, up to
#                two times (240)
#   VM_CPUS      the number of its processors (2)
#   VM_MEMORY    its memory in MiB, which what is written to files takes, too (3072)
#   VM_DIR       where the kernel is kept (target/vm)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || { echo "usage: run.sh COMMAND [ARGUMENT ...]" >&2; exit 2; }
vm=${VM_DIR:-$here/../../target/vm}
command -v qemu-system-x86_64 >/dev/null || { echo "no virtual machine: there is no qemu" >&2; exit 1; }
"$here/fetch.sh" "$vm"
vm=$(cd "$vm" && pwd)

# A device alone does not mean that the processor runs the machine: where it cannot, KVM emulates, slower than
# qemu does.
accel=tcg,thread=multi
if grep -Eqw 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ]; then
    accel=kvm
fi

# What the machine reads and writes of this run.
run=$(mktemp -d "${TMPDIR:-/tmp}/vm-XXXXXX")
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || :; wait; rm -rf "$run"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

cp "$here/second.sh" "$run/second.sh"
echo "$vm/modules" >"$run/modules"
quoted() {
    for word in "$@"; do
        printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"
    done
}
{
    export -p
    echo "cd $(quoted "$PWD")"
    echo "exec $(quoted "$@")"
} >"$run/command"

# Prints what the kernel wrote last.
console() {
    tail -n 30 "$run/console" >&2 || :
}

# Runs the machine until it ends; the status is 125 if the command has not begun in time.
boot() {
    # The process ends with this shell, however that ends.
    setpriv --pdeathsig TERM timeout --kill-after 5 "${VM_SECONDS:-3600}" \
        qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none -nic none \
        -machine q35 -cpu max -accel "$accel" -smp "${VM_CPUS:-2}" -m "${VM_MEMORY:-3072}" \
        -kernel "$vm/vmlinux" -initrd "$vm/initramfs" \
        -append "console=ttyS0 panic=-1 mitigations=off nowatchdog no_timer_check tsc=reliable" \
        -serial "file:$run/console" -serial stdio \
        -virtfs "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap" \
        -virtfs "local,path=$run,mount_tag=run,security_model=none" \
        </dev/null &
    qemu=$!
    waited=0
    while [ ! -e "$run/begun" ] && kill -0 "$qemu" 2>/dev/null; do
        if [ "$waited" -ge "${BOOT_SECONDS:-240}" ]; then
            kill "$qemu" 2>/dev/null || :
            wait "$qemu" || :
            qemu=
            return 125
        fi
        sleep 1
        waited=$((waited + 1))
    done
    ended=0
    wait "$qemu" || ended=$?
    qemu=
    return "$ended"
}

# An emulated machine may stop for good before its first program, with two processors and nothing to do: the kernel
# was seen to write nothing after "clocksource: tsc: mask".
for again in again again finally; do
    ended=0
    boot || ended=$?
    if [ "$ended" -ne 125 ] || [ "$again" = finally ]; then
        break
    fi
    echo "the virtual machine did not start within ${BOOT_SECONDS:-240} s, and is booted again; its kernel wrote last:" >&2
    console
done

if [ -e "$run/status" ]; then
    exit "$(cat "$run/status")"
fi
{
    if [ "$ended" -eq 125 ]; then
        echo "the virtual machine did not start within ${BOOT_SECONDS:-240} s; the last that its kernel wrote:"
    elif [ "$ended" -eq 124 ]; then
        echo "the virtual machine was ended after ${VM_SECONDS:-3600} s; the last that its kernel wrote:"
    else
        echo "the virtual machine ended before the command did (qemu: $ended); the last that its kernel wrote:"
    fi
    console
} >&2
[ "$ended" -ne 0 ] || ended=1
exit "$ended"
