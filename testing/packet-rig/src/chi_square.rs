//! Pearson's chi-square test: whether numbers of answers are what their shares let one expect.
//!
//! Of n requests, an endpoint with share p is expected to answer n·p. The statistic is the sum of
//! (observed − expected)² / expected over all endpoints; for k endpoints it is distributed as χ²
//! with k − 1 degrees of freedom, as long as no expected number is small. A sample is rejected if
//! χ² is at least as great with a probability below [`FALSE_ALARM`] only.
//!
//! The distribution is an approximation: small expected numbers make false alarms more likely than
//! [`FALSE_ALARM`]. With [`LEAST_EXPECTED`] they are less than a hundred times as likely (a unit
//! test computes how likely exactly), which is still one in ten million.

/// The probability with which a sample from the expected shares is rejected.
pub const FALSE_ALARM: f64 = 1e-9;

/// The smallest expected number of answers of an endpoint for which the test may be used.
pub const LEAST_EXPECTED: f64 = 40.0;

/// A sample that does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unlikely {
    /// The statistic.
    pub chi_square: f64,
    /// The probability of a statistic as great as this.
    pub probability: f64,
}

/// Compares the numbers of answers with their shares, which may have any sum.
///
/// # Errors
///
/// If the numbers differ from what the shares let one expect by more than chance explains.
pub fn test(observed: &[u64], shares: &[u32]) -> Result<(), Unlikely> {
    let chi_square = statistic(observed, shares);
    let probability = probability(chi_square, observed.len().saturating_sub(1));
    match probability < FALSE_ALARM {
        true => Err(Unlikely { chi_square, probability }),
        false => Ok(()),
    }
}

fn statistic(observed: &[u64], shares: &[u32]) -> f64 {
    let requests: u64 = observed.iter().sum();
    let all: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let term = |(observed, share): (&u64, &u32)| {
        let expected = requests as f64 * f64::from(*share) / all as f64;
        (*observed as f64 - expected).powi(2) / expected
    };
    observed.iter().zip(shares).map(term).sum()
}

/// The probability that χ² with so many degrees of freedom is at least `x`: the regularized upper
/// incomplete gamma function Q(freedom/2, x/2), in the closed form that it has for halves of whole
/// numbers. One term follows from the one before: Q(a + 1, y) = Q(a, y) + y^a·e^-y / Γ(a + 1).
fn probability(x: f64, freedom: usize) -> f64 {
    if freedom == 0 {
        return 1.0;
    }
    let y = x / 2.0;
    let (mut a, mut probability) = match freedom % 2 {
        0 => (1.0, (-y).exp()),
        _ => (0.5, complementary_error(y.sqrt())),
    };
    // y^a·e^-y / Γ(a + 1), where Γ(2) = 1 and Γ(3/2) = √π/2.
    let mut term = match freedom % 2 {
        0 => y * (-y).exp(),
        _ => 2.0 * (y / std::f64::consts::PI).sqrt() * (-y).exp(),
    };
    while 2.0 * a < freedom as f64 {
        probability += term;
        a += 1.0;
        term *= y / a;
    }
    probability
}

/// The complementary error function of a number that is not negative: below 2 by the series of erf
/// (Abramowitz and Stegun 7.1.6), above by the continued fraction of erfc (7.1.14). Both are exact
/// to ten digits.
fn complementary_error(z: f64) -> f64 {
    let scale = (-z * z).exp() / std::f64::consts::PI.sqrt();
    if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= 2.0 * z * z / f64::from(2 * n + 1);
            sum += term;
        }
        return 1.0 - 2.0 * scale * sum;
    }
    let fraction = (1..=80).rev().fold(z, |rest, n| z + f64::from(n) / 2.0 / rest);
    scale / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_close(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 1e-4, "{value} is not {wanted}");
    }

    /// Critical values as tables of the distribution have them.
    #[test]
    fn probabilities_are_those_of_tables() {
        for (freedom, x, probability_of_x) in [
            (1, 3.841_459, 0.05),
            (1, 6.634_897, 0.01),
            (1, 10.827_57, 0.001),
            (2, 5.991_465, 0.05),
            (3, 16.266_24, 0.001),
            (4, 9.487_729, 0.05),
            (10, 29.588_30, 0.001),
            (11, 19.675_14, 0.05),
        ] {
            assert_close(probability(x, freedom), probability_of_x);
        }
        // Far out: erfc(√18) = 1.9732e-9, which is six standard deviations on both sides.
        assert_close(probability(36.0, 1), 1.973_175e-9);
        assert_close(probability(44.0, 2), (-22.0f64).exp());
        // Both forms of the error function meet.
        assert_close(complementary_error(1.999_999), complementary_error(2.000_001));
    }

    #[test]
    fn shares_that_differ_are_told_apart() {
        assert_eq!(test(&[1400, 600], &[7, 3]), Ok(()));
        assert_eq!(test(&[1480, 520], &[7, 3]), Ok(()));
        assert!(test(&[1530, 470], &[7, 3]).is_err());
        assert!(test(&[1000, 1000], &[7, 3]).is_err());
        assert!(test(&[5000, 0], &[99, 1]).is_err());
        assert!(test(&[500, 500, 500, 500], &[1, 1, 1, 1]).is_ok());
        assert!(test(&[650, 450, 450, 450], &[1, 1, 1, 1]).is_err());
    }

    /// The probability of a false alarm for an endpoint of which as few answers as allowed are
    /// expected, and whose share is so small that their number has Poisson's distribution.
    #[test]
    fn small_samples_are_judged_almost_as_well() {
        let expected = LEAST_EXPECTED;
        let mut of_number = (-expected).exp();
        let mut false_alarms = 0.0;
        for number in 0..400 {
            if number > 0 {
                of_number *= expected / f64::from(number);
            }
            if probability((f64::from(number) - expected).powi(2) / expected, 1) < FALSE_ALARM {
                false_alarms += of_number;
            }
        }
        assert!(false_alarms > FALSE_ALARM && false_alarms < 100.0 * FALSE_ALARM, "{false_alarms}");
    }
}
