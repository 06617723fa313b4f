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
