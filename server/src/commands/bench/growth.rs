//! `crowsnest bench growth`: runs `crowsnest bench cache` with fleets of several sizes, and compares CPU time for each
//! change, memory for each object and search latency.

use std::io::Write;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;

use super::cache::MeasurementPrinter;
use super::report::measurement::{Measurement, find};
use super::report::run_benchmark;
use super::scratch::ScratchArgs;

/// Number of objects and of clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FleetSize {
    objects: usize,
    clusters: u32,
}

impl FromStr for FleetSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (objects, clusters) = text.split_once('x')?;
            Some(Self { objects: objects.parse().ok()?, clusters: clusters.parse().ok()? })
        };
        parse()
            .filter(|size| size.objects > 0 && size.clusters > 0)
            .ok_or_else(|| "expected OBJECTSxCLUSTERS".to_owned())
    }
}

/// Default of `--sizes`.
const SIZES: &str = "1000x10,10000x10,100000x10,100000x100,100000x500,1000000x10";

#[derive(Debug, Clone, Args)]
pub(super) struct GrowthArgs {
    /// Numbers of objects and clusters, the smallest fleet first
    #[arg(long, value_name = "OBJECTSxCLUSTERS", value_delimiter = ',', default_value = SIZES)]
    sizes: Vec<FleetSize>,
    /// Number of lists and searches
    #[arg(long, default_value_t = 200)]
    reads: usize,
    /// Duration of each measurement with changes, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// Printed figures and their lines of `crowsnest bench cache`.
const FIGURES: [(&str, &str); 7] = [
    (CHANGE_CPU, "cache/change-cpu"),
    ("rss", "cache/rss-after-churn"),
    ("rss-each", "cache/rss-each"),
    ("database", "cache/database"),
    (SEARCH_P99, "cache/search-p99"),
    ("churn-search-p99", "cache/churn/search-p99"),
    ("change-to-watch-p99", "cache/churn/change-to-watch-p99"),
];
const CHANGE_CPU: &str = "change-cpu";
const SEARCH_P99: &str = "search-p99";

pub(super) async fn run(args: &GrowthArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let mut printer = MeasurementPrinter { out: std::io::stdout() };
    let mut figures_by_fleet = Vec::with_capacity(args.sizes.len());
    for &FleetSize { objects, clusters } in &args.sizes {
        let arguments =
            format!("cache --pods {objects} --clusters {clusters} --reads {} --seconds {}", args.reads, args.seconds);
        let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
        let lines = run_benchmark(&arguments, scratch)
            .await
            .with_context(|| format!("{objects} objects, {clusters} clusters"))?;
        let mut figures = Vec::with_capacity(FIGURES.len());
        for (figure, line) in FIGURES {
            let Measurement { value, unit, .. } =
                find(&lines, line).cloned().with_context(|| format!("the benchmark did not print {line}"))?;
            printer.print(&format!("growth/{objects}x{clusters}/{figure}"), value, &unit)?;
            figures.push((figure, value));
        }
        figures_by_fleet.push(figures);
    }
    print_ratios(&figures_by_fleet, &mut printer)
}

/// Prints how much the highest figure of all fleets exceeds that of the first.
fn print_ratios(
    figures_by_fleet: &[Vec<(&str, f64)>],
    printer: &mut MeasurementPrinter<impl Write>,
) -> anyhow::Result<()> {
    for (figure, name) in [(CHANGE_CPU, "growth/change-cpu-ratio"), (SEARCH_P99, "growth/search-p99-ratio")] {
        let figures = || figures_by_fleet.iter().flatten();
        let values = || figures().filter(move |(name, _)| *name == figure).map(|(_, value)| *value);
        let first = values().next().context("no fleet was measured")?;
        printer.print(name, values().fold(first, f64::max) / first, "")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1000x10", Some((1_000, 10)))]
    #[case("1000", None)]
    #[case("0x10", None)]
    #[case("10x-1", None)]
    fn sizes_are_parsed(#[case] text: &str, #[case] expected: Option<(usize, u32)>) {
        assert_eq!(text.parse::<FleetSize>().ok().map(|size| (size.objects, size.clusters)), expected);
    }

    #[test]
    fn ratios_compare_the_highest_figure_with_the_first() {
        let figures_by_fleet =
            [(0.4, 2.0), (1.0, 2.0), (0.6, 1.0)].map(|(cpu, p99)| vec![(CHANGE_CPU, cpu), (SEARCH_P99, p99)]);
        let mut printer = MeasurementPrinter { out: Vec::new() };
        print_ratios(&figures_by_fleet, &mut printer).unwrap();
        let text = String::from_utf8(printer.out).unwrap();
        assert_eq!(text, "growth/change-cpu-ratio 2.50 \ngrowth/search-p99-ratio 1.00 \n");
    }
}
