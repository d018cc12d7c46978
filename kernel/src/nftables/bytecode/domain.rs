//! Sets of the values that a field of a packet may have.

use std::sync::Arc;

/// Values, as sorted intervals that neither overlap nor touch. A clone is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Domain(Arc<[(u128, u128)]>);

impl Domain {
    /// Returns the values of these intervals, in any order, whose ends are included.
    pub fn new(intervals: impl IntoIterator<Item = (u128, u128)>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some((_, end)) if end.checked_add(1).is_none_or(|next| first <= next) => {
                    *end = last.max(*end);
                }
                _ => merged.push((first, last)),
            }
        }
        Self(merged.into())
    }

    /// Returns one value.
    pub fn one(value: u128) -> Self {
        Self(Arc::new([(value, value)]))
    }

    /// Returns all values of so many bits, up to 128.
    pub fn all(bits: u32) -> Self {
        Self(Arc::new([(0, low_bits(bits))]))
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the smallest value.
    pub fn first(&self) -> Option<u128> {
        self.0.first().map(|(first, _)| *first)
    }

    /// Returns the only value; `None` if there is none, or several.
    pub fn single(&self) -> Option<u128> {
        match *self.0 {
            [(first, last)] if first == last => Some(first),
            _ => None,
        }
    }

    /// Whether there is this value.
    pub fn contains(&self, value: u128) -> bool {
        let next = self.0.partition_point(|(_, last)| *last < value);
        self.0.get(next).is_some_and(|(first, _)| *first <= value)
    }

    /// Returns the values of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let (few, many) = if self.0.len() < other.0.len() { (self, other) } else { (other, self) };
        let mut common = Vec::new();
        for &(first, last) in few.0.iter() {
            let start = many.0.partition_point(|(_, end)| *end < first);
            let meets = many.0[start..].iter().take_while(|(begin, _)| *begin <= last);
            common.extend(meets.map(|(begin, end)| (first.max(*begin), last.min(*end))));
        }
        Self(common.into())
    }

    /// Returns the values that `other` lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for &(first, last) in self.0.iter() {
            let start = other.0.partition_point(|(_, end)| *end < first);
            // The first value that is not decided about; `None` behind the largest one.
            let mut open = Some(first);
            for &(begin, end) in other.0[start..].iter().take_while(|(begin, _)| *begin <= last) {
                if let Some(from) = open
                    && from < begin
                {
                    left.push((from, begin - 1));
                }
                open = end.checked_add(1);
            }
            left.extend(open.filter(|from| *from <= last).map(|from| (from, last)));
        }
        Self(left.into())
    }

    /// Returns the values within and those without.
    pub fn split(&self, by: &Self) -> (Self, Self) {
        (self.and(by), self.without(by))
    }
}

/// The number whose lowest bits are set.
pub(super) fn low_bits(bits: u32) -> u128 {
    u128::MAX.checked_shr(128 - bits.min(128)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_cut_and_joined() {
        let all = Domain::all(8);
        let some = Domain::new([(20, 29), (0, 9), (10, 12), (25, 40), (255, 255)]);
        assert_eq!(some, Domain::new([(0, 12), (20, 40), (255, 255)]));
        let rest = all.without(&some);
        assert_eq!(rest, Domain::new([(13, 19), (41, 254)]));
        assert_eq!(all.and(&some), some);
        assert!(rest.and(&some).is_empty() && some.without(&all).is_empty());
        assert_eq!(all.without(&rest), some);
        assert!(some.contains(255) && !some.contains(41) && some.contains(0));
        assert_eq!(Domain::one(7).single(), Some(7));
        let whole = Domain::all(128);
        let (low, high) = whole.split(&Domain::new([(0, 1 << 100)]));
        assert_eq!(whole.without(&low), high);
        assert_eq!(high.without(&whole), Domain::new([]));
        assert_eq!(Domain::all(0).single(), Some(0));
    }
}
