//! Comparison of resourceVersions. Clients may compare decimal numbers, of any length; all other versions are opaque.

use std::cmp::Ordering;

/// Compares two versions; None if one of them is opaque.
pub fn compare(left: &str, right: &str) -> Option<Ordering> {
    let are_numbers = is_number(left) && is_number(right);
    are_numbers.then(|| left.len().cmp(&right.len()).then_with(|| left.cmp(right)))
}

/// True if `version` is older; false if one of them is opaque.
pub fn is_older(version: &str, than: &str) -> bool {
    compare(version, than) == Some(Ordering::Less)
}

fn is_number(version: &str) -> bool {
    !version.is_empty() && !version.starts_with('0') && version.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::less("9", "10", Some(Ordering::Less))]
    #[case::more("11", "10", Some(Ordering::Greater))]
    #[case::same("10", "10", Some(Ordering::Equal))]
    #[case::longer_than_any_integer("99999999999999999999999999", "100000000000000000000000000", Some(Ordering::Less))]
    #[case::opaque("abc", "10", None)]
    #[case::composite("10", "member1:10", None)]
    #[case::empty("", "10", None)]
    #[case::zero_means_any("0", "10", None)]
    #[case::not_canonical("010", "9", None)]
    fn versions_compare_as_numbers(#[case] left: &str, #[case] right: &str, #[case] expected: Option<Ordering>) {
        assert_eq!(compare(left, right), expected);
        assert_eq!(is_older(left, right), expected == Some(Ordering::Less));
    }
}
