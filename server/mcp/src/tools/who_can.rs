//! `who_can`: who may perform an action, or what a subject may do, by the RBAC of each cluster.

use crowsnest_apimachinery::unstructured::{list, text, texts};
use serde_json::{Value, json};

use super::cursor::Position;
use super::format::{reference_text, value_text};
use super::object::quote;
use super::{Call, Continuation, Page, Tool, ToolError};
use crate::api::{ACCESS_API, SEARCH_API, get, post, uri};
use crate::output::structured::Field::{Integer, Omitted, Text};
use crate::output::structured::{Layout, Section};
use crate::output::{Row, ToolOutput, row};

const MAX_CLUSTERS: usize = 100;
/// Number of rows that are requested first. If they do not fit, fewer are requested.
const FIRST_PAGE_ROWS: usize = 200;
/// Space in bytes that a page reserves for its cursor, which is known only when the rows of the page are.
const RESERVED_CURSOR_BYTES: usize = 300;
/// Text in the binding column of rows with an indirect path.
const INDIRECTLY: &str = "indirectly";

const LAYOUT: Layout = Layout {
    facts: &[
        Section::with_first_cell("clusters", "clusters", &[Integer("total"), Integer("complete")]),
        Section::with_first_cell("groups", "groups", &[Text("groups")]),
        Section::with_first_cell("indirect paths", "indirectPaths", &[Integer("total")]),
    ],
    rows: &[
        Section::with_cell(
            3,
            INDIRECTLY,
            "indirectPath",
            &[Text("cluster"), Text("subject"), Text("subjectCluster"), Omitted, Omitted, Text("steps")],
        ),
        Section::for_remaining_lines(
            "grant",
            &[Text("cluster"), Text("subject"), Text("namespace"), Text("binding"), Text("role"), Text("rule")],
        ),
    ],
    notes: &[
        Section::with_first_cell("skipped", "skipped", &[Text("cluster"), Text("state"), Text("reason")]),
        Section::for_remaining_lines("notice", &[Omitted, Text("message")]),
    ],
};

pub(super) const TOOL: Tool = Tool {
    name: "who_can",
    title: "Review access",
    description: "With `verb` and `resource` (or `path`): who may do it, in each cluster, with the binding, role and rule that \
grant it. With `user`, `group` or `service_account`: what it may do. By RBAC; other authorizers may allow more. `indirect` \
adds paths such as creating pods that read Secrets. Clusters whose state is not Complete may grant more.",
    properties: || {
        json!({
            "verb": {"type": "string", "description": "get, list, create, update, delete, impersonate, escalate …"},
            "resource": {"type": "string", "description": "Plural, with its group: pods, deployments.apps."},
            "subresource": {"type": "string", "description": "exec, log, scale …"},
            "name": {"type": "string", "description": "Name of one object."},
            "path": {"type": "string", "description": "Non-resource URL instead of a resource, such as /metrics."},
            "namespace": {"type": "string", "description": "Default: all namespaces."},
            "clusters": {"type": "array", "items": {"type": "string"}, "maxItems": MAX_CLUSTERS},
            "user": {"type": "string"},
            "group": {"type": "string", "description": "Group, alone or of the user."},
            "service_account": {"type": "string", "description": "NAMESPACE/NAME"},
            "indirect": {"type": "boolean"},
        })
    },
    required: &[],
    layout: Some(&LAYOUT),
    run: |call| Box::pin(who_can(call)),
};

async fn who_can(call: &Call<'_>) -> Result<Page, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let has_subject =
        !(argument("user")?.is_empty() && argument("group")?.is_empty() && argument("service_account")?.is_empty());
    let has_action =
        !(argument("verb")?.is_empty() && argument("resource")?.is_empty() && argument("path")?.is_empty());
    let mut request = match (has_subject, has_action) {
        (true, false) => ReviewRequest { kind: "SubjectRulesReview", spec: subject_spec(call)?, notices: Vec::new() },
        (false, true) => action_request(call).await?,
        _ => {
            let message = "set verb and resource (or path), or one of user, group and service_account";
            return Err(ToolError::Input(message.to_owned()));
        }
    };
    request.spec["clusters"] = json!(call.arguments.texts("clusters")?);
    match call.position {
        Some(Position::Offset(_)) => indirect_page(call, request).await,
        _ => grants_page(call, request).await,
    }
}

/// A review to request, without the limits of its page.
struct ReviewRequest {
    kind: &'static str,
    spec: Value,
    notices: Vec<Row>,
}

/// A page of grants. It includes all indirect paths if they fit after the last grants; otherwise [`indirect_page`]
/// returns them on later pages.
async fn grants_page(call: &Call<'_>, mut request: ReviewRequest) -> Result<Page, ToolError> {
    let wants_indirect = call.arguments.flag("indirect")?;
    let mut includes_indirect = wants_indirect && call.position.is_none();
    request.spec["continue"] = call.token().into();
    let mut limit = FIRST_PAGE_ROWS;
    loop {
        request.spec["indirect"] = includes_indirect.into();
        request.spec["limit"] = limit.into();
        let status = review(call, &request).await?;
        let mut output = review_output(&status, &request.notices);
        let placeholder = |_: usize| Some("c".repeat(RESERVED_CURSOR_BYTES));
        let shown = |output: &ToolOutput| output.render(0, call.budget, placeholder).shown_rows;
        let token = Some(text(&status, "continue")).filter(|token| !token.is_empty());
        if includes_indirect && token.is_none() && shown(&output) == output.rows.len() {
            return Ok(Page { output, next: Continuation::Position(None) });
        }
        let grants = output.rows.len() - list(&status, "indirect").len();
        output.rows.truncate(grants);
        if wants_indirect {
            output.notes.insert(0, row(["notice", "indirect paths follow after the last grants: continue at `next`"]));
        }
        // A token continues after the rows of a page, so a page that is too large is requested again with the rows that
        // fit.
        let shown = shown(&output);
        if shown < grants && shown > 0 && limit > shown {
            (limit, includes_indirect) = (shown, false);
            continue;
        }
        let next = match token {
            Some(token) => Some(Position::Token(token.to_owned())),
            None => wants_indirect.then_some(Position::Offset(0)),
        };
        return Ok(Page { output, next: Continuation::Position(next) });
    }
}

/// A page of indirect paths, after the last page of grants. The API returns all indirect paths with its first page.
async fn indirect_page(call: &Call<'_>, mut request: ReviewRequest) -> Result<Page, ToolError> {
    request.spec["indirect"] = true.into();
    request.spec["limit"] = 1.into();
    let status = review(call, &request).await?;
    let mut output = review_output(&status, &request.notices);
    let paths = list(&status, "indirect").len();
    output.rows.drain(..output.rows.len() - paths);
    output.facts.push(row(["indirect paths", &paths.to_string()]));
    Ok(Page { output, next: Continuation::Offset })
}

/// Creates the review and returns its status.
async fn review(call: &Call<'_>, ReviewRequest { kind, spec, .. }: &ReviewRequest) -> Result<Value, ToolError> {
    let body = json!({"apiVersion": "access.crowsnest.io/v1alpha1", "kind": kind, "spec": spec});
    let resource = if *kind == "SubjectRulesReview" { "subjectrulesreviews" } else { "resourceaccessreviews" };
    let mut review = post(call.api, format!("{ACCESS_API}/{resource}"), body).await?;
    Ok(review.get_mut("status").map(Value::take).unwrap_or_default())
}

/// Spec of a SubjectRulesReview.
fn subject_spec(call: &Call<'_>) -> Result<Value, ToolError> {
    let argument = |name| call.arguments.text_or_empty(name);
    let (user, group) = (argument("user")?, argument("group")?);
    let user = match argument("service_account")?.split_once('/') {
        Some((namespace, name)) if user.is_empty() => format!("system:serviceaccount:{namespace}:{name}"),
        None if argument("service_account")?.is_empty() => user.to_owned(),
        _ => return Err(ToolError::Input("service_account must be NAMESPACE/NAME, without user".to_owned())),
    };
    let groups: Vec<&str> = Some(group).into_iter().filter(|group| !group.is_empty()).collect();
    let mut spec = json!({"user": user, "groups": groups});
    let namespace = argument("namespace")?;
    if !namespace.is_empty() {
        spec["namespaces"] = json!([namespace]);
    }
    Ok(spec)
}

/// The request of a ResourceAccessReview.
async fn action_request(call: &Call<'_>) -> Result<ReviewRequest, ToolError> {
    let new_request = |spec, notices| ReviewRequest { kind: "ResourceAccessReview", spec, notices };
    let argument = |name| call.arguments.text_or_empty(name);
    let (verb, path, namespace) = (argument("verb")?, argument("path")?, argument("namespace")?);
    let (resource, name) = (argument("resource")?, argument("name")?);
    if verb.is_empty() || resource.is_empty() == path.is_empty() {
        return Err(ToolError::Input("set verb, and either resource or path".to_owned()));
    }
    if !path.is_empty() {
        return Ok(new_request(json!({"nonResourceAttributes": {"verb": verb, "path": path}}), Vec::new()));
    }
    let ResourceName { resource, group, notices } = resource_name(call, resource).await?;
    let attributes = json!({"verb": verb, "group": group, "resource": resource, "subresource": argument("subresource")?,
        "name": name, "namespace": namespace});
    let mut spec = json!({"resourceAttributes": attributes});
    if namespace.is_empty() {
        spec["namespaces"] = json!(["*"]);
    }
    Ok(new_request(spec, notices))
}

/// Resource and group of a review, with notices about how the group was determined.
struct ResourceName {
    resource: String,
    group: String,
    notices: Vec<Row>,
}

/// Splits `deployments.apps`. A name without a group gets the group of an object of this kind, if the caller can read
/// one.
async fn resource_name(call: &Call<'_>, argument: &str) -> Result<ResourceName, ToolError> {
    if let Some((resource, group)) = argument.split_once('.') {
        return Ok(ResourceName { resource: resource.to_owned(), group: group.to_owned(), notices: Vec::new() });
    }
    let query = format!("kind:{}", quote(argument));
    let parameters = [("q", query.as_str()), ("limit", "1"), ("facets", "kind")];
    let response = get(call.api, uri(&format!("{SEARCH_API}/query"), &parameters)).await?;
    Ok(match list(&response, "hits").first() {
        Some(hit) => {
            let group = text(hit, "apiVersion").split_once('/').map_or("", |(group, _)| group);
            let resource = text(hit, "resource").to_owned();
            ResourceName { resource, group: group.to_owned(), notices: Vec::new() }
        }
        None => {
            let notice = format!(
                "you can read no object of {argument:?}, so its group is unknown: it was reviewed as a resource of the core \
                 group; add another group to the name, as in deployments.apps"
            );
            let notices = vec![row(["notice", &notice])];
            ResourceName { resource: argument.to_lowercase(), group: String::new(), notices }
        }
    })
}

/// Output with the grants, then the indirect paths of a review's status.
fn review_output(status: &Value, notices: &[Row]) -> ToolOutput {
    let clusters = list(status, "clusters");
    let complete = clusters.iter().filter(|cluster| text(cluster, "state") == "Complete").count();
    let mut facts = vec![row(["clusters", &clusters.len().to_string(), &format!("{complete} complete")])];
    let groups: Vec<&str> = texts(status, "groups").collect();
    if !groups.is_empty() {
        facts.push(row(["groups", &groups.join(", ")]));
    }
    let mut rows: Vec<Row> = list(status, "grants").iter().map(grant_row).collect();
    rows.extend(list(status, "roles").iter().map(grant_row));
    rows.extend(list(status, "indirect").iter().map(path_row));
    let incomplete = clusters.iter().filter(|cluster| text(cluster, "state") != "Complete");
    let skipped = incomplete.map(|cluster| {
        row(["skipped", text(cluster, "name"), text(cluster, "state"), text(cluster, "evaluationError")])
    });
    let control_plane = status.get("controlPlane").filter(|cluster| text(cluster, "state") != "Complete");
    let unknown_paths = control_plane.map(|cluster| {
        let (state, error) = (text(cluster, "state"), text(cluster, "evaluationError"));
        row(["notice", &format!("indirect paths through the control plane are incomplete: {state}: {error}")])
    });
    let notes = notices
        .iter()
        .cloned()
        .chain(skipped)
        .chain(unknown_paths)
        .chain(texts(status, "warnings").map(|warning| row(["notice", warning])))
        .collect();
    let table = ToolOutput::table(["cluster", "subject", "namespace", "binding", "role", "rule"], rows);
    // The layout adds structured content, so that its size counts when the rows of a page are determined.
    ToolOutput { facts, notes, layout: TOOL.layout, ..table }
}

fn grant_row(grant: &Value) -> Row {
    let namespace = if text(grant, "scope") == "Cluster" { "*" } else { text(grant, "namespace") };
    let rules = match grant.get("rules") {
        Some(rules) => rules.as_array().into_iter().flatten().map(rule_text).collect::<Vec<_>>().join("; "),
        None => rule_text(&grant["rule"]),
    };
    row([
        text(grant, "cluster"),
        &reference_text(&grant["subject"]),
        namespace,
        &reference_text(&grant["binding"]),
        &reference_text(&grant["role"]),
        &rules,
    ])
}

/// Text of a rule, such as `get,list pods.apps (web)`.
fn rule_text(rule: &Value) -> String {
    let join = |field: &str| texts(rule, field).collect::<Vec<_>>().join(",");
    if !list(rule, "nonResourceURLs").is_empty() {
        return format!("{} {}", join("verbs"), join("nonResourceURLs"));
    }
    let groups = join("apiGroups");
    let dot = if groups.is_empty() { "" } else { "." };
    let names = join("resourceNames");
    let names = if names.is_empty() { names } else { format!(" ({names})") };
    format!("{} {}{dot}{groups}{names}", join("verbs"), join("resources"))
}

fn path_row(path: &Value) -> Row {
    let step = |step: &Value| match (step.get("reaches"), text(step, "reachesCluster")) {
        (Some(subject), "") => format!("{} as {}", text(step, "type"), reference_text(subject)),
        (Some(subject), cluster) => format!("{} as {} of {cluster}", text(step, "type"), reference_text(subject)),
        (None, _) => text(step, "type").to_owned(),
    };
    let steps: Vec<String> = list(path, "steps").iter().map(step).collect();
    let from = value_text(&path["subjectCluster"]);
    row([text(path, "cluster"), &reference_text(&path["subject"]), &from, INDIRECTLY, "", &steps.join(", ")])
}
