//! `crowsnest plan`: previews the effect on the fleet of applying files, or of deleting the objects in them, without
//! changing anything.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::{unstructured, yaml};
use crowsnest_members::ApiResources;
use crowsnest_plan::work::managed;
use serde_json::{Value, json};
use similar::TextDiff;

use super::explain::{
    Output, format_difference, format_reference, list, number, print, print_overrides, print_policies, print_section,
    print_waiting, text,
};
use crate::clients::explain_failure;
use crate::object::resolve_namespace;
use crate::output::terminal;
use crate::partial::{EXIT_PARTIAL, FleetReadArgs};
use crate::sources::SourceArgs;

#[derive(Debug, Args)]
#[command(after_help = examples![
    "crowsnest plan -f policy.yaml",
    "crowsnest plan -f web.yaml -f policy.yaml -f override.yaml -n shop",
    "crowsnest plan --delete -f policy.yaml",
    "crowsnest plan -f fleet/ --brief --fail-on-change";
    "Exit codes: 0 success, 1 a template cannot be planned or placed, 4 changes (with --fail-on-change), 5 templates were left out."
])]
pub struct PlanArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// Namespace of objects that name none [default: the namespace of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Plan the deletion of the objects in the files
    #[arg(long)]
    delete: bool,
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Show placements only, no manifests
    #[arg(long)]
    brief: bool,
    /// Maximum number of templates to plan [default: 50]
    #[arg(long)]
    limit: Option<usize>,
    /// Exit with 4 if there are changes
    #[arg(long)]
    fail_on_change: bool,
    #[command(flatten)]
    read: FleetReadArgs,
}

pub(crate) async fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    if args.sources.is_empty() {
        bail!(
            "must specify one of -f and -k; files may hold policies, overrides, customizations, clusters, quotas, rebalancers and templates"
        );
    }
    let mut objects = args.sources.objects().await?;
    let config = args.read.connection.load_config().await?;
    let default = config.default_namespace.clone();
    let client = kube::Client::try_from(config)?;
    let served = crowsnest_members::discovery::discover(&client).await?;
    for object in &mut objects {
        set_namespace(object, &served, args.namespace.as_deref(), &default)?;
    }
    let field = if args.delete { "deletions" } else { "objects" };
    let mut spec = json!({field: objects, "manifests": !args.brief});
    if let Some(limit) = args.limit {
        spec["limit"] = limit.into();
    }
    let plan = json!({"apiVersion": "propagation.crowsnest.io/v1alpha1", "kind": "Plan", "spec": spec});
    let request = http::Request::post("/apis/propagation.crowsnest.io/v1alpha1/plans")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&plan)?)?;
    let response: Value =
        client.request(request).await.map_err(|error| anyhow!("{}", explain_failure(None, &error)))?;
    let status = &response["status"];
    print(&response, args.output, |out| render(out, status))?;
    print_warnings(&mut terminal::stderr(), status)?;
    Ok(ExitCode::from(exit_code(status, args.fail_on_change, args.read.allow_partial)))
}

/// Sets the namespace that the object is applied to, as kubectl does.
pub(crate) fn set_namespace(
    object: &mut Value,
    served: &ApiResources,
    requested: Option<&str>,
    default: &str,
) -> anyhow::Result<()> {
    let (api_version, kind) = (text(object, "/apiVersion"), text(object, "/kind"));
    let resource_type =
        served.resources.iter().find(|candidate| candidate.kind == kind && candidate.gvr.api_version() == api_version);
    let Some(resource_type) = resource_type else { bail!("no matches for kind {kind:?} in version {api_version:?}") };
    if resource_type.namespaced {
        let namespace = resolve_namespace(object, requested)?.unwrap_or(default).to_owned();
        object["metadata"]["namespace"] = namespace.into();
    }
    Ok(())
}

fn is_changed(item: &Value) -> bool {
    text(item, "/change") != "Unchanged"
}

/// True for a template that cannot be planned, or for which no cluster fits.
fn is_unplaceable(template: &Value) -> bool {
    template.get("message").is_some() || matches!(text(template, "/scheduling/decision"), "Clear" | "Fail")
}

/// Exit code of `--fail-on-change` if there are changes.
const EXIT_CHANGED: u8 = 4;

fn exit_code(status: &Value, fail_on_change: bool, allow_partial: bool) -> u8 {
    let (objects, templates) = (list(status, "objects"), list(status, "templates"));
    let count = |field: &str| status.get(field).and_then(Value::as_u64).unwrap_or_default();
    if templates.iter().any(is_unplaceable) {
        1
    } else if !allow_partial && count("more") + count("withheld") > 0 {
        EXIT_PARTIAL
    } else if fail_on_change && objects.iter().chain(templates).any(is_changed) {
        EXIT_CHANGED
    } else {
        0
    }
}

/// Prints notices and the numbers of omitted templates to standard error.
fn print_warnings(err: &mut impl Write, status: &Value) -> io::Result<()> {
    for notice in list(status, "notices").iter().filter_map(Value::as_str) {
        writeln!(err, "note: {notice}")?;
    }
    let count = |field: &str| status.get(field).and_then(Value::as_u64).filter(|count| *count > 0);
    if let Some(more) = count("more") {
        writeln!(err, "warning: {more} more templates were not planned; raise --limit")?;
    }
    if let Some(withheld) = count("withheld") {
        writeln!(err, "warning: {withheld} templates were left out because you cannot get them")?;
    }
    Ok(())
}

fn render(out: &mut dyn Write, status: &Value) -> io::Result<()> {
    for object in list(status, "objects") {
        let change = match text(object, "/change") {
            "Added" => "would be created",
            "Changed" => "would be changed",
            "Removed" => "would be deleted",
            _ => "would not change",
        };
        writeln!(out, "{} {change}", format_reference(object))?;
        for change in list(object, "differences") {
            writeln!(out, "  {}", format_difference(change))?;
        }
    }
    if list(status, "templates").is_empty() {
        writeln!(out, "\nno template is affected")?;
    }
    list(status, "templates").iter().try_for_each(|template| render_template(out, template))
}

fn render_template(out: &mut dyn Write, template: &Value) -> io::Result<()> {
    writeln!(out, "\n# {}", format_reference(&template["template"]))?;
    let (before, after) = (template.get("policyBefore"), template.get("policy"));
    match (before, after) {
        (None, None) => writeln!(out, "follows no policy")?,
        (Some(before), None) => writeln!(out, "follows no policy, previously {}", format_reference(before))?,
        (Some(before), Some(after)) if before != after => {
            writeln!(out, "follows {}, previously {}", format_reference(after), format_reference(before))?;
        }
        (_, Some(after)) => writeln!(out, "follows {}", format_reference(after))?,
    }
    for dependency in list(template, "dependencies") {
        writeln!(out, "with dependency {}", format_reference(dependency))?;
    }
    for parent in list(template, "requiredBy") {
        writeln!(out, "dependency of {}", format_reference(parent))?;
    }
    if let Some(message) = template.get("message").and_then(Value::as_str) {
        writeln!(out, "cannot be planned: {message}")?;
    }
    if list(template, "policies").len() > 1 {
        print_policies(out, template)?;
    }
    print_section(out, &["CLUSTER", "CHANGE", "REPLICAS", "WHY"], rows(template))?;
    if let ("Clear" | "Fail", message) = (text(template, "/scheduling/decision"), text(template, "/scheduling/message"))
    {
        writeln!(out, "\nno cluster fits: {message}")?;
    }
    print_overrides(out, list(template, "clusters"), "name")?;
    print_waiting(out, template)?;
    print_diffs(out, template)
}

/// Rows for the planned clusters, then for those that the scheduler evaluated and left out.
fn rows(template: &Value) -> Vec<Vec<String>> {
    let planned = list(template, "clusters");
    let row = |cluster: &Value| {
        let (before, after) = (number(cluster, "replicasBefore"), number(cluster, "replicas"));
        let change = text(cluster, "/change");
        let replicas = match (before, after) {
            (None, None) => "-".to_owned(),
            (Some(before), None) if change == "Removed" => format!("{before} -> 0"),
            (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
            (None, Some(after)) if change == "Added" => format!("0 -> {after}"),
            (before, after) => after.or(before).unwrap_or_default(),
        };
        vec![text(cluster, "/name").to_owned(), change.to_lowercase(), replicas, text(cluster, "/message").to_owned()]
    };
    let is_planned = |name: &str| planned.iter().any(|cluster| text(cluster, "/name") == name);
    let last = template.pointer("/scheduling/terms").and_then(Value::as_array).and_then(|terms| terms.last());
    let others = last.map_or(&[][..], |term| list(term, "clusters")).iter();
    let left_out = others.filter(|cluster| !is_planned(text(cluster, "/name"))).map(|cluster| {
        let reason = match text(cluster, "/rejected/reason") {
            "" if cluster["selected"] == true => "no replicas left",
            "" => "excluded by spread constraints",
            reason => reason,
        };
        vec![text(cluster, "/name").to_owned(), "-".to_owned(), "-".to_owned(), reason.to_owned()]
    });
    planned.iter().map(row).chain(left_out).collect()
}

/// Prints the manifest changes; clusters with equal changes share one diff.
fn print_diffs(out: &mut dyn Write, template: &Value) -> io::Result<()> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for cluster in list(template, "clusters").iter().filter(|cluster| is_changed(cluster)) {
        let diff = diff(cluster.get("manifestBefore"), cluster.get("manifest"));
        let name = text(cluster, "/name");
        match groups.iter_mut().find(|(known, _)| *known == diff) {
            Some((_, clusters)) => clusters.push(name),
            None => groups.push((diff, vec![name])),
        }
    }
    for (diff, clusters) in groups.iter().filter(|(diff, _)| !diff.is_empty()) {
        writeln!(out, "\nin {}:\n{}", clusters.join(", "), diff.trim_end())?;
    }
    Ok(())
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A unified diff of two manifests, without the labels and annotations of managed objects.
fn diff(before: Option<&Value>, after: Option<&Value>) -> String {
    let to_text = |manifest: Option<&Value>| {
        let mut manifest = manifest.cloned().unwrap_or_default();
        if manifest.is_null() {
            return String::new();
        }
        managed::remove_ownership_metadata(&mut manifest);
        // This annotation repeats the template as text.
        unstructured::remove(&mut manifest, &["metadata", "annotations", LAST_APPLIED]);
        yaml::to_yaml(&manifest)
    };
    let (before, after) = (to_text(before), to_text(after));
    TextDiff::from_lines(&before, &after).unified_diff().context_radius(3).to_string()
}

#[cfg(test)]
mod tests;
