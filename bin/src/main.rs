//! The `switchyard` program. [`switchyard_agent::main`] does all the work.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    switchyard_agent::main(std::env::args_os())
}
