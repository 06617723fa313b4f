//! `crowsnest blast-radius`: the objects that depend on an object, directly and transitively.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::yaml;
use serde_json::Value;

use super::path::print_result;
use super::path::render;
use crate::columns;
use crate::object::ObjectArgs;
use crate::partial::FleetReadArgs;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest blast-radius secret/db -n shop -C member1",
    "crowsnest blast-radius deploy/web -n shop -C @control-plane -o tree",
    "crowsnest blast-radius deploy/web -n shop -C member1 --dependencies -o tree",
    "crowsnest blast-radius configmap/settings -n shop -C member1 --depth 2 -o dot",
])]
pub struct BlastRadiusArgs {
    #[command(flatten)]
    object: ObjectArgs,
    /// Cluster of the object; @control-plane is the control plane [default: the only one that has it]
    #[arg(short = 'C', long, visible_alias = "clusters")]
    cluster: Option<String>,
    /// Maximum number of steps
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=8))]
    depth: u8,
    /// Show the objects on which it depends instead
    #[arg(long)]
    dependencies: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
    #[command(flatten)]
    read: FleetReadArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Numbers of objects by cluster and kind
    Table,
    /// Objects below the objects on which they depend
    Tree,
    /// A graph for Graphviz
    Dot,
    Json,
    Yaml,
}

pub(crate) async fn run(args: BlastRadiusArgs) -> anyhow::Result<ExitCode> {
    let cluster = args.cluster.as_deref();
    let (object, cluster) = args.object.resolve_with_cluster(&args.read.connection, cluster).await?;
    let parameters = format!("&depth={}&dependencies={}", args.depth, args.dependencies);
    let response = object.request_search_api("blastradius", &cluster, &parameters).await?;
    let rendered = match args.output {
        Output::Table => render_table(&response, args.dependencies)?,
        Output::Tree => render::render_tree(&response, render::dependent_sequences(&response)),
        Output::Dot => render::render_dot(&response),
        Output::Json => format!("{response:#}\n"),
        Output::Yaml => yaml::to_yaml(&response),
    };
    print_result(&response, &rendered, &args.read)
}

/// Renders the numbers of objects by cluster and kind.
fn render_table(response: &Value, dependencies: bool) -> anyhow::Result<String> {
    let counts = list(response, "/counts");
    if counts.is_empty() {
        let message = if dependencies { "it depends on no object\n" } else { "no object depends on it\n" };
        return Ok(message.to_owned());
    }
    let number = |count: &Value, field: &str| count.get(field).map(ToString::to_string).unwrap_or_default();
    let row = |count: &Value| {
        let (cluster, kind) = (text(count, "/cluster").to_owned(), text(count, "/kind").to_owned());
        vec![cluster, kind, number(count, "direct"), number(count, "transitive")]
    };
    let head = ["CLUSTER", "KIND", "DIRECT", "TRANSITIVE"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = [head].into_iter().chain(counts.iter().map(row)).collect();
    let mut out = Vec::new();
    columns::write(&mut out, &rows)?;
    Ok(String::from_utf8(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_are_a_table() {
        let counts = json!({"counts": [{"cluster": "m1", "kind": "Deployment.apps", "direct": 1, "transitive": 2}]});
        let expected = "CLUSTER   KIND              DIRECT   TRANSITIVE\nm1        Deployment.apps   1        2\n";
        assert_eq!(render_table(&counts, false).unwrap(), expected);
        assert_eq!(render_table(&json!({"counts": []}), false).unwrap(), "no object depends on it\n");
        assert_eq!(render_table(&json!({"counts": []}), true).unwrap(), "it depends on no object\n");
    }
}
