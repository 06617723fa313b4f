//! `crowsnest path`: paths between objects of the fleet that match a pattern.

pub(super) mod render;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::request::percent_encoded;
use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::Value;

use super::PARTIAL;
use super::get::{is_broken_pipe, yaml};
use crate::connection::ConnectionArgs;
use crate::object::SEARCH;
use crate::output::terminal;
use crate::{pager, reach, waiting};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Objects below the objects that lead to them
    Tree,
    /// A graph for Graphviz
    Dot,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  crowsnest path 'secret/shop/db <-USES- deploy -OWNS*..3-> pod'\n  crowsnest path '(:Ingress)-[:ROUTES_TO*1..3]->(:Pod {namespace: \"shop\"})' --shortest\n  crowsnest path 'pod -RUNS_ON-> node' --query is:unhealthy -o dot\n  crowsnest path 'secret/shop/db <-USES- deploy' --explain"
)]
pub struct PathArgs {
    /// Pattern, in quotes: objects as KIND, KIND/NAME, KIND/NAMESPACE/NAME or (:Kind {name: "…"}), and arrows between them
    pattern: String,
    /// Search query that the first object matches
    #[arg(short, long, default_value = "")]
    query: String,
    /// Print only the shortest paths between each pair of ends
    #[arg(long)]
    shortest: bool,
    /// Maximum number of paths
    #[arg(long, default_value_t = 100)]
    limit: usize,
    /// Print the pattern in the form that graph databases read, without a search
    #[arg(long)]
    explain: bool,
    #[arg(short, long, value_enum, default_value = "tree")]
    output: Output,
    /// Exit with 0 even if the result is partial
    #[arg(long)]
    allow_partial: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: PathArgs) -> anyhow::Result<ExitCode> {
    let client = args.connection.client().await?;
    let path = format!(
        "{SEARCH}/paths?p={}&q={}&limit={}&shortest={}&explain={}",
        percent_encoded(&args.pattern),
        percent_encoded(&args.query),
        args.limit,
        args.shortest,
        args.explain
    );
    let answer = waiting::with_spinner(|| "searching".to_owned(), reach::ask(&client, &path)).await?;
    let printed = match args.output {
        _ if args.explain => format!("{}\n", text(&answer, "/pattern")),
        Output::Tree => render::tree(&answer, render::sequences(&answer)),
        Output::Dot => render::dot(&answer),
        Output::Json => format!("{answer:#}\n"),
        Output::Yaml => yaml(&answer)?,
    };
    let partial = report(&answer, &printed)?;
    Ok(if partial && !args.allow_partial { ExitCode::from(PARTIAL) } else { ExitCode::SUCCESS })
}

/// Prints a result, and on standard error its notices and the clusters that are missing. True if the result is partial.
pub(super) fn report(answer: &Value, printed: &str) -> anyhow::Result<bool> {
    pager::begin();
    match terminal::stdout().write_all(printed.as_bytes()).map_err(anyhow::Error::from) {
        Err(error) if !is_broken_pipe(&error) => return Err(error),
        _ => {}
    }
    let mut err = terminal::stderr();
    for notice in list(answer, "/notices") {
        writeln!(err, "note: {}", notice.as_str().unwrap_or_default())?;
    }
    let skipped = list(answer, "/skipped");
    for one in skipped {
        writeln!(err, "warning: results from {} are incomplete: {}", text(one, "/cluster"), text(one, "/reason"))?;
    }
    let (shown, total) = (list(answer, "/paths").len(), answer.get("total").and_then(Value::as_u64));
    if let Some(total) = total.filter(|total| *total > shown as u64) {
        writeln!(err, "note: {shown} of {total} paths are shown; --limit shows more")?;
    }
    Ok(!skipped.is_empty() || text(answer, "/totalRelation") == "gte")
}
