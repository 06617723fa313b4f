//! The expected allocations in `counts.json`, and the comparison with the measured ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rstest::rstest;

use super::hot_path::Allocations;

/// Rewrites `counts.json` with the measured allocations.
pub const UPDATE_COMMAND: &str = "UPDATE_ALLOCATIONS=1 cargo test -p crowsnest --test allocations";
const UPDATE_VARIABLE: &str = "UPDATE_ALLOCATIONS";

/// Maximum increase in percent.
const MAX_COUNT_INCREASE: u64 = 5;
const MAX_BYTES_INCREASE: u64 = 10;
/// Maximum decrease in percent. A larger decrease requires an update of `counts.json`, so that later increases are
/// detected.
const MAX_DECREASE: u64 = 10;

/// Allocations by the name of the hot path.
pub type Counts = BTreeMap<String, Allocations>;

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/allocations/counts.json")
}

/// True if the measured allocations should replace the expected ones.
pub fn is_update_requested() -> bool {
    std::env::var(UPDATE_VARIABLE).is_ok_and(|value| value == "1")
}

pub fn read() -> Result<Counts> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot decode {}", path.display()))
}

pub fn write(counts: &Counts) -> Result<()> {
    let path = path();
    let text = serde_json::to_string_pretty(counts)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// One line per hot path whose allocations are not as expected.
pub fn deviations(expected: &Counts, measured: &Counts) -> Vec<String> {
    let deviations = measured.iter().filter_map(|(name, measured)| {
        let deviation = match expected.get(name) {
            Some(expected) => deviation(*expected, *measured)?,
            None => "counts.json has no entry".to_owned(),
        };
        Some(format!("{name}: {deviation}"))
    });
    let unknown = expected.keys().filter(|name| !measured.contains_key(*name));
    deviations.chain(unknown.map(|name| format!("{name}: counts.json has an entry without a hot path"))).collect()
}

fn deviation(expected: Allocations, measured: Allocations) -> Option<String> {
    let compare = |unit: &str, expected: u64, measured: u64, max_increase: u64| {
        let limit = if measured * 100 > expected * (100 + max_increase) {
            format!("more than {max_increase} % above")
        } else if measured * 100 < expected * (100 - MAX_DECREASE) {
            format!("more than {MAX_DECREASE} % below")
        } else {
            return None;
        };
        Some(format!("{measured} {unit}, {limit} the expected {expected}"))
    };
    compare("allocations", expected.count, measured.count, MAX_COUNT_INCREASE)
        .or_else(|| compare("bytes", expected.bytes, measured.bytes, MAX_BYTES_INCREASE))
}

#[rstest]
#[case::equal((100, 1000), (100, 1000), None)]
#[case::within_the_limits((100, 1000), (105, 1100), None)]
#[case::decrease_within_the_limits((100, 1000), (90, 900), None)]
#[case::more_allocations((100, 1000), (106, 1000), Some("106 allocations, more than 5 % above the expected 100"))]
#[case::more_bytes((100, 1000), (100, 1101), Some("1101 bytes, more than 10 % above the expected 1000"))]
#[case::fewer_allocations((100, 1000), (89, 1000), Some("89 allocations, more than 10 % below the expected 100"))]
#[case::fewer_bytes((100, 1000), (100, 899), Some("899 bytes, more than 10 % below the expected 1000"))]
#[case::first_allocation((0, 0), (1, 8), Some("1 allocations, more than 5 % above the expected 0"))]
fn deviations_beyond_the_limits_are_reported(
    #[case] expected: (u64, u64),
    #[case] measured: (u64, u64),
    #[case] deviation: Option<&str>,
) {
    let counts = |(count, bytes): (u64, u64)| Counts::from([("path".to_owned(), Allocations { count, bytes })]);
    let line = deviation.map(|deviation| format!("path: {deviation}"));
    assert_eq!(deviations(&counts(expected), &counts(measured)), Vec::from_iter(line));
}

#[test]
fn paths_and_entries_correspond() {
    let counts = |name: &str| Counts::from([(name.to_owned(), Allocations { count: 1, bytes: 8 })]);
    let expected = ["new: counts.json has no entry", "old: counts.json has an entry without a hot path"];
    assert_eq!(deviations(&counts("old"), &counts("new")), expected);
}
