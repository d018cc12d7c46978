//! Refusals of the kernel, in words. The numbers above 4096 are those of IP sets alone, for which
//! the system has no words.

use crate::{Error, KernelError};

use crate::ipset::abi::error;

/// Adds words to an error of the kernel that has none.
pub(crate) fn explained(error: Error) -> Error {
    match error {
        Error::Kernel(mut error) => {
            error.message = error.message.or_else(|| words(error.errno).map(str::to_owned));
            Error::Kernel(error)
        }
        error => error,
    }
}

/// Returns what the kernel means by an error number.
pub(crate) fn text(errno: i32) -> String {
    match words(errno) {
        Some(words) => words.to_owned(),
        None => KernelError { errno, sequence: 0, message: None, offset: None }.to_string(),
    }
}

fn words(errno: i32) -> Option<&'static str> {
    Some(match errno {
        error::PROTOCOL => {
            "the kernel does not understand the command, or the entry is none of such a set"
        }
        error::NO_TYPE => "the kernel has no such type of sets",
        error::TOO_MANY_SETS => "the kernel has no room for more sets",
        error::BUSY => "the set is in use",
        error::NO_SECOND_SET => "the second set does not exist",
        error::OTHER_TYPE => "the sets are of different types",
        error::PREFIX => "a network of all addresses cannot be an entry",
        error::FULL => "the set is full",
        libc::ENOENT => "there is no such set",
        _ => return None,
    })
}
