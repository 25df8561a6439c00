//! Sets of numbers, written as ranges.

/// A set of numbers: ranges in rising order that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The set of all numbers of some ranges. Each reaches from its smaller to its larger end.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut list: Vec<_> = ranges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        list.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(list.len());
        for (first, last) in list {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// The union of this set and more ranges.
    pub(crate) fn add(&mut self, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let all = core::mem::take(&mut self.0).into_iter().chain(ranges);
        *self = Self::new(all);
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the number is in it.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after > 0 && number <= self.0[after - 1].1
    }

    /// The ranges, first to last number of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_are_merged_and_searched() {
        let set = Ranges::new([(20, 10), (5, 5), (6, 7), (15, 30), (u64::MAX, u64::MAX)]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(5, 7), (10, 30), (u64::MAX, u64::MAX)]);
        let inside = [5, 6, 7, 10, 29, 30, u64::MAX];
        let outside = [0, 4, 8, 9, 31, u64::MAX - 1];
        assert!(inside.iter().all(|n| set.contains(*n)) && !outside.iter().any(|n| set.contains(*n)));
        assert!(!Ranges::default().contains(0));
    }
}
