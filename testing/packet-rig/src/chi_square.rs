//! Pearson's chi-square test: whether numbers of answers are what their shares let one expect.
//!
//! Of n requests, an endpoint with share p is expected to answer n·p. The statistic is the sum of
//! (observed − expected)² / expected over all endpoints; for k endpoints it is distributed as χ²
//! with k − 1 degrees of freedom, as long as no expected number is small. A sample is rejected if
//! χ² is as great by chance once in a thousand million times only, or, with as few expected answers
//! as [`LEAST_EXPECTED`], once in ten million times.

/// The smallest expected number of answers of an endpoint for which the test may be used.
pub const LEAST_EXPECTED: f64 = 40.0;

/// The values that χ² exceeds with a probability of 1e-9, for 1 to 11 degrees of freedom.
const CRITICAL: [f64; 11] =
    [37.32, 41.45, 44.84, 47.88, 50.69, 53.34, 55.87, 58.31, 60.66, 62.95, 65.17];

/// Compares the numbers of answers of two to twelve endpoints with their shares, which may have any
/// sum.
///
/// # Errors
///
/// The statistic, if the numbers differ from what the shares let one expect by more than chance
/// explains.
pub fn test(observed: &[u64], shares: &[u32]) -> Result<(), f64> {
    let requests: u64 = observed.iter().sum();
    let all: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let term = |(observed, share): (&u64, &u32)| {
        let expected = requests as f64 * f64::from(*share) / all as f64;
        (*observed as f64 - expected).powi(2) / expected
    };
    let chi_square = observed.iter().zip(shares).map(term).sum();
    match chi_square < CRITICAL[observed.len() - 2] {
        true => Ok(()),
        false => Err(chi_square),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_that_differ_are_told_apart() {
        assert_eq!(test(&[1400, 600], &[7, 3]), Ok(()));
        assert_eq!(test(&[1480, 520], &[7, 3]), Ok(()));
        assert!(test(&[1530, 470], &[7, 3]).is_err());
        assert!(test(&[5000, 0], &[99, 1]).is_err());
        assert!(test(&[500, 500, 500, 500], &[1, 1, 1, 1]).is_ok());
        assert!(test(&[650, 450, 450, 450], &[1, 1, 1, 1]).is_err());
    }
}
