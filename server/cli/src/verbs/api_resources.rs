//! `crowsnest api-resources` and `api-versions`: lists what the control plane or a member serves.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use crowsnest_members::{ApiResource, ApiResources};
use serde_json::{Value, json};

use super::get::{OperationScope, is_broken_pipe};
use crate::clients;
use crate::columns;
use crate::connection::ConnectionArgs;
use crate::output::Format;
use crate::output::terminal;
use crate::pager;

/// Flags that select the API server.
#[derive(Debug, Args)]
struct ServerArgs {
    /// Member cluster to query [default: the control plane]
    #[arg(short = 'C', long, visible_alias = "clusters", value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Query the control plane (karmada) or, with --cluster, a member (members)
    #[arg(short = 's', long, value_enum, value_name = "SCOPE")]
    operation_scope: Option<OperationScope>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Wide,
    Name,
    Json,
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortBy {
    Name,
    Kind,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest api-resources",
    "crowsnest api-resources --cluster member1 --api-group apps",
    "crowsnest api-resources --verbs list,watch -o name",
])]
pub struct ApiResourcesArgs {
    /// Limit to resources in this API group; '' is the core group
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
    /// Limit to namespaced resources, or with =false to cluster-scoped ones
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
    namespaced: Option<bool>,
    /// Limit to resources that support these verbs, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "VERBS")]
    verbs: Vec<String>,
    /// Limit to resources that belong to these categories, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "CATEGORIES")]
    categories: Vec<String>,
    /// Output format: wide (with verbs and categories), name, json or yaml
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// Accepted for compatibility with kubectl; discovery is never cached
    #[arg(long, hide = true)]
    cached: bool,
    /// Accepted for compatibility with karmadactl; the output has no managed fields
    #[arg(long, hide = true)]
    show_managed_fields: bool,
    /// Sort the list by name or kind [default: by group]
    #[arg(long, value_enum, value_name = "BY")]
    sort_by: Option<SortBy>,
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest api-versions",
    "crowsnest api-versions --cluster member1",
])]
pub struct ApiVersionsArgs {
    #[command(flatten)]
    server: ServerArgs,
}

impl ServerArgs {
    async fn discover(&self) -> anyhow::Result<ApiResources> {
        let config = self.connection.load_config().await?;
        let client = clients::client(config, self.cluster.as_deref(), self.operation_scope)?;
        let api_resources = crowsnest_members::discovery::discover(&client).await?;
        for group in &api_resources.stale {
            writeln!(
                terminal::stderr(),
                "warning: cannot list the resources of {group}: its API server is unavailable"
            )?;
        }
        Ok(api_resources)
    }
}

pub(crate) async fn run_resources(args: ApiResourcesArgs) -> anyhow::Result<ExitCode> {
    let api_resources = args.server.discover().await?;
    pager::begin();
    ignore_broken_pipe(print(&mut terminal::stdout(), &args, &api_resources))
}

pub(crate) async fn run_versions(args: ApiVersionsArgs) -> anyhow::Result<ExitCode> {
    let api_resources = args.server.discover().await?;
    let versions: BTreeSet<String> =
        api_resources.resources.iter().map(|resource| resource.gvr.api_version()).collect();
    let mut out = terminal::stdout();
    ignore_broken_pipe(versions.iter().try_for_each(|version| writeln!(out, "{version}")).map_err(Into::into))
}

/// Treats a closed pipe as success.
fn ignore_broken_pipe(result: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    match result {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

impl ApiResourcesArgs {
    fn matches(&self, resource: &ApiResource) -> bool {
        self.api_group.as_ref().is_none_or(|group| *group == *resource.gvr.group)
            && self.namespaced.is_none_or(|namespaced| namespaced == resource.namespaced)
            && self.verbs.iter().all(|verb| resource.verbs.contains(verb))
            && self.categories.iter().all(|category| resource.categories.contains(category))
    }
}

fn print(out: &mut impl Write, args: &ApiResourcesArgs, api_resources: &ApiResources) -> anyhow::Result<()> {
    let mut resources: Vec<&ApiResource> =
        api_resources.preferred_versions().into_iter().filter(|resource| args.matches(resource)).collect();
    match args.sort_by {
        Some(SortBy::Name) => resources.sort_by(|left, right| left.gvr.resource.cmp(&right.gvr.resource)),
        Some(SortBy::Kind) => resources.sort_by(|left, right| left.kind.cmp(&right.kind)),
        None => resources.sort_by(|left, right| {
            let sort_key = |resource: &ApiResource| (resource.gvr.group.to_string(), resource.gvr.resource.to_string());
            sort_key(left).cmp(&sort_key(right))
        }),
    }
    match args.output {
        Some(Output::Name) => {
            return Ok(resources.iter().try_for_each(|resource| writeln!(out, "{}", resource.gvr.group_resource()))?);
        }
        Some(Output::Json) => return Format::Json.print(out, &api_resource_list(&resources), |_| String::new()),
        Some(Output::Yaml) => return Format::Yaml.print(out, &api_resource_list(&resources), |_| String::new()),
        Some(Output::Wide) | None => {}
    }
    let is_wide = args.output == Some(Output::Wide);
    let mut headers = vec!["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
    if is_wide {
        headers.extend(["VERBS", "CATEGORIES"]);
    }
    let headers: Vec<String> = headers.into_iter().map(str::to_owned).collect();
    let rows = resources.iter().map(|resource| row(resource, is_wide));
    let rows: Vec<Vec<String>> = (!args.no_headers).then_some(headers).into_iter().chain(rows).collect();
    Ok(columns::write(out, &rows)?)
}

/// An APIResourceList of all groups, as kubectl prints it.
fn api_resource_list(found: &[&ApiResource]) -> Value {
    let to_entry = |resource: &&ApiResource| {
        json!({"name": &*resource.gvr.resource, "singularName": resource.singular, "namespaced": resource.namespaced,
            "group": &*resource.gvr.group, "version": &*resource.gvr.version, "kind": resource.kind,
            "verbs": resource.verbs, "shortNames": resource.short_names, "categories": resource.categories})
    };
    json!({"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "",
        "resources": found.iter().map(to_entry).collect::<Vec<_>>()})
}

fn row(resource: &ApiResource, is_wide: bool) -> Vec<String> {
    let join = |words: Vec<&str>| words.join(",");
    let mut cells = vec![
        resource.gvr.resource.to_string(),
        resource.short_names.join(","),
        resource.gvr.api_version(),
        resource.namespaced.to_string(),
        resource.kind.clone(),
    ];
    if is_wide {
        cells.push(join(resource.verbs.iter().map(String::as_str).collect()));
        cells.push(resource.categories.join(","));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse_args;
    use crowsnest_apimachinery::names::Gvr;

    fn resource(group: &str, plural: &str, kind: &str, short: &str, namespaced: bool) -> ApiResource {
        ApiResource {
            gvr: Gvr::new(group, "v1", plural),
            kind: kind.to_owned(),
            singular: kind.to_lowercase(),
            short_names: vec![short.to_owned()],
            categories: vec!["all".to_owned()],
            namespaced,
            verbs: BTreeSet::from(["get".to_owned(), "list".to_owned()]),
            subresources: BTreeSet::new(),
            preferred: true,
        }
    }

    #[rstest::rstest]
    #[case(
        "",
        "NAME          SHORTNAMES   APIVERSION   NAMESPACED   KIND\nnodes         no           v1           false        Node\npods          po           v1           true         Pod\ndeployments   deploy       apps/v1      true         Deployment\n"
    )]
    #[case("-o name --namespaced", "pods\ndeployments.apps\n")]
    #[case("-o name --namespaced=false", "nodes\n")]
    #[case("-o name --api-group apps", "deployments.apps\n")]
    #[case("-o name --sort-by name --categories all", "deployments.apps\nnodes\npods\n")]
    #[case("-o name --verbs watch", "")]
    #[case(
        "-o yaml --api-group apps",
        "apiVersion: v1\ngroupVersion: \"\"\nkind: APIResourceList\nresources:\n- categories:\n  - all\n  group: apps\n  kind: Deployment\n  name: deployments\n  namespaced: true\n  shortNames:\n  - deploy\n  singularName: deployment\n  verbs:\n  - get\n  - list\n  version: v1\n"
    )]
    #[case(
        "-o wide --no-headers --api-group apps",
        "deployments   deploy   apps/v1   true   Deployment   get,list   all\n"
    )]
    fn resources_are_listed(#[case] line: &str, #[case] expected: &str) {
        let args: ApiResourcesArgs = parse_args(line).unwrap();
        let resources = vec![
            resource("apps", "deployments", "Deployment", "deploy", true),
            resource("", "pods", "Pod", "po", true),
            resource("", "nodes", "Node", "no", false),
        ];
        let mut out = Vec::new();
        print(&mut out, &args, &ApiResources { resources, stale: BTreeSet::new() }).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
