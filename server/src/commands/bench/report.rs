//! `crowsnest bench report`: runs the benchmarks for which the project has targets, and compares their results with
//! the targets and with published figures of other software.
//!
//! Each benchmark is a child process, whose lines `name value unit` are compared. A benchmark that several rows need
//! runs once.

mod machine;
pub(super) mod measurement;
mod render;
mod rows;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use crowsnest_cli::examples;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use self::machine::Machine;
use self::measurement::{Measurement, Outcome};
use self::rows::{ROWS, Row};
use super::scratch::ScratchArgs;

/// Benchmarks that accept real members.
const BENCHMARKS_WITH_REAL_MEMBERS: [&str; 2] = ["propagate", "writes"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Markdown,
    Json,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = examples![
    "crowsnest bench report",
    "crowsnest bench report --only list-500,search -o json",
    "crowsnest bench report --slow --member-kubeconfig east.kubeconfig --member-kubeconfig west.kubeconfig",
])]
pub(super) struct ReportArgs {
    /// Measure these rows only [default: all that are not slow]
    #[arg(long, value_name = "ROW", value_delimiter = ',', value_parser = PossibleValuesParser::new(ROWS.iter().map(|row| row.id)))]
    only: Vec<String>,
    /// Also measure the rows that take long or need much memory
    #[arg(long)]
    slow: bool,
    /// Kubeconfig file of a real cluster to propagate to instead of simulated members; repeat for more
    #[arg(long, value_name = "FILE")]
    member_kubeconfig: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Markdown)]
    output: Format,
}

/// The measured report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    machine: Machine,
    has_real_members: bool,
    rows: Vec<ReportRow>,
    /// Lines of `crowsnest bench growth`, if it ran.
    growth: Vec<Measurement>,
}

/// A measured row.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportRow {
    #[serde(flatten)]
    row: Row,
    outcome: Outcome,
    /// Benchmark and flags that were run.
    command: String,
}

/// Runs the benchmarks and prints the report. The exit code is 1 if a benchmark failed, and 0 if a target was missed.
pub(super) async fn run(args: &ReportArgs, scratch: &ScratchArgs) -> anyhow::Result<ExitCode> {
    let machine = Machine::read()?;
    let mut results: HashMap<Vec<String>, Result<Vec<Measurement>, String>> = HashMap::new();
    let (mut rows, mut growth) = (Vec::new(), Vec::new());
    for row in select_rows(args) {
        let arguments = benchmark_arguments(row, &args.member_kubeconfig);
        let command = arguments.join(" ");
        let result = match results.entry(arguments) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                writeln!(std::io::stderr(), "running crowsnest bench {command}")?;
                let result = run_benchmark(entry.key(), scratch).await.map_err(|error| format!("{error:#}"));
                if row.command == "growth" {
                    growth = result.clone().unwrap_or_default();
                }
                entry.insert(result)
            }
        };
        let outcome = match result {
            Ok(measurements) => Outcome::compare(measurements, row.line, row.target),
            Err(error) => Outcome::Failed { error: error.clone() },
        };
        rows.push(ReportRow { row: *row, outcome, command });
    }
    let has_failed = rows.iter().any(|row| matches!(row.outcome, Outcome::Failed { .. }));
    let report = Report { machine, has_real_members: !args.member_kubeconfig.is_empty(), rows, growth };
    let text = match args.output {
        Format::Markdown => render::markdown(&report),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The requested rows; without a request, all that are not slow.
fn select_rows(args: &ReportArgs) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| match args.only.is_empty() {
        true => args.slow || !row.is_slow,
        false => args.only.iter().any(|id| id == row.id),
    })
}

/// Benchmark and flags of a row. `writes` and `propagate` get the kubeconfig files of real members instead of a number
/// of members.
fn benchmark_arguments(row: &Row, member_kubeconfigs: &[PathBuf]) -> Vec<String> {
    let mut arguments: Vec<String> = row.command.split(' ').map(str::to_owned).collect();
    let accepts_members =
        BENCHMARKS_WITH_REAL_MEMBERS.iter().any(|name| arguments.first().is_some_and(|first| first == name));
    if accepts_members && !member_kubeconfigs.is_empty() {
        if let Some(at) = arguments.iter().position(|argument| argument == "--members") {
            arguments.drain(at..(at + 2).min(arguments.len()));
        }
        for file in member_kubeconfigs {
            arguments.extend(["--member-kubeconfig".to_owned(), file.display().to_string()]);
        }
    }
    arguments
}

/// Runs a benchmark as a child process and returns its lines. Lines before a failure are discarded.
pub(super) async fn run_benchmark(arguments: &[String], scratch: &ScratchArgs) -> anyhow::Result<Vec<Measurement>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("bench")
        .args(arguments)
        .args(scratch.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start the benchmark")?;
    let mut lines = BufReader::new(child.stdout.take().context("the benchmark has no standard output")?).lines();
    let mut measurements = Vec::new();
    while let Some(line) = lines.next_line().await? {
        measurements.extend(Measurement::parse(&line));
    }
    let status = child.wait().await?;
    ensure!(status.success(), "the benchmark stopped with {status}");
    Ok(measurements)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::super::BenchArgs;
    use super::rows::Target;
    use super::*;

    /// Sources of the benchmarks that the rows run.
    const SOURCES: &[&str] = &[
        include_str!("../bench.rs"),
        include_str!("apiserver.rs"),
        include_str!("cache.rs"),
        include_str!("definitions.rs"),
        include_str!("failover.rs"),
        include_str!("fan_out.rs"),
        include_str!("growth.rs"),
        include_str!("plan.rs"),
        include_str!("propagate.rs"),
        include_str!("reads.rs"),
        include_str!("schedule.rs"),
        include_str!("search.rs"),
        include_str!("slow_member.rs"),
        include_str!("writes.rs"),
    ];

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn args(flags: &[&str]) -> ReportArgs {
        let bench = Bench::try_parse_from([&["bench", "report"][..], flags].concat()).unwrap();
        match bench.args.benchmark {
            super::super::Bench::Report(args) => args,
            other => panic!("{other:?}"),
        }
    }

    /// True if a benchmark prints the line: its name, or the name without percentile, is in a string literal.
    fn is_printed(line: &str) -> bool {
        let base = line.strip_suffix("-p50").or_else(|| line.strip_suffix("-p99"));
        let contains = |name: &str| {
            let literals = [format!("\"{name}\""), format!("\"{name} ")];
            SOURCES.iter().any(|source| literals.iter().any(|literal| source.contains(literal)))
        };
        contains(line) || base.is_some_and(contains)
    }

    #[test]
    fn lines_of_rows_are_printed_by_benchmarks() {
        let others = ROWS.iter().filter_map(|row| match row.target {
            Target::MaximumRatio(_, line) => Some(line),
            Target::Maximum(_) | Target::Minimum(_) => None,
        });
        let missing: Vec<&str> =
            ROWS.iter().map(|row| row.line).chain(others).filter(|line| !is_printed(line)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(!is_printed("cache/no-such-line"));
    }

    #[test]
    fn commands_of_rows_are_valid_and_their_lines_are_those_of_the_benchmark() {
        for row in ROWS {
            let command = ["bench"].into_iter().chain(row.command.split(' '));
            Bench::try_parse_from(command).unwrap_or_else(|error| panic!("{}: {error}", row.id));
            let name = row.command.split(' ').next().unwrap();
            assert!(row.line.starts_with(&format!("{name}/")), "{}", row.id);
        }
        let mut ids: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ROWS.len());
    }

    #[rstest]
    #[case::default(&[], |row: &Row| !row.is_slow)]
    #[case::slow(&["--slow"], |_: &Row| true)]
    #[case::named(&["--only", "schedule,search", "--only", "events"], |row: &Row| ["schedule", "search", "events"].contains(&row.id))]
    fn rows_are_selected(#[case] flags: &[&str], #[case] is_selected: fn(&Row) -> bool) {
        let selected: Vec<&str> = select_rows(&args(flags)).map(|row| row.id).collect();
        let expected: Vec<&str> = ROWS.iter().filter(|row| is_selected(row)).map(|row| row.id).collect();
        assert_eq!(selected, expected);
        assert!(!selected.is_empty());
    }

    #[test]
    fn unknown_rows_are_refused() {
        let error = Bench::try_parse_from(["bench", "report", "--only", "no-such-row"]).unwrap_err();
        assert!(error.to_string().contains("list-500"), "{error}");
    }

    #[rstest]
    #[case::deployments(
        "deployments",
        "writes --deployments 500 --member-kubeconfig east.yaml --member-kubeconfig west.yaml"
    )]
    #[case::config_maps(
        "config-maps",
        "propagate --writes 0 --member-kubeconfig east.yaml --member-kubeconfig west.yaml"
    )]
    #[case::other("list-500", "cache")]
    fn real_members_replace_simulated_ones(#[case] id: &str, #[case] expected: &str) {
        let row = ROWS.iter().find(|row| row.id == id).unwrap();
        let arguments = benchmark_arguments(row, &["east.yaml".into(), "west.yaml".into()]);
        assert_eq!(arguments.join(" "), expected);
        assert!(Bench::try_parse_from(["bench"].into_iter().chain(arguments.iter().map(String::as_str))).is_ok());
        assert_eq!(benchmark_arguments(row, &[]).join(" "), row.command);
    }

    #[test]
    fn json_has_texts_and_outcome_of_each_row() {
        let row = ReportRow {
            row: ROWS[0],
            outcome: Outcome::Met { value: 1.0, limit: 2.0, unit: "ms".to_owned() },
            command: ROWS[0].command.to_owned(),
        };
        let expected = serde_json::json!({
            "id": ROWS[0].id, "work": ROWS[0].work, "peer": ROWS[0].peer, "line": ROWS[0].line,
            "command": ROWS[0].command, "outcome": {"status": "met", "value": 1.0, "limit": 2.0, "unit": "ms"},
        });
        assert_eq!(serde_json::to_value(&row).unwrap(), expected);
    }
}
