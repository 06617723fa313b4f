//! Dividing replicas by weight: the Webster (Sainte-Laguë) method with Karmada's tie-break.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Which of two equal claims on a seat wins once their seats are equal too. The parity of the template's uid
/// decides, so that not every workload prefers the same cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TieBreak {
    NameAscending,
    NameDescending,
}

/// 32-bit FNV-1a.
fn fnv32a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl TieBreak {
    pub fn of_uid(uid: &str) -> Self {
        if !uid.is_empty() && fnv32a(uid) & 1 == 1 { TieBreak::NameDescending } else { TieBreak::NameAscending }
    }
}

struct Party<'a> {
    name: &'a str,
    votes: i64,
    seats: i32,
    /// What its claim on the next seat is worth.
    quotient: f64,
    tie_break: TieBreak,
}

impl<'a> Party<'a> {
    fn new(name: &'a str, votes: i64, tie_break: TieBreak) -> Self {
        Party { name, votes, seats: 0, quotient: votes as f64, tie_break }
    }

    fn gets(&mut self, seats: i32) {
        self.seats += seats;
        self.quotient = self.votes as f64 / (2.0 * f64::from(self.seats) + 1.0);
    }

    /// Seats that this party gets in any case, of `seats` for `parties` with `votes` together.
    ///
    /// Claims above the quotient `votes / (2 seats - parties)` are at most `seats`, and at least `seats - parties`: all of them are
    /// met. Two claims less make up for rounding.
    fn certain(&self, seats: i32, parties: f64, votes: f64) -> i32 {
        let share = self.votes as f64 * (2.0 * f64::from(seats) - parties) / votes;
        // Saturates: below 0 nothing is certain.
        (((share - 1.0) / 2.0).floor() - 2.0).clamp(0.0, f64::from(seats)) as i32
    }
}

impl Ord for Party<'_> {
    /// The greater party gets the next seat.
    fn cmp(&self, other: &Self) -> Ordering {
        self.quotient.total_cmp(&other.quotient).then_with(|| other.seats.cmp(&self.seats)).then_with(|| {
            match self.tie_break {
                TieBreak::NameAscending => other.name.cmp(self.name),
                TieBreak::NameDescending => self.name.cmp(other.name),
            }
        })
    }
}

impl PartialOrd for Party<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Party<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Party<'_> {}

/// Gives `seats` to the names in `votes`, one at a time to the highest quotient. Sorted by name; names that got
/// nothing are listed with 0. Nothing is given when nobody has a vote.
///
/// The time depends on the number of names, not on that of seats: a template may ask for two billion replicas.
pub fn divide<'a>(
    seats: i32,
    votes: impl IntoIterator<Item = (&'a str, i64)>,
    tie_break: TieBreak,
) -> BTreeMap<&'a str, i32> {
    let parties = votes.into_iter().map(|(name, votes)| Party::new(name, votes.max(0), tie_break));
    let mut parties: Vec<Party<'a>> = parties.collect();
    let total: f64 = parties.iter().map(|party| party.votes as f64).sum();
    if total <= 0.0 {
        return BTreeMap::new();
    }
    let count = parties.len() as f64;
    for party in &mut parties {
        party.gets(party.certain(seats, count, total));
    }
    let given: i64 = parties.iter().map(|party| i64::from(party.seats)).sum();
    let mut queue = BinaryHeap::from(parties);
    for _ in given..i64::from(seats) {
        if let Some(mut next) = queue.peek_mut() {
            next.gets(1);
        }
    }
    queue.into_iter().map(|party| (party.name, party.seats)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::remainder(9, &[("a", 1), ("b", 3)], &[("a", 2), ("b", 7)])]
    #[case::thirds(9, &[("a", 1), ("b", 2)], &[("a", 3), ("b", 6)])]
    #[case::tie_goes_to_the_first_name(1, &[("b", 1), ("a", 1)], &[("a", 1), ("b", 0)])]
    #[case::no_votes(3, &[("a", 0)], &[])]
    fn divides(#[case] seats: i32, #[case] votes: &[(&str, i64)], #[case] expected: &[(&str, i32)]) {
        let divided = divide(seats, votes.iter().copied(), TieBreak::NameAscending);
        assert_eq!(divided.into_iter().collect::<Vec<_>>(), expected);
    }

    /// Seat by seat.
    fn one_by_one<'a>(seats: i32, votes: &[(&'a str, i64)], tie_break: TieBreak) -> BTreeMap<&'a str, i32> {
        let mut queue: BinaryHeap<Party<'a>> =
            votes.iter().map(|(name, votes)| Party::new(name, *votes, tie_break)).collect();
        for _ in 0..seats {
            if let Some(mut next) = queue.peek_mut() {
                next.gets(1);
            }
        }
        queue.into_iter().map(|party| (party.name, party.seats)).collect()
    }

    #[test]
    fn two_billion_seats_are_divided_at_once() {
        let divided = divide(i32::MAX, [("a", 1), ("b", 1), ("c", i64::MAX)], TieBreak::NameAscending);
        assert_eq!(divided.values().map(|seats| i64::from(*seats)).sum::<i64>(), i64::from(i32::MAX));
        let even = divide(i32::MAX, [("a", 1), ("b", 1), ("c", 1)], TieBreak::NameAscending);
        assert_eq!(even.into_values().collect::<Vec<_>>(), [715_827_883, 715_827_882, 715_827_882]);
    }

    proptest! {
        #[test]
        fn seats_are_those_of_one_by_one(
            seats in 0..3_000_i32,
            votes in proptest::collection::vec(prop_oneof![0..5_i64, 0..1_000_i64, 0..i64::MAX], 1..40),
            uid in "[a-z]{3}",
        ) {
            prop_assume!(votes.iter().any(|votes| *votes > 0));
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(votes).collect();
            let tie_break = TieBreak::of_uid(&uid);
            prop_assert_eq!(divide(seats, named.iter().copied(), tie_break), one_by_one(seats, &named, tie_break));
        }

        #[test]
        fn no_seat_is_lost_or_doubled(seats in 0..500_i32, votes in proptest::collection::vec(0..50_i64, 1..12)) {
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named = names.iter().map(String::as_str).zip(votes.iter().copied());
            let divided = divide(seats, named, TieBreak::of_uid("uid"));
            let expected = if votes.iter().all(|votes| *votes == 0) { 0 } else { seats };
            prop_assert_eq!(divided.values().sum::<i32>(), expected);
        }

        #[test]
        fn one_more_seat_moves_nobody(seats in 0..200_i32, votes in proptest::collection::vec(1..50_i64, 1..8)) {
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named = || names.iter().map(String::as_str).zip(votes.iter().copied());
            let before = divide(seats, named(), TieBreak::NameAscending);
            let after = divide(seats + 1, named(), TieBreak::NameAscending);
            prop_assert!(before.iter().all(|(name, seats)| after[name] >= *seats));
        }
    }
}
