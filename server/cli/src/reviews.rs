//! Access reviews of `access.crowsnest.io` for `can` and `who-can`: common flags, requests of all pages, and printing.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use crowsnest_apimachinery::rbac::ObjectKind;
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_apimachinery::yaml;
use serde_json::{Value, json};

use crate::clients;
use crate::columns;
use crate::output::terminal;
use crate::pager;
use crate::partial::FleetReadArgs;
use crate::verbs::get::is_broken_pipe;

const API_VERSION: &str = "access.crowsnest.io/v1alpha1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Table,
    /// With the rules
    Wide,
    Json,
    Yaml,
}

/// Flags of `can` and `who-can`.
#[derive(Debug, Args)]
pub(crate) struct ReviewArgs {
    /// Clusters to review, separated by commas; @control-plane is the control plane [default: all]
    #[arg(short = 'C', long, visible_alias = "cluster", value_delimiter = ',', value_name = "CLUSTERS")]
    clusters: Vec<String>,
    /// Leave out an RBAC object, and show what is lost; may be repeated. Nothing is written
    #[arg(long, value_name = "[CLUSTER:]KIND/[NAMESPACE/]NAME", value_parser = parse_removal)]
    without: Vec<Value>,
    /// Also search for indirect paths, such as creating Pods with another service account
    #[arg(long)]
    indirect: bool,
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) read: FleetReadArgs,
}

/// Parses a value of `--without`. Names of RBAC objects may contain colons, so only one before the kind separates the
/// cluster.
fn parse_removal(value: &str) -> Result<Value, String> {
    let invalid = || {
        format!(
            "invalid object {value:?}: expected KIND/NAME or KIND/NAMESPACE/NAME of a role or binding, such as rolebinding/shop/web"
        )
    };
    let (kind, rest) = value.split_once('/').ok_or_else(invalid)?;
    let (cluster, kind) = kind.split_once(':').unwrap_or(("", kind));
    let kind = ObjectKind::from_resource(&kind.to_lowercase()).ok_or_else(invalid)?;
    let (namespace, name) = match (kind.is_namespaced(), rest.split_once('/')) {
        (true, Some(parts)) => parts,
        (false, None) => ("", rest),
        _ => return Err(invalid()),
    };
    if name.is_empty() || name.contains('/') || (kind.is_namespaced() && namespace.is_empty()) {
        return Err(invalid());
    }
    let mut object = json!({"kind": kind.to_string(), "name": name});
    for (field, value) in [("cluster", cluster), ("namespace", namespace)] {
        if !value.is_empty() {
            object[field] = value.into();
        }
    }
    Ok(object)
}

impl ReviewArgs {
    /// Adds the flags to the spec of a review.
    pub(crate) fn apply(&self, spec: &mut Value) {
        for (field, values) in [("clusters", json!(self.clusters)), ("without", json!(self.without))] {
            if values != json!([]) {
                spec[field] = values;
            }
        }
        if self.indirect {
            spec["indirect"] = true.into();
        }
    }

    /// True if the output is JSON or YAML.
    fn is_document(&self) -> bool {
        matches!(self.output, Output::Json | Output::Yaml)
    }

    /// Prints a review, and its warnings and incomplete clusters to standard error.
    pub(crate) fn print(
        &self,
        review: &Value,
        table: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        pager::begin();
        let mut out = terminal::stdout();
        let result = match self.output {
            Output::Table | Output::Wide => table(&mut out).map_err(anyhow::Error::from),
            Output::Json => writeln!(out, "{review:#}").map_err(anyhow::Error::from),
            Output::Yaml => out.write_all(yaml::to_yaml(review).as_bytes()).map_err(anyhow::Error::from),
        };
        match result {
            // The reader closed the pipe.
            Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
            result => result?,
        }
        let is_partial = print_warnings(&mut terminal::stderr(), &review["status"], self.is_document())?;
        Ok(self.read.exit_code(is_partial))
    }
}

/// Requests all pages of a review, and returns it with the rows of all of them.
pub(crate) async fn request_review(client: &kube::Client, kind: &str, mut spec: Value) -> anyhow::Result<Value> {
    let mut merged = request_page(client, kind, &spec).await?;
    let mut next = merged["status"]["continue"].take();
    while let Some(token) = next.as_str() {
        if spec["continue"] == token {
            bail!("the server returned the same page twice");
        }
        spec["continue"] = token.into();
        let mut page = request_page(client, kind, &spec).await?;
        next = page["status"]["continue"].take();
        append_page(&mut merged["status"], &mut page["status"]);
    }
    if let Some(status) = merged["status"].as_object_mut() {
        status.retain(|field, _| !matches!(field.as_str(), "continue" | "remainingItemCount"));
    }
    Ok(merged)
}

async fn request_page(client: &kube::Client, kind: &str, spec: &Value) -> anyhow::Result<Value> {
    let body = json!({"apiVersion": API_VERSION, "kind": kind, "spec": spec});
    let request = http::Request::post(format!("/apis/{API_VERSION}/{}s", kind.to_lowercase()))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&body)?)?;
    client.request(request).await.map_err(|error| anyhow!("{}", clients::explain_failure(None, &error)))
}

/// Appends the rows of a page. The states of the clusters are those of the last page.
fn append_page(merged: &mut Value, page: &mut Value) {
    for field in ["grants", "roles", "lost", "remaining"] {
        let page_rows = page.get_mut(field).and_then(Value::as_array_mut);
        if let (Some(rows), Some(page_rows)) = (merged.get_mut(field).and_then(Value::as_array_mut), page_rows) {
            rows.append(page_rows);
        }
    }
    merged["clusters"] = page["clusters"].take();
}

/// Prints warnings and the states of incomplete clusters, including that of the control plane for indirect paths; true if
/// there is one.
fn print_warnings(err: &mut impl Write, status: &Value, is_document: bool) -> io::Result<bool> {
    for warning in list(status, "warnings").iter().filter_map(Value::as_str) {
        writeln!(err, "warning: {warning}")?;
    }
    let mut partial = false;
    let clusters = list(status, "clusters").iter().map(|cluster| ("", cluster));
    let control_plane = status.get("controlPlane").map(|cluster| ("indirect paths through ", cluster));
    for (prefix, cluster) in clusters.chain(control_plane) {
        let (name, state, error) = (text(cluster, "/name"), text(cluster, "/state"), text(cluster, "/evaluationError"));
        partial |= state != "Complete";
        if error.is_empty() {
            continue;
        }
        let age = cluster["ageSeconds"].as_i64().map(crowsnest_apimachinery::printers::human_duration);
        let age = age.map(|age| format!(", last contact {age} ago")).unwrap_or_default();
        let state = if state == "Complete" { String::new() } else { format!(" ({}{age})", state.to_lowercase()) };
        writeln!(err, "warning: {prefix}{name}{state}: {error}")?;
    }
    if !is_document {
        writeln!(err, "note: only RBAC is evaluated; other authorizers of a cluster may allow more")?;
    }
    Ok(partial)
}

/// Rows of a review's status, each with its value of the column CHANGE: empty for the rows in `field`, then `lost` and
/// `remaining` for the rows in these fields, which a review with `--without` has.
pub(crate) fn rows<'s>(status: &'s Value, field: &str) -> Vec<(&'static str, &'s Value)> {
    let rows_in = |field: &str, change: &'static str| {
        list(status, field).iter().map(move |row| (change, row)).collect::<Vec<_>>()
    };
    [rows_in(field, ""), rows_in("lost", "lost"), rows_in("remaining", "remaining")].concat()
}

/// Kind, namespace and name of a subject, role or binding, such as `ServiceAccount shop/robot`.
pub(crate) fn format_reference(reference: &Value) -> String {
    let (kind, namespace, name) = (text(reference, "/kind"), text(reference, "/namespace"), text(reference, "/name"));
    if namespace.is_empty() { format!("{kind} {name}") } else { format!("{kind} {namespace}/{name}") }
}

/// A reference, or `-` if there is none.
pub(crate) fn format_reference_or_none(value: &Value, field: &str) -> String {
    value.get(field).map_or_else(|| "-".to_owned(), format_reference)
}

/// Namespace of a grant; `*` for the whole cluster.
pub(crate) fn format_scope(grant: &Value) -> String {
    if text(grant, "/scope") == "Cluster" { "*".to_owned() } else { text(grant, "/namespace").to_owned() }
}

/// Verbs of a rule, and its resources with their groups and names, or its URLs.
pub(crate) fn format_rule(rule: &Value) -> (String, String) {
    let words = |field: &str| list(rule, field).iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>();
    let (groups, names) = (words("apiGroups"), words("resourceNames"));
    let groups = if groups.is_empty() { vec![String::new()] } else { groups };
    let dotted = |resource: &String, group: &String| {
        let (resource, sub) = resource
            .split_once('/')
            .map_or((resource.as_str(), String::new()), |(resource, sub)| (resource, format!("/{sub}")));
        let dot = if group.is_empty() { "" } else { "." };
        format!("{resource}{dot}{group}{sub}")
    };
    let resources = words("resources");
    let mut targets: Vec<String> =
        groups.iter().flat_map(|group| resources.iter().map(move |resource| dotted(resource, group))).collect();
    targets.extend(words("nonResourceURLs"));
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(",")) };
    (words("verbs").join(","), format!("{}{names}", targets.join(",")))
}

/// Prints a table with a column CHANGE if any row is a change, and then the indirect paths.
pub(crate) fn print_table(
    mut out: &mut dyn Write,
    headers: &[&str],
    rows: Vec<(&'static str, Vec<String>)>,
    status: &Value,
) -> io::Result<()> {
    let has_changes = rows.iter().any(|(change, _)| !change.is_empty());
    let line = |change: &str, cells: Vec<String>| {
        let change = has_changes.then(|| change.to_owned());
        change.into_iter().chain(cells).collect::<Vec<String>>()
    };
    let head = line("CHANGE", headers.iter().map(|head| (*head).to_owned()).collect());
    let lines: Vec<Vec<String>> =
        std::iter::once(head).chain(rows.into_iter().map(|(change, cells)| line(change, cells))).collect();
    columns::Widths::default().with_max_width(pager::width()).write(&mut out, &lines)?;
    let paths = list(status, "indirect");
    if paths.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let head = ["CLUSTER", "INDIRECTLY", "STEPS"].map(str::to_owned).to_vec();
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(paths.iter().map(path_row)).collect();
    columns::Widths::default().with_max_width(pager::width()).write(&mut out, &lines)
}

/// Cluster, subject and steps of a path: `CreatePod as ServiceAccount shop/robot, ReadSecrets`.
fn path_row(path: &Value) -> Vec<String> {
    let step = |step: &Value| match step.get("reaches") {
        Some(subject) => {
            let reached = format_subject(subject, text(step, "/reachesCluster"));
            format!("{} as {reached}", text(step, "/type"))
        }
        None => text(step, "/type").to_owned(),
    };
    let steps: Vec<String> = list(path, "steps").iter().map(step).collect();
    let subject = format_subject(&path["subject"], text(path, "/subjectCluster"));
    vec![text(path, "/cluster").to_owned(), subject, steps.join(", ")]
}

/// A subject of a path. `cluster` is empty if it is the cluster of the path.
fn format_subject(subject: &Value, cluster: &str) -> String {
    let subject = format_reference(subject);
    if cluster.is_empty() { subject } else { format!("{subject} of {cluster}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("clusterrolebinding/admins", Some(json!({"kind": "ClusterRoleBinding", "name": "admins"})))]
    #[case("member1:RoleBinding/shop/web", Some(json!({"kind": "RoleBinding", "cluster": "member1", "namespace": "shop", "name": "web"})))]
    #[case("@control-plane:clusterrole/system:node", Some(json!({"kind": "ClusterRole", "cluster": "@control-plane", "name": "system:node"})))]
    #[case("clusterrole/system:node", Some(json!({"kind": "ClusterRole", "name": "system:node"})))]
    #[case("rolebinding/web", None)]
    #[case("clusterrole/shop/web", None)]
    #[case("pod/shop/web", None)]
    #[case("admins", None)]
    #[case("role/shop/", None)]
    fn removals_are_parsed(#[case] value: &str, #[case] expected: Option<Value>) {
        match (parse_removal(value), expected) {
            (Err(error), None) => assert!(error.contains("expected KIND/NAME"), "{error}"),
            (read, expected) => assert_eq!(read.ok(), expected),
        }
    }

    #[rstest::rstest]
    #[case(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}), "get,list", "pods,pods/log")]
    #[case(json!({"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*/scale"], "resourceNames": ["web"]}), "*", "*.apps/scale (web)")]
    #[case(json!({"verbs": ["get"], "nonResourceURLs": ["/metrics"]}), "get", "/metrics")]
    fn rules_are_shown(#[case] rule: Value, #[case] verbs: &str, #[case] targets: &str) {
        assert_eq!(format_rule(&rule), (verbs.to_owned(), targets.to_owned()));
    }

    #[test]
    fn incomplete_clusters_are_reported() {
        let status = json!({"warnings": ["no reviewed cluster serves widgets"], "clusters": [
            {"name": "m1", "state": "Complete"},
            {"name": "m2", "state": "Stale", "evaluationError": "no connection", "ageSeconds": 90},
            {"name": "m3", "state": "Complete", "evaluationError": "ClusterRoleBinding a references ClusterRole \"b\", which does not exist"},
        ]});
        let mut err = Vec::new();
        assert!(print_warnings(&mut err, &status, true).unwrap());
        let expected = "warning: no reviewed cluster serves widgets\n\
            warning: m2 (stale, last contact 90s ago): no connection\n\
            warning: m3: ClusterRoleBinding a references ClusterRole \"b\", which does not exist\n";
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }

    #[rstest::rstest]
    #[case(json!({"name": "@control-plane", "state": "Complete"}), false, "")]
    #[case(
        json!({"name": "@control-plane", "state": "Unknown", "evaluationError": "you cannot list all roles"}),
        true,
        "warning: indirect paths through @control-plane (unknown): you cannot list all roles\n"
    )]
    fn the_control_plane_of_paths_is_reported(#[case] state: Value, #[case] partial: bool, #[case] expected: &str) {
        let status = json!({"clusters": [{"name": "m1", "state": "Complete"}], "controlPlane": state});
        let mut err = Vec::new();
        assert_eq!(print_warnings(&mut err, &status, true).unwrap(), partial);
        assert_eq!(String::from_utf8(err).unwrap(), expected);
    }

    #[test]
    fn changes_and_paths_are_printed() {
        let status = json!({"indirect": [
            {"cluster": "m1", "subject": {"kind": "User", "name": "ann"}, "subjectCluster": "@control-plane",
             "steps": [{"type": "WriteWork"}]},
            {"cluster": "m1", "subject": {"kind": "User", "name": "bob"},
             "steps": [{"type": "CreatePod", "reaches": {"kind": "ServiceAccount", "namespace": "shop", "name": "robot"}}]},
            {"cluster": "m1", "subject": {"kind": "User", "name": "cyd"}, "steps": [
                {"type": "Impersonate", "reaches": {"kind": "User", "name": "cyd"}, "reachesCluster": "@control-plane"},
                {"type": "ClusterProxy", "reaches": {"kind": "User", "name": "cyd"}}]},
        ]});
        let mut out = Vec::new();
        print_table(&mut out, &["CLUSTER", "SUBJECT"], vec![("lost", vec!["m1".into(), "User ann".into()])], &status)
            .unwrap();
        let expected = "CHANGE   CLUSTER   SUBJECT\nlost     m1        User ann\n\n\
            CLUSTER   INDIRECTLY                   STEPS\n\
            m1        User ann of @control-plane   WriteWork\n\
            m1        User bob                     CreatePod as ServiceAccount shop/robot\n\
            m1        User cyd                     Impersonate as User cyd of @control-plane, ClusterProxy as User cyd\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
