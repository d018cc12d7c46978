//! The `switchyard` program. [`switchyard_agent::main`] does all the work.

#![deny(unsafe_code)]

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// The C library's allocator would keep what a list took while it was decoded, three times as much
/// as what stays.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// jemalloc's settings. There is one arena, as threads hand objects to each other and most of the
/// time one of them works; and pages that become free go back to the kernel at once, also if
/// nothing is allocated after that. The name is the variable's that jemalloc reads.
// SAFETY: jemalloc declares this variable as a weak pointer to a C string. A reference to an array
// is a pointer to the first of its bytes, which end with zero.
#[allow(unsafe_code, non_upper_case_globals)]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static malloc_conf: &[u8; 44] = b"narenas:1,dirty_decay_ms:0,muzzy_decay_ms:0\0";

fn main() -> ExitCode {
    switchyard_agent::main(std::env::args_os())
}
