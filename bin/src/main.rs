//! The `switchyard` program: see [`switchyard::cli`] for what it can be told to do.

use std::process::ExitCode;

fn main() -> ExitCode {
    switchyard::main(std::env::args_os())
}
