//! `crowsnest explain`: shows why an object of the control plane is in its clusters, from the API
//! `propagation.crowsnest.io`. With a kind, or a path of its fields, it documents the fields as `kubectl explain` does.

mod schema;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::request::path_segment;
pub(crate) use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::yaml;
use crowsnest_members::ApiResources;
use serde_json::Value;

use super::get::kind::Kind;
use super::get::{OperationScope, is_broken_pipe};
use crate::clients;
use crate::columns;
use crate::connection::ConnectionArgs;
use crate::output::terminal;
use crate::pager;

const API_PATH: &str = "/apis/propagation.crowsnest.io/v1alpha1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    #[value(aliases = ["plaintext", "plaintext-openapiv2"])]
    Text,
    Json,
    Yaml,
}

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest explain deployment/web -n shop",
    "crowsnest explain clusterrole/reader -o yaml",
    "crowsnest explain resourcebinding/web-deployment -n shop",
    "crowsnest explain deployments.spec.strategy                  documentation of fields",
    "crowsnest explain pods.spec --recursive --cluster member1    as a member documents them",
])]
pub struct ExplainArgs {
    /// Object in the control plane, or its binding; or a kind with a field path, such as pods.spec.containers
    #[arg(value_name = "KIND/NAME|KIND.FIELD")]
    object: String,
    /// Namespace of the object [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Print nested fields too (kinds only)
    #[arg(long)]
    recursive: bool,
    /// API version of the kind, such as apps/v1 (kinds only)
    #[arg(long, value_name = "VERSION")]
    api_version: Option<String>,
    /// Member cluster whose documentation to use (kinds only) [default: the control plane]
    #[arg(short = 'C', long, visible_alias = "clusters", value_name = "CLUSTER")]
    cluster: Option<String>,
    /// Use the documentation of the control plane (karmada) or, with --cluster, of a member (kinds only)
    #[arg(short = 's', long, value_enum, value_name = "SCOPE", hide_short_help = true)]
    operation_scope: Option<OperationScope>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

pub(crate) async fn run(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    if !args.object.contains('/') {
        return explain_fields(&args).await;
    }
    let kind_flags =
        [args.recursive, args.api_version.is_some(), args.cluster.is_some(), args.operation_scope.is_some()];
    if kind_flags.contains(&true) {
        bail!("--recursive, --api-version, --cluster and -s require a kind, not the object {:?}", args.object);
    }
    let ExplainedObject { client, kind, namespace, name } =
        resolve_template(&args.object, args.namespace.as_deref(), &args.connection).await?;
    let path = explanation_path(&kind, &namespace, &name);
    let response = clients::get_or_explain(&client, &path).await?;
    print(&response, args.output, |out| render(out, &response))
}

/// Documents the fields of a kind.
async fn explain_fields(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let config = args.connection.load_config().await?;
    let cluster = args.cluster.as_deref();
    let client = clients::client(config, cluster, args.operation_scope)?;
    let served = crowsnest_members::discovery::discover(&client).await?;
    let target = schema::FieldPath::resolve(&args.object, args.api_version.as_deref(), &served)?;
    let document = schema::request_document(&client, cluster, &target.kind).await?;
    let field = schema::find_field(&document, &target)?;
    print(field.schema(), args.output, |out| field.render(out, args.recursive))
}

/// The object to explain, with its kind resolved.
pub(crate) struct ExplainedObject {
    pub(crate) client: kube::Client,
    pub(crate) kind: Kind,
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Resolves KIND/NAME; a binding resolves to its template.
pub(crate) async fn resolve_template(
    object: &str,
    namespace: Option<&str>,
    connection: &ConnectionArgs,
) -> anyhow::Result<ExplainedObject> {
    let is_complete = |(resource_type, name): &(&str, &str)| !resource_type.is_empty() && !name.is_empty();
    let Some((resource_type, name)) = object.split_once('/').filter(is_complete) else {
        bail!("invalid object {object:?}: expected KIND/NAME, such as deployment/web")
    };
    let config = connection.load_config().await?;
    let namespace = namespace.unwrap_or(&config.default_namespace).to_owned();
    let client = kube::Client::try_from(config)?;
    let served = crowsnest_members::discovery::discover(&client).await?;
    let kind = Kind::resolve(resource_type, &served)
        .ok_or_else(|| anyhow!("the control plane has no resource type {resource_type:?}"))?;
    let (kind, namespace, name) = match (&*kind.gvr.group, &*kind.gvr.resource) {
        ("work.karmada.io", "resourcebindings" | "clusterresourcebindings") => {
            resolve_binding(&client, &served, &kind, &namespace, name).await?
        }
        _ => (kind, namespace, name.to_owned()),
    };
    let namespace = if kind.namespaced { namespace } else { String::new() };
    Ok(ExplainedObject { client, kind, namespace, name })
}

/// The API path of a template's explanation.
fn explanation_path(kind: &Kind, namespace: &str, name: &str) -> String {
    let name = path_segment(name);
    let resource = kind.name();
    match kind.namespaced {
        true => format!("{API_PATH}/namespaces/{namespace}/explanations/{resource}:{name}"),
        false => format!("{API_PATH}/clusterexplanations/{resource}:{name}"),
    }
}

/// Resolves a binding to its template.
async fn resolve_binding(
    client: &kube::Client,
    served: &ApiResources,
    kind: &Kind,
    namespace: &str,
    name: &str,
) -> anyhow::Result<(Kind, String, String)> {
    let collection = kind.gvr.path(kind.namespaced.then_some(namespace));
    let binding = clients::get_or_explain(client, &format!("{collection}/{}", path_segment(name))).await?;
    let reference_field = |field: &str| text(&binding, &format!("/spec/resource/{field}")).to_owned();
    let (api_version, kind) = (reference_field("apiVersion"), reference_field("kind"));
    let found =
        served.resources.iter().find(|resource| resource.kind == kind && resource.gvr.api_version() == api_version);
    let found =
        found.with_context(|| format!("cannot find the template of {name}: {api_version} {kind} is not served"))?;
    Ok((
        Kind { gvr: found.gvr.clone(), kind: found.kind.clone(), namespaced: found.namespaced },
        reference_field("namespace"),
        reference_field("name"),
    ))
}

/// Prints a document as JSON or YAML, or as text with `render_text`.
pub(crate) fn print(
    document: &Value,
    output: Output,
    render_text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<ExitCode> {
    pager::begin();
    let mut out = terminal::stdout();
    let result = match output {
        Output::Text => render_text(&mut out).map_err(anyhow::Error::from),
        Output::Json => writeln!(out, "{document:#}").map_err(anyhow::Error::from),
        Output::Yaml => out.write_all(yaml::to_yaml(document).as_bytes()).map_err(anyhow::Error::from),
    };
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The reader closed the pipe.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(error),
    }
}

/// Strings without quotes, other values as JSON.
fn to_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `Deployment shop/web`; kinds of groups other than Kubernetes' and Karmada's include the group,
/// `Deployment.example.org shop/web`.
pub(crate) fn format_reference(reference: &Value) -> String {
    let (kind, namespace, name) = (text(reference, "/kind"), text(reference, "/namespace"), text(reference, "/name"));
    let group = text(reference, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    // Kinds of other groups may share a name with a built-in kind.
    let is_well_known = !group.contains('.') || [".k8s.io", ".karmada.io"].iter().any(|suffix| group.ends_with(suffix));
    let kind = if is_well_known { kind.to_owned() } else { format!("{kind}.{group}") };
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

pub(crate) fn number(value: &Value, field: &str) -> Option<String> {
    value.get(field).and_then(Value::as_i64).map(|number| number.to_string())
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

fn header_row(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Prints an empty line and a table with a header; nothing if there are no rows.
pub(crate) fn print_section(mut out: &mut dyn Write, names: &[&str], rows: Vec<Vec<String>>) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let table: Vec<Vec<String>> = std::iter::once(header_row(names)).chain(rows).collect();
    columns::write(&mut out, &table)
}

fn render(out: &mut dyn Write, explanation: &Value) -> io::Result<()> {
    writeln!(out, "{}", format_reference(&explanation["template"]))?;
    match explanation.get("policy") {
        Some(policy) => writeln!(out, "follows {}", format_reference(policy))?,
        None => writeln!(out, "follows no policy")?,
    }
    if let Some(binding) = explanation.get("binding") {
        let replicas = number(binding, "replicas").filter(|number| number != "0");
        let replicas = replicas.map(|number| format!(", {number} replicas")).unwrap_or_default();
        writeln!(out, "bound by {}{replicas}", format_reference(binding))?;
        for parent in list(binding, "requiredBy") {
            writeln!(out, "required by {}", format_reference(parent))?;
        }
        let (at, message) = (text(binding, "/scheduledAt"), text(binding, "/message"));
        match at {
            "" if message.is_empty() => {}
            "" => writeln!(out, "scheduling: {message}")?,
            at => writeln!(out, "scheduled at {at}: {message}")?,
        }
    }
    print_policies(out, explanation)?;
    if let Some(scheduling) = explanation.get("scheduling") {
        print_clusters(out, scheduling)?;
    }
    print_targets(out, explanation)?;
    print_overrides(out, list(explanation, "targets"), "cluster")?;
    print_waiting(out, explanation)
}

pub(crate) fn print_policies(out: &mut dyn Write, report: &Value) -> io::Result<()> {
    let row = |policy: &Value| {
        let outcome = match text(policy, "/outcome") {
            "Chosen" | "Claimed" => "won",
            _ => "lost",
        };
        let by = match text(policy, "/selectsBy") {
            "LabelSelector" => "labels",
            "Name" => "name",
            _ => "kind",
        };
        let priority = or_dash(number(policy, "priority"));
        vec![format_reference(policy), priority, by.to_owned(), format!("{outcome}: {}", text(policy, "/message"))]
    };
    print_section(
        out,
        &["POLICY", "PRIORITY", "SELECTS BY", "OUTCOME"],
        list(report, "policies").iter().map(row).collect(),
    )
}

/// Prints one table per affinity term that the scheduler evaluated.
fn print_clusters(out: &mut dyn Write, scheduling: &Value) -> io::Result<()> {
    let row = |cluster: &Value| {
        let rejected = text(cluster, "/rejected/reason");
        let verdict = match (rejected, cluster["selected"] == true) {
            ("", _) if cluster.get("evictedBy").is_some() => {
                format!("until evicted: taint {}", text(cluster, "/evictedBy"))
            }
            ("", true) => "yes".to_owned(),
            ("", false) => "not selected".to_owned(),
            (reason, _) => format!("no, {}: {reason}", text(cluster, "/rejected/filter")),
        };
        let score = if rejected.is_empty() { number(cluster, "score") } else { None };
        let estimate = cluster.get("estimate").and_then(|estimate| {
            let by = match text(estimate, "/boundBy") {
                "" => String::new(),
                by => format!(" ({})", by.to_lowercase()),
            };
            Some(format!("{}{by}", number(estimate, "replicas")?))
        });
        let replicas = number(cluster, "replicas").filter(|number| number != "0");
        let cells = [score, estimate, replicas].map(or_dash);
        [vec![text(cluster, "/name").to_owned()], cells.to_vec(), vec![verdict]].concat()
    };
    for term in list(scheduling, "terms") {
        let rows: Vec<Vec<String>> = list(term, "clusters").iter().map(row).collect();
        let affinity = text(term, "/affinity");
        if !affinity.is_empty() {
            write!(out, "\naffinity {affinity}:")?;
        }
        print_section(out, &["CLUSTER", "SCORE", "ROOM", "REPLICAS", "FITS"], rows)?;
    }
    match (text(scheduling, "/decision"), text(scheduling, "/message")) {
        ("Clear" | "Fail", message) => writeln!(out, "\nno cluster fits: {message}"),
        _ => Ok(()),
    }
}

fn print_targets(out: &mut dyn Write, explanation: &Value) -> io::Result<()> {
    let row = |target: &Value| {
        let placed = match text(target, "/placed") {
            "Required" => "required",
            "Evicting" => "evicting",
            _ => "scheduled",
        };
        let applied = if target["applied"] == true { "yes" } else { "no" };
        let health = Some(text(target, "/health")).filter(|health| !health.is_empty()).unwrap_or("-");
        vec![
            text(target, "/cluster").to_owned(),
            placed.to_owned(),
            or_dash(number(target, "replicas")),
            applied.to_owned(),
            health.to_owned(),
        ]
    };
    let rows = list(explanation, "targets").iter().map(row).collect();
    print_section(out, &["TARGET", "PLACED", "REPLICAS", "APPLIED", "HEALTH"], rows)
}

/// Prints the changes of each override rule, one line per field.
pub(crate) fn print_overrides(out: &mut dyn Write, clusters: &[Value], name: &str) -> io::Result<()> {
    let mut rows = Vec::new();
    for cluster in clusters {
        for rule in list(cluster, "overrides") {
            let changes = list(rule, "differences");
            let mut line = |change: String| {
                rows.push(vec![text(cluster, &format!("/{name}")).to_owned(), format_reference(rule), change]);
            };
            if changes.is_empty() {
                line("no visible change".to_owned());
            }
            changes.iter().map(format_difference).for_each(&mut line);
            list(rule, "notes").iter().filter_map(Value::as_str).map(str::to_owned).for_each(&mut line);
        }
    }
    print_section(out, &["CLUSTER", "OVERRIDE", "CHANGES"], rows)
}

/// `/spec/replicas: 1 -> 2`
pub(crate) fn format_difference(difference: &Value) -> String {
    let format_value = |field: &str| match difference.get(field) {
        None => "(none)".to_owned(),
        Some(Value::String(text)) => text.replace('\n', "\\n"),
        Some(value) => value.to_string(),
    };
    format!("{}: {} -> {}", text(difference, "/path"), format_value("before"), format_value("after"))
}

pub(crate) fn print_waiting(out: &mut dyn Write, report: &Value) -> io::Result<()> {
    let row = |reason: &Value| {
        let cluster = text(reason, "/cluster");
        let cluster = if cluster.is_empty() { "-" } else { cluster };
        [text(reason, "/cause"), cluster, text(reason, "/message")].map(str::to_owned).to_vec()
    };
    print_section(out, &["WAITING FOR", "CLUSTER", "WHY"], list(report, "waiting").iter().map(row).collect())
}

#[cfg(test)]
mod tests;
