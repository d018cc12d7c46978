//! The quantities of Kubernetes: `0`, `64Ki`, `1.5M`, `1e3`.

/// Parses a quantity. Returns `None` if `text` is not a quantity.
pub fn parse(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (number, suffix) = text.split_at(text.len() - (digits.len() - end));
    let number: f64 = number.parse().ok()?;
    Some(number * factor(suffix)?)
}

fn factor(suffix: &str) -> Option<f64> {
    let binary = |power| 1024f64.powi(power);
    Some(match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => 10f64.powi(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_multiply() {
        for (text, number) in
            [("0", 0.0), ("64Ki", 65536.0), ("1.5M", 1.5e6), ("-1e3", -1e3), ("+2E", 2e18)]
        {
            assert_eq!(parse(text), Some(number), "{text}");
        }
        for text in ["", "Ki", "1 Ki", "1KiB", "e3", "1e", ".", "zero"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
