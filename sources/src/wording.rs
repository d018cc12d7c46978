//! The messages of decoders, without the names of Rust's types.

/// Returns a decoder's message with an integer in words, and with the value at fault, which the
/// message may leave out.
pub(crate) fn worded(message: &str, value: Option<&str>) -> String {
    if let (Some(words), Some(value)) = (message.strip_prefix("invalid ").and_then(integer), value)
    {
        return format!("`{value}` is not {words}");
    }
    match message.rsplit_once(", expected ") {
        Some((found, wanted)) => match integer(wanted) {
            Some(words) => format!("{found}, expected {words}"),
            None => message.to_owned(),
        },
        None => message.to_owned(),
    }
}

fn integer(name: &str) -> Option<String> {
    let bits = name.strip_prefix(['i', 'u'])?;
    ["8", "16", "32", "64"].contains(&bits).then(|| format!("a whole number of {bits} bits"))
}
