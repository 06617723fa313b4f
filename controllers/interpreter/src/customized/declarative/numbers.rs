//! Large integers in Lua, which has doubles for all numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Number, Value as Json};

/// From this magnitude on, several integers convert to the same double.
const MIN_INEXACT: u128 = 1 << 53;

/// The large integers in the arguments of a call. Each is assigned a different double, so that a script that copies or
/// moves one does not change it. Integers with the same nearest double have adjacent doubles in the order of the
/// integers.
#[derive(Debug, Default)]
pub(super) struct LargeIntegers {
    doubles: BTreeMap<i128, f64>,
    /// By the bits of their double.
    integers: HashMap<u64, i128>,
}

impl LargeIntegers {
    pub(super) fn collect(arguments: &[&Json]) -> Self {
        let mut integers = BTreeSet::new();
        arguments.iter().for_each(|argument| collect_integers(argument, &mut integers));
        let mut large_integers = LargeIntegers::default();
        let (negative, positive): (Vec<i128>, Vec<i128>) = integers.into_iter().partition(|integer| *integer < 0);
        large_integers.assign(positive.into_iter());
        large_integers.assign(negative.into_iter().rev());
        large_integers
    }

    /// Assigns doubles to integers of one sign in the order of their magnitudes.
    fn assign(&mut self, integers: impl Iterator<Item = i128>) {
        let mut smallest = 0.0_f64;
        for integer in integers {
            let magnitude = (integer.unsigned_abs() as f64).max(smallest);
            smallest = magnitude.next_up();
            let double = if integer < 0 { -magnitude } else { magnitude };
            self.doubles.insert(integer, double);
            self.integers.insert(double.to_bits(), integer);
        }
    }

    /// The double that represents a number of the arguments.
    pub(super) fn to_double(&self, number: &Number) -> f64 {
        let assigned = large_integer(number).and_then(|integer| self.doubles.get(&integer)).copied();
        assigned.or_else(|| number.as_f64()).unwrap_or_default()
    }

    /// The number that a double of a result represents. `source` is the number in the same position of the arguments.
    pub(super) fn to_number(&self, double: f64, source: Option<&Number>) -> Option<Number> {
        let unchanged = source.filter(|source| large_integer(source).is_none() && source.as_f64() == Some(double));
        unchanged.cloned().or_else(|| self.integers.get(&double.to_bits()).copied().and_then(Number::from_i128))
    }
}

/// The value of an integer that may share its double with others.
fn large_integer(number: &Number) -> Option<i128> {
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    integer.filter(|integer| integer.unsigned_abs() >= MIN_INEXACT)
}

fn collect_integers(json: &Json, integers: &mut BTreeSet<i128>) {
    match json {
        Json::Number(number) => integers.extend(large_integer(number)),
        Json::Array(items) => items.iter().for_each(|item| collect_integers(item, integers)),
        Json::Object(fields) => fields.values().for_each(|value| collect_integers(value, integers)),
        Json::Null | Json::Bool(_) | Json::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        /// Any set of integers has distinct doubles in the same order, from which the integers are read back.
        #[test]
        fn large_integers_are_read_back(
            integers in prop::collection::vec(
                prop_oneof![any::<i64>(), (-3..3_i64).prop_map(|offset| (1 << 53) + offset), (-3..3_i64).prop_map(|offset| offset - (1 << 60))],
                1..20,
            )
        ) {
            let argument = json!({"integers": integers, "largest": u64::MAX, "smallest": i64::MIN, "next": i64::MIN + 1});
            let large = LargeIntegers::collect(&[&argument]);
            let doubles: Vec<f64> = integers.iter().map(|integer| large.to_double(&Number::from(*integer))).collect();
            for (integer, double) in integers.iter().zip(&doubles) {
                if integer.unsigned_abs() >= 1 << 53 {
                    prop_assert_eq!(large.to_number(*double, None), Some(Number::from(*integer)));
                }
                for (other, other_double) in integers.iter().zip(&doubles) {
                    prop_assert_eq!(integer.cmp(other), double.total_cmp(other_double));
                }
            }
        }
    }

    #[test]
    fn floats_keep_their_form() {
        let argument = json!([9_007_199_254_740_992_i64, 9_007_199_254_740_992.0, 1.0]);
        let large = LargeIntegers::collect(&[&argument]);
        for item in argument.as_array().expect("a list") {
            let number = item.as_number().expect("a number");
            assert_eq!(large.to_number(large.to_double(number), Some(number)).as_ref(), Some(number));
        }
    }
}
