//! The annotation of a Service that asks for slow start: `switchyard/slow-start: 30s`.

use std::{ops::RangeInclusive, time::Duration};

use super::{problem::Problems, values::clip};
use crate::objects::Metadata;

/// The annotation.
pub(crate) const SLOW_START: &str = "switchyard/slow-start";

/// The windows that can be asked for.
const WINDOWS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Returns the time in which a new endpoint reaches its full share; `None` if the Service does not
/// ask for slow start, or asks for a time that cannot be used, which is added to `problems`.
pub(crate) fn parse(metadata: &Metadata, problems: &mut Problems) -> Option<Duration> {
    let text = metadata.annotations.get(SLOW_START)?;
    let window = duration(text.trim()).filter(|window| WINDOWS.contains(window));
    if window.is_none() {
        problems.add(
            format!("metadata.annotations[{SLOW_START}]"),
            format_args!(
                "`{}` is no time such as 30s or 1m30s, from 1s to 1h; new endpoints get their full \
                 share at once",
                clip(text.trim())
            ),
        );
    }
    window
}

/// Parses a duration of Go in whole numbers: `90s`, `1m30s`, `1500ms`. Returns `None` for another
/// text, and for durations that are far too long.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at(digits);
        let end = unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len());
        let millis: u64 = match &unit[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        sum = number.parse::<u64>().ok()?.checked_mul(millis)?.checked_add(sum)?;
        rest = &unit[end..];
    }
    (!text.is_empty()).then(|| Duration::from_millis(sum))
}
