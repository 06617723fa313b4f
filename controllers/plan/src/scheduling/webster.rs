//! Weighted division of replicas by the Webster (Sainte-Laguë) method with Karmada's tie-breaking.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Tie-break between equal quotients and equal seats. It depends on the parity of a hash of the template's UID, so
/// that not all workloads prefer the same cluster.
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
    pub fn from_uid(uid: &str) -> Self {
        if !uid.is_empty() && fnv32a(uid) & 1 == 1 { TieBreak::NameDescending } else { TieBreak::NameAscending }
    }
}

/// A cluster in the division: its weight are votes, its replicas seats.
struct Party<'a> {
    name: &'a str,
    votes: i64,
    seats: i32,
    /// Priority for the next seat.
    quotient: f64,
    tie_break: TieBreak,
}

impl<'a> Party<'a> {
    fn new(name: &'a str, votes: i64, tie_break: TieBreak) -> Self {
        Party { name, votes, seats: 0, quotient: votes as f64, tie_break }
    }

    fn add_seats(&mut self, seats: i32) {
        self.seats += seats;
        self.quotient = self.votes as f64 / (2.0 * f64::from(self.seats) + 1.0);
    }

    /// Number of seats that this party gets in any case, out of `seats` for `parties` with `votes` in total.
    ///
    /// At most `seats` and at least `seats - parties` quotients are above `votes / (2 seats - parties)`, so all of
    /// them get a seat. Subtracting two covers rounding errors.
    fn guaranteed_seats(&self, seats: i32, parties: f64, votes: f64) -> i32 {
        let share = self.votes as f64 * (2.0 * f64::from(seats) - parties) / votes;
        // Saturates at 0.
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

/// Distributes `seats` by votes, each to the highest quotient. The result is sorted by name and contains names
/// without seats as 0. Without any votes, no seat is distributed.
///
/// The running time depends on the number of names, not of seats, because a template may request two billion
/// replicas.
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
        party.add_seats(party.guaranteed_seats(seats, count, total));
    }
    let assigned_seats: i64 = parties.iter().map(|party| i64::from(party.seats)).sum();
    let mut queue = BinaryHeap::from(parties);
    for _ in assigned_seats..i64::from(seats) {
        if let Some(mut next) = queue.peek_mut() {
            next.add_seats(1);
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

    /// Reference implementation that distributes single seats.
    fn one_by_one<'a>(seats: i32, votes: &[(&'a str, i64)], tie_break: TieBreak) -> BTreeMap<&'a str, i32> {
        let mut queue: BinaryHeap<Party<'a>> =
            votes.iter().map(|(name, votes)| Party::new(name, *votes, tie_break)).collect();
        for _ in 0..seats {
            if let Some(mut next) = queue.peek_mut() {
                next.add_seats(1);
            }
        }
        queue.into_iter().map(|party| (party.name, party.seats)).collect()
    }

    #[test]
    fn two_billion_seats_are_divided_quickly() {
        let divided = divide(i32::MAX, [("a", 1), ("b", 1), ("c", i64::MAX)], TieBreak::NameAscending);
        assert_eq!(divided.values().map(|seats| i64::from(*seats)).sum::<i64>(), i64::from(i32::MAX));
        let even = divide(i32::MAX, [("a", 1), ("b", 1), ("c", 1)], TieBreak::NameAscending);
        assert_eq!(even.into_values().collect::<Vec<_>>(), [715_827_883, 715_827_882, 715_827_882]);
    }

    proptest! {
        #[test]
        fn result_equals_the_reference_implementation(
            seats in 0..3_000_i32,
            votes in proptest::collection::vec(prop_oneof![0..5_i64, 0..1_000_i64, 0..i64::MAX], 1..40),
            uid in "[a-z]{3}",
        ) {
            prop_assume!(votes.iter().any(|votes| *votes > 0));
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(votes).collect();
            let tie_break = TieBreak::from_uid(&uid);
            prop_assert_eq!(divide(seats, named.iter().copied(), tie_break), one_by_one(seats, &named, tie_break));
        }

        #[test]
        fn all_seats_are_distributed_once(seats in 0..500_i32, votes in proptest::collection::vec(0..50_i64, 1..12)) {
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named = names.iter().map(String::as_str).zip(votes.iter().copied());
            let divided = divide(seats, named, TieBreak::from_uid("uid"));
            let expected = if votes.iter().all(|votes| *votes == 0) { 0 } else { seats };
            prop_assert_eq!(divided.values().sum::<i32>(), expected);
        }

        #[test]
        fn additional_seat_reduces_no_share(seats in 0..200_i32, votes in proptest::collection::vec(1..50_i64, 1..8)) {
            let names: Vec<String> = (0..votes.len()).map(|index| format!("m{index}")).collect();
            let named = || names.iter().map(String::as_str).zip(votes.iter().copied());
            let before = divide(seats, named(), TieBreak::NameAscending);
            let after = divide(seats + 1, named(), TieBreak::NameAscending);
            prop_assert!(before.iter().all(|(name, seats)| after[name] >= *seats));
        }
    }
}
