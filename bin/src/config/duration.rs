//! Durations in the text form of Go: `30s`, `1h0m0s`, `1.5ms`.
//!
//! KubeProxyConfiguration and the flags have values of Go's type `time.Duration`, in the text form
//! of `time.ParseDuration` and `Duration.String`. The grammar is Go's: an optional sign, then one
//! or more decimal numbers with a unit each, or a bare `0`.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A signed number of nanoseconds, as in Go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

/// Why a text is not a duration, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text has another form, or the value is out of range.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A number has a unit that Go does not have, such as days.
    #[error("time: unknown unit {0:?} in duration {1:?}")]
    UnknownUnit(String, String),
}

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

impl GoDuration {
    /// The zero duration, which means "the default" in most fields of the configuration.
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds * SECOND)
    }

    pub fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Converts to the standard library's type. A negative duration becomes zero.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(self.0.try_into().unwrap_or(0))
    }
}

fn unit_nanos(unit: &str) -> Option<i64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

/// Splits `text` after the leading characters that satisfy `belongs`.
fn split_leading(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (whole, after) = split_leading(rest, |c| c.is_ascii_digit());
            let (fraction, after) = match after.strip_prefix('.') {
                Some(after) => split_leading(after, |c| c.is_ascii_digit()),
                None => ("", after),
            };
            if whole.is_empty() && fraction.is_empty() {
                return Err(invalid());
            }
            let (unit, after) = split_leading(after, |c| c != '.' && !c.is_ascii_digit());
            if unit.is_empty() {
                return Err(DurationError::MissingUnit(text.to_owned()));
            }
            let nanos = unit_nanos(unit)
                .ok_or_else(|| DurationError::UnknownUnit(unit.to_owned(), text.to_owned()))?;
            total += number_of(whole, fraction, nanos).ok_or_else(invalid)?;
            // The most negative value has no positive counterpart.
            if total > 1 << 63 {
                return Err(invalid());
            }
            rest = after;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed).map(Self).map_err(|_| invalid())
    }
}

/// Returns `whole.fraction` times `nanos`, or `None` if the product is out of range. Digits of the
/// fraction below a nanosecond are dropped.
fn number_of(whole: &str, fraction: &str, nanos: i64) -> Option<i128> {
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.into() };
    let digits = &fraction[..fraction.len().min(18)];
    let part: i128 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let scale = 10i128.pow(digits.len() as u32);
    Some(whole * i128::from(nanos) + part * i128::from(nanos) / scale)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let nanos = self.0.unsigned_abs();
        let decimal = |f: &mut fmt::Formatter<'_>, value: u64, unit: u64, name: &str| {
            write!(f, "{}", value / unit)?;
            let digits = unit.ilog10() as usize;
            if !value.is_multiple_of(unit) {
                let fraction = format!("{:0digits$}", value % unit);
                write!(f, ".{}", fraction.trim_end_matches('0'))?;
            }
            f.write_str(name)
        };
        let (second, minute, hour) = (SECOND as u64, MINUTE as u64, HOUR as u64);
        match nanos {
            n if n < MICROSECOND as u64 => write!(f, "{n}ns"),
            n if n < MILLISECOND as u64 => decimal(f, n, MICROSECOND as u64, "\u{b5}s"),
            n if n < second => decimal(f, n, MILLISECOND as u64, "ms"),
            n => {
                if n >= hour {
                    write!(f, "{}h", n / hour)?;
                }
                if n >= minute {
                    write!(f, "{}m", n % hour / minute)?;
                }
                decimal(f, n % minute, second, "s")
            }
        }
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn parsed(text: &str) -> i64 {
        text.parse::<GoDuration>().unwrap_or_else(|error| panic!("{text}: {error}")).0
    }

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("30s", 30 * SECOND),
            ("5.s", 5 * SECOND),
            (".5s", SECOND / 2),
            ("1.004s", SECOND + 4 * MILLISECOND),
            ("1h0m0s", HOUR),
            ("3h30m", 3 * HOUR + 30 * MINUTE),
            ("-1.5h", -(HOUR + 30 * MINUTE)),
            ("+5s", 5 * SECOND),
            ("10.5s4m", 4 * MINUTE + 10 * SECOND + SECOND / 2),
            ("1us", MICROSECOND),
            ("1\u{b5}s", MICROSECOND),
            ("1\u{3bc}s", MICROSECOND),
            ("0.3333333333333333333h", 20 * MINUTE - 1),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("2562047h47m16.854775807s", i64::MAX),
        ] {
            assert_eq!(parsed(text), nanos, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for (text, message) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("s", "time: invalid duration \"s\""),
            ("3", "time: missing unit in duration \"3\""),
            ("1h1", "time: missing unit in duration \"1h1\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1 s", "time: unknown unit \" s\" in duration \"1 s\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("99999999999999999999s", "time: invalid duration \"99999999999999999999s\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn prints_as_go_prints_and_reads_it_back() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (30 * SECOND, "30s"),
            (3 * SECOND + 300 * MILLISECOND, "3.3s"),
            (15 * MINUTE, "15m0s"),
            (24 * HOUR, "24h0m0s"),
            (-(4 * HOUR + 5 * SECOND + 1), "-4h0m5.000000001s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration(nanos).to_string(), text);
            assert_eq!(parsed(text), nanos, "{text}");
        }
    }
}
