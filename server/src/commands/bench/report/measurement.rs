//! Measurements that benchmarks print, and the outcome of a row of the report.

use serde::Serialize;

use super::rows::Target;

/// A line `name value unit` of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(in super::super) struct Measurement {
    pub name: String,
    pub value: f64,
    /// Empty for a plain number.
    pub unit: String,
}

impl Measurement {
    /// Parses a line. Names may contain spaces within brackets: `cache/search-slowest["setting 3"] 4.1 ms`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let name_end = match line.rfind(']') {
            Some(bracket) => bracket + 1,
            None => line.find(' ')?,
        };
        let (name, rest) = line.split_at_checked(name_end)?;
        let (value, unit) = rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
        Some(Self { name: name.to_owned(), value: value.parse().ok()?, unit: unit.trim().to_owned() })
    }
}

/// The last measurement with this name.
pub(in super::super) fn find<'a>(measurements: &'a [Measurement], name: &str) -> Option<&'a Measurement> {
    measurements.iter().rev().find(|measurement| measurement.name == name)
}

/// Outcome of a row of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "status")]
pub(super) enum Outcome {
    Met { value: f64, limit: f64, unit: String },
    Missed { value: f64, limit: f64, unit: String },
    Failed { error: String },
}

impl Outcome {
    /// Compares the measurement named `line` with its target.
    pub(super) fn compare(measurements: &[Measurement], line: &str, target: Target) -> Self {
        let missing = |line: &str| Self::Failed { error: format!("the benchmark did not print {line}") };
        let Some(Measurement { value, unit, .. }) = find(measurements, line).cloned() else { return missing(line) };
        let (limit, is_met) = match target {
            Target::Maximum(limit) => (limit, value <= limit),
            Target::Minimum(limit) => (limit, value >= limit),
            Target::MaximumRatio(factor, other) => {
                let Some(other) = find(measurements, other) else { return missing(other) };
                let limit = factor * other.value;
                (limit, value <= limit)
            }
        };
        match is_met {
            true => Self::Met { value, limit, unit },
            false => Self::Missed { value, limit, unit },
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn measurement(name: &str, value: f64, unit: &str) -> Measurement {
        Measurement { name: name.to_owned(), value, unit: unit.to_owned() }
    }

    #[rstest]
    #[case::unit("propagate/applied 17100 ms", Some(("propagate/applied", 17_100.0, "ms")))]
    #[case::no_unit("cache/objects 30000 ", Some(("cache/objects", 30_000.0, "")))]
    #[case::unit_of_several_words("failover/idle-cpu 0.85 % of a core", Some(("failover/idle-cpu", 0.85, "% of a core")))]
    #[case::spaces_in_the_name("a-slowest[\"setting 3\"] 4.10 ms", Some(("a-slowest[\"setting 3\"]", 4.1, "ms")))]
    #[case::other_output("ready (1917 ms)", None)]
    #[case::one_word("ready", None)]
    fn lines_are_parsed(#[case] line: &str, #[case] expected: Option<(&str, f64, &str)>) {
        assert_eq!(Measurement::parse(line), expected.map(|(name, value, unit)| measurement(name, value, unit)));
    }

    #[rstest]
    #[case::met(Target::Maximum(2.0), true, 2.0)]
    #[case::missed(Target::Maximum(1.9), false, 1.9)]
    #[case::at_least(Target::Minimum(2.0), true, 2.0)]
    #[case::less(Target::Minimum(2.1), false, 2.1)]
    #[case::relative(Target::MaximumRatio(2.0, "base"), true, 3.0)]
    #[case::relative_missed(Target::MaximumRatio(1.0, "base"), false, 1.5)]
    fn the_last_line_is_compared_with_the_target(#[case] target: Target, #[case] is_met: bool, #[case] limit: f64) {
        let lines = [measurement("line", 9.0, "ms"), measurement("base", 1.5, "ms"), measurement("line", 2.0, "ms")];
        let (value, unit) = (2.0, "ms".to_owned());
        let expected = match is_met {
            true => Outcome::Met { value, limit, unit },
            false => Outcome::Missed { value, limit, unit },
        };
        assert_eq!(Outcome::compare(&lines, "line", target), expected);
    }

    #[rstest]
    #[case::line("other", Target::Maximum(1.0), "other")]
    #[case::base("line", Target::MaximumRatio(1.0, "base"), "base")]
    fn missing_lines_are_errors(#[case] line: &str, #[case] target: Target, #[case] missing: &str) {
        let expected = Outcome::Failed { error: format!("the benchmark did not print {missing}") };
        assert_eq!(Outcome::compare(&[measurement("line", 2.0, "ms")], line, target), expected);
    }
}
