//! Tests of quantities.

use super::*;
use proptest::prelude::*;
use rstest::rstest;

#[rstest]
#[case("0", "0")]
#[case("0Ki", "0")]
#[case("1", "1")]
#[case("+5", "5")]
#[case("-5", "-5")]
#[case("0.5", "500m")]
#[case("1.5", "1500m")]
#[case("1000m", "1")]
#[case("100m", "100m")]
#[case("0.0001", "100u")]
#[case("0.1n", "1n")]
#[case("1000", "1k")]
#[case("1001", "1001")]
#[case("1000000k", "1G")]
#[case("12E", "12E")]
#[case("12e6", "12e6")]
#[case("1e1", "10")]
#[case("100e-5", "1e-3")]
#[case("1024", "1024")]
#[case("1Ki", "1Ki")]
#[case("1024Mi", "1Gi")]
#[case("1.5Gi", "1536Mi")]
#[case("0.5Ki", "512")]
#[case("1000Ki", "1000Ki")]
#[case("0.0001Ki", "102400u")]
#[case("100Ei", "9223372036854775807")]
#[case("9223372036854775807", "9223372036854775807")]
fn quantities_print_in_canonical_form(#[case] written: &str, #[case] canonical: &str) {
    assert_eq!(Quantity::parse(written).unwrap().to_string(), canonical, "{written}");
}

#[rstest]
#[case("", QuantityError::Format)]
#[case("1.1.M", QuantityError::Format)]
#[case("1+1.0M", QuantityError::Format)]
#[case("0.1mi", QuantityError::Suffix)]
#[case("aoeu", QuantityError::Format)]
#[case(".5i", QuantityError::Suffix)]
#[case("-3.01e-", QuantityError::Suffix)]
#[case("1 Gi", QuantityError::Format)]
#[case("1e9223372036854775808", QuantityError::Suffix)]
fn malformed_quantities_are_rejected(#[case] written: &str, #[case] error: QuantityError) {
    assert_eq!(Quantity::parse(written), Err(error), "{written}");
}

/// Quantities that Go prints incorrectly: it has no suffix for a thousand `E`, so it prints `1000E` as 1.
const UNLIKE_GO: [&str; 1] = ["1000E"];

/// The forms were recorded from Go's implementation, which prints some quantities as written and others canonically.
#[test]
fn canonical_forms_match_go() {
    let lines = include_str!("../fixtures/quantities.tsv").lines().filter(|line| !line.starts_with('#'));
    let differs = lines.filter_map(|line| {
        let (written, expected) = line.split_once('\t').unwrap();
        let actual = Quantity::canonicalize(written).unwrap_or_else(|_| "!".to_owned());
        (actual != expected).then_some(written)
    });
    assert_eq!(differs.collect::<Vec<_>>(), UNLIKE_GO);
}

/// Shorthand for a digit that is repeated.
fn repeat(digit: char, count: usize) -> String {
    String::from(digit).repeat(count)
}

/// The value in units of 10⁻⁹, rounded away from zero, and the canonical form. All digits are significant, as in Go's `inf.Dec`.
#[rstest]
#[case::fine_rest(format!("1.{}1", repeat('0', 36)), 1_000_000_001, "1000000001n")]
#[case::fine_rest_of_a_negative(format!("-1.{}1", repeat('0', 36)), -1_000_000_001, "-1000000001n")]
#[case::trailing_zeros(format!("1.5{}", repeat('0', 5_000)), 1_500_000_000, "1500m")]
#[case::many_places("12345678901.123456789012345678901234567890".into(), 12_345_678_901_123_456_790, "12345678901123456790n")]
#[case::carry(format!("0.{}", repeat('9', 60)), 1_000_000_000, "1")]
#[case::tiny(format!("0.{}1", repeat('0', 5_000)), 1, "1n")]
#[case::tiny_exponent("123e-2147483648".into(), 1, "1e-9")]
#[case::exponent_after_zeros(format!("0.{}1e41", repeat('0', 40)), 1_000_000_000, "1")]
#[case::exponent_before_zeros(format!("1{}e-40", repeat('0', 40)), 1_000_000_000, "1")]
#[case::exponent_and_rest(format!("1{}1e-41", repeat('0', 40)), 1_000_000_001, "1000000001e-9")]
#[case::small_exponent("1.0001e-7".into(), 101, "101e-9")]
#[case::suffix_and_rest(format!("2.{}1k", repeat('0', 40)), 2_000_000_000_001, "2000000000001n")]
#[case::leading_zeros(format!("{}7000", repeat('0', 100)), 7_000_000_000_000, "7k")]
#[case::zero(format!("{0}.{0}Ki", repeat('0', 100)), 0, "0")]
#[case::binary_places(format!("0.{}Ki", repeat('3', 50)), 341_333_333_334, "341333333334n")]
#[case::binary_carry(format!("0.{}Ki", repeat('9', 40)), 1_024_000_000_000, "1Ki")]
#[case::binary_rest(format!("1.{}1Gi", repeat('0', 60)), 1_073_741_824_000_000_001, "1073741824000000001n")]
#[case::binary_exact(format!("0.0009765625{}Ei", repeat('0', 60)), (1 << 50) * NANO, "1Pi")]
#[case::binary_tiny(format!("0.{}1Ei", repeat('0', 60)), 1, "1n")]
#[case::binary_limit(format!("-{}.5Ei", repeat('9', 40)), -i128::from(i64::MAX) * NANO, "-9223372036854775807")]
#[case::truncated_exponent("3e4294967296".into(), 3_000_000_000, "3e4294967296")]
#[case::negative_truncated_exponent("30e-4294967295".into(), 300_000_000_000, "300")]
#[case::limit("1e30".into(), i128::MAX, "1e30")]
fn no_digit_is_ignored(#[case] written: String, #[case] nano: i128, #[case] canonical: &str) {
    let quantity = Quantity::parse(&written).unwrap();
    assert_eq!((quantity.nano, Quantity::canonicalize(&written).unwrap().as_str()), (nano, canonical));
}

/// Canonical forms of quantities beyond the limit. Unlike in Go, a suffix is never dropped; see [`UNLIKE_GO`].
#[rstest]
#[case::rest(format!("{}.{}1", repeat('9', 30), repeat('0', 9)), format!("{}{}1n", repeat('9', 30), repeat('0', 8)))]
#[case::carry(format!("-{}.{}", repeat('9', 40), repeat('9', 10)), format!("-1{}E", repeat('0', 22)))]
#[case::padding(format!("17{}.1234567891", repeat('0', 40)), format!("17{}123456790n", repeat('0', 40)))]
#[case::no_suffix(format!("1{}", repeat('0', 30)), format!("1{}E", repeat('0', 12)))]
#[case::zeros_before_exponent(format!("0.{}1e100", repeat('0', 50)), "10e48".into())]
#[case::exponent("1e1001".into(), "100e999".into())]
#[case::largest_exponent("1e2147483647".into(), "10e2147483646".into())]
#[case::larger_exponent("100e2147483647".into(), "1000e2147483646".into())]
fn large_quantities_keep_their_digits(#[case] written: String, #[case] canonical: String) {
    assert_eq!(Quantity::canonicalize(&written).unwrap(), canonical);
    assert_eq!(Quantity::canonicalize(&canonical).unwrap(), canonical);
}

#[test]
fn arithmetic_is_exact() {
    let quantity = |text: &str| Quantity::parse(text).unwrap();
    assert_eq!((quantity("1Gi") + quantity("512Mi")).to_string(), "1536Mi");
    assert_eq!((Quantity::ZERO + quantity("1Gi")).to_string(), "1Gi");
    assert_eq!((quantity("1") - quantity("300m")).to_string(), "700m");
    assert_eq!(quantity("250m").multiply(3).to_string(), "750m");
    assert_eq!(quantity("1.0001").milli_value(), 1001);
    assert_eq!(quantity("-1.0001").value(), -2);
    assert_eq!(quantity("100m").value(), 1);
    assert_eq!(quantity("1.2").round_up(0).to_string(), "2");
    assert_eq!(quantity("7").divide(&quantity("2")), Some(3));
    assert_eq!(quantity("7").divide(&Quantity::ZERO), None);
    assert!(quantity("1000m") == quantity("1") && quantity("1Ki") > quantity("1k"));
    assert_eq!(quantity("16E").value(), i64::MAX);
}

proptest! {
    #[test]
    fn printing_and_parsing_keep_the_value(
        number in -1_000_000_000_000_i64..1_000_000_000_000,
        fraction in 0_u32..1_000_000,
        suffix in prop::sample::select(vec!["", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "e-3", "E6"]),
    ) {
        let text = format!("{number}.{fraction:06}{suffix}");
        let read = Quantity::parse(&text).unwrap();
        let again = Quantity::parse(&read.to_string()).unwrap();
        prop_assert_eq!(read, again);
        prop_assert_eq!(read.to_string(), again.to_string());
        let canonical = Quantity::canonicalize(&text).unwrap();
        prop_assert_eq!(Quantity::parse(&canonical).unwrap(), read);
        prop_assert_eq!(Quantity::canonicalize(&canonical).unwrap(), canonical);
    }
}
