//! Bearer tokens.

use std::io;

use hyper::header::HeaderValue;

/// Returns a token without the white space around it.
pub(super) fn usable_token(text: &str) -> io::Result<String> {
    let invalid = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message.to_owned());
    match text.trim() {
        "" => Err(invalid("there is no token")),
        // `kube` panics.
        token if HeaderValue::from_str(token).is_err() => {
            Err(invalid("the token holds characters that no header may have"))
        }
        token => Ok(token.to_owned()),
    }
}
