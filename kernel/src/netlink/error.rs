//! Errors.

use std::{fmt, io};

/// The answer of the kernel to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelError {
    /// The error number, positive.
    pub errno: i32,
    /// The sequence number of the request.
    pub sequence: u32,
    /// The kernel's explanation.
    pub message: Option<String>,
    /// Where in the request the attribute is that the kernel minded, counted from the start of the
    /// message.
    pub offset: Option<u32>,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&errno_text(self.errno))?;
        match &self.message {
            Some(message) => write!(f, " ({message})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for KernelError {}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The answer of the system.
        source: io::Error,
    },
    /// The kernel refused a request.
    #[error("{0}")]
    Kernel(KernelError),
    /// The objects changed while they were dumped: ask again.
    #[error("the objects changed while they were read")]
    Interrupted,
    /// The receive buffer was too small, so an answer was lost.
    #[error("an answer of the kernel was lost: the receive buffer is too small")]
    Overrun,
    /// The kernel did not answer in time.
    #[error("the kernel did not answer")]
    NoAnswer,
    /// The kernel's answer makes no sense.
    #[error("an answer of the kernel cannot be understood: {0}")]
    Malformed(&'static str),
    /// A message cannot be written, as some attribute would be longer than 64 KiB.
    #[error("a message does not fit: an attribute would be longer than 64 KiB")]
    TooLong,
}

impl Error {
    /// The kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Kernel(error) => Some(error.errno),
            Self::Io { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str) -> Self {
        Self::Io { action, source: io::Error::last_os_error() }
    }
}

/// The error number at the start of an error's payload, made positive.
pub(crate) fn errno_of(payload: &[u8]) -> Option<i32> {
    let (errno, _) = payload.split_first_chunk::<4>()?;
    i32::from_ne_bytes(*errno).checked_neg()
}

/// The system's words for an error number, without the number.
fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
