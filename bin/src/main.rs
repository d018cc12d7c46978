//! The `switchyard` program. [`switchyard::main`] does all the work.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    switchyard::main(std::env::args_os())
}
