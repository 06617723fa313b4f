//! The report as Markdown.

use super::machine::Machine;
use super::measurement::{Measurement, Outcome};
use super::rows::Target;
use super::{Report, ReportRow};

/// Bytes of a gibibyte.
const GIB: f64 = (1_u64 << 30) as f64;

/// Renders machine, table, growth and errors.
pub(super) fn markdown(report: &Report) -> String {
    let mut out = String::from("# Benchmark report\n\n");
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(machine(&report.machine));
    line(format!("Members: {}.", if report.has_real_members { "real clusters" } else { "simulated" }));
    line(String::new());
    line("| work | other software | result | target | | line | command |".to_owned());
    line("|---|---|---|---|---|---|---|".to_owned());
    report.rows.iter().for_each(|row| line(table_row(row)));
    if !report.growth.is_empty() {
        line(String::new());
        line("| objects × clusters | figure | value |".to_owned());
        line("|---|---|---|".to_owned());
        report.growth.iter().filter_map(growth_row).for_each(&mut line);
    }
    let errors: Vec<String> = report.rows.iter().filter_map(error_line).collect();
    if !errors.is_empty() {
        line(String::new());
        errors.into_iter().for_each(line);
    }
    out
}

fn machine(machine: &Machine) -> String {
    let Machine { cores, memory_bytes, kernel, build, version, commit } = machine;
    let mut text = format!(
        "Machine: {cores} cores, {:.1} GiB memory, Linux {kernel}. Crowsnest {version}, {build} build",
        *memory_bytes as f64 / GIB
    );
    if !commit.is_empty() {
        text.push_str(&format!(", commit {commit}"));
    }
    text.push('.');
    text
}

fn table_row(ReportRow { row, outcome, command }: &ReportRow) -> String {
    let (result, limit, verdict) = match outcome {
        Outcome::Met { value, limit, unit } => (quantity(*value, unit), quantity(*limit, unit), "met"),
        Outcome::Missed { value, limit, unit } => (quantity(*value, unit), quantity(*limit, unit), "**missed**"),
        Outcome::Failed { .. } => (String::new(), String::new(), "**error**"),
    };
    let comparison = match row.target {
        Target::Maximum(_) | Target::MaximumRatio(..) => "≤",
        Target::Minimum(_) => "≥",
    };
    let target = if limit.is_empty() { limit } else { format!("{comparison} {limit}") };
    let (work, peer, line) = (row.work, row.peer, row.line);
    format!("| {work} | {peer} | {result} | {target} | {verdict} | `{line}` | `crowsnest bench {command}` |")
}

fn growth_row(Measurement { name, value, unit }: &Measurement) -> Option<String> {
    let (size, figure) = name.strip_prefix("growth/")?.split_once('/')?;
    Some(format!("| {} | {figure} | {} |", size.replace('x', " × "), quantity(*value, unit)))
}

fn error_line(ReportRow { row, outcome, .. }: &ReportRow) -> Option<String> {
    match outcome {
        Outcome::Failed { error } => Some(format!("- {}: {error}", row.id)),
        Outcome::Met { .. } | Outcome::Missed { .. } => None,
    }
}

/// A value with its unit. Times of a second or more are printed in seconds, sizes of a gigabyte or more in gigabytes.
fn quantity(value: f64, unit: &str) -> String {
    let (value, unit) = match unit {
        "ms" if value >= 1_000.0 => (value / 1_000.0, "s"),
        "MB" if value >= 1_000.0 => (value / 1_000.0, "GB"),
        unit => (value, unit),
    };
    let digits = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => &digits,
    };
    format!("{digits} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::rows::Row;
    use super::*;

    #[rstest]
    #[case(17_100.0, "ms", "17.1 s")]
    #[case(999.0, "ms", "999 ms")]
    #[case(576.0, "MB", "576 MB")]
    #[case(1_500.0, "MB", "1.5 GB")]
    #[case(0.0, "requests", "0 requests")]
    #[case(100.0, "%", "100 %")]
    #[case(2.0, "", "2")]
    fn quantities_are_short(#[case] value: f64, #[case] unit: &str, #[case] expected: &str) {
        assert_eq!(quantity(value, unit), expected);
    }

    #[test]
    fn a_report_is_a_table() {
        let row = |id, target| Row {
            id,
            work: "some work",
            peer: "Karmada 73 s",
            target,
            command: "propagate --writes 0",
            line: "propagate/applied",
            is_slow: false,
        };
        let outcomes = [
            (
                "met",
                Target::Maximum(17_000.0),
                Outcome::Met { value: 16_900.0, limit: 17_000.0, unit: "ms".to_owned() },
            ),
            ("missed", Target::Minimum(300.0), Outcome::Missed { value: 22.5, limit: 300.0, unit: "/s".to_owned() }),
            ("failed", Target::Maximum(1.0), Outcome::Failed { error: "the benchmark exited with 1".to_owned() }),
        ];
        let rows = outcomes.map(|(id, target, outcome)| ReportRow {
            row: row(id, target),
            outcome,
            command: "propagate --writes 0".to_owned(),
        });
        let growth = [("growth/1000x10/change-cpu", 0.4, "ms"), ("growth/change-cpu-ratio", 1.1, "")];
        let measurement = |(name, value, unit): (&str, f64, &str)| Measurement {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
        };
        let report = Report {
            machine: Machine {
                cores: 2,
                memory_bytes: 24 << 30,
                kernel: "6.1.0".to_owned(),
                build: "release",
                version: "0.1.0",
                commit: "abc",
            },
            has_real_members: false,
            rows: rows.to_vec(),
            growth: growth.map(measurement).to_vec(),
        };
        assert_eq!(markdown(&report), include_str!("fixtures/report.md"));
    }
}
