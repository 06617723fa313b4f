//! `crowsnest path`: paths between objects of the fleet that match a pattern.

pub(super) mod render;

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::yaml;
use serde_json::Value;

use super::get::is_broken_pipe;
use crate::object::SEARCH_API_PATH;
use crate::output::terminal;
use crate::partial::FleetReadArgs;
use crate::{clients, pager, spinner};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A tree: each object is below its predecessor in the path
    Tree,
    /// A graph for Graphviz
    Dot,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest path 'secret/shop/db <-USES- deploy -OWNS*..3-> pod'",
    "crowsnest path '(:Ingress)-[:ROUTES_TO*1..3]->(:Pod {namespace: \"shop\"})' --shortest",
    "crowsnest path 'pod -RUNS_ON-> node' --query is:unhealthy -o dot",
    "crowsnest path 'secret/shop/db <-USES- deploy' --explain",
])]
pub struct PathArgs {
    /// Pattern, in quotes: objects as KIND, KIND/NAME, KIND/NAMESPACE/NAME or (:Kind {name: "…"}), and arrows between
    /// them
    pattern: String,
    /// Search query that the first object matches
    #[arg(short, long, default_value = "")]
    query: String,
    /// Print only the shortest paths between each pair of ends
    #[arg(long)]
    shortest: bool,
    /// Maximum number of paths
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(..=10_000))]
    limit: u16,
    /// Print the pattern as openCypher instead of searching
    #[arg(long)]
    explain: bool,
    #[arg(short, long, value_enum, default_value = "tree")]
    output: Output,
    #[command(flatten)]
    read: FleetReadArgs,
}

pub(crate) async fn run(args: PathArgs) -> anyhow::Result<ExitCode> {
    let client = args.read.connection.client().await?;
    let path = format!(
        "{SEARCH_API_PATH}/paths?p={}&q={}&limit={}&shortest={}&explain={}",
        percent_encode(&args.pattern),
        percent_encode(&args.query),
        args.limit,
        args.shortest,
        args.explain
    );
    let response = spinner::with_spinner(|| "searching".to_owned(), clients::get_or_explain(&client, &path)).await?;
    let rendered = match args.output {
        _ if args.explain => format!("{}\n", text(&response, "/pattern")),
        Output::Tree => render::render_tree(&response, render::path_sequences(&response)),
        Output::Dot => render::render_dot(&response),
        Output::Json => format!("{response:#}\n"),
        Output::Yaml => yaml::to_yaml(&response),
    };
    print_result(&response, &rendered, &args.read)
}

/// Prints a result to standard output, and its notices and incomplete clusters to standard error.
pub(super) fn print_result(response: &Value, rendered: &str, read: &FleetReadArgs) -> anyhow::Result<ExitCode> {
    pager::begin();
    match terminal::stdout().write_all(rendered.as_bytes()).map_err(anyhow::Error::from) {
        Err(error) if !is_broken_pipe(&error) => return Err(error),
        _ => {}
    }
    let mut err = terminal::stderr();
    for notice in list(response, "/notices") {
        writeln!(err, "note: {}", notice.as_str().unwrap_or_default())?;
    }
    let skipped = list(response, "/skipped");
    for cluster in skipped {
        writeln!(
            err,
            "warning: results from {} are incomplete: {}",
            text(cluster, "/cluster"),
            text(cluster, "/reason")
        )?;
    }
    let (shown, total) = (list(response, "/paths").len(), response.get("total").and_then(Value::as_u64));
    if let Some(total) = total.filter(|total| *total > shown as u64) {
        writeln!(err, "note: {shown} of {total} paths are shown; --limit shows more")?;
    }
    Ok(read.exit_code(!skipped.is_empty() || text(response, "/totalRelation") == "gte"))
}
